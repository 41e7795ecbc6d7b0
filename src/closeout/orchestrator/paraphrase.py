"""Do two queries ask the same in other words? By their words and by what they brought. Pure, and careful rather than
clever: thirty look-ups of one pattern with another name in each are thirty questions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Query", "query_of", "same_question"]

SHORTEST = 12  # letters, a Chinese character counted as three: shorter queries are alike by chance
LONGEST = 500  # characters of a query, and of a result four times as many, that are looked at
LIKE_WORD = 80.0  # of 100, by rapidfuzz's ratio: two forms of one word ("world", "world's")
SHARED_WORDS = 0.6  # of the words of the longer query that two paraphrases have in common at least
# Of the words of both results, how many must be common: where words were moved, added or left out; and where a word
# of one query stands for another in the other, which may be a synonym or the next name on a list.
SHARED_RESULTS, SHARED_RESULTS_IF_REPLACED = 0.3, 0.9

_CJK = "\u3400-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af"
_WORDS = re.compile(rf"[{_CJK}]|[^\W\d_{_CJK}]+(?:'[^\W\d_]+)?")
_NUMBERS = re.compile(r"\d+")
# What a query can be said with or without. Not "when" and "where": those ask for different things.
_SMALL = frozenset(
    "a an and any about are at be by can did do does find for from give have i in is it me my of on or please s search"  # noqa: SIM905  a list of words reads best as one
    " show some tell that the there this to us was were what which will with would you".split()
) | frozenset("的了是在吗呢么哪什个条里有请问和与及最为被把从到之其")


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a call's arguments, its numbers and other values apart; `found`: words and numbers of what it
    brought."""

    words: frozenset[str]
    fixed: str
    found: frozenset[str]


def query_of(arguments: Mapping[str, Any] | str, result: str) -> Query | None:
    """The query in a call, or None where its text is too short to be compared."""
    values = [arguments] if isinstance(arguments, str) else list(arguments.values())
    text = " ".join([value for value in values if isinstance(value, str)])[:LONGEST].casefold()
    if len(text) < SHORTEST and text.isascii():
        return None
    words = _WORDS.findall(text)
    if sum(3 if len(word) == 1 and word > "\u2fff" else len(word) for word in words) < SHORTEST:
        return None
    # Another page, another year: another question.
    fixed = repr([_NUMBERS.findall(text), *(value for value in values if not isinstance(value, str))])
    brought = result[: 4 * LONGEST].casefold()
    return Query(frozenset(words) - _SMALL, fixed, frozenset(_WORDS.findall(brought) + _NUMBERS.findall(brought)))


def same_question(one: Query, other: Query) -> bool:
    """Whether two queries share their words, or most of them, and bring much the same."""
    if one.fixed != other.fixed:
        return False
    only_one, only_other = _apart(one.words, other.words), _apart(other.words, one.words)
    longer = max(len(one.words), len(other.words), 1)
    shared = longer - max(len(only_one), len(only_other))
    if shared < SHARED_WORDS * longer:
        return False
    everything = len(one.found | other.found)
    common = len(one.found & other.found) / everything if everything else 1.0
    return common >= (SHARED_RESULTS_IF_REPLACED if only_one and only_other else SHARED_RESULTS)


def _apart(words: frozenset[str], others: frozenset[str]) -> list[str]:
    """The words that have no like among the others."""
    left = words - others
    if not left:
        return []
    from rapidfuzz.fuzz import ratio

    rest = [word for word in others - words if len(word) > 1]
    return [word for word in left if len(word) == 1 or all(ratio(word, near) < LIKE_WORD for near in rest)]
