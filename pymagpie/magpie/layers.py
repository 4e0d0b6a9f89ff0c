"""The parts that all three transformer stacks share, as graph builders.

Activations are f32 [width, n * branches]: position p of guidance branch b is column b * n + p, so that every weight is
read once for all of them. Builders see tensors and weights, never files or devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..ggml import Backend, Context, Graph, Tensor, ops
from .native_matmul import mul_mat
from .weights import LayerWeights

NORM_EPS = 1e-5
ROW_MULTIPLES = {"metal": 32}
"""What the positions of a sequence are filled up to, by device family: attention multiplies over them, and on Apple
GPUs with tensor units ggml's matrix product makes NaN of rows of another length."""


class StageGraph(Graph):
    """A graph whose inputs and outputs are found by name."""

    def __init__(self, backend: Backend, max_nodes: int, name: str) -> None:
        super().__init__(backend, max_nodes, name)
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}

    def input(self, ggml_type: int, ne: Sequence[int], name: str) -> Tensor:
        self.inputs[name] = tensor = super().input(ggml_type, ne, name)
        return tensor

    def output(self, tensor: Tensor, name: str = "") -> Tensor:
        self.outputs[name] = super().output(tensor, name)
        return tensor


@dataclass(frozen=True)
class Shape:
    """How the columns of activations are to be read."""

    n: int
    """Positions."""
    branches: int
    """1, or 2 with guidance: the conditional branch first."""


def layer_norm(ctx: Context, x: Tensor, weight: Tensor) -> Tensor:
    """LayerNorm over the width, without bias."""
    return ops.mul(ctx, ops.norm(ctx, x, NORM_EPS), weight)


def gelu(ctx: Context, x: Tensor, exact: bool) -> Tensor:
    """GELU, tanh form. *exact* spells it as x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), because ggml's CPU kernel
    reads an f16 table and is off by 1e-3."""
    if not exact:
        return ops.gelu(ctx, x)
    slope = 2.0 * math.sqrt(2.0 / math.pi)
    inner = ops.mul(ctx, ops.scale(ctx, ops.sqr(ctx, x), slope * 0.044715, slope), x)
    return ops.mul(ctx, ops.sigmoid(ctx, inner), x)


def split_heads(ctx: Context, qkv: Tensor, part: int, heads: int, shape: Shape) -> Tensor:
    """Part 0 (q), 1 (k) or 2 (v) of [3 width, n * branches] as a view (head_dim, heads, n, branches)."""
    width = qkv.ne[0] // 3
    head_dim = width // heads
    row = qkv.nb[1]
    return ops.view(ctx, qkv, (head_dim, heads, shape.n, shape.branches), (head_dim * 4, row, row * shape.n),
                    part * width * 4)


def attend(ctx: Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of q (head_dim, n, heads, branches) over k (head_dim, m, heads, branches) and v transposed
    (m, head_dim, heads, branches).

    *mask* is added to the scaled scores: [m, n], or [m] for every query alike. Returns the joined heads
    [heads * head_dim, n * branches] and the probabilities (m, n, heads, branches).
    """
    scores = ops.mul_mat(ctx, k, q)
    m, n, heads, branches = scores.ne
    factor = 1.0 / math.sqrt(q.ne[0])
    if mask is not None and mask.ne[1] < n:
        probs = ops.soft_max_ext(ctx, ops.reshape(ctx, scores, m, 1, n * heads, branches), mask, factor)
        probs = ops.reshape(ctx, probs, m, n, heads, branches)
    else:
        probs = ops.soft_max_ext(ctx, scores, mask, factor)
    out = ops.mul_mat(ctx, v, probs)
    if n > 1:
        out = ops.cont(ctx, ops.permute(ctx, out, 0, 2, 1, 3))
    return ops.reshape(ctx, out, v.ne[1] * heads, n * branches), probs


def sequence_attention(ctx: Context, qkv: Tensor, heads: int, shape: Shape, mask: Tensor) -> Tensor:
    """Self-attention of a whole sequence over itself; the projection to follow is the caller's."""
    q, k, v = (split_heads(ctx, qkv, part, heads, shape) for part in range(3))
    values = ops.cont(ctx, ops.permute(ctx, v, 1, 2, 0, 3))
    out, _ = attend(ctx, ops.permute(ctx, q, 0, 2, 1, 3), ops.permute(ctx, k, 0, 2, 1, 3), values, mask)
    return out


def feed_forward(graph: Graph, layer: LayerWeights, x: Tensor, exact: bool, padding: tuple[Tensor, Tensor] | None
                 = None) -> Tensor:
    """x + FFN(LN(x)). With several taps (a causal convolution over one sequence) *padding* holds zeros
    [width, taps - 1] and [ffn, taps - 1]."""
    ctx = graph.context
    hidden = layer_norm(ctx, x, layer.norm_ffn)
    hidden = gelu(ctx, _causal_conv(ctx, layer.ffn_in, hidden, padding[0] if padding else None), exact)
    return ops.add(ctx, x, _causal_conv(ctx, layer.ffn_out, hidden, padding[1] if padding else None))


def _causal_conv(ctx: Context, taps: tuple[Tensor, ...], x: Tensor, zeros: Tensor | None) -> Tensor:
    if len(taps) == 1:
        return mul_mat(ctx, taps[0], x)
    assert zeros is not None
    padded = ops.concat(ctx, zeros, x, 1)
    total: Tensor | None = None
    for index, tap in enumerate(taps):
        shifted = ops.view(ctx, padded, x.ne[:2], offset=index * padded.nb[1])
        product = mul_mat(ctx, tap, shifted)
        total = product if total is None else ops.add(ctx, total, product)
    assert total is not None
    return total
