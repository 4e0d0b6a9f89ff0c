/* The interface of the native library. native.py hands this text to cffi and native/pymagpie_native.h includes it,
   so it holds plain declarations only: no directive of the preprocessor. */

/* Raised whenever a declaration or a struct below changes; the loader refuses a library of another version. */
int32_t pymagpie_abi_version(void);

/* Bit i is set when instruction set i was compiled in and this CPU has it: 0 plain C++, 1 AVX2 with FMA and F16C,
   2 AVX-512F, 3 NEON. Bit 0 is always set. */
uint32_t pymagpie_instruction_sets(void);

/* Finite scalar dequantiser. codes [frames][codebooks], levels [dims], latents [frames][codebooks * dims]:
   digit j of a code in the mixed radix `levels`, minus and divided by levels[j] / 2 (integer half).
   Every level is at least 2 and every code lies in [0, product of levels). */
void pymagpie_fsq_dequantize(const int32_t *codes, int64_t frames, int32_t codebooks, const int32_t *levels,
                             int32_t dims, float *latents);

/* The kernels of an instruction set, for pymagpie_op_params; null where it is missing. */
const void *pymagpie_kernels(int32_t instruction_set);

/* Their vector width in floats. Channels are padded to a multiple of it. */
int32_t pymagpie_lanes(const void *kernels);

/* Where the fields of a ggml_tensor lie, in bytes. The library includes no header of ggml. */
typedef struct {
    int32_t ne, nb, src, data;
} pymagpie_tensor_layout;

/* The custom ops below have ggml's signature (dst, thread, threads, parameters) and read float32 tensors whose rows are
   contiguous. Activations have ne [channels padded to the lanes, rows]; padded channels are zero. An op may be run by
   any number of threads, each output depends on nothing but its inputs.

   What a convolution or upsampler stores: v = (sum + bias + residual + addend) * scale, first as it is (`raw`), then
   once for each of `activations` half-snakes in planes of dimension 2. snake is [channels, 3, activations]: alpha,
   1 / alpha and the slope of the negative side; y = (v < 0 ? slope * v : v) + sin(alpha * v)^2 / alpha. */
typedef struct {
    const void *kernels;
    pymagpie_tensor_layout layout;
    int32_t in_channels; /* without padding */
    int32_t taps;        /* of a convolution; the rate of an upsampler */
    int32_t dilation;    /* of a convolution; the inputs per output channel of an upsampler */
    int32_t raw;
    int32_t activations;
    float scale;
} pymagpie_op_params;

/* Causal dilated convolution. Sources: x [channels, rows]; cache [channels, (taps - 1) * dilation], the rows before x
   (null for one tap); weights [lanes, in_channels, taps, blocks]; bias [channels]; residual, addend [channels, rows] or
   null; snake or null. dst [channels, rows, planes]; it may have fewer channels than the weights' blocks * lanes. */
void pymagpie_conv(void *dst, int ith, int nth, void *params);

/* Transposed convolution, one group an output channel, its kernel twice its stride. Sources: x [channels, rows]; cache
   [channels, 1], the row before x; weights [lanes, 2 * inputs, rate, blocks]: the taps of the inputs of the row
   before, then of the current one; bias; null; null; snake or null. dst [channels, rate * rows, planes]. */
void pymagpie_upsample(void *dst, int ith, int nth, void *params);

/* Moves up to four caches on: the rows of each become the last of (its rows followed by those of its x). An in-place
   op: sources 0 (which is dst), 2, 4, 6 are caches [channels, cached rows], sources 1, 3, 5, 7 their x [channels, rows].
   It may run only after every node that reads one of the caches. */
void pymagpie_refresh(void *dst, int ith, int nth, void *params);

/* The product of q8_0 weights and float32 columns: dst [rows, columns] = weights [width, rows] x x [width, columns].
   Sources: weights, rows contiguous; x, of any stride from column to column. Width is a multiple of 32 up to 4096. The
   columns are rounded to 8 bits in blocks of 32, as ggml does; a sum depends on its row and column alone. Of the
   parameters only kernels and layout count. */
void pymagpie_matmul(void *dst, int ith, int nth, void *params);

/* The same of float16 weights, width a multiple of 8; the columns stay float32. Only where instruction set 1 (AVX2) is
   there; of the parameters layout counts. */
void pymagpie_matmul_half(void *dst, int ith, int nth, void *params);

/* Attention of one query a head and branch: dst [heads * head_dim, branches]. Sources: q [head_dim, 1, heads, branches];
   k, float16 [head_dim, columns, heads, branches]; v, float16 and transposed [columns, head_dim, heads, branches]; mask
   [columns], added to the scaled scores. Rows are contiguous, other strides free; head_dim and columns are multiples of
   8, columns at most 16384. Only where instruction set 1 (AVX2) is there; of the parameters layout and scale count. What
   is done depends on the columns up to the last whose mask is not minus infinity. */
void pymagpie_attend(void *dst, int ith, int nth, void *params);
