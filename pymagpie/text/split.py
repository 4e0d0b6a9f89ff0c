"""Splitting long texts into sentences, and long sentences at clause and word borders."""

from __future__ import annotations

import re

from pymagpie.errors import CapabilityError

from .languages import CJK, Language, canonical_code, language

MAX_WORDS = 35  # of a piece, in languages that write spaces
MAX_CHARACTERS = 600  # of any piece, so that a text without spaces is bounded too
_FULL_WIDTH = "。！？।॥"
_TERMINALS = frozenset(".?!？！。।॥")
_END = re.compile(r"""[.!?…。！？।॥]+(?:["'”’»›」』）)\]}]| »(?= |$))*""")
_CLAUSE_ENDS = frozenset(",;:，、；：—–")
_CLOSERS = "\"'”’»›」』）)]}"

# Abbreviations that a name or number follows: no sentence ends after them.
_TITLES = "mr mrs ms dr prof sr jr rev gov gen col lt sgt capt hon pres sen rep st mt ft no nos vs fig vol pp ed eds"
_ABBREVIATIONS = {
    "en": _TITLES + " e.g i.e cf approx dept est inc. univ",
    "es": "sr sra srta dr dra prof d dña ud uds pág núm art av avda p.ej ee.uu vs gral ing lic",
    "de": "dr prof hr fr frl herr st str nr bzw z.b d.h u.a usw vgl ca evtl ggf inkl zzgl abb bd dipl ing s.o s.u v.a",
    "fr": "m mm mme mlle dr pr me st ste av p.ex cf env art vol éd chap",
    "it": "sig sigg dott prof avv ing arch dr st ss pag art vol cfr ecc",
    "pt": "sr sra dr dra prof av pág art vol núm p.ex eng exmo",
    "vi": "ts ths gs pgs tp q p st",
    "hi": "डॉ श्री प्रो",
}
# Abbreviations that may also stand at the end of a sentence, which the case of the next letter tells.
_MAY_END = frozenset("etc inc ltd co corp jr sr usw ecc a.m p.m a.d b.c u.s u.k u.n d.c ph.d m.d b.a m.a u.s.a".split())
_STARTERS = frozenset(
    "the a an he she it we they i you this that these those in on at but and so then there what when why how his her "
    "my our your their if for no yes".split()
)
_ABBREVIATION_SETS = {code: frozenset(names.split()) for code, names in _ABBREVIATIONS.items()}


def split_sentences(text: str, lang: str = "en") -> list[str]:
    """The sentences of a one-line text; joined (with a space where there was one) they are the text.

    Where it is not certain that a sentence ends, none does: abbreviations, initials, decimals, ordinals, an ellipsis or
    a quoted question that goes on with a small letter. A part without a letter or digit goes to the sentence before.
    """
    code = canonical_code(lang)
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if _ends_sentence(text, match, code):
            _add(sentences, text[start : match.end()], text[start : start + 1] == " ")
            start = match.end()
    _add(sentences, text[start:], text[start : start + 1] == " ")
    if len(sentences) > 1 and not any(map(str.isalnum, sentences[0])):
        sentences[:2] = [" ".join(sentences[:2])]
    return sentences


def _add(sentences: list[str], part: str, spaced: bool) -> None:
    part = part.strip()
    if sentences and part and not any(map(str.isalnum, part)):
        sentences[-1] += (" " if spaced else "") + part
    elif part:
        sentences.append(part)


def _ends_sentence(text: str, match: re.Match[str], code: str) -> bool:
    marks, end = match[0], match.end()
    if any(mark in _FULL_WIDTH for mark in marks):
        return True
    following = text[end : end + 1]
    if not following:
        return True
    if following != " ":
        return code in CJK and marks[0] in "!?"
    word = re.match(r"\W*(\w*)", text[end + 1 : end + 33])
    next_word = word[1] if word else ""
    small = next_word[:1].islower()
    if marks[0] != "." or marks.startswith(".."):
        # "Well ... maybe" and "Who?" he asked go on; Yahoo! is an exception not made.
        return not (small and (marks[0] in ".…" or marks[-1] in _CLOSERS))
    before = re.search(r"[^\s(\[{\"'“‘«¿¡]*$", text[max(0, match.start() - 32) : match.start()])
    previous = before[0] if before else ""
    name = previous.lower()
    if name in _MAY_END or re.fullmatch(r"(?:\w\.)+\w", previous):
        return (
            next_word[:1].isupper()
            and (name not in _ABBREVIATION_SETS.get(code, ()))
            and (code != "en" or "." not in previous or next_word.lower() in _STARTERS)
        )
    if name in _ABBREVIATION_SETS.get(code, ()):
        return False
    if len(previous) == 1 and previous.isupper() and code not in CJK:  # an initial; the pronoun I may end a sentence
        return previous == "I" and code == "en" and next_word.lower() in _STARTERS
    if code == "de" and previous.isdigit() and len(previous) <= 2:  # an ordinal
        return False
    return not small or len(marks) == 1


def split_text(text: str, lang: str = "en") -> list[str]:
    """The texts of the pieces: one if the text is below the language's limit, otherwise sentences, the long ones cut.

    Nothing is lost: the pieces, joined with spaces (or without, where the language writes none), are the text.
    """
    return join_or_cut(split_sentences(text, lang), lang)


def join_or_cut(sentences: list[str], lang: str) -> list[str]:
    """The pieces of a text that is in sentences already."""
    rules = language(lang)
    text = _joined(sentences, rules)
    length = len(text) if rules.unit == "characters" else len(text.split())
    if length < rules.limit and len(text) <= MAX_CHARACTERS:
        return [text] if text else []
    return [piece for sentence in sentences for piece in cut_sentence(sentence, lang)]


def _joined(sentences: list[str], rules: Language) -> str:
    if rules.code not in CJK:
        return " ".join(sentences)
    text = ""
    for sentence in sentences:
        text += " " * (text[-1:].isascii() and sentence[0].isascii()) + sentence
    return text.strip()


def cut_sentence(sentence: str, lang: str) -> list[str]:
    """A sentence in parts that are short enough, cut after commas and the like if possible, else between words."""
    rules = language(lang)
    if rules.unit == "characters":
        return _cut_characters(sentence, rules.limit, rules.code)
    words = [part for word in sentence.split() for part in _chopped(word)]
    pieces: list[str] = []
    start = 0
    while start < len(words):
        end, length = start, 0
        while end < min(len(words), start + MAX_WORDS) and length + len(words[end]) < MAX_CHARACTERS:
            length += len(words[end]) + 1
            end += 1
        if end < len(words):
            clauses = [i for i in range(start + 1, end + 1) if words[i - 1][-1] in _CLAUSE_ENDS]
            end = clauses[-1] if clauses else end
        pieces.append(" ".join(words[start:end]))
        start = end
    return pieces


def _chopped(word: str) -> list[str]:
    """A word, in parts when it is far longer than a word can be."""
    size = MAX_CHARACTERS // 4
    return [word[i : i + size] for i in range(0, len(word), size)]


def _cut_characters(sentence: str, limit: int, code: str) -> list[str]:
    pieces = []
    start = 0
    while len(sentence) - start > limit:
        window = sentence[start : start + limit + 1]
        clauses = [i + 1 for i, char in enumerate(window[:limit]) if char in _CLAUSE_ENDS]
        if clauses:
            cut = clauses[-1]
        else:
            borders = [i for i in _word_borders(window, code) if limit // 2 <= i <= limit]
            cut = borders[-1] if borders else limit
        pieces.append(window[:cut].strip())
        start += cut
    return [piece for piece in (*pieces, sentence[start:].strip()) if piece]


def _word_borders(window: str, code: str) -> list[int]:
    """Where words end in Chinese or Japanese, nearly: by jieba, or where hiragana gives way to another script."""
    if code == "zh":
        from .mandarin import readings

        try:
            cut, _ = readings()
        except CapabilityError:
            return []
        borders, position = [], 0
        for word in cut(window):
            position += len(word)
            borders.append(position)
        return borders[:-1]
    return [i for i in range(1, len(window)) if _hiragana(window[i - 1]) and not _hiragana(window[i])]


def _hiragana(char: str) -> bool:
    return "\u3040" <= char <= "\u309f"


def finish(text: str, lang: str) -> str:
    """The terminal rule for the last piece: a comma, colon or semicolon at its end becomes the language's full stop,
    and one is added where there is no terminal punctuation. Spaces before it go. A blank text stays."""
    content = text.rstrip()
    if not content:
        return text
    trailing = text[len(content) :]
    if content[-1] in _TERMINALS:
        return content[:-1].rstrip() + content[-1] + trailing if content[:-1].strip() else text
    if content[-1] in ",:;":
        content = content[:-1].rstrip()
    return content + language(lang).terminal + trailing


def finish_cut(text: str, lang: str) -> str:
    """A piece that is not the last, with a full stop if it ends in no punctuation: it was cut out of a sentence."""
    bare = text.rstrip(_CLOSERS)
    ended = bare and (bare[-1] in _TERMINALS or bare[-1] in _CLAUSE_ENDS or bare[-1] == "…")
    return text if ended or not bare else text + language(lang).terminal


def capitalize(text: str) -> str:
    """A piece that starts with a capital, as sentences do. A word with a capital inside (iPhone) is left alone."""
    match = re.match(r"\W*(\w+)", text)
    if match is None or not match[1].islower():
        return text
    i = match.start(1)
    return text[:i] + text[i].upper() + text[i + 1 :]
