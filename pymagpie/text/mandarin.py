"""Mandarin: jieba's words, pypinyin's readings, phonemes by syllable, and the tone after each syllable."""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from pymagpie.errors import CapabilityError

from .vocabulary import DEFAULT_PUNCTUATION, OOV, PAD, SPACE, SymbolTokenizer, Vocabulary

TONES = ("#1", "#2", "#3", "#4", "#5")
PUNCTUATION = tuple("，。？！；：、‘’“”（）【】「」《》")
# Words do not cross punctuation; without any, parts of this length keep the time linear.
_PART = re.compile("[^，。？！；：、]{0,500}[，。？！；：、]|.{1,500}", re.DOTALL)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def mandarin_vocabulary(syllables: dict[str, list[str]], apostrophe: bool = True) -> Vocabulary:
    """Space, the phonemes sorted, tones, capital letters, apostrophe, punctuation, pad, oov."""
    phonemes = sorted({phoneme for phonemes in syllables.values() for phoneme in phonemes})
    marks = [*("'" if apostrophe else ""), *PUNCTUATION, *DEFAULT_PUNCTUATION]
    return Vocabulary([SPACE, *phonemes, *TONES, *_LETTERS, *marks, PAD, OOV])


class MandarinTokenizer(SymbolTokenizer):
    """Chinese text to phonemes and tones; Latin letters are spelled."""

    def __init__(self, syllables: dict[str, list[str]], pad_with_space: bool = True, apostrophe: bool = True) -> None:
        super().__init__(
            mandarin_vocabulary(syllables, apostrophe), (*PUNCTUATION, *DEFAULT_PUNCTUATION), pad_with_space
        )
        self.syllables = syllables

    def symbols(self, text: str) -> list[str]:
        cut, pinyin = readings()
        symbols: list[str] = []
        # First small letters, then capitals, as in the reference: it matters for a few letters such as ß.
        for part in _PART.findall(text.lower().upper()):
            for word in cut(part):
                for reading in pinyin(word):
                    phonemes = self.syllables.get(reading[:-1]) if reading[-1] in "12345" else None
                    # Without phonemes it is a character of the text, or a syllable that the table lacks.
                    symbols += [reading] if phonemes is None else [*phonemes, "#" + reading[-1]]
        return symbols

    def accepts(self, char: str) -> bool:
        return is_han(char) or char.upper() in self.vocabulary

    def show(self, tokens: Iterable[str]) -> str:
        return " ".join(token for token in tokens if token != SPACE)


def is_han(char: str) -> bool:
    """Whether a character is a Chinese ideograph."""
    return (
        "\u4e00" <= char <= "\u9fff"
        or "\u3400" <= char <= "\u4dbf"
        or "\U00020000" <= char <= "\U0003ffff"
        or char == "〇"
    )


@functools.lru_cache(maxsize=1)
def readings() -> tuple[Callable[[str], Iterable[str]], Callable[[str], list[str]]]:
    """The word cutter and the function from a word to its numbered pinyin syllables.

    Raises ``CapabilityError`` when a package is missing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jieba's regular expressions have escapes that newer Pythons warn of
            import jieba
            from pypinyin import Style, lazy_pinyin
            from pypinyin_dict.pinyin_data import cc_cedict
    except ImportError as error:
        raise CapabilityError(
            f"Mandarin needs jieba, pypinyin and pypinyin-dict ({error.name} is missing): pip install 'pymagpie[zh]'"
        ) from None
    cc_cedict.load()
    jieba.setLogLevel(logging.WARNING)  # it would tell on standard error that it loads its dictionary
    cutter = jieba.Tokenizer()
    options: dict[str, Any] = {"style": Style.TONE3, "neutral_tone_with_five": True, "errors": list}
    return cutter.cut, functools.lru_cache(maxsize=16384)(lambda word: lazy_pinyin(word, **options))
