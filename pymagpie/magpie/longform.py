"""Texts in pieces: each piece is generated in a window of some earlier tokens and its own.

The encoder reads the whole window, but the outputs of the earlier tokens are replaced by those they had when they were
current ("memory splice"). The decoder starts afresh with each piece; what carries over is the focus of the attention.

NVIDIA's C++ runtime keeps the encoder outputs of the previous window only and fails when a longer history is wanted
after a short piece. Here the outputs of all earlier tokens are kept, as far as the encoder's positions reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .prior import Focus
from .sampling import uniform_int

HISTORY = 20
"""Earlier tokens in a window, when neither the piece is shorter nor the focus lies further back."""

SILENCE_CODES = (621, 1455, 1184, 1038, 463, 377, 1536, 1742)
"""A frame of silence of the public 22 kHz codec."""

SILENCE_FRAMES = (6, 10)
"""The shortest and the longest pause between pieces, in frames."""

_SILENCE_STREAM = 0x9E3779B9  # keeps the draws of pauses apart from those of codes


@dataclass(frozen=True)
class Window:
    """The text of one piece with its history."""

    tokens: np.ndarray
    """int32 (n,), history first."""
    history: int
    left_offset: int
    """Absolute position of the window's first token."""

    @property
    def own_len(self) -> int:
        return len(self.tokens) - self.history


class TextHistory:
    """The tokens and encoder outputs of the pieces so far, and the state of the attention."""

    def __init__(self, max_text: int, rules: str) -> None:
        self.max_text, self.nemo = max_text, rules == "nemo"
        self.focus = Focus()
        self.start = 0
        """Absolute position of the next piece."""
        self._tokens = np.empty(0, np.int32)
        self._memory: np.ndarray | None = None
        self._previous_window = 0

    def window(self, piece: np.ndarray) -> Window:
        """The window of the next piece, int32 (n,)."""
        history = self._history_length(len(piece))
        tokens = np.concatenate([self._tokens[len(self._tokens) - history:], piece])
        return Window(tokens, history, self.start - history)

    def _history_length(self, piece: int) -> int:
        available = min(len(self._tokens), self.max_text - piece)
        wanted = min(piece, HISTORY)
        if self.nemo:
            return min(wanted, available, self._previous_window)
        if self.focus.position is not None and self.focus.position < self.start:
            wanted = max(wanted, self.start - self.focus.position)
        return min(wanted, available)

    def splice(self, window: Window, memory: np.ndarray) -> np.ndarray:
        """The encoder output of *window*, float32 (n, width), its history replaced; and remember it for later."""
        if window.history:
            assert self._memory is not None
            memory = np.concatenate([self._memory[len(self._memory) - window.history:], memory[window.history:]])
        own = memory[window.history:]
        kept = own if self._memory is None else np.concatenate([self._memory, own])
        self._memory = kept[-self.max_text:]
        self._tokens = np.concatenate([self._tokens, window.tokens[window.history:]])[-self.max_text:]
        self.start += window.own_len
        self._previous_window = len(window.tokens)
        return memory


def silence_frames(seed: int, piece: int, num_codebooks: int, codebook_size: int) -> list[np.ndarray]:
    """The pause after *piece*: 6 to 10 frames int32 (codebooks,), their number drawn from the seed.

    A model with another codec has none.
    """
    if num_codebooks != len(SILENCE_CODES) or codebook_size <= max(SILENCE_CODES):
        return []
    count = uniform_int(*SILENCE_FRAMES, seed ^ _SILENCE_STREAM, piece)
    return [np.array(SILENCE_CODES, np.int32) for _ in range(count)]
