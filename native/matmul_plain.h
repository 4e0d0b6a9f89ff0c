// The q8_0 product in plain C++; a kernels_*.cpp includes this file inside its unnamed namespace, after <math.h> and
// <string.h>.

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t exponent = h >> 10 & 31u;
    const uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0) {
        const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | mantissa << 13;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// One block of x as int8 with the scale max|x| / 127, which is infinite or NaN when a value is.
inline float quantize_block(const float *x, int8_t *q) {
    uint32_t largest = 0;  // of the bits, so that NaN wins
    for (int i = 0; i < pymagpie::Q8_BLOCK; ++i) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    float peak;
    memcpy(&peak, &largest, sizeof(peak));
    if (largest >= 0x7f800000u) {
        memset(q, 1, pymagpie::Q8_BLOCK);
        return peak;
    }
    const float inverse = largest ? 127.0f / peak : 0.0f;
    for (int i = 0; i < pymagpie::Q8_BLOCK; ++i) {
        // A subnormal peak makes the inverse infinite and the product of a zero NaN.
        const float scaled = x[i] * inverse;
        q[i] = static_cast<int8_t>(rintf(scaled >= -127.0f ? (scaled <= 127.0f ? scaled : 127.0f) : -127.0f));
    }
    return peak / 127.0f;
}

// The columns go in chunks that stay in the second-level cache while every row passes by.
constexpr int CHUNK_COLUMNS = 16;

void matmul(const pymagpie::MatmulArgs &args, int ith, int nth) {
    constexpr int MAX_BLOCKS = pymagpie::MATMUL_MAX_WIDTH / pymagpie::Q8_BLOCK;
    int8_t q[CHUNK_COLUMNS][pymagpie::MATMUL_MAX_WIDTH];
    float scales[CHUNK_COLUMNS][MAX_BLOCKS];
    float row_scales[MAX_BLOCKS];
    const int64_t blocks = args.width / pymagpie::Q8_BLOCK;
    for (int first = 0; first < args.columns; first += CHUNK_COLUMNS) {
        const int columns = args.columns - first < CHUNK_COLUMNS ? args.columns - first : CHUNK_COLUMNS;
        for (int c = 0; c < columns; ++c) {
            for (int64_t b = 0; b < blocks; ++b) {
                scales[c][b] = quantize_block(args.x.data + (first + c) * args.x.stride + b * pymagpie::Q8_BLOCK,
                                              q[c] + b * pymagpie::Q8_BLOCK);
            }
        }
        for (int64_t row = args.rows * ith / nth; row < args.rows * (ith + 1) / nth; ++row) {
            const pymagpie::BlockQ8 *w = args.weights + row * blocks;
            for (int64_t b = 0; b < blocks; ++b) {
                row_scales[b] = half_to_float(w[b].scale);
            }
            for (int c = 0; c < columns; ++c) {
                float sum = 0.0f;
                for (int64_t b = 0; b < blocks; ++b) {
                    const int8_t *x = q[c] + b * pymagpie::Q8_BLOCK;
                    int32_t dot = 0;
                    for (int i = 0; i < pymagpie::Q8_BLOCK; ++i) {
                        dot += w[b].q[i] * x[i];
                    }
                    sum += static_cast<float>(dot) * row_scales[b] * scales[c][b];
                }
                args.y[(first + c) * args.y_stride + row] = sum;
            }
        }
    }
}
