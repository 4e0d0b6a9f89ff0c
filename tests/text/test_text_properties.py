"""Any text gives tokens of the vocabulary or ValueError, in linear time, and loses no word."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymagpie.text import Tokenizer, clean, split_text
from pymagpie.text.split import join_or_cut, split_sentences

LANGUAGES = ("en", "es", "de", "fr", "hi")
SIGNS = list(" .,;:!?'\"()[]{}-/|#*&%$€@+=°…“”’—\n\t") + [
    "。",
    "！",
    "、",
    "।",
    "\u200b",
    "\u0301",
    "🙂",
    "\ud83d",
    "½",
    "३",
]
ANY_TEXT = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.one_of(
            st.sampled_from(SIGNS), st.sampled_from(["hello", "Dr", "U.S", "3", "1,234", "año", "drei", "नमस्ते", "你好"])
        ),
        max_size=60,
    ).map("".join),
)
FAST = settings(max_examples=100, deadline=None)


def ranges(tokenizer: Tokenizer, lang: str) -> range:
    language, offset = tokenizer.language(lang)
    return range(offset, offset + language.size)


@FAST
@given(text=ANY_TEXT, lang=st.sampled_from(LANGUAGES))
def test_encode_stays_in_its_range(small: Tokenizer, text: str, lang: str) -> None:
    allowed = ranges(small, lang)
    try:
        ids = small.encode(text, lang)
    except ValueError:
        assert any("\ud800" <= char <= "\udfff" for char in text)
        return
    assert all(i in allowed for i in ids)
    language, offset = small.language(lang)
    assert offset + language.pad_id not in ids or lang == "fr"
    assert ids == small.encode(text, lang)


@FAST
@given(text=ANY_TEXT, lang=st.sampled_from(LANGUAGES))
def test_pieces_are_ids_of_the_language_and_one_eos(small: Tokenizer, text: str, lang: str) -> None:
    allowed = ranges(small, lang)
    warnings: list[str] = []
    try:
        pieces = small.pieces(text, lang, warnings=warnings)
    except ValueError as error:
        assert "spoken" in str(error) or "surrogate" in str(error)
        return
    assert pieces and all(piece.ids[-1] == small.eos_id for piece in pieces)
    assert all(i in allowed for piece in pieces for i in piece.ids[:-1])
    assert pieces == small.pieces(text, lang, warnings=[])


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@FAST
@given(text=ANY_TEXT.filter(lambda text: text.isprintable()), lang=st.sampled_from(["en", "de", "hi", "zh", "ja"]))
def test_splitting_loses_nothing(text: str, lang: str) -> None:
    text = " ".join(text.split())
    squeezed = text.replace(" ", "")
    assert "".join(split_sentences(text, lang)).replace(" ", "") == squeezed
    assert "".join(split_text(text, lang)).replace(" ", "") == squeezed
    if lang == "en" and all(len(word) < 150 for word in (text * 20).split()):
        assert words(" ".join(join_or_cut(split_sentences(text * 20, lang), lang))) == words(
            " ".join(split_sentences(text * 20, lang))
        )


@FAST
@given(text=ANY_TEXT, lang=st.sampled_from(["en", "fr", "zh", "ja", "hi", "ko"]))
def test_clean_leaves_one_line_of_plain_characters(text: str, lang: str) -> None:
    try:
        cleaned = clean(text, lang)
    except ValueError:
        return
    assert cleaned == cleaned.strip() and not re.search(r"[\s\u200b-\u200f\ufeff]{2}|[\n\t\u00a0]", cleaned)


REPEATED = [
    "hello world ", "a", "A.", "9", "1,", "1:", "$1", "-1 ", "in 1999 ", ". ", "...", " ", "\n", "\n\n",
    "\"", "a-", "a'",
    "|a", "|", "🙂", "\u0301", "\u200b", "日", "Dr. ", "x🙂.", "(", "é", "#", "½", "e.g. ", "न", "क\u093c",
]  # fmt: skip


@pytest.mark.parametrize("part", REPEATED)
def test_a_hundred_thousand_characters_take_linear_time(small: Tokenizer, part: str) -> None:
    """The contract is 5 seconds; a quadratic step would take minutes, so the bound here has room for a busy machine."""
    for lang in ("en", "hi") if part in ("न", "क\u093c") else ("en",):
        small.encode("warm up", lang)
        text = (part * 100_000)[:100_000]
        start = time.process_time()
        small.encode(text, lang)
        try:
            small.pieces(text, lang, warnings=[])
        except ValueError:
            pass
        assert time.process_time() - start < 30
