"""IPA tokenisers (en, es, de; in v2607 also hi and pt): dictionary pronunciations, graphemes for the rest.

The rules are NeMo's (``IPATokenizer`` on ``IpaG2p``) with phoneme probability 1.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from .dictionary import LATIN, LETTER_OR_DIGIT, LETTERS, PronunciationDictionary
from .vocabulary import DEFAULT_PUNCTUATION, OOV, PAD, SPACE, SymbolTokenizer, Vocabulary

STRESSES = "ˈˌ"
_QUOTES = str.maketrans({"’": "'", "”": '"', "“": '"'})
_PLAIN_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")

# A word, a |span of phonemes|, or a run of anything else.
_TOKENS_EN, _TOKENS_ANY = (
    re.compile(rf"([{letters}]+(?:[-']+[{letters}]+)*)|\|([^|]*)\||([^{letters}|]+)") for letters in (LATIN, LETTERS)
)


def ipa_punctuation(locale: str) -> list[str]:
    """The punctuation of a locale, sorted."""
    marks = set(DEFAULT_PUNCTUATION)
    if locale in ("de-DE", "es-ES", "it-IT", "fr-FR"):
        marks.update("«»‹›")
    if locale == "de-DE":
        marks.update("„“‚‘‒–—")
    elif locale == "es-ES":
        marks.update("¿¡")
    elif locale == "hi-IN":
        marks.update("।॥")
    return sorted(marks)


def case_function(grapheme_case: str) -> Callable[[str], str]:
    """The function that brings words to the case of a dictionary's keys: ``upper``, ``lower`` or ``mixed``."""
    functions: dict[str, Callable[[str], str]] = {"upper": str.upper, "lower": str.lower, "mixed": str}
    if grapheme_case not in functions:
        raise ValueError(f"grapheme_case is {grapheme_case!r}; it must be upper, lower or mixed")
    return functions[grapheme_case]


def ipa_vocabulary(
    dictionary: PronunciationDictionary,
    punctuation: Iterable[str],
    grapheme_prefix: str = "",
    apostrophe: bool = True,
    use_chars: bool = True,
) -> Vocabulary:
    """Phonemes, graphemes, punctuation and the apostrophe, sorted by code point; then space, pad, oov."""
    symbols = dictionary.phonemes | set(punctuation)
    if use_chars:
        # The published German vocabulary has the prefix on letters only.
        symbols |= {char if char.isdigit() else grapheme_prefix + char for char in dictionary.graphemes}
    if apostrophe:
        symbols.add("'")
    return Vocabulary([*sorted(symbols - {SPACE}), SPACE, PAD, OOV])


class IPATokenizer(SymbolTokenizer):
    """Words to phonemes of one language."""

    collapse_spaces = False

    def __init__(
        self,
        dictionary: PronunciationDictionary,
        vocabulary: Vocabulary,
        *,
        locale: str,
        punctuation: Iterable[str],
        heteronyms: Iterable[str] = (),
        pad_with_space: bool = True,
        grapheme_case: str = "upper",
        grapheme_prefix: str = "",
        ignore_ambiguous_words: bool = False,
    ) -> None:
        """*dictionary* and *heteronyms* have their words in ``grapheme_case`` already.

        Heteronyms are spelled as graphemes, as are unknown words; with ``ignore_ambiguous_words`` also those that have
        several pronunciations.
        """
        super().__init__(vocabulary, punctuation, pad_with_space)
        self.dictionary, self.heteronyms = dictionary, frozenset(heteronyms)
        self.source = dictionary.path
        self.english = locale.lower().startswith("en")
        self.prefix, self._case = grapheme_prefix, case_function(grapheme_case)
        self._ambiguous = dictionary.ambiguous if ignore_ambiguous_words else frozenset()
        self._cached = functools.lru_cache(maxsize=4096)(self._pronounce)
        # A text's word may be capitalised or in capitals where the dictionary has small letters.
        self._capitals = {w.upper(): p for w, p in dictionary.words.items()} if grapheme_case == "mixed" else {}

    def accepts(self, char: str) -> bool:
        if char == SPACE or char == "'" or char in self.punctuation:
            return char in self.vocabulary
        prepared = self.prepare(char)
        if self.english and not _PLAIN_LETTERS.issuperset(prepared):
            return prepared.isascii() and prepared.isdigit() and prepared in self.vocabulary
        return bool(prepared) and all(self.prefix + self._case(c) in self.vocabulary for c in prepared)

    def prepare(self, text: str) -> str:
        """English: without accents, curly quotes straightened, lower-case. Others: NFC, with straight apostrophes."""
        if not self.english:
            return unicodedata.normalize("NFC", text).replace("’", "'")
        if not text.isascii():
            text = unicodedata.normalize("NFD", text)
            text = "".join(c for c in text if unicodedata.category(c) != "Mn").translate(_QUOTES)
        return text.lower()

    def symbols(self, text: str) -> list[str]:
        pattern = _TOKENS_EN if self.english else _TOKENS_ANY
        result: list[str] = []
        for match in pattern.finditer(self.prepare(text)):
            span = match[2]
            result += self._cached(match[0]) if span is None else span.split(" ")
        return result

    def _pronounce(self, word: str) -> Sequence[str]:
        """The symbols of a word or of a run of other characters; unknown words are tried part by part at hyphens."""
        found = self._lookup(word)
        if found is not None:
            return found
        symbols: list[str] = []
        for part in word.split("-"):
            found = self._lookup(part)
            symbols += ["-", *(self._graphemes(self._case(part)) if found is None else found)]
        return symbols[1:]

    def _lookup(self, word: str) -> Sequence[str] | None:
        """What a word or run is known to be, or None."""
        word = self._case(word)
        if not LETTER_OR_DIGIT.search(word):
            return word
        if word in self.heteronyms:
            return self._graphemes(word)
        known = self.dictionary.words
        if self.english and word not in known:
            inflected = self._inflected(word)
            if inflected is not None:
                return inflected
        if word in known:
            return None if word in self._ambiguous else known[word]
        return self._capitals.get(word.upper()) if self._capitals else None

    def _inflected(self, word: str) -> str | None:
        """An unknown English word that ends in 'S or S and has a known stem: its last letter decides the sound."""
        for ending, sibilant in (("'S", "ɪz"), ("S", "z")):
            stem = word.removesuffix(ending)
            if stem and stem != word and stem in self.dictionary.words and stem not in self._ambiguous:
                return self.dictionary.words[stem] + {"T": "s", "S": sibilant}.get(stem[-1], "z")
        return None

    def _graphemes(self, word: str) -> list[str]:
        return [self.prefix + char for char in word]
