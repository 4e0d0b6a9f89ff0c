// Attention of one query a head over a float16 cache, with AVX2 and F16C; kernels_avx2.cpp includes this file inside its
// unnamed namespace.
//
// A head is one thread's work, so the number of threads changes no sum. Columns that the mask shuts out behind the last
// open one are not read: how far the cache reaches changes no sum either.

using pymagpie::AttendArgs;
using pymagpie::ATTEND_MAX_COLUMNS;

constexpr int TOGETHER = 4;  // sums that are made side by side

inline __m256 load_half(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

// The sums of the lanes of four vectors.
inline __m128 add_lanes(const __m256 (&v)[TOGETHER]) {
    const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

// Dot products of `count` floats with four rows of halves; count is a multiple of 8.
inline __m128 dot_rows(const float *x, const uint16_t *rows, int64_t stride, int64_t count) {
    __m256 sums[TOGETHER];
    PYMAGPIE_UNROLL
    for (int r = 0; r < TOGETHER; ++r) {
        sums[r] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        PYMAGPIE_UNROLL
        for (int r = 0; r < TOGETHER; ++r) {
            sums[r] = _mm256_fmadd_ps(load_half(rows + r * stride + i), v, sums[r]);
        }
    }
    return add_lanes(sums);
}

// exp(x) of x <= 0 to 2e-7 of its value, and 0 where it would be subnormal; NaN stays NaN.
inline __m256 exp_negative(__m256 x) {
    const __m256 least = _mm256_set1_ps(-87.0f);
    const __m256 kept = _mm256_cmp_ps(x, least, _CMP_NLT_UQ);
    x = _mm256_max_ps(least, x);  // which gives its second operand when that is NaN
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // ln 2 in two parts: n times the first is exact.
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    // |r| is at most ln(2) / 2, where the eighth term of the series is 5e-9.
    constexpr float SERIES[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};
    __m256 sum = _mm256_set1_ps(1.0f / 5040);
    PYMAGPIE_UNROLL
    for (int i = 0; i < 7; ++i) {
        sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(SERIES[i]));
    }
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_and_ps(kept, _mm256_mul_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))));
}

inline float largest_lane(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

inline float sum_lanes(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Turns `count` scores into exp(score - the largest of them) and returns their sum.
inline float exp_scores(float *scores, int64_t count) {
    __m256 peaks = _mm256_set1_ps(-INFINITY);
    for (int64_t c = 0; c < count; c += 8) {
        peaks = _mm256_max_ps(_mm256_load_ps(scores + c), peaks);
    }
    const __m256 peak = _mm256_set1_ps(largest_lane(peaks));
    __m256 sums = _mm256_setzero_ps();
    for (int64_t c = 0; c < count; c += 8) {
        const __m256 e = exp_negative(_mm256_sub_ps(_mm256_load_ps(scores + c), peak));
        _mm256_store_ps(scores + c, e);
        sums = _mm256_add_ps(sums, e);
    }
    return sum_lanes(sums);
}

// Some heads of a branch. The keys of a column lie side by side, so they are read column by column, all heads in turn.
PYMAGPIE_NOINLINE void attend_heads(const AttendArgs &args, int64_t columns, int64_t branch, int64_t begin, int64_t end) {
    alignas(32) float scores[ATTEND_MAX_COLUMNS];
    const float *q = args.q + branch * args.q_branch;
    const uint16_t *k = args.k + branch * args.k_branch;
    const uint16_t *v = args.v + branch * args.v_branch;
    float *out = args.out + branch * args.out_branch;
    const __m128 scale = _mm_set1_ps(args.scale);
    for (int64_t c = 0; c < columns; c += TOGETHER) {
        const __m128 mask = _mm_loadu_ps(args.mask + c);
        for (int64_t h = begin; h < end; ++h) {
            const uint16_t *keys = k + h * args.k_head + c * args.k_column;
            const __m128 products = dot_rows(q + h * args.q_head, keys, args.k_column, args.head_dim);
            _mm_store_ps(scores + (h - begin) * columns + c, _mm_fmadd_ps(products, scale, mask));
        }
    }
    for (int64_t h = begin; h < end; ++h) {
        float *own = scores + (h - begin) * columns;
        const __m128 share = _mm_set1_ps(1.0f / exp_scores(own, columns));
        for (int64_t d = 0; d < args.head_dim; d += TOGETHER) {
            const __m128 sums = dot_rows(own, v + h * args.v_head + d * args.v_row, args.v_row, columns);
            _mm_storeu_ps(out + h * args.head_dim + d, _mm_mul_ps(sums, share));
        }
    }
}

void attend(const AttendArgs &args, int ith, int nth) {
    int64_t columns = args.columns;
    while (columns > 8 && args.mask[columns - 1] == -INFINITY) {
        --columns;
    }
    columns = (columns + 7) / 8 * 8;
    const int64_t total = static_cast<int64_t>(args.heads) * args.branches;
    const int64_t last = total * (ith + 1) / nth;
    for (int64_t i = total * ith / nth; i < last;) {
        const int64_t branch = i / args.heads;
        const int64_t begin = i % args.heads;
        int64_t count = ATTEND_MAX_COLUMNS / columns;
        count = count < last - i ? count : last - i;
        count = count < args.heads - begin ? count : args.heads - begin;
        attend_heads(args, columns, branch, begin, begin + count);
        i += count;
    }
}
