"""Reading digits and signs out as words, by num2words where it knows the language.

This is no full text normalisation (``normalize.py`` calls one): it keeps numbers, money, times, ordinals and the common
signs from being lost.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .numerals import hindi_number, mandarin_number

_MONTHS = {
    "en": "January|February|March|April|May|June|July|August|September|October|November|December",
    "de": "Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember",
}
_NUM2WORDS = {"pt": "pt_BR"}  # the model speaks Brazilian Portuguese
_MAX_DIGITS = 15  # longer numbers, and those with leading zeros, are read digit by digit


@dataclass(frozen=True)
class Words:
    """The words of a language around numbers. Money: (one, many) per sign."""

    point: str
    percent: str
    minus: str
    signs: dict[str, str]
    money: dict[str, tuple[str, str]] = field(default_factory=dict)
    degrees: str = ""
    grouping: str = ","  # what may stand between groups of three digits
    decimal: str = "."


_WORDS = {
    "en": Words(
        "point", "percent", "minus",
        {"&": "and", "@": "at", "+": "plus", "=": "equals", "#": "number"},
        {"$": ("dollar", "dollars"), "€": ("euro", "euros"), "£": ("pound", "pounds"), "¥": ("yen", "yen"),
         "₹": ("rupee", "rupees")},
        "degrees",
    ),
    "es": Words(
        "coma", "por ciento", "menos",
        {"&": "y", "@": "arroba", "+": "más", "=": "igual a", "#": "número"},
        {"$": ("dólar", "dólares"), "€": ("euro", "euros"), "£": ("libra", "libras"), "¥": ("yen", "yenes")},
        "grados", ".", ",",
    ),
    "de": Words(
        "Komma", "Prozent", "minus",
        {"&": "und", "@": "at", "+": "plus", "=": "gleich", "#": "Nummer"},
        {"$": ("Dollar", "Dollar"), "€": ("Euro", "Euro"), "£": ("Pfund", "Pfund"), "¥": ("Yen", "Yen")},
        "Grad", ".", ",",
    ),
    "fr": Words(
        "virgule", "pour cent", "moins",
        {"&": "et", "@": "arobase", "+": "plus", "=": "égale", "#": "numéro"},
        {"$": ("dollar", "dollars"), "€": ("euro", "euros"), "£": ("livre", "livres"), "¥": ("yen", "yens")},
        "degrés", " ", ",",
    ),
    "it": Words(
        "virgola", "per cento", "meno",
        {"&": "e", "@": "chiocciola", "+": "più", "=": "uguale", "#": "numero"},
        {"$": ("dollaro", "dollari"), "€": ("euro", "euro"), "£": ("sterlina", "sterline"), "¥": ("yen", "yen")},
        "gradi", ".", ",",
    ),
    "pt": Words(
        "vírgula", "por cento", "menos",
        {"&": "e", "@": "arroba", "+": "mais", "=": "igual a", "#": "número"},
        {"$": ("dólar", "dólares"), "€": ("euro", "euros"), "£": ("libra", "libras"), "¥": ("iene", "ienes")},
        "graus", ".", ",",
    ),
    "vi": Words(
        "phẩy", "phần trăm", "âm",
        {"&": "và", "@": "a còng", "+": "cộng", "=": "bằng", "#": "số"},
        {"$": ("đô la", "đô la"), "€": ("euro", "euro"), "£": ("bảng", "bảng"), "¥": ("yên", "yên"),
         "₫": ("đồng", "đồng")},
        "độ", ".", ",",
    ),
    "hi": Words(
        "दशमलव", "प्रतिशत", "ऋण",
        {"&": "और", "@": "एट", "+": "प्लस", "=": "बराबर"},
        {"$": ("डॉलर", "डॉलर"), "€": ("यूरो", "यूरो"), "£": ("पाउंड", "पाउंड"), "₹": ("रुपया", "रुपये")},
        "डिग्री",
    ),
    "ko": Words(
        "점", "퍼센트", "마이너스",
        {"&": "와", "@": "골뱅이", "+": "플러스", "=": "는"},
        {"$": ("달러", "달러"), "€": ("유로", "유로"), "£": ("파운드", "파운드"), "₩": ("원", "원"), "¥": ("엔", "엔")},
        "도",
    ),
    "zh": Words(
        "点", "百分之", "负",
        {"&": "和", "+": "加", "=": "等于"},
        {"$": ("美元", "美元"), "€": ("欧元", "欧元"), "£": ("英镑", "英镑"), "¥": ("元", "元")},
        "度",
    ),
}  # fmt: skip
_TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Dr": "Doctor", "Prof": "Professor", "Capt": "Captain",
    "Lt": "Lieutenant", "Sgt": "Sergeant", "Gen": "General", "Gov": "Governor", "Rev": "Reverend", "Sen": "Senator",
}  # fmt: skip
_TITLE = re.compile(rf"\b({'|'.join(_TITLES)})\. (?=[A-Z])")
_FRENCH_HOURS = re.compile(r"(?<![0-9])([0-2]?[0-9]) ?h(?: ?([0-5][0-9]))?(?![\w])")
_DIGIT = re.compile("[0-9]")
_ENGLISH_YEAR = re.compile(
    rf"(?:\b(?:in|since|by|until|till|from|of|year|during|before|after|around|circa|late|early|mid|{_MONTHS['en']})"
    rf"|\b(?:{_MONTHS['en']}) [0-9]{{1,2}}(?:st|nd|rd|th)?,?) $",
    re.IGNORECASE,
)
_ENGLISH_MONTH = re.compile(rf"\b(?:{_MONTHS['en']}) $")
_GERMAN_MONTH = re.compile(rf" (?:{_MONTHS['de']}|Jahrhundert)")
_GERMAN_YEAR = re.compile(rf"\b(?:im Jahre?|Jahr|seit|von|bis|um|anno|{_MONTHS['de']}) $", re.IGNORECASE)
_GERMAN_DATIVE = re.compile(r"\b(?:am|vom|dem|den|zum|beim|im|ab|bis|seit|des) $", re.IGNORECASE)


def read_numbers(text: str, lang: str, warnings: list[str] | None = None) -> str:
    """A tidy text with its digits and signs as words; *lang* is a two-letter code.

    Japanese is left to Open JTalk. Without a way to read a language's numbers the text stays as it is, with a line in
    *warnings*.
    """
    if lang == "en":
        text = _TITLE.sub(lambda match: _TITLES[match[1]] + " ", text)
    elif lang == "fr":
        text = _FRENCH_HOURS.sub(r"\1 heures \2", text)
    words = _WORDS.get(lang)
    if words is None:
        return text
    if _DIGIT.search(text):
        reader = _reader(lang)
        if reader is None:
            _warn(warnings, f"cannot read the digits in {lang!r} without num2words: pip install num2words")
        else:
            text = _NumberReader(lang, words, reader).read(text)
    pattern = "[" + re.escape("".join(words.signs)) + "]"
    text = re.sub(pattern, lambda match: f" {words.signs[match[0]]} ", text)
    return re.sub(" +", " ", text.replace("%", f" {words.percent} ").replace("°", f" {words.degrees} ")).strip()


class _NumberReader:
    """Finds the numbers of a text and writes each as words."""

    def __init__(self, lang: str, words: Words, cardinal: Callable[[int], str]) -> None:
        self.lang, self.words, self.cardinal = lang, words, cardinal
        self.space = "" if lang == "zh" else " "
        group, decimal = re.escape(words.grouping), re.escape(words.decimal)
        size = "{2,3}" if lang == "hi" else "{3}"
        self.grouped = re.compile(rf"[0-9]{{1,3}}(?:{group}[0-9]{size})*{group}[0-9]{{3}}")
        number = rf"[0-9]{{1,3}}(?:{group}[0-9]{size})+(?:{decimal}[0-9]+)?(?![0-9])|[0-9]+(?:[.,][0-9]+)?"
        signs = "".join(map(re.escape, words.money))
        # Bounded repetitions only, so that no text takes more than linear time.
        self.pattern = re.compile(
            rf"(?P<clock>(?<![0-9:.])[0-2]?[0-9]:[0-5][0-9](?::[0-5][0-9])?(?![0-9:]))"
            rf"|(?P<sign>[{signs}]) ?(?P<sum>{number})(?P<scale> (?:thousand|million|billion|trillion)\b)?"
            rf"|(?P<minus>(?<![\w)\]])[-−](?=[0-9]))?(?P<number>{number})"
            rf"(?P<suffix> ?(?:%|[{signs}])|(?:st|nd|rd|th|s|er|re|e|\.?[ºª])(?!\w)|°[CF]?(?!\w)|\.(?= ))?"
        )

    def read(self, text: str) -> str:
        parts, end = [], 0
        for match in self.pattern.finditer(text):
            before, after = text[end : match.start()], text[match.end() : match.end() + 16]
            parts.append(before)
            end = match.end()
            spoken = self._spoken(match, text[max(0, match.start() - 32) : match.start()], after)
            left = self.space if _touches(text[max(0, match.start() - 1) : match.start()]) else ""
            right = self.space if _touches(after[:1]) else ""
            parts += [left, spoken, right]
        return "".join([*parts, text[end:]])

    def _spoken(self, match: re.Match[str], before: str, after: str) -> str:
        if match["clock"]:
            return self._clock(match["clock"])
        if match["sign"]:
            return self._money(match["sum"], match["sign"], (match["scale"] or "").strip())
        number, suffix = match["number"], match["suffix"] or ""
        sign = self.words.minus + self.space if match["minus"] else ""
        bare = suffix.strip()
        if bare == "%":
            value = self._number(number)
            return sign + (self.words.percent + value if self.lang == "zh" else f"{value} {self.words.percent}")
        if bare in self.words.money:
            return sign + self._money(number, bare, "")
        if bare.startswith("°"):
            scale = {"C": " Celsius", "F": " Fahrenheit"}.get(bare[1:], "") if self.lang in ("en", "de", "fr") else ""
            return f"{sign}{self._number(number)}{self.space}{self.words.degrees}{scale}"
        if bare == ".":
            return sign + self._before_full_stop(number, before, after)
        if bare:
            return sign + self._with_ending(number, bare)
        return sign + self._plain(number, before, after)

    def _plain(self, number: str, before: str, after: str) -> str:
        if not (number.isdigit() and len(number) in (1, 2, 4)):
            return self._number(number)
        year = len(number) == 4 and "1100" <= number <= "2099"
        if self.lang == "en":
            if year and _ENGLISH_YEAR.search(before):
                return self._words(int(number), "year")
            if len(number) <= 2 and _ENGLISH_MONTH.search(before):
                return self._words(int(number), "ordinal")
        elif self.lang == "de" and year and number < "2000" and _GERMAN_YEAR.search(before):
            return self._words(int(number), "year")
        elif self.lang == "zh":
            if len(number) == 4 and after.startswith("年"):
                return self._digits(number)
            if number == "2" and after[:1] in tuple("个只条张位名种本天周件台辆家块元"):
                return "两"
        return self._number(number)

    def _before_full_stop(self, number: str, before: str, after: str) -> str:
        """A number with a full stop and a space after it: a German ordinal before a month, or a sentence's end."""
        if self.lang == "de" and len(number) <= 2 and _GERMAN_MONTH.match(after):
            return self._words(int(number), "ordinal") + ("n" if _GERMAN_DATIVE.search(before) else "")
        return self._plain(number, before, "") + "."

    def _with_ending(self, number: str, ending: str) -> str:
        endings = {"en": ("st", "nd", "rd", "th"), "fr": ("er", "re", "e"), "es": ("º", "ª", ".º", ".ª"),
                   "it": ("º", "ª"), "pt": ("º", "ª", ".º", ".ª")}  # fmt: skip
        if self.lang == "en" and ending == "s" and number.isdigit() and len(number) in (2, 4):
            spoken = self._words(int(number), "year")  # decades: 1990s, the 80s
            return spoken[:-1] + "ies" if spoken.endswith("y") else spoken + "s"
        digits = number.replace(self.words.grouping, "")
        if ending in endings.get(self.lang, ()) and digits.isdigit() and len(digits) <= 6 and int(digits):
            spoken = self._words(int(digits), "ordinal")
            return spoken[:-1] + "a" if ending.endswith("ª") or (ending == "re" and digits != "1") else spoken
        return f"{self._number(number)} {ending}"

    def _clock(self, text: str) -> str:
        hour, minute, *second = text.split(":")
        parts = [self.cardinal(int(hour))]
        if self.lang == "zh":
            parts.append("点")
            parts += [self.cardinal(int(minute)), "分"] if int(minute) else []
        elif self.lang == "en":
            parts += [] if minute == "00" and int(hour) > 12 else ["o'clock"] if minute == "00" else [
                f"oh {self.cardinal(int(minute))}" if minute[0] == "0" else self.cardinal(int(minute))
            ]  # fmt: skip
        else:
            parts += ["Uhr"] if self.lang == "de" else []
            parts += [self.cardinal(int(minute))] if int(minute) else []
        return self.space.join([*parts, *(self.cardinal(int(s)) for s in second)])

    def _money(self, number: str, sign: str, scale: str) -> str:
        one, many = self.words.money[sign]
        if scale:
            return f"{self._number(number)} {scale} {many}"
        whole, cents = self._split(number)
        if self.lang == "en" and len(cents) == 2 and sign in "$€£":
            small = ("penny", "pence") if sign == "£" else ("cent", "cents")
            amount = f"{self._number(whole)} {one if whole == '1' else many}"
            if not int(cents):
                return amount
            return f"{amount} and {self.cardinal(int(cents))} {small[int(cents) != 1]}"
        return f"{self._number(number)}{self.space}{one if number == '1' else many}"

    def _number(self, number: str) -> str:
        whole, fraction = self._split(number)
        spoken = self._digits(whole) if len(whole) > _MAX_DIGITS or (whole[0] == "0" and whole != "0") \
            else self.cardinal(int(whole))  # fmt: skip
        if not fraction:
            return spoken
        return self.space.join([spoken, self.words.point, self._digits(fraction)])

    def _split(self, number: str) -> tuple[str, str]:
        """Whole part and fraction, both bare digits."""
        if number.isdigit():
            return number, ""
        if self.grouped.fullmatch(number):
            return number.replace(self.words.grouping, ""), ""
        # "3.14" in a language with a decimal comma, and the reverse, is a decimal fraction all the same.
        mark = self.words.decimal if self.words.decimal in number else "." if "." in number else ","
        whole, _, fraction = number.partition(mark)
        return whole.replace(self.words.grouping, ""), fraction

    def _digits(self, digits: str) -> str:
        return self.space.join(self.cardinal(int(digit)) for digit in digits)

    def _words(self, value: int, form: str) -> str:
        """``form`` is year or ordinal, for the languages where num2words has it."""
        from num2words import num2words

        return str(num2words(value, lang=_NUM2WORDS.get(self.lang, self.lang), to=form)).replace(",", "")


def _touches(char: str) -> bool:
    """Whether a number needs a space between itself and this neighbour."""
    return char.isalnum() or char in ("-", "/")


def _reader(lang: str) -> Callable[[int], str] | None:
    """The function from a whole number to its words, without commas."""
    if lang == "zh":
        return mandarin_number
    if lang == "hi":
        return hindi_number
    try:
        from num2words import num2words
    except ImportError:
        return None
    name = _NUM2WORDS.get(lang, lang)
    return functools.lru_cache(maxsize=1000)(lambda value: str(num2words(value, lang=name)).replace(",", ""))


def _warn(warnings: list[str] | None, message: str) -> None:
    if warnings is not None and message not in warnings:
        warnings.append(message)
