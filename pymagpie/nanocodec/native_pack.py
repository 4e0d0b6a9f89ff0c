"""Lays weights out as the native kernels read them: once, at load, in float32.

Output channels are cut into blocks of ``lanes`` (the vector width), the last one filled up with zeros; the weights of
one block lie together in the order in which the kernel multiplies them. Everything here is plain numpy.
"""

from __future__ import annotations

import numpy as np

LEAKY_SLOPE = 0.01


def padded(channels: int, lanes: int) -> int:
    """*channels* rounded up to whole vectors."""
    return -(-channels // lanes) * lanes


def pack_conv(weight: np.ndarray, lanes: int) -> np.ndarray:
    """(cout, cin, taps) to float32 (blocks, taps, cin, lanes); in ggml's order ``ne = [lanes, cin, taps, blocks]``."""
    cout, cin, taps = weight.shape
    packed = np.zeros((padded(cout, lanes), cin, taps), np.float32)
    packed[:cout] = weight
    return np.ascontiguousarray(packed.reshape(-1, lanes, cin, taps).transpose(0, 3, 2, 1))


def pack_upsample(kernel: np.ndarray, lanes: int) -> np.ndarray:
    """The compact kernel of a grouped transposed convolution, (cout, rate, terms), to (blocks, rate, terms, lanes).

    The terms of an output sample are its group's inputs of the row before, then those of the current row, as
    ``weights.compact_kernel`` has them.
    """
    cout, rate, terms = kernel.shape
    packed = np.zeros((padded(cout, lanes), rate, terms), np.float32)
    packed[:cout] = kernel
    return np.ascontiguousarray(packed.reshape(-1, lanes, rate, terms).transpose(0, 2, 3, 1))


def pack_dense_upsample(weight: np.ndarray, lanes: int) -> np.ndarray:
    """A transposed convolution (cin, cout, 2 * rate) as an ordinary one, for :func:`pack_conv`.

    Output phase k of row n is ``current . w[k] + previous . w[rate + k]``: a causal convolution of two taps (the
    previous row first) with rate times as many output channels, whose rows are then rate rows of the result.
    Returns float32 (rate * padded(cout), cin, 2).
    """
    cin, cout, taps = weight.shape
    rate = taps // 2
    phases = np.zeros((rate, padded(cout, lanes), cin, 2), np.float32)
    phases[:, :cout, :, 1] = weight[:, :, :rate].transpose(2, 1, 0)
    phases[:, :cout, :, 0] = weight[:, :, rate:].transpose(2, 1, 0)
    return phases.reshape(-1, cin, 2)


def pack_channels(values: np.ndarray, lanes: int) -> np.ndarray:
    """A vector of one value a channel (a bias), padded with zeros."""
    packed = np.zeros(padded(values.size, lanes), np.float32)
    packed[:values.size] = values.reshape(-1)
    return packed


def pack_snakes(snakes: list[tuple[np.ndarray, np.ndarray]], channels: int, lanes: int) -> np.ndarray:
    """Half-snakes ``(alpha, alpha_inv)`` to float32 (activations, 3, padded channels): alpha, 1 / alpha, slope.

    alpha and alpha_inv hold one value a channel of the lower half (rounded down), which gets the snake and a slope of
    one; the others get a leaky ReLU: no snake and its slope.
    """
    half = channels // 2
    table = np.zeros((len(snakes), 3, padded(channels, lanes)), np.float32)
    table[:, 2] = 1.0
    for row, (alpha, inverse) in zip(table, snakes, strict=True):
        row[0, :half] = alpha.reshape(-1)
        row[1, :half] = inverse.reshape(-1)
        row[2, half:channels] = LEAKY_SLOPE
    return table
