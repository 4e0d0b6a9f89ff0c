"""What a MagpieTTS model is made of, read from its metadata and checked before any native call.

:class:`MagpieConfig` holds the topology; :class:`InferenceDefaults` what the model's makers set for generation. Names
of keys and fields follow the published GGUF files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ModelError
from ..metadata import Metadata

ARCHITECTURE = "magpietts"

SPECIAL_TOKENS = 8
"""Ids after the codes of a codebook: BOS, EOS, context BOS, context EOS, mask, three reserved."""

MAX_POSITIONS = 1 << 16
MAX_LAYERS = 64
MAX_WIDTH = 1 << 14
MAX_CODEBOOKS = 64

EOS_METHODS = {f"{stream}_{rule}": (stream, rule) for stream in ("argmax", "multinomial", "argmax_or_multinomial")
               for rule in ("any", "all", "zero_cb")}
"""Ways to detect the end of speech: which stream of codes is looked at, and which of a frame's codebooks."""


@dataclass(frozen=True)
class StackConfig:
    """One transformer stack: layers of self-attention and feed-forward of one width."""

    layers: int
    heads: int
    width: int
    ffn: int
    kernel_size: int
    positions: int

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class InferenceDefaults:
    """Generation settings of the model file; a field it lacks has NeMo's default."""

    max_decoder_steps: int
    """In frames; the step limit is this over the frames per step."""
    temperature: float
    top_k: int
    cfg_scale: float
    min_generated_frames: int
    apply_attention_prior: bool
    attention_prior_epsilon: float
    attention_prior_lookahead_window: int
    attention_prior_advance_threshold: int
    attention_prior_decay_threshold: int
    start_prior_after_n_audio_steps: int
    estimate_alignment_from_layers: tuple[int, ...]
    apply_prior_to_layers: tuple[int, ...]
    eos_detection_method: str
    ignore_finished_sentence_tracking: bool


@dataclass(frozen=True)
class MagpieConfig:
    """The topology of one model."""

    text_vocab_size: int
    num_codebooks: int
    codebook_size: int
    frames_per_step: int
    encoder: StackConfig
    decoder: StackConfig
    local: StackConfig
    cross_heads: int
    cross_head_dim: int
    context_frames: int
    """Rows of the baked context of each voice."""
    context_lens: tuple[int, ...]
    """How many of those rows are valid, by voice."""
    voices: tuple[str, ...]
    inference: InferenceDefaults

    @property
    def width(self) -> int:
        """Channels of encoder and decoder."""
        return self.decoder.width

    @property
    def slots(self) -> int:
        """Codes per decoder step: codebooks times frames."""
        return self.num_codebooks * self.frames_per_step

    @property
    def vocab_size(self) -> int:
        """Audio ids of one codebook, the special ones included."""
        return self.codebook_size + SPECIAL_TOKENS

    @property
    def audio_bos(self) -> int:
        return self.codebook_size

    @property
    def audio_eos(self) -> int:
        return self.codebook_size + 1

    @property
    def text_bos(self) -> int:
        return self.text_vocab_size - 2

    @property
    def text_eos(self) -> int:
        return self.text_vocab_size - 1

    @property
    def max_text(self) -> int:
        """The longest text window, in tokens."""
        return self.encoder.positions

    @property
    def max_steps(self) -> int:
        """The most steps that the decoder's positions allow after context and BOS."""
        return self.decoder.positions - self.context_frames

    @property
    def default_steps(self) -> int:
        """The model's own step limit for one text window."""
        return max(1, min(self.inference.max_decoder_steps // self.frames_per_step, self.max_steps))

    @classmethod
    def from_metadata(cls, values: Mapping[str, Any], source: str = "model") -> MagpieConfig:
        """Read and check *values*, the metadata of a GGUF file. Raises :class:`ModelError` naming key and limits."""
        architecture = values.get("general.architecture")
        if architecture != ARCHITECTURE:
            raise ModelError(f"{source}: general.architecture is {architecture!r}; it must be {ARCHITECTURE!r}")
        meta = Metadata(values, source, f"{ARCHITECTURE}.")
        model_type = meta.text("model_type", "decoder_ce")
        if model_type != "decoder_ce":
            raise ModelError(f"{source}: model_type is {model_type!r}; it must be 'decoder_ce'")
        codebooks = meta.integer("audio_codebooks", 1, MAX_CODEBOOKS)
        codebook_size = meta.integer("audio_codebook_size", 2, 1 << 20)
        _check_special_ids(meta, codebook_size)
        frames = meta.integer("frame_stacking_factor", 1, 8, default=1)
        width = meta.integer("embedding_dim", 1, MAX_WIDTH)
        ffn = meta.integer("ffn_dim", 1, 4 * MAX_WIDTH)
        positions = meta.integer("context_length", 1, MAX_POSITIONS)
        local_width = meta.integer("local_transformer.hidden_dim", 1, MAX_WIDTH)
        encoder = _stack(meta, "encoder", width, ffn, positions)
        decoder = _stack(meta, "decoder", width, ffn, positions)
        if decoder.kernel_size != 1:
            raise ModelError(f"{source}: decoder.kernel_size is {decoder.kernel_size}; it must be 1")
        local = _stack(meta, "local_transformer", local_width, 4 * local_width,
                       meta.integer("local_transformer.context_length", codebooks * frames, MAX_POSITIONS))
        if meta.integer("baked_context_dim", 1, MAX_WIDTH, default=width) != width:
            raise ModelError(f"{source}: baked_context_dim differs from embedding_dim {width}")
        context = meta.integer("baked_context_length", 1, positions - 1)
        speakers = meta.integer("baked_speakers", 1, 1 << 16)
        return cls(
            text_vocab_size=meta.integer("text_vocab_size", 3, 1 << 22), num_codebooks=codebooks,
            codebook_size=codebook_size, frames_per_step=frames, encoder=encoder, decoder=decoder, local=local,
            cross_heads=meta.integer("decoder.cross_heads", 1, 256),
            cross_head_dim=meta.integer("decoder.cross_head_dim", 1, MAX_WIDTH), context_frames=context,
            context_lens=_context_lens(meta, speakers, context), voices=_voices(meta, speakers),
            inference=_inference(meta, decoder.layers))

    def with_positions(self, encoder: int, decoder: int, local: int) -> MagpieConfig:
        """The same with the true sizes of the three position tables, which metadata state for the decoder alone."""
        return replace(self, encoder=replace(self.encoder, positions=encoder),
                       decoder=replace(self.decoder, positions=decoder), local=replace(self.local, positions=local))


def _check_special_ids(meta: Metadata, codebook_size: int) -> None:
    vocab = codebook_size + SPECIAL_TOKENS
    if meta.integer("audio_vocab_size", 1, 1 << 21, default=vocab) != vocab:
        raise ModelError(f"{meta.source}: audio_vocab_size must be audio_codebook_size + {SPECIAL_TOKENS} = {vocab}")
    keys = ("audio_bos_id", "audio_eos_id", "context_audio_bos_id", "context_audio_eos_id", "mask_token_id")
    for offset, key in enumerate(keys):
        expected = codebook_size + offset
        if meta.integer(key, 0, vocab, default=expected) != expected:
            raise ModelError(f"{meta.source}: {meta.prefix}{key} must be {expected} for {codebook_size} codes")


def _stack(meta: Metadata, name: str, width: int, ffn: int, positions: int) -> StackConfig:
    heads = meta.integer(f"{name}.heads", 1, 256)
    if width % heads:
        raise ModelError(f"{meta.source}: {name}.heads is {heads}; it must divide the width {width}")
    kernel = meta.integer(f"{name}.kernel_size", 1, 63, default=1)
    return StackConfig(meta.integer(f"{name}.layers", 1, MAX_LAYERS), heads, width, ffn, kernel, positions)


def _context_lens(meta: Metadata, speakers: int, context: int) -> tuple[int, ...]:
    lens = meta.integers("baked_context_lens", 1, context, max_length=speakers, min_length=speakers,
                         default=[context] * speakers)
    return lens


def _voices(meta: Metadata, speakers: int) -> tuple[str, ...]:
    names = meta.values.get(f"{meta.prefix}speaker_names", [f"speaker-{index}" for index in range(speakers)])
    if not isinstance(names, (list, tuple)) or len(names) != speakers \
            or any(not isinstance(name, str) or not name for name in names) or len(set(names)) != speakers:
        raise ModelError(f"{meta.source}: {meta.prefix}speaker_names must be {speakers} different names")
    return tuple(names)


def _inference(meta: Metadata, layers: int) -> InferenceDefaults:
    get = _inference_source(meta)
    everything = tuple(range(layers))

    def layer_list(key: str) -> tuple[int, ...]:
        if get.values.get(get.prefix + key) is None:
            return everything
        return tuple(sorted(set(get.integers(key, 0, layers - 1, max_length=layers))))

    method = get.text("eos_detection_method", "argmax_or_multinomial_any")
    if method not in EOS_METHODS:
        raise ModelError(f"{meta.source}: eos_detection_method is {method!r}; known are {', '.join(EOS_METHODS)}")
    return InferenceDefaults(
        max_decoder_steps=get.integer("max_decoder_steps", 1, MAX_POSITIONS, default=500),
        temperature=get.number("temperature", 0.0, 100.0, default=0.6),
        top_k=get.integer("topk", 1, 1 << 21, default=80),
        cfg_scale=get.number("cfg_scale", -100.0, 100.0, default=2.5),
        min_generated_frames=get.integer("min_generated_frames", 0, MAX_POSITIONS, default=4),
        apply_attention_prior=get.flag("apply_attention_prior", True),
        attention_prior_epsilon=get.number("attention_prior_epsilon", 0.0, 1.0, default=0.1),
        attention_prior_lookahead_window=get.integer("attention_prior_lookahead_window", 1, MAX_POSITIONS, default=5),
        attention_prior_advance_threshold=get.integer("attention_prior_advance_threshold", 0, MAX_POSITIONS, default=8),
        attention_prior_decay_threshold=get.integer("attention_prior_decay_threshold", 0, MAX_POSITIONS, default=10),
        start_prior_after_n_audio_steps=get.integer("start_prior_after_n_audio_steps", 0, MAX_POSITIONS, default=0),
        estimate_alignment_from_layers=layer_list("estimate_alignment_from_layers"),
        apply_prior_to_layers=layer_list("apply_prior_to_layers"), eos_detection_method=method,
        ignore_finished_sentence_tracking=get.flag("ignore_finished_sentence_tracking", True))


_NEMO_ONLY = ("eos_detection_method", "ignore_finished_sentence_tracking")
_OLD_NAMES = {"prior_epsilon": "attention_prior_epsilon", "lookahead_window_size": "attention_prior_lookahead_window"}


def _inference_source(meta: Metadata) -> Metadata:
    """The inference settings: the file's own keys, and what they lack from the model config that it carries.

    Old files have no prior settings of their own, and no file has the two settings that only NeMo knows.
    """
    prefix = f"{meta.prefix}inference."
    own = {key[len(prefix):]: value for key, value in meta.values.items() if key.startswith(prefix)}
    try:
        config = json.loads(meta.text("config_json", "{}"))
    except ValueError as error:
        raise ModelError(f"{meta.source}: {meta.prefix}config_json is not JSON: {error}") from error
    section = config.get("inference_parameters") if isinstance(config, dict) else None
    settings: dict[str, Any] = {}
    if isinstance(section, dict):
        if "apply_attention_prior" in own:  # a layer list that such a file omits means all layers
            section = {key: value for key, value in section.items() if key in _NEMO_ONLY}
        settings = {_OLD_NAMES.get(str(key), str(key)): value for key, value in section.items() if value is not None}
    settings.update(own)
    return Metadata({prefix + key: value for key, value in settings.items()}, meta.source, prefix)
