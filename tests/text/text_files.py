"""Small hand-made dictionaries, and the configuration of a model that uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymagpie.text import Tokenizer
from pymagpie.text.demo_assets import ENGLISH_ENTRY, write_demo_assets

SPANISH = """\
AÑO  ˈaɲo
AÑO(1)  ˈanjo
ALEGRÍA  ˌaleɡɾˈia
BUENOS  bwˈenos
HOLA  ˈola
MUNDO  mˈundo
QUÉ  kˈe
VERTE  bˈeɾte
"""
GERMAN = """\
Brave\tbrˈɑːvə
Straße\tʃtrˈɑːsə
arm\tˈaɾm
der\tdɛɾ
drei\tdrˈaɪ
gut\tɡˈuːt
und\tˈʊnt
"""
GERMAN_HETERONYMS = "Weg\nweg\n"
SYLLABLES = ";;; comment\nHAO\tx au\nMA\tm a\nNI\tn i\nHANG\tx a ŋ\nYIN\ti n\n"
HINDI_ENTRY = {"_target_": "a.HindiCharsTokenizer", "charset_version": 1, "punct_version": 1, "pad_with_space": True}
BYTES_ENTRY = {"_target_": "AutoTokenizer", "pretrained_model": "google/byt5-small"}


def ipa_entry(locale: str, dictionary: str, **g2p: Any) -> dict[str, Any]:
    return {
        "_target_": "x.IPATokenizer",
        "locale": locale,
        "punct": True,
        "apostrophe": True,
        "pad_with_space": True,
        "g2p": {"locale": locale, "phoneme_dict": f"nemo:{'0' * 32}_{dictionary}", **g2p},
    }


CONFIG: dict[str, Any] = {
    "nemo_version": "2.6.0",
    "text_tokenizers": {
        "english_phoneme": ENGLISH_ENTRY,
        "spanish_phoneme": ipa_entry("es-ES", "es_ES_small.dict"),
        "german_phoneme": ipa_entry(
            "de-DE", "de_small.dict", heteronyms="de_small.heteronym", grapheme_case="mixed", grapheme_prefix="#"
        ),
        "mandarin_phoneme": {
            "_target_": "x.ChinesePhonemesTokenizer",
            "pad_with_space": True,
            "g2p": {"phoneme_dict": "ipa_dict_nv_small.txt"},
        },
        "french_chartokenizer": BYTES_ENTRY,
        "hindi_chartokenizer": HINDI_ENTRY,
    },
}
# Counted by hand: phonemes, graphemes, punctuation, apostrophe, and space, pad, oov.
SIZES = {
    "en": 96,
    "es": 20 + 19 + 21 + 1 + 3,
    "de": 20 + 14 + 26 + 1 + 3,
    "zh": 7 + 5 + 26 + 1 + 34 + 3,
    "fr": 384,
    "hi": 191,
}
VOCAB_SIZE = sum(SIZES.values()) + 2


def write_assets(directory: Path) -> Path:
    """All the dictionaries of ``CONFIG``."""
    write_demo_assets(directory)
    for name, text in {
        "es_ES_small.dict": SPANISH,
        "de_small.dict": GERMAN,
        "de_small.heteronym": GERMAN_HETERONYMS,
        "ipa_dict_nv_small.txt": SYLLABLES,
    }.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def small_tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(write_assets(directory), CONFIG, VOCAB_SIZE)
