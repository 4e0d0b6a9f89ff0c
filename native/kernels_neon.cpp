// NEON on arm64: 32 registers of 4 floats, used in pairs.
#include "kernels.h"

#if defined(__aarch64__) || defined(_M_ARM64)

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "compiler.h"

namespace {

using pymagpie::ConvArgs;
using pymagpie::Epilogue;
using pymagpie::UpsampleArgs;

// 6 x 2 sums and two weights fill 28 registers, 4 x 3 fill 30; one more holds the input.
constexpr int STRIP_ROWS = 12;
constexpr int CHUNK_STRIPS = 10;
constexpr int ROWS_1 = 6;
constexpr int ROWS_2 = 6;
constexpr int ROWS_3 = 4;
constexpr int PREFERRED_WIDTH = 2;

struct Vec {
    static constexpr int LANES = 8;
    float32x4_t a, b;
};

inline Vec load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, Vec v) {
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}
inline Vec broadcast(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Vec add(Vec v, Vec w) { return {vaddq_f32(v.a, w.a), vaddq_f32(v.b, w.b)}; }
inline Vec mul(Vec v, Vec w) { return {vmulq_f32(v.a, w.a), vmulq_f32(v.b, w.b)}; }
inline Vec fma(Vec v, Vec w, Vec sum) { return {vfmaq_f32(sum.a, v.a, w.a), vfmaq_f32(sum.b, v.b, w.b)}; }
inline Vec min(Vec v, Vec w) { return {vminq_f32(v.a, w.a), vminq_f32(v.b, w.b)}; }
inline Vec max(Vec v, Vec w) { return {vmaxq_f32(v.a, w.a), vmaxq_f32(v.b, w.b)}; }
inline Vec round(Vec v) { return {vrndnq_f32(v.a), vrndnq_f32(v.b)}; }
inline bool any(Vec v) {
    const uint32x4_t zero = vandq_u32(vceqzq_f32(v.a), vceqzq_f32(v.b));
    return vminvq_u32(zero) == 0;
}
inline float32x4_t scale_negative(float32x4_t v, float32x4_t slope) {
    return vbslq_f32(vcltzq_f32(v), vmulq_f32(v, slope), v);
}
inline Vec scale_negative(Vec v, Vec slope) { return {scale_negative(v.a, slope.a), scale_negative(v.b, slope.b)}; }

#include "kernels_impl.h"
#include "matmul_plain.h"

constexpr pymagpie::Kernels table = {Vec::LANES, conv, upsample, matmul, nullptr, nullptr};

}  // namespace

const pymagpie::Kernels *const pymagpie::neon_kernels = &table;

#else

const pymagpie::Kernels *const pymagpie::neon_kernels = nullptr;

#endif
