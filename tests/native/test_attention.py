"""Attention over the cache against float64 numpy: every shape and mask, any number of threads, and ggml's own nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import LAYOUT, RUNNER, Struct

from pymagpie import native
from pymagpie.ggml import F16, F32, Backend, Buffer, Context, Graph, find_device, ops
from pymagpie.magpie import native_attention
from pymagpie.magpie.layers import attend

if RUNNER:
    pytest.skip("the runner has no float16 operands", allow_module_level=True)
if "avx2" not in native.instruction_sets():
    pytest.skip("the kernel needs AVX2 and the native library", allow_module_level=True)


def attention(q, k, v, mask, threads=1, scale=1.0):
    """The op's result (branches, heads * head_dim) for q (branches, heads, head_dim), k (branches, heads, columns,
    head_dim), v (branches, heads, head_dim, columns); its threads run one after another, the last one first."""
    params = native.ffi().new("pymagpie_op_params *", {"layout": LAYOUT, "scale": scale})
    out = np.full((len(q), q.shape[1] * q.shape[2]), np.nan, np.float32)
    dst = Struct(out)
    dst.set_sources([q[:, :, None], *(half.view(np.float32) for half in (k, v)), mask])
    for source, half in zip(dst.sources[1:3], (k, v), strict=True):  # Struct knows float32 alone
        source.memory[LAYOUT["ne"] // 8:][:4] = half.shape[::-1]
    for thread in reversed(range(threads)):
        native.load().pymagpie_attend(native.ffi().cast("void *", dst.address), thread, threads, params)
    return out


def expected(q, k, v, mask, scale):
    scores = np.einsum("bhd,bhcd->bhc", q.astype(np.float64), k.astype(np.float64)) * np.float64(scale) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhc,bhdc->bhd", weights, v.astype(np.float64)).reshape(len(q), -1)


def operands(rng, branches, heads, head_dim, columns):
    q = rng.standard_normal((branches, heads, head_dim)).astype(np.float32)
    k = rng.standard_normal((branches, heads, columns, head_dim)).astype(np.float16)
    v = rng.standard_normal((branches, heads, head_dim, columns)).astype(np.float16)
    return q, k, v


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2), st.integers(1, 5), st.sampled_from([8, 16, 24, 64, 128]),
       st.sampled_from([8, 16, 40, 128, 512]), st.floats(0, 1), st.integers(1, 5))
def test_matches_float64(seed, branches, heads, head_dim, columns, share, threads):
    rng = np.random.default_rng(seed)
    q, k, v = operands(rng, branches, heads, head_dim, columns)
    q *= np.float32(10.0 ** rng.integers(-2, 2))
    mask = np.zeros(columns, np.float32)
    mask[rng.random(columns) < 0.2] = -np.inf
    closed = int(share * (columns - 1))
    mask[columns - closed:] = -np.inf
    mask[0] = 0
    scale = np.float32(head_dim**-0.5)
    out = attention(q, k, v, mask, threads, scale)
    np.testing.assert_allclose(out, expected(q, k, v, mask, scale), rtol=0, atol=5e-5)
    assert np.array_equal(out, attention(q, k, v, mask, 1, scale))
    if closed >= 8:  # what lies behind the open columns is not read, and the rest does not depend on it
        shorter = (columns - closed + 7) // 8 * 8
        k[:, :, shorter:], v[..., shorter:] = np.nan, np.nan
        assert np.array_equal(out, attention(q, k, v, mask, threads, scale))


def test_one_open_column_gives_its_values():
    rng = np.random.default_rng(1)
    q, k, v = operands(rng, 2, 3, 16, 24)
    mask = np.full(24, -np.inf, np.float32)
    mask[11] = -3
    np.testing.assert_array_equal(attention(q, k, v, mask), v[..., 11].astype(np.float32).reshape(2, -1))


@pytest.mark.parametrize("difference", [0.0, 1e-6, 0.3, 1.0, 20.0, 80.0, 86.9, 87.5, 1000.0])
def test_exponentials(difference):
    """Two columns whose scores differ by so much: the second one's share, to a few units in the last place."""
    q = np.zeros((1, 1, 8), np.float32)
    k = np.zeros((1, 1, 8, 8), np.float16)
    v = np.zeros((1, 1, 8, 8), np.float16)
    v[..., 1] = 1
    mask = np.full(8, -np.inf, np.float32)
    mask[:2] = 0, -np.float32(difference)
    share = np.exp(float(mask[1])) / (1 + np.exp(float(mask[1])))
    out = attention(q, k, v, mask)
    np.testing.assert_allclose(out, share if difference <= 87 else 0, rtol=4e-7, atol=0)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_what_is_not_finite_stays_so(operand, poison):
    rng = np.random.default_rng(2)
    parts = operands(rng, 1, 2, 16, 16)
    np.abs(parts[0], out=parts[0])
    parts[1][...] = np.abs(parts[1])
    parts[operand][0, 1].flat[5] = poison
    out = attention(*parts, np.zeros(16, np.float32))[0].reshape(2, 16)
    assert np.isfinite(out[0]).all() and not np.isfinite(out[1]).all()


def test_in_a_graph():
    """The node beside ggml's three, whose probabilities and query are rounded to float16."""
    rng = np.random.default_rng(3)
    heads, head_dim, columns, branches = 3, 16, 32, 2
    q, k, v = operands(rng, branches, heads, head_dim, columns)
    mask = np.where(np.arange(columns) < 21, 0, -np.inf).astype(np.float32)
    with Backend(find_device("cpu"), 2) as backend, Context(2) as context:
        keys = context.new_tensor(F16, (head_dim, columns, heads, branches), "k")
        values = context.new_tensor(F16, (columns, head_dim, heads, branches), "v")
        with Buffer(context, backend), Graph(backend, 16, "attention") as graph:
            keys.set(k)
            values.set(v)
            entry = graph.input(F32, (head_dim, 1, heads, branches), "q")
            bias = graph.input(F32, (columns,), "mask")
            ours = native_attention.attend(graph.context, entry, keys, values, bias)
            assert graph.context.keep, "not a node of ours"
            theirs, _ = attend(graph.context, entry, keys, values, bias)
            results = [graph.output(ops.cont(graph.context, node), name) for node, name in ((ours, "a"), (theirs, "b"))]
            graph.allocate()
            entry.set(q)
            bias.set(mask)
            graph.compute()
            ours, theirs = (node.get() for node in results)
    np.testing.assert_allclose(ours, expected(q, k, v, mask, head_dim**-0.5), rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-3)
