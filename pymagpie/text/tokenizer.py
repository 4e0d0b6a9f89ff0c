"""The tokeniser of a model: the languages of its aggregate vocabulary, each loaded on its first use."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pymagpie.errors import CapabilityError, ModelError

from .assets import DICTIONARY, HETERONYMS, Assets
from .characters import ByteTokenizer, HindiCharacterTokenizer
from .dictionary import PronunciationDictionary, read_syllables, read_word_list
from .hygiene import check_text
from .ipa import STRESSES, IPATokenizer, case_function, ipa_punctuation, ipa_vocabulary
from .japanese import JapaneseTokenizer
from .languages import canonical_code
from .layout import (
    BYTES,
    HINDI,
    IPA,
    JAPANESE,
    MANDARIN,
    UNSUPPORTED,
    V2602,
    Layout,
    Section,
    layout_by_vocab_size,
    layout_from_config,
)
from .mandarin import MandarinTokenizer
from .pieces import Piece, pieces
from .vocabulary import LanguageTokenizer

_LEAST_AFTER_FIRST = 4  # ids after the first one of a piece, in v2602


class Tokenizer:
    """Text to the ids of one model's text embedding."""

    def __init__(self, layout: Layout, assets: Assets) -> None:
        """A tokeniser with a complete layout; ``load`` is the usual way to one."""
        self.layout, self.assets = layout, assets
        self._sections = layout.spoken()
        self._tokenizers: dict[str, LanguageTokenizer] = {}
        self._lock = threading.RLock()

    @classmethod
    def load(
        cls,
        assets: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        vocab_size: int | None = None,
    ) -> Tokenizer:
        """Find the layout of the aggregate vocabulary; no dictionary is read if its size is published.

        The layout comes from the ``text_tokenizers`` of *config* (a model's own configuration: ``config_json`` of its
        GGUF), else from ``manifest.json`` in the *assets* directory, else from the published one with *vocab_size* text
        embeddings, else it is v2602's. *assets* may be None for the languages that need no file (fr hi it ja vi).

        Raises ``ModelError`` when the layout does not make *vocab_size* ids, ``ModelNotFoundError`` without the
        directory.
        """
        if vocab_size is not None and (isinstance(vocab_size, bool) or not isinstance(vocab_size, int)):
            raise ValueError(f"vocab_size is {vocab_size!r}; it must be a whole number or None")
        folder = Assets(None if assets is None else Path(assets))
        layout, vocab_size = _choose_layout(config or {}, folder, vocab_size)
        tokenizer = cls(layout, folder)
        if not layout.complete or (vocab_size is not None and layout.total + 2 != vocab_size):
            # Not the published dictionaries: read them all to learn the sizes.
            tokenizer = cls(layout.with_sizes(tokenizer._measure()), folder)
        total = tokenizer.layout.total
        if vocab_size is not None and total + 2 != vocab_size:
            raise ModelError(
                f"the text tokenisers of {layout.source} make {total} ids, with BOS and EOS {total + 2}, but the model "
                f"has {vocab_size} text embeddings: they belong to different models"
            )
        return tokenizer

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], assets: str | os.PathLike[str] | None = None) -> Tokenizer:
        """``load`` with what the GGUF metadata of an acoustic model says: its ``config_json`` and ``text_vocab_size``.

        Raises ``ModelError`` for the metadata of something else, or damaged.
        """
        if metadata.get("general.architecture") != "magpietts":
            kind = metadata.get("general.architecture")
            raise ModelError(f"the model is of architecture {kind!r}; text needs an acoustic model, 'magpietts'")
        text = metadata.get("magpietts.config_json") or "{}"
        try:
            config = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            config = None
        size = metadata.get("magpietts.text_vocab_size")
        if not isinstance(config, dict) or not isinstance(size, int) or isinstance(size, bool):
            raise ModelError("the model's config_json is not a JSON object, or it has no text_vocab_size")
        return cls.load(assets, config, size)

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages that can be spoken, in the order of their ids."""
        return tuple(code for code, section in self._sections.items() if section.kind != UNSUPPORTED)

    @property
    def vocab_size(self) -> int:
        """The number of text embeddings: all ids, BOS and EOS."""
        return self.layout.total + 2

    @property
    def bos_id(self) -> int:
        """The text BOS, which no text gets."""
        return self.layout.bos_id

    @property
    def eos_id(self) -> int:
        """The text EOS, which ends every piece."""
        return self.layout.eos_id

    def language(self, lang: str) -> tuple[LanguageTokenizer, int]:
        """The tokeniser of a language, with ids from 0, and its offset in the aggregate.

        Raises ``ValueError`` for a language that the model does not have, ``CapabilityError`` for one that needs a
        package that is not installed or that is not supported here, ``ModelError`` when its dictionary is missing,
        damaged or of another model.
        """
        code = canonical_code(lang)
        section = self._sections.get(code)
        if section is None:
            raise ValueError(f"this model has no language {lang!r}; it has {', '.join(self.languages)}")
        if section.kind == UNSUPPORTED:
            raise CapabilityError(f"{lang!r} is not supported, though in this model; use {', '.join(self.languages)}")
        with self._lock:
            tokenizer = self._tokenizers.get(code)
            if tokenizer is None:
                tokenizer = self._build(section)
                if tokenizer.size != section.size:
                    raise ModelError(
                        f"{tokenizer.source or self.assets.directory}: makes {tokenizer.size} ids where the model has "
                        f"{section.size} for {section.name}: the file is cut short or belongs to another model"
                    )
                self._tokenizers[code] = tokenizer
        return tokenizer, self.layout.offset(section)

    def encode(self, text: str, lang: str) -> list[int]:
        """Layer 1: the ids of a text as it stands, with the language's offset and without the text EOS.

        This is NeMo's tokeniser with phoneme probability 1: nothing is cleaned, split or completed. A text without any
        token gives an empty list (the byte languages always have their end mark). Raises as ``language`` does, and
        ``ValueError`` for lone surrogates.
        """
        check_text(text)
        tokenizer, offset = self.language(lang)
        return [offset + i for i in tokenizer.encode(text)]

    def model_ids(self, ids: Sequence[int], lang: str) -> list[int]:
        """What the model takes for the ids of a piece: they, for v2602 padded if few, and the text EOS.

        The C++ runtime, whose rule this is, pads right after the first id until four follow it.
        """
        padding: list[int] = []
        if self.layout.pad_short_pieces and ids:
            tokenizer, offset = self.language(lang)
            padding = [offset + tokenizer.pad_id] * (_LEAST_AFTER_FIRST + 1 - len(ids))
        return [*ids[:1], *padding, *ids[1:], self.eos_id]

    def pieces(
        self, text: str, lang: str = "en", normalize: bool = False, warnings: list[str] | None = None
    ) -> list[Piece]:
        """Layer 3: see ``pymagpie.text.pieces``."""
        return pieces(text, lang, self, normalize=normalize, warnings=warnings)

    def _measure(self) -> dict[str, int]:
        """The sizes that the dictionaries at hand make, by section name."""
        sizes = {}
        for section in self.layout.sections:
            if section.kind in (IPA, MANDARIN):
                sizes[section.name] = self._build(section, check_size=False).size
            elif section.size is None:
                raise ModelError(
                    f"{self.layout.source}: the tokeniser {section.name!r} is of a kind that is not supported"
                )
        return sizes

    def _build(self, section: Section, check_size: bool = True) -> LanguageTokenizer:
        pad_with_space = bool(section.option("pad_with_space", section.language != "en"))
        if section.kind == BYTES:
            return ByteTokenizer()
        if section.kind == HINDI:
            versions = int(section.option("charset_version", 2)), int(section.option("punct_version", 2))
            return HindiCharacterTokenizer(*versions, bool(section.option("pad_with_space", False)))
        if section.kind == JAPANESE:
            return JapaneseTokenizer(str(section.option("ascii_letter_case", "upper")), pad_with_space)
        if section.kind == MANDARIN:
            path = self._file(section, "phoneme_dict", DICTIONARY)
            mandarin = MandarinTokenizer(read_syllables(path), pad_with_space)
            mandarin.source = path
            return mandarin
        return self._build_ipa(section, pad_with_space, check_size)

    def _build_ipa(self, section: Section, pad_with_space: bool, check_size: bool) -> IPATokenizer:
        german = section.language == "de"
        grapheme_case = str(section.option("grapheme_case", "mixed" if german else "upper"))
        prefix = str(section.option("grapheme_prefix", "#" if german else ""))
        case = case_function(grapheme_case)
        ignored = "" if section.option("use_stresses", True) else STRESSES
        path, unique = self._file(section, "phoneme_dict", DICTIONARY), section.option("ignore_ambiguous_words", False)
        dictionary = PronunciationDictionary.read(path, case, ignored, find_ambiguous=bool(unique))
        # A configuration says whether there are heteronyms; the published layouts have them for two languages.
        listed = section.option("heteronyms", None) if section.options else section.language in ("en", "de")
        heteronyms = self._file(section, "heteronyms", HETERONYMS) if listed else None
        for punctuation in _punctuation_choices(section):
            vocabulary = ipa_vocabulary(
                dictionary,
                punctuation,
                prefix,
                bool(section.option("apostrophe", True)),
                bool(section.option("use_chars", True)),
            )
            if not check_size or len(vocabulary) == section.size:
                break
        return IPATokenizer(
            dictionary,
            vocabulary,
            locale=section.locale,
            punctuation=punctuation,
            heteronyms=read_word_list(heteronyms, case) if heteronyms else (),
            pad_with_space=pad_with_space,
            grapheme_case=grapheme_case,
            grapheme_prefix=prefix,
            ignore_ambiguous_words=bool(unique),
        )

    def _file(self, section: Section, option: str, role: str) -> Path:
        named = section.option(option, None)
        path = self.assets.find(section.language or "", role, named if isinstance(named, str) else None)
        assert path is not None  # required files are found or raise
        return path


def _choose_layout(config: Mapping[str, Any], assets: Assets, vocab_size: int | None) -> tuple[Layout, int | None]:
    """The layout, and the number of text embeddings that it must make if that is known."""
    manifest = assets.manifest
    tokenizers = manifest.get("text_tokenizers")
    if config.get("text_tokenizers"):
        order = list(tokenizers) if isinstance(tokenizers, Mapping) else []
        return layout_from_config(config, "the model's configuration", order, vocab_size), vocab_size
    size = manifest.get("text_vocab_size")
    size = size if isinstance(size, int) else vocab_size
    # A manifest of another generation is no fault: the dictionaries of both are the same files.
    if tokenizers and vocab_size in (None, size):
        return layout_from_config(manifest, f"{assets.directory}/manifest.json", vocab_size=size), size
    return V2602 if vocab_size is None else layout_by_vocab_size(vocab_size), vocab_size


def _punctuation_choices(section: Section) -> list[list[str]]:
    """The punctuation of a language; more than one where versions differ, and the vocabulary's size decides."""
    if section.option("punct", True) is False:
        return [[]]
    return [ipa_punctuation(section.locale)] + ([ipa_punctuation("")] if section.language == "hi" else [])
