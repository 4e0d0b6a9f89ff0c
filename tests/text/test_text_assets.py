"""Finding and checking dictionary files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pymagpie.errors import ModelError, ModelNotFoundError
from pymagpie.text import Tokenizer
from pymagpie.text.assets import DICTIONARY, HETERONYMS, PATTERNS, Assets
from pymagpie.text.demo_assets import DEMO_DICTIONARY, write_demo_assets

PUBLISHED = {
    ("en", DICTIONARY): "ipa_cmudict-0.7b_nv23.01.txt",
    ("en", HETERONYMS): "heteronyms-052722",
    ("es", DICTIONARY): "es_ES_nv230301.dict",
    ("de", DICTIONARY): "de_nv230119.dict",
    ("de", HETERONYMS): "de_nv230119.heteronym",
    ("zh", DICTIONARY): "ipa_dict_nv23.05.txt",
    ("pt", DICTIONARY): "pt_br_prondict-v1.0.dict",
    ("hi", DICTIONARY): "hindi_phoneme_merged_phoneme_dict.dict",
}


@pytest.mark.parametrize("prefix", ["", "0123456789abcdef0123456789abcde_"[:0], "0123456789abcdef0123456789abcdde_"])
def test_each_pattern_finds_its_published_file_only(tmp_path: Path, prefix: str) -> None:
    # A prefix that ends in "de_" must not make every file German.
    for name in PUBLISHED.values():
        (tmp_path / (prefix + name)).write_text("x y\n")
    assets = Assets(tmp_path)
    assert set(PATTERNS) == set(PUBLISHED)
    for (lang, role), name in PUBLISHED.items():
        assert assets.find(lang, role) == tmp_path / (prefix + name)


def test_named_file_comes_first(tmp_path: Path) -> None:
    for name in ("ipa_cmudict-a.txt", "ipa_cmudict-b.txt"):
        (tmp_path / name).write_text("A  b\n")
    assets = Assets(tmp_path)
    assert assets.find("en", DICTIONARY, "nemo:" + "0" * 32 + "_ipa_cmudict-b.txt") == tmp_path / "ipa_cmudict-b.txt"
    with pytest.raises(ModelError, match="ipa_cmudict-a.txt, ipa_cmudict-b.txt; keep one"):
        assets.find("en", DICTIONARY)


def test_missing_directory_and_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such directory"):
        Tokenizer.load(tmp_path / "none")
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no dictionary for 'de' there \(\*de_\*\.dict\)"):
        tokenizer.encode("gut", "de")
    with pytest.raises(ModelNotFoundError, match="no assets directory"):
        Tokenizer.load().encode("hello", "en")


def test_a_missing_dictionary_does_not_stop_other_languages(demo_assets: Path) -> None:
    tokenizer = Tokenizer.load(demo_assets)
    with pytest.raises(ModelNotFoundError):
        tokenizer.encode("hola", "es")
    assert tokenizer.encode("hello", "en") and tokenizer.encode("oui", "fr")


def without_manifest(folder: Path) -> Path:
    write_demo_assets(folder)
    (folder / "manifest.json").unlink()
    return folder / DEMO_DICTIONARY


def test_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = without_manifest(tmp_path)
    data = path.read_bytes()
    assert Tokenizer.load(tmp_path).encode("hello", "en")
    for size in (0, 3, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(ModelError):
            Tokenizer.load(tmp_path).encode("hello", "en")
    # Cut at the end of a line, the vocabulary tells: words with digits and À stand near the start.
    path.write_bytes(data[: data.index(b"ABOUT")])
    with pytest.raises(ModelError, match="makes .* ids where the model has 96"):
        Tokenizer.load(tmp_path).encode("hello", "en")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"HELLO\n", "line 1 has no pronunciation"),
        (b";;; nothing\n", "has no pronunciation in it"),
        (b"\xff\xfe\n", "not UTF-8"),
        (b"  \n", "is empty"),
    ],
)
def test_damaged_dictionaries(tmp_path: Path, content: bytes, message: str) -> None:
    without_manifest(tmp_path).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        Tokenizer.load(tmp_path).encode("hello", "en")


def test_manifest_digest(tmp_path: Path) -> None:
    write_demo_assets(tmp_path)
    with (tmp_path / DEMO_DICTIONARY).open("a", encoding="utf-8") as file:
        file.write("ZZZ  ˈzi\n")
    with pytest.raises(ModelError, match="differs from its sha256"):
        Tokenizer.load(tmp_path).encode("hello", "en")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text_tokenizers": 3, "text_vocab_size": 5}'])
def test_damaged_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ModelError):
        Tokenizer.load(tmp_path)


def test_demo_vocabulary_is_the_english_one(demo_assets: Path) -> None:
    english, offset = Tokenizer.load(demo_assets).language("en")
    published = "!\"'(),-./0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abdefhijklmnopstuvwz{}ÀÉæðŋɑɔəɚɛɝɡɪɹʃʊʌʒˈˌθ "
    assert offset == 0 and "".join(english.vocabulary.symbols) == published + "<pad><oov>"  # type: ignore[attr-defined]
    assert json.loads((demo_assets / "manifest.json").read_text())["files"]
