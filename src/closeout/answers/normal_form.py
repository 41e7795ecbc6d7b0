r"""Read numbers and texts in short answers, and give answers that mean the same one spelling. Pure functions.

Only what cannot carry meaning is folded away: case of words, white space, quotes, a full stop, LaTeX spacing. Signs,
operators, relations, brackets, exponents, units and symbols stay: `C`, `C++` and `C#` are three answers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

__all__ = [
    "NumberRead",
    "as_number",
    "begins_with_magnitude",
    "compatible",
    "folded",
    "list_items",
    "math_form",
    "normalised",
    "parse_number",
    "plain_text",
    "same_unit",
]

_MOST_CHARACTERS = 2_000  # Longer answers are not normalised.

# ------------------------------------------------------------------------------------------------ text

_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|operatorname|boxed|mbox)\s*\{([^{}]*)\}")
_LATEX_BLANKS = re.compile(r"\\[,;:! ]|\\q?quad\b|~")
_PAIRS = (("**", "**"), ("*", "*"), ("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"))
_FORMULAS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_FULL_STOP = re.compile(r"(?<=\w)[.。]\Z|(?<=[^\W\d_]{2})[!！]\Z|(?<=[)\]])[.。]\Z")
_LETTERS = r"[^\W\d_]{2}"
_HARMLESS = re.compile(  # punctuation of words; beside a digit or a variable it may be an operator
    rf"(?<={_LETTERS})[-‐–](?={_LETTERS})|(?<={_LETTERS})['’!]|['’‘](?={_LETTERS})|(?<=\b[^\W\d_])\.(?=[^\W\d_]\b)"
    r"|(?<!\w)[.,;:](?!\d)|[.,;:](?!\w)|[\"“”„«»?，。、；：？！‘《》【】…·]"
)
_LIST_MARKS = re.compile(r"[,;，；、]")
# Minus signs are one; what nobody can see is nothing: byte order marks, spaces of no width, marks of direction.
_ONE_SIGN = str.maketrans("−﹣－", "---", "\ufeff\u200b\u2060\u00ad\u200e\u200f")


def plain_text(text: str) -> str:
    r"""Return a short answer without LaTeX text commands, quotes and stars around it, and a full stop at the end."""
    text = _TEXT_COMMAND.sub(r"\1", text[:_MOST_CHARACTERS].translate(_ONE_SIGN))
    text = _LATEX_BLANKS.sub(" ", text.replace(r"\!", ""))  # A negative space, as in 3,\!250.
    previous = ""
    while previous != text:
        previous = text
        text = text.strip()
        for opening, closing in (*_PAIRS, *_FORMULAS):
            inner = text[len(opening) : len(text) - len(closing)]
            if text.startswith(opening) and text.endswith(closing) and inner and closing not in inner:
                text = inner.strip()
        text = _FULL_STOP.sub("", text.removeprefix("**").removesuffix("**"))
    return " ".join(re.sub(r"\\([%$#&_{}])", r"\1", text).split())


def compatible(text: str) -> str:
    """Full-width and other forms of one character as one; superscripts and fractions keep their meaning."""
    kept = ("<super>", "<sub>", "<fraction>")
    return "".join(
        each if unicodedata.decomposition(each).startswith(kept) else unicodedata.normalize("NFKC", each)
        for each in unicodedata.normalize("NFC", text.translate(_ONE_SIGN))
    )


def folded(text: str) -> str:
    """Return a text without case, white space and the punctuation that cannot carry meaning."""
    return "".join(_HARMLESS.sub("", compatible(text).casefold()).split())


def list_items(text: str) -> list[str]:
    """Return the items of a list, split at commas and semicolons, Chinese ones too."""
    return [item.strip() for item in _LIST_MARKS.split(text)]


def as_number(text: str) -> float | None:
    """Return a text as a number by the rule of the GAIA leaderboard, which drops `$`, `%` and grouping commas."""
    cleaned = re.sub(r"\\(?=[$%])", "", compatible(text).strip())
    cleaned = re.sub(r"[$%]", "", cleaned).strip()
    if re.fullmatch(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", cleaned):
        cleaned = cleaned.replace(",", "")
    try:
        number = float(cleaned)
    except (ValueError, OverflowError):
        return None
    return number if number == number and abs(number) != float("inf") and "_" not in cleaned else None


# ------------------------------------------------------------------------------------------------ numbers

_PART = r"(?:\{\s*(-?\d+(?:\.\d+)?)\s*\}|(\d))"
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?P<sign>[-+−–])\s*)?(?P<money>[$€£¥￥]\s*)?"
    rf"(?:\\[dt]?frac\s*(?P<top>{_PART})\s*(?P<bottom>{_PART})"
    r"|(?P<digits>(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:\s*/\s*(?P<over>\d+(?:\.\d+)?))?"
    r"(?:\s*(?:\\times|\\cdot|[x×*·])\s*10\s*\^\s*\{?\s*(?P<power>[-+−]?\d{1,3})\s*\}?|[eE](?P<exponent>[-+]?\d{1,3}))?)"
)
# Words that are part of the number. 千米, 千克 and the like are units.
_MAGNITUDE = re.compile(
    r"\s*(?:(?P<word>hundred|thousand|million|mln|mn|billion|bn|trillion|lakh|crore)s?\b(?:\s+of\b)?"
    r"|(?P<times>[十百千]?)(?P<ten>万亿|亿|万)|(?P<bare>[百千])(?![分米克瓦卡焦帕赫伏安字]))",
    re.IGNORECASE,
)
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "mln": 6, "mn": 6, "billion": 9, "bn": 9, "trillion": 12}
_POWERS |= {"lakh": 5, "crore": 7, "十": 1, "百": 2, "千": 3, "万": 4, "亿": 8, "万亿": 12}
_MOST_POWER = 300  # A larger power of ten is a slip, and no float can hold it.
_ABOUT = re.compile(
    r"\b(?:about|approximately|approx|roughly|around|nearly|exactly)\b\.?|大约|约为?|[≈~]", re.IGNORECASE
)
# What may come before a number: nothing, a label ("x =", "Total:"), a currency. "minus", "not" and "sqrt(" may not.
_LABEL = re.compile(
    r"(?:[^\W\d_][^\W\d]{0,20}(?: [^\W\d]{1,20}){0,4}|f\([a-z]\))\s*[=:：]|(?:the )?answer is|it is", re.IGNORECASE
)
_CURRENCY = {
    "$": "usd", "us$": "usd", "usd": "usd", "dollar": "usd", "dollars": "usd", "€": "eur", "eur": "eur", "euro": "eur",
    "euros": "eur", "£": "gbp", "gbp": "gbp", "¥": "cny", "￥": "cny", "cny": "cny", "rmb": "cny",
}  # fmt: skip
# What may be a unit after it. Where none is asked for, any word may be a number in some language (5 млн, 5 tausend).
_UNIT = re.compile(r"(?:[^\W\d_]|[ .·/²³°%‰µ'′\"″$€£¥￥^{}-]|(?<=\^)\d)*")
_NOT_A_UNIT = re.compile(
    r"\b(?:and|or|half|quarter|dozens?|score|squared|cubed|factorial|minus|plus|times|less|more|most|least|below|under"
    r"|over|above|between|to|from|than|root|not|no|never|bce?|pi|sqrt|mod)\b|\A-|-\Z|π",
    re.IGNORECASE,
)
_DEGREES = re.compile(r"\A\^?\s*\{?\s*\\?(?:circ|degrees?)\b\s*\}?")


@dataclass(frozen=True, slots=True)
class NumberRead:
    """A number in a short answer: its value, the unit beside it ("" if none), and the label before it ("x =")."""

    value: int | float
    unit: str = ""
    label: str = ""
    about: bool = False


def parse_number(text: str, *, unit: str | None = None, any_unit: bool = False) -> NumberRead | None:
    """Read the number of a short answer; None without a number, with several, or with something that changes it.

    Args:
        text: The answer.
        unit: The unit that is asked for. A word such as "million" is part of the number unless it is part of the unit.
            Without a unit only percent, degrees and currencies may follow the number.
        any_unit: Accept whatever may be a unit. It is returned, for units to be compared.
    """
    plain = plain_text(text.translate(_FULL_WIDTH).replace("{,}", ","))
    found = _NUMBER.search(plain)
    if found is None or len(plain) > 300:
        return None
    scaled = _MAGNITUDE.match(unit or "") is None
    magnitude = _MAGNITUDE.match(plain, found.end()) if scaled else None
    before, after = plain[: found.start()].strip(), plain[(magnitude or found).end() :]
    after = _DEGREES.sub("°", after.strip()).strip()
    if before.endswith("(") and after.startswith(")"):
        before, after = before[:-1].strip(), after[1:].strip()
    about = _ABOUT.search(before + " " + after) is not None
    before, after = _ABOUT.sub("", before).strip(), _ABOUT.sub("", after).replace("()", "").strip(" .")
    label = _LABEL.match(before)
    before = (before[label.end() :] if label else before).strip()
    money = (found["money"] or "").strip() or (before if before.casefold() in _CURRENCY else "")
    if before and before != money:
        return None
    if after and not (_understood(after) or ((unit or any_unit) and _names_unit(after))):
        return None
    value = _exact(found, magnitude)
    return None if value is None else NumberRead(value, money or after, label[0] if label else "", about)


def _understood(after: str) -> bool:
    """Tell whether what follows a number is known not to change it: a percent sign, degrees or a currency."""
    word = after.casefold()
    return word in _CURRENCY or _unit_form(word) == "%" or re.fullmatch(r"°\s?[CF]?", after) is not None


def _names_unit(after: str) -> bool:
    """Tell whether what follows a number where a unit is asked for may be one, for the unit to be compared."""
    return _UNIT.fullmatch(after) is not None and not _NOT_A_UNIT.search(after)


def begins_with_magnitude(text: str) -> bool:
    """Tell whether a text begins with a word that multiplies the number before it, such as "million"."""
    return _MAGNITUDE.match(plain_text(text.lstrip(" $"))) is not None


def _exact(found: re.Match[str], magnitude: re.Match[str] | None) -> int | float | None:
    try:
        if found["top"]:
            exact = Fraction(found["top"].strip("{} ")) / Fraction(found["bottom"].strip("{} "))
        else:
            exact = Fraction(found["digits"].replace(",", ""))
            if found["over"]:
                exact /= Fraction(found["over"])
            power = int((found["power"] or found["exponent"] or "0").replace("−", "-"))
            if abs(power) > _MOST_POWER:
                return None
            exact *= Fraction(10) ** power
        if magnitude:
            parts = [part for part in magnitude.groups() if part]
            exact *= 10 ** sum(_POWERS[part.lower()] for part in parts)
        if found["sign"] and found["sign"] != "+":
            exact = -exact
        return int(exact) if exact.denominator == 1 else float(exact)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def same_unit(one: str, other: str) -> bool:
    """Tell whether two texts name one unit. Case counts where it changes a short unit: mW and MW, Mb and MB."""
    return _unit_form(one) == _unit_form(other)


def _unit_form(unit: str) -> str:
    bare = re.sub(r"[\s.]", "", unit)
    form = bare.casefold()
    if form in ("%", "percent", "percentage"):
        return "%"
    if form in _CURRENCY:
        return _CURRENCY[form]
    if 0 < len(form) <= 3 and (len(form) == 1 or form[0] in "mp" or form[-1] == "b"):
        return bare
    return form.removesuffix("s") if len(form) > 3 else form


_FULL_WIDTH = str.maketrans("０１２３４５６７８９，．％", "0123456789,.%")

# ------------------------------------------------------------------------------------------------ one spelling

_LATEX: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\sqrt\s*(\d)(?!\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:le|leqslant)(?![A-Za-z])|≤"), r"\\leq "),
    (re.compile(r"\\(?:ge|geqslant)(?![A-Za-z])|≥"), r"\\geq "),
    (re.compile(r"\\ne(?![A-Za-z])|≠"), r"\\neq "),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])|×|·"), r"\\cdot "),
    (re.compile(r"\^\{(\w)\}"), r"^\1"),
    (re.compile(r"_\{(\w)\}"), r"_\1"),
    (re.compile(r"(?<=\d)\{?,\}?(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\s+(?![A-Za-z])|(?<![A-Za-z])\s+"), ""),
)
_MATHS = re.compile(r"[\\^_{}=<>+*/|()\[\]#&%!-]|\d")


def math_form(text: str) -> str:
    """Return LaTeX or plain mathematics without white space and without commands that only change its look."""
    form = plain_text(text)
    for pattern, replacement in _LATEX:
        form = pattern.sub(replacement, form)
    return form


def normalised(text: str) -> str:
    """Return a key under which answers agree: numbers by value and unit, texts without what cannot carry meaning."""
    if len(text) > _MOST_CHARACTERS:
        return text
    read = parse_number(text, any_unit=True)
    if read is not None and not read.label and not read.about and abs(read.value) < 1e300:
        return f"{read.value!r} {_unit_form(read.unit)}".strip()
    plain = plain_text(text)
    if len(plain) == 1 or (_MATHS.search(plain) and not re.fullmatch(rf"(?:[^\W\d_]|[\s-](?={_LETTERS}))+", plain)):
        return math_form(text)
    return folded(plain) or plain
