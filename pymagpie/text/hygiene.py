"""Layer 2, input hygiene: what people paste becomes what a tokeniser knows; the rest is dropped and named."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable

from .languages import CJK, canonical_code, language

_LINE_ENDS = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028]")
_BLANK_LINES = re.compile(r"\n\s*\n|\u2029")
_SPACES = re.compile(" +")
_BEFORE_MARK = re.compile(r" (?=[.,;:!?](?:\s|$))")
_NOT_BETWEEN_LATIN = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")

# Replacements for characters that a language has no token for.
_SUBSTITUTES = {
    **dict.fromkeys("“”„‟″〝〞«»‹›「」『』《》〈〉", '"'),
    **dict.fromkeys("‘’‚‛′ʼ´ʹ", "'"),
    **dict.fromkeys("‐‑‒–−﹣－〜～", "-"),
    **dict.fromkeys("—―⸺⸻", " - "),
    **dict.fromkeys("。．।॥", ". "),
    **dict.fromkeys("，、﹐،", ", "),
    **dict.fromkeys("？﹖؟", "? "),
    **dict.fromkeys("！﹗", "! "),
    **dict.fromkeys("：﹕", ": "),
    **dict.fromkeys("；﹔؛", "; "),
    **dict.fromkeys("（【〔［", " ("),
    **dict.fromkeys("）】〕］", ") "),
    **dict.fromkeys("*`^_~|\\<>•‣·・▪●○■□◦¦§¶†‡¡¿", " "),
    **dict.fromkeys("™®©℠", ""),
    "…": "...",
    "‥": "..",
    "×": " x ",
    "⁄": "/",
    "∕": "/",
    "÷": "/",
}
_LETTERS = {
    "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ß": "ss", "ı": "i", "ŋ": "ng", "ħ": "h",
    "ŧ": "t", "ĸ": "k", "ə": "e",
}  # fmt: skip
_SHOWN = 8  # characters of a script, and scripts or signs, that a warning names


def check_text(text: str) -> None:
    """Raise ``ValueError`` for what is not a string of Unicode characters."""
    if not isinstance(text, str):
        raise ValueError(f"the text is of type {type(text).__name__}; it must be a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise ValueError(f"the text has a lone surrogate, U+{code:04X}, at character {error.start}") from None


def clean(
    text: str,
    lang: str = "en",
    accepts: Callable[[str], bool] | None = None,
    warnings: list[str] | None = None,
) -> str:
    """A text in NFC on one line, with only characters that the language can do something with.

    Curly quotes, dashes and full-width forms become plain unless the language has them; tabs, line ends and all kinds
    of spaces become one space, a blank line also ends a sentence; zero-width and control characters go. A letter that
    the language lacks loses its accents if that helps. What is left over, such as emoji and other scripts, is dropped,
    with one line in *warnings* that names it. *accepts* tells which characters stay (``LanguageTokenizer.accepts``; by
    default those of the language's script). The result may be empty.

    Raises ``ValueError`` for lone surrogates.
    """
    return restrict(tidy(text, lang), lang, accepts or _script(canonical_code(lang)), warnings)


def tidy(text: str, lang: str) -> str:
    """The part of ``clean`` that loses no sign: spaces, line ends, invisible characters, digits of other scripts."""
    check_text(text)
    text = _LINE_ENDS.sub("\n", unicodedata.normalize("NFC", text))
    paragraphs = [part for part in map(str.strip, _BLANK_LINES.split(text)) if part]
    text = "\n".join(_finished(part, lang) for part in paragraphs[:-1]) + "\n" + "".join(paragraphs[-1:])
    return _SPACES.sub(" ", text.translate({ord(c): _tidied(c) for c in set(text)})).strip()


def restrict(text: str, lang: str, accepts: Callable[[str], bool], warnings: list[str] | None = None) -> str:
    """The part of ``clean`` that fits a text to what a language accepts."""
    replaced: dict[int, str] = {}
    dropped: list[str] = []
    for char in dict.fromkeys(text):
        if accepts(char):
            continue
        substitute = _substitute(char, accepts)
        if substitute is None:
            if unicodedata.category(char) not in ("Mn", "Me", "Sk", "Cf"):
                dropped.append(char)
            substitute = "" if unicodedata.category(char).startswith("M") else " "
        replaced[ord(char)] = substitute
    text = _SPACES.sub(" ", text.translate(replaced)).strip()
    if dropped:  # marks that are left of it
        text = text.lstrip(" ,.;:!?")
        text = text if canonical_code(lang) == "fr" else _BEFORE_MARK.sub("", text)  # French sets spaces before marks
    if dropped and warnings is not None:
        warnings.append(f"dropped what {language(lang).name} has no token for: {_describe(dropped)}")
    return _NOT_BETWEEN_LATIN.sub("", text) if canonical_code(lang) == "ja" else text


def _finished(paragraph: str, lang: str) -> str:
    """A paragraph that ends in a punctuation mark: headings and list items often have none."""
    return paragraph if unicodedata.category(paragraph[-1]).startswith("P") else paragraph + language(lang).terminal


def _tidied(char: str) -> str:
    category = unicodedata.category(char)
    if char.isspace() or category.startswith("Z"):
        return " "
    if char == "～":
        return "〜"
    if category in ("Cc", "Cf") or _is_variation(char):
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category == "No":  # fractions, superscripts, circled digits
        return " " + unicodedata.normalize("NFKC", char).replace("⁄", "/")
    if "Ａ" <= char <= "ｚ" or char in "％＆＋＝＠＃＄￥￡":
        return unicodedata.normalize("NFKC", char)
    return char


def _is_variation(char: str) -> bool:
    """Variation selectors, the enclosing keycap, and skin tones: parts of the character before them."""
    spans = (("\ufe00", "\ufe0f"), ("\U000e0100", "\U000e01ef"), ("\U0001f3fb", "\U0001f3ff"), ("\u20e3", "\u20e3"))
    return any(first <= char <= last for first, last in spans)


def _substitute(char: str, accepts: Callable[[str], bool]) -> str | None:
    """What to write for a character that is not accepted, or None."""

    def fits(text: str) -> bool:
        return text != char and all(c == " " or accepts(c) for c in text)

    folded = _LETTERS.get(char.lower())
    if folded is not None and char.isupper():
        folded = folded.capitalize()
    candidates = [
        _SUBSTITUTES.get(char),
        char.lower(),
        folded,
        unicodedata.normalize("NFKC", char),
        "".join(c for c in unicodedata.normalize("NFKD", char) if unicodedata.category(c) != "Mn"),
        char.upper(),
    ]
    for candidate in candidates:
        if candidate is not None and fits(candidate) and (candidate or char in _SUBSTITUTES):
            return candidate
    return "" if char in "*`_~|\\" else None


def _describe(chars: list[str]) -> str:
    """Letters by script, everything else by name, not all of very many."""
    groups: dict[str, str] = {}
    for char in chars:
        name = unicodedata.name(char, f"U+{ord(char):04X}")
        key = name.split()[0].capitalize() if unicodedata.category(char).startswith("L") else name.lower()
        groups[key] = groups.get(key, "") + (char if char.isprintable() else "")
    shown = [f"{text[:_SHOWN]}{'...' * (len(text) > _SHOWN)} ({key})" for key, text in list(groups.items())[:_SHOWN]]
    return ", ".join(shown) + ", ..." * (len(groups) > _SHOWN)


@functools.cache
def _script(code: str) -> Callable[[str], bool]:
    """The characters of a language's script, for cleaning without a tokeniser."""
    scripts = {
        "zh": ("CJK", "LATIN"),
        "ja": ("CJK", "HIRAGANA", "KATAKANA", "LATIN"),
        "ko": ("HANGUL", "LATIN"),
        "hi": ("DEVANAGARI", "LATIN"),
        "ar": ("ARABIC", "LATIN"),
    }.get(code, ("LATIN",))
    marks = " ',.!?-:;/\"()[]{}" + ("，。？！；：、‘’“”（）【】「」《》…・ー々〆〇〜" if code in CJK else "«»¡¿।॥")

    def accepts(char: str) -> bool:
        return (
            char in marks
            or (char.isascii() and char.isalnum())
            or (
                unicodedata.name(char, "").startswith(scripts)
                and unicodedata.category(char)[0] in "LM"
                and unicodedata.is_normalized("NFKC", char)
            )
        )

    return accepts
