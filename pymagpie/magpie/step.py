"""One decoder step after another on a device: feeding the graphs of :mod:`.stages`, and reading their results.

A step whose codes are chosen in the graph makes two host-to-device copies and one back. A plain one, whose codes are
chosen on the host, makes as many, and again as many for each slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ..errors import ModelError, NonFiniteError
from ..ggml import Backend
from .config import MagpieConfig
from .encoder import NEG_INF, CrossCache, causal_mask
from .io import StepIO
from .layers import StageGraph
from .local_transformer import ambiguous
from .sampling import choose
from .stages import Stage, Stages
from .weights import Weights

SlotTap = Callable[[int, np.ndarray], None]
"""Called with the slot and its unmasked logits float32 (vocab_size,)."""


@dataclass(frozen=True)
class StepOutput:
    """What the host learns from a step."""

    alignment: np.ndarray
    """float32 (text_len,)"""
    codes: np.ndarray | None = None
    """The chosen codes, int32 (slots,); None after a plain step, whose codes are still to be chosen."""
    argmax: np.ndarray | None = None
    """The greedy codes of the parallel head, int32 (slots,)."""
    parallel: np.ndarray | None = None
    """The unmasked logits of the parallel head, float32 (slots, vocab_size), of a plain step."""


@dataclass(frozen=True)
class Choice:
    """How codes are chosen in a step: the mask of :class:`TokenMask`, and for sampling the noise (slots, vocab_size)
    and the number of tokens kept."""

    mask: np.ndarray
    noise: np.ndarray | None = None
    top_k: int = 1

    @property
    def kept(self) -> int | None:
        return None if self.noise is None else self.top_k


class StepEngine:
    """Runs the steps of one text window after another. One engine serves one number of guidance branches."""

    def __init__(self, weights: Weights, backend: Backend, *, branches: int, columns: int, exact_gelu: bool,
                 alignment_layers: tuple[int, ...], prior_layers: tuple[int, ...],
                 column_bucket: int) -> None:
        """*columns* is the capacity of the key-value cache: context rows and steps."""
        self.backend = backend
        self.config: MagpieConfig = weights.config
        self.stages = Stages(weights, backend, branches=branches, columns=columns, exact_gelu=exact_gelu,
                             alignment_layers=alignment_layers, prior_layers=prior_layers, column_bucket=column_bucket)
        self.state = self.stages.state
        self._blank_context_len: int | None = None  # that of the voice for which the blank branch was filled
        self._sampling_unsupported = False
        self.compute_seconds = 0.0
        """Time spent inside ggml."""

    # -- one window ------------------------------------------------------------------------------------------------

    def begin(self, cross: CrossCache, text_len: int, voice: int, guidance: float) -> None:
        """Start a text window whose cross-attention cache is *cross*."""
        self.cross, self.text_len, self.voice = cross, text_len, voice
        self.guidance = np.array([guidance, 1.0 - guidance][:self.state.branches], np.float32)
        self.context_len = self.config.context_lens[voice]
        if self.state.branches > 1 and self._blank_context_len != self.context_len:
            self._fill_blank()
        self._text_mask = np.full(cross.capacity, NEG_INF, np.float32)
        self._text_mask[:text_len] = 0.0

    def step(self, index: int, codes: np.ndarray, prior: np.ndarray | None, choice: Choice | None) -> StepOutput:
        """Step *index* of the window, from the *codes* int32 (slots,) of the step before (BOS at index 0).

        With a *choice* the codes are chosen in the graph; without one the step is plain. A step whose choice was
        ambiguous, or a backend that lacks an op for it, is answered as a plain step is.
        """
        if choice is not None and not self._sampling_unsupported:
            try:
                stage = self.stages.step(self.cross, index, choice.kept)
            except ModelError:
                if self.backend.device.is_cpu:
                    raise
                self._sampling_unsupported = True
            else:
                self._fill_choice(stage.io, choice)
                self._run(stage, index, codes, prior)
                if not ambiguous(stage.io, self.config.vocab_size, choice.kept):
                    return self._read(stage.io, plain=False)
        stage = self.stages.step(self.cross, index, "plain")
        self._run(stage, index, codes, prior)
        return self._read(stage.io, plain=True)

    def sequence_step(self, history: np.ndarray, prior: np.ndarray | None) -> StepOutput:
        """A plain step that recomputes the whole prefix: *history* int32 (steps + 1, slots) from BOS on. Every query
        sees the same *prior*."""
        stage, bucket = self.stages.sequence(self.cross, len(history))
        self._fill_sequence(stage.io, bucket, history)
        self._fill_text(stage.io, prior)
        stage.io.upload()
        self._compute(stage.graph)
        stage.io.result.download()
        return self._read(stage.io, plain=True)

    def choose_codes(self, choice: Choice, forced: np.ndarray | None = None, tap: SlotTap | None = None) -> np.ndarray:
        """The codes of the plain step just run, int32 (slots,), chosen on the host by the local transformer.

        *forced* codes take the place of chosen ones, slot by slot.
        """
        codes = np.zeros(self.config.slots, np.int32)
        for slot in range(self.config.slots):
            stage = self.stages.slot(slot)
            if slot:
                stage.io.ints["code"][:] = codes[slot - 1]
            stage.io.floats["guidance"][:] = self.guidance
            stage.io.upload()
            self._compute(stage.graph)
            stage.io.result.download()
            logits = self.check_finite(stage.io.result["logits"])
            if tap is not None:
                tap(slot, logits.copy())
            noise = None if choice.noise is None else choice.noise[slot]
            codes[slot] = choose(logits + choice.mask, noise, choice.top_k) if forced is None else forced[slot]
        return codes

    def choose_parallel(self, logits: np.ndarray, choice: Choice) -> np.ndarray:
        """The codes of the parallel head's *logits* float32 (slots, vocab_size), int32 (slots,)."""
        return np.array([choose(row + choice.mask, None if choice.noise is None else choice.noise[slot], choice.top_k)
                         for slot, row in enumerate(self.check_finite(logits))], np.int32)

    def check_finite(self, logits: np.ndarray) -> np.ndarray:
        """*logits* themselves. Raises :class:`NonFiniteError`, after clearing the caches, when one is NaN or
        infinite."""
        if not np.isfinite(logits).all():
            self.state.clear()
            self._blank_context_len = None
            raise NonFiniteError("the model produced NaN or infinite logits; the model file is damaged")
        return logits

    def bos(self) -> np.ndarray:
        """The codes before the first step, int32 (slots,)."""
        return np.full(self.config.slots, self.config.audio_bos, np.int32)

    def close(self) -> None:
        self.stages.close()

    def _compute(self, graph: StageGraph) -> None:
        started = perf_counter()
        graph.compute()
        self.compute_seconds += perf_counter() - started

    # -- filling and reading ---------------------------------------------------------------------------------------

    def _run(self, stage: Stage, index: int, codes: np.ndarray, prior: np.ndarray | None) -> None:
        io = stage.io
        if index == 0:
            self._fill_sequence(io, self.stages.prefill_frames, codes[None])
        else:
            position = self.config.context_frames + index
            for slot, code in enumerate(codes):
                io.ints[f"code{slot}"][0] = code
            io.ints["position"][0] = position
            np.add(self._value_row_base(), position, out=io.ints["value_rows"])
            mask = io.floats["self_mask"]
            mask[:] = NEG_INF
            mask[:position + 1] = 0.0
            mask[self.context_len:self.config.context_frames] = NEG_INF
        self._fill_text(io, prior)
        io.upload()
        self._compute(stage.graph)
        io.result.download()

    def _fill_blank(self) -> None:
        """Pre-fill the unconditional branch, which depends on no text and no voice."""
        stage = self.stages.blank()
        self._fill_sequence(stage.io, self.stages.prefill_frames, self.bos()[None])
        stage.io.upload()
        self._compute(stage.graph)
        self._blank_context_len = self.context_len

    def _value_row_base(self) -> np.ndarray:
        return np.arange(self.config.width, dtype=np.int32) * self.state.columns

    def _fill_sequence(self, io: StepIO, bucket: int, history: np.ndarray) -> None:
        rows = self.config.context_frames
        for slot in range(self.config.slots):
            segment = io.ints[f"code{slot}"]
            segment[:] = 0
            segment[:len(history)] = history[:, slot]
        io.ints["voice"][0] = self.voice
        io.ints["last"][:] = rows + len(history) - 1
        mask = causal_mask(rows + bucket)
        mask[self.context_len:, self.context_len:rows] = NEG_INF
        # Rows of an unused context position attend to nothing that counts; keep their softmax defined.
        mask[np.arange(rows + bucket), np.arange(rows + bucket)] = 0.0
        io.floats["self_mask"][:] = mask.reshape(-1)

    def _fill_text(self, io: StepIO, prior: np.ndarray | None) -> None:
        io.floats["text_mask"][:] = self._text_mask
        io.floats["prior"][:] = self._text_mask
        if prior is not None:
            # softmax(s + log p) is softmax(s) * p renormalised; NeMo adds the smallest normal float as well.
            io.floats["prior"][:self.text_len] = np.log(prior + np.finfo(np.float32).tiny)
        io.floats["guidance"][:] = self.guidance

    def _fill_choice(self, io: StepIO, choice: Choice) -> None:
        io.floats["token_mask"][:] = choice.mask
        if choice.noise is not None:
            io.floats["noise"].reshape(self.config.slots, -1)[:, :self.config.vocab_size] = choice.noise

    def _read(self, io: StepIO, plain: bool) -> StepOutput:
        result = io.result
        if plain:
            parallel = result["parallel"].reshape(self.config.slots, self.config.vocab_size)
            return StepOutput(result["alignment"][:self.text_len].copy(), parallel=parallel.copy())
        return StepOutput(result["alignment"][:self.text_len].copy(), codes=result["codes"].astype(np.int32),
                          argmax=result["argmax"].astype(np.int32))
