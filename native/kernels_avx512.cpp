// AVX-512F: 32 registers of 16 floats.
#include "kernels.h"

#if defined(__AVX512F__)

#include <immintrin.h>

#include "compiler.h"

namespace {

using pymagpie::ConvArgs;
using pymagpie::Epilogue;
using pymagpie::UpsampleArgs;

// Eight row pointers are what the general registers hold: 8 x 3 sums, three weights and one input.
constexpr int STRIP_ROWS = 16;
constexpr int CHUNK_STRIPS = 8;
constexpr int ROWS_1 = 8;
constexpr int ROWS_2 = 8;
constexpr int ROWS_3 = 8;
constexpr int PREFERRED_WIDTH = 3;

struct Vec {
    static constexpr int LANES = 16;
    __m512 v;
};

inline Vec load(const float *p) { return {_mm512_loadu_ps(p)}; }
inline void store(float *p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline bool any(Vec a) { return _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NEQ_UQ) != 0; }
inline Vec scale_negative(Vec a, Vec slope) {
    const __mmask16 negative = _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_LT_OQ);
    return {_mm512_mask_mul_ps(a.v, negative, a.v, slope.v)};
}

#include "kernels_impl.h"

constexpr pymagpie::Kernels table = {Vec::LANES, conv, upsample, nullptr, nullptr, nullptr};

}  // namespace

const pymagpie::Kernels *const pymagpie::avx512_kernels = &table;

#else

const pymagpie::Kernels *const pymagpie::avx512_kernels = nullptr;

#endif
