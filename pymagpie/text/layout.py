"""The aggregate vocabulary: which range of text ids belongs to which tokeniser.

All languages share one embedding table; a language is chosen only by the range its ids come from. After the last range
come the text BOS, which is never used, and the text EOS.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pymagpie.errors import ModelError

from .languages import canonical_code

log = logging.getLogger(__name__)

IPA, BYTES, HINDI, MANDARIN, JAPANESE, UNSUPPORTED = "ipa", "bytes", "hindi", "mandarin", "japanese", "unsupported"
CONTEXT_TOKENIZER = "text_ce_tokenizer"

_KINDS = {
    "IPATokenizer": IPA,
    "AutoTokenizer": BYTES,
    "ChinesePhonemesTokenizer": MANDARIN,
    "JapanesePhonemeTokenizer": JAPANESE,
    "HindiCharsTokenizer": HINDI,
}
_IPA_SIZES = {"en": 96, "es": 103, "de": 150, "pt": 111, "hi": 201}
_LOCALES = {"en": "en-US", "es": "es-ES", "de": "de-DE", "pt": "pt-BR", "hi": "hi-IN"}
_NAMES = {
    "english": "en", "spanish": "es", "german": "de", "mandarin": "zh", "chinese": "zh", "japanese": "ja",
    "french": "fr", "hindi": "hi", "italian": "it", "vietnamese": "vi", "portuguese": "pt", "korean": "ko",
    "arabic": "ar",
}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """One tokeniser's range. ``language`` is None for one that no text to speak goes through.

    ``size`` is None as long as only the dictionary can tell it.
    """

    name: str
    language: str | None
    kind: str
    size: int | None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def locale(self) -> str:
        """Like ``en-US``."""
        return str(self.option("locale", None) or _LOCALES.get(self.language or "", self.language))

    def option(self, name: str, default: Any) -> Any:
        """A setting of the tokeniser, or of its g2p."""
        g2p = self.options.get("g2p")
        value = self.options.get(name)
        if value is None and isinstance(g2p, Mapping):
            value = g2p.get(name)
        return default if value is None else value


@dataclass(frozen=True)
class Layout:
    """The sections in the order of their ids. ``source`` says where it was found, for messages.

    ``pad_short_pieces``: the C++ runtime's rule for v2602, see ``Tokenizer.pieces``.
    """

    sections: tuple[Section, ...]
    source: str
    pad_short_pieces: bool = False

    @property
    def complete(self) -> bool:
        """Whether every size is known."""
        return all(section.size is not None for section in self.sections)

    @property
    def total(self) -> int:
        return sum(section.size or 0 for section in self.sections)

    @property
    def bos_id(self) -> int:
        return self.total

    @property
    def eos_id(self) -> int:
        return self.total + 1

    def offset(self, section: Section) -> int:
        """The first id of a section."""
        return sum(other.size or 0 for other in self.sections[: self.sections.index(section)])

    def spoken(self) -> dict[str, Section]:
        """Language code -> section, in the order of the ids."""
        spoken: dict[str, Section] = {}
        for section in self.sections:
            if section.language is not None:
                spoken.setdefault(section.language, section)
        return spoken

    def with_sizes(self, sizes: Mapping[str, int]) -> Layout:
        """The layout with the sizes of the named sections replaced."""
        return replace(self, sections=tuple(replace(s, size=sizes.get(s.name, s.size)) for s in self.sections))


def _table(source: str, pad_short_pieces: bool, rows: Sequence[tuple[str, str | None, str]], **options: Any) -> Layout:
    sections = []
    for name, language, kind in rows:
        chosen = options.get(language or "", {})
        sections.append(Section(name, language, kind, _published_size(kind, language, chosen), chosen))
    return Layout(tuple(sections), source, pad_short_pieces)


def _published_size(kind: str, language: str | None, options: Mapping[str, Any]) -> int | None:
    if kind == IPA:
        return _IPA_SIZES.get(language or "")
    if kind == HINDI:
        return 191 if options.get("charset_version") == 1 else 146
    return {BYTES: 384, MANDARIN: 109, JAPANESE: 175, UNSUPPORTED: 164 if language == "ar" else None}[kind]


_V2602_HINDI = {"charset_version": 1, "punct_version": 1, "pad_with_space": True}
V2602 = _table(
    "v2602",
    True,
    [
        ("english_phoneme", "en", IPA),
        ("spanish_phoneme", "es", IPA),
        ("german_phoneme", "de", IPA),
        ("mandarin_phoneme", "zh", MANDARIN),
        ("japanese_phoneme", "ja", JAPANESE),
        ("french_chartokenizer", "fr", BYTES),
        ("hindi_chartokenizer", "hi", HINDI),
        ("italian_phoneme", "it", BYTES),
        ("vietnamese_phoneme", "vi", BYTES),
        (CONTEXT_TOKENIZER, None, BYTES),
    ],
    hi=_V2602_HINDI,
)
V2607 = _table(
    "v2607",
    False,
    [
        ("english_phoneme", "en", IPA),
        (CONTEXT_TOKENIZER, None, BYTES),
        ("spanish_phoneme", "es", IPA),
        ("german_phoneme", "de", IPA),
        ("mandarin_phoneme", "zh", MANDARIN),
        ("japanese_phoneme", "ja", JAPANESE),
        ("portuguese_Brazilian_phoneme", "pt", IPA),
        ("hindi_phoneme", "hi", IPA),
        ("arabic_AE", "ar", UNSUPPORTED),
        ("arabic_SA", "ar", UNSUPPORTED),
        ("arabic_MSA", "ar", UNSUPPORTED),
        ("french_chartokenizer", "fr", BYTES),
        ("italian_chartokenizer", "it", BYTES),
        ("vietnamese_chartokenizer", "vi", BYTES),
        ("korean_chartokenizer", "ko", BYTES),
    ],
    ja={"ascii_letter_case": "lower"},
)
GENERATIONS = (V2602, V2607)


def layout_by_vocab_size(vocab_size: int) -> Layout:
    """The published layout with this many text embeddings. Raises ``ModelError`` when there is none."""
    for layout in GENERATIONS:
        if layout.total + 2 == vocab_size:
            return layout
    known = ", ".join(f"{layout.total + 2} ({layout.source})" for layout in GENERATIONS)
    raise ModelError(
        f"no text vocabulary of {vocab_size} ids is known: there are {known}; "
        "another one needs the model's configuration or a manifest.json beside the dictionaries"
    )


def layout_from_config(
    config: Mapping[str, Any], source: str, order: Sequence[str] = (), vocab_size: int | None = None
) -> Layout:
    """The layout of a model configuration with its ``text_tokenizers``.

    A configuration that was written with sorted keys has lost the order; it is then that of *order* or of the published
    generation with these names. Where the configuration does not say its NeMo version, which decides some defaults,
    *vocab_size* does. Raises ``ModelError`` for a configuration that cannot be understood.
    """
    entries = config.get("text_tokenizers")
    if not isinstance(entries, Mapping) or not all(isinstance(entry, Mapping) for entry in entries.values()):
        raise ModelError(f"{source}: text_tokenizers is not a table of tokenisers")
    languages = _languages_by_name(config)
    names = _ordered(list(entries), _is_sorted(config), order, source)

    def layout(legacy: bool) -> Layout:
        sections = [_section(name, entries[name], languages.get(name), legacy) for name in names]
        return Layout(tuple(sections), source, names == [section.name for section in V2602.sections])

    version = config.get("nemo_version")
    if version is None and vocab_size is not None and layout(True).total + 2 == vocab_size:
        return layout(True)
    return layout(_version(version) < (2, 8))


def _section(name: str, entry: Mapping[str, Any], language: str | None, legacy: bool) -> Section:
    kind = _KINDS.get(str(entry.get("_target_", "")).rsplit(".", 1)[-1], UNSUPPORTED)
    if kind == BYTES and "byt5" not in str(entry.get("pretrained_model", "")).lower():
        kind = UNSUPPORTED
    if language is None and name != CONTEXT_TOKENIZER:
        locale = Section(name, None, kind, None, entry).option("locale", None)
        language = _code(locale) or _NAMES.get(name.lower().split("_")[0])
    options = dict(entry)
    if kind == HINDI:
        version = 1 if legacy else 2
        options = {"charset_version": version, "punct_version": version, **options}
    size = _published_size(kind, language, options)
    return Section(name, language, kind, size, options)


def _languages_by_name(config: Mapping[str, Any]) -> dict[str, str]:
    """Tokeniser name -> language, from the configuration's own map."""
    mapping = config.get("language_to_tokenizer_mapping")
    languages: dict[str, str] = {}
    for language, names in mapping.items() if isinstance(mapping, Mapping) else ():
        code = _code(language)
        for name in [names] if isinstance(names, str) else names if isinstance(names, list) else []:
            if code is not None:
                languages.setdefault(str(name), code)
    return languages


def _code(locale: Any) -> str | None:
    try:
        return canonical_code(locale)
    except ValueError:
        return None


def _ordered(names: list[str], sorted_keys: bool, order: Sequence[str], source: str) -> list[str]:
    if not sorted_keys or len(names) < 2:
        return names
    for known in (order, *([s.name for s in layout.sections] for layout in GENERATIONS)):
        if set(known) == set(names):
            return list(known)
    for layout in reversed(GENERATIONS):
        known = [s.name for s in layout.sections]
        if set(names) <= set(known):
            log.warning("%s: the order of its text_tokenizers is lost; taking that of %s", source, layout.source)
            return [name for name in known if name in names]
    raise ModelError(
        f"{source}: its keys are sorted, so the order of its text_tokenizers ({', '.join(names)}) is lost; "
        "a manifest.json beside the dictionaries can tell it"
    )


def _is_sorted(value: Any) -> bool:
    """Whether every table in a configuration has its keys in alphabetical order."""
    if isinstance(value, Mapping):
        return list(value) == sorted(value) and all(map(_is_sorted, value.values()))
    return not isinstance(value, list) or all(map(_is_sorted, value))


def _version(text: Any) -> tuple[int, int]:
    """``2.6.0rc0`` -> (2, 6); what is no version counts as new."""
    major, _, rest = str(text or "").partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (99, 0)
