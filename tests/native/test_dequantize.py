"""The FSQ dequantiser: native and numpy against NeMo's values, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymagpie import native

LEVELS = (8, 7, 6, 6)
needs_library = pytest.mark.skipif(native.load() is None, reason=f"native library: {native.status().reason}")
both = pytest.mark.parametrize(
    "dequantize", [native.dequantize_numpy, pytest.param(native.dequantize, marks=needs_library)]
)


@both
def test_known_codes(dequantize):
    # 2015 = 7 + 6*8 + 5*56 + 5*336: the last digit everywhere; 0: the first.
    latents = dequantize(np.array([[0, 2015]]), LEVELS)
    third = np.float32(2) / np.float32(3)
    expected = np.array([[-1, -1, -1, -1, 0.75, 1, third, third]], np.float32)
    assert latents.dtype == np.float32 and latents.flags.c_contiguous
    np.testing.assert_array_equal(latents, expected)


@both
@pytest.mark.parametrize("frames", [1, 3, 37])
def test_golden_latents(dequantize, frames, golden):
    arrays = np.load(golden("nanocodec-tiny.npz"))
    latents = dequantize(arrays[f"t{frames}_codes"], LEVELS)
    np.testing.assert_array_equal(latents.T, arrays[f"t{frames}_latents"])


@needs_library
@given(levels=st.lists(st.integers(2, 9), min_size=1, max_size=6), frames=st.integers(0, 5),
       codebooks=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_native_equals_numpy(levels, frames, codebooks, seed):
    codes = np.random.default_rng(seed).integers(0, np.prod(levels), (frames, codebooks))
    np.testing.assert_array_equal(native.dequantize(codes, levels), native.dequantize_numpy(codes, levels))


@both
def test_bad_arguments(dequantize):
    with pytest.raises(ValueError, match="code 2016 at frame 1, codebook 0 is outside 0..2015"):
        dequantize(np.array([[0], [2016]]), LEVELS)
    with pytest.raises(ValueError, match="code -1 "):
        dequantize(np.array([[-1]]), LEVELS)
    with pytest.raises(ValueError, match="integers"):
        dequantize(np.zeros((1, 1), np.float32), LEVELS)
    with pytest.raises(ValueError, match="frames, codebooks"):
        dequantize(np.zeros(3, np.int32), LEVELS)
    with pytest.raises(ValueError, match="at least 2"):
        dequantize(np.zeros((1, 1), np.int32), (8, 1))
    with pytest.raises(ValueError, match="int32"):
        dequantize(np.zeros((1, 1), np.int32), (2**16, 2**16))
