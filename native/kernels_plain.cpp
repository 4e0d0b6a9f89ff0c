// Plain C++: right on every CPU, and as fast as the compiler makes it.
#include <math.h>
#include <string.h>

#include "compiler.h"
#include "kernels.h"

namespace {

using pymagpie::ConvArgs;
using pymagpie::Epilogue;
using pymagpie::UpsampleArgs;

constexpr int STRIP_ROWS = 8;
constexpr int CHUNK_STRIPS = 16;
constexpr int ROWS_1 = 4;
constexpr int ROWS_2 = 4;
constexpr int ROWS_3 = 2;
constexpr int PREFERRED_WIDTH = 2;

struct Vec {
    static constexpr int LANES = 4;
    float v[LANES];
};

template <class F>
inline Vec each(F f) {
    Vec r;
    for (int i = 0; i < Vec::LANES; ++i) {
        r.v[i] = f(i);
    }
    return r;
}

inline Vec load(const float *p) {
    return each([&](int i) { return p[i]; });
}
inline void store(float *p, Vec a) {
    for (int i = 0; i < Vec::LANES; ++i) {
        p[i] = a.v[i];
    }
}
inline Vec broadcast(float x) {
    return each([&](int) { return x; });
}
inline Vec add(Vec a, Vec b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec mul(Vec a, Vec b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
// Rounded twice: fmaf() is a slow library call on a CPU without the instruction.
inline Vec fma(Vec a, Vec b, Vec c) {
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Vec min(Vec a, Vec b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec max(Vec a, Vec b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec round(Vec a) {
    return each([&](int i) { return rintf(a.v[i]); });
}
inline bool any(Vec a) {
    bool found = false;
    for (int i = 0; i < Vec::LANES; ++i) {
        found |= a.v[i] != 0.0f;
    }
    return found;
}
inline Vec scale_negative(Vec a, Vec slope) {
    return each([&](int i) { return a.v[i] < 0.0f ? a.v[i] * slope.v[i] : a.v[i]; });
}

#include "kernels_impl.h"
#include "matmul_plain.h"

constexpr pymagpie::Kernels table = {Vec::LANES, conv, upsample, matmul, nullptr, nullptr};

}  // namespace

const pymagpie::Kernels *const pymagpie::plain_kernels = &table;
