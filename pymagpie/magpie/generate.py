"""One request: the pieces of a text in order, their frames, and what there is to say at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

SPEECH = "speech"
SILENCE = "silence"


class Frame(NamedTuple):
    """A codec frame of a text in pieces."""

    codes: np.ndarray
    """int32 (codebooks,)"""
    piece: int
    """Index of the piece that it belongs to; a pause belongs to the piece before it."""
    kind: str
    """``speech`` or ``silence``."""


@dataclass(frozen=True)
class PieceResult:
    """What became of one piece."""

    tokens: int
    history: int
    """Earlier tokens that were in its window."""
    steps: int
    frames: int
    """Speech frames."""
    suppressed_steps: int
    """Steps whose frames were not given out, while the attention moved on to the end of the text."""
    ended_by: str
    """``eos``, ``attention`` (it reached the end of the text), ``max_steps`` or ``cancelled``."""
    truncated: bool


@dataclass
class GenerationResult:
    """What is known once a generation has ended; while it runs, what is known so far."""

    seed: int
    voice: str
    end_reason: str = ""
    """``eos`` (the model ended by itself: by its EOS token or at the end of the text), ``max_steps`` or
    ``cancelled``; of the last piece. Empty while running."""
    truncated: bool = False
    """Whether speech of any piece was cut off at the step limit."""
    frames: int = 0
    """Speech frames given out."""
    silence_frames: int = 0
    steps: int = 0
    pieces: list[PieceResult] = field(default_factory=list)
    encoder_ms: list[float] = field(default_factory=list)
    """Text encoder and cross-attention projections, by piece."""
    step_ms: list[float] = field(default_factory=list)
    """Wall time of every decoder step; the first of a piece includes the pre-fill."""
    compute_ms: list[float] = field(default_factory=list)
    """Of these, inside ggml."""


Item = TypeVar("Item")


class Generation(Generic[Item]):
    """An iterator of frames. Closing it, or :meth:`cancel` from any thread, ends it within one step.

    ``result`` is complete when the iterator is exhausted or closed.
    """

    def __init__(self, run: Callable[[GenerationResult, Callable[[], bool]], Generator[Item, None, None]],
                 result: GenerationResult) -> None:
        self.result = result
        self._cancel = threading.Event()
        self._frames = run(result, self._cancel.is_set)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        return next(self._frames)

    def cancel(self) -> None:
        """Ask for an early end: the next step is not begun, and the iterator ends with reason ``cancelled``."""
        self._cancel.set()

    def close(self) -> None:
        """Cancel, and give the model back at once when no other thread is inside a step."""
        self.cancel()
        try:
            self._frames.close()
        except ValueError:  # another thread is in the middle of a step and will see the cancellation
            pass
        if not self.result.end_reason:
            self.result.end_reason = "cancelled"

    def __enter__(self) -> Generation[Item]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def with_last(items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each item with whether it is the last; one item is read ahead."""
    iterator = iter(items)
    try:
        current = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        yield current, False
        current = following
    yield current, True
