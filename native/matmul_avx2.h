// The q8_0 product with AVX2 and F16C; kernels_avx2.cpp includes this file inside its unnamed namespace.
//
// Work goes by panels of eight rows, interleaved so that a lane of a vector is a row: nothing is added up across lanes.
// Every sum is one chain of multiply-adds over the blocks: a block's dot product, exact in integers, times the product
// of its scales. Tiles may form the dot product in any order and give the same bits.
//
// With few columns a panel is used once and interleaved in registers, block by block. With many it is interleaved into
// memory and read back, from the first-level cache, by every tile of columns.

using pymagpie::BlockQ8;
using pymagpie::MatmulArgs;
using pymagpie::MATMUL_MAX_WIDTH;
using pymagpie::Q8_BLOCK;

constexpr int PANEL_ROWS = 8;
constexpr int QUADS = Q8_BLOCK / 4;  // four values are a lane of 32 bits
constexpr int NARROW_COLUMNS = 4;    // at most; more are worth interleaving into memory
constexpr int WIDE_COLUMNS = 4;      // a sum and a dot product each, in 16 registers with what they are made from

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

// Activations as 8 bits, a column right after the other: as many as stay in the second-level cache.
struct Columns {
    static constexpr int VALUES = 32 * MATMUL_MAX_WIDTH;
    alignas(32) int8_t q[VALUES];
    float scale[VALUES / Q8_BLOCK];
};

struct Panel {
    alignas(32) __m256i q[MATMUL_MAX_WIDTH / Q8_BLOCK][QUADS];  // the same quad of each row
    __m256 scale[MATMUL_MAX_WIDTH / Q8_BLOCK];
};

inline __m128i load16(const int8_t *q) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(q)); }

// One block of a panel's rows, which lie `blocks` apart.
inline void load_block(const BlockQ8 *w, int64_t blocks, __m256i (&q)[QUADS], __m256 &scale) {
    // Four rows off two base addresses are what the address modes reach without arithmetic.
    const BlockQ8 *const rows[2] = {w, w + 4 * blocks};
    PYMAGPIE_UNROLL
    for (int half = 0; half < 2; ++half) {
        __m256i v[4];  // 16 values of a row and of the one four rows on
        PYMAGPIE_UNROLL
        for (int r = 0; r < 4; ++r) {
            v[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(rows[0][r * blocks].q + 16 * half)),
                                           load16(rows[1][r * blocks].q + 16 * half), 1);
        }
        const __m256i low[2] = {_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpacklo_epi32(v[2], v[3])};
        const __m256i high[2] = {_mm256_unpackhi_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[2], v[3])};
        q[4 * half] = _mm256_unpacklo_epi64(low[0], low[1]);
        q[4 * half + 1] = _mm256_unpackhi_epi64(low[0], low[1]);
        q[4 * half + 2] = _mm256_unpacklo_epi64(high[0], high[1]);
        q[4 * half + 3] = _mm256_unpackhi_epi64(high[0], high[1]);
    }
    const auto half = [&](int r) { return static_cast<short>(rows[r / 4][r % 4 * blocks].scale); };
    scale = _mm256_cvtph_ps(_mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}

// The rows are too short for the CPU to foresee the next, so each block asks for its share of the next panel. A prefetch
// past the end is harmless.
inline void prefetch_share(const BlockQ8 *panel, int64_t blocks, int64_t b) {
    constexpr int BYTES = PANEL_ROWS * static_cast<int>(sizeof(BlockQ8));
    const char *share = reinterpret_cast<const char *>(panel + PANEL_ROWS * blocks) + b * BYTES;
    PYMAGPIE_UNROLL
    for (int line = 0; line <= BYTES / 64; ++line) {
        _mm_prefetch(share + line * 64, _MM_HINT_T0);
    }
}

inline void quantize(const MatmulArgs &args, int64_t first, int64_t columns, Columns &x) {
    const int64_t blocks = args.width / Q8_BLOCK;
    for (int64_t c = 0; c < columns; ++c) {
        const float *column = args.x.data + (first + c) * args.x.stride;
        for (int64_t b = 0; b < blocks; ++b) {
            x.scale[c * blocks + b] = quantize_block(column + b * Q8_BLOCK, x.q + c * args.width + b * Q8_BLOCK);
        }
    }
}

PYMAGPIE_NOINLINE void store_lanes(float *y, __m256 v, int64_t count) {
    memcpy(y, &v, static_cast<size_t>(count) * sizeof(float));
}

// The sums of COLUMNS columns with a panel, as they grow block by block.
template <int COLUMNS>
struct Tile {
    const int8_t *q[COLUMNS];
    const float *scale[COLUMNS];
    __m256 sums[COLUMNS];

    Tile(const MatmulArgs &args, const Columns &x, int64_t first) {
        PYMAGPIE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            q[c] = x.q + (first + c) * args.width;
            scale[c] = x.scale + (first + c) * (args.width / Q8_BLOCK);
            sums[c] = _mm256_setzero_ps();
        }
    }

    void add_block(int64_t b, const __m256i *w, __m256 w_scale) {
        const __m256i ones = _mm256_set1_epi16(1);
        __m256i dots[COLUMNS];
        PYMAGPIE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            dots[c] = _mm256_setzero_si256();
        }
        PYMAGPIE_UNROLL
        for (int i = 0; i < QUADS; ++i) {
            const __m256i magnitude = _mm256_abs_epi8(w[i]);
            PYMAGPIE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                // maddubs takes an unsigned and a signed operand: |w| and x with the sign of w. |x| <= 127, so a pair
                // of products stays within 16 bits.
                int32_t quad;
                memcpy(&quad, q[c] + b * Q8_BLOCK + 4 * i, sizeof(quad));
                const __m256i v = _mm256_sign_epi8(_mm256_set1_epi32(quad), w[i]);
                dots[c] = _mm256_add_epi32(dots[c], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, v), ones));
            }
        }
        PYMAGPIE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            const __m256 factor = _mm256_mul_ps(w_scale, _mm256_broadcast_ss(scale[c] + b));
            sums[c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[c]), factor, sums[c]);
        }
    }

    // Writes the sums of the first `rows` rows, from y in the first column on.
    void store(float *y, int64_t stride, int64_t rows) const {
        PYMAGPIE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            if (rows >= PANEL_ROWS) {
                _mm256_storeu_ps(y + c * stride, sums[c]);
            } else {
                store_lanes(y + c * stride, sums[c], rows);
            }
        }
    }
};

template <int COLUMNS>
PYMAGPIE_NOINLINE void narrow_panels(const MatmulArgs &args, const Columns &x, int64_t first, const BlockQ8 *w, float *y,
                                     int64_t rows) {
    const int64_t blocks = args.width / Q8_BLOCK;
    for (int64_t row = 0; row < rows; row += PANEL_ROWS, w += PANEL_ROWS * blocks) {
        Tile<COLUMNS> tile(args, x, first);
        for (int64_t b = 0; b < blocks; ++b) {
            prefetch_share(w, blocks, b);
            __m256i q[QUADS];
            __m256 scale;
            load_block(w + b, blocks, q, scale);
            tile.add_block(b, q, scale);
        }
        tile.store(y + row, args.y_stride, rows - row);
    }
}

template <int COLUMNS>
PYMAGPIE_NOINLINE void wide_tile(const MatmulArgs &args, const Columns &x, int64_t first, const Panel &panel, float *y,
                                 int64_t rows) {
    Tile<COLUMNS> tile(args, x, first);
    for (int64_t b = 0; b < args.width / Q8_BLOCK; ++b) {
        tile.add_block(b, panel.q[b], panel.scale[b]);
    }
    tile.store(y, args.y_stride, rows);
}

PYMAGPIE_NOINLINE void wide_panels(const MatmulArgs &args, const Columns &x, int64_t columns, const BlockQ8 *w, float *y,
                                   int64_t rows) {
    const int64_t blocks = args.width / Q8_BLOCK;
    Panel panel;
    for (int64_t row = 0; row < rows; row += PANEL_ROWS, w += PANEL_ROWS * blocks) {
        for (int64_t b = 0; b < blocks; ++b) {
            prefetch_share(w, blocks, b);
            load_block(w + b, blocks, panel.q[b], panel.scale[b]);
        }
        int64_t c = 0;
        for (; c + WIDE_COLUMNS <= columns; c += WIDE_COLUMNS) {
            wide_tile<WIDE_COLUMNS>(args, x, c, panel, y + c * args.y_stride + row, rows - row);
        }
        for (; c < columns; ++c) {
            wide_tile<1>(args, x, c, panel, y + c * args.y_stride + row, rows - row);
        }
    }
}

// The product of some rows with the columns of x, from y on. The weights go on for whole panels.
inline void multiply(const MatmulArgs &args, const Columns &x, int64_t columns, const BlockQ8 *w, float *y, int64_t rows) {
    if (columns > NARROW_COLUMNS) {
        wide_panels(args, x, columns, w, y, rows);
        return;
    }
    int64_t c = 0;
    for (; c + 2 <= columns; c += 2) {
        narrow_panels<2>(args, x, c, w, y + c * args.y_stride, rows);
    }
    if (c < columns) {
        narrow_panels<1>(args, x, c, w, y + c * args.y_stride, rows);
    }
}

// The last rows of the matrix where they fill no panel: a copy has what is missing.
PYMAGPIE_NOINLINE void multiply_rest(const MatmulArgs &args, const Columns &x, int64_t columns, const BlockQ8 *w, float *y,
                                     int64_t rows) {
    const int64_t blocks = args.width / Q8_BLOCK;
    BlockQ8 padded[PANEL_ROWS * MATMUL_MAX_WIDTH / Q8_BLOCK];
    const size_t size = static_cast<size_t>(rows * blocks) * sizeof(BlockQ8);
    memcpy(padded, w, size);
    memset(padded + rows * blocks, 0, static_cast<size_t>((PANEL_ROWS - rows) * blocks) * sizeof(BlockQ8));
    multiply(args, x, columns, padded, y, rows);
}

void matmul(const MatmulArgs &args, int ith, int nth) {
    const int64_t blocks = args.width / Q8_BLOCK;
    const int64_t panels = args.rows / PANEL_ROWS;
    const int64_t begin = panels * ith / nth * PANEL_ROWS;
    const int64_t end = panels * (ith + 1) / nth * PANEL_ROWS;
    const int64_t rest = ith == nth - 1 ? args.rows - end : 0;
    const int64_t chunk = Columns::VALUES / args.width / WIDE_COLUMNS * WIDE_COLUMNS;
    Columns x;
    for (int64_t first = 0; first < args.columns; first += chunk) {
        const int64_t columns = args.columns - first < chunk ? args.columns - first : chunk;
        float *y = args.y + first * args.y_stride;
        quantize(args, first, columns, x);
        multiply(args, x, columns, args.weights + begin * blocks, y + begin, end - begin);
        if (rest) {
            multiply_rest(args, x, columns, args.weights + end * blocks, y + end, rest);
        }
    }
}
