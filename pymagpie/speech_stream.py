"""What a call to ``Magpie.stream`` returns: the chunks, and what is known about the call that makes them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymagpie.audio import AudioChunk
from pymagpie.metrics import SpeechClock, SpeechMetrics

if TYPE_CHECKING:
    from pymagpie.magpie import Frame, Generation


@dataclass(frozen=True)
class Progress:
    """How far a call is: sentences done of those there are, frames and seconds of audio made."""

    piece: int
    pieces: int
    frames: int
    audio_s: float


@dataclass
class Call:
    """One request: what was asked for, and what has come out so far."""

    texts: list[str]
    lang: str
    generation: Generation[Frame]
    sizes: tuple[int, int]
    progress: Callable[[Progress], None] | None
    tokenizer_s: float
    clock: SpeechClock


class SpeechStream(Generator[AudioChunk, None, None]):
    """A generator of ``AudioChunk`` that also knows its seed, its metrics and whether it was truncated.

    Closing it, or leaving it as a context manager, cancels within one step and leaves the model usable.
    """

    def __init__(self, call: Call, chunks: Generator[AudioChunk, None, None]) -> None:
        self._call, self._chunks = call, chunks

    @property
    def texts(self) -> list[str]:
        """The pieces of text, in the order in which they are spoken."""
        return list(self._call.texts)

    @property
    def voice(self) -> str:
        """The name of the voice."""
        return self._call.generation.result.voice

    @property
    def lang(self) -> str:
        """The language as it was asked for."""
        return self._call.lang

    @property
    def seed(self) -> int:
        """Repeats this call."""
        return self._call.generation.result.seed

    @property
    def truncated(self) -> bool:
        """Whether a sentence was cut by the step limit, as far as is known yet."""
        return self._call.generation.result.truncated

    @property
    def metrics(self) -> SpeechMetrics:
        """The figures so far; final once the stream has ended."""
        return self._call.clock.metrics()

    def send(self, value: None) -> AudioChunk:
        return self._chunks.send(value)

    def throw(self, *error: Any) -> AudioChunk:
        return self._chunks.throw(*error)

    def close(self) -> None:
        self._call.generation.cancel()
        try:
            self._chunks.close()
        except ValueError:  # another thread is inside a step and will see the cancellation
            pass

    def __enter__(self) -> SpeechStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
