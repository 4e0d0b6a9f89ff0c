"""A random MagpieTTS acoustic model that behaves like one: it walks along the text and stops.

Pure noise would stop at a random step and attend to nothing in particular. So a few channels of the residual streams
are kept free of noise. In most of them, the position tables of encoder and decoder write sines and cosines, which the
cross-attention compares: the decoder at step n attends to text position n / steps_per_token. One more channel carries a
stop flag, from the text's EOS token (through cross-attention) or from a position, to the EOS logits. Everything else is
noise of unit power, so that codes differ from step to step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from pymagpie.convert.magpie_layout import (
    ARCHITECTURE,
    BAKED_CONTEXT,
    SPECIAL_AUDIO_IDS,
    InferenceDefaults,
    MagpieTopology,
    add_baked_sizes,
    add_weight,
    write_metadata,
)
from pymagpie.convert.writer import OUTTYPES, GGUFOutput

_CODEC = "nvidia/nemo-nano-codec-22khz-1.89kbps-21.5fps"

SIZES = {
    "tiny": MagpieTopology(
        embedding_dim=64,
        ffn_dim=128,
        context_length=1024,
        encoder_context_length=1024,
        encoder_layers=2,
        encoder_heads=4,
        decoder_layers=3,
        decoder_heads=4,
        cross_head_dim=32,
        local_dim=32,
        local_ffn_dim=128,
        baked_length=11,
        baked_lengths=(11,) * 5,
        inference=InferenceDefaults(temperature=0.6),
        codec_model=_CODEC,
    ),
    "v2602": MagpieTopology(inference=InferenceDefaults(temperature=0.6), codec_model=_CODEC),
    "v2607": MagpieTopology(
        text_vocab_size=3359,
        frame_stacking_factor=2,
        local_layers=2,
        local_heads=12,
        local_dim=768,
        local_ffn_dim=3072,
        baked_length=217,
        baked_lengths=(217,) * 5,
        speaker_names=("Aria", "Jason", "John", "Leo", "Sofia"),
        inference=InferenceDefaults(
            temperature=0.6,
            attention_prior_lookahead_window=6,
            estimate_alignment_from_layers=(4, 5, 8, 9),
            apply_prior_to_layers=tuple(range(2, 11)),
        ),
        codec_model=_CODEC,
    ),
}

_FLAG = 0  # the channel of the stop flag
_PHASE_STD = 1.4
_SHARPNESS = 1.5  # nats of attention score per unit of phase agreement
_STOP_LOGIT = 40.0  # the EOS logit is minus this without the flag, and about plus this with it
_BRANCH_POWER = 0.5  # power that all layers of a stack together add to its stream of power 1


def write_magpie(
    path: str | os.PathLike[str],
    *,
    size: Literal["tiny", "v2602", "v2607"] = "tiny",
    seed: int = 0,
    outtype: str = "f16",
    local_transformer_outtype: str | None = None,
    eos: int | Literal["text", "never"] = "text",
    frames_per_token: float = 2.0,
    **changes: object,
) -> Path:
    """Write a random MagpieTTS model to `path` and return the path. The same arguments give the same bytes.

    Args:
        size: ``tiny`` (v2602 layout and vocabularies, narrow and shallow) or the full size of a generation.
        outtype: ``f16``, ``f32`` or ``q8_0``.
        local_transformer_outtype: another type for the audio embeddings and the local transformer.
        eos: when EOS wins, in the parallel head and in slot 0 of the local transformer: ``"text"`` when the attention
            reaches the text's EOS token, ``"never"``, or from a decoder step on (0 is the first). The streaming rules
            end a text when the attention reaches its end, whatever EOS says.
        frames_per_token: codec frames that a text token takes.
        changes: fields of :class:`~pymagpie.convert.magpie_layout.MagpieTopology` that differ from `size`.

    Raises:
        ValueError: an unknown `size`, `outtype`, `eos` or field.
        ModelError: a topology that cannot be run.
        OSError: `path` cannot be written.
    """
    if size not in SIZES:
        raise ValueError(f"size {size!r} is unknown, allowed: {', '.join(SIZES)}")
    local_outtype = local_transformer_outtype or outtype
    if outtype not in OUTTYPES or local_outtype not in OUTTYPES:
        raise ValueError(f"unknown outtype {outtype!r} or {local_outtype!r}, allowed: {', '.join(OUTTYPES)}")
    if eos not in ("text", "never") and (not isinstance(eos, int) or eos < 0):
        raise ValueError(f"eos must be 'text', 'never' or a step of at least 0, not {eos!r}")
    if not frames_per_token > 0:
        raise ValueError(f"frames_per_token must be positive, not {frames_per_token}")
    unknown = sorted(changes.keys() - vars(SIZES[size]).keys())
    if unknown:
        raise ValueError(f"unknown topology fields: {', '.join(unknown)}")
    topology = replace(SIZES[size], **{"config": {"synthetic": True, "seed": seed}, **changes})  # type: ignore[arg-type]
    weights = _Weights(topology, np.random.default_rng(seed), eos, frames_per_token)
    with GGUFOutput(path, ARCHITECTURE) as out:
        write_metadata(
            out, topology, f"Synthetic MagpieTTS, {size}", f"random weights, seed {seed}; not a trained model"
        )
        for name, shape in topology.shapes():
            add_weight(out, name, weights.draw(name, shape), outtype, local_outtype)
        add_baked_sizes(out, topology)
    return Path(path)


class _Weights:
    """Draws the weights one after the other. Shapes are torch order: (out, in) and (out, in, kernel)."""

    def __init__(
        self, topology: MagpieTopology, rng: np.random.Generator, eos: int | str, frames_per_token: float
    ) -> None:
        t = topology
        self._topology, self._rng, self._eos = t, rng, eos
        self._steps_per_token = frames_per_token / t.frame_stacking_factor
        # Phases take at most a quarter of the stream and what one attention head can compare.
        pairs = min(12, t.cross_head_dim // 2, (t.embedding_dim - 1) // 8)
        self._phases = slice(1, 1 + 2 * pairs)
        # Wavelengths from 2 tokens, to tell neighbours apart, to twice the longest text, to tell all apart.
        self._frequencies = np.pi * t.encoder_context_length ** -np.linspace(0, 1, pairs)
        self._stop = np.float32(np.sqrt(t.embedding_dim))
        # A flag of this size makes up half of its stream's power, so the last norm leaves 0.6 of it.
        self._stop_weight = 0.0 if eos == "never" else 2 * _STOP_LOGIT / (0.6 * self._stop)
        self._eos_id = t.audio_vocab_size - SPECIAL_AUDIO_IDS + 1

    def draw(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The float32 weight of that name and shape."""
        stack, _, rest = name.partition(".")
        if ".norm_" in name:
            return 1 + self._normal(shape, 0.05)
        makers: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {
            "text_embedding": self._text_embedding,
            "audio_embeddings": lambda shape: self._stream_rows(shape, 1.0),
            BAKED_CONTEXT.partition(".")[0]: self._baked_context,
            "local_transformer_in_projection": self._in_projection,
            "local_transformer_out_projections": lambda shape: self._head(shape, flagged=rest.startswith("0.")),
            "final_proj": lambda shape: self._head(shape, flagged=True),
        }
        if stack in makers:
            return makers[stack](shape)
        if rest.startswith("position_embeddings"):
            return self._positions(stack, shape)
        if "cross_attention" in rest:
            return self._cross_attention(rest, shape)
        if rest.endswith(("qkv_net.weight", "proj.conv.weight")):
            return self._normal(shape, 1 / np.sqrt(np.prod(shape[1:])))
        return self._branch(stack, rest, shape)

    def _normal(self, shape: tuple[int, ...], std: float) -> np.ndarray:
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(std)

    def _stream_rows(self, shape: tuple[int, ...], std: float) -> np.ndarray:
        """Rows that are added to the residual stream, which leave the reserved channels alone."""
        rows = self._normal(shape, std)
        rows[:, : self._phases.stop] = 0
        return rows

    def _text_embedding(self, shape: tuple[int, ...]) -> np.ndarray:
        rows = self._stream_rows(shape, 0.7)
        if self._eos == "text":
            rows[-1, _FLAG] = 0.5 * self._stop
        return rows

    def _baked_context(self, shape: tuple[int, ...]) -> np.ndarray:
        t = self._topology
        return self._stream_rows((shape[0] * t.baked_length, t.embedding_dim), 0.7).reshape(shape)

    def _positions(self, stack: str, shape: tuple[int, ...]) -> np.ndarray:
        if stack == "local_transformer":
            rows = self._normal(shape, 0.5)
            rows[:, _FLAG] = 0
            return rows
        rows = self._stream_rows(shape, 0.7)
        steps = np.arange(shape[0], dtype=np.float64)
        first = 0
        if stack == "decoder":
            first = self._topology.baked_length
            steps = (steps - first) / self._steps_per_token
            if isinstance(self._eos, int):
                rows[first + self._eos :, _FLAG] = self._stop
        angles = steps[first:, None] * self._frequencies
        rows[first:, self._phases] = _PHASE_STD * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        return rows

    def _cross_attention(self, rest: str, shape: tuple[int, ...]) -> np.ndarray:
        t, pairs = self._topology, self._phases.stop - self._phases.start
        width = t.cross_heads * t.cross_head_dim
        if rest.endswith("o_net.weight"):
            weight = self._branch("decoder", rest, shape)
            weight[:, 0] = 0
            if self._eos == "text":
                # The norm leaves 0.45 of the flag in the memory; the layers together make it `_stop` again.
                weight[_FLAG, 0] = 1 / (0.45 * t.decoder_layers)
            return weight
        weight = self._normal(shape, 1 / np.sqrt(t.embedding_dim))
        # Both streams have a power of about 1.5 when their phases are compared.
        gain = np.sqrt(_SHARPNESS * np.sqrt(t.cross_head_dim) / (_PHASE_STD**2 / 1.5))
        weight[:width] *= 0.1
        for head in range(t.cross_heads):
            first = head * t.cross_head_dim
            weight[first : first + pairs] = 0
            weight[first : first + pairs, self._phases] = gain * np.eye(pairs, dtype=np.float32)
        if rest.endswith("kv_net.weight"):
            weight[width] = 0
            weight[width, _FLAG] = 1
        return weight

    def _branch(self, stack: str, rest: str, shape: tuple[int, ...]) -> np.ndarray:
        """The last matrix of a branch: what it adds to the stream, apart from the reserved channels."""
        t = self._topology
        layers = {"encoder": t.encoder_layers, "decoder": t.decoder_layers}.get(stack, t.local_layers)
        power = _BRANCH_POWER / (layers * (3 if stack == "decoder" else 2))
        # Mean square of gelu(x) for unit normal x: 0.43.
        fan_in = np.prod(shape[1:]) * (0.43 if "pos_ff" in rest else 1.0)
        weight = self._normal(shape, np.sqrt(power / fan_in))
        weight[: 1 if stack == "local_transformer" else self._phases.stop] = 0
        return weight

    def _in_projection(self, shape: tuple[int, ...]) -> np.ndarray:
        weight = self._normal(shape, 0.1 if len(shape) == 1 else 1 / np.sqrt(shape[1]))
        weight[_FLAG] = 0
        if len(shape) == 2:
            weight[_FLAG, _FLAG] = 1
        return weight

    def _head(self, shape: tuple[int, ...], flagged: bool) -> np.ndarray:
        """Logits of one or more vocabularies; the EOS rows see the stop flag only."""
        ids = slice(self._eos_id, None, self._topology.audio_vocab_size)
        if len(shape) == 1:
            bias = self._normal(shape, 0.1)
            bias[ids] = -_STOP_LOGIT
            return bias
        weight = self._normal(shape, 1.5 / np.sqrt(shape[1]))
        weight[ids] = 0
        if flagged:
            weight[ids, _FLAG] = self._stop_weight
        return weight
