"""What a MagpieTTS GGUF holds: its topology, metadata keys, tensor names and types.

Shared by the converter and by the synthetic models; the published files have exactly these keys and names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymagpie.convert.writer import GGUFOutput
from pymagpie.errors import ModelError

ARCHITECTURE = "magpietts"
TARGET = "nemo.collections.tts.models.magpietts.MagpieTTSModel"
MODEL_TYPE = "decoder_ce"
SPECIAL_AUDIO_IDS = 8
V2602_SPEAKERS = ("John", "Sofia", "Aria", "Jason", "Leo")
LOCAL_TRANSFORMER_GROUPS = (
    "audio_embeddings.",
    "local_transformer.",
    "local_transformer_in_projection.",
    "local_transformer_out_projections.",
)
BAKED_CONTEXT = "baked_context_embedding.weight"
BAKED_LENGTHS = "baked_context_embedding_len"
_MAX_LAYERS = 256
_MAX_ELEMENTS = 1 << 31


@dataclass(frozen=True)
class InferenceDefaults:
    """Generation settings of a checkpoint; the defaults are NeMo's own for a checkpoint without them.

    A layer list of None means all decoder layers. The two thresholds are literals in NeMo.
    """

    max_decoder_steps: int = 500
    temperature: float = 0.7
    topk: int = 80
    cfg_scale: float = 2.5
    min_generated_frames: int = 4
    apply_attention_prior: bool = True
    attention_prior_epsilon: float = 0.1
    attention_prior_lookahead_window: int = 5
    start_prior_after_n_audio_steps: int = 0
    attention_prior_advance_threshold: int = 8
    attention_prior_decay_threshold: int = 10
    estimate_alignment_from_layers: tuple[int, ...] | None = None
    apply_prior_to_layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class MagpieTopology:
    """Sizes of a MagpieTTS model; the defaults are the multilingual 357M of generation v2602."""

    text_vocab_size: int = 2362
    audio_codebooks: int = 8
    audio_vocab_size: int = 2024
    frame_stacking_factor: int = 1
    embedding_dim: int = 768
    ffn_dim: int = 3072
    context_length: int = 2048
    encoder_context_length: int = 2048
    encoder_layers: int = 6
    encoder_heads: int = 12
    encoder_kernel_size: int = 3
    decoder_layers: int = 12
    decoder_heads: int = 12
    decoder_kernel_size: int = 1
    cross_heads: int = 1
    cross_head_dim: int = 128
    local_layers: int = 1
    local_heads: int = 1
    local_dim: int = 256
    local_ffn_dim: int = 1024
    baked_length: int = 110
    speaker_names: tuple[str, ...] = V2602_SPEAKERS
    baked_lengths: tuple[int, ...] = (110,) * 5
    inference: InferenceDefaults = field(default_factory=InferenceDefaults)
    codec_model: str = ""
    nemo_version: str = ""
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        wrong = [f"{name}={value}" for name, value in sizes.items() if not 1 <= value < 1 << 24]
        if wrong:
            raise ModelError(f"MagpieTTS: sizes must be positive and below 2^24: {', '.join(wrong)}")
        if max(self.encoder_layers, self.decoder_layers, self.local_layers, self.tables) > _MAX_LAYERS:
            raise ModelError(f"MagpieTTS: at most {_MAX_LAYERS} layers and audio embedding tables are allowed")
        if self.audio_vocab_size <= SPECIAL_AUDIO_IDS or self.text_vocab_size < 3:
            raise ModelError(
                f"MagpieTTS: vocabularies of {self.audio_vocab_size} audio and {self.text_vocab_size} text "
                f"ids have no room for codes beside the special ids"
            )
        for stack, dim, heads in (
            ("encoder", self.embedding_dim, self.encoder_heads),
            ("decoder", self.embedding_dim, self.decoder_heads),
            ("local transformer", self.local_dim, self.local_heads),
        ):
            if dim % heads:
                raise ModelError(f"MagpieTTS: the {stack}'s width {dim} is not divisible by its {heads} heads")
        for name in ("estimate_alignment_from_layers", "apply_prior_to_layers"):
            layers = getattr(self.inference, name) or ()
            if any(not 0 <= layer < self.decoder_layers for layer in layers):
                raise ModelError(f"MagpieTTS: {name} {list(layers)} names layers outside 0..{self.decoder_layers - 1}")
        if any(not 1 <= length <= self.baked_length for length in self.baked_lengths):
            raise ModelError(f"MagpieTTS: {BAKED_LENGTHS} {list(self.baked_lengths)} is outside 1..{self.baked_length}")
        if len(self.baked_lengths) != self.speakers:
            raise ModelError(f"MagpieTTS: {len(self.baked_lengths)} context lengths for {self.speakers} speakers")
        if self.baked_length >= self.context_length:
            raise ModelError(
                f"MagpieTTS: {self.baked_length} context rows leave no room in {self.context_length} positions"
            )
        for name, shape in self.shapes():
            if math.prod(shape) > _MAX_ELEMENTS:
                raise ModelError(f"MagpieTTS: tensor {name!r} of shape {shape} is larger than {_MAX_ELEMENTS} elements")

    @property
    def tables(self) -> int:
        """Audio embedding tables and local-transformer slots: codebooks times stacked frames."""
        return self.audio_codebooks * self.frame_stacking_factor

    @property
    def speakers(self) -> int:
        return len(self.speaker_names)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name, shape) of every weight in torch order and in the order of the file; FFN kernels still (out, in, k)."""
        dim, vocabulary = self.embedding_dim, self.audio_vocab_size
        yield "text_embedding.weight", (self.text_vocab_size, dim)
        for table in range(self.tables):
            yield f"audio_embeddings.{table}.weight", (vocabulary, dim)
        yield BAKED_CONTEXT, (self.speakers, self.baked_length * dim)
        yield from _stack(
            "encoder", self.encoder_layers, dim, self.ffn_dim, self.encoder_kernel_size, self.encoder_context_length
        )
        yield "encoder.norm_out.weight", (dim,)
        yield from _stack(
            "decoder",
            self.decoder_layers,
            dim,
            self.ffn_dim,
            self.decoder_kernel_size,
            self.context_length,
            cross=self.cross_heads * self.cross_head_dim,
        )
        yield "decoder.norm_out.weight", (dim,)
        yield "final_proj.weight", (self.tables * vocabulary, dim)
        yield "final_proj.bias", (self.tables * vocabulary,)
        # NeMo leaves the projection out when it would map a width to itself.
        if self.local_dim != dim:
            yield "local_transformer_in_projection.weight", (self.local_dim, dim)
            yield "local_transformer_in_projection.bias", (self.local_dim,)
        yield from _stack(
            "local_transformer", self.local_layers, self.local_dim, self.local_ffn_dim, 1, self.tables + 2
        )
        for slot in range(self.tables):
            yield f"local_transformer_out_projections.{slot}.weight", (vocabulary, self.local_dim)
            yield f"local_transformer_out_projections.{slot}.bias", (vocabulary,)


def _stack(
    name: str, layers: int, dim: int, ffn: int, kernel: int, positions: int, cross: int = 0
) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.position_embeddings.weight", (positions, dim)
    for index in range(layers):
        layer = f"{name}.layers.{index}"
        yield f"{layer}.norm_self.weight", (dim,)
        yield f"{layer}.self_attention.qkv_net.weight", (3 * dim, dim)
        yield f"{layer}.self_attention.o_net.weight", (dim, dim)
        if cross:
            yield f"{layer}.norm_xattn_query.weight", (dim,)
            yield f"{layer}.norm_xattn_memory.weight", (dim,)
            yield f"{layer}.cross_attention.q_net.weight", (cross, dim)
            yield f"{layer}.cross_attention.kv_net.weight", (2 * cross, dim)
            yield f"{layer}.cross_attention.o_net.weight", (dim, cross)
        yield f"{layer}.norm_pos_ff.weight", (dim,)
        yield f"{layer}.pos_ff.proj.conv.weight", (ffn, dim, kernel)
        yield f"{layer}.pos_ff.o_net.conv.weight", (dim, ffn, kernel)


def write_metadata(out: GGUFOutput, topology: MagpieTopology, name: str, description: str) -> None:
    """Write the keys of a published acoustic model file."""
    t, settings, first_special = topology, topology.inference, topology.audio_vocab_size - SPECIAL_AUDIO_IDS
    out.put("general.name", name)
    out.put("general.description", description)
    entries = {
        "nemo_target": TARGET,
        "nemo_version": t.nemo_version,
        "model_type": MODEL_TYPE,
        "codec_model": t.codec_model,
        "config_json": json.dumps(t.config, sort_keys=True),
        "speaker_names": t.speaker_names,
        "baked_context_lens": t.baked_lengths,
        "text_vocab_size": t.text_vocab_size,
        "audio_codebooks": t.audio_codebooks,
        "audio_codebook_size": first_special,
        "audio_vocab_size": t.audio_vocab_size,
        "audio_bos_id": first_special,
        "audio_eos_id": first_special + 1,
        "context_audio_bos_id": first_special + 2,
        "context_audio_eos_id": first_special + 3,
        "mask_token_id": first_special + 4,
        "frame_stacking_factor": t.frame_stacking_factor,
        "embedding_dim": t.embedding_dim,
        "ffn_dim": t.ffn_dim,
        "context_length": t.context_length,
        "encoder.layers": t.encoder_layers,
        "encoder.heads": t.encoder_heads,
        "encoder.kernel_size": t.encoder_kernel_size,
        "decoder.layers": t.decoder_layers,
        "decoder.heads": t.decoder_heads,
        "decoder.cross_heads": t.cross_heads,
        "decoder.cross_head_dim": t.cross_head_dim,
        "decoder.kernel_size": t.decoder_kernel_size,
        "local_transformer.layers": t.local_layers,
        "local_transformer.heads": t.local_heads,
        "local_transformer.hidden_dim": t.local_dim,
        "local_transformer.context_length": t.tables + 2,
        "baked_context_length": t.baked_length,
        "baked_context_dim": t.embedding_dim,
        "baked_speakers": t.speakers,
        **{f"inference.{key}": value for key, value in vars(settings).items() if value is not None},
    }
    for key, value in entries.items():
        out.put(f"magpietts.{key}", value)


def tensor_outtype(name: str, dimensions: int, outtype: str, local_outtype: str) -> str:
    """The type of a floating point tensor: float32 for vectors and biases, else by the group it belongs to."""
    if dimensions <= 1 or name.endswith(".bias"):
        return "f32"
    return local_outtype if name.startswith(LOCAL_TRANSFORMER_GROUPS) else outtype


def add_weight(out: GGUFOutput, name: str, weight: np.ndarray, outtype: str, local_outtype: str) -> None:
    """Write one weight (float32, torch order), split and typed as the published files have it.

    FFN kernels (out, in, K) become K matrices ``name.k0`` .. ``name.k{K-1}``.
    """
    kind = tensor_outtype(name, weight.ndim, outtype, local_outtype)
    if weight.ndim == 3:
        for tap in range(weight.shape[2]):
            out.add(f"{name}.k{tap}", weight[:, :, tap], kind)
    else:
        out.add(name, weight, kind)


def add_baked_sizes(out: GGUFOutput, topology: MagpieTopology) -> None:
    """Write the three integer entries that describe the baked context."""
    out.add("_baked_embedding_T", np.array([topology.baked_length], np.int32))
    out.add("_baked_embedding_D", np.array([topology.embedding_dim], np.int32))
    out.add(BAKED_LENGTHS, np.array(topology.baked_lengths, np.int32))
