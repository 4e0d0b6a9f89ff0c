// AVX2 with FMA and F16C: 16 registers of 8 floats.
#include "kernels.h"

#if defined(__AVX2__)

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "compiler.h"

namespace {

using pymagpie::ConvArgs;
using pymagpie::Epilogue;
using pymagpie::UpsampleArgs;

// 6 x 2 sums, two weights and one input fill 15 registers; 4 x 3 fill all 16.
constexpr int STRIP_ROWS = 12;
constexpr int CHUNK_STRIPS = 10;
constexpr int ROWS_1 = 6;
constexpr int ROWS_2 = 6;
constexpr int ROWS_3 = 4;
constexpr int PREFERRED_WIDTH = 2;

struct Vec {
    static constexpr int LANES = 8;
    __m256 v;
};

inline Vec load(const float *p) { return {_mm256_loadu_ps(p)}; }
inline void store(float *p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline bool any(Vec a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, _mm256_setzero_ps(), _CMP_NEQ_UQ)) != 0; }
inline Vec scale_negative(Vec a, Vec slope) {
    const __m256 negative = _mm256_cmp_ps(a.v, _mm256_setzero_ps(), _CMP_LT_OQ);
    return {_mm256_blendv_ps(a.v, _mm256_mul_ps(a.v, slope.v), negative)};
}

#include "kernels_impl.h"
#include "attention_avx2.h"
#include "matmul_avx2.h"
#include "matmul_half_avx2.h"

constexpr pymagpie::Kernels table = {Vec::LANES, conv, upsample, matmul, matmul_half, attend};

}  // namespace

const pymagpie::Kernels *const pymagpie::avx2_kernels = &table;

#else

const pymagpie::Kernels *const pymagpie::avx2_kernels = nullptr;

#endif
