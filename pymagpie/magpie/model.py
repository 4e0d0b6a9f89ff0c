"""The acoustic model as callers see it: load once, then text tokens in and codec frames out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..errors import MagpieError
from ..ggml import Backend, Device, GGUFFile
from .config import MagpieConfig
from .encoder import TextEncoder
from .generate import SILENCE, SPEECH, Frame, Generation, GenerationResult, PieceResult, with_last
from .longform import TextHistory, silence_frames
from .options import GenerationOptions, check_forced_codes, check_tokens
from .prior import AttentionPrior
from .stages import default_column_bucket
from .step import StepEngine
from .weights import Weights
from .window import LogitTap, NoiseSource, StepTrace, WindowRun

logger = logging.getLogger("pymagpie.magpie")

Trace = Callable[[int, StepTrace], None]
"""Called with the piece and what a step of it did."""


class AcousticModel:
    """MagpieTTS on one device.

    A lock serialises callers: a generation holds the model from its first frame until it ends or is closed.
    """

    def __init__(self, weights: Weights, backend: Backend, path: Path) -> None:
        self.weights, self.backend, self.path = weights, backend, path
        self.config: MagpieConfig = weights.config
        self.column_bucket = default_column_bucket(backend.device)
        # Only ggml's CPU kernel of GELU rounds, and only an f32 model is fine enough to see it.
        self.exact_gelu = backend.device.is_cpu and weights.precise
        self.encoder = TextEncoder(weights, backend, self.exact_gelu)
        self._engines: dict[tuple[object, ...], StepEngine] = {}
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._closed = False

    @classmethod
    def load(cls, path: str | Path, device: str | Device = "auto", threads: int | None = None) -> AcousticModel:
        """Load a GGUF file. *threads* counts for the CPU only.

        Raises :class:`ModelNotFoundError`, :class:`ModelError` for a file that is no usable MagpieTTS model,
        :class:`DeviceError`, :class:`BackendError`, and ``ValueError`` for a wrong argument.
        """
        with GGUFFile.open(path) as file:
            config = MagpieConfig.from_metadata(file.metadata, str(path))
            backend = Backend(device, threads)
            try:
                weights = Weights(file, config, backend)
            except BaseException:
                backend.close()
                raise
        return cls(weights, backend, Path(path))

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the voices, in index order."""
        return self.config.voices

    @property
    def frames_per_step(self) -> int:
        """Codec frames that one decoder step makes."""
        return self.config.frames_per_step

    @property
    def num_codebooks(self) -> int:
        return self.config.num_codebooks

    @property
    def codebook_size(self) -> int:
        return self.config.codebook_size

    @property
    def text_vocab_size(self) -> int:
        return self.config.text_vocab_size

    @property
    def text_eos(self) -> int:
        """The id that ends a text."""
        return self.config.text_eos

    @property
    def device(self) -> str:
        """ggml's name of the device."""
        return self.backend.device.name

    @property
    def threads(self) -> int:
        return self.backend.threads

    @property
    def nbytes(self) -> int:
        """Bytes of weights and of the caches made so far, on the device."""
        caches = [engine.state.buffer for engine in self._engines.values()]
        caches += [cache.buffer for cache in self.encoder.caches.values()]
        return self.weights.nbytes + sum(buffer.nbytes for buffer in caches)

    def generate(self, tokens: Sequence[int] | np.ndarray, *, forced_codes: Any = None, tap: LogitTap | None = None,
                 trace: Trace | None = None, **options: Any) -> Generation[np.ndarray]:
        """Generate the frames of one text: an iterator of int32 (codebooks,), each given out as soon as it is made.

        *tokens* are used as they are, the text EOS included. *options* are those of
        :meth:`GenerationOptions.resolve`: ``voice``, ``seed``, ``temperature``, ``top_k``, ``cfg_scale``,
        ``max_steps`` and more; the model's metadata has the defaults. For tests and debugging *forced_codes*
        (frames, codebooks) replace the chosen ones, *tap* is given all logits, and *trace* what every step did.

        Raises ``ValueError`` for a wrong argument at once, before anything is computed; while iterating
        :class:`NonFiniteError` and :class:`BackendError`.
        """
        settings = GenerationOptions.resolve(self.config, **options)
        text = check_tokens(self.config, tokens)
        forced = None if forced_codes is None else check_forced_codes(self.config, forced_codes)
        if forced is not None and len(forced) > settings.max_steps:
            raise ValueError(f"forced codes for {len(forced)} steps; max_steps is {settings.max_steps}")

        def run(result: GenerationResult, cancelled: Callable[[], bool]) -> Generator[np.ndarray, None, None]:
            # Closed by name: not every Python closes an inner generator together with the outer one.
            with closing(self._run([text], settings, result, cancelled, forced, tap, trace)) as frames:
                for frame in frames:
                    yield frame.codes

        return Generation(run, self._new_result(settings))

    def generate_pieces(self, pieces: Iterable[Sequence[int] | np.ndarray], *, trace: Trace | None = None,
                        **options: Any) -> Generation[Frame]:
        """Generate a long text given as token lists, one a piece (a sentence), each with its own text EOS.

        An iterator of :class:`Frame`. *pieces* is read one piece ahead of what is being generated, so that the last
        is known. ``seed`` and step numbering span the whole text, ``max_steps`` is a limit for each piece. Under the
        ``streaming`` rules a pause follows every piece but the last. Raises as :meth:`generate` does; wrong tokens are
        found when their piece is read.
        """
        settings = GenerationOptions.resolve(self.config, **options)

        def run(result: GenerationResult, cancelled: Callable[[], bool]) -> Generator[Frame, None, None]:
            texts = (check_tokens(self.config, piece) for piece in pieces)
            return self._run(texts, settings, result, cancelled, None, None, trace)

        return Generation(run, self._new_result(settings))

    def warm_up(self, steps: int = 4, **options: Any) -> None:
        """Make what requests with these *options* need, and run the first *steps* of one: their graphs are built, and
        on CUDA captured, before the first real request."""
        text = [self.text_eos] * min(16, self.config.max_text)
        with self.generate(text, min_frames=1 << 20, seed=0, **options) as generation:
            for _ in islice(generation, steps * self.frames_per_step):
                pass

    def close(self) -> None:
        """Free the model. Waits for a generation of another thread to end."""
        if self._closed:
            return
        self._acquire()
        try:
            self._closed = True
            for engine in self._engines.values():
                engine.close()
            self.encoder.close()
            self.weights.close()
            self.backend.close()
        finally:
            self._release()

    def __enter__(self) -> AcousticModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- one request -----------------------------------------------------------------------------------------------

    def _new_result(self, options: GenerationOptions) -> GenerationResult:
        if self._closed:
            raise ValueError("the acoustic model is closed")
        return GenerationResult(options.seed, self.config.voices[options.voice])

    def _run(self, texts: Iterable[np.ndarray], options: GenerationOptions, result: GenerationResult,
             cancelled: Callable[[], bool], forced: np.ndarray | None, tap: LogitTap | None,
             trace: Trace | None) -> Generator[Frame, None, None]:
        self._acquire()
        noise = NoiseSource(options, self.config) if options.temperature > 0 else None
        try:
            if self._closed:
                raise ValueError("the acoustic model is closed")
            engine = self._engine(options)
            history = TextHistory(self.config.max_text, options.rules)
            piece = -1
            for piece, (text, final) in enumerate(with_last(texts)):
                if cancelled():
                    result.end_reason = "cancelled"
                    return
                run = self._begin(engine, history, text, options, final, result, cancelled)
                run.noise, run.forced, run.tap = noise, forced, tap
                if trace is not None:
                    run.trace = lambda step, piece=piece: trace(piece, step)
                try:
                    for codes in run:
                        self._holder = threading.get_ident()
                        result.frames += 1
                        yield Frame(codes, piece, SPEECH)
                finally:
                    self._finish(run, len(text), result)
                if run.ended_by == "cancelled":
                    return
                if not final and options.rules == "streaming":
                    for codes in silence_frames(options.seed, piece, self.num_codebooks, self.codebook_size):
                        result.silence_frames += 1
                        yield Frame(codes, piece, SILENCE)
            if piece < 0:
                raise ValueError("no text pieces; at least one is needed")
        finally:
            if noise is not None:
                noise.close()
            self._release()

    def _begin(self, engine: StepEngine, history: TextHistory, text: np.ndarray, options: GenerationOptions,
               final: bool, result: GenerationResult, cancelled: Callable[[], bool]) -> WindowRun:
        started = perf_counter()
        window = history.window(text)
        memory = history.splice(window, self.encoder.encode(window.tokens))
        cross = self.encoder.project(memory)
        result.encoder_ms.append((perf_counter() - started) * 1e3)
        engine.begin(cross, len(window.tokens), options.voice, options.cfg_scale)
        prior = None
        if options.prior is not None:
            prior = AttentionPrior(options.prior, len(window.tokens), own_len=window.own_len,
                                   left_offset=window.left_offset, focus=history.focus)
        return WindowRun(engine, options, len(window.tokens), final, prior, None, result.steps, cancelled)

    @staticmethod
    def _finish(run: WindowRun, tokens: int, result: GenerationResult) -> None:
        ended_by = run.ended_by or "cancelled"  # closed while waiting to be asked for the next frame
        result.pieces.append(PieceResult(tokens, run.text_len - tokens, run.steps, run.frames, run.suppressed_steps,
                                         ended_by, run.truncated))
        result.steps += run.steps
        result.step_ms += run.step_ms
        result.compute_ms += run.compute_ms
        result.truncated |= run.truncated
        if run.final or ended_by == "cancelled":
            result.end_reason = "eos" if ended_by == "attention" else ended_by
        if run.truncated:
            logger.warning("speech was cut off at the limit of %d decoder steps", run.options.max_steps)

    def _engine(self, options: GenerationOptions) -> StepEngine:
        """The engine for these options; its cache is made anew when a request needs more columns."""
        config = self.config
        needed = config.context_frames + options.max_steps
        key = (options.branches, options.alignment_layers, options.prior_layers)
        engine = self._engines.get(key)
        if engine is not None and engine.state.columns >= needed:
            return engine
        if engine is not None:
            del self._engines[key]
            engine.close()
        columns = min(-(-needed // self.column_bucket) * self.column_bucket, config.decoder.positions)
        engine = StepEngine(self.weights, self.backend, branches=options.branches, columns=columns,
                            exact_gelu=self.exact_gelu, column_bucket=self.column_bucket,
                            alignment_layers=options.alignment_layers, prior_layers=options.prior_layers)
        self._engines[key] = engine
        return engine

    def _acquire(self) -> None:
        # A thread that waited for its own unfinished generation would wait for ever.
        if self._lock.locked() and self._holder == threading.get_ident():
            raise MagpieError("this thread has a generation of this model under way; exhaust it or close it first")
        self._lock.acquire()
        self._holder = threading.get_ident()

    def _release(self) -> None:
        self._holder = None
        self._lock.release()
