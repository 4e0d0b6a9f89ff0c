"""The codec's side of speech: blocks of frames in, audio out, on a thread of its own.

The caller makes frames; every block of them is decoded by the worker's thread while the caller goes on. At most
``depth`` blocks are under way; a caller that is ahead by more waits for audio. A fault of the worker reaches the caller
as the exception it was, at the next call. Nothing here depends on timing: the caller decides which frames form a block.

**Two thread pools on one CPU.** When acoustic model and codec both compute on the CPU they take turns in the caller's
thread (:class:`InlineCodec`), so that whoever computes has all the threads, and never more threads compute than the
user asked for. A second thread would bring a second OpenMP team, and with more threads than cores libgomp hardly spins
at a barrier: a step of the full model then takes five times as long, even while the codec does nothing. Otherwise the
two devices work side by side.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from types import TracebackType

import numpy as np

from pymagpie.ggml import host_copies
from pymagpie.metrics import CodecClock

Decode = Callable[[Iterator[np.ndarray]], Iterator[np.ndarray]]
"""Blocks of codes, int (frames, codebooks), to their samples, float32 (n,): one array for each block, in order."""


class CodecWorker:
    """Owner of the thread that decodes. Use it from one thread, as a context manager: leaving it ends the thread.

    ``decode`` is called at once, in the caller's thread; what it returns is iterated on the worker's thread alone.
    """

    def __init__(self, decode: Decode, depth: int = 4) -> None:
        self._depth = depth
        self._blocks: SimpleQueue[np.ndarray | None] = SimpleQueue()
        self._results: SimpleQueue[np.ndarray | BaseException] = SimpleQueue()
        self._finished: deque[np.ndarray] = deque()
        self._under_way = 0
        self._cancelled = False
        self._thread = threading.Thread(
            target=self._run, args=[decode(self._incoming())], name="pymagpie-codec", daemon=True
        )
        self._thread.start()

    def submit(self, block: np.ndarray) -> None:
        """Hand over a block, waiting as ``depth`` demands. Raises what the worker raised."""
        self._hand_over(block)
        while self._under_way > self._depth:
            self._receive()

    def finished(self) -> Iterator[np.ndarray]:
        """The audio that is there now, in order, without waiting. Raises what the worker raised."""
        while self._under_way and not self._results.empty():
            self._receive()
        while self._finished:
            yield self._finished.popleft()

    def drain(self, rest: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Hand over a last block of any size, or none, and wait for the audio of all. Raises what the worker raised."""
        if rest is not None:
            self._hand_over(rest)
        self._blocks.put(None)  # a codec that waits for a full block must know that there is no more
        while self._finished or self._under_way:
            if not self._finished:
                self._receive()
            yield self._finished.popleft()

    def close(self) -> None:
        """Drop what has not begun, wait for the block being decoded, and end the thread."""
        self._cancelled = True
        self._blocks.put(None)
        interrupt: KeyboardInterrupt | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt as error:  # the codec is in use until the thread has ended
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def __enter__(self) -> CodecWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hand_over(self, block: np.ndarray) -> None:
        self._blocks.put(block)
        self._under_way += 1

    def _receive(self) -> None:
        result = self._results.get()
        self._under_way -= 1
        if isinstance(result, BaseException):
            self._under_way = 0  # the thread has ended: no more results will come
            raise result
        self._finished.append(result)

    def _incoming(self) -> Iterator[np.ndarray]:
        while (block := self._blocks.get()) is not None and not self._cancelled:
            yield block

    def _run(self, results: Iterator[np.ndarray]) -> None:
        try:
            for samples in results:
                self._results.put(samples)
        except BaseException as error:
            self._results.put(error)


class InlineCodec:
    """A :class:`CodecWorker` without the thread: each block is decoded as it is handed over.

    ``decode`` must give the samples of a block once it has the block; only the last one may wait for the end.
    """

    def __init__(self, decode: Decode) -> None:
        self._blocks: deque[np.ndarray] = deque()
        self._finished: deque[np.ndarray] = deque()
        self._ended = False
        self._results = decode(self._incoming())

    def submit(self, block: np.ndarray) -> None:
        """Decode a block. Raises what the codec raises."""
        self._blocks.append(block)
        self._finished.append(next(self._results))

    def finished(self) -> Iterator[np.ndarray]:
        """The audio that is there now, in order."""
        while self._finished:
            yield self._finished.popleft()

    def drain(self, rest: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Decode a last block of any size, or none; the audio of all that is left. Raises what the codec raises."""
        if rest is not None:
            self._blocks.append(rest)
        self._ended = True
        yield from self.finished()
        yield from self._results

    def __enter__(self) -> InlineCodec:
        return self

    def __exit__(self, *exc: object) -> None:
        if isinstance(self._results, Generator):
            self._results.close()

    def _incoming(self) -> Iterator[np.ndarray]:
        while self._blocks or not self._ended:
            yield self._blocks.popleft()


def arriving(codes: Iterator[np.ndarray], clock: CodecClock) -> Iterator[np.ndarray]:
    """``codes``, restarting ``clock`` as they come, so that waiting for them does not count as decoding."""
    for block in codes:
        clock.start()
        yield block


def timed(chunks: Iterator[np.ndarray], clock: CodecClock) -> Iterator[np.ndarray]:
    """``chunks`` of a codec's stream; time, samples and host copies of each are told to ``clock``."""
    while True:
        copies = host_copies()
        clock.start()
        samples = next(chunks, None)
        if samples is None:
            return
        clock.stop(len(samples), host_copies() - copies)
        yield samples
