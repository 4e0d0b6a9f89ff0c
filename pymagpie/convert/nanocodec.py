"""NanoCodec checkpoint -> GGUF: configuration and state dict in, the published layout out.

The audio encoder, the discriminators and the loss buffers are not needed to decode and are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pymagpie.convert.checkpoint import require_shapes, to_numpy
from pymagpie.convert.codec_layout import (
    ARCHITECTURE,
    DECODER_TARGET,
    HALF_SNAKE,
    OUTPUT_ACTIVATIONS,
    OUTTYPES,
    QUANTIZER_TARGET,
    CodecTopology,
    add_alpha,
    add_conv,
    dense_upsampler,
    write_metadata,
)
from pymagpie.convert.settings import boolean, integer, integers, require, section
from pymagpie.convert.writer import GGUFOutput
from pymagpie.errors import ModelError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

# The two spellings of torch's weight norm (gain, direction); parametrizations since torch 2.0.
_WEIGHT_NORMS = (
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ("weight_g", "weight_v"),
)


def is_nanocodec(config: dict[str, Any]) -> bool:
    """Whether `config` describes a NeMo audio codec."""
    return str(config.get("target", "")).endswith("AudioCodecModel") or "vector_quantizer" in config


def read_topology(config: dict[str, Any], state: dict[str, torch.Tensor]) -> CodecTopology:
    """Check that `config` is a NanoCodec decoder and read its topology.

    Raises ModelError naming the first setting that is not supported, and what is.
    """
    decoder, quantizer = section(config, "audio_decoder"), section(config, "vector_quantizer")
    require(decoder, "audio_decoder.", "_target_", (DECODER_TARGET,))
    require(decoder, "audio_decoder.", "activation", (HALF_SNAKE,), "lrelu")
    require(decoder, "audio_decoder.", "pad_mode", ("zeros",), "zeros")
    require(quantizer, "vector_quantizer.", "_target_", (QUANTIZER_TARGET,))
    topology = CodecTopology(
        sample_rate=integer(config, "sample_rate"),
        base_channels=integer(decoder, "base_channels"),
        up_sample_rates=integers(decoder, "up_sample_rates"),
        resblock_kernel_sizes=integers(decoder, "resblock_kernel_sizes", (3, 7, 11)),
        resblock_dilation_sizes=integers(decoder, "resblock_dilation_sizes", (1, 3, 5)),
        in_kernel_size=integer(decoder, "in_kernel_size", 7),
        out_kernel_size=integer(decoder, "out_kernel_size", 3),
        num_codebooks=integer(quantizer, "num_groups"),
        num_levels=integers(quantizer, "num_levels_per_group"),
        grouped=boolean(decoder, "n_groups_equal_to_out_channels", True),
        output_activation=require(decoder, "audio_decoder.", "output_activation", OUTPUT_ACTIVATIONS, "tanh"),
        nemo_version=str(config.get("nemo_version", "")),
        config=config,
    )
    samples = integer(config, "samples_per_frame", topology.samples_per_frame)
    if samples != topology.samples_per_frame:
        raise ModelError(
            f"samples_per_frame is {samples}, the upsampling rates multiply to {topology.samples_per_frame}"
        )
    input_dim = integer(decoder, "input_dim", topology.latent_dim)
    if input_dim != topology.latent_dim:
        raise ModelError(f"audio_decoder.input_dim is {input_dim}, the quantizer gives {topology.latent_dim}")
    _check_quantizer(topology, state)
    return topology


def convert_nanocodec(config: dict[str, Any], state: dict[str, torch.Tensor], output: Path, outtype: str) -> int:
    """Write the decoder of a NanoCodec checkpoint to `output` (``f16`` or ``f32``); returns the number of tensors.

    Raises:
        ValueError: another `outtype`.
        ModelError: not a NanoCodec, or a tensor is missing or has another shape than the configuration says.
    """
    if outtype not in OUTTYPES:
        raise ValueError(f"outtype {outtype!r} is not available for a NanoCodec, allowed: {', '.join(OUTTYPES)}")
    topology = read_topology(config, state)
    weights = _DecoderWeights(state)
    require_shapes(weights.shapes, _expected_shapes(topology), "NanoCodec")
    with GGUFOutput(output, ARCHITECTURE) as out:
        write_metadata(
            out,
            topology,
            "NVIDIA NeMo NanoCodec decoder",
            "NanoCodec decoder converted from a NeMo checkpoint by pymagpie",
        )
        _add_tensors(out, topology, weights, outtype)
    log.info("skipped %d tensors that decoding does not need", len(state) - weights.used)
    return out.tensor_count


class _DecoderWeights:
    """The ``audio_decoder.`` part of a state dict, with weight norm folded in when a kernel is read."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._state = {
            name.removeprefix("audio_decoder."): tensor
            for name, tensor in state.items()
            if name.startswith("audio_decoder.")
        }
        self.used = len(self._state)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._state.items()}
        self._norms: dict[str, tuple[str, str]] = {}
        for gain_name, direction_name in _WEIGHT_NORMS:
            for name in list(self.shapes):
                stem = name.removesuffix(direction_name)
                if stem == name or stem + gain_name not in self.shapes:
                    continue
                kernel, gain = self.shapes[name], self.shapes[stem + gain_name]
                if gain != kernel[:1] + (1,) * (len(kernel) - 1):
                    raise ModelError(
                        f"tensor 'audio_decoder.{stem}{gain_name}' has shape {gain}, which does not fit "
                        f"{kernel} of its direction"
                    )
                self._norms[stem + "weight"] = (stem + gain_name, name)
                self.shapes[stem + "weight"] = kernel

    def read(self, name: str) -> np.ndarray:
        """The tensor `name` (without ``audio_decoder.``) as float32, torch order."""
        if name in self._norms:
            gain, direction = self._norms[name]
            return fold_weight_norm(self.read(gain), self.read(direction))
        array = to_numpy(name, self._state[name])
        if array.dtype != np.float32:
            raise ModelError(f"tensor 'audio_decoder.{name}' holds integers, a floating point type is needed")
        return array


def fold_weight_norm(gain: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """W = g * v / max(norm(v), 1e-12) in float32, the norm taken over every dimension except the first.

    The first dimension is the output channel of a Conv1d, the *input* channel of a ConvTranspose1d (torch's dim=0).
    """
    norm = np.sqrt(np.sum(np.square(direction), axis=tuple(range(1, direction.ndim)), keepdims=True))
    return (gain * direction / np.maximum(norm, np.float32(1e-12))).astype(np.float32)


def _conv_names(topology: CodecTopology) -> Iterator[tuple[str, str, tuple[int, int, int], int]]:
    """(name in the file, name in the checkpoint, kernel shape in torch order, output channels), in file order."""
    t = topology
    yield "dec.pre", "pre_conv.conv", (t.base_channels, t.latent_dim, t.in_kernel_size), t.base_channels
    for stage, (inputs, outputs, kernel) in enumerate(t.up_shapes()):
        yield (
            f"dec.up.{stage}",
            f"up_sample_conv_layers.{stage}.conv",
            (inputs, 1 if t.grouped else outputs, kernel),
            outputs,
        )
    for stage, j, m, channels, kernel in t.blocks():
        for short, long in (("ic", "input_conv"), ("sc", "skip_conv")):
            yield (
                f"dec.res.{stage}.{j}.{m}.{short}",
                f"{_block(stage, j, m)}.{long}.conv",
                (channels, channels, kernel),
                channels,
            )
    yield "dec.post", "post_conv.conv", (1, t.channels[-1], t.out_kernel_size), 1


def _alpha_names(topology: CodecTopology) -> Iterator[tuple[str, str, int]]:
    """(name in the file, name in the checkpoint, channels of the activation), in file order."""
    suffix = "activation.snake_act.alpha"
    for stage, channels in enumerate(topology.channels[:-1]):
        yield f"dec.act.{stage}", f"activations.{stage}.{suffix}", channels
    for stage, j, m, channels, _ in topology.blocks():
        for short, long in (("ia", "input_activation"), ("sa", "skip_activation")):
            yield f"dec.res.{stage}.{j}.{m}.{short}", f"{_block(stage, j, m)}.{long}.{suffix}", channels
    yield "dec.post_act", f"post_activation.{suffix}", topology.channels[-1]


def _block(stage: int, j: int, m: int) -> str:
    return f"res_layers.{stage}.res_blocks.{j}.res_blocks.{m}"


def _expected_shapes(topology: CodecTopology) -> Iterator[tuple[str, tuple[int, ...]]]:
    for _, source, shape, outputs in _conv_names(topology):
        yield f"{source}.weight", shape
        yield f"{source}.bias", (outputs,)
    for _, source, channels in _alpha_names(topology):
        yield source, (1, channels // 2, 1)


def _add_tensors(out: GGUFOutput, topology: CodecTopology, weights: _DecoderWeights, outtype: str) -> None:
    for name, source, _, outputs in _conv_names(topology):
        kernel = weights.read(f"{source}.weight")
        if name.startswith("dec.up.") and topology.grouped:
            kernel = dense_upsampler(kernel, groups=outputs)
        add_conv(out, name, kernel, weights.read(f"{source}.bias"), outtype)
    for name, source, _ in _alpha_names(topology):
        add_alpha(out, name, weights.read(source))
    out.add("q.fsq.codebook", topology.fsq_codebook())


def _check_quantizer(topology: CodecTopology, state: dict[str, torch.Tensor]) -> None:
    """The quantizer is fully described by the configuration; buffers that say otherwise mean another one."""
    expected = {"num_levels": topology.num_levels, "dim_base_index": topology.dim_base_index}
    for group in range(topology.num_codebooks):
        for buffer, values in expected.items():
            name = f"vector_quantizer.fsqs.{group}.{buffer}"
            if name in state and to_numpy(name, state[name]).ravel().tolist() != list(values):
                raise ModelError(
                    f"tensor {name!r} holds {state[name].ravel().tolist()[:8]}, the configuration asks for "
                    f"{list(values)}"
                )
