"""Products of q8_0 and f16 weights by our native kernels, where ggml would run once for every row and column.

For q8_0 the kernel rounds the columns to 8 bits in blocks of 32, as ggml does; for f16 it keeps them in float32, which
ggml rounds to float16. A sum depends on its row and column alone, however many columns there are. Wherever no kernel
applies (another device or type, no native library) the node is ggml's own.
"""

from __future__ import annotations

import functools

from .. import native
from ..errors import CapabilityError
from ..ggml import F16, F32, Q8_0, Context, Tensor, custom, ops

MAX_WIDTH = 4096
"""Of q8_0 weights."""


def mul_mat(ctx: Context, weight: Tensor, x: Tensor) -> Tensor:
    """``weight [k, rows]`` times f32 ``x [k, n]``: f32 [rows, n], as :func:`pymagpie.ggml.ops.mul_mat` defines it."""
    function = _kernel_for(weight, x)
    if function is None:
        return ops.mul_mat(ctx, weight, x)
    address, owner = _params()
    return custom.custom_4d(ctx, F32, (weight.ne[1], x.ne[1]), (weight, x), native.address(function), address, owner)


def _kernel_for(weight: Tensor, x: Tensor) -> str | None:
    width = weight.ne[0]
    if not (x.type == F32 and weight.contiguous and x.nb[0] == 4 and width == x.ne[0]
            and weight.ne[2:] == x.ne[2:] == (1, 1) and custom.on_cpu(weight) and available()):
        return None
    if weight.type == Q8_0 and width <= MAX_WIDTH:
        return "pymagpie_matmul"
    return "pymagpie_matmul_half" if weight.type == F16 and width % 8 == 0 and uses_avx2() else None


@functools.cache
def uses_avx2() -> bool:
    """Whether the kernels that only AVX2 has may be used."""
    return "avx2" in native.instruction_sets() and native.choose_instruction_set() != "plain"


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
