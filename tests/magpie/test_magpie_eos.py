"""EOS detection, forbidden tokens, and finished-sentence tracking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymagpie.magpie import AcousticModel
from pymagpie.magpie.eos import FinishedTracking, TokenMask, check_eos_method, find_eos

EOS = 9
NONE = np.zeros((2, 3), int)
FIRST = np.array([[EOS, 0, 0], [0, 0, 0]])
LATER = np.array([[0, 0, 0], [0, EOS, 0]])
WHOLE = np.array([[0, 0, 0], [EOS, EOS, EOS]])


@pytest.mark.parametrize(("method", "sampled", "argmax", "frame"), [
    ("argmax_or_multinomial_any", NONE, NONE, None), ("argmax_or_multinomial_any", LATER, FIRST, 0),
    ("argmax_or_multinomial_any", LATER, NONE, 1), ("argmax_any", FIRST, NONE, None), ("argmax_any", NONE, LATER, 1),
    ("multinomial_any", LATER, FIRST, 1), ("argmax_all", NONE, FIRST, None), ("argmax_all", NONE, WHOLE, 1),
    ("argmax_or_multinomial_all", WHOLE, FIRST, 1), ("argmax_or_multinomial_zero_cb", LATER, NONE, None),
    ("argmax_or_multinomial_zero_cb", NONE, FIRST, 0), ("multinomial_zero_cb", NONE, FIRST, None),
    ("argmax_zero_cb", NONE, WHOLE, 1)])
def test_find_eos(method: str, sampled: np.ndarray, argmax: np.ndarray, frame: int | None) -> None:
    assert find_eos(method, sampled, argmax, EOS) == frame


def test_unknown_method_lists_the_methods() -> None:
    with pytest.raises(ValueError, match="argmax_or_multinomial_any"):
        check_eos_method("any")


def test_token_mask(model: AcousticModel) -> None:
    mask = TokenMask(model.config, 4)
    specials = [2016, *range(2018, 2024)]
    for step in range(6):
        allowed = np.flatnonzero(mask.row(step) == 0)
        early = step * model.frames_per_step < 4
        assert not set(specials) & set(allowed) and (2017 in allowed) != early and len(allowed) == 2016 + (not early)
    assert np.flatnonzero(mask.row(0, force_eos=True) == 0).tolist() == [2017]
    assert 2017 not in np.flatnonzero(mask.row(9, forbid_eos=True) == 0)


def test_finished_tracking_forces_eos_at_a_count_of_twenty(arrays: dict[str, np.ndarray], cases: dict[str, Any],
                                                           name: str) -> None:
    if name != "magpie-tiny":
        pytest.skip("the forced end is in the case of magpie-tiny")
    attended = arrays["finished_tracking/attended"]
    tracking = FinishedTracking(22)
    for focus in attended:
        assert not tracking.force_eos
        tracking.update(int(focus))
    assert tracking.force_eos and tracking.count == 20
