"""Character tokenisers: bytes (fr, it, vi; in v2607 also ko) and Hindi characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from .vocabulary import DEFAULT_PUNCTUATION, OOV, PAD, SPACE, LanguageTokenizer, SymbolTokenizer, Vocabulary

_LATIN = "abcdefghijklmnopqrstuvwxyz"
DEVANAGARI = "अआइईउऊऋॠएऐओऔऍऑकखगघङचछजझञटठडढणतथदधनपफबभमयरलवशषसहळऩऱािीुूृॄेैोौॅॉँंः़्ॊॢॣॆ।"
DANDAS = ("।", "॥")


class ByteTokenizer(LanguageTokenizer):
    """ByT5: byte *b* of the UTF-8 form is id *b* + 3, and an end mark follows the text. Nothing is normalised.

    Ids 259 .. 383 are sentinels that text never becomes. The tokens are characters, and the end mark.
    """

    END = "</s>"
    END_ID, OFFSET = 1, 3
    size, pad_id = 384, 0

    def tokens(self, text: str, dropped: set[str] | None = None) -> list[str]:
        return [*text, self.END]

    def ids(self, tokens: Iterable[str]) -> list[int]:
        result: list[int] = []
        for token in tokens:
            result += [self.END_ID] if token == self.END else [byte + self.OFFSET for byte in token.encode()]
        return result

    def encode(self, text: str) -> list[int]:
        return [*(byte + self.OFFSET for byte in text.encode()), self.END_ID]

    def accepts(self, char: str) -> bool:
        """Latin and Hangul letters with their marks, digits and common punctuation, not every character."""
        return char.isascii() and char.isprintable() or _is_letter_of(char, ("LATIN", "HANGUL")) or char in "«»¡¿€£º°"

    def speakable(self, tokens: Iterable[str]) -> bool:
        return any(token.isalnum() for token in tokens)

    def show(self, tokens: Iterable[str]) -> str:
        return "".join(token for token in tokens if token != self.END)


class HindiCharacterTokenizer(SymbolTokenizer):
    """Devanagari characters, Latin letters and punctuation, with no case mapping.

    Version 1 (v2602) has the Devanagari characters twice, of which the second count, and only small Latin letters;
    version 2 has them once, both Latin cases, and the dandas as punctuation.
    """

    def __init__(self, charset_version: int, punct_version: int, pad_with_space: bool, apostrophe: bool = True) -> None:
        punctuation = sorted(DEFAULT_PUNCTUATION)
        if punct_version >= 2:
            punctuation += DANDAS
        letters = DEVANAGARI * 2 + _LATIN if charset_version == 1 else DEVANAGARI + _LATIN + _LATIN.upper()
        symbols = [SPACE, *letters, *("'" if apostrophe else ""), *punctuation, PAD, OOV]
        super().__init__(Vocabulary(symbols), {*punctuation, *DANDAS}, pad_with_space)

    def symbols(self, text: str) -> list[str]:
        return list(unicodedata.normalize("NFC", text).replace("’", "'"))

    def accepts(self, char: str) -> bool:
        # Letters with a nukta decompose in NFC.
        return all(c in self.vocabulary for c in unicodedata.normalize("NFC", char))


def _is_letter_of(char: str, scripts: tuple[str, ...]) -> bool:
    name = unicodedata.name(char, "")
    return name.startswith(scripts) and (char.isalpha()) or name.startswith("COMBINING")
