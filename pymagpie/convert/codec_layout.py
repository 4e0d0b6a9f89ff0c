"""What a NanoCodec GGUF holds: its topology, metadata keys, tensor names and layouts.

Shared by the converter and by the synthetic models; the published files have exactly these keys and names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymagpie.convert.writer import GGUFOutput, Value
from pymagpie.errors import ModelError

ARCHITECTURE = "nemo-nano-codec"
TARGET = "nemo.collections.tts.models.audio_codec.AudioCodecModel"
DECODER_TARGET = "nemo.collections.tts.modules.audio_codec_modules.CausalHiFiGANDecoder"
QUANTIZER_TARGET = "nemo.collections.tts.modules.audio_codec_modules.GroupFiniteScalarQuantizer"
OUTTYPES = ("f16", "f32")
HALF_SNAKE = "half_snake"
OUTPUT_ACTIVATIONS = ("clamp", "tanh")
_SOURCE_URL = "https://huggingface.co/nvidia/nemo-nano-codec-22khz-1.89kbps-21.5fps"
_MAX_LAYERS = 16
_MAX_SIZE = 1 << 20
_MAX_CHANNELS = 1 << 16
_MAX_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class CodecTopology:
    """Everything about a NanoCodec decoder that its metadata says; the defaults are the 22 kHz 1.89 kbps codec.

    ``grouped`` means one convolution group per output channel in every upsampler (two input channels each).
    """

    sample_rate: int = 22050
    base_channels: int = 864
    up_sample_rates: tuple[int, ...] = (8, 8, 4, 2, 2)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilation_sizes: tuple[int, ...] = (1, 3, 5)
    in_kernel_size: int = 7
    out_kernel_size: int = 3
    num_codebooks: int = 8
    num_levels: tuple[int, ...] = (8, 7, 6, 6)
    grouped: bool = True
    output_activation: str = "clamp"
    nemo_version: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            values = value if isinstance(value, tuple) else (value,) if type(value) is int else (1,)
            if not 1 <= len(values) <= _MAX_LAYERS:
                raise ModelError(f"NanoCodec: {name} has {len(values)} entries, 1 to {_MAX_LAYERS} are allowed")
            if any(not 1 <= size <= _MAX_SIZE for size in values):
                raise ModelError(f"NanoCodec: {name} is {value}, sizes must be positive and at most {_MAX_SIZE}")
        if min(self.num_levels) < 2:
            raise ModelError(f"NanoCodec: num_levels is {self.num_levels}, FSQ levels must be at least 2")
        if self.base_channels > _MAX_CHANNELS:
            raise ModelError(f"NanoCodec: {self.base_channels} base channels, at most {_MAX_CHANNELS} are allowed")
        largest = max([self.latent_dim * self.codebook_size, *(math.prod(shape) for shape in self.up_shapes())])
        if largest > _MAX_ELEMENTS:
            raise ModelError(f"NanoCodec: a tensor of {largest} elements, at most {_MAX_ELEMENTS} are allowed")
        for channels in self.channels[:-1]:
            # Half-snake needs a channel on its snake side, a grouped upsampler whole groups of two.
            if channels < 2 or (self.grouped and channels % 2):
                raise ModelError(
                    f"NanoCodec: {self.base_channels} base channels cannot be halved "
                    f"{len(self.up_sample_rates)} times: channels {self.channels}"
                )
        if self.channels[-1] < 2:
            raise ModelError(f"NanoCodec: the last stage needs at least 2 channels, has {self.channels[-1]}")

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels before the first stage and after each one."""
        return tuple(self.base_channels >> stage for stage in range(len(self.up_sample_rates) + 1))

    @property
    def codebook_size(self) -> int:
        return math.prod(self.num_levels)

    @property
    def latent_dim(self) -> int:
        return self.num_codebooks * len(self.num_levels)

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.up_sample_rates)

    @property
    def dim_base_index(self) -> tuple[int, ...]:
        bases = [1]
        for level in self.num_levels[:-1]:
            bases.append(bases[-1] * level)
        return tuple(bases)

    def up_shapes(self) -> list[tuple[int, int, int]]:
        """(Cin, Cout, kernel size) of every upsampler; the kernel spans two strides."""
        return [
            (inputs, outputs, 2 * rate)
            for inputs, outputs, rate in zip(self.channels, self.channels[1:], self.up_sample_rates, strict=False)
        ]

    def blocks(self) -> Iterator[tuple[int, int, int, int, int]]:
        """(stage, kernel index, dilation index, channels, kernel size) of every residual block, in file order."""
        for stage, channels in enumerate(self.channels[1:]):
            for j, kernel in enumerate(self.resblock_kernel_sizes):
                for m in range(len(self.resblock_dilation_sizes)):
                    yield stage, j, m, channels, kernel

    def fsq_codebook(self) -> np.ndarray:
        """The value vector of every code, float32 (num_codebooks, codebook_size, dims); equal for all codebooks.

        v = floor(code / base_j) mod L_j, value = (v - floor(L_j / 2)) / floor(L_j / 2).
        """
        codes = np.arange(self.codebook_size)[:, None]
        levels = np.array(self.num_levels)
        half = levels // 2
        digits = codes // np.array(self.dim_base_index) % levels
        values = (digits - half).astype(np.float32) / half.astype(np.float32)
        return np.tile(values, (self.num_codebooks, 1, 1))


def write_metadata(out: GGUFOutput, topology: CodecTopology, name: str, description: str) -> None:
    """Write the keys of a published codec file."""
    t, prefix = topology, "nano_codec."
    half = [level // 2 for level in t.num_levels]
    entries: dict[str, Value] = {
        "general.name": name,
        "general.description": description,
        "general.source.url": _SOURCE_URL,
        "general.tensor_data_layout": "ggml.conv1d/conv_transpose1d short names",
        prefix + "nemo_target": TARGET,
        prefix + "nemo_version": t.nemo_version,
        prefix + "config_json": json.dumps(t.config, sort_keys=True),
        prefix + "decoder.target": DECODER_TARGET,
        prefix + "decoder.activation": HALF_SNAKE,
        prefix + "decoder.output_activation": t.output_activation,
        prefix + "decoder.pad_mode": "zeros",
        prefix + "quantizer.target": QUANTIZER_TARGET,
        prefix + "sample_rate": t.sample_rate,
        prefix + "samples_per_frame": t.samples_per_frame,
        prefix + "frame_rate": t.sample_rate / t.samples_per_frame,
        prefix + "num_codebooks": t.num_codebooks,
        prefix + "codebook_size": t.codebook_size,
        prefix + "codebook_dim_per_group": len(t.num_levels),
        prefix + "latent_dim": t.latent_dim,
        prefix + "decoder.input_dim": t.latent_dim,
        prefix + "decoder.base_channels": t.base_channels,
        prefix + "decoder.in_kernel_size": t.in_kernel_size,
        prefix + "decoder.out_kernel_size": t.out_kernel_size,
        prefix + "decoder.n_groups_equal_to_out_channels": t.grouped,
        prefix + "decoder.up_sample_rates": t.up_sample_rates,
        prefix + "decoder.resblock_kernel_sizes": t.resblock_kernel_sizes,
        prefix + "decoder.resblock_dilation_sizes": t.resblock_dilation_sizes,
        prefix + "quantizer.num_levels_per_group": t.num_levels,
        prefix + "quantizer.dim_base_index": t.dim_base_index,
        prefix + "quantizer.scale": half,
        prefix + "quantizer.offset": half,
    }
    for key, value in entries.items():
        out.put(key, value)


def add_conv(out: GGUFOutput, name: str, weight: np.ndarray, bias: np.ndarray, outtype: str) -> None:
    """Write the kernel as ``name.w`` and the bias, reshaped to (1, channels, 1), as ``name.b``."""
    out.add(f"{name}.w", weight, outtype)
    out.add(f"{name}.b", bias.reshape(1, -1, 1))


def add_alpha(out: GGUFOutput, name: str, alpha: np.ndarray) -> None:
    """Write a snake parameter and its inverse, 1 / (alpha + 1e-9), both float32 (1, channels, 1)."""
    out.add(f"{name}.alpha", alpha)
    out.add(f"{name}.alpha_inv", (1.0 / (alpha + np.float32(1e-9))).astype(np.float32))


def dense_upsampler(weight: np.ndarray, groups: int) -> np.ndarray:
    """The dense kernel of a grouped ConvTranspose1d: (Cin, Cout / groups, k) -> (Cin, Cout, k).

    Input channel ci belongs to group ci // (Cin / groups) and feeds only that group's output channels.
    """
    inputs, per_group, kernel = weight.shape
    dense = np.zeros((groups, inputs // groups, groups, per_group, kernel), dtype=weight.dtype)
    diagonal = np.arange(groups)
    dense[diagonal, :, diagonal] = weight.reshape(groups, inputs // groups, per_group, kernel)
    return dense.reshape(inputs, groups * per_group, kernel)
