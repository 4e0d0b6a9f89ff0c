"""NanoCodec as a user has it: load a model, decode codes to audio, whole or as a stream."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from .. import native
from ..ggml import Backend, GGUFFile
from ..ggml.device import Device, find_device
from .config import CodecConfig
from .decoder import select_decoder
from .stream import StreamGraph, StreamState, check_frames, decode_stream, init_stream_graph

OFFLINE_FRAMES = 64
"""``decode()`` goes through the stream in chunks of this many frames, so that its memory is bounded."""


class _Stream:
    """A state and the graphs built for it, reused from one stream to the next."""

    def __init__(self, codec: NanoCodec) -> None:
        self.state = StreamState(codec)
        self._graphs: dict[int, StreamGraph] = {}

    def prepare(self, sizes: set[int]) -> None:
        """Reset the state and have just the graphs of these sizes."""
        self.state.reset()
        self.keep(sizes)
        for frames in sizes - self._graphs.keys():
            self._graphs[frames] = init_stream_graph(self.state, frames)

    def keep(self, sizes: set[int]) -> None:
        """Free the graphs of all other sizes, so that memory does not grow with use."""
        for frames in self._graphs.keys() - sizes:
            self._graphs.pop(frames).close()

    def decode(self, codes: np.ndarray) -> np.ndarray:
        frames = len(codes)
        if frames not in self._graphs:  # the rest of a stream whose length was not known
            self._graphs[frames] = init_stream_graph(self.state, frames)
        return decode_stream(self.state, self._graphs[frames], codes)

    def close(self) -> None:
        self.keep(set())
        self.state.close()


class NanoCodec:
    """A NanoCodec decoder on one device. Use :meth:`load`.

    It may be used from several threads: each chunk is computed under a lock.
    """

    def __init__(self, path: str | Path, device: str | Device = "auto", threads: int | None = None,
                 kernels: str = "auto") -> None:
        self.path = Path(path)
        self.lock = threading.RLock()
        self._idle: list[_Stream] = []
        find_device(device)  # a wrong device is reported before a wrong file
        native.load()  # cffi takes 0.1 s for it, which must not fall on the first chunk
        with GGUFFile.open(path) as file:
            self.config = CodecConfig.from_metadata(file.metadata, str(path))
            self.backend = Backend(device, threads)
            try:
                self.decoder = select_decoder(self.config, file, self.backend, kernels)
            except BaseException:
                self.backend.close()
                raise

    @classmethod
    def load(cls, path: str | Path, device: str | Device = "auto", threads: int | None = None,
             kernels: str = "auto") -> NanoCodec:
        """Load a NanoCodec GGUF.

        *device* as for :func:`pymagpie.ggml.find_device`; *threads* counts on the CPU (default: min(8, physical
        cores, cgroup quota)); *kernels* is one of :data:`~pymagpie.nanocodec.decoder.KERNELS`.

        Raises :class:`ModelNotFoundError`, :class:`ModelError`, :class:`DeviceError`, :class:`BackendError` and
        ``ValueError`` (a bad argument).
        """
        return cls(path, device, threads, kernels)

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        return self.config.sample_rate

    @property
    def samples_per_frame(self) -> int:
        """Samples that one frame of codes becomes."""
        return self.config.samples_per_frame

    @property
    def num_codebooks(self) -> int:
        """Codes of one frame."""
        return self.config.num_codebooks

    @property
    def codebook_size(self) -> int:
        """Codes run from 0 to this less one."""
        return self.config.codebook_size

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return self.config.frame_rate

    @property
    def device(self) -> str:
        """ggml's name of the device in use."""
        return self.backend.device.name

    @property
    def kernels(self) -> str:
        """The formulation in use: ``native``, ``batched``, ``stock`` or ``dense``."""
        return self.decoder.name

    @property
    def closed(self) -> bool:
        return self.decoder.closed

    def check_codes(self, codes: np.ndarray) -> np.ndarray:
        """*codes* as int32 (frames, codebooks). Raises ``ValueError`` naming the first that is wrong."""
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != self.num_codebooks:
            raise ValueError(f"codes must have the shape (frames, {self.num_codebooks}), not {codes.shape}")
        if not np.issubdtype(codes.dtype, np.integer):
            raise ValueError(f"codes must be integers, not {codes.dtype}")
        wrong = (codes < 0) | (codes >= self.codebook_size)
        if wrong.any():
            frame, codebook = np.argwhere(wrong)[0]
            raise ValueError(f"code {codes[frame, codebook]} in frame {frame}, codebook {codebook} is out of range; "
                             f"codes run from 0 to {self.codebook_size - 1}")
        return codes.astype(np.int32, copy=False)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """All of *codes* at once.

        codes: integers (frames, codebooks). Returns float32 (frames * samples_per_frame,) in [-1, 1], the same samples
        as any stream of them. Long input goes through in chunks of :data:`OFFLINE_FRAMES` frames.

        Raises ``ValueError`` for wrong codes and :class:`NonFiniteError` for a damaged model.
        """
        codes = self.check_codes(codes)
        audio = np.empty(len(codes) * self.samples_per_frame, np.float32)
        position = 0
        for chunk in self.stream(codes, OFFLINE_FRAMES):
            audio[position:position + len(chunk)] = chunk
            position += len(chunk)
        return audio

    def stream(self, codes: np.ndarray | Iterable[np.ndarray], chunk_frames: int = 4,
               first_chunk_frames: int | None = None) -> Iterator[np.ndarray]:
        """Decode *codes* chunk by chunk.

        codes: integers (frames, codebooks), or an iterable of frames, each (codebooks,) or (n, codebooks).
        Yields float32 arrays of ``chunk_frames * samples_per_frame`` samples in [-1, 1]; the first has
        *first_chunk_frames* frames when given, the last exactly the frames that are left. The borders depend on the
        number of frames alone.

        Arguments, and an array's codes, are checked and the graphs pre-warmed before this returns. Raises
        ``ValueError`` for wrong codes and :class:`NonFiniteError` for a damaged model. Closing the generator ends
        the stream.
        """
        self._check_open()
        steady = check_frames(chunk_frames, "chunk_frames")
        first = steady if first_chunk_frames is None else check_frames(first_chunk_frames, "first_chunk_frames")
        sizes = {first, steady}
        if isinstance(codes, np.ndarray) or not isinstance(codes, Iterable):
            codes = self.check_codes(codes)
            # Only the sizes that this input needs: a short one must not build a long graph.
            sizes = {len(block) for block in _blocks(codes, first, steady)}
            frames: Iterable[np.ndarray] = (codes,)
        else:
            frames = codes
        with self.lock:
            stream = self._idle.pop() if self._idle else _Stream(self)
        try:
            stream.prepare(sizes)
        except BaseException:
            stream.close()
            raise
        return self._generate(stream, frames, first, steady, sizes)

    def _generate(self, stream: _Stream, frames: Iterable[np.ndarray], first: int, steady: int, sizes: set[int],
                  ) -> Iterator[np.ndarray]:
        try:
            pending = np.empty((0, self.num_codebooks), np.int32)
            wanted = first
            for block in frames:
                pending = np.concatenate([pending, self.check_codes(np.atleast_2d(np.asarray(block)))])
                while len(pending) >= wanted:
                    chunk, pending = pending[:wanted], pending[wanted:]
                    wanted = steady
                    yield stream.decode(chunk)
            if len(pending):
                yield stream.decode(pending)
        finally:
            self._give_back(stream, sizes)

    def _give_back(self, stream: _Stream, sizes: set[int]) -> None:
        with self.lock:
            if self.closed or self._idle:  # one is kept, so that the next stream starts at once
                stream.close()
            else:
                stream.keep(sizes)
                self._idle.append(stream)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the codec is closed")

    def close(self) -> None:
        """Free the weights and every idle stream. Streams still running raise at their next chunk."""
        with self.lock:
            for stream in self._idle:
                stream.close()
            self._idle.clear()
            if not self.decoder.closed:
                self.decoder.close()
                self.backend.close()

    def __enter__(self) -> NanoCodec:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _blocks(codes: np.ndarray, first: int, steady: int) -> Iterator[np.ndarray]:
    """*codes* cut into a first block, steady ones and the rest."""
    yield from (block for block in (codes[:first],) if len(block))
    for start in range(first, len(codes), steady):
        yield codes[start:start + steady]
