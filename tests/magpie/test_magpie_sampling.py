"""The definition of sampling: known answers, ties, and the distribution."""

from __future__ import annotations

import numpy as np

from pymagpie.magpie import sampling


def _splitmix(state: int) -> int:
    """splitmix64 in plain integers, from its published definition."""
    mask = (1 << 64) - 1
    z = (state + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_splitmix_known_answer() -> None:
    assert int(sampling.splitmix64(np.zeros(1, np.uint64))[0]) == 0xE220A8397B1DCDAF  # first output for seed 0
    assert _splitmix(0) == 0xE220A8397B1DCDAF


def test_noise_is_the_definition() -> None:
    noise = sampling.step_noise(1234, 7, 3, 50, 1.0)
    for slot in (0, 2):
        for token in (0, 49):
            state = 0
            for number in (1234, 7, slot, token):
                state = _splitmix(state ^ number)
            u = ((state >> 11) + 0.5) * 2.0 ** -53
            assert noise[slot, token] == np.float32(-np.log(-np.log(u)))


def test_noise_differs_in_every_number() -> None:
    base = sampling.step_noise(1, 2, 4, 16, 0.5)
    assert (base != sampling.step_noise(2, 2, 4, 16, 0.5)).all()
    assert (base != sampling.step_noise(1, 3, 4, 16, 0.5)).all()
    assert len(np.unique(base)) == base.size
    assert np.array_equal(base, sampling.step_noise(1, 2, 4, 16, 0.5))


def test_top_k_keeps_exactly_k_and_prefers_lower_ids() -> None:
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    assert np.flatnonzero(sampling.top_k_mask(logits, 3)).tolist() == [1, 2, 3]
    assert np.flatnonzero(sampling.top_k_mask(logits, 1)).tolist() == [1]
    assert sampling.top_k_mask(logits, 99).all()
    equal = np.zeros(10, np.float32)
    assert np.flatnonzero(sampling.top_k_mask(equal, 4)).tolist() == [0, 1, 2, 3]


def test_greedy_takes_the_first_maximum() -> None:
    assert sampling.choose(np.array([0, 5, 1, 5], np.float32), None, 1) == 1


def test_top_k_of_one_is_greedy_whatever_the_noise() -> None:
    rng = np.random.default_rng(0)
    for step in range(20):
        logits = rng.normal(size=64).astype(np.float32)
        assert sampling.choose(logits, sampling.step_noise(3, step, 1, 64, 5.0)[0], 1) == int(np.argmax(logits))


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2, 1e-9], np.float32))
    draws = [sampling.choose(logits * np.float32(0.7), sampling.step_noise(9, step, 1, 4, 0.7)[0], 3)
             for step in range(4000)]
    frequencies = np.bincount(draws, minlength=4) / len(draws)
    # Standard deviation of a frequency is below 0.008; four of them.
    np.testing.assert_allclose(frequencies, [0.5, 0.3, 0.2, 0], atol=0.032)


def test_uniform_int_covers_its_range() -> None:
    values = [sampling.uniform_int(6, 10, seed, 0) for seed in range(200)]
    assert set(values) == {6, 7, 8, 9, 10}
