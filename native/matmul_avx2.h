// The q8_0 product with AVX2 and F16C; kernels_avx2.cpp includes this file inside its unnamed namespace.
//
// A tile is ROWS x COLUMNS sums of 8 lanes. Whatever tile computes a sum, its operations and their order are the same.

using pymagpie::BlockQ8;

constexpr int PREFETCH_TILES = 2;

struct Activations {
    alignas(32) int8_t q[pymagpie::MATMUL_MAX_COLUMNS][pymagpie::MATMUL_MAX_WIDTH];
    float scale[pymagpie::MATMUL_MAX_COLUMNS][pymagpie::MATMUL_MAX_WIDTH / pymagpie::Q8_BLOCK];
};

// One block of x as int8 with the scale max|x| / 127, which is infinite or NaN when a value is.
inline float quantize_block(const float *x, int8_t *q) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();  // of the bits, so that NaN wins
    PYMAGPIE_UNROLL
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    const float peak = _mm_cvtss_f32(_mm_castsi128_ps(m));
    if (static_cast<uint32_t>(_mm_cvtsi128_si32(m)) >= 0x7f800000u) {
        _mm256_store_si256(reinterpret_cast<__m256i *>(q), _mm256_set1_epi8(1));
        return peak;
    }
    const __m256 inverse = _mm256_set1_ps(peak > 0.0f ? 127.0f / peak : 0.0f);
    const __m256 limit = _mm256_set1_ps(127.0f);
    __m256i n[4];
    PYMAGPIE_UNROLL
    for (int i = 0; i < 4; ++i) {
        // A subnormal peak makes the inverse infinite and the product of a zero NaN; max() gives its second operand.
        const __m256 scaled = _mm256_max_ps(_mm256_mul_ps(v[i], inverse), _mm256_sub_ps(_mm256_setzero_ps(), limit));
        n[i] = _mm256_cvtps_epi32(_mm256_min_ps(scaled, limit));
    }
    // The packs work on 128-bit halves: they leave groups of four in the order 0 2 4 6 1 3 5 7.
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_store_si256(reinterpret_cast<__m256i *>(q), _mm256_permutevar8x32_epi32(packed, order));
    return peak / 127.0f;
}

// The sums of the lanes of four vectors.
inline __m128 reduce(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

template <int ROWS, int COLUMNS>
inline void matmul_tile(const pymagpie::MatmulArgs &args, const Activations &x, int64_t row, int first) {
    const int64_t blocks = args.width / pymagpie::Q8_BLOCK;
    const BlockQ8 *w = args.weights + row * blocks;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sums[COLUMNS][4];
    PYMAGPIE_UNROLL
    for (int c = 0; c < COLUMNS; ++c) {
        PYMAGPIE_UNROLL
        for (int r = 0; r < 4; ++r) {
            sums[c][r] = _mm256_setzero_ps();
        }
    }
    // The rows are too short for the CPU to foresee the next, so each step asks for its share of a later tile.
    // A prefetch past the end is harmless.
    const char *later = reinterpret_cast<const char *>(w + PREFETCH_TILES * ROWS * blocks);
    for (int64_t b = 0; b < blocks; ++b) {
        PYMAGPIE_UNROLL
        for (int line = 0; line <= ROWS * 34 / 64; ++line) {
            _mm_prefetch(later + b * ROWS * 34 + line * 64, _MM_HINT_T0);
        }
        PYMAGPIE_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const BlockQ8 *block = w + r * blocks + b;
            const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block->q));
            const __m256i magnitude = _mm256_abs_epi8(q);
            const __m256 scale = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(block->scale)));
            PYMAGPIE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                // maddubs takes an unsigned and a signed operand: |w| and x with the sign of w. |x| <= 127, so a pair
                // of products stays within 16 bits.
                const __m256i v = _mm256_load_si256(
                    reinterpret_cast<const __m256i *>(x.q[first + c] + b * pymagpie::Q8_BLOCK));
                const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(v, q));
                const __m256 dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
                const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(&x.scale[first + c][b]));
                sums[c][r] = _mm256_fmadd_ps(dot, factor, sums[c][r]);
            }
        }
    }
    PYMAGPIE_UNROLL
    for (int c = 0; c < COLUMNS; ++c) {
        const __m128 total = reduce(sums[c][0], sums[c][1], sums[c][2], sums[c][3]);
        float *y = args.y + (first + c) * args.y_stride + row;
        if (ROWS == 4) {
            _mm_storeu_ps(y, total);
        } else {
            *y = _mm_cvtss_f32(total);
        }
    }
}

template <int COLUMNS>
PYMAGPIE_NOINLINE void matmul_rows(const pymagpie::MatmulArgs &args, const Activations &x, int64_t begin, int64_t end,
                                   int first) {
    int64_t row = begin;
    for (; row + 4 <= end; row += 4) {
        matmul_tile<4, COLUMNS>(args, x, row, first);
    }
    for (; row < end; ++row) {
        matmul_tile<1, COLUMNS>(args, x, row, first);
    }
}

void matmul(const pymagpie::MatmulArgs &args, int ith, int nth) {
    Activations x;
    for (int c = 0; c < args.columns; ++c) {
        for (int64_t b = 0; b < args.width / pymagpie::Q8_BLOCK; ++b) {
            x.scale[c][b] = quantize_block(args.x.data + c * args.x.stride + b * pymagpie::Q8_BLOCK,
                                           x.q[c] + b * pymagpie::Q8_BLOCK);
        }
    }
    const int64_t begin = args.rows * ith / nth;
    const int64_t end = args.rows * (ith + 1) / nth;
    int c = 0;
    for (; c + 2 <= args.columns; c += 2) {
        matmul_rows<2>(args, x, begin, end, c);
    }
    if (c < args.columns) {
        matmul_rows<1>(args, x, begin, end, c);
    }
}
