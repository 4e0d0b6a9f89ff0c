"""ggml's operators under their own names, with their shape and type rules checked in Python.

``ops.mul_mat(ctx, a, b)`` is ``ggml_mul_mat``; the arguments come in ggml's order. ggml answers a broken rule with
``GGML_ABORT``, which ends the process, and the CPU backend's ``supports_op`` says yes to combinations that abort later.
Here a broken rule is a :class:`ModelError` naming the op and the shapes. The rules are those of ggml 0.15.3 and the
CPU backend; a GPU is asked about every node when its graph is allocated.

Shapes are given in ggml's ne order, fastest dimension first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import ModelError
from .bindings import ggml
from .context import BF16, F16, F32, I32, I64, Context, Tensor, check_shape, type_name

_FLOATS = (F32, F16, BF16)
_INT_MAX = (1 << 31) - 1


def _fail(op: str, rule: str, *tensors: Tensor) -> NoReturn:
    shown = " and ".join(f"{type_name(t.type)}{list(t.ne)}" for t in tensors)
    raise ModelError(f"{op}: {rule} ({shown})")


def _need_f32(op: str, *tensors: Tensor) -> None:
    if any(t.type != F32 for t in tensors):
        _fail(op, "every operand must be f32", *tensors)


def _can_repeat(small: Tensor, big: Tensor) -> bool:
    return all(b % s == 0 for s, b in zip(small.ne, big.ne, strict=True))


# -- arithmetic ---------------------------------------------------------------------------------------------------

def _binary(op: str, ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    if a.type not in _FLOATS or b.type not in _FLOATS:
        _fail(op, "operands must be floating point", a, b)
    if not _can_repeat(b, a):
        _fail(op, "the second operand must repeat to the shape of the first", a, b)
    if b.nb[0] != ggml.ggml_type_size(b.type):
        _fail(op, "rows of the second operand must be contiguous", a, b)
    return Tensor(ctx, getattr(ggml, f"ggml_{op}")(ctx.take(), a.pointer, b.pointer))


def add(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """a + b, b repeated to the shape of a."""
    return _binary("add", ctx, a, b)


def sub(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """a - b, b repeated to the shape of a."""
    return _binary("sub", ctx, a, b)


def acc(ctx: Context, a: Tensor, b: Tensor, offset: int = 0) -> Tensor:
    """A copy of a with b added to the region of b's shape that begins *offset* bytes into it, at a's own strides."""
    _need_f32("acc", a, b)
    end = offset + sum((n - 1) * stride for n, stride in zip(b.ne, a.nb, strict=True)) + 4
    if not (a.contiguous and b.contiguous) or offset < 0 or end > a.nbytes:
        _fail(f"acc at byte {offset}", "both operands must be contiguous, the second inside the first", a, b)
    return Tensor(ctx, ggml.ggml_acc(ctx.take(), a.pointer, b.pointer, *a.nb[1:], offset))


def mul(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """a * b, b repeated to the shape of a."""
    return _binary("mul", ctx, a, b)


def scale(ctx: Context, a: Tensor, factor: float, bias: float = 0.0) -> Tensor:
    """a * factor + bias."""
    _need_f32("scale", a)
    if bias:
        return Tensor(ctx, ggml.ggml_scale_bias(ctx.take(), a.pointer, factor, bias))
    return Tensor(ctx, ggml.ggml_scale(ctx.take(), a.pointer, factor))


def mul_mat(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """The product over dimension 0: a [k, m, x, y] and b [k, n, x*p, y*q] give f32 [m, n, x*p, y*q]."""
    if a.ne[0] != b.ne[0] or b.ne[2] % a.ne[2] or b.ne[3] % a.ne[3]:
        _fail("mul_mat", "dimension 0 must agree and dimensions 2 and 3 of the first must divide the second's", a, b)
    if a.nb[0] > a.nb[1]:
        _fail("mul_mat", "the first operand must not be transposed", a, b)
    if b.type != F32 and not (b.type == a.type == F16):
        _fail("mul_mat", "the second operand must be f32", a, b)
    if ctx.packs_operands and b.ne[1] > 1:
        a, b = _packed(ctx, a), _packed(ctx, b)
    return Tensor(ctx, ggml.ggml_mul_mat(ctx.take(), a.pointer, b.pointer))


def _packed(ctx: Context, a: Tensor) -> Tensor:
    """*a*, or a contiguous copy if it is f32 and its rows do not follow each other."""
    rows_follow = a.nb[1] == a.nb[0] * a.ne[0] and (a.ne[3] == 1 or a.nb[3] == a.nb[2] * a.ne[2])
    return a if rows_follow or a.type != F32 else cont(ctx, a)


def set_precision_f32(product: Tensor) -> Tensor:
    """Ask for f32 accumulation in a :func:`mul_mat` result, where a GPU would otherwise use f16."""
    ggml.ggml_mul_mat_set_prec(product.pointer, ggml.GGML_PREC_F32)
    return product


# -- element-wise functions ----------------------------------------------------------------------------------------

def _unary(op: str, ctx: Context, a: Tensor, *arguments: Any) -> Tensor:
    _need_f32(op, a)
    if not a.contiguous:
        _fail(op, "the operand must be contiguous", a)  # CUDA asserts it although it claims support
    return Tensor(ctx, getattr(ggml, f"ggml_{op}")(ctx.take(), a.pointer, *arguments))


def sin(ctx: Context, a: Tensor) -> Tensor:
    """sin(a), radians."""
    return _unary("sin", ctx, a)


def sqr(ctx: Context, a: Tensor) -> Tensor:
    """a squared."""
    return _unary("sqr", ctx, a)


def sigmoid(ctx: Context, a: Tensor) -> Tensor:
    """1 / (1 + exp(-a))."""
    return _unary("sigmoid", ctx, a)


def step(ctx: Context, a: Tensor) -> Tensor:
    """1 where a > 0, 0 where a < 0; 0 itself gives 0, but 1 on Vulkan."""
    return _unary("step", ctx, a)


def sgn(ctx: Context, a: Tensor) -> Tensor:
    """1 where a > 0, -1 where a < 0, else 0; NaN gives 0."""
    return _unary("sgn", ctx, a)


def gelu(ctx: Context, a: Tensor) -> Tensor:
    """GELU, tanh form. The CPU backend reads an f16 table: expect relative errors of 1e-3."""
    return _unary("gelu", ctx, a)


def leaky_relu(ctx: Context, a: Tensor, slope: float, inplace: bool = False) -> Tensor:
    """a where positive, else slope * a. In place, *a* must be one contiguous block: views of strided rows are
    silently written wrong."""
    return _unary("leaky_relu", ctx, a, slope, inplace)


# -- reductions and rows -------------------------------------------------------------------------------------------

def norm(ctx: Context, a: Tensor, eps: float) -> Tensor:
    """Each row less its mean, over sqrt(variance + eps)."""
    _need_f32("norm", a)
    return Tensor(ctx, ggml.ggml_norm(ctx.take(), a.pointer, eps))


def soft_max_ext(ctx: Context, a: Tensor, mask: Tensor | None, factor: float) -> Tensor:
    """softmax(a * factor + mask) over dimension 0. mask: f32 or f16 [ne0, >= ne1, ...], -inf where forbidden."""
    _need_f32("soft_max_ext", a)
    if not a.contiguous:
        _fail("soft_max_ext", "the operand must be contiguous", a)
    if mask is not None and (mask.type not in (F32, F16) or mask.ne[0] != a.ne[0] or mask.ne[1] < a.ne[1]
                             or a.ne[2] % mask.ne[2] or a.ne[3] % mask.ne[3] or not mask.contiguous):
        _fail("soft_max_ext", "the mask must be a contiguous f32 or f16 tensor that covers the operand", a, mask)
    return Tensor(ctx, ggml.ggml_soft_max_ext(ctx.take(), a.pointer, mask.pointer if mask else None, factor, 0.0))


def sum_rows(ctx: Context, a: Tensor) -> Tensor:
    """The sum over dimension 0: [1, ne1, ne2, ne3]."""
    _need_f32("sum_rows", a)
    return Tensor(ctx, ggml.ggml_sum_rows(ctx.take(), a.pointer))


def argmax(ctx: Context, a: Tensor) -> Tensor:
    """The index of the largest of each row: i32 [ne1]. Which of equals is not promised. a must be a matrix."""
    _need_f32("argmax", a)
    if a.ne[2] != 1 or a.ne[3] != 1 or a.ne[0] > _INT_MAX or not a.contiguous:
        _fail("argmax", "the operand must be a contiguous matrix", a)
    return Tensor(ctx, ggml.ggml_argmax(ctx.take(), a.pointer))


def top_k(ctx: Context, a: Tensor, k: int) -> Tensor:
    """Indices of the k largest of each row, in no promised order: i32 [k, ne1, ne2, ne3]."""
    _need_f32("top_k", a)
    if not 1 <= k <= a.ne[0]:
        _fail("top_k", f"k is {k}, it must be from 1 to the row's length", a)
    return Tensor(ctx, ggml.ggml_top_k(ctx.take(), a.pointer, k))


def get_rows(ctx: Context, a: Tensor, index: Tensor) -> Tensor:
    """Rows of a [n, rows, ...] by i32 index [m, ...]: f32 [n, m, ...]. An index out of range aborts: check the data."""
    if index.type != I32 or index.ne[1] != a.ne[2] or a.ne[3] != index.ne[2] or index.ne[3] != 1:
        _fail("get_rows", "the index must be i32 and its dimension 1 the table's dimension 2", a, index)
    return Tensor(ctx, ggml.ggml_get_rows(ctx.take(), a.pointer, index.pointer))


def set_rows(ctx: Context, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    """Write the rows of b [n, m, ...] (f32) into a [n, rows, ...] at index [m, ...] (i64 or i32); a view of a."""
    if (b.type != F32 or index.type not in (I64, I32) or a.ne[0] != b.ne[0] or b.ne[1] != index.ne[0]
            or a.ne[2] != b.ne[2] or a.ne[3] != b.ne[3] or b.ne[2] % index.ne[1] or b.ne[3] % index.ne[2]
            or index.ne[3] != 1):
        _fail("set_rows", "rows, index and target do not fit", a, b, index)
    if a.nb[0] != ggml.ggml_type_size(a.type) or b.nb[0] != ggml.ggml_type_size(b.type):
        _fail("set_rows", "rows must be contiguous", a, b)
    return Tensor(ctx, ggml.ggml_set_rows(ctx.take(), a.pointer, b.pointer, index.pointer))


# -- shape ---------------------------------------------------------------------------------------------------------

def reshape(ctx: Context, a: Tensor, *ne: int) -> Tensor:
    """The same elements as [ne0, ne1, ...]; a must be contiguous."""
    check_shape(a.type, ne)
    count = 1
    for n in ne:
        count *= n
    if not a.contiguous or count != a.elements:
        _fail(f"reshape to {list(ne)}", "the operand must be contiguous and of as many elements", a)
    return Tensor(ctx, getattr(ggml, f"ggml_reshape_{len(ne)}d")(ctx.take(), a.pointer, *ne))


def view(ctx: Context, a: Tensor, ne: Sequence[int], nb: Sequence[int] = (), offset: int = 0) -> Tensor:
    """A window of a: *ne* elements, strides *nb* in bytes for dimensions 1, 2, 3, *offset* in bytes.

    Without *nb* the strides of *a* are kept.
    """
    check_shape(a.type, ne)
    strides = tuple(nb) or a.nb[1:len(ne)]
    if len(strides) != len(ne) - 1:
        _fail("view", f"{len(ne)} dimensions need {len(ne) - 1} strides", a)
    row = ggml.ggml_row_size(a.type, ne[0])
    last = offset + row + sum((n - 1) * stride for n, stride in zip(ne[1:], strides, strict=True))
    count = 1
    for n in ne:
        count *= n
    if offset < 0 or last > a.nbytes or count > a.elements:
        _fail(f"view of {list(ne)} at byte {offset}", "it does not lie inside the operand", a)
    return Tensor(ctx, getattr(ggml, f"ggml_view_{len(ne)}d")(ctx.take(), a.pointer, *ne, *strides, offset))


def permute(ctx: Context, a: Tensor, *axes: int) -> Tensor:
    """Dimension i of a becomes dimension axes[i] of the result; a view."""
    if sorted(axes) != [0, 1, 2, 3]:
        _fail(f"permute by {axes}", "the axes must be 0, 1, 2, 3 in some order", a)
    return Tensor(ctx, ggml.ggml_permute(ctx.take(), a.pointer, *axes))


def transpose(ctx: Context, a: Tensor) -> Tensor:
    """Dimensions 0 and 1 exchanged; a view."""
    return Tensor(ctx, ggml.ggml_transpose(ctx.take(), a.pointer))


def cont(ctx: Context, a: Tensor) -> Tensor:
    """A contiguous copy."""
    return Tensor(ctx, ggml.ggml_cont(ctx.take(), a.pointer))


def concat(ctx: Context, a: Tensor, b: Tensor, dim: int) -> Tensor:
    """a and b joined along *dim*; both of one type."""
    if not 0 <= dim < 4 or a.type != b.type or any(a.ne[d] != b.ne[d] for d in range(4) if d != dim):
        _fail(f"concat along {dim}", "types and the other dimensions must agree", a, b)
    return Tensor(ctx, ggml.ggml_concat(ctx.take(), a.pointer, b.pointer, dim))


def repeat(ctx: Context, a: Tensor, like: Tensor) -> Tensor:
    """a repeated to the shape of *like*."""
    if a.type not in (F32, F16) or not _can_repeat(a, like):
        _fail("repeat", "the operand must divide the wanted shape", a, like)
    return Tensor(ctx, ggml.ggml_repeat(ctx.take(), a.pointer, like.pointer))


def repeat_4d(ctx: Context, a: Tensor, *ne: int) -> Tensor:
    """a repeated to the shape *ne*."""
    dims = (*ne, 1, 1, 1)[:4]
    check_shape(a.type, dims)
    if a.type not in (F32, F16) or any(n % own for n, own in zip(dims, a.ne, strict=True)):
        _fail(f"repeat to {list(dims)}", "the operand must divide the wanted shape", a)
    return Tensor(ctx, ggml.ggml_repeat_4d(ctx.take(), a.pointer, *dims))


def cast(ctx: Context, a: Tensor, ggml_type: int) -> Tensor:
    """A contiguous copy of another type."""
    if a.type not in (*_FLOATS, I32) or ggml_type not in (*_FLOATS, I32):
        _fail(f"cast to {type_name(ggml_type)}", "only f32, f16, bf16 and i32 convert", a)
    return Tensor(ctx, ggml.ggml_cast(ctx.take(), a.pointer, ggml_type))


def cpy(ctx: Context, source: Tensor, target: Tensor) -> Tensor:
    """Write *source* into *target*; the result is a view of *target* that must itself be expanded into the graph."""
    if source.elements != target.elements or source.type not in _FLOATS or target.type not in _FLOATS:
        _fail("cpy", "both must be floating point and of as many elements", source, target)
    return Tensor(ctx, ggml.ggml_cpy(ctx.take(), source.pointer, target.pointer))


# -- convolution ---------------------------------------------------------------------------------------------------

def im2col_1d(ctx: Context, kernel: Tensor, x: Tensor, dilation: int, ggml_type: int = F32) -> Tensor:
    """The columns of an unpadded, stride-1 convolution: kernel [k, cin, ...] (only its shape counts) and
    x f32 [t, cin, batch] give f32 or f16 [cin * k, t - (k - 1) * dilation, batch]."""
    _need_f32("im2col", x)
    if kernel.ne[1] != x.ne[1] or x.ne[3] != 1 or dilation < 1 or ggml_type not in (F32, F16):
        _fail("im2col", "the channels must agree", kernel, x)
    if x.ne[0] <= (kernel.ne[0] - 1) * dilation:
        _fail("im2col", f"the input is shorter than the kernel at dilation {dilation}", kernel, x)
    if x.nb[0] != 4:
        _fail("im2col", "the input's rows must be contiguous", kernel, x)
    return Tensor(ctx, ggml.ggml_im2col(ctx.take(), kernel.pointer, x.pointer, 1, 0, 0, 0, dilation, 0, False,
                                        ggml_type))


def conv_transpose_1d(ctx: Context, kernel: Tensor, x: Tensor, stride: int) -> Tensor:
    """kernel [k, cout, cin] (f32, or f16 where the backend takes it), x f32 [t, cin]:
    f32 [(t - 1) * stride + k, cout]."""
    _need_f32("conv_transpose_1d", x)
    if kernel.type not in (F32, F16) or kernel.ne[2] != x.ne[1] or kernel.ne[3] != 1 or x.ne[2] != 1 or stride < 1:
        _fail("conv_transpose_1d", "the kernel must be f32 or f16 and the channels must agree", kernel, x)
    if not (kernel.contiguous and x.contiguous):
        _fail("conv_transpose_1d", "both operands must be contiguous", kernel, x)
    return Tensor(ctx, ggml.ggml_conv_transpose_1d(ctx.take(), kernel.pointer, x.pointer, stride, 0, 1))
