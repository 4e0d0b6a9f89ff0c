// The product of float16 weights with AVX2 and F16C; kernels_avx2.cpp includes this file inside its unnamed namespace.
//
// A tile is four rows by up to three columns. Whatever tile computes a sum, its operations and their order are the same.

using pymagpie::HalfMatmulArgs;

constexpr int TILE_COLUMNS = 3;  // with four rows 12 sums, which leaves registers for a weight and three inputs
constexpr int64_t CHUNK_FLOATS = 1 << 16;  // columns at a time: as many as stay in the second-level cache

template <int COLUMNS, bool PREFETCH>
PYMAGPIE_NOINLINE void half_tile(const uint16_t *const (&rows)[TOGETHER], const float *x, int64_t x_stride,
                                 int64_t width, float *y, int64_t y_stride, int64_t count) {
    __m256 sums[COLUMNS][TOGETHER];
    PYMAGPIE_UNROLL
    for (int c = 0; c < COLUMNS; ++c) {
        PYMAGPIE_UNROLL
        for (int r = 0; r < TOGETHER; ++r) {
            sums[c][r] = _mm256_setzero_ps();
        }
    }
    for (int64_t i = 0; i < width; i += 8) {
        if (PREFETCH) {  // a line of the next four rows for each that is used; harmless past the end
            _mm_prefetch(reinterpret_cast<const char *>(rows[0] + TOGETHER * (width + i)), _MM_HINT_T0);
        }
        __m256 v[COLUMNS];
        PYMAGPIE_UNROLL
        for (int c = 0; c < COLUMNS; ++c) {
            v[c] = _mm256_loadu_ps(x + c * x_stride + i);
        }
        PYMAGPIE_UNROLL
        for (int r = 0; r < TOGETHER; ++r) {
            const __m256 w = load_half(rows[r] + i);
            PYMAGPIE_UNROLL
            for (int c = 0; c < COLUMNS; ++c) {
                sums[c][r] = _mm256_fmadd_ps(w, v[c], sums[c][r]);
            }
        }
    }
    PYMAGPIE_UNROLL
    for (int c = 0; c < COLUMNS; ++c) {
        alignas(16) float totals[TOGETHER];
        _mm_store_ps(totals, add_lanes(sums[c]));
        memcpy(y + c * y_stride, totals, static_cast<size_t>(count) * sizeof(float));
    }
}

// Four rows, or the last `count` of the matrix, by some columns.
inline void half_rows(const HalfMatmulArgs &args, int64_t row, int64_t count, int64_t begin, int64_t end) {
    const uint16_t *rows[TOGETHER];
    for (int64_t r = 0; r < TOGETHER; ++r) {
        rows[r] = args.weights + (row + (r < count ? r : 0)) * args.width;
    }
    const auto tile = [&](auto run, int64_t c) {
        run(rows, args.x.data + c * args.x.stride, args.x.stride, args.width, args.y + c * args.y_stride + row,
            args.y_stride, count);
    };
    int64_t c = begin;
    if (end - begin == 2 || end - begin == 4) {  // 2 and 2 rather than 3 and 1
        tile(half_tile<2, true>, c);
        c += 2;
    } else if (end - begin >= TILE_COLUMNS) {
        tile(half_tile<TILE_COLUMNS, true>, c);
        c += TILE_COLUMNS;
    }
    for (; c + TILE_COLUMNS <= end; c += TILE_COLUMNS) {
        tile(half_tile<TILE_COLUMNS, false>, c);
    }
    for (; c + 2 <= end; c += 2) {
        tile(half_tile<2, false>, c);
    }
    for (; c < end; ++c) {
        tile(half_tile<1, true>, c);
    }
}

void matmul_half(const HalfMatmulArgs &args, int ith, int nth) {
    const int64_t panels = (args.rows + TOGETHER - 1) / TOGETHER;
    const int64_t first = panels * ith / nth * TOGETHER;
    const int64_t last = panels * (ith + 1) / nth * TOGETHER;
    const int64_t fit = CHUNK_FLOATS / args.width / TILE_COLUMNS * TILE_COLUMNS;
    const int64_t chunk = fit > 0 ? fit : TILE_COLUMNS;
    for (int64_t begin = 0; begin < args.columns; begin += chunk) {
        const int64_t end = args.columns - begin < chunk ? args.columns : begin + chunk;
        for (int64_t row = first; row < last; row += TOGETHER) {
            const int64_t count = args.rows - row < TOGETHER ? args.rows - row : TOGETHER;
            half_rows(args, row, count, begin, end);
        }
    }
}
