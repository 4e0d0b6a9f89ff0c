"""All three layers together."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from pymagpie.text import Piece, Tokenizer
from pymagpie.text import pieces as pieces_of


def test_a_known_sentence(v2602: Tokenizer) -> None:
    assert v2602.pieces("Hello “world”") == [
        Piece('Hello "world".', 'həˈloʊ "ˈwɝld".', (55, 79, 90, 59, 62, 87, 93, 1, 90, 68, 82, 59, 52, 1, 7, 2361))
    ]
    assert pieces_of("Hello “world”", "en", v2602) == v2602.pieces("Hello “world”", "en-US")


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t\u200b", "...", "?!", "—", "'", "-", "🙂", "🙂🙂 !", "日本", "()[]{}", "*", "|", "́"]
)
def test_nothing_to_speak_is_a_value_error(v2602: Tokenizer, text: str) -> None:
    for lang in ("en", "fr", "hi"):
        with pytest.raises(ValueError, match="nothing that can be spoken in (English|French|Hindi)"):
            v2602.pieces(text, lang, warnings=[])


def test_layer_one_takes_what_comes(v2602: Tokenizer) -> None:
    assert v2602.encode("", "en") == v2602.encode("   ", "en") == v2602.encode("日🙂", "en") == []
    assert v2602.encode("...", "en") == [7, 7, 7]
    assert v2602.encode("", "hi") == []
    assert v2602.encode("", "fr") == [634]
    assert v2602.encode("🙂", "fr") == [633 + 3 + byte for byte in "🙂".encode()] + [634]


def test_one_character(v2602: Tokenizer) -> None:
    assert v2602.pieces("A")[0].ids == (90, 94, 53, 84, 7, 2361)  # padded until four follow the first
    assert v2602.pieces("b", "fr")[0].ids == (633 + 101, 633, 633, 633 + 49, 634, 2361)
    assert v2602.pieces("5", "fr")[0].text == "cinq."
    assert v2602.pieces("अ", "hi")[0].ids == (1017, 1206, 1091, 1163, 1017, 2361)


def test_only_v2602_pads(demo_assets: Path) -> None:
    newer = Tokenizer.load(demo_assets, vocab_size=3359)
    assert newer.pieces("A")[0].ids == (90, 53, 84, 7, 3358)


def test_warnings_are_collected_or_logged(v2602: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    warnings: list[str] = ["earlier"]
    v2602.pieces("Hello 🙂", "en", warnings=warnings)
    assert warnings == ["earlier", "dropped what English has no token for: 🙂 (slightly smiling face)"]
    with caplog.at_level(logging.WARNING, "pymagpie.text"):
        v2602.pieces("Hello 🙂", "en")
    assert [record.message for record in caplog.records] == warnings[1:]


def test_digits_are_read_and_never_dropped(v2602: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("num2words")
    assert v2602.pieces("I have 3 books.")[0].text == "I have three books."
    assert v2602.pieces("मेरे पास ३ हैं", "hi")[0].text == "मेरे पास तीन हैं।"


def test_digits_without_a_reader_are_kept_or_told(small: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "num2words", None)
    warnings: list[str] = []
    english = small.pieces("I have 3", "en", warnings=warnings)[0]
    assert english.phonemes == "ˈaɪ ˈhæv 3." and "num2words" in warnings[0]
    warnings.clear()
    small.pieces("der 3", "de", warnings=warnings)
    assert len(warnings) == 2 and "num2words" in warnings[0] and "3 (digit three)" in warnings[1]


def test_date_with_a_comma(v2602: Tokenizer) -> None:
    """The comma of a date is a comma, whatever becomes of the digits."""
    piece = v2602.pieces("March 3, 2026")[0]
    assert piece.text == "March third, twenty twenty-six." and piece.ids.count(5) == 1


def test_long_texts_are_split_and_ended(v2602: Tokenizer) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * 4 + "and " + "many more words " * 15
    pieces = v2602.pieces(text, "en")
    assert [piece.text[:9] for piece in pieces] == ["The quick"] * 4 + ["And many "] + ["More word"]
    assert all(piece.text.endswith(".") for piece in pieces)
    assert all(piece.ids[-1] == 2361 and 2361 not in piece.ids[:-1] for piece in pieces)
    assert " ".join(piece.text for piece in pieces).replace(".", "").lower().count("many more words") == 15


def test_a_piece_without_sound_is_left_out(v2602: Tokenizer) -> None:
    text = "Hello there. " * 22 + "日本語。 " + "Hello again."
    warnings: list[str] = []
    pieces = v2602.pieces(text, "en", warnings=warnings)
    assert len(pieces) == 23 and len(warnings) == 1
    assert v2602.pieces("Hello. 日本語。 World.", "en", warnings=[])[0].text == "Hello. World."


def test_capital_letters_keep_the_ids_of_byte_languages(v2602: Tokenizer) -> None:
    assert v2602.pieces("bonjour", "fr")[0].text == "bonjour."  # not split: unmodified


def test_normalize_without_the_package_reads_numbers(v2602: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymagpie.text import normalize

    monkeypatch.setitem(sys.modules, "nemo_text_processing", None)
    normalize._normalizer.cache_clear()
    warnings: list[str] = []
    assert v2602.pieces("I have 3.", "en", normalize=True, warnings=warnings)[0].text == "I have three."
    assert len(warnings) == 1 and "nemo_text_processing" in warnings[0]
    normalize._normalizer.cache_clear()


def test_normalize_with_the_package(v2602: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("nemo_text_processing")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert v2602.pieces("It is 5 km.", "en", normalize=True)[0].text == "It is five kilometers."


def test_threads_share_a_tokenizer(demo_assets: Path) -> None:
    tokenizer = Tokenizer.load(demo_assets, vocab_size=2362)
    expected = Tokenizer.load(demo_assets, vocab_size=2362).pieces("Hello world, this is a test.")
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(tokenizer.pieces("Hello world, this is a test.")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [expected] * 8
