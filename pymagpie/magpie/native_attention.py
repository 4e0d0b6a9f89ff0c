"""A decoder step's self-attention by our native kernel: one query a head over the whole cache, in one node.

ggml takes three nodes for it, rounds query and probabilities to float16 and multiplies over columns that are still
empty; here both stay float32, and the columns behind the last open one are not read. Wherever the kernel does not
apply (another device, a float32 cache, a CPU without AVX2, no native library) the nodes are ggml's own.
"""

from __future__ import annotations

import functools
import math

from .. import native
from ..ggml import F16, F32, Context, Tensor, custom
from .layers import attend as attend_by_ggml
from .native_matmul import available, uses_avx2

MAX_COLUMNS = 16384


def attend(ctx: Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """As :func:`pymagpie.magpie.layers.attend` with one query a head, without its probabilities: f32
    [heads * head_dim, branches] for q (head_dim, 1, heads, branches), k (head_dim, m, heads, branches), v transposed
    (m, head_dim, heads, branches) and *mask* [m]."""
    if not _applies(q, k, v, mask):
        return attend_by_ggml(ctx, q, k, v, mask)[0]
    address, owner = _params(1.0 / math.sqrt(q.ne[0]))
    return custom.custom_4d(ctx, F32, (q.ne[0] * q.ne[2], q.ne[3]), (q, k, v, mask), native.address("pymagpie_attend"),
                            address, owner)


def _applies(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> bool:
    head_dim, columns, *_ = k.ne
    return (k.type == v.type == F16 and q.type == mask.type == F32 and q.ne[1] == 1
            and head_dim % 8 == columns % 8 == 0 and columns <= MAX_COLUMNS
            and q.nb[0] == mask.nb[0] == 4 and k.nb[0] == v.nb[0] == 2
            and custom.on_cpu(k) and available() and uses_avx2())


@functools.cache
def _params(scale: float) -> tuple[int, object]:
    """The address of the op's parameters, and their owner."""
    kernels, _ = native.kernels("avx2")
    params = native.ffi().new("pymagpie_op_params *", {"kernels": kernels, "layout": custom.tensor_layout(),
                                                       "scale": scale})
    return int(native.ffi().cast("uintptr_t", params)), params
