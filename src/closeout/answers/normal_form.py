"""One spelling for answers that mean the same: GAIA's rules for numbers, lists and strings. Pure functions.

The rules are those of the public GAIA leaderboard's scorer: of numbers `$`, `%` and `,` are dropped; a gold answer with
`,` or `;` is a list, compared item by item; of strings white space, case and punctuation are dropped.
"""

from __future__ import annotations

import re
import string
import unicodedata

from closeout.answers.values import parse_number, plain_text

__all__ = ["as_number", "folded", "list_items", "normalised"]

_PUNCTUATION = str.maketrans("", "", string.punctuation + "，。、；：？！“”‘’（）《》【】…·")
_LIST_MARKS = re.compile(r"[,;，；、]")


def as_number(text: str) -> float | None:
    """The text as a number by GAIA's rule; None where it is none."""
    cleaned = unicodedata.normalize("NFKC", text).strip()
    for mark in ("$", "%", ",", "\\"):
        cleaned = cleaned.replace(mark, "")
    try:
        number = float(cleaned)
    except (ValueError, OverflowError):
        return None
    return number if number == number and abs(number) != float("inf") and "_" not in cleaned else None


def list_items(text: str) -> list[str]:
    """The items of a list, split at commas and semicolons, Chinese ones too."""
    return [item.strip() for item in _LIST_MARKS.split(text)]


def folded(text: str, *, punctuation: bool = True) -> str:
    """A string without white space and case, and without punctuation unless it is to be kept."""
    joined = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    return joined.translate(_PUNCTUATION) if not punctuation else joined


def normalised(text: str) -> str:
    """A key under which answers agree: numbers by value, anything else without dress, case, blanks, punctuation."""
    plain = plain_text(text) if len(text) <= 2000 else text
    number = parse_number(plain)
    if number is not None and (not number[1] or number[1].isalpha()):
        return f"{float(number[0])!r} {folded(number[1])}".strip() if abs(number[0]) < 1e300 else plain
    return folded(plain, punctuation=False) or folded(plain)
