"""The attention prior: it keeps cross-attention moving through the text.

After each decoder step the text position in focus is estimated from the alignment scores, and a prior row is built
that lifts the positions around it in the next step. Two sets of rules exist:

* ``streaming``, the product's default: those of NVIDIA's C++ streaming runtime. At the end of a text the focus creeps
  on token by token, and tokens that have been attended to for long are damped only behind the focus.
* ``nemo``: those of NeMo's ``do_tts``. At the end the focus jumps to the last token, and damping spares nothing.

Positions are relative to the text window of the current piece unless called absolute; the window starts at the absolute
position ``left_offset``. Later pieces of a long text have their own rows and carry the focus over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

RULES = ("streaming", "nemo")

_TAIL = 3  # the last three positions are never searched for the focus
_SHORT_TEXT = 5  # up to here a first window has a flat prior
_SHORT_WINDOW = 35  # the same for a later window
_FIRST_ROW = (0.5, 1.0, 0.8, 0.2, 0.2)  # a later piece's first row, from its first own token on
_LATER_ROW = (1.0, 0.6, 0.4, 0.2, 0.2)  # its later rows, from the focus on
_BEHIND = 0.2  # the position before either


@dataclass(frozen=True)
class PriorSettings:
    """How the prior is built. The thresholds count steps that attended to one token."""

    epsilon: float = 0.1
    lookahead: int = 5
    advance_threshold: int = 8
    decay_threshold: int = 10
    start_after: int = 0
    """No prior before this step of a window."""
    rules: str = "streaming"

    def __post_init__(self) -> None:
        if self.rules not in RULES:
            raise ValueError(f"prior rules {self.rules!r}; known are {', '.join(RULES)}")


@dataclass
class Focus:
    """What is carried from one piece of a long text to the next, in absolute positions."""

    position: int | None = None
    counts: dict[int, int] = field(default_factory=dict)


class AttentionPrior:
    """The prior of one text window.

    ``row`` is what the next decoder step must use, float32 (text_len,), or None for none. :meth:`update` takes the
    scores of a step and replaces it. ``focus`` is the position last chosen, relative to the window.
    """

    def __init__(self, settings: PriorSettings, text_len: int, *, own_len: int | None = None, left_offset: int = 0,
                 focus: Focus | None = None) -> None:
        """A window of *text_len* tokens whose last *own_len* belong to the piece itself, the others being history.

        *focus* is the state that the pieces of one text share; a window without one, or with a fresh one, is a first.
        """
        self.settings = settings
        self.text_len = text_len
        self.left_offset = left_offset
        self.state = focus if focus is not None else Focus()
        self.nemo = settings.rules == "nemo"
        self.later = self.state.position is not None
        if self.nemo:
            self.state.counts = {}
        if self.state.position is None:
            self.state.position = left_offset + (1 if self.nemo else min(1, text_len - 1))
        self.row: np.ndarray | None = self._first_row(own_len or text_len) if self.later else None

    @property
    def focus(self) -> int:
        assert self.state.position is not None
        return self.state.position - self.left_offset

    def update(self, scores: np.ndarray) -> int:
        """Choose the focus from *scores* (text_len,), build the next row, and return the focus."""
        position = self._choose(scores)
        self.state.position = absolute = position + self.left_offset
        self.state.counts[absolute] = self.state.counts.get(absolute, 0) + 1
        row = self._later_row(position) if self.later else self._row(position)
        self._decay(row, position)
        self.row = row
        return position

    def _count(self, position: int) -> int:
        return self.state.counts.get(position + self.left_offset, 0)

    def _choose(self, scores: np.ndarray) -> int:
        last = self.text_len - 1
        start = self.focus
        if not self.nemo:
            start = min(max(0, start), last)
        if self._count(start) >= self.settings.advance_threshold:
            start = min(start + 1, last)
        # NeMo lets the start be negative when the focus lies left of the window; slicing then counts from the end.
        window = scores[start:min(start + self.settings.lookahead, self.text_len - _TAIL)]
        if len(window):
            return start + int(np.argmax(window))
        return last if self.nemo else start

    def _row(self, focus: int) -> np.ndarray:
        if self.text_len <= _SHORT_TEXT:
            return np.ones(self.text_len, np.float32)
        row = np.full(self.text_len, self.settings.epsilon, np.float32)
        row[max(1, focus - 1)] = 1.0
        row[focus:focus + self.settings.lookahead + 1] = 1.0
        row[focus] = 1.0
        return row

    def _first_row(self, own_len: int) -> np.ndarray:
        faint = self.settings.epsilon ** 2
        start = self.text_len - own_len
        if not self.nemo and self.text_len <= _SHORT_WINDOW:
            return np.ones(self.text_len, np.float32)
        row = np.full(self.text_len, faint, np.float32)
        if self.nemo:
            row[start:] = self.settings.epsilon
        elif start > 0:
            row[start - 1] = _BEHIND
        weights = _FIRST_ROW[:own_len]
        row[start:start + len(weights)] = weights
        return row

    def _later_row(self, focus: int) -> np.ndarray:
        if self.text_len <= _SHORT_WINDOW:
            return np.ones(self.text_len, np.float32)
        faint = self.settings.epsilon ** 2
        row = np.full(self.text_len, faint, np.float32)
        if self.nemo:
            # The order of these writes is NeMo's; it shows when the focus is negative.
            row[max(1, focus - 1)] = _BEHIND
        elif focus > 0:
            row[focus - 1] = _BEHIND
        for offset, weight in enumerate(_LATER_ROW):
            if focus + offset < self.text_len:
                row[focus + offset] = weight
        row[focus + len(_LATER_ROW):] = faint
        return row

    def _decay(self, row: np.ndarray, focus: int) -> None:
        """Damp the tokens that have been attended to for long, and all before them."""
        faint = self.settings.epsilon ** 2 if self.later else self.settings.epsilon
        worn = [absolute - self.left_offset for absolute, count in self.state.counts.items()
                if count >= self.settings.decay_threshold]
        if not worn:
            return
        end = max(worn) + 1
        if not self.nemo:
            end = min(end, focus)  # never the focus itself nor what lies ahead
        elif self.later and end <= 1:
            return
        row[:max(0, end)] = faint
