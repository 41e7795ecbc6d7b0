"""Which parameter each argument is meant for: aliases, case and separators, close spelling, the only one left.

What the values must become is decided in `argument_types`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Rename", "close_spelling", "fold", "match_names", "words"]

# Indel similarity of rapidfuzz, 0 to 100. At 84 one letter swapped, doubled or lost in a six-letter name still counts
# ("serach" for "search" is 83 of itself but 91 in "serach_query"); the margin keeps `start_date`/`start_time` apart.
_MIN_SCORE = 84.0
_MARGIN = 8.0
_MIN_WORD_SCORE = 60.0  # word by word, so that min_results never becomes max_results
_SEPARATORS = re.compile(r"[\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Rename(NamedTuple):
    """An argument's name as the model wrote it, the parameter it means, and the kind of repair."""

    written: str
    parameter: str
    kind: str


def fold(name: str) -> str:
    """A name without case and separators: `infoToExtract`, `info-to-extract` and `info_to_extract` are one."""
    return _SEPARATORS.sub("", name).casefold()


def words(name: str) -> list[str]:
    """The words of a name in snake, kebab, dotted or camel case, lower case."""
    return [word.casefold() for word in _SEPARATORS.split(_HUMP.sub("_", name)) if word]


def close_spelling(name: str, candidates: Mapping[str, str]) -> str | None:
    """The one candidate that is spelled almost as `name`, by a margin over all others; None if there is none.

    `candidates` maps each candidate to its folded form.
    """
    from rapidfuzz import fuzz  # loaded by the first call that is not valid as it stands

    folded = fold(name[:128])
    scored = sorted(((fuzz.ratio(folded, form), candidate) for candidate, form in candidates.items()), reverse=True)
    if not scored or scored[0][0] < _MIN_SCORE or (len(scored) > 1 and scored[0][0] - scored[1][0] < _MARGIN):
        return None
    best = scored[0][1]
    mine, theirs = words(name), words(best)
    if len(mine) == len(theirs) and any(fuzz.ratio(a, b) < _MIN_WORD_SCORE for a, b in zip(mine, theirs, strict=True)):
        return None
    return best


def match_names(
    arguments: Mapping[str, Any],
    properties: Mapping[str, Any],
    required: tuple[str, ...],
    aliases: Mapping[str, tuple[str, ...]],
    fits: Callable[[Any, str], bool],
) -> list[Rename]:
    """The renames that give every argument its parameter, surest first. `fits(value, parameter)` tells whether the
    value could be meant for it; it is asked for guesses only, not for declared aliases."""
    renames: list[Rename] = []
    unknown = [name for name in arguments if isinstance(name, str) and name not in properties]
    free = [name for name in properties if name not in arguments]

    def take(written: str, parameter: str, kind: str) -> None:
        renames.append(Rename(written, parameter, kind))
        unknown.remove(written)
        free.remove(parameter)

    for parameter in list(free):
        for alias in aliases.get(parameter, ()):
            if alias in unknown:
                take(alias, parameter, "argument_alias")
                break
    forms = {name: fold(name) for name in properties}
    for written in list(unknown):
        form = fold(written)
        same = [name for name in free if form and forms[name] == form]
        if len(same) == 1:
            take(written, same[0], "argument_case")
            continue
        known_as = [name for name in free if form and form in map(fold, aliases.get(name, ()))]
        if len(known_as) == 1:
            take(written, known_as[0], "argument_alias")
    for written in list(unknown):
        best = close_spelling(written, forms)  # over all parameters: one that is already given may be the closest
        if best in free and best is not None and fits(arguments[written], best):
            take(written, best, "argument_spelling")
    missing = [name for name in required if name in free]
    if len(unknown) == 1 and len(missing) == 1 and fits(arguments[unknown[0]], missing[0]):
        take(unknown[0], missing[0], "argument_leftover")
    return renames
