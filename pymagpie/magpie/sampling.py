"""How the code of a slot is chosen from its logits: one definition for every device and platform.

Greedy takes the largest logit, the first of equals, and draws nothing. Otherwise exactly k tokens are kept, the largest
logits, ties going to the lower id, and among them

    argmax( logit + temperature * noise(seed, step, slot, id) ),    noise = -log(-log u)

is taken, which draws from softmax(logit / temperature) (the Gumbel-max trick). u = ((h >> 11) + 0.5) * 2^-53 in
float64, where h mixes the four numbers by splitmix64. temperature * noise is rounded to float32 once; the sum is
float32. The noise belongs to the token id and not to its rank, so a device may gather it in any order. Steps count over
the whole request.
"""

from __future__ import annotations

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MUL_1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL_2 = np.uint64(0x94D049BB133111EB)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """One splitmix64 output for each state, uint64 (Steele, Lea, Flood 2014)."""
    z = x + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _MUL_1
    z = (z ^ (z >> np.uint64(27))) * _MUL_2
    return z ^ (z >> np.uint64(31))


def mix(*numbers: int | np.ndarray) -> np.ndarray:
    """A hash of several non-negative integers, uint64; arrays broadcast against one another."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = splitmix64(state ^ np.asarray(number, np.uint64))
    return state


def gumbel(h: np.ndarray) -> np.ndarray:
    """-log(-log u) of hashes, float64."""
    u = ((h >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0 ** -53
    return -np.log(-np.log(u))


def step_noise(seed: int, step: int, slots: int, vocab_size: int, temperature: float) -> np.ndarray:
    """temperature * noise of every slot and id of one step, float32 (slots, vocab_size)."""
    h = mix(seed, step, np.arange(slots, dtype=np.uint64)[:, None], np.arange(vocab_size, dtype=np.uint64))
    return (gumbel(h) * temperature).astype(np.float32)


def top_k_mask(logits: np.ndarray, k: int) -> np.ndarray:
    """Which tokens are kept, bool (vocab_size,): exactly min(k, vocab_size), ties at the edge to the lower id."""
    if k >= len(logits):
        return np.ones(len(logits), bool)
    edge = np.partition(logits, len(logits) - k)[len(logits) - k]
    kept = logits > edge
    at_edge = np.flatnonzero(logits == edge)
    kept[at_edge[:k - int(kept.sum())]] = True
    return kept


def choose(logits: np.ndarray, noise: np.ndarray | None, k: int) -> int:
    """The token of one slot: *logits* float32 (vocab_size,), masked; *noise* a row of :func:`step_noise`, or None for
    greedy."""
    if noise is None:
        return int(np.argmax(logits))
    ids = np.flatnonzero(top_k_mask(logits, k))
    return int(ids[np.argmax(logits[ids] + noise[ids])])


def draw_seed() -> int:
    """A fresh seed from the operating system, below 2^31 so that it is easy to type again."""
    import secrets
    return secrets.randbelow(1 << 31)


def uniform_int(low: int, high: int, *numbers: int) -> int:
    """An integer from *low* to *high* inclusive that the numbers determine."""
    return low + int(mix(*numbers)[0] % np.uint64(high - low + 1))
