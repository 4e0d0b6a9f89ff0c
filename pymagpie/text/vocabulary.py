"""Vocabularies, and what all tokenisers that go through symbols have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

SPACE, PAD, OOV = " ", "<pad>", "<oov>"

# In the order of the character tokenisers' vocabularies; the IPA tokenisers sort them.
DEFAULT_PUNCTUATION = (",", ".", "!", "?", "-", ":", ";", "/", '"', "(", ")", "[", "]", "{", "}")


class Vocabulary:
    """Symbols and their ids. An id is a position; of a symbol that stands twice, the later position counts."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = tuple(symbols)
        self.index = {symbol: i for i, symbol in enumerate(self.symbols)}
        missing = [symbol for symbol in (SPACE, PAD, OOV) if symbol not in self.index]
        if missing:
            raise ValueError(f"the vocabulary lacks {', '.join(map(repr, missing))}")
        self.space_id, self.pad_id, self.oov_id = (self.index[symbol] for symbol in (SPACE, PAD, OOV))
        self._sounds = self.index.keys() - {PAD, OOV}

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: object) -> bool:
        """Whether text may become this symbol, which excludes the padding and the unknown mark."""
        return symbol in self._sounds


class LanguageTokenizer(ABC):
    """Layer 1: the tokeniser of one language, with ids that start at 0 and no text EOS."""

    size: int
    pad_id: int
    source: Path | None = None
    """The dictionary, for messages."""

    @abstractmethod
    def tokens(self, text: str, dropped: set[str] | None = None) -> list[str]:
        """The tokens of a text; what has none is left out and added to *dropped*."""

    @abstractmethod
    def ids(self, tokens: Iterable[str]) -> list[int]:
        """The ids of the tokens that ``tokens`` returned."""

    @abstractmethod
    def accepts(self, char: str) -> bool:
        """Whether the language can do something with a character, so that hygiene need not touch it."""

    @abstractmethod
    def speakable(self, tokens: Iterable[str]) -> bool:
        """Whether there is more in the tokens than spaces and punctuation."""

    def show(self, tokens: Iterable[str]) -> str:
        """The tokens as one string for people."""
        return "".join(tokens).strip()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, each in ``0 .. size - 1``; empty when nothing of the text has a token."""
        return self.ids(self.tokens(text))


class SymbolTokenizer(LanguageTokenizer):
    """A tokeniser that turns text into symbols and looks those up in a vocabulary."""

    collapse_spaces = True

    def __init__(self, vocabulary: Vocabulary, punctuation: Iterable[str], pad_with_space: bool) -> None:
        self.vocabulary = vocabulary
        self.punctuation = frozenset(punctuation)
        self.pad_with_space = pad_with_space
        self.size, self.pad_id = len(vocabulary), vocabulary.pad_id

    @abstractmethod
    def symbols(self, text: str) -> list[str]:
        """All symbols of a text, in the vocabulary or not."""

    def tokens(self, text: str, dropped: set[str] | None = None) -> list[str]:
        return self.select(self.symbols(text), dropped)

    def select(self, symbols: Iterable[str], dropped: set[str] | None = None) -> list[str]:
        """The symbols that have an id, without trailing spaces, and between two spaces if the language pads so.

        Runs of spaces become one and leading ones go, except in the IPA tokenisers (``collapse_spaces``).
        """
        tokens: list[str] = []
        for symbol in symbols:
            if symbol not in self.vocabulary:
                if dropped is not None:
                    dropped.add(symbol)
            elif symbol != SPACE or not self.collapse_spaces or (tokens and tokens[-1] != SPACE):
                tokens.append(symbol)
        while tokens and tokens[-1] == SPACE:
            tokens.pop()
        return [SPACE, *tokens, SPACE] if tokens and self.pad_with_space else tokens

    def ids(self, tokens: Iterable[str]) -> list[int]:
        index = self.vocabulary.index
        return [index[token] for token in tokens]

    def speakable(self, tokens: Iterable[str]) -> bool:
        return any(token != SPACE and token != "'" and token not in self.punctuation for token in tokens)
