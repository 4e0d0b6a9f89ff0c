"""Layer 2: what is pasted becomes what can be spoken."""

from __future__ import annotations

import pytest

from pymagpie.text import Tokenizer, clean
from pymagpie.text.hygiene import tidy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don’t ‘do’ “this”", "don't 'do' \"this\""),
        ("a\tb\r\nc\u00a0d\u202fe\u3000f\u2028g", "a b c d e f g"),
        ("  a   b  ", "a b"),
        ("zero\u200bwid\u200dth \ufeffsoft\u00adhy\u2060phen\u202e", "zerowidth softhyphen"),
        ("bell\x07 null\x00 esc\x1b[0m", "bell null esc[0m"),
        ("a—b – c‐d", "a - b - c-d"),
        ("wait…", "wait..."),
        ("ﬁne ＡＢ１ ⅷ", "fine AB1 viii"),
        ("Ångström Łódź Æsop Straße", "Ångström Łódź Æsop Straße"),  # Latin letters stay; a tokeniser may fold them
        ("١٢٣ १२३ 𝟙", "123 123 1"),
        ("½ m²", "1/2 m 2"),
        ("*bold* `code` a_b c|d ~x~", "bold code a b c d x"),
        ("Title\n\nText", "Title. Text"),
        ("Done!\n \n\nMore", "Done! More"),
        ("one\ntwo", "one two"),
        ("你好，world。", "world."),
        ("e\u0301", "é"),
        ("", ""),
        (" \n\t ", ""),
        ("🙂", ""),
        ("Hi 🙂!", "Hi!"),
        ("ok👍🏽 👨‍👩‍👧 1️⃣", "ok 1"),
    ],
)
def test_english(text: str, expected: str) -> None:
    assert clean(text) == expected


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        ("de", "„Gut“ – „so‘", "„Gut“ – „so‘"),  # German has these marks
        ("es", "¿Qué? “x”", '¿Qué? "x"'),
        ("zh", "“你好”，（世界）！", "“你好”，（世界）！"),
        ("zh", "约翰·史密斯", "约翰 史密斯"),
        ("fr", "l’été « oui » !", "l'été « oui » !"),
        ("ja", "東京 は 暑い です。 New York", "東京は暑いです。New York"),
        ("ja", "すごい～", "すごい〜"),
        ("hi", "नमस्ते HELLO", "नमस्ते hello"),
        ("es", "São ﬂan ÅÆ", "Sao flan AAe"),
    ],
)
def test_with_the_tokeniser_of_a_language(v2602: Tokenizer, lang: str, text: str, expected: str) -> None:
    if lang in ("de", "es"):  # their dictionaries are not here; the published letters are
        letters = {"de": "äöüßÄÖÜ„“‘–", "es": "áéíñóúüÁÉÍÑÓÚ¿¡"}[lang]
        accepts = lambda char: char in letters or (char.isascii() and char not in "*`_~|\\")  # noqa: E731
    else:
        accepts = None if lang == "zh" else v2602.language(lang)[0].accepts
    assert clean(text, lang, accepts) == expected


def test_dropped_characters_are_named_once() -> None:
    warnings: list[str] = []
    assert clean("a 🙂 Привет 🙂 мир 日本 b ♥", "en", warnings=warnings) == "a b"
    assert len(warnings) == 1
    for name in ("English", "🙂 (slightly smiling face)", "Привет", "(Cyrillic)", "日本 (Cjk)", "♥ (black heart suit)"):
        assert name in warnings[0]


def test_a_warning_stays_short() -> None:
    warnings: list[str] = []
    clean("".join(map(chr, range(0x2600, 0x2700))) + "".join(map(chr, range(0x4E00, 0x5E00))), "en", warnings=warnings)
    assert len(warnings) == 1 and len(warnings[0]) < 600


def test_lone_surrogates_and_other_types() -> None:
    with pytest.raises(ValueError, match=r"lone surrogate, U\+D83D, at character 1"):
        clean("a\ud83d")
    for text in (None, b"a", 3):
        with pytest.raises(ValueError, match="must be a string"):
            clean(text)  # type: ignore[arg-type]


def test_tidy_keeps_signs_for_the_reading_of_numbers() -> None:
    assert tidy("＄5 ５％ 3\u00a0€", "en") == "$5 5% 3 €"


def test_clean_is_idempotent_on_its_results() -> None:
    for text in ("don’t — “x”…", "Title\n\nText 🙂 x²"):
        assert clean(clean(text)) == clean(text)
