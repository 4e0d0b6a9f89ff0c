"""Japanese: Open JTalk's words to katakana, each mora after a digit for its pitch.

The rules are NeMo's (``JapaneseKatakanaAccentG2p``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pymagpie.errors import CapabilityError

from .vocabulary import OOV, PAD, SPACE, SymbolTokenizer, Vocabulary

Word = Mapping[str, Any]
"""A word record of Open JTalk: ``string pos pos_group1 pron acc mora_size chain_flag``."""

KATAKANA = (
    "ァアィイゥウェエォオカガキギクグケゲコゴサザシジスズセゼソゾタダチヂッツヅテデトドナニヌネノ"
    "ハバパヒビピフブプヘベペホボポマミムメモャヤュユョヨラリルレロヮワヲンヴヵヶー"
)
PUNCTUATION = (
    *'!"(),-./:;?[]{}«»•‥…‹›※◦',
    *"、。〃〈〉《》「」『』【】〒〓〔〕〖〗〘〙〚〛〜〽・",
    "・・・",
    *"ー﹅﹆！＊？｟｠",
)
_SCRIPTS = ("HIRAGANA", "KATAKANA", "CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH")
_READ_BY_OPEN_JTALK = frozenset("々〆〇％＆＋＝＠%&+=@")
_MARKS = frozenset(PUNCTUATION)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MORA = re.compile("[ア-ンヴ][ャュョァィゥェォヮ]?|[ァィゥェォヵヶッャュョヮ]|ー")
_SENTENCE = re.compile("[^。！？!?\n]*[。！？!?\n]*")
_LONGEST = 1000  # characters given to Open JTalk at once, whose cost grows faster than the text


class JapaneseTokenizer(SymbolTokenizer):
    """Japanese text to katakana with accents."""

    def __init__(self, ascii_letter_case: str = "upper", pad_with_space: bool = True) -> None:
        self._case: Callable[[str], str] = str.lower if ascii_letter_case == "lower" else str.upper
        symbols = [SPACE, "0", "1", *KATAKANA, *self._case(_LETTERS), *PUNCTUATION, PAD, OOV]
        super().__init__(Vocabulary(symbols), PUNCTUATION, pad_with_space)

    def symbols(self, text: str) -> list[str]:
        run = open_jtalk()
        return self.symbols_of_words([word for part in _parts(self._case(text.lower())) for word in run(part)])

    def symbols_of_words(self, words: Sequence[Word]) -> list[str]:
        """The symbols of Open JTalk's word records."""
        symbols: list[str] = []
        phrase, accent = "", 0
        for word in words:
            unit = self._unit(word)
            if unit is None and word["chain_flag"] == 1 and phrase:
                phrase += word["pron"]
                continue
            symbols += _accented(phrase, accent)
            phrase, accent = ("", 0) if unit is not None else (word["pron"], word["acc"])
            symbols += unit or ()
        return symbols + list(_accented(phrase, accent))

    def _unit(self, word: Word) -> Sequence[str] | None:
        """The symbols of a word that stands outside accent phrases, or None for one that belongs in one."""
        text = unicodedata.normalize("NFKC", word["string"])
        if word["pos"] in ("記号", "補助記号") and word["pos_group1"] != "アルファベット":
            return [text] if text in _MARKS else [SPACE]
        if not word["pron"] or not word["mora_size"]:
            return [SPACE]
        if word["pos"] == "フィラー" and text.isascii() and text.isalpha():
            return list(self._case(text))
        return None

    def accepts(self, char: str) -> bool:
        if char.isascii() and char.isalnum() or char == SPACE or char in _MARKS or char in _READ_BY_OPEN_JTALK:
            return True
        return unicodedata.name(char, "").startswith(_SCRIPTS)


def _accented(pronunciation: str, accent: int) -> Iterator[str]:
    """The morae of an accent phrase, each after its pitch, 0 or 1. *accent* is the last high mora, 0 for none."""
    morae = _MORA.findall(pronunciation)
    for i, mora in enumerate(morae):
        if accent == 1:
            high = i == 0
        else:
            high = i > 0 and (accent == 0 or accent >= len(morae) or i < accent)
        yield "1" if high else "0"
        yield from mora


def _parts(text: str) -> Iterator[str]:
    """The text, in parts of whole sentences when it is long."""
    if len(text) <= _LONGEST:
        yield from [text] if text else []
        return
    part = ""
    for sentence in _SENTENCE.findall(text):
        if part and len(part) + len(sentence) > _LONGEST:
            yield part
            part = ""
        part += sentence
        while len(part) > _LONGEST:
            yield part[:_LONGEST]
            part = part[_LONGEST:]
    if part:
        yield part


@functools.lru_cache(maxsize=1)
def open_jtalk() -> Callable[[str], Sequence[Word]]:
    """Open JTalk's front end, from pyopenjtalk or pyopenjtalk-plus; ``CapabilityError`` when there is neither."""
    try:
        # pyopenjtalk-plus prints about optional packages, on standard output, which may be carrying results.
        with contextlib.redirect_stdout(io.StringIO()):
            import pyopenjtalk
    except ImportError:
        raise CapabilityError(
            "Japanese needs Open JTalk: pip install 'pymagpie[ja]' (pyopenjtalk-plus, with its dictionary)"
        ) from None
    run = pyopenjtalk.run_frontend
    if "use_vanilla" in inspect.signature(run).parameters:
        # The model learned from Open JTalk's own readings, not from the later corrections of pyopenjtalk-plus.
        return functools.partial(run, use_vanilla=True)
    return run
