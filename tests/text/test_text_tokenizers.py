"""Layer 1 on hand-made dictionaries: the rules one by one."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from pymagpie.errors import CapabilityError
from pymagpie.text import Tokenizer
from pymagpie.text.characters import ByteTokenizer, HindiCharacterTokenizer
from pymagpie.text.dictionary import PronunciationDictionary
from pymagpie.text.ipa import IPATokenizer, ipa_punctuation, ipa_vocabulary
from pymagpie.text.japanese import JapaneseTokenizer, open_jtalk
from pymagpie.text.mandarin import readings
from pymagpie.text.vocabulary import Vocabulary


def tokens(tokenizer: Tokenizer, text: str, lang: str) -> str:
    language, _ = tokenizer.language(lang)
    return "".join(language.tokens(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, WORLD!", "həˈloʊ, ˈwɝld!"),  # any case
        ("can't cant", "ˈkænt CANT"),
        ("'tis", "'TIS"),  # a leading apostrophe is no part of a word
        ("rock 'n' roll-", "ROCK 'ˈɛn' ROLL-"),
        ("I read, she reads", "ˈaɪ READ, ˈʃi READS"),  # heteronyms are spelled; their stems are not in this dictionary
        ("dogs cats boxs", "ˈdɔɡz ˈkæts ˈbɑksz"),  # the stem's last letter decides, not its sound
        ("dog's cat's his's", "ˈdɔɡz ˈkæts ˈhɪzɪz"),
        ("fox-dog fox-zyx", "ˈfɑks-ˈdɔɡ ˈfɑks-ZYX"),  # unknown with hyphen: part by part
        ("a  b", "ˈeɪ  ˈbi"),  # spaces are not collapsed
        ("  a  ", "  ˈeɪ"),  # but trailing ones go
        ("naïve CAFÉ", "NAIVE CAFE"),  # accents go before the dictionary is asked
        ("b2b", "ˈbi2ˈbi"),  # digits are no part of words
        ("|ˈ b ʊ k| go", "ˈbʊk ˈɡoʊ"),  # a span is passed through, symbol by symbol
        ("|hello| go", " ˈɡoʊ"),  # hello is no symbol
        ("a|b", "ˈeɪˈbi"),
        ("<a> € 日", "ˈeɪ"),
        ("straße", "STRAˈɛszˈi"),  # ß is no English letter, but SS is a word: S and an ending
    ],
)
def test_english(v2602: Tokenizer, text: str, expected: str) -> None:
    assert tokens(v2602, text, "en") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hola, MUNDO", " ˈola, mˈundo "),
        ("año", " ˈaɲo "),  # the first of two pronunciations
        ("an\u0303o", " ˈaɲo "),  # NFC
        ("¡Buenos días!", " ¡bwˈenos DÍAS! "),
        ("x ’y’", "  '' "),  # letters that the vocabulary lacks are dropped, curly apostrophes are apostrophes
        ("", ""),
        ("   ", ""),
    ],
)
def test_spanish(small: Tokenizer, text: str, expected: str) -> None:
    assert tokens(small, text, "es") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("der Brave", " dɛɾ brˈɑːvə "),
        ("DER brave STRASSE", " dɛɾ brˈɑːvə ʃtrˈɑːsə "),  # by capitals, ß as SS
        ("weg Weg WEG", " #e#g #e#g "),  # heteronyms in the cases of the list; letters without an id are dropped
        ("drei-gut", " drˈaɪ-ɡˈuːt "),
        ("„gut“", " „ɡˈuːt“ "),
        ("gut, 3,5 der", " ɡˈuːtdɛɾ "),  # a run with a digit is graphemes, marks and spaces too: NeMo's rule
    ],
)
def test_german(small: Tokenizer, text: str, expected: str) -> None:
    assert tokens(small, text, "de") == expected


def dictionary(tmp_path: Path, text: str, **options: Any) -> PronunciationDictionary:
    path = tmp_path / "d.txt"
    path.write_text(text, encoding="utf-8")
    return PronunciationDictionary.read(path, str.upper, **options)


def test_dictionary_lines(tmp_path: Path) -> None:
    read = dictionary(
        tmp_path,
        ";;; comment\n\nWord  w ɝ d\nWORD(1)  x\nword(12)\ty\n'n  ən\n.dot  d\n1st  f\nA_B(x)  q\r\n",
        find_ambiguous=True,
    )
    assert read.words == {"WORD": "wɝd", "'N": "ən", "A_B(X)": "q"}
    assert read.ambiguous == {"WORD"}
    assert read.graphemes == set("WORDNABX") and read.phonemes == set("wɝdxyənq")


def test_unique_entries_and_stresses(tmp_path: Path) -> None:
    read = dictionary(tmp_path, "TWO  ˈtu\nTWO(1)  ˌtə\nONE  ˈwʌn\n", ignored="ˈˌ", find_ambiguous=True)
    assert read.phonemes == set("tuəwʌn")
    marks = ipa_punctuation("en-US")
    tokenizer = IPATokenizer(
        read,
        ipa_vocabulary(read, marks),
        locale="en-US",
        punctuation=marks,
        pad_with_space=False,
        ignore_ambiguous_words=True,
    )
    assert "".join(tokenizer.tokens("one two twos")) == "wʌn TWO TWO"  # S has no id here


def test_vocabulary_order() -> None:
    vocabulary = Vocabulary([" ", "b", "a", "b", "<pad>", "<oov>"])
    assert vocabulary.index["b"] == 3 and len(vocabulary) == 6
    assert "<pad>" not in vocabulary and "a" in vocabulary
    with pytest.raises(ValueError, match="<pad>"):
        Vocabulary(["a", " ", "<oov>"])


def test_bytes() -> None:
    assert ByteTokenizer().encode("é</s>") == [0xC3 + 3, 0xA9 + 3, *(ord(c) + 3 for c in "</s>"), 1]
    assert ByteTokenizer().encode("") == [1]


def test_hindi_characters() -> None:
    first, second = HindiCharacterTokenizer(1, 1, True), HindiCharacterTokenizer(2, 2, False)
    assert (first.size, second.size) == (191, 146)
    assert first.encode("अ ज़ Hi") == [0, 74, 0, 74 + 21, 74 + 67, 0, 155, 0]
    assert second.encode("Aॐ॥") == [100, 143]


def test_mandarin(small: Tokenizer) -> None:
    pytest.importorskip("jieba"), pytest.importorskip("pypinyin"), pytest.importorskip("pypinyin_dict")
    language, _ = small.language("zh")
    assert language.show(language.tokens("你好 Ab3，马。")) == "n i #3 x au #3 A B ， m a #3 。"
    assert language.show(language.tokens("大人")) == ""  # syllables that the table lacks
    assert language.show(language.tokens("银行")) == "i n #2 x a ŋ #2"  # 行 is read by its word


def word(
    pron: str, acc: int, size: int, chain: int, string: str = "語", pos: str = "名詞", group: str = "*"
) -> dict[str, Any]:
    return {
        "string": string, "pos": pos, "pos_group1": group, "pron": pron, "acc": acc, "mora_size": size,
        "chain_flag": chain,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([word("サクラ", 0, 3, -1)], "0サ1ク1ラ"),
        ([word("イノチ", 1, 3, -1)], "1イ0ノ0チ"),
        ([word("ココロ", 2, 3, -1)], "0コ1コ0ロ"),
        ([word("オトコ", 3, 3, -1)], "0オ1ト1コ"),
        ([word("サクラ", 0, 3, -1), word("ガ", 1, 1, 1)], "0サ1ク1ラ1ガ"),  # the phrase has the first word's accent
        ([word("サクラ", 0, 3, -1), word("キ", 1, 1, 0)], "0サ1ク1ラ1キ"),
        ([word("キョー", 1, 2, -1)], "1キョ0ー"),
        ([word("デス’", 1, 2, -1)], "1デ0ス"),  # the mark of a voiceless vowel is skipped
        ([word("ヴァ", 1, 1, -1), word("、", 0, 0, 0, "！", "記号")], "1ヴァ!"),
        ([word("ア", 1, 1, -1), word("、", 0, 0, 0, "♪", "記号"), word("イ", 1, 1, 1)], "1ア 1イ"),
        ([word("", 0, 0, -1), word("ア", 1, 1, 0)], "1ア"),
        ([word("エービー", 0, 4, -1, "ａｂ", "フィラー")], "AB"),
        ([word("アルファ", 1, 3, -1, "α", "記号", "アルファベット")], "1ア0ル0ファ"),
    ],
)
def test_japanese_words(words: list[dict[str, Any]], expected: str) -> None:
    tokenizer = JapaneseTokenizer()
    assert tokenizer.show(tokenizer.select(tokenizer.symbols_of_words(words))) == expected


def test_japanese_letter_case() -> None:
    lower = JapaneseTokenizer("lower")
    assert lower.size == JapaneseTokenizer().size == 175
    assert lower.symbols_of_words([word("エー", 0, 2, -1, "Ａ", "フィラー")]) == ["a"]


@pytest.mark.parametrize(("missing", "call", "extra"), [("jieba", readings, "zh"), ("pyopenjtalk", open_jtalk, "ja")])
def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, missing: str, call: Any, extra: str) -> None:
    def fail(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == missing:
            raise ImportError(name=name)
        return original(name, *args, **kwargs)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(CapabilityError, match=rf"pymagpie\[{extra}\]"):
        call.__wrapped__()


def test_open_jtalk_prints_nothing() -> None:
    """Its import would write to standard output, which may carry JSON or audio."""
    pytest.importorskip("pyopenjtalk")
    import subprocess
    import sys

    code = "from pymagpie.text import Tokenizer; Tokenizer.load().encode('今日は', 'ja')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
    assert done.stdout == b""
