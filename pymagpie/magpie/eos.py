"""When speech ends: the EOS token, texts that count as read to their end, and tokens that may not be chosen."""

from __future__ import annotations

import numpy as np

from .config import EOS_METHODS, SPECIAL_TOKENS, MagpieConfig

_UNFINISHED_TAIL = 3  # a focus before the last three tokens: the text is not finished
_FINISHED_TAIL = 2  # a focus on the last two: the count towards a forced end begins
_FINISHED_AFTER = 5  # steps of that count until EOS is allowed again
_FORCE_AFTER = 20  # and until only EOS is


def check_eos_method(method: str) -> str:
    """*method* itself. Raises ``ValueError`` for one that does not exist."""
    if method not in EOS_METHODS:
        raise ValueError(f"eos_detection_method {method!r}; known are {', '.join(EOS_METHODS)}")
    return method


def find_eos(method: str, sampled: np.ndarray, argmax: np.ndarray, eos: int) -> int | None:
    """The first frame of a step that says EOS, or None.

    *sampled* and *argmax* are the two streams of codes, int (frames, codebooks). The method's first part says which of
    them is looked at, its second whether EOS must be in any codebook of a frame, in all, or in codebook 0.
    """
    stream, rule = EOS_METHODS[method]
    streams = {"argmax": (argmax,), "multinomial": (sampled,), "argmax_or_multinomial": (sampled, argmax)}[stream]
    for frame in range(len(sampled)):
        for codes in streams:
            hits = codes[frame] == eos
            if hits[0] if rule == "zero_cb" else hits.all() if rule == "all" else hits.any():
                return frame
    return None


class TokenMask:
    """Which audio ids may be chosen in a step, as numbers to add to logits, float32 (vocab_size,).

    Forbidden ids get a large negative number instead of -inf, so that no arithmetic on the device can make NaN of it.
    """

    FORBIDDEN = np.float32(-1e30)

    def __init__(self, config: MagpieConfig, min_frames: int) -> None:
        """EOS is forbidden in the steps that begin before frame *min_frames*."""
        self.frames_per_step, self.min_frames = config.frames_per_step, min_frames
        self.open = np.zeros(config.vocab_size, np.float32)
        self.open[config.vocab_size - SPECIAL_TOKENS:] = self.FORBIDDEN
        self.without_eos = self.open.copy()
        self.open[config.audio_eos] = 0.0
        self.only_eos = np.full(config.vocab_size, self.FORBIDDEN, np.float32)
        self.only_eos[config.audio_eos] = 0.0

    def row(self, step: int, *, forbid_eos: bool = False, force_eos: bool = False) -> np.ndarray:
        """The row of *step*, counted from 0 within the text window."""
        if force_eos:
            return self.only_eos
        if forbid_eos or step * self.frames_per_step < self.min_frames:
            return self.without_eos
        return self.open


class FinishedTracking:
    """NeMo's optional rule: no EOS while the text is unfinished, and a forced one when it has long been finished."""

    def __init__(self, text_len: int) -> None:
        self.text_len = text_len
        self.count: int | None = None
        self.forbid_eos = False
        self.force_eos = False

    def update(self, focus: int) -> None:
        """Take the focus of a step, before the codes of that step are sampled."""
        if self.count is None and focus >= self.text_len - _FINISHED_TAIL:
            self.count = 0
        if self.count is not None:
            self.count += 1
        count = self.count or 0
        self.forbid_eos = focus < self.text_len - _UNFINISHED_TAIL and count <= _FINISHED_AFTER
        self.force_eos = count >= _FORCE_AFTER
