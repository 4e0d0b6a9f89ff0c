"""The aggregate vocabulary: published layouts, configurations, manifests, and what does not fit."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from text_files import BYTES_ENTRY, CONFIG, SIZES, VOCAB_SIZE, ipa_entry, small_tokenizer, write_assets

from pymagpie.errors import CapabilityError, ModelError
from pymagpie.text import Tokenizer
from pymagpie.text.demo_assets import write_demo_assets
from pymagpie.text.layout import V2602, V2607

# Name, offset, size: the published tables.
OFFSETS_2602 = {
    "english_phoneme": 0, "spanish_phoneme": 96, "german_phoneme": 199, "mandarin_phoneme": 349,
    "japanese_phoneme": 458, "french_chartokenizer": 633,
    "hindi_chartokenizer": 1017, "italian_phoneme": 1208, "vietnamese_phoneme": 1592,
    "text_ce_tokenizer": 1976,
}  # fmt: skip
OFFSETS_2607 = {
    "english_phoneme": 0, "text_ce_tokenizer": 96, "spanish_phoneme": 480, "german_phoneme": 583,
    "mandarin_phoneme": 733, "japanese_phoneme": 842, "portuguese_Brazilian_phoneme": 1017,
    "hindi_phoneme": 1128, "arabic_AE": 1329,
    "arabic_SA": 1493, "arabic_MSA": 1657, "french_chartokenizer": 1821, "italian_chartokenizer": 2205,
    "vietnamese_chartokenizer": 2589, "korean_chartokenizer": 2973,
}  # fmt: skip


@pytest.mark.parametrize(("layout", "offsets", "total"), [(V2602, OFFSETS_2602, 2360), (V2607, OFFSETS_2607, 3357)])
def test_published_tables(layout: Any, offsets: dict[str, int], total: int) -> None:
    assert {section.name: layout.offset(section) for section in layout.sections} == offsets
    assert (layout.total, layout.bos_id, layout.eos_id) == (total, total, total + 1)


def test_default_is_v2602() -> None:
    tokenizer = Tokenizer.load()
    assert tokenizer.languages == ("en", "es", "de", "zh", "ja", "fr", "hi", "it", "vi")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (2360, 2361, 2362)


def test_vocab_size_chooses_the_generation() -> None:
    tokenizer = Tokenizer.load(vocab_size=3359)
    assert tokenizer.eos_id == 3358
    assert tokenizer.languages == ("en", "es", "de", "zh", "ja", "pt", "hi", "fr", "it", "vi", "ko")
    assert tokenizer.encode("A", "ko") == [2973 + 68, 2973 + 1]
    with pytest.raises(CapabilityError, match="not supported"):
        tokenizer.encode("a", "ar")
    with pytest.raises(ModelError, match=r"2362 \(v2602\), 3359 \(v2607\)"):
        Tokenizer.load(vocab_size=1234)


def test_config_decides_and_dictionaries_are_measured(small: Tokenizer) -> None:
    assert small.languages == ("en", "es", "de", "zh", "fr", "hi")
    sizes = {section.language: section.size for section in small.layout.sections}
    assert sizes == SIZES and small.vocab_size == VOCAB_SIZE
    assert small.encode("a", "fr") == [96 + 64 + 64 + 76 + ord("a") + 3, 96 + 64 + 64 + 76 + 1]


def test_sorted_config_takes_its_order_from_the_manifest(tmp_path: Path) -> None:
    """The published GGUFs have their configuration with sorted keys."""
    write_assets(tmp_path)
    config = json.loads(json.dumps(CONFIG, sort_keys=True))
    assert list(config["text_tokenizers"]) != list(CONFIG["text_tokenizers"])
    manifest = {"text_tokenizers": CONFIG["text_tokenizers"], "text_vocab_size": VOCAB_SIZE}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    tokenizer = Tokenizer.load(tmp_path, config, VOCAB_SIZE)
    assert [s.name for s in tokenizer.layout.sections] == list(CONFIG["text_tokenizers"])


def test_sorted_config_of_a_published_generation() -> None:
    entries = {section.name: BYTES_ENTRY for section in V2602.sections}
    entries["english_phoneme"] = ipa_entry("en-US", "x")
    config = json.loads(json.dumps({"a": {}, "text_tokenizers": entries}, sort_keys=True))
    layout = Tokenizer.load(config=config).layout
    assert [s.name for s in layout.sections] == list(OFFSETS_2602) and layout.pad_short_pieces


def test_sorted_config_of_unknown_names_is_refused() -> None:
    config = {"text_tokenizers": {"aaa": BYTES_ENTRY, "bbb": BYTES_ENTRY}, "z": 1}
    config = json.loads(json.dumps(config, sort_keys=True))
    with pytest.raises(ModelError, match="order of its text_tokenizers"):
        Tokenizer.load(config=config)
    unsorted = {"z": 1, **config}
    assert Tokenizer.load(config=unsorted, vocab_size=770).eos_id == 769


def test_the_config_maps_languages() -> None:
    config = {
        "z": 0,
        "text_tokenizers": {"bbb": BYTES_ENTRY, "aaa": BYTES_ENTRY},
        "language_to_tokenizer_mapping": {"ko-KR": ["bbb"], "it": "aaa", "no language": "aaa", "fr": 3},
    }
    tokenizer = Tokenizer.load(config=config)
    assert tokenizer.languages == ("ko", "it") and tokenizer.encode("a", "IT_it") == [384 + 100, 385]


def test_total_must_fit_the_model(tmp_path: Path) -> None:
    write_assets(tmp_path)
    with pytest.raises(ModelError, match=f"with BOS and EOS {VOCAB_SIZE}, but the model has 2362 text embeddings"):
        Tokenizer.load(tmp_path, CONFIG, 2362)


def test_dictionary_of_another_generation_is_found_on_first_use(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_assets(tmp_path), vocab_size=2362)
    assert tokenizer.encode("hello", "en")
    with pytest.raises(ModelError, match="es_ES_small.dict: makes 64 ids where the model has 103"):
        tokenizer.encode("hola", "es")


def test_manifest_layout(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_demo_assets(tmp_path, 98))
    assert tokenizer.languages == ("en",) and tokenizer.eos_id == 97
    # A manifest of another model does not count; the model's size does.
    assert Tokenizer.load(tmp_path, vocab_size=2362).eos_id == 2361


def test_from_metadata(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "magpietts",
        "magpietts.config_json": json.dumps(CONFIG),
        "magpietts.text_vocab_size": VOCAB_SIZE,
    }
    assert Tokenizer.from_metadata(metadata, write_assets(tmp_path)).eos_id == VOCAB_SIZE - 1
    for change in (
        {"general.architecture": "llama"},
        {"magpietts.config_json": "[1]"},
        {"magpietts.config_json": "{"},
        {"magpietts.text_vocab_size": None},
    ):
        with pytest.raises(ModelError):
            Tokenizer.from_metadata({**metadata, **change}, tmp_path)


def test_a_configuration_without_heteronyms_needs_no_list(tmp_path: Path) -> None:
    (tmp_path / "ipa_cmudict.txt").write_text("READ  ˈɹid\n", encoding="utf-8")
    config = {"z": 1, "text_tokenizers": {"english_phoneme": ipa_entry("en-US", "ipa_cmudict.txt")}}
    tokenizer = Tokenizer.load(tmp_path, config, 4 + 4 + 15 + 1 + 3 + 2)
    assert tokenizer.language("en")[0].show(tokenizer.language("en")[0].tokens("read")) == "ˈɹid"


@pytest.mark.parametrize("entries", [[], "x", {"a": 1}, {"a": {"_target_": "x.Unknown"}}])
def test_senseless_configurations(entries: Any) -> None:
    if not entries:
        assert Tokenizer.load(config={"text_tokenizers": entries}).eos_id == 2361
        return
    with pytest.raises(ModelError):
        Tokenizer.load(config={"text_tokenizers": entries}, vocab_size=10)


def test_hindi_defaults_follow_the_nemo_version() -> None:
    entry = {"_target_": "x.HindiCharsTokenizer"}
    for version, size in (("2.6.0rc0", 191), ("2.8.0rc0", 146), (None, 146)):
        config = {"z": 1, "nemo_version": version, "text_tokenizers": {"hindi": entry}}
        assert Tokenizer.load(config=config).layout.total == size
    assert Tokenizer.load(config={"text_tokenizers": {"hindi": entry}}, vocab_size=193).layout.total == 191


def test_unknown_and_malformed_languages(small: Tokenizer) -> None:
    for lang in ("xx", "it", "", "english language", "e", "en us"):
        with pytest.raises(ValueError):
            small.encode("a", lang)
    with pytest.raises(ValueError, match="it has en, es, de, zh, fr, hi"):
        small.pieces("a", "vi")
    assert small.encode("hello", "EN_us") == small.encode("hello", "en")


def test_bad_vocab_size() -> None:
    for size in ("2362", True, 2362.0):
        with pytest.raises(ValueError, match="vocab_size"):
            Tokenizer.load(vocab_size=size)  # type: ignore[arg-type]


def test_config_is_not_changed(tmp_path: Path) -> None:
    before = copy.deepcopy(CONFIG)
    small_tokenizer(tmp_path).encode("hello", "en")
    assert CONFIG == before
