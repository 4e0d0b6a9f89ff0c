"""A small English dictionary, so that synthetic models and tests go from text to ids without a published one."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from .assets import MANIFEST

DEMO_DICTIONARY, DEMO_HETERONYMS = "ipa_cmudict-demo.txt", "heteronyms-demo"
_HETERONYMS = "close\nlead\nlive\nread\ntear\nwind\n"
ENGLISH_ENTRY: dict[str, Any] = {
    "_target_": "nemo.collections.common.tokenizers.text_to_speech.tts_tokenizers.IPATokenizer",
    "punct": True,
    "apostrophe": True,
    "pad_with_space": False,
    "g2p": {
        "_target_": "nemo.collections.tts.g2p.models.i18n_ipa.IpaG2p",
        "phoneme_dict": DEMO_DICTIONARY,
        "heteronyms": DEMO_HETERONYMS,
        "use_stresses": True,
    },
}


def write_demo_assets(directory: str | os.PathLike[str], text_vocab_size: int | None = None) -> Path:
    """Write an assets directory with a hand-made dictionary of some 290 English words; unknown words are spelled.

    Its vocabulary is the whole English one, 96 ids, so it fits every model whose layout begins with English: a
    published layout (2362 or 3359 text embeddings), or one with English alone. For the latter pass its
    *text_vocab_size* of 98, which the manifest then states. Returns the directory.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    contents = {
        DEMO_DICTIONARY: files(__package__).joinpath("demo_dictionary.txt").read_bytes(),
        DEMO_HETERONYMS: _HETERONYMS.encode(),
    }
    manifest: dict[str, Any] = {"files": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}}
    if text_vocab_size == 98:
        manifest |= {"text_tokenizers": {"english_phoneme": ENGLISH_ENTRY}, "text_vocab_size": text_vocab_size}
    for name, data in contents.items():
        (target / name).write_bytes(data)
    (target / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return target
