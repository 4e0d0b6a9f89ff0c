// The kernels behind the custom ops: one table of functions per instruction set.
//
// Activations are rows of channels: row t of a tensor starts at `t * stride` floats and holds `blocks * lanes` of them,
// where lanes is the table's vector width. Channels past the real ones are zero and stay zero.
#ifndef PYMAGPIE_KERNELS_H
#define PYMAGPIE_KERNELS_H

#include <stdint.h>

namespace pymagpie {

struct Rows {
    const float *data;
    int64_t stride;
};

// What becomes of a sum before it is stored: v = (sum + bias + residual + addend) * scale, written raw when `raw` is
// set, then once per activation in a plane of its own.
struct Epilogue {
    const float *bias;   // [channels]
    Rows residual;       // data null: none
    Rows addend;         // data null: none
    const float *snake;  // [activations][3][snake_stride]: alpha, 1 / alpha, slope of the negative side
    int64_t snake_stride;
    float *y;
    int64_t y_stride;    // floats from row to row
    int64_t y_plane;     // floats from plane to plane
    int64_t y_channels;  // floats a row takes; fewer than blocks * lanes only for the narrow last convolution
    int32_t activations;
    int32_t raw;
    float scale;
};

struct ConvArgs {
    Rows x;
    Rows cache;            // the (taps - 1) * dilation rows before x
    const float *weights;  // [blocks][taps][in_channels][lanes]
    int64_t rows;
    int32_t in_channels;
    int32_t blocks;
    int32_t taps;
    int32_t dilation;
    Epilogue out;
};

struct UpsampleArgs {
    Rows x;
    Rows cache;            // the one row before x
    const float *weights;  // [blocks][rate][2 * inputs][lanes]: inputs of the row before, then of the current
    int64_t rows;          // of x; the output has rate * rows
    int32_t inputs;        // input channels per output channel
    int32_t in_channels;
    int32_t blocks;
    int32_t rate;
    Epilogue out;
};

// ggml's q8_0: a float16 scale and 32 integers.
constexpr int Q8_BLOCK = 32;
struct BlockQ8 {
    uint16_t scale;
    int8_t q[Q8_BLOCK];
};
static_assert(sizeof(BlockQ8) == 34, "blocks lie without gaps");

constexpr int MATMUL_MAX_WIDTH = 4096;

struct MatmulArgs {
    const BlockQ8 *weights;  // [rows][width / Q8_BLOCK]
    Rows x;                  // a row of `width` floats for each column of the product
    float *y;                // [columns][rows]
    int64_t y_stride;        // floats from column to column
    int64_t width;           // a multiple of Q8_BLOCK, at most MATMUL_MAX_WIDTH
    int64_t rows;
    int32_t columns;
};

struct HalfMatmulArgs {
    const uint16_t *weights;  // [rows][width] of float16
    Rows x;                   // a row of `width` floats for each column of the product
    float *y;                 // [columns][rows]
    int64_t y_stride;         // floats from column to column
    int64_t width;            // a multiple of 8
    int64_t rows;
    int64_t columns;
};

constexpr int ATTEND_MAX_COLUMNS = 16384;

// One query a head and branch. k and v are float16; all strides are in elements.
struct AttendArgs {
    const float *q;
    int64_t q_head, q_branch;
    const uint16_t *k;  // head_dim values of each column
    int64_t k_column, k_head, k_branch;
    const uint16_t *v;  // transposed: `columns` values of each element of the output
    int64_t v_row, v_head, v_branch;
    const float *mask;  // [columns], added to the scaled scores
    float *out;         // [branches][heads * head_dim]
    int64_t out_branch;
    int64_t columns;    // a multiple of 8, at most ATTEND_MAX_COLUMNS
    int64_t head_dim;   // a multiple of 8
    int32_t heads;
    int32_t branches;
    float scale;
};

struct Kernels {
    int32_t lanes;
    void (*conv)(const ConvArgs &args, int ith, int nth);
    void (*upsample)(const UpsampleArgs &args, int ith, int nth);
    void (*matmul)(const MatmulArgs &args, int ith, int nth);  // null: that of AVX2
    // AVX2 alone has these:
    void (*matmul_half)(const HalfMatmulArgs &args, int ith, int nth);
    void (*attend)(const AttendArgs &args, int ith, int nth);
};

// Null when this build lacks the instruction set.
extern const Kernels *const plain_kernels;
extern const Kernels *const avx2_kernels;
extern const Kernels *const avx512_kernels;
extern const Kernels *const neon_kernels;

}  // namespace pymagpie

#endif
