"""Layer 3: sentences, long sentences, and the end of a text."""

from __future__ import annotations

import pytest

from pymagpie.text import split_text
from pymagpie.text.split import MAX_CHARACTERS, MAX_WORDS, capitalize, cut_sentence, finish, finish_cut, split_sentences


@pytest.mark.parametrize(
    ("lang", "sentences"),
    [
        ("en", ["Hello there.", "How are you?", "Fine!", "Good."]),
        ("en", ["Mr. Smith met Dr. Jones at 3.14 p.m. on St. Mary's St. near No. 5.", "He left."]),
        ("en", ["J. R. R. Tolkien wrote it.", "I read it."]),
        ("en", ["The U.S. Army came.", "He is in the U.S.", "The end."]),
        ("en", ["See e.g. this one, i.e. that.", "Apples, pears, etc. are fruit, etc.", "Yes."]),
        ("en", ["Well... maybe not.", "Wait...", "What?!", "No."]),
        ("en", ['"Who is it?" he asked.', '"Me."', "(He left.)", "Then it was quiet."]),
        ("en", ["It costs 3.50 today.", "Version 1.2.3 is out.", "Go to example.com now."]),
        ("en", ["all small letters here.", "next one.", "and so on."]),
        ("en", ["It was I.", "The end."]),
        ("en", ["No stop at the end"]),
        ("en", ["One. . .", "Two."]),
        ("de", ["Am 3. Mai kam Dr. Weiß, z.B. mit ca. 5 Leuten.", "Im Jahr 2024.", "Ende."]),
        ("es", ["La Sra. Pérez vive en la Av. Sol.", "¿Dónde?", "¡Aquí!"]),
        ("fr", ["M. Dupont arrive.", "« Oui ! »", "Non."]),
        ("hi", ["नमस्ते।", "आप कैसे हैं?", "मैं ठीक हूँ।"]),
    ],
)
def test_sentences(lang: str, sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences), lang) == sentences


@pytest.mark.parametrize(
    ("lang", "sentences"),
    [
        ("zh", ["你好。", "「你是谁？」", "我是3.14！", "再见……"]),
        ("ja", ["こんにちは。", "「元気？」", "はい!", "そうです。"]),
        ("zh", ["真的吗？！", "是。"]),
    ],
)
def test_sentences_without_spaces(lang: str, sentences: list[str]) -> None:
    assert split_sentences("".join(sentences), lang) == sentences


def test_punctuation_alone_is_no_sentence() -> None:
    assert split_sentences("Hi. !!! ... Yes. ?") == ["Hi. !!! ...", "Yes. ?"]
    assert split_sentences("... Hi.") == ["... Hi."]
    assert split_sentences("") == []


@pytest.mark.parametrize(
    ("lang", "limit"), [("en", 45), ("es", 73), ("fr", 69), ("vi", 50), ("it", 53), ("de", 50), ("hi", 40)]
)
def test_limits_in_words(lang: str, limit: int) -> None:
    # Seven words a sentence, so that no sentence is itself too long.
    words = [f"w{i}." if i % 7 == 6 else f"w{i}" for i in range(limit)]
    below, at = " ".join(words[:-1]), " ".join(words)
    assert split_text(below, lang) == [below]
    pieces = split_text(at, lang)
    assert len(pieces) == -(-limit // 7) and " ".join(pieces) == at


@pytest.mark.parametrize(("lang", "limit"), [("zh", 100), ("ja", 40)])
def test_limits_in_characters(lang: str, limit: int) -> None:
    text = ("字" * 9 + "。") * (limit // 10)
    assert split_text(text[:-1], lang) == [text[:-1]]
    assert split_text(text, lang) == ["字" * 9 + "。"] * (limit // 10)


def test_forty_words_without_commas_are_cut_at_the_limit() -> None:
    pieces = cut_sentence(" ".join(["word"] * 40), "en")
    assert [len(piece.split()) for piece in pieces] == [MAX_WORDS, 5]


def test_a_long_sentence_is_cut_after_a_comma() -> None:
    sentence = " ".join(f"word{i}," if i in (9, 24, 50) else f"word{i}" for i in range(66))
    pieces = cut_sentence(sentence, "en")
    assert pieces[0].endswith("word24,") and " ".join(pieces) == sentence
    assert all(len(piece.split()) <= MAX_WORDS for piece in pieces)


def test_a_thousand_words_without_punctuation_lose_none() -> None:
    text = " ".join(f"word{i}" for i in range(1000))
    pieces = split_text(text)
    assert " ".join(pieces) == text and max(len(piece.split()) for piece in pieces) <= MAX_WORDS


def test_a_text_without_spaces_is_bounded() -> None:
    for lang in ("en", "fr", "hi"):
        pieces = split_text("x" * 5000, lang)
        assert "".join(pieces).replace(" ", "") == "x" * 5000 and max(map(len, pieces)) <= MAX_CHARACTERS


def test_long_chinese_and_japanese_sentences() -> None:
    text = "我爱北京天安门，" * 30
    pieces = split_text(text, "zh")
    assert "".join(pieces) == text and all(piece.endswith("，") and len(piece) <= 100 for piece in pieces)
    text = "東京の天気はとても良いので散歩に行きました" * 5
    pieces = split_text(text, "ja")
    assert "".join(pieces) == text and max(map(len, pieces)) <= 40
    # Cut where hiragana gives way to another script.
    assert all("\u3040" <= piece[-1] <= "\u309f" for piece in pieces)


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        ("en", "hello", "hello."),
        ("en", "Already .", "Already."),
        ("en", "Continue;  ", "Continue.  "),
        ("en", "list ,", "list."),
        ("en", "why?", "why?"),
        ("en", "so ！", "so！"),
        ("en", "(aside)", "(aside)."),
        ("en", "   ", "   "),
        ("en", "", ""),
        ("en", "?", "?"),
        ("hi", "नमस्ते", "नमस्ते।"),
        ("hi", "नमस्ते।", "नमस्ते।"),
        ("zh", "你好", "你好。"),
        ("ja", "はい:", "はい。"),
        ("EN-us", "hello", "hello."),
    ],
)
def test_terminal_rule(lang: str, text: str, expected: str) -> None:
    assert finish(text, lang) == expected


def test_cut_pieces_end_in_punctuation() -> None:
    assert finish_cut("some words", "en") == "some words."
    assert finish_cut("some words,", "en") == "some words,"
    assert finish_cut('he said "no!"', "en") == 'he said "no!"'


def test_capitals() -> None:
    assert [capitalize(text) for text in ("hello you", "«été»", "iPhone", "A b", "...", "3 x")] == [
        "Hello you", "«Été»", "iPhone", "A b", "...", "3 x",
    ]  # fmt: skip
