"""The attention prior against NeMo's traces and against known facts of the streaming rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymagpie.magpie.prior import AttentionPrior, Focus, PriorSettings


def _nemo(cases: dict[str, Any]) -> PriorSettings:
    defaults = cases["default_inference"]
    return PriorSettings(
        epsilon=defaults.get("prior_epsilon", defaults.get("attention_prior_epsilon")),
        lookahead=defaults.get("lookahead_window_size", defaults.get("attention_prior_lookahead_window")), rules="nemo")


def _follow(prior: AttentionPrior, arrays: dict[str, np.ndarray], prefix: str) -> None:
    for step, scores in enumerate(arrays[f"{prefix}/align"]):
        focus = prior.update(scores)
        assert focus + prior.left_offset == arrays[f"{prefix}/attended"][step], f"step {step}"
        np.testing.assert_allclose(prior.row, arrays[f"{prefix}/prior"][step], atol=1e-7, err_msg=f"step {step}")


def test_nemo_traces(arrays: dict[str, np.ndarray], cases: dict[str, Any]) -> None:
    followed = 0
    for case in cases["cases"]:
        if f"{case}/align" in arrays:
            _follow(AttentionPrior(_nemo(cases), arrays[f"{case}/align"].shape[1]), arrays, case)
            followed += 1
    assert followed == 10


def test_nemo_traces_of_pieces(arrays: dict[str, np.ndarray], cases: dict[str, Any]) -> None:
    focus = Focus()
    for piece in range(3):
        prefix = f"chunks/chunk{piece}"
        window = AttentionPrior(_nemo(cases), arrays[f"{prefix}/align"].shape[1], focus=focus,
                                own_len=len(arrays[f"text/chunk{piece}"]),
                                left_offset=int(arrays[f"{prefix}/left_offset"]))
        _follow(window, arrays, prefix)


def _scores(length: int, **peaks: float) -> np.ndarray:
    scores = np.zeros(length, np.float32)
    for position, value in peaks.items():
        scores[int(position[1:])] = value
    return scores


def test_streaming_focus_jumps_within_the_window() -> None:
    prior = AttentionPrior(PriorSettings(lookahead=3), 8)
    assert prior.update(_scores(8, p3=0.9)) == 3


def test_streaming_focus_leaves_a_token_after_eight_steps() -> None:
    prior = AttentionPrior(PriorSettings(lookahead=5), 10)
    rising = np.linspace(0.1, 0.7, 7).tolist() + [0.0, 0.0, 0.0]
    rising[6] = 1.0
    scores = np.array(rising, np.float32)
    assert [prior.update(scores) for _ in range(10)] == [5, 6, 6, 6, 6, 6, 6, 6, 6, 7]


def test_streaming_focus_creeps_to_the_end_and_is_never_damped() -> None:
    prior = AttentionPrior(PriorSettings(lookahead=5, decay_threshold=4), 8)
    foci = []
    for _ in range(60):
        foci.append(prior.update(np.zeros(8, np.float32)))
        assert prior.row is not None and prior.row[foci[-1]] == 1.0
    assert foci[-1] == 7 and sorted(foci) == foci
    assert max(b - a for a, b in zip(foci, foci[1:], strict=False)) == 1


def test_streaming_row() -> None:
    prior = AttentionPrior(PriorSettings(epsilon=0.1, lookahead=3), 10)
    assert prior.row is None
    prior.update(_scores(10, p2=0.9))
    np.testing.assert_allclose(prior.row, [0.1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1], atol=1e-7)


def test_streaming_second_piece() -> None:
    focus = Focus(position=3, counts={3: 1})
    prior = AttentionPrior(PriorSettings(lookahead=3), 9, own_len=4, left_offset=2, focus=focus)
    assert prior.update(np.array([0, 0.1, 0.2, 0.5, 0.9, 0.1, 0, 0, 0], np.float32)) == 3
    assert focus.position == 5


def test_streaming_rows_of_a_later_piece() -> None:
    prior = AttentionPrior(PriorSettings(epsilon=0.1), 50, own_len=30, left_offset=10, focus=Focus(position=5))
    first = np.full(50, 0.01)
    first[19:25] = [0.2, 0.5, 1.0, 0.8, 0.2, 0.2]
    np.testing.assert_allclose(prior.row, first, atol=1e-7)
    assert prior.update(_scores(50, p2=0.5)) == 2  # a focus left of the window is searched from its start
    later = np.full(50, 0.01)
    later[1:7] = [0.2, 1.0, 0.6, 0.4, 0.2, 0.2]
    np.testing.assert_allclose(prior.row, later, atol=1e-7)


@pytest.mark.parametrize("rules", ["streaming", "nemo"])
@pytest.mark.parametrize("length", range(1, 9))
def test_short_texts(rules: str, length: int) -> None:
    prior = AttentionPrior(PriorSettings(rules=rules), length)
    for _ in range(12):
        assert 0 <= prior.update(np.full(length, 1 / length, np.float32)) < length
        assert prior.row is not None and prior.row.shape == (length,) and (prior.row > 0).all()


def test_unknown_rules() -> None:
    with pytest.raises(ValueError, match="streaming, nemo"):
        PriorSettings(rules="other")
