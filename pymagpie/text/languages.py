"""The languages: codes, sentence limits and terminal punctuation."""

from __future__ import annotations

import re
from dataclasses import dataclass

CJK = ("ja", "zh")


@dataclass(frozen=True)
class Language:
    """What splitting and the terminal rule must know of a language.

    A text of ``limit`` or more ``unit`` is split into sentences; the figures for the nine languages of v2602 are those
    of the C++ runtime.
    """

    code: str
    name: str
    limit: int
    unit: str = "words"
    terminal: str = "."


_LANGUAGES = {
    language.code: language
    for language in (
        Language("en", "English", 45),
        Language("es", "Spanish", 73),
        Language("fr", "French", 69),
        Language("vi", "Vietnamese", 50),
        Language("it", "Italian", 53),
        Language("de", "German", 50),
        Language("zh", "Mandarin", 100, "characters", "。"),
        Language("hi", "Hindi", 40, terminal="।"),
        Language("ja", "Japanese", 40, "characters", "。"),
        Language("pt", "Portuguese", 60),
        Language("ko", "Korean", 40),
        Language("ar", "Arabic", 40),
    )
}
_ALIASES = {"cmn": "zh", "jp": "ja", "kr": "ko"}


def canonical_code(tag: str) -> str:
    """A language code of any case and with any region, in the form used here: ``en-US`` -> ``en``, ``ZH_cn`` -> ``zh``.

    Raises ``ValueError`` for what is not a language code.
    """
    if not isinstance(tag, str) or not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*", tag.strip()):
        raise ValueError(f"{tag!r} is not a language code; use one like 'en' or 'en-US'")
    primary = re.split(r"[-_]", tag.strip().lower())[0]
    return _ALIASES.get(primary, primary)


def language(tag: str) -> Language:
    """The record of a language code; a language without one is split like English."""
    code = canonical_code(tag)
    return _LANGUAGES.get(code) or Language(code, code, 45)
