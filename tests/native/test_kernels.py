"""The kernels against float64 numpy: random shapes, every instruction set, any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import RUNNER, run
from operands import lanes as widths

from pymagpie import native
from pymagpie.nanocodec import native_pack as pack

if not widths():
    pytest.skip(f"native library: {native.status().reason}", allow_module_level=True)

sets = pytest.mark.parametrize("isa", widths())
seeds = st.integers(0, 2**32 - 1)
channels = st.sampled_from([1, 2, 3, 7, 8, 13, 16, 24, 27, 33, 40, 54])


def padded_rows(rng, rows, count, lanes):
    """Random rows of `count` channels, the padding zero."""
    array = np.zeros((rows, pack.padded(count, lanes)), np.float32)
    array[:, :count] = rng.standard_normal((rows, count))
    return array


def half_snake64(v, alpha, inverse):
    half = alpha.size
    snake = v[:, :half] + inverse * np.sin(alpha.astype(np.float64) * v[:, :half]) ** 2
    leaky = np.where(v[:, half:] < 0, pack.LEAKY_SLOPE * v[:, half:], v[:, half:])
    return np.concatenate([snake, leaky], axis=1)


def conv64(x, cache, weight, dilation):
    """x (rows, cin), cache ((taps - 1) * dilation, cin), weight (cout, cin, taps): (rows, cout) in float64."""
    rows, whole = x.shape[0], np.concatenate([cache, x]).astype(np.float64)
    taps = range(weight.shape[2])
    return sum(whole[tap * dilation:tap * dilation + rows] @ weight[:, :, tap].T.astype(np.float64) for tap in taps)


def upsample64(x, cache, weight):
    """Transposed convolution by its definition: every row of x (rows, cin), the cached one before them too, adds its
    kernel to 2 * rate output rows; weight (cin, cout, 2 * rate): (rows * rate, cout) in float64."""
    rate = weight.shape[2] // 2
    full = np.zeros(((len(x) + 2) * rate, weight.shape[1]))
    for n, row in enumerate(np.concatenate([cache, x]).astype(np.float64)):
        full[n * rate:(n + 2) * rate] += np.einsum("i,iok->ko", row, weight)
    return full[rate:-rate]


def random_snakes(rng, count, channels_):
    alphas = [rng.standard_normal(channels_ // 2).astype(np.float32) * 3 for _ in range(count)]
    return [(alpha, (1 / (alpha + np.float32(1e-9))).astype(np.float32) * np.float32(0.1)) for alpha in alphas]


def bound(magnitude, terms):
    """The most that float32 can be off for a sum of `terms` products whose absolute values add up to `magnitude`."""
    return (terms + 8) * 2.0**-24 * magnitude


def check_planes(planes, expected, error, snakes, cout):
    """Compares a raw plane, off by at most `error`, and its activated ones."""
    assert (np.abs(planes[0, :, :cout] - expected) <= error).all()
    for plane, (alpha, inverse) in zip(planes[1:], snakes, strict=True):
        # The activation of the stored sums: its own error, not that of the sums magnified by a steep snake.
        exact = half_snake64(planes[0, :, :cout].astype(np.float64), alpha, inverse)
        np.testing.assert_allclose(plane[:, :cout], exact, rtol=2e-6, atol=2e-6)
    assert not planes[:, :, cout:].any()


@sets
def test_conv_known_answer(isa):
    # One channel, taps [1, 10, 100] oldest first, dilation 2: y[t] = x[t-4] + 10 x[t-2] + 100 x[t] + 0.5.
    lanes = widths()[isa]
    weight = pack.pack_conv(np.array([[[1.0, 10.0, 100.0]]], np.float32), lanes)
    x = np.zeros((3, lanes), np.float32)
    x[:, 0] = [5, 6, 7]
    cache = np.zeros((4, lanes), np.float32)
    cache[:, 0] = [1, 2, 3, 4]
    y = np.full((3, lanes), np.nan, np.float32)
    run("conv", y, [x, cache, weight, pack.pack_channels(np.array([0.5]), lanes)], isa=isa,
        in_channels=1, taps=3, dilation=2)
    assert y[:, 0].tolist() == [531.5, 642.5, 753.5]
    assert not y[:, 1:].any()


@sets
@settings(max_examples=60, deadline=None)
@given(cin=channels, cout=channels, taps=st.integers(1, 11), dilation=st.integers(1, 9), rows=st.integers(1, 60),
       extras=st.tuples(st.booleans(), st.booleans()), activations=st.integers(0, 3), threads=st.integers(1, 8),
       seed=seeds)
def test_conv(isa, cin, cout, taps, dilation, rows, extras, activations, threads, seed):
    rng = np.random.default_rng(seed)
    lanes = widths()[isa]
    weight = rng.standard_normal((cout, cin, taps)).astype(np.float32)
    bias = rng.standard_normal(cout).astype(np.float32)
    x = padded_rows(rng, rows, cin, lanes)
    cache = padded_rows(rng, (taps - 1) * dilation, cin, lanes)
    residual, addend = (padded_rows(rng, rows, cout, lanes) if used else None for used in extras)
    snakes = random_snakes(rng, activations, cout)
    table = pack.pack_snakes(snakes, cout, lanes) if snakes else None
    sources = [x, cache if cache.size else None, pack.pack_conv(weight, lanes), pack.pack_channels(bias, lanes),
               residual, addend, table]
    params = {"isa": isa, "in_channels": cin, "taps": taps, "dilation": dilation,
              "activations": activations, "scale": 1 / 3}

    planes = np.full((1 + activations, rows, pack.padded(cout, lanes)), np.nan, np.float32)
    run("conv", planes, sources, threads, **params)
    expected = conv64(x[:, :cin], cache[:, :cin], weight, dilation) + bias
    magnitude = conv64(abs(x[:, :cin]), abs(cache[:, :cin]), abs(weight), dilation) + abs(bias)
    for extra in (residual, addend):
        if extra is not None:
            expected += extra[:, :cout]
            magnitude += abs(extra[:, :cout])
    check_planes(planes, expected / 3, bound(magnitude / 3, cin * taps), snakes, cout)

    alone = np.full_like(planes, np.nan)
    run("conv", alone, sources, 1, **params)
    np.testing.assert_array_equal(planes, alone)  # threads change no bit


@sets
@settings(max_examples=40, deadline=None)
@given(cout=st.integers(1, 40), inputs=st.integers(1, 4), rate=st.integers(1, 17), rows=st.integers(1, 20),
       activations=st.integers(0, 3), threads=st.integers(1, 8), seed=seeds)
def test_upsample(isa, cout, inputs, rate, rows, activations, threads, seed):
    rng = np.random.default_rng(seed)
    lanes = widths()[isa]
    cin = cout * inputs
    weight = rng.standard_normal((cin, 2 * rate)).astype(np.float32)
    bias = rng.standard_normal(cout).astype(np.float32)
    x = padded_rows(rng, rows, cin, lanes)
    cache = padded_rows(rng, 1, cin, lanes)
    snakes = random_snakes(rng, activations, cout)
    table = pack.pack_snakes(snakes, cout, lanes) if snakes else None
    # (cout, inputs, half, phase): the frame before meets the second half of the kernel, the current one the first.
    compact = weight.reshape(cout, inputs, 2, rate)[:, :, ::-1].transpose(0, 3, 2, 1).reshape(cout, rate, 2 * inputs)
    planes = np.full((1 + activations, rows * rate, pack.padded(cout, lanes)), np.nan, np.float32)
    run("upsample", planes, [x, cache, pack.pack_upsample(compact, lanes), pack.pack_channels(bias, lanes), None,
                             None, table],
        threads, isa=isa, in_channels=cin, taps=rate, dilation=inputs, activations=activations)

    dense = np.zeros((cin, cout, 2 * rate), np.float32)
    dense[np.arange(cin), np.arange(cin) // inputs] = weight
    expected = upsample64(x[:, :cin], cache[:, :cin], dense) + bias
    magnitude = upsample64(abs(x[:, :cin]), abs(cache[:, :cin]), abs(dense)) + abs(bias)
    check_planes(planes, expected, bound(magnitude, 2 * inputs), snakes, cout)


@sets
@settings(max_examples=40, deadline=None)
@given(cin=st.integers(1, 20), cout=st.integers(1, 20), rate=st.integers(1, 9), rows=st.integers(1, 20), seed=seeds)
def test_dense_upsampler_is_a_convolution(isa, cin, cout, rate, rows, seed):
    rng = np.random.default_rng(seed)
    lanes = widths()[isa]
    weight = rng.standard_normal((cin, cout, 2 * rate)).astype(np.float32)
    x = padded_rows(rng, rows, cin, lanes)
    cache = padded_rows(rng, 1, cin, lanes)
    width = pack.padded(cout, lanes)
    y = np.full((rows, rate * width), np.nan, np.float32)
    run("conv", y, [x, cache, pack.pack_conv(pack.pack_dense_upsample(weight, lanes), lanes),
                    np.zeros(rate * width, np.float32)], isa=isa, in_channels=cin, taps=2, dilation=1)
    magnitude = upsample64(abs(x[:, :cin]), abs(cache[:, :cin]), abs(weight))
    check_planes(y.reshape(1, rows * rate, width), upsample64(x[:, :cin], cache[:, :cin], weight),
                 bound(magnitude, 2 * cin), [], cout)


@sets
def test_narrow_output(isa):
    """The last convolution stores its one channel without padding."""
    rng = np.random.default_rng(5)
    lanes = widths()[isa]
    weight = rng.standard_normal((1, 27, 3)).astype(np.float32)
    x, cache = padded_rows(rng, 50, 27, lanes), padded_rows(rng, 2, 27, lanes)
    samples = np.full((52, 1), np.nan, np.float32)
    run("conv", samples[:50], [x, cache, pack.pack_conv(weight, lanes), np.zeros(lanes, np.float32)], 3,
        isa=isa, in_channels=27, taps=3, dilation=1)
    np.testing.assert_allclose(samples[:50], conv64(x[:, :27], cache[:, :27], weight, 1), rtol=0, atol=2e-5)
    assert np.isnan(samples[50:]).all()


@sets
@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8), cin=channels, cout=channels, taps=st.integers(1, 7),
       dilation=st.integers(1, 5), seed=seeds)
def test_stream_equals_one_call_bit_for_bit(isa, sizes, cin, cout, taps, dilation, seed):
    rng = np.random.default_rng(seed)
    lanes = widths()[isa]
    constants = [pack.pack_conv(rng.standard_normal((cout, cin, taps)), lanes),
                 np.zeros(pack.padded(cout, lanes), np.float32), None, None,
                 pack.pack_snakes(random_snakes(rng, 1, cout), cout, lanes)]
    params = {"isa": isa, "in_channels": cin, "taps": taps, "dilation": dilation, "activations": 1}
    x = padded_rows(rng, sum(sizes), cin, lanes)
    shape = (2, sum(sizes), pack.padded(cout, lanes))
    whole, pieces = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    pad = (taps - 1) * dilation
    run("conv", whole, [x, np.zeros((pad, x.shape[1]), np.float32) if pad else None, *constants], **params)
    cache = np.zeros((pad, x.shape[1]), np.float32)
    start = 0
    for size in sizes:
        chunk = x[start:start + size]
        run("conv", pieces[:, start:start + size], [chunk, cache if pad else None, *constants], threads=2, **params)
        if pad:
            run("refresh", cache, [cache, chunk], threads=3, isa=isa)
        start += size
    np.testing.assert_array_equal(whole, pieces)


@given(sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 80), st.sampled_from([4, 8, 24])),
                      min_size=1, max_size=4), threads=st.integers(1, 9))
def test_refresh_keeps_the_last_rows(sizes, threads):
    sources, expected = [], []
    for kept, rows, width in sizes:
        cache = np.arange(kept * width, dtype=np.float32).reshape(kept, width)
        x = -1 - np.arange(rows * width, dtype=np.float32).reshape(rows, width)
        expected.append(np.concatenate([cache, x])[-kept:])
        sources += [cache, x]
    run("refresh", sources[0], sources, threads)
    for cache, right in zip(sources[::2] if not RUNNER else sources[:1], expected, strict=not RUNNER):
        np.testing.assert_array_equal(cache, right)


@sets
def test_snake_accuracy(isa):
    """Half-snake alone: sin^2 within 3 ulp of float64 wherever float32 still resolves the argument."""
    lanes = widths()[isa]
    values = np.concatenate([np.linspace(-50, 50, 40001), np.geomspace(1e-30, 3e3, 20000), [0.0, -0.0]])
    values = values[:len(values) // lanes * lanes].astype(np.float32).reshape(-1, lanes)
    table = np.ones((1, 3, lanes), np.float32)
    y = np.empty((1, *values.shape), np.float32)
    run("conv", y, [np.zeros_like(values), None, np.zeros((1, 1, 1, lanes), np.float32), np.zeros(lanes, np.float32),
                    values, None, table], isa=isa, in_channels=1, taps=1, dilation=1, raw=0, activations=1)
    exact = values.astype(np.float64) + np.sin(values.astype(np.float64)) ** 2
    # Beside the rounding of the result: the reduced argument is off by 2^-24 of itself and of the argument's rounding.
    np.testing.assert_allclose(y[0], exact, rtol=2e-7, atol=2e-7)


@sets
def test_non_finite_values_are_not_hidden(isa):
    lanes = widths()[isa]
    values = np.zeros((3, lanes), np.float32)
    values[:, 0] = [np.nan, np.inf, -np.inf]
    y = np.zeros((2, 3, lanes), np.float32)
    run("conv", y, [np.zeros_like(values), None, np.zeros((1, 1, 1, lanes), np.float32), np.zeros(lanes, np.float32),
                    values, None, np.ones((1, 3, lanes), np.float32)],
        isa=isa, in_channels=1, taps=1, dilation=1, activations=1)
    assert not np.isfinite(y[:, :, 0]).any()
    assert np.isfinite(y[:, :, 1:]).all()
