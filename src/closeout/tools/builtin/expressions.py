"""Arithmetic as people and models write it, turned into Python's notation: × ÷ ^ % of, 1,234, full-width, Chinese.

Pure text. Evaluating it is arithmetic.py's business.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from closeout.errors import ToolError
from closeout.tools.builtin.numbers import CONSTANTS, FUNCTIONS

__all__ = ["is_hopeless", "normalise", "why_unreadable"]

MAX_LENGTH = 1_000  # characters of an expression

_SIGNS = str.maketrans({
    "×": "*", "✕": "*", "∙": "*", "·": "*", "⋅": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "—": "-", "﹣": "-",
    "加": "+", "减": "-", "乘": "*", "除": "/", "。": ".", "、": ",", "【": "(", "】": ")",
    "≤": "<=", "≥": ">=", "≠": "!=",
    "π": " pi ", "√": " sqrt ", "$": " ", "€": " ", "£": " ", "¥": " ", "￥": " ", "‰": "/1000",
})  # fmt: skip
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SUPERSCRIPT_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_CHINESE_UNITS = {"百": "100", "千": "1000", "万": "10000", "亿": "100000000"}
_CHINESE_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([百千万亿]+)")
_PERCENT_WORD = re.compile(r"\s*\bper\s?cent\b|(?<=\d)\s*percent", re.IGNORECASE)
_ROOT_OF_NUMBER = re.compile(r"\bsqrt\s+(\d+(?:\.\d+)?)")
_LAST_NUMBER = re.compile(r"((?<!\d)\d+(?:\.\d*)?|\.\d+|\))\s*$")
_OF = re.compile(r"(?<=[\d)])\s*of\b")
_VULGAR_FRACTION = re.compile("(\\d+)?([¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_LETTER_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(.-])")
_MOD_WORD = re.compile(r"(?<=[\d)])\s*\bmod\b\s*(?=[\d(])", re.IGNORECASE)
_NOISY = re.compile(r"\\|\d(?:and|else|for|if|in|is|not|or)\b")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,]*\d)")


def normalise(text: str) -> str:
    """The expression with everyday signs turned into Python's: × ÷ ^ % of, 1,234, full-width and Chinese ones."""
    if len(text) > MAX_LENGTH:
        raise ToolError(f"The expression has {len(text)} characters; at most {MAX_LENGTH} are read. Split it.")
    text = _SUPERSCRIPTS.sub(lambda found: "**" + found[0].translate(_SUPERSCRIPT_DIGITS), text)
    text = _VULGAR_FRACTION.sub(_vulgar_fraction, text)
    text = text.replace("乘以", "*").replace("除以", "/").replace("百分之", " 0.01*").translate(_SIGNS)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS).replace("^", "**")
    text = _CHINESE_UNIT.sub(
        lambda found: "(" + "*".join([found[1], *(_CHINESE_UNITS[u] for u in found[2])]) + ")", text
    )
    text = " ".join(text.split()).strip("`\"' ").rstrip("=? ")
    text = _MOD_WORD.sub(" % ", _LETTER_TIMES.sub(" * ", text))
    text = _ROOT_OF_NUMBER.sub(r"sqrt(\1)", _join_thousands(text))
    return _percents(_PERCENT_WORD.sub("%", text)).strip()


def _vulgar_fraction(found: re.Match[str]) -> str:
    part = Fraction(unicodedata.numeric(found[2])).limit_denominator(10)
    return f"({found[1] or 0}+{part})"


def _join_thousands(text: str) -> str:
    """Drop the commas of 1,234,567, but not those between the arguments of a function: max(1,234)."""
    out: list[str] = []
    calls: list[bool] = []  # for each open bracket: does it hold arguments
    i = 0
    while i < len(text):
        here = text[i]
        if here in "([":
            before = text[:i].rstrip()
            calls.append(here == "[" or (before[-1:].isalnum() and not before[-1:].isdigit()) or before.endswith("_"))
        elif here in ")]" and calls:
            calls.pop()
        elif here.isdigit() and not any(calls) and (found := _THOUSANDS.match(text, i)):
            out.append(found[0].replace(",", ""))
            i = found.end()
            continue
        elif here.isdigit():  # the whole number, so that no match begins inside it
            end = i
            while end < len(text) and (text[end].isdigit() or text[end] in "._"):
                end += 1
            out.append(text[i:end])
            i = end
            continue
        out.append(here)
        i += 1
    return "".join(out)


def _percents(text: str) -> str:
    """Write "15%" as (15/100) where % is no remainder, and "of" as *."""
    pieces = text.split("%")
    out = pieces[0]
    for rest in pieces[1:]:
        follows = rest.lstrip()
        number = _LAST_NUMBER.search(out)
        if number is None or _is_remainder(out, follows):
            out += "%" + rest
            continue
        before = out[: number.start()].rstrip()
        if _adds_percentage(before, follows):
            raise ToolError(_two_faced(number[1], before[-1]))
        out = f"{before}({number[1]}/100){rest}" if number[1] != ")" else f"{out.rstrip()}/100{rest}"
    return _OF.sub(" *", out)


def _is_remainder(before: str, follows: str) -> bool:
    """17 % 5 and 17 % -5, but not 17% of 5, 17% * 5 and 17% - 5."""
    if re.match(r"[\w(.]", follows):
        return not re.match(r"of\b", follows)
    return before.endswith(" ") and re.match(r"[+-]\d", follows) is not None


def _adds_percentage(before: str, follows: str) -> bool:
    """80 + 15%: of the 80, or of one? But 100% - 15% and 80 + 15% of 80 are clear."""
    if follows and follows[0] not in "+-),":
        return False
    amount = before[:-1].rstrip()
    return before.endswith(("+", "-")) and amount != "" and not amount.endswith((*_OPERATORS, "/100)"))


_OPERATORS = ("+", "-", "*", "/", "(", ",", "%")


def _two_faced(number: str, sign: str) -> str:
    verb = "add" if sign == "+" else "take off"
    return (
        f"'{sign} {number}%' can mean two things. To {verb} {number}% of the amount write "
        f"amount * (1 {sign} {number}/100); to {verb} the number itself write {sign} {number}/100."
    )


def is_hopeless(text: str) -> bool:
    """Whether Python's parser would only warn about the text on stderr before it refuses it."""
    return _NOISY.search(text) is not None


def why_unreadable(text: str, error: Exception | None = None) -> str:
    words = [word for word in re.findall(r"[^\W\d_]{2,}", text) if word not in FUNCTIONS and word not in CONSTANTS]
    if isinstance(error, RecursionError | MemoryError) or "nested" in str(error):
        return "The expression is nested too deeply. Split it into steps."
    if words:
        return (
            f"'{text[:80]}' is not arithmetic: {', '.join(words[:3])} cannot be calculated. "
            "Write numbers and operators only, without words and units, for example 1914 - 1832."
        )
    if text.count("(") != text.count(")"):
        return (
            f"'{text[:80]}' has {text.count('(')} '(' and {text.count(')')} ')'. Write as many of one as of the other."
        )
    if re.search(r"(?<![\d.])0\d", text):
        return f"'{text[:80]}' has a number that starts with 0. Write it without the zero."
    if re.search(r"[\d)]\s*(pi|e|tau|[a-z]+\()", text) or re.search(r"\d\s+\d", text):
        return f"'{text[:80]}' lacks an operator. Write * where two numbers are multiplied, for example 2 * pi."
    return f"'{text[:80]}' cannot be read. Write an expression such as (1914 - 1832) * 2 or sqrt(16) + 15% of 80."
