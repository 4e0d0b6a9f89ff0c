"""Texts in pieces: windows, memory splice, pauses, ends of pieces, and long texts as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pymagpie.magpie import AcousticModel, Frame, StepTrace
from pymagpie.magpie.longform import SILENCE_CODES, TextHistory, silence_frames

WIDTH = 3


def _piece(length: int, first: int = 1) -> np.ndarray:
    return np.arange(first, first + length, dtype=np.int32)


def _memory(tokens: np.ndarray, mark: float) -> np.ndarray:
    """An encoder output in which every row tells its token and the window that it was made in."""
    return np.stack([tokens, np.full(len(tokens), mark), np.zeros(len(tokens))], 1).astype(np.float32)


def test_history_of_streaming_rules_outlives_a_short_piece() -> None:
    """30, 8 and 30 tokens: the third window wants 20 earlier tokens although the second was only 16 long."""
    history = TextHistory(200, "streaming")
    lengths, windows = (30, 8, 30), []
    for index, length in enumerate(lengths):
        window = history.window(_piece(length, first=100 * index))
        spliced = history.splice(window, _memory(window.tokens, index))
        windows.append(window)
        np.testing.assert_array_equal(spliced[:, 0], window.tokens)
        assert (spliced[window.history:, 1] == index).all() and (spliced[:window.history, 1] < index).all()
        history.focus.position = history.start - 1
    assert [window.history for window in windows] == [0, 8, 20]
    assert [window.left_offset for window in windows] == [0, 22, 18]
    # The rows of the third window's history are those of the first piece and of the second.
    assert windows[2].tokens[:20].tolist() == [*range(18, 30), *range(100, 108)]


def test_history_reaches_back_to_the_focus() -> None:
    history = TextHistory(200, "streaming")
    first = history.window(_piece(40))
    history.splice(first, _memory(first.tokens, 0))
    history.focus.position = 5
    assert history.window(_piece(10)).history == 35


def test_history_leaves_room_for_the_piece() -> None:
    history = TextHistory(50, "streaming")
    for index in range(4):
        window = history.window(_piece(45))
        assert len(window.tokens) <= 50 and window.history == (5 if index else 0)
        history.splice(window, _memory(window.tokens, index))


def test_nemo_history_is_limited_by_the_window_before() -> None:
    history = TextHistory(200, "nemo")
    seen = []
    for length in (30, 8, 30):
        window = history.window(_piece(length))
        seen.append((window.history, window.left_offset))
        history.splice(window, _memory(window.tokens, 0))
    assert seen == [(0, 0), (8, 22), (16, 22)]


def test_silence() -> None:
    counts = {len(silence_frames(seed, piece, 8, 2016)) for seed in range(20) for piece in range(3)}
    assert counts == {6, 7, 8, 9, 10}
    assert [frame.tolist() for frame in silence_frames(1, 0, 8, 2016)] == [list(SILENCE_CODES)] * len(
        silence_frames(1, 0, 8, 2016))
    assert silence_frames(1, 0, 4, 2016) == [] and silence_frames(1, 0, 8, 1000) == []


def _texts(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [arrays[f"text/chunk{piece}"] for piece in range(3)]


def test_pieces_in_order_with_pauses_between(model: AcousticModel, arrays: dict[str, np.ndarray]) -> None:
    generation = model.generate_pieces(_texts(arrays), seed=4, max_steps=20)
    frames = list(generation)
    order = [(frame.piece, frame.kind) for frame in frames]
    assert sorted(order, key=lambda item: (item[0], item[1] == "silence")) == order
    pauses = [sum(frame.piece == piece and frame.kind == "silence" for frame in frames) for piece in range(3)]
    assert all(6 <= pause <= 10 for pause in pauses[:2]) and pauses[2] == 0
    result = generation.result
    assert len(result.pieces) == 3 and len(result.encoder_ms) == 3 and len(result.step_ms) == result.steps
    assert result.frames == sum(piece.frames for piece in result.pieces)
    assert result.silence_frames == sum(pauses) and len(frames) == result.frames + result.silence_frames
    again = list(model.generate_pieces(_texts(arrays), seed=4, max_steps=20))
    assert all(np.array_equal(a.codes, b.codes) for a, b in zip(frames, again, strict=True))


def test_one_piece_is_a_plain_generation(model: AcousticModel, arrays: dict[str, np.ndarray]) -> None:
    text = arrays["text/A"]
    frames = list(model.generate_pieces([text], seed=3, max_steps=15))
    np.testing.assert_array_equal([frame.codes for frame in frames], list(model.generate(text, seed=3, max_steps=15)))


def test_pieces_are_read_one_ahead_only(model: AcousticModel, arrays: dict[str, np.ndarray]) -> None:
    read = []

    def texts() -> Iterator[np.ndarray]:
        for index, text in enumerate(_texts(arrays)):
            read.append(index)
            yield text

    generation = model.generate_pieces(texts(), seed=1, max_steps=5)
    assert read == []
    next(generation)
    assert read == [0, 1]
    generation.close()
    assert generation.result.end_reason == "cancelled" and read == [0, 1]


def test_close_between_pieces_gives_the_model_back(model: AcousticModel, arrays: dict[str, np.ndarray]) -> None:
    with model.generate_pieces(_texts(arrays), seed=1, max_steps=5) as generation:
        for frame in generation:
            if frame.kind == "silence":
                break
    assert generation.result.end_reason == "cancelled"
    assert len(list(model.generate(arrays["text/B"], seed=1, max_steps=2))) == 2 * model.frames_per_step


def test_forty_pieces_short_and_long(model: AcousticModel) -> None:
    """Alternating lengths, which made NVIDIA's runtime fail with a history longer than it had kept."""
    lengths = [2, 60, 3, 25, 1, 41, 8, 30] * 5
    pieces = [[*(1 + (index * 7 + i) % 500 for i in range(length - 1)), model.text_eos]
              for index, length in enumerate(lengths)]
    frames: list[Frame] = []
    generation = model.generate_pieces(pieces, seed=9, max_steps=6)
    frames.extend(generation)
    spoken = [frame.piece for frame in frames if frame.kind == "speech"]
    assert sorted(set(spoken)) == list(range(40)) and spoken == sorted(spoken)
    windows = [piece.tokens + piece.history for piece in generation.result.pieces]
    assert max(windows) <= model.config.max_text


@pytest.mark.parametrize(("pieces", "message"), [
    ([], "no text pieces"), ([[]], "no text tokens"), ([[1, 2, 999_999]], "outside"), ([[1] * 2000], "positions")])
def test_wrong_pieces(model: AcousticModel, pieces: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(model.generate_pieces(pieces, seed=1, max_steps=2))


def test_a_wrong_later_piece_leaves_the_model_usable(model: AcousticModel) -> None:
    generation = model.generate_pieces([[5, 584], [6, 584], [-1]], seed=1, max_steps=2)
    with pytest.raises(ValueError, match="-1"):
        list(generation)
    assert len(list(model.generate([5, 584], seed=1, max_steps=2))) == 2 * model.frames_per_step


def test_streaming_ends_of_a_piece(model: AcousticModel) -> None:
    """A piece that is not the last runs on without output until its attention reaches the end of its text."""
    traces: list[tuple[int, StepTrace]] = []
    tokens = [5, 9, 17, 3, 44, 584]
    generation = model.generate_pieces([tokens, tokens], seed=2, max_steps=100, eos_method="argmax_all",
                                       trace=lambda piece, step: traces.append((piece, step)))
    list(generation)
    first = generation.result.pieces[0]
    steps = [step for piece, step in traces if piece == 0]
    assert first.ended_by == "attention" and first.suppressed_steps > 0
    silent = [step for step in steps if step.emitted == 0]
    assert len(silent) == first.suppressed_steps and steps[-1].focus == len(tokens) - 1
    assert all(step.focus is not None and step.focus >= len(tokens) - 3 for step in silent)
    assert generation.result.end_reason == "eos" and generation.result.pieces[1].ended_by == "attention"
