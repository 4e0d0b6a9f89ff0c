"""Layer 3: a text to pieces, each with its ids and ready for the acoustic model."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .hygiene import restrict, tidy
from .languages import canonical_code, language
from .normalize import normalize as normalize_sentence
from .numbers import read_numbers
from .split import capitalize, finish, finish_cut, join_or_cut, split_sentences
from .vocabulary import LanguageTokenizer

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """A part of a text that is synthesised at a time: what is said, as phonemes, and the ids with the text EOS."""

    text: str
    phonemes: str
    ids: tuple[int, ...]


def pieces(
    text: str, lang: str, tokenizer: Tokenizer, normalize: bool = False, warnings: list[str] | None = None
) -> list[Piece]:
    """Clean a text, write its numbers as words, split it, and encode each piece.

    A text below the language's limit is one piece; a longer one is split into sentences, and long sentences at clause
    or word borders. The last piece gets terminal punctuation if it has none. For v2602, padding is put after the first
    id of a very short piece until four ids follow it, as the C++ runtime does. With *normalize* nemo_text_processing
    writes the text in spoken form first, if it is installed.

    What was dropped or could not be read is told in *warnings*, a list to append to, or in the log without one.

    Raises ``ValueError`` for a text with nothing to speak (empty, blank, or only punctuation, emoji or other scripts),
    for lone surrogates, and for a language that the model does not have.
    """
    code = canonical_code(lang)
    language_tokenizer, offset = tokenizer.language(code)
    notes: list[str] = []
    sentences = []
    for sentence in split_sentences(tidy(text, code), code):
        if normalize:
            sentence = normalize_sentence(sentence, code, notes)
        sentences.append(read_numbers(sentence, code, notes))
    sentences = _restricted(sentences, code, language_tokenizer, notes)
    texts = join_or_cut(sentences, code)
    result = []
    dropped: set[str] = set()
    for i, piece in enumerate(texts):
        if len(texts) > 1:
            piece = capitalize(piece)
        piece = finish(piece, code) if i == len(texts) - 1 else finish_cut(piece, code)
        tokens = language_tokenizer.tokens(piece, dropped)
        if not language_tokenizer.speakable(tokens):
            continue
        ids = tokenizer.model_ids([offset + i for i in language_tokenizer.ids(tokens)], code)
        result.append(Piece(piece, language_tokenizer.show(tokens), tuple(ids)))
    if dropped - {" "}:
        names = " ".join(sorted(dropped - {" "}))
        notes.append(f"no {language(code).name} token for: {names[:100]}")
    if warnings is not None:
        warnings += notes
    else:
        for note in notes:
            log.warning(note)
    if not result:
        reason = f" ({'; '.join(notes)})" if notes else ""
        raise ValueError(f"the text has nothing that can be spoken in {language(code).name}{reason}")
    return result


def _restricted(sentences: list[str], code: str, tokenizer: LanguageTokenizer, notes: list[str]) -> list[str]:
    """The sentences in characters that the tokeniser accepts, with one note for all that was dropped."""
    # A line end separates them, which no accepted character is and no substitute makes.
    lines = restrict("\n".join(sentences), code, lambda char: char == "\n" or tokenizer.accepts(char), notes)
    return [line.strip() for line in lines.split("\n") if any(map(str.isalnum, line))]
