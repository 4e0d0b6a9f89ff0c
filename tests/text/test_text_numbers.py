"""Digits and signs as words."""

from __future__ import annotations

import pytest

from pymagpie.text import numbers
from pymagpie.text.numbers import read_numbers
from pymagpie.text.numerals import hindi_number, mandarin_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 cats", "three cats"),
        ("March 3, 2026", "March third, twenty twenty-six"),
        ("In 1984 and in 2005.", "In nineteen eighty-four and in two thousand and five."),
        ("1984 items", "one thousand nine hundred and eighty-four items"),
        ("1,234,567.8", "one million two hundred and thirty-four thousand five hundred and sixty-seven point eight"),
        ("3.14 and 0.5", "three point one four and zero point five"),
        ("$3.50, $1, £2.01", "three dollars and fifty cents, one dollar, two pounds and one penny"),
        ("€5 million, 7€", "five million euros, seven euros"),
        ("1st 2nd 3rd 21st", "first second third twenty-first"),
        ("the 1990s and 80s", "the nineteen nineties and eighties"),
        ("50% off, 5 % more", "fifty percent off, five percent more"),
        ("at 3:45, 10:05, 9:00 or 13:00", "at three forty-five, ten oh five, nine o'clock or thirteen"),
        ("-5 and -7°C, 20°", "minus five and minus seven degrees Celsius, twenty degrees"),
        ("agent 007", "agent zero zero seven"),
        ("12345678901234567", "one two three four five six seven eight nine zero one two three four five six seven"),
        ("MP3 B2B 4K", "MP three B two B four K"),
        ("10-20", "ten - twenty"),
        ("AT&T: 2+2=4 @ home #1", "AT and T: two plus two equals four at home number one"),
        ("Dr. Who and Mr. Smith", "Doctor Who and Mister Smith"),
        ("End of 2024. Next", "End of twenty twenty-four. Next"),
        ("no digits here.", "no digits here."),
        ("0th $" + "9" * 20 + ".05", "zero th " + "nine " * 20 + "dollars and five cents"),
    ],
)
def test_english(text: str, expected: str) -> None:
    pytest.importorskip("num2words")
    assert read_numbers(text, "en") == expected


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        ("de", "Am 3. Mai 1984", "Am dritten Mai neunzehnhundertvierundachtzig"),
        ("de", "Es kostet 1.234,5 €", "Es kostet eintausendzweihundertvierunddreißig Komma fünf Euro"),
        ("es", "Son 1.234 y 3,14; el 1º", "Son mil doscientos treinta y cuatro y tres coma uno cuatro; el primero"),
        ("fr", "à 15h30, 50 %", "à quinze heures trente, cinquante pour cent"),
        ("fr", "1 234 €", "mille deux cent trente-quatre euros"),
        ("it", "il 1º maggio, 21 euro", "il primo maggio, ventuno euro"),
        ("pt", "2 e 3,5", "dois e três vírgula cinco"),
        ("pt", "1.000.000.000.000", "um trilhão"),
        ("vi", "25 tuổi", "hai mươi lăm tuổi"),
        ("ko", "21%", "이십일 퍼센트"),
    ],
)  # fmt: skip
def test_other_languages(lang: str, text: str, expected: str) -> None:
    pytest.importorskip("num2words")
    assert read_numbers(text, lang) == expected


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        ("zh", "2024年有2个,50%,3.14,10:30", "二零二四年有两个,百分之五十,三点一四,十点三十分"),
        ("hi", "1,23,456 और 5%", "एक लाख तेईस हज़ार चार सौ छप्पन और पाँच प्रतिशत"),
        ("ja", "2024年50%", "2024年50%"),  # Open JTalk reads them
    ],
)
def test_languages_that_need_no_package(lang: str, text: str, expected: str) -> None:
    assert read_numbers(text, lang) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "零"), (10, "十"), (15, "十五"), (20, "二十"), (105, "一百零五"), (110, "一百一十"), (1005, "一千零五"),
        (1050, "一千零五十"), (10_000, "一万"), (10_086, "一万零八十六"), (100_000, "十万"), (1_000_001, "一百万零一"),
        (20_300_000, "二千零三十万"), (100_000_000, "一亿"), (100_010_000, "一亿零一万"),
    ],
)  # fmt: skip
def test_mandarin_numbers(value: int, expected: str) -> None:
    assert mandarin_number(value) == expected


def test_hindi_numbers() -> None:
    names = [hindi_number(i) for i in range(100)]
    assert len(set(names)) == 100 and names[99] == "निन्यानवे" and names[21] == "इक्कीस" and names[49] == "उनचास"
    assert hindi_number(12_34_567) == "बारह लाख चौंतीस हज़ार पाँच सौ सड़सठ"


def test_without_num2words_digits_stay_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_reader", lambda lang: None)
    warnings: list[str] = []
    assert read_numbers("3 cats", "en", warnings) == "3 cats"
    assert warnings == ["cannot read the digits in 'en' without num2words: pip install num2words"]
