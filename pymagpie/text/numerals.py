"""Whole numbers in Mandarin and Hindi, which num2words does not know."""

from __future__ import annotations

_HINDI = (
    "शून्य एक दो तीन चार पाँच छह सात आठ नौ दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस "
    "बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस "
    "अड़तीस उनतालीस चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास पचास इक्यावन बावन "
    "तिरपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ साठ इकसठ बासठ तिरसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर सत्तर इकहत्तर "
    "बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उन्यासी अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी "
    "अट्ठासी नवासी नब्बे इक्यानवे बानवे तिरानवे चौरानवे पचानवे छियानवे सत्तानवे अट्ठानवे निन्यानवे"
).split()
_HINDI_SCALES = ((10**7, "करोड़"), (10**5, "लाख"), (10**3, "हज़ार"), (100, "सौ"))
_MANDARIN = "零一二三四五六七八九"
_MANDARIN_GROUPS = ("", "万", "亿", "万亿")


def hindi_number(value: int) -> str:
    """1234 -> ``एक हज़ार दो सौ चौंतीस``; for values of at least 0."""
    for scale, name in _HINDI_SCALES:
        if value >= scale:
            count, rest = divmod(value, scale)
            return f"{hindi_number(count)} {name}" + (f" {hindi_number(rest)}" if rest else "")
    return _HINDI[value]


def mandarin_number(value: int) -> str:
    """1005 -> ``一千零五``; for 0 to 10^16 - 1."""
    if value == 0:
        return _MANDARIN[0]
    groups = []
    while value:
        value, group = divmod(value, 10_000)
        groups.append(group)
    spoken = ""
    for position in range(len(groups) - 1, -1, -1):
        group = groups[position]
        if group == 0:
            continue
        gap = spoken and (group < 1000 or not groups[position + 1])
        spoken += (_MANDARIN[0] if gap else "") + _mandarin_group(group) + _MANDARIN_GROUPS[position]
    return spoken.removeprefix("一") if spoken.startswith("一十") else spoken


def _mandarin_group(group: int) -> str:
    """1 to 9999."""
    spoken, zero = "", False
    for scale, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = group // scale % 10
        if digit:
            spoken += (_MANDARIN[0] if zero and spoken else "") + _MANDARIN[digit] + name
        zero = not digit
    return spoken
