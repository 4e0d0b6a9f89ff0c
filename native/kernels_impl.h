// The kernels, written once over a vector type. Each kernels_*.cpp defines `Vec`, its functions and the tile sizes for
// one instruction set and includes this file inside an unnamed namespace, so that no code built for one CPU is ever
// shared with another.
//
// Every output is one chain of multiply-adds in a fixed order (tap, then input channel), whatever tile or thread
// computes it: a stream gives the same bits as one long call, on any number of threads.

constexpr int L = Vec::LANES;

// sin(v)^2. The sign of sin does not matter, so the argument is reduced by whole multiples of pi, in four parts whose
// products with small integers are exact, and an odd polynomial (Remez exchange, relative error 2.4e-11 on [-pi/2, pi/2]) is left.
inline Vec sin_squared(Vec v) {
    const Vec n = round(mul(v, broadcast(0.318309886f)));
    Vec r = fma(n, broadcast(-3.140625f), v);
    r = fma(n, broadcast(-9.670257568359375e-4f), r);
    r = fma(n, broadcast(-6.277114152908325e-7f), r);
    r = fma(n, broadcast(-1.2154201256553420e-10f), r);
    // Where v is so large that its own rounding exceeds pi, the reduction is meaningless; the sine stays one.
    r = max(min(r, broadcast(1.57079637f)), broadcast(-1.57079637f));
    const Vec z = mul(r, r);
    Vec p = broadcast(-2.38887612e-8f);
    p = fma(p, z, broadcast(2.75253751e-6f));
    p = fma(p, z, broadcast(-0.000198408685f));
    p = fma(p, z, broadcast(0.00833333097f));
    p = fma(p, z, broadcast(-0.166666672f));
    const Vec s = fma(mul(r, z), p, r);
    return mul(s, s);
}

// Stores lanes [0, channels - c) of v, all of them in the usual case of a padded row.
inline void store_row(float *row, int64_t c, int64_t channels, Vec v) {
    if (c + L <= channels) {
        store(row + c, v);
        return;
    }
    float lanes[L];
    store(lanes, v);
    for (int64_t i = 0; c + i < channels; ++i) {
        row[c + i] = lanes[i];
    }
}

// Finishes the sums [rows][blocks][lane] of the rows from t and the blocks from `block` on.
PYMAGPIE_NOINLINE void finish(const Epilogue &e, const float *sums, int64_t t, int rows, int64_t block, int blocks) {
    const Vec scale = broadcast(e.scale);
    for (int b = 0; b < blocks; ++b) {
        const int64_t c = (block + b) * L;
        const Vec bias = load(e.bias + c);
        Vec values[STRIP_ROWS];
        for (int r = 0; r < rows; ++r) {
            Vec v = add(load(sums + (r * blocks + b) * L), bias);
            if (e.residual.data) {
                v = add(v, load(e.residual.data + (t + r) * e.residual.stride + c));
            }
            if (e.addend.data) {
                v = add(v, load(e.addend.data + (t + r) * e.addend.stride + c));
            }
            values[r] = mul(v, scale);
            if (e.raw) {
                store_row(e.y + (t + r) * e.y_stride, c, e.y_channels, values[r]);
            }
        }
        for (int32_t a = 0; a < e.activations; ++a) {
            const float *table = e.snake + a * 3 * e.snake_stride + c;
            const Vec alpha = load(table);
            const Vec inverse = load(table + e.snake_stride);
            const Vec slope = load(table + 2 * e.snake_stride);
            const bool snake = any(alpha);
            float *plane = e.y + (a + (e.raw ? 1 : 0)) * e.y_plane;
            for (int r = 0; r < rows; ++r) {
                Vec v = scale_negative(values[r], slope);
                if (snake) {
                    v = fma(sin_squared(mul(values[r], alpha)), inverse, v);
                }
                store_row(plane + (t + r) * e.y_stride, c, e.y_channels, v);
            }
        }
    }
}

// MR rows x NR blocks of output from row t on, kept in registers over the whole sum.
template <int MR, int NR>
void conv_tile(const ConvArgs &a, int64_t t, int64_t block) {
    const int64_t block_size = static_cast<int64_t>(a.taps) * a.in_channels * L;
    const float *w = a.weights + block * block_size;
    const int64_t pad = static_cast<int64_t>(a.taps - 1) * a.dilation;
    Vec acc[MR][NR];
    PYMAGPIE_UNROLL
    for (int r = 0; r < MR; ++r) {
        PYMAGPIE_UNROLL
        for (int n = 0; n < NR; ++n) {
            acc[r][n] = broadcast(0.0f);
        }
    }
    for (int32_t tap = 0; tap < a.taps; ++tap) {
        const float *x[MR];
        PYMAGPIE_UNROLL
        for (int r = 0; r < MR; ++r) {
            const int64_t row = t + r + static_cast<int64_t>(tap) * a.dilation;  // counted from the oldest cached row
            x[r] = row < pad ? a.cache.data + row * a.cache.stride : a.x.data + (row - pad) * a.x.stride;
        }
        for (int32_t c = 0; c < a.in_channels; ++c) {
            Vec wide[NR];
            PYMAGPIE_UNROLL
            for (int n = 0; n < NR; ++n) {
                wide[n] = load(w + n * block_size);
            }
            PYMAGPIE_UNROLL
            for (int r = 0; r < MR; ++r) {
                const Vec value = broadcast(x[r][c]);
                PYMAGPIE_UNROLL
                for (int n = 0; n < NR; ++n) {
                    acc[r][n] = fma(value, wide[n], acc[r][n]);
                }
            }
            w += L;
        }
    }
    float sums[MR * NR * L];
    PYMAGPIE_UNROLL
    for (int r = 0; r < MR; ++r) {
        PYMAGPIE_UNROLL
        for (int n = 0; n < NR; ++n) {
            store(sums + (r * NR + n) * L, acc[r][n]);
        }
    }
    finish(a.out, sums, t, MR, block, NR);
}

// The tile of `rows` (1 to MR) rows.
template <int MR, int NR>
void conv_rows(const ConvArgs &a, int64_t t, int rows, int64_t block) {
    if (rows == MR) {
        conv_tile<MR, NR>(a, t, block);
    } else if constexpr (MR > 1) {
        conv_rows<MR - 1, NR>(a, t, rows, block);
    }
}

// `rows` rows from t on in tiles of nearly equal height: small leftovers would starve the multiply-add units.
template <int MR, int NR>
void conv_strip(const ConvArgs &a, int64_t t, int64_t rows, int64_t block) {
    static_assert(MR <= STRIP_ROWS, "finish() holds a strip");
    const int64_t tiles = (rows + MR - 1) / MR;
    for (int64_t i = 0; i < tiles; ++i) {
        const int64_t first = i * rows / tiles;
        conv_rows<MR, NR>(a, t + first, static_cast<int>((i + 1) * rows / tiles - first), block);
    }
}

// The first of the units [0, count) that thread ith of nth takes; it ends where the next one begins.
inline int64_t share(int64_t count, int ith, int nth) { return count * ith / nth; }

// How many of the `left` blocks the next tile covers: the preferred width, but no lonely last block.
inline int tile_width(int64_t left) {
    if (PREFERRED_WIDTH == 3) {
        return left == 4 || left == 2 ? 2 : left < 3 ? 1 : 3;
    }
    return left == 3 ? 3 : left < 2 ? 1 : 2;
}

// Work is ordered by chunk of rows (which then stay in the cache), tile of blocks, strip of rows; each thread takes a
// contiguous part of it. With few rows the threads so read different weights, with many different rows.
void conv(const ConvArgs &a, int ith, int nth) {
    const int64_t strips = (a.rows + STRIP_ROWS - 1) / STRIP_ROWS;
    const int64_t begin = share(strips * a.blocks, ith, nth);  // a unit is one strip of one block
    const int64_t end = share(strips * a.blocks, ith + 1, nth);
    for (int64_t first = begin / a.blocks / CHUNK_STRIPS * CHUNK_STRIPS; first * a.blocks < end; first += CHUNK_STRIPS) {
        const int64_t height = strips - first < CHUNK_STRIPS ? strips - first : CHUNK_STRIPS;
        int width;
        for (int64_t block = 0; block < a.blocks; block += width) {
            width = tile_width(a.blocks - block);
            for (int64_t i = 0; i < height; ++i) {
                const int64_t unit = first * a.blocks + block * height + i * width;
                if (unit < begin || unit >= end) {
                    continue;
                }
                const int64_t t = (first + i) * a.rows / strips;
                const int64_t rows = (first + i + 1) * a.rows / strips - t;
                if (width == 3) {
                    conv_strip<ROWS_3, 3>(a, t, rows, block);
                } else if (width == 2) {
                    conv_strip<ROWS_2, 2>(a, t, rows, block);
                } else {
                    conv_strip<ROWS_1, 1>(a, t, rows, block);
                }
            }
        }
    }
}

// The inputs of one output block that belong to input `offset` of each group: strided in memory.
inline Vec gather(const UpsampleArgs &a, const float *row, int64_t block, int32_t offset) {
    float lanes[L];
    for (int i = 0; i < L; ++i) {
        const int64_t channel = (block * L + i) * a.inputs + offset;
        lanes[i] = channel < a.in_channels ? row[channel] : 0.0f;
    }
    return load(lanes);
}

// Grouped transposed convolution whose kernel is twice its stride: phase k of row n is
// (inputs of row n - 1) . w[rate + k] + (inputs of row n) . w[k], with `inputs` channels for each output channel.
void upsample(const UpsampleArgs &a, int ith, int nth) {
    const int64_t units = a.rows * a.blocks;
    const int32_t terms = 2 * a.inputs;
    for (int64_t unit = share(units, ith, nth); unit < share(units, ith + 1, nth); ++unit) {
        const int64_t n = unit / a.blocks;
        const int64_t block = unit % a.blocks;
        const float *current = a.x.data + n * a.x.stride;
        const float *previous = n ? current - a.x.stride : a.cache.data;
        for (int32_t first = 0; first < a.rate; first += STRIP_ROWS) {
            const int phases = a.rate - first < STRIP_ROWS ? a.rate - first : STRIP_ROWS;
            const float *w = a.weights + (block * a.rate + first) * terms * L;
            float sums[STRIP_ROWS * L] = {};
            for (int32_t term = 0; term < terms; ++term) {
                const Vec x = term < a.inputs ? gather(a, previous, block, term)
                                              : gather(a, current, block, term - a.inputs);
                for (int k = 0; k < phases; ++k) {
                    store(sums + k * L, fma(x, load(w + (k * terms + term) * L), load(sums + k * L)));
                }
            }
            finish(a.out, sums, n * a.rate + first, phases, block, 1);
        }
    }
}
