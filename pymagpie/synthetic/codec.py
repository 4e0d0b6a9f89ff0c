"""A random NanoCodec decoder whose audio is neither silent nor clipped, at any width.

Every kernel is scaled by its fan-in so that the signal keeps unit power from layer to layer; the last convolution then
sets the loudness.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pymagpie.convert.codec_layout import (
    ARCHITECTURE,
    OUTTYPES,
    CodecTopology,
    add_alpha,
    add_conv,
    dense_upsampler,
    write_metadata,
)
from pymagpie.convert.writer import GGUFOutput

# Mean square of half_snake(x) for unit normal x with alpha near 1: 1.3 on the snake half, 0.5 on the leaky half.
_ACTIVATION_POWER = 0.9
# Share of power that one residual block adds to its input.
_RESIDUAL_POWER = 0.1
_AUDIO_RMS = 0.14
_BIAS_STD = 0.05


def write_nanocodec(
    path: str | os.PathLike[str],
    *,
    base_channels: int = 96,
    seed: int = 0,
    outtype: str = "f16",
    sample_rate: int = 22050,
    up_sample_rates: Sequence[int] = (8, 8, 4, 2, 2),
    resblock_kernel_sizes: Sequence[int] = (3, 7, 11),
    resblock_dilation_sizes: Sequence[int] = (1, 3, 5),
    in_kernel_size: int = 7,
    out_kernel_size: int = 3,
    num_codebooks: int = 8,
    num_levels: Sequence[int] = (8, 7, 6, 6),
    output_activation: str = "clamp",
    dense: bool = False,
) -> Path:
    """Write a random NanoCodec decoder to `path` and return the path.

    The defaults have the topology of the public 22 kHz codec at a ninth of its width; ``base_channels=864`` is full
    size. The same arguments give the same bytes. Audio of random codes has an RMS of roughly 0.05 to 0.3.

    Args:
        base_channels: channels before the first stage; each stage halves them.
        outtype: ``f16`` or ``f32``.
        dense: upsamplers without groups, so that every input channel feeds every output channel.

    Raises:
        ValueError: an unknown `outtype`.
        ModelError: a topology that the converter would refuse as well.
        OSError: `path` cannot be written.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"outtype {outtype!r} is not available for a NanoCodec, allowed: {', '.join(OUTTYPES)}")
    topology = CodecTopology(
        sample_rate=sample_rate,
        base_channels=base_channels,
        up_sample_rates=tuple(up_sample_rates),
        resblock_kernel_sizes=tuple(resblock_kernel_sizes),
        resblock_dilation_sizes=tuple(resblock_dilation_sizes),
        in_kernel_size=in_kernel_size,
        out_kernel_size=out_kernel_size,
        num_codebooks=num_codebooks,
        num_levels=tuple(num_levels),
        grouped=not dense,
        output_activation=output_activation,
        config={"synthetic": True, "seed": seed},
    )
    with GGUFOutput(path, ARCHITECTURE) as out:
        write_metadata(
            out, topology, "Synthetic NanoCodec decoder", f"random weights, seed {seed}; not a trained model"
        )
        _Writer(out, topology, np.random.default_rng(seed), outtype).write()
    return Path(path)


class _Writer:
    """Draws the tensors one after the other, in file order."""

    def __init__(self, out: GGUFOutput, topology: CodecTopology, rng: np.random.Generator, outtype: str) -> None:
        self._out, self._topology, self._rng, self._outtype = out, topology, rng, outtype

    def write(self) -> None:
        t = self._topology
        codebook = t.fsq_codebook()
        code_power = float(np.mean(np.square(codebook)))
        self._conv("dec.pre", (t.base_channels, t.latent_dim, t.in_kernel_size), code_power)
        for stage, (inputs, outputs, kernel) in enumerate(t.up_shapes()):
            self._alpha(f"dec.act.{stage}", inputs)
            self._upsampler(f"dec.up.{stage}", inputs, outputs, kernel)
        for stage, j, m, channels, kernel in t.blocks():
            block, shape = f"dec.res.{stage}.{j}.{m}", (channels, channels, kernel)
            self._alpha(f"{block}.ia", channels)
            self._conv(f"{block}.ic", shape, _ACTIVATION_POWER)
            self._alpha(f"{block}.sa", channels)
            self._conv(f"{block}.sc", shape, _ACTIVATION_POWER, _RESIDUAL_POWER)
        channels = t.channels[-1]
        self._alpha("dec.post_act", channels)
        # The blocks of a chain compound, so the last stage is a little louder than its upsampler.
        power = _ACTIVATION_POWER * (1 + _RESIDUAL_POWER) ** len(t.resblock_dilation_sizes)
        self._conv("dec.post", (1, channels, t.out_kernel_size), power, _AUDIO_RMS**2)
        self._out.add("q.fsq.codebook", codebook)

    def _normal(self, shape: tuple[int, ...], std: float) -> np.ndarray:
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(std)

    def _conv(self, name: str, shape: tuple[int, int, int], input_power: float, output_power: float = 1.0) -> None:
        """A Conv1d (out, in, k). Its rows get the same norm, so that few taps do not leave the power to chance."""
        kernel = self._normal(shape, 1.0)
        norm = np.sqrt(np.square(kernel).sum(axis=(1, 2), keepdims=True))
        kernel *= np.float32(np.sqrt(output_power / input_power)) / norm
        bias = self._normal((shape[0],), _BIAS_STD * np.sqrt(output_power))
        add_conv(self._out, name, kernel, bias, self._outtype)

    def _upsampler(self, name: str, inputs: int, outputs: int, kernel: int) -> None:
        """A ConvTranspose1d (in, out, k) whose stride is k/2: two taps of each input channel meet in every sample."""
        # The weights behind one output sample get a norm in common, as in _conv.
        if self._topology.grouped:
            weight = self._normal((outputs, inputs // outputs, 2, kernel // 2), 1.0)
            weight /= np.sqrt(_ACTIVATION_POWER * np.square(weight).sum(axis=(1, 2), keepdims=True))
            weight = dense_upsampler(weight.reshape(inputs, 1, kernel), groups=outputs)
        else:
            weight = self._normal((inputs, outputs, 2, kernel // 2), 1.0)
            weight /= np.sqrt(_ACTIVATION_POWER * np.square(weight).sum(axis=(0, 2), keepdims=True))
            weight = weight.reshape(inputs, outputs, kernel)
        add_conv(self._out, name, weight, self._normal((outputs,), _BIAS_STD), self._outtype)

    def _alpha(self, name: str, channels: int) -> None:
        """Snake parameters near 1, a few of them negative, as trained ones are."""
        shape = (1, channels // 2, 1)
        alpha = np.exp(self._normal(shape, 0.3))
        add_alpha(self._out, name, np.where(self._rng.random(shape) < 0.05, -alpha, alpha).astype(np.float32))
