"""The decoder's layers from ggml's own operators.

Activations are float32 with time fastest: ne [T, C], numpy (C, T). A layer reads its left context from a cache, and
the copy that refreshes the cache is expanded right after the node that read the old value, before anything can read
the new one: ggml runs nodes in the order of their expansion.

Formulas: NeMo's CausalHiFiGANDecoder, as restated in the project's specification.
"""

from __future__ import annotations

from ..ggml import Graph, Tensor, ops

LEAKY_SLOPE = 0.01
_ITEM = 4  # bytes of a float32


def with_context(graph: Graph, cache: Tensor | None, x: Tensor) -> Tensor:
    """x [T, C] behind the cached columns [n, C]: [n + T, C]. The cache then takes the last n columns of that.

    Both may have a further dimension, and the cache may be a strided view. Without a cache (a kernel of one tap) x
    itself.
    """
    if cache is None:
        return x
    ctx = graph.context
    joined = ops.concat(ctx, cache, x, 0)
    graph.expand(joined)
    latest = ops.view(ctx, joined, (cache.ne[0], *x.ne[1:3]), joined.nb[1:3], x.ne[0] * _ITEM)
    graph.expand(ops.cpy(ctx, latest, cache))
    return joined


def conv1d(graph: Graph, kernel: Tensor, bias: Tensor, x: Tensor, dilation: int) -> Tensor:
    """A convolution without padding: kernel [k, Cin, Cout], bias [1, Cout], x [n + T, Cin], n = (k - 1) * dilation.

    Columns in float32 and one matrix product: ``ggml_conv_1d`` would round the activations to f16.
    """
    ctx = graph.context
    columns = ops.im2col_1d(ctx, kernel, x, dilation)
    taps, inputs, outputs, _ = kernel.ne
    matrix = ops.reshape(ctx, kernel, taps * inputs, outputs)
    product = ops.set_precision_f32(ops.mul_mat(ctx, columns, matrix))
    return ops.add(ctx, product, bias)


def conv1d_batched(graph: Graph, kernel: Tensor, bias: Tensor, x: Tensor, dilation: int) -> Tensor:
    """One convolution in each of n stacks: kernel [k, C, C, n], bias [1, n, C], x [m + T, n, C]: [T, n, C].

    The columns take the kernel's type, because a GPU's fast f16 product wants both sides alike.
    """
    ctx = graph.context
    taps, inputs, outputs, stacks = kernel.ne
    by_stack = ops.permute(ctx, x, 0, 2, 1, 3)
    columns = ops.im2col_1d(ctx, kernel, by_stack, dilation, kernel.type)
    if not graph.backend.supports_op(columns.pointer):  # Vulkan and Metal read no strided input
        columns = ops.im2col_1d(ctx, kernel, ops.cont(ctx, by_stack), dilation, kernel.type)
    matrix = ops.reshape(ctx, kernel, taps * inputs, outputs, stacks)
    product = ops.set_precision_f32(ops.mul_mat(ctx, columns, matrix))  # [T, C, n]
    return ops.add(ctx, ops.permute(ctx, product, 0, 2, 1, 3), bias)


def half_snake(graph: Graph, alpha: Tensor, inverse: Tensor, x: Tensor, snakes: int) -> Tensor:
    """x + sin(alpha x)^2 / alpha on the first *snakes* channels, leaky ReLU on the others.

    x [T, C] with alpha and inverse [1, C], or x [T, n, C] with [1, n, C]. alpha and inverse are zero on the others,
    so the snake leaves it alone and the leaky ReLU can follow in place, on a block that is contiguous; it is expanded
    before any reader of the result. The five operators of the snake, in this order and on matrices, are what CUDA and
    Vulkan fuse.
    """
    ctx = graph.context
    frames, *dims = x.ne[:3]
    rows = dims[0] * dims[1]
    flat = x if dims[1] == 1 else ops.reshape(ctx, x, frames, rows)
    wave = ops.sqr(ctx, ops.sin(ctx, ops.mul(ctx, flat, alpha)))
    y = ops.add(ctx, flat, ops.mul(ctx, wave, inverse))
    lower = snakes * (1 if dims[1] == 1 else dims[0])
    upper = ops.view(ctx, y, (frames, rows - lower), offset=lower * frames * _ITEM)
    graph.expand(ops.leaky_relu(ctx, upper, LEAKY_SLOPE, inplace=True))
    return y if dims[1] == 1 else ops.reshape(ctx, y, frames, *dims)


def upsample_compact(graph: Graph, kernel: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """The grouped transposed convolution, x [1 + T, Cin] with its frame before: [T * rate, Cout].

    kernel [2 * e, rate, Cout], with e input channels a group: each block of *rate* samples is the frame before times
    one half of the kernel plus the current frame times the other, so one batched product gives samples in time order.
    """
    ctx = graph.context
    terms, rate, outputs, _ = kernel.ne
    frames, group = x.ne[0] - 1, terms // 2
    halves = [ops.permute(ctx, ops.view(ctx, x, (frames, group, outputs), (x.nb[1], group * x.nb[1]), shift * _ITEM),
                          1, 0, 2, 3) for shift in (0, 1)]
    pairs = ops.concat(ctx, halves[0], halves[1], 0)  # [2 * e, T, Cout]
    product = ops.set_precision_f32(ops.mul_mat(ctx, kernel, pairs))  # [rate, T, Cout]
    return ops.add(ctx, ops.reshape(ctx, product, rate * frames, outputs), bias)


def fill_up(graph: Graph, x: Tensor, zeros: Tensor | None) -> Tensor:
    """x [T, C] with the channels of *zeros* [1, m] behind its own: [T, C + m]; x itself without *zeros*."""
    if zeros is None:
        return x
    ctx = graph.context
    return ops.concat(ctx, x, ops.repeat_4d(ctx, zeros, x.ne[0], zeros.ne[1]), 1)


def upsample_dense(graph: Graph, kernel: Tensor, bias: Tensor, x: Tensor, rate: int) -> Tensor:
    """The transposed convolution as stored, kernel [2 * rate, Cout, Cin] and x [1 + T, Cin]: [T * rate, Cout].

    The first and the last block of *rate* samples lack one of the two frames that make a block, so both are cut off.
    """
    ctx = graph.context
    frames = x.ne[0] - 1
    full = ops.conv_transpose_1d(ctx, kernel, x, rate)
    inner = ops.view(ctx, full, (frames * rate, full.ne[1]), (full.nb[1],), rate * _ITEM)
    return ops.add(ctx, ops.cont(ctx, inner), bias)


def fan_out(graph: Graph, x: Tensor, like: Tensor) -> Tensor:
    """x [T, C] once for each stack: [T, n, C], n the dimension 1 of *like* [1, n, C]."""
    ctx = graph.context
    frames, channels = x.ne[:2]
    return ops.repeat_4d(ctx, ops.reshape(ctx, x, frames, 1, channels), frames, like.ne[1], channels)


def mean_of_stacks(graph: Graph, x: Tensor) -> Tensor:
    """The mean of x [T, n, C] over its stacks, summed in order: [T, C]."""
    frames, stacks, channels, _ = x.ne
    return mean(graph, [ops.view(graph.context, x, (frames, channels), (x.nb[2],), stack * x.nb[1])
                        for stack in range(stacks)])


def mean(graph: Graph, parts: list[Tensor]) -> Tensor:
    """The mean of the residual stacks' outputs, summed in order."""
    ctx = graph.context
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(ctx, total, part)
    return ops.scale(ctx, total, 1.0 / len(parts)) if len(parts) > 1 else total
