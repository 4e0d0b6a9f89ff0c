"""Reading the dictionaries: CMUdict-style pronunciations, heteronym lists, and the Mandarin syllable table."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pymagpie.errors import ModelError, ModelNotFoundError

# The letters of words. Devanagari goes without its dandas and digits.
LATIN = "A-Za-z"
LETTERS = LATIN + "À-ÖØ-öø-ÿ" + "\u0900-\u0963\u0971-\u0dff" + "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3"
LETTER_OR_DIGIT = re.compile(rf"[{LETTERS}\d]")
_ENTRY = re.compile(rf"^([{LETTERS}'×÷]\S*)[^\S\n]+(\S[^\n]*)$", re.MULTILINE)
_INCOMPLETE = re.compile(rf"^[{LETTERS}'×÷]\S*[^\S\n]*$", re.MULTILINE)
_VARIANT = re.compile(r"\([0-9]+\)$", re.MULTILINE)


def read_text(path: Path) -> str:
    """A text file in NFC. Raises ``ModelNotFoundError`` without the file, ``ModelError`` when it is not UTF-8."""
    try:
        return unicodedata.normalize("NFC", path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 text (byte {error.start}); the file is damaged") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None


@dataclass
class PronunciationDictionary:
    """Words with their first pronunciation, each a string of one-character phonemes.

    ``phonemes`` are the characters of the pronunciations, ``graphemes`` the letters and digits of the words, and
    ``ambiguous`` the words with several pronunciations, where that was asked for.
    """

    path: Path
    words: dict[str, str]
    phonemes: set[str]
    graphemes: set[str]
    ambiguous: frozenset[str] = frozenset()

    @classmethod
    def read(
        cls, path: Path, case: Callable[[str], str], ignored: str = "", find_ambiguous: bool = False
    ) -> PronunciationDictionary:
        """Read ``WORD  pronunciation`` lines; *case* is applied to each word, *ignored* are phonemes to leave out.

        Lines that do not start with a letter or an apostrophe are comments. ``WORD(2)`` is another pronunciation of
        ``WORD``. Raises ``ModelError`` for a file that has a word without pronunciation or no word at all.
        """
        text = read_text(path)
        entries = _ENTRY.findall(text)
        incomplete = _INCOMPLETE.search(text)
        if incomplete:
            number = text.count("\n", 0, incomplete.start()) + 1
            raise ModelError(f"{path}: line {number} has no pronunciation; the file is damaged or cut short")
        if not entries:
            raise ModelError(f"{path}: has no pronunciation in it; it is not a dictionary, or cut short")
        # The full English dictionary has 135,000 lines: strings of all of them are far quicker than a loop over them.
        spelled = case(_VARIANT.sub("", "\n".join(word for word, _ in entries)))
        spoken = "\n".join(pronunciation for _, pronunciation in entries)
        spoken = spoken.translate({ord(char): None for char in " \t\r\f\v\xa0" + ignored})
        words, pronunciations = spelled.split("\n"), spoken.split("\n")
        # From the end, so that the first pronunciation stays.
        first = dict(zip(reversed(words), reversed(pronunciations), strict=True))
        repeated = frozenset(w for w, n in Counter(words).items() if n > 1) if find_ambiguous else frozenset()
        graphemes = {char for char in set(spelled) if LETTER_OR_DIGIT.match(char)}
        return cls(path, first, set(spoken) - {"\n"}, graphemes, repeated)


def read_word_list(path: Path, case: Callable[[str], str]) -> frozenset[str]:
    """A list with a word a line, such as the heteronyms."""
    words = frozenset(case(line.strip()) for line in read_text(path).split("\n") if line.strip())
    if not words:
        raise ModelError(f"{path}: has no word in it")
    return words


def read_syllables(path: Path) -> dict[str, list[str]]:
    """Lower-case pinyin syllables without tone -> phonemes, from ``SYLLABLE<tab>phonemes`` lines."""
    syllables = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip() or line.startswith(";;;"):
            continue
        syllable, *phonemes = line.split()
        if not phonemes:
            raise ModelError(f"{path}: line {number} has no phonemes; the file is damaged or cut short")
        syllables[syllable.lower()] = phonemes
    if not syllables:
        raise ModelError(f"{path}: has no syllable in it")
    return syllables
