"""Layer 1 against ids computed with NeMo's own tokenisers. The dictionaries are not part of the repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from pymagpie.text.characters import ByteTokenizer, HindiCharacterTokenizer
from pymagpie.text.dictionary import PronunciationDictionary, read_syllables, read_word_list
from pymagpie.text.ipa import IPATokenizer, case_function, ipa_punctuation, ipa_vocabulary
from pymagpie.text.japanese import JapaneseTokenizer
from pymagpie.text.mandarin import MandarinTokenizer
from pymagpie.text.vocabulary import LanguageTokenizer, SymbolTokenizer

Golden = Callable[[str], Path]

# A fault of the fixture: its word records were made from the text in small letters, its ids from capitals, for which
# Open JTalk has other words.
RECORDS_OF_ANOTHER_TEXT = {"NVIDIAのGPUは速い"}
# pyopenjtalk-plus has its own dictionary, with other accents for いい and for 四年.
OTHER_ACCENTS_IN_PLUS = {"今日はいい天気ですね！", "2024年5月1日"}


def fixture(golden: Golden, name: str) -> dict[str, Any]:
    return json.loads(golden(f"tokenizers/{name}.json").read_text(encoding="utf-8"))


def check(tokenizer: LanguageTokenizer, data: dict[str, Any]) -> None:
    if isinstance(tokenizer, SymbolTokenizer):
        assert list(tokenizer.vocabulary.symbols) == data["vocab"]
        assert tokenizer.vocabulary.pad_id == data["pad_id"] and tokenizer.vocabulary.oov_id == data["oov_id"]
    assert data["cases"]
    for case in data["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]


@pytest.mark.parametrize("lang", ["en", "es", "de"])
def test_ipa(golden: Golden, lang: str) -> None:
    data = fixture(golden, lang)
    case = case_function(data["grapheme_case"])
    dictionary = PronunciationDictionary.read(golden("tokenizers/assets") / data["dictionary"], case)
    heteronyms = read_word_list(golden("tokenizers/assets") / data["heteronyms"], case) if data["heteronyms"] else ()
    punctuation = ipa_punctuation(data["locale"])
    assert punctuation == data["punctuation"]
    tokenizer = IPATokenizer(
        dictionary,
        ipa_vocabulary(dictionary, punctuation, data["grapheme_prefix"]),
        locale=data["locale"],
        punctuation=punctuation,
        heteronyms=heteronyms,
        pad_with_space=data["pad_with_space"],
        grapheme_case=data["grapheme_case"],
        grapheme_prefix=data["grapheme_prefix"],
    )
    check(tokenizer, data)


@pytest.mark.parametrize("lang", ["fr", "it", "vi"])
def test_bytes(golden: Golden, lang: str) -> None:
    data = fixture(golden, lang)
    assert len(data["vocab"]) == ByteTokenizer.size
    check(ByteTokenizer(), data)


@pytest.mark.parametrize("version", [1, 2])
def test_hindi_characters(golden: Golden, version: int) -> None:
    check(HindiCharacterTokenizer(version, version, pad_with_space=version == 1), fixture(golden, f"hi_v{version}"))


def test_mandarin(golden: Golden) -> None:
    pytest.importorskip("jieba"), pytest.importorskip("pypinyin"), pytest.importorskip("pypinyin_dict")
    data = fixture(golden, "zh")
    check(MandarinTokenizer(read_syllables(golden("tokenizers/assets") / data["dictionary"])), data)


def test_japanese_from_word_records(golden: Golden) -> None:
    data = fixture(golden, "ja")
    tokenizer = JapaneseTokenizer(data["ascii_letter_case"])
    assert list(tokenizer.vocabulary.symbols) == data["vocab"]
    differing = set()
    for case in data["cases"]:
        if tokenizer.ids(tokenizer.select(tokenizer.symbols_of_words(case["njd"]))) != case["ids"]:
            differing.add(case["text"])
    assert differing == RECORDS_OF_ANOTHER_TEXT


def test_japanese_with_open_jtalk(golden: Golden) -> None:
    pytest.importorskip("pyopenjtalk")
    data = fixture(golden, "ja")
    tokenizer = JapaneseTokenizer(data["ascii_letter_case"])
    differing = {case["text"] for case in data["cases"] if tokenizer.encode(case["text"]) != case["ids"]}
    try:
        version("pyopenjtalk")
    except PackageNotFoundError:
        assert differing <= OTHER_ACCENTS_IN_PLUS
    else:
        assert not differing
