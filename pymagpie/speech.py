"""Text to speech: the tokeniser, the acoustic model and the codec as one pipeline.

``Magpie.stream`` yields audio while it is being made; ``Magpie.synthesize`` collects it. The acoustic model runs in the
caller's flow, a frame at a time; the codec decodes blocks of frames on a worker thread with a backend of its own
(``pymagpie.pipeline`` says how the two share a CPU). The borders of the chunks are a function of the frame count alone:
``first_chunk_frames``, then ``chunk_frames`` each, then the exact rest. So the samples depend on the text, the settings
and the seed, never on timing.
"""

from __future__ import annotations

import json
import os
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pymagpie.audio import Audio, AudioChunk
from pymagpie.errors import MagpieError, ModelError
from pymagpie.metrics import CodecClock, SpeechClock
from pymagpie.pipeline import CodecWorker, Decode, InlineCodec, arriving, timed
from pymagpie.speech_stream import Call, Progress, SpeechStream

if TYPE_CHECKING:
    from pymagpie.ggml import Device
    from pymagpie.magpie import AcousticModel, Frame
    from pymagpie.nanocodec import NanoCodec
    from pymagpie.text import Tokenizer

FIRST_CHUNK_FRAMES = 4
CHUNK_FRAMES = 8
GPU_CHUNK_FRAMES = 32
"""A GPU decodes larger chunks for less, and still long before they are heard."""
MAX_CHUNK_FRAMES = 256
QUEUED_CHUNKS = 4
"""Chunks that wait for the codec, at most, where it has a device of its own."""


class Magpie:
    """A complete voice: tokeniser, acoustic model and codec, loaded.

    Calls from several threads are served one after the other. Close it, or use it as a context manager, to free its
    models.
    """

    def __init__(self, acoustic: AcousticModel, codec: NanoCodec, tokenizer: Tokenizer) -> None:
        """Takes over the three parts, and closes the two models with itself.

        Raises ``ModelError`` when acoustic model and codec do not belong together.
        """
        ours, theirs = (codec.num_codebooks, codec.codebook_size), (acoustic.num_codebooks, acoustic.codebook_size)
        if ours != theirs:
            raise ModelError(
                f"the acoustic model makes {theirs[0]} codebooks of {theirs[1]} codes, but the codec reads {ours[0]} "
                f"of {ours[1]}: they do not belong together"
            )
        self.acoustic, self.codec, self.tokenizer = acoustic, codec, tokenizer
        shared_cpu = acoustic.backend.device.is_cpu and codec.backend.device.is_cpu
        self._depth = 0 if shared_cpu else QUEUED_CHUNKS
        self.chunk_frames = _default_chunk_frames(codec.backend.device)
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._streams: weakref.WeakSet[SpeechStream] = weakref.WeakSet()
        self._closed = False

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] | None = None,
        codec: str | os.PathLike[str] | None = None,
        assets: str | os.PathLike[str] | None = None,
        device: str = "auto",
        codec_device: str | None = None,
        threads: int | None = None,
    ) -> Magpie:
        """Load a voice from local files, or the published ones where no path is given.

        Args:
            model: the acoustic model's GGUF; default PYMAGPIE_MODEL, else the published model.
            codec: the codec's GGUF; default PYMAGPIE_CODEC, else the published codec.
            assets: the folder of tokeniser dictionaries; default PYMAGPIE_ASSETS, else ``MODEL.assets`` beside the
                model, else the published ones.
            device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``vulkan``, ``metal`` or a name as ggml has it.
            codec_device: the codec's device, if another one.
            threads: CPU threads; default min(8, physical cores, CPU quota).

        Raises ``ModelNotFoundError`` and ``ModelError`` for the files, ``DeviceError`` for the device, ``BackendError``
        when memory is short, ``CapabilityError`` when a package is missing, ``ValueError`` for the arguments.
        """
        from pymagpie.hub import resolve_assets, resolve_codec, resolve_magpie
        from pymagpie.magpie import AcousticModel
        from pymagpie.nanocodec import NanoCodec
        from pymagpie.text import Tokenizer

        model_path, codec_path = resolve_magpie(model), resolve_codec(codec)
        assets_path = resolve_assets(assets, model_path)
        with ExitStack() as loaded:
            acoustic = loaded.enter_context(AcousticModel.load(model_path, device=device, threads=threads))
            tokenizer = Tokenizer.load(assets_path, _model_config(model_path), acoustic.text_vocab_size)
            decoder = loaded.enter_context(NanoCodec.load(codec_path, codec_device or device, threads))
            magpie = cls(acoustic, decoder, tokenizer)
            # Builds the graphs of the usual chunks and, where kernels must be loaded and graphs captured first, those
            # of the decoder; the first call then finds them.
            list(decoder.stream(iter(()), magpie.chunk_frames, FIRST_CHUNK_FRAMES))
            if not acoustic.backend.device.is_cpu:
                acoustic.warm_up()
                acoustic.warm_up(temperature=0.0)
            loaded.pop_all()
        return magpie

    def _codec_worker(self, decode: Decode) -> CodecWorker | InlineCodec:
        return CodecWorker(decode, self._depth) if self._depth else InlineCodec(decode)

    @property
    def sample_rate(self) -> int:
        """Samples per second of the audio."""
        return self.codec.sample_rate

    @property
    def voices(self) -> list[str]:
        """Names of the voices, by index."""
        return list(self.acoustic.voices)

    @property
    def languages(self) -> list[str]:
        """Codes of the languages that the model's vocabulary covers."""
        return list(self.tokenizer.languages)

    def synthesize(self, text: str, voice: str | int = 0, lang: str = "en", **options: Any) -> Audio:
        """Speak ``text`` and return the whole of it; arguments and errors as for ``stream``."""
        with self.stream(text, voice, lang, **options) as stream:
            chunks = [chunk.samples for chunk in stream]
            samples = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
            return Audio(samples, self.sample_rate, stream.truncated, stream.seed, stream.metrics)

    def stream(
        self,
        text: str,
        voice: str | int = 0,
        lang: str = "en",
        *,
        seed: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        cfg_scale: float | None = None,
        max_steps: int | None = None,
        normalize: bool = False,
        first_chunk_frames: int = FIRST_CHUNK_FRAMES,
        chunk_frames: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> SpeechStream:
        """Speak ``text``, yielding audio as it is made.

        Arguments are checked at once; work begins when the first chunk is asked for.

        Args:
            text: of any length; it is spoken sentence by sentence in bounded memory.
            voice: a name in any case, or an index.
            lang: a language, like ``en`` or ``en-US`` in any case.
            seed: repeats a call; when None it is drawn, and 0 for temperature 0.
            temperature, top_k, cfg_scale, max_steps: default to the model's own; temperature 0 is greedy.
            normalize: read out numbers, dates and the like first.
            first_chunk_frames, chunk_frames: frames in the first chunk (default 4) and in each further one (default
                ``self.chunk_frames``: 8, with the codec on a GPU 32), 1..256.
            progress: called in the caller's flow after every step.

        Raises ``ValueError`` for an argument, here. While it runs: ``NonFiniteError`` for a model that computes NaN,
        ``BackendError`` for a device that fails, ``MagpieError`` when this thread has left another stream of this model
        open or the model is closed.
        """
        from pymagpie.magpie.options import check_tokens

        sizes = (
            _chunk_size("first_chunk_frames", first_chunk_frames),
            self.chunk_frames if chunk_frames is None else _chunk_size("chunk_frames", chunk_frames),
        )
        if self._closed:
            raise ValueError("the model is closed")
        if not isinstance(text, str):
            raise ValueError(f"the text must be a string, not {type(text).__name__}")
        started = perf_counter()
        pieces = self.tokenizer.pieces(text, lang, normalize=normalize)
        tokenizer_s = perf_counter() - started
        if seed is None and temperature == 0:
            seed = 0  # greedy speech draws nothing but the lengths of its pauses
        for piece in pieces:
            check_tokens(self.acoustic.config, piece.ids)
        generation = self.acoustic.generate_pieces(
            [piece.ids for piece in pieces],
            voice=voice,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            cfg_scale=cfg_scale,
            max_steps=max_steps,
        )
        clock = SpeechClock(self.codec.frame_rate, CodecClock(self.sample_rate))
        call = Call([piece.text for piece in pieces], lang, generation, sizes, progress, tokenizer_s, clock)
        stream = SpeechStream(call, self._run(call))
        self._streams.add(stream)
        return stream

    def close(self) -> None:
        """End the streams that are open and free the models. Waits for a step under way in another thread."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        with self._lock:
            self.codec.close()
            self.acoustic.close()

    def __enter__(self) -> Magpie:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Call) -> Generator[AudioChunk, None, None]:
        self._acquire()
        try:
            if self._closed:
                raise ValueError("the model is closed")
            call.clock.begin(call.tokenizer_s)
            yield from self._speak(call)
        finally:
            call.clock.finish()
            self._holder = None
            self._lock.release()

    def _speak(self, call: Call) -> Generator[AudioChunk, None, None]:
        clock, result = call.clock, call.generation.result
        clock.encoder_ms, clock.step_ms = result.encoder_ms, result.step_ms
        first, steady = call.sizes
        size = first
        block: list[Frame] = []
        texts: deque[str] = deque()  # of the chunks under way
        samples_out = 0

        def decode(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
            return timed(self.codec.stream(arriving(blocks, clock.codec), steady, first), clock.codec)

        def chunk(samples: np.ndarray) -> AudioChunk:
            nonlocal samples_out
            if not samples_out and os.environ.get("PYMAGPIE_DEBUG_PERTURB"):
                samples[0] = random.SystemRandom().uniform(-0.5, 0.5)  # for tests of the check for repeatability
            start, samples_out = samples_out / self.sample_rate, samples_out + len(samples)
            clock.audio()
            return AudioChunk(samples, self.sample_rate, texts.popleft(), start)

        def take_block() -> np.ndarray:
            spoken = dict.fromkeys(frame.piece for frame in block)
            texts.append(" ".join(call.texts[piece] for piece in spoken))
            codes = np.stack([frame.codes for frame in block])
            block.clear()
            return codes

        with call.generation as frames, self._codec_worker(decode) as worker:
            for frame in frames:
                block.append(frame)
                clock.frames += 1
                if len(block) == size:
                    worker.submit(take_block())
                    size = steady
                if call.progress is not None:
                    audio_s = clock.frames / self.codec.frame_rate
                    call.progress(Progress(frame.piece, len(call.texts), clock.frames, audio_s))
                for samples in worker.finished():
                    yield chunk(samples)
                    self._holder = threading.get_ident()  # the caller may go on in another thread
            if result.end_reason == "cancelled":
                raise MagpieError("the model was closed while it spoke" if self._closed else "the stream was closed")
            for samples in worker.drain(take_block() if block else None):
                yield chunk(samples)
        if call.progress is not None:
            call.progress(Progress(len(call.texts), len(call.texts), clock.frames, clock.codec.audio_s))

    def _acquire(self) -> None:
        if self._lock.locked() and self._holder == threading.get_ident():
            raise MagpieError("this thread has left a stream of this model open: exhaust or close it first")
        self._lock.acquire()
        self._holder = threading.get_ident()


def _default_chunk_frames(device: Device) -> int:
    return CHUNK_FRAMES if device.is_cpu or device.in_software else GPU_CHUNK_FRAMES


def _chunk_size(name: str, frames: int) -> int:
    if isinstance(frames, bool) or not isinstance(frames, int) or not 1 <= frames <= MAX_CHUNK_FRAMES:
        raise ValueError(f"{name} must be a whole number from 1 to {MAX_CHUNK_FRAMES}, not {frames!r}")
    return frames


def _model_config(path: Path) -> dict[str, Any] | None:
    """The training configuration that a model file carries, with the order of its text tokenisers."""
    from pymagpie.ggml import GGUFFile

    with GGUFFile.open(path) as file:
        text = file.metadata.get("magpietts.config_json")
    try:
        config = json.loads(text) if isinstance(text, str) else None
    except ValueError as error:
        raise ModelError(f"{path}: magpietts.config_json is not JSON: {error}") from None
    return config if isinstance(config, dict) and "text_tokenizers" in config else None
