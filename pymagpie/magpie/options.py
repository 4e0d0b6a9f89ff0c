"""What a caller may set for one generation, checked against the model before anything is computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config import MagpieConfig
from .eos import check_eos_method
from .prior import PriorSettings
from .sampling import draw_seed

MAX_SEED = (1 << 63) - 1
MAX_TEMPERATURE = 100.0
MAX_CFG_SCALE = 100.0


@dataclass(frozen=True)
class GenerationOptions:
    """Everything that decides the codes besides the text."""

    voice: int
    seed: int
    temperature: float
    """0 is greedy."""
    top_k: int
    cfg_scale: float
    """1 is no guidance: one branch is computed."""
    max_steps: int
    """Decoder steps for one text window."""
    min_frames: int
    rules: str
    """``streaming`` or ``nemo``: the rules of prior, of long texts and of their pieces' ends."""
    prior: PriorSettings | None
    prior_layers: tuple[int, ...]
    """Decoder layers whose cross-attention gets the prior."""
    alignment_layers: tuple[int, ...]
    """Decoder layers whose cross-attention tells where in the text the decoder is."""
    eos_method: str
    finished_tracking: bool
    use_kv_cache: bool
    use_local_transformer: bool
    sample_on_host: bool

    @property
    def branches(self) -> int:
        return 1 if self.cfg_scale == 1.0 else 2

    @classmethod
    def resolve(cls, config: MagpieConfig, *, voice: str | int | None = None, seed: int | None = None,
                temperature: float | None = None, top_k: int | None = None, cfg_scale: float | None = None,
                max_steps: int | None = None, min_frames: int | None = None, rules: str = "streaming",
                use_prior: bool | None = None, prior_layers: Sequence[int] | None = None,
                alignment_layers: Sequence[int] | None = None, eos_method: str | None = None,
                finished_tracking: bool | None = None, use_kv_cache: bool = True, use_local_transformer: bool = True,
                sample_on_host: bool = False) -> GenerationOptions:
        """Fill what is None from the model's metadata. Raises ``ValueError`` naming the limits of a wrong value."""
        defaults = config.inference
        vocab = config.vocab_size
        return cls(
            voice=resolve_voice(config, voice),
            seed=draw_seed() if seed is None else _integer("seed", seed, 0, MAX_SEED),
            temperature=_number("temperature", defaults.temperature if temperature is None else temperature, 0.0,
                                MAX_TEMPERATURE),
            top_k=min(_integer("top_k", defaults.top_k if top_k is None else top_k, 1, None), vocab),
            cfg_scale=_number("cfg_scale", defaults.cfg_scale if cfg_scale is None else cfg_scale, -MAX_CFG_SCALE,
                              MAX_CFG_SCALE),
            max_steps=config.default_steps if max_steps is None else
            _integer("max_steps", max_steps, 1, config.max_steps),
            min_frames=defaults.min_generated_frames if min_frames is None else
            _integer("min_frames", min_frames, 0, None),
            rules=rules, prior=_prior_settings(config, rules, use_prior),
            prior_layers=_layers(config, "prior_layers", prior_layers, defaults.apply_prior_to_layers),
            alignment_layers=_layers(config, "alignment_layers", alignment_layers,
                                     defaults.estimate_alignment_from_layers),
            eos_method=check_eos_method(eos_method or defaults.eos_detection_method),
            finished_tracking=not defaults.ignore_finished_sentence_tracking if finished_tracking is None
            else finished_tracking,
            use_kv_cache=use_kv_cache, use_local_transformer=use_local_transformer, sample_on_host=sample_on_host)


def _prior_settings(config: MagpieConfig, rules: str, use_prior: bool | None) -> PriorSettings | None:
    defaults = config.inference
    nemo = rules == "nemo"
    settings = PriorSettings(
        epsilon=defaults.attention_prior_epsilon, lookahead=defaults.attention_prior_lookahead_window,
        # NeMo has these two as literals.
        advance_threshold=8 if nemo else defaults.attention_prior_advance_threshold,
        decay_threshold=10 if nemo else defaults.attention_prior_decay_threshold,
        start_after=defaults.start_prior_after_n_audio_steps, rules=rules)
    return settings if (defaults.apply_attention_prior if use_prior is None else use_prior) else None


def _layers(config: MagpieConfig, name: str, layers: Sequence[int] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if layers is None:
        return default
    chosen = tuple(sorted({_integer(name, layer, 0, config.decoder.layers - 1) for layer in layers}))
    if not chosen:
        raise ValueError(f"{name} must name at least one layer")
    return chosen


def resolve_voice(config: MagpieConfig, voice: str | int | None) -> int:
    """The index of a voice given by name (case does not matter) or index; None is the first.

    Raises ``ValueError`` listing the voices.
    """
    names = config.voices
    if voice is None:
        return 0
    if isinstance(voice, str):
        folded = [name.casefold() for name in names]
        if voice.casefold() in folded:
            return folded.index(voice.casefold())
        if voice.isascii() and voice.isdigit() and len(voice) < 6 and int(voice) < len(names):
            return int(voice)
    elif not isinstance(voice, bool) and isinstance(voice, (int, np.integer)) and 0 <= voice < len(names):
        return int(voice)
    raise ValueError(f"unknown voice {voice!r}; the model has {', '.join(names)} (0..{len(names) - 1})")


def check_tokens(config: MagpieConfig, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """*tokens* as int32 (n,). Raises ``ValueError`` when they are none, too many, or not ids of the text vocabulary."""
    try:
        values = [operator.index(token) for token in tokens]
    except TypeError:
        raise ValueError("text tokens must be a flat sequence of whole numbers") from None
    if not values:
        raise ValueError("no text tokens; at least one is needed")
    if len(values) > config.max_text:
        raise ValueError(f"{len(values)} text tokens; the model's positions allow {config.max_text}")
    for index, value in enumerate(values):
        if not 0 <= value < config.text_vocab_size:
            raise ValueError(f"text token {value} at index {index} is outside 0..{config.text_vocab_size - 1}")
    return np.array(values, np.int32)


def check_forced_codes(config: MagpieConfig, codes: Any) -> np.ndarray:
    """Codes to be used instead of chosen ones, as int32 (steps, slots) from (frames, codebooks)."""
    array = np.asarray(codes)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[1] != config.num_codebooks \
            or len(array) % config.frames_per_step or not len(array):
        raise ValueError(f"forced codes must be integers (frames, {config.num_codebooks}), with a multiple of "
                         f"{config.frames_per_step} frames, not {array.dtype} {array.shape}")
    if array.min() < 0 or array.max() >= config.vocab_size:
        raise ValueError(f"forced codes must lie in 0..{config.vocab_size - 1}")
    return array.astype(np.int32).reshape(-1, config.slots)


def _integer(name: str, value: Any, low: int, high: int | None) -> int:
    if not isinstance(value, bool) and isinstance(value, (int, np.integer)) and value >= low \
            and (high is None or value <= high):
        return int(value)
    limits = f"{low}..{high}" if high is not None else f"{low} or more"
    raise ValueError(f"{name} must be a whole number, {limits}; not {value!r}")


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) \
            and math.isfinite(value) and low <= value <= high:
        return float(value)
    raise ValueError(f"{name} must be a number, {low:g}..{high:g}; not {value!r}")
