"""Products of q8_0 weights by our native kernel, where ggml would run once for every row and column.

Like ggml, the kernel rounds the columns to 8 bits in blocks of 32. A sum depends on its row and column alone, however
many columns there are. Wherever the kernel does not apply (another device or type, no native library) the node is
ggml's own.
"""

from __future__ import annotations

import functools

from .. import native
from ..errors import CapabilityError
from ..ggml import F32, Q8_0, Context, Tensor, custom, ops

MAX_WIDTH = 4096


def mul_mat(ctx: Context, weight: Tensor, x: Tensor) -> Tensor:
    """``weight [k, rows]`` times f32 ``x [k, n]``: f32 [rows, n], as :func:`pymagpie.ggml.ops.mul_mat` defines it."""
    if not _applies(weight, x):
        return ops.mul_mat(ctx, weight, x)
    address, owner = _params()
    return custom.custom_4d(ctx, F32, (weight.ne[1], x.ne[1]), (weight, x), native.address("pymagpie_matmul"), address,
                            owner)


def _applies(weight: Tensor, x: Tensor) -> bool:
    return (weight.type == Q8_0 and x.type == F32 and weight.contiguous and x.nb[0] == 4
            and weight.ne[0] == x.ne[0] <= MAX_WIDTH and weight.ne[2:] == x.ne[2:] == (1, 1)
            and custom.on_cpu(weight) and available())


@functools.cache
def available() -> bool:
    """Whether the native library and custom ops can be used at all."""
    if native.load() is None:
        return False
    try:
        custom.tensor_layout()
    except CapabilityError:
        return False
    return True


@functools.cache
def _params() -> tuple[int, object]:
    """The address of the op's parameters, and their owner."""
    kernels, _ = native.kernels(native.choose_instruction_set())
    params = native.ffi().new("pymagpie_op_params *", {"kernels": kernels, "layout": custom.tensor_layout()})
    return int(native.ffi().cast("uintptr_t", params)), params
