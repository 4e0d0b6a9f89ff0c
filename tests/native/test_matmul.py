"""The products of q8_0 and f16 weights against float64 numpy: every instruction set, any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import LAYOUT, RUNNER, Struct

from pymagpie import native
from pymagpie.ggml import F16, F32, Q8_0, Backend, Buffer, Context, Graph, find_device
from pymagpie.magpie import native_matmul

if RUNNER:
    pytest.skip("the runner has no quantised operands", allow_module_level=True)
if not native.instruction_sets():
    pytest.skip(f"native library: {native.status().reason}", allow_module_level=True)

BLOCK = 32
BLOCK_TYPE = np.dtype([("scale", "<f2"), ("q", "i1", BLOCK)])

sets = pytest.mark.parametrize("isa", native.instruction_sets())


def random_weights(rng, rows, width):
    """q8_0 blocks (rows, width / 32) of every value that int8 holds, and their float64 values (rows, width)."""
    blocks = np.empty((rows, width // BLOCK), BLOCK_TYPE)
    blocks["scale"] = rng.standard_normal(blocks.shape) * 0.01
    blocks["q"] = rng.integers(-128, 128, (*blocks.shape, BLOCK))
    return blocks, values(blocks)


def values(blocks):
    return (blocks["scale"].astype(np.float64)[..., None] * blocks["q"]).reshape(len(blocks), -1)


def product(isa, weights, x, threads=1):
    """The op's result (columns, rows) for blocks or halves and x (columns, width); its threads run one after another,
    the last one first."""
    kernels, _ = native.kernels(isa)
    params = native.ffi().new("pymagpie_op_params *", {"kernels": kernels, "layout": LAYOUT})
    y = np.full((len(x), len(weights)), np.nan, np.float32)
    dst = Struct(y)
    dst.set_sources([np.zeros(1, np.float32), x])
    dst.sources[0].memory[0] = weights.ctypes.data
    op = "matmul_half" if weights.dtype == np.float16 else "matmul"
    for thread in reversed(range(threads)):
        getattr(native.load(), f"pymagpie_{op}")(native.ffi().cast("void *", dst.address), thread, threads, params)
    return y


def rounding(weights, x):
    """The most that the product can be off: half a step of 8 bits for each value of x, and float32 sums.

    A step is the largest value of the block / 127. Returns (columns, rows)."""
    peaks = np.abs(x.astype(np.float64)).reshape(len(x), -1, BLOCK).max(2).repeat(BLOCK, axis=1)
    magnitude = peaks @ np.abs(weights).T
    return magnitude * (0.5 / 127 * 1.0001 + (x.shape[1] / BLOCK + 8) * 2.0**-24)


@sets
def test_known_answer(isa):
    # Every x is 0 or plus or minus the largest of its block, which 8 bits hold exactly.
    blocks = np.zeros((3, 2), BLOCK_TYPE)
    blocks["scale"] = 2
    blocks["q"][0, 0] = np.arange(32)
    blocks["q"][1, 1] = -128
    blocks["q"][2] = 1
    x = np.zeros((2, 64), np.float32)
    x[0, [1, 31, 32]] = [127, -127, 127]
    x[1, 33:35] = 254
    expected = [[2 * (127 - 31 * 127), -256 * 127, 2 * 127], [0, -256 * 508, 2 * 508]]
    assert product(isa, blocks, x).tolist() == expected


@sets
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 5, 7, 33, 130]),
       st.sampled_from([32, 64, 96, 768, 4096]), st.sampled_from([1, 2, 3, 4, 5, 8, 15, 17, 33, 37]), st.integers(1, 5))
def test_matches_float64(isa, seed, rows, width, columns, threads):
    rng = np.random.default_rng(seed)
    blocks, weights = random_weights(rng, rows, width)
    padded = (rng.standard_normal((columns, width + 8)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
    x = padded[:, :width]
    y = product(isa, blocks, x, threads)
    assert (np.abs(y - x.astype(np.float64) @ weights.T) <= rounding(weights, x)).all()
    assert np.array_equal(y, product(isa, blocks, x))
    alone = np.concatenate([product(isa, blocks, column[None]) for column in x])
    assert np.array_equal(y, alone), "a sum depends on its row and column alone"


needs_avx2 = pytest.mark.skipif("avx2" not in native.instruction_sets(), reason="this kernel needs AVX2")


@needs_avx2
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 5, 7, 33, 130]),
       st.sampled_from([8, 24, 64, 768, 3072, 30000]), st.sampled_from([1, 2, 3, 4, 5, 6, 8, 22, 37]),
       st.integers(1, 5))
def test_half_matches_float64(seed, rows, width, columns, threads):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((rows, width)).astype(np.float16)
    x = rng.standard_normal((columns, width + 8)).astype(np.float32)[:, :width]
    y = product("avx2", weights, x, threads)
    exact, magnitude = (f(x).astype(np.float64) @ f(weights).astype(np.float64).T for f in (np.positive, np.abs))
    assert (np.abs(y - exact) <= magnitude * (width / 8 + 8) * 2.0**-24).all()
    assert np.array_equal(y, product("avx2", weights, x))
    alone = np.concatenate([product("avx2", weights, column[None]) for column in x])
    assert np.array_equal(y, alone), "a sum depends on its row and column alone"


@needs_avx2
def test_half_of_every_value():
    """Every float16 as a weight: NaN and infinity stay what they are."""
    weights = np.zeros((1 << 16, 8), np.float16)
    weights[:, 3] = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = np.zeros((1, 8), np.float32)
    x[0, 3] = -2
    with np.errstate(over="ignore", invalid="ignore"):
        expected = weights[:, 3].astype(np.float32) * np.float32(-2)
    np.testing.assert_array_equal(product("avx2", weights, x)[0], expected)


@sets
def test_values_without_a_scale(isa):
    rng = np.random.default_rng(0)
    blocks, _ = random_weights(rng, 5, 64)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    x[0], x[1, 40], x[2, 3] = 0, np.nan, -np.inf
    x[3] *= np.float32(1e-42)
    y = product(isa, blocks, x)
    assert not y[0].any()
    assert not np.isfinite(y[1:3]).any(), "what is not finite must not be rounded away"
    assert (np.abs(y[3]) < 1e-36).all()


@sets
def test_scales_of_every_size(isa):
    # Every finite float16 as the scale of a block with one weight.
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    scales = bits[np.isfinite(bits)]
    blocks = np.zeros((scales.size, 1), BLOCK_TYPE)
    blocks["scale"][:, 0] = scales
    blocks["q"][..., 0] = 1
    x = np.zeros((1, BLOCK), np.float32)
    x[0, 0] = 127
    assert np.array_equal(product(isa, blocks, x)[0], scales.astype(np.float32) * np.float32(127))


@pytest.mark.parametrize("ggml_type", [Q8_0, pytest.param(F16, marks=needs_avx2)])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("columns", [1, 2, 4, 5, 40])
def test_in_a_graph(columns, threads, ggml_type):
    rng = np.random.default_rng(columns)
    stored, weights = random_weights(rng, 37, 96)
    if ggml_type == F16:
        stored = weights.astype(np.float16)
        weights = stored.astype(np.float64)
    x = rng.standard_normal((columns, 96)).astype(np.float32)
    with Backend(find_device("cpu"), threads) as backend, Context(1) as context:
        tensor = context.new_tensor(ggml_type, (96, 37), "weights")
        with Buffer(context, backend), Graph(backend, 8, "product") as graph:
            tensor.set(stored if ggml_type == F16 else stored.view(np.uint8))
            entry = graph.input(F32, (96, columns), "x")
            node = native_matmul.mul_mat(graph.context, tensor, entry)
            assert graph.context.keep, "not a node of ours"
            result = graph.output(node, "y")
            graph.allocate()
            entry.set(x)
            graph.compute()
            y = result.get()
    assert (np.abs(y - x.astype(np.float64) @ weights.T) <= rounding(weights, x)).all()
