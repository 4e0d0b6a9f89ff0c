"""The decoding loop of one text window: step, focus, choice of codes, and the rules by which a piece ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from .config import MagpieConfig
from .eos import FinishedTracking, TokenMask, find_eos
from .options import GenerationOptions
from .prior import AttentionPrior
from .sampling import step_noise
from .step import Choice, StepEngine, StepOutput

MAX_SUPPRESSED = 64
"""Steps without output that a piece may take until its attention reaches the end of its text."""

LogitTap = Callable[[str, int, int, np.ndarray], None]
"""Called with the head (``parallel`` or ``local``), the step in its window, the slot, and the unmasked logits after
guidance, float32 (vocab_size,)."""

_NEAR_END = 3  # a focus on the last three tokens is near the end
_NEMO_NEAR_END_FIRST = 2  # in NeMo's first window: the last two
_NEMO_FORCED_END = 3  # steps near the end after which NeMo ends a piece that is not the last


@dataclass
class StepTrace:
    """What a step did, for tests and measurements."""

    step: int
    """Counted from 0 within the window."""
    seconds: float
    compute_seconds: float
    """Of these, inside ggml."""
    alignment: np.ndarray
    focus: int | None
    """Relative to the window; None without a prior."""
    prior: np.ndarray | None
    """The row built in this step, which the next one uses."""
    codes: np.ndarray
    """int32 (frames_per_step, codebooks), EOS and suppressed frames included."""
    argmax: np.ndarray
    """The same from the parallel head."""
    emitted: int
    """How many of these frames were given out."""


class NoiseSource:
    """The noise of one request's steps, in the order of its steps. That of the next step is made by a thread while the
    device computes this one."""

    def __init__(self, options: GenerationOptions, config: MagpieConfig) -> None:
        self.options, self.config = options, config
        self._thread = ThreadPoolExecutor(1, "pymagpie-noise")
        self._next: tuple[int, Future[np.ndarray]] | None = None

    def take(self, step: int) -> np.ndarray:
        """The noise (slots, vocab_size) of *step* of the request."""
        if self._next is not None and self._next[0] == step:
            noise = self._next[1].result()
        else:
            noise = self._make(step)
        self._next = (step + 1, self._thread.submit(self._make, step + 1))
        return noise

    def _make(self, step: int) -> np.ndarray:
        return step_noise(self.options.seed, step, self.config.slots, self.config.vocab_size, self.options.temperature)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


@dataclass
class WindowRun:
    """Generates the frames of one window with an engine that has begun it."""

    engine: StepEngine
    options: GenerationOptions
    text_len: int
    final: bool
    """Whether it is the text's last piece."""
    prior: AttentionPrior | None
    noise: NoiseSource | None
    first_step: int
    """Steps that the request took in earlier windows."""
    cancelled: Callable[[], bool]
    forced: np.ndarray | None = None
    tap: LogitTap | None = None
    trace: Callable[[StepTrace], None] | None = None
    steps: int = 0
    frames: int = 0
    suppressed_steps: int = 0
    ended_by: str = ""
    """``eos``, ``attention`` (it reached the end of the text), ``max_steps`` or ``cancelled``."""
    step_ms: list[float] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)
    _suppressing: bool = False
    _near_end: int = 0

    @property
    def truncated(self) -> bool:
        """Whether speech was cut off at the step limit."""
        return self.ended_by == "max_steps" and not self._suppressing and self.forced is None

    def __iter__(self) -> Iterator[np.ndarray]:
        """Frames int32 (codebooks,). At most one step is computed between two of them."""
        config, options = self.engine.config, self.options
        mask = TokenMask(config, options.min_frames)
        tracking = FinishedTracking(self.text_len) if options.finished_tracking and self.prior is not None else None
        limit = options.max_steps if self.forced is None else min(options.max_steps, len(self.forced))
        codes = self.engine.bos()
        history = [codes]
        for step in range(limit):
            if self.cancelled():
                self.ended_by = "cancelled"
                return
            started = perf_counter()
            before = self.engine.compute_seconds
            output, codes, argmax = self._step(step, history, mask, tracking)
            if self.forced is not None:
                codes = self.forced[step]
            history.append(codes)
            self.steps += 1
            frames = codes.reshape(config.frames_per_step, config.num_codebooks)
            greedy = argmax.reshape(frames.shape)
            emitted = self._end_rules(step, frames, greedy)
            compute = self.engine.compute_seconds - before
            elapsed = perf_counter() - started
            self.step_ms.append(elapsed * 1e3)
            self.compute_ms.append(compute * 1e3)
            self.frames += len(emitted)
            if self.trace is not None:
                prior = self.prior
                self.trace(StepTrace(step, elapsed, compute, output.alignment, prior.focus if prior else None,
                                     prior.row if prior else None, frames.copy(), greedy.copy(), len(emitted)))
            yield from (frame.copy() for frame in emitted)
            if self.ended_by:
                return
        self.ended_by = "max_steps"

    def _step(self, step: int, history: list[np.ndarray], mask: TokenMask,
              tracking: FinishedTracking | None) -> tuple[StepOutput, np.ndarray, np.ndarray]:
        """The output of one step, its codes and the greedy codes of the parallel head, int32 (slots,)."""
        engine, options = self.engine, self.options
        prior_row = self.prior.row if self.prior is not None else None
        noise = self.noise.take(self.first_step + step) if self.noise is not None else None
        choice = Choice(mask.row(step), noise, options.top_k)
        in_graph = (options.use_kv_cache and options.use_local_transformer and not options.sample_on_host
                    and tracking is None and self.forced is None and self.tap is None)
        if options.use_kv_cache:
            output = engine.step(step, history[-1], prior_row, choice if in_graph else None)
        else:
            output = engine.sequence_step(np.stack(history), prior_row)
        if self._scored(step):
            assert self.prior is not None
            focus = self.prior.update(output.alignment)
            if tracking is not None:
                tracking.update(focus)
                row = mask.row(step, forbid_eos=tracking.forbid_eos, force_eos=tracking.force_eos)
                choice = Choice(row, noise, options.top_k)
        if output.codes is not None and output.argmax is not None:
            return output, output.codes, output.argmax
        assert output.parallel is not None
        tap = self.tap
        if tap is not None:
            for slot, logits in enumerate(output.parallel):
                tap("parallel", step, slot, logits)
        argmax = engine.choose_parallel(output.parallel, Choice(choice.mask))
        if not options.use_local_transformer:
            return output, engine.choose_parallel(output.parallel, choice), argmax
        forced = self.forced[step] if self.forced is not None else None
        slot_tap = None if tap is None else lambda slot, logits: tap("local", step, slot, logits)
        return output, engine.choose_codes(choice, forced, slot_tap), argmax

    def _scored(self, step: int) -> bool:
        return self.prior is not None and step >= self.prior.settings.start_after

    def _end_rules(self, step: int, frames: np.ndarray, argmax: np.ndarray) -> np.ndarray:
        """The frames of a step that are given out; sets ``ended_by`` when it was the last."""
        eos = find_eos(self.options.eos_method, frames, argmax, self.engine.config.audio_eos)
        if self.forced is not None:
            return frames
        focus = self.prior.focus if self._scored(step) and self.prior is not None else None
        if self.options.rules == "nemo":
            return self._nemo_rules(frames, eos, focus)
        return self._streaming_rules(frames, eos, focus)

    def _nemo_rules(self, frames: np.ndarray, eos: int | None, focus: int | None) -> np.ndarray:
        if eos is not None:
            self.ended_by = "eos"
            return frames[:eos]
        if not self.final and focus is not None and self.prior is not None:
            tail = _NEAR_END if self.prior.later else _NEMO_NEAR_END_FIRST
            self._near_end += focus >= self.text_len - tail
            if self._near_end >= _NEMO_FORCED_END:
                self.ended_by = "attention"
        return frames

    def _streaming_rules(self, frames: np.ndarray, eos: int | None, focus: int | None) -> np.ndarray:
        """NVIDIA's C++ rules: before the end of a text that is not the last, EOS and a focus near the end do not stop
        the decoder; it runs on without output until its attention has reached the end."""
        reached = focus is not None and focus >= self.text_len - 1
        enough = self.frames >= self.options.min_frames
        emitted = frames[:eos] if not self._suppressing else frames[:0]
        if eos is not None and (self.final or reached or focus is None):
            self.ended_by = "eos"
        elif self.final:
            if reached and enough:
                self.ended_by = "attention"
        elif self._suppressing:
            self.suppressed_steps += 1
            if reached or self.suppressed_steps >= MAX_SUPPRESSED:
                self.ended_by = "attention"
        elif eos is not None:
            self._suppressing = True
        elif focus is not None and focus >= self.text_len - _NEAR_END and enough:
            if reached:
                self.ended_by = "attention"
            else:
                self._suppressing = True
        return emitted
