// The custom ops: they read ggml's tensors through the layout in their parameters and run the kernels.
#include <string.h>

#include "kernels.h"
#include "pymagpie_native.h"

namespace {

// The fields of a ggml_tensor that the ops need.
struct Tensor {
    const char *base;
    const pymagpie_tensor_layout *layout;

    template <class T>
    T field(int32_t offset, int index) const {
        T value;
        memcpy(&value, base + offset + index * sizeof(T), sizeof(T));
        return value;
    }
    explicit operator bool() const { return base != nullptr; }
    int64_t ne(int dim) const { return field<int64_t>(layout->ne, dim); }
    // In elements of type T.
    template <class T = float>
    int64_t stride(int dim) const {
        return static_cast<int64_t>(field<uint64_t>(layout->nb, dim) / sizeof(T));
    }
    template <class T = float>
    T *data() const {
        return static_cast<T *>(field<void *>(layout->data, 0));
    }
    Tensor src(int index) const { return {static_cast<const char *>(field<void *>(layout->src, index)), layout}; }
    pymagpie::Rows rows() const {
        return base ? pymagpie::Rows{data(), stride(1)} : pymagpie::Rows{nullptr, 0};
    }
};

enum Source { X = 0, CACHE = 1, WEIGHTS = 2, BIAS = 3, RESIDUAL = 4, ADDEND = 5, SNAKE = 6 };

pymagpie::Epilogue epilogue(Tensor dst, const pymagpie_op_params &p) {
    const Tensor snake = dst.src(SNAKE);
    return {
        dst.src(BIAS).data(),
        dst.src(RESIDUAL).rows(),
        dst.src(ADDEND).rows(),
        snake ? snake.data() : nullptr,
        snake ? snake.stride(1) : 0,
        dst.data(),
        dst.stride(1),
        dst.stride(2),
        dst.ne(0),
        p.activations,
        p.raw,
        p.scale,
    };
}

const pymagpie::Kernels *kernels(const pymagpie_op_params &p) {
    return static_cast<const pymagpie::Kernels *>(p.kernels);
}

constexpr int REFRESH_PAIRS = 4;

void refresh(Tensor cache, Tensor x, int ith, int nth) {
    const int64_t kept = cache.ne(1);
    const int64_t rows = x.ne(1);
    // Threads divide the channels: within its own, each moves the rows in ascending order and overwrites none unread.
    const int64_t begin = cache.ne(0) * ith / nth;
    const size_t size = static_cast<size_t>(cache.ne(0) * (ith + 1) / nth - begin) * sizeof(float);
    for (int64_t row = 0; row < kept; ++row) {
        const int64_t source = row + rows;
        const float *from = source < kept ? cache.data() + source * cache.stride(1)
                                          : x.data() + (source - kept) * x.stride(1);
        memcpy(cache.data() + row * cache.stride(1) + begin, from + begin, size);
    }
}

}  // namespace

void pymagpie_conv(void *tensor, int ith, int nth, void *params) {
    const auto &p = *static_cast<const pymagpie_op_params *>(params);
    const Tensor dst = {static_cast<const char *>(tensor), &p.layout};
    const Tensor weights = dst.src(WEIGHTS);
    const pymagpie::ConvArgs args = {
        dst.src(X).rows(), dst.src(CACHE).rows(),
        weights.data(),    dst.src(X).ne(1),
        p.in_channels,     static_cast<int32_t>(weights.ne(3)),
        p.taps,            p.dilation,
        epilogue(dst, p),
    };
    kernels(p)->conv(args, ith, nth);
}

void pymagpie_upsample(void *tensor, int ith, int nth, void *params) {
    const auto &p = *static_cast<const pymagpie_op_params *>(params);
    const Tensor dst = {static_cast<const char *>(tensor), &p.layout};
    const Tensor weights = dst.src(WEIGHTS);
    const pymagpie::UpsampleArgs args = {
        dst.src(X).rows(), dst.src(CACHE).rows(),
        weights.data(),    dst.src(X).ne(1),
        p.dilation,        p.in_channels,
        static_cast<int32_t>(weights.ne(3)),
        p.taps,            epilogue(dst, p),
    };
    kernels(p)->upsample(args, ith, nth);
}

void pymagpie_refresh(void *tensor, int ith, int nth, void *params) {
    const auto &p = *static_cast<const pymagpie_op_params *>(params);
    const Tensor dst = {static_cast<const char *>(tensor), &p.layout};
    for (int pair = 0; pair < REFRESH_PAIRS && dst.src(2 * pair); ++pair) {
        refresh(dst.src(2 * pair), dst.src(2 * pair + 1), ith, nth);
    }
}

void pymagpie_matmul(void *tensor, int ith, int nth, void *params) {
    const auto &p = *static_cast<const pymagpie_op_params *>(params);
    const Tensor dst = {static_cast<const char *>(tensor), &p.layout};
    const Tensor x = dst.src(1);
    const pymagpie::MatmulArgs args = {
        dst.src(0).data<const pymagpie::BlockQ8>(),
        x.rows(), dst.data(), dst.stride(1), x.ne(0), dst.ne(0), static_cast<int32_t>(dst.ne(1)),
    };
    const auto matmul = kernels(p)->matmul;
    (matmul ? matmul : pymagpie::avx2_kernels->matmul)(args, ith, nth);
}

void pymagpie_matmul_half(void *tensor, int ith, int nth, void *params) {
    const auto &p = *static_cast<const pymagpie_op_params *>(params);
    const Tensor dst = {static_cast<const char *>(tensor), &p.layout};
    const Tensor x = dst.src(1);
    const pymagpie::HalfMatmulArgs args = {
        dst.src(0).data<const uint16_t>(), x.rows(), dst.data(), dst.stride(1), x.ne(0), dst.ne(0), dst.ne(1),
    };
    pymagpie::avx2_kernels->matmul_half(args, ith, nth);
}

void pymagpie_attend(void *tensor, int ith, int nth, void *params) {
    const auto &p = *static_cast<const pymagpie_op_params *>(params);
    const Tensor dst = {static_cast<const char *>(tensor), &p.layout};
    const Tensor q = dst.src(0);
    const Tensor k = dst.src(1);
    const Tensor v = dst.src(2);
    using Half = const uint16_t;
    const pymagpie::AttendArgs args = {
        q.data(),       q.stride(2),       q.stride(3),
        k.data<Half>(), k.stride<Half>(1), k.stride<Half>(2), k.stride<Half>(3),
        v.data<Half>(), v.stride<Half>(1), v.stride<Half>(2), v.stride<Half>(3),
        dst.src(3).data(),
        dst.data(),     dst.stride(1),
        k.ne(1),        k.ne(0),
        static_cast<int32_t>(k.ne(2)),
        static_cast<int32_t>(k.ne(3)),
        p.scale,
    };
    pymagpie::avx2_kernels->attend(args, ith, nth);
}
