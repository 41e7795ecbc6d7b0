"""Decide whether two names differ only in their form: in case and separators.

Likeness is no evidence: `unlock` is closer to `lock` than most misspellings are to the word that was meant. A name is
taken for another one only if both have the same `fold`. Tools, arguments and dialects are looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["fold", "same_name", "split_names", "suggestion", "unknown_attribute", "words"]

# Between digits a separator counts: 1.5 is not 15, and 2024-01 is not 202401. A sign counts, too: A- is not A.
_NUMBER_GAP = re.compile(r"(?<=\d)[\s_-]+(?=\d)")
_SEPARATOR = re.compile(r"[\s_]+|(?<=\w)-+(?=\w)|\A--(?=[^\W\d])|(?<!\d)[./:]|[./:](?!\d)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_NO_WORD = re.compile(r"[\W_]+")


def fold(name: str) -> str:
    """Return a name without case and separators: `infoToExtract`, `info-to-extract` and `info_to_extract` are one.

    Signs, symbols and the separators between two digits stay: `A-`, `C++`, `v1.5` and `1-5` keep their meaning.
    """
    return _SEPARATOR.sub("", _NUMBER_GAP.sub("\0", name.strip().casefold()))


def words(name: str) -> list[str]:
    """Return the words of a name in snake, kebab, dotted or camel case, in lower case; numbers are words."""
    return [word.casefold() for word in _NO_WORD.split(split_names(name)) if word]


def split_names(text: str) -> str:
    """Return a text in which the words of names in camel case are apart: `openFile` becomes `open File`."""
    return _HUMP.sub(" ", text)


def suggestion(written: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question with the known name that is most like an unknown one; `otherwise` if none is like it."""
    import difflib

    near = difflib.get_close_matches(written, list(known), n=1)
    return f"Did you mean '{near[0]}'?" if near else otherwise


def unknown_attribute(owner: object, name: str, familiar: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that an object lacks, with the way to do it here if the name is familiar."""
    hint = "" if name.startswith("_") else familiar.get(name) or suggestion(name, dir(owner), "")
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}. {hint}".rstrip(". ") + ".")


def same_name(written: str, candidates: Iterable[str]) -> str | None:
    """Return the one candidate that `written` is, but for case and separators; None for none or several."""
    names = list(candidates)
    if written in names:
        return written
    form = fold(written)
    same = [name for name in names if form and fold(name) == form]
    return same[0] if len(same) == 1 else None
