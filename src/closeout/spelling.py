"""Decide whether two names differ only in ways that cannot carry meaning.

Likeness is no evidence: `unlock` is closer to `lock` than most misspellings are to the word that was meant. A name is
therefore taken for another one only if they differ in case and separators (`fold`), or in one typing slip (`is_slip`).
Everything that chooses among known names asks here: tools, arguments, enum values, dialects, settings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

__all__ = ["fold", "is_slip", "is_typing_slip", "nearest_safe_name", "words"]

_MAX_NAME = 128  # characters; a longer name is not compared letter by letter
_ONE_SLIP, _TWO_SLIPS = 5, 9  # letters that a word needs for one slip to be recognised, and for two
_SHORT = 7  # letters

# Between digits a separator counts: 1.5 is not 15, and 2024-01 is not 202401. A sign counts, too: A- is not A.
_NUMBER_GAP = re.compile(r"(?<=\d)[\s_-]+(?=\d)")
_SEPARATOR = re.compile(r"[\s_]+|(?<=\w)-+(?=\w)|\A--(?=[^\W\d])|(?<!\d)[./:]|[./:](?!\d)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_NO_WORD = re.compile(r"[\W_]+")
_SYMBOL = re.compile(r"[\w\0]")

_WORDS_FILE = Path(__file__).with_name("spelling_words.txt")
_table = str.split

# Beginnings that turn a word into another one. The first ones make words of any word: `reprint`, `unfold`.
_PRODUCTIVE = _table(
    "un de dis re in up down out over under on off non pre post sub super inter intra mis co anti counter multi auto "
    "semi micro macro mini hyper hypo"
)
_PREFIXES = _PRODUCTIVE + _table(
    "im il ir ex en em ab ad as con pro per bi tri mono poly uni omni max min mega giga tera peta kilo hecto deca deci "
    "centi milli nano pico kibi mebi gibi homo hetero endo exo fore back intro extra trans cis"
)
# Beginnings that are exchanged for each other, whatever follows.
_OPPOSITE = frozenset(
    frozenset(pair.split("/"))
    for pair in _table(
        "in/ex im/ex in/de en/de im/em inter/intra hyper/hypo macro/micro endo/exo pre/post pre/pro per/pro over/under "
        "up/down in/out on/off ad/ab max/min homo/hetero sub/super mega/giga giga/tera tera/peta kilo/mega kilo/milli "
        "milli/micro milli/centi centi/deci micro/nano nano/pico kibi/mebi mebi/gibi kilo/kibi mega/mebi giga/gibi "
        "mono/poly bi/tri uni/bi as/de intro/extra trans/cis de/re un/re dis/un dis/re"
    )
)
_INFLECTIONS = _table("s es ed d ing ings er ers or ors ion ions ment ments able ible less ful ly ness ity al")
_EXCHANGED = _table("ate ite ide ane ene yne ine ol ium age ile ance ence ant ent ee er ers or ors ation ations ous us")
_SUFFIXES = tuple(dict.fromkeys([*_INFLECTIONS, *_EXCHANGED]))
_SHORT_WORDS = _table(  # that names are made of without a separator: logout, userid, getall
    "to of on off in out up at by id ip no is if do go my all any one two new old get set put add api app url key log"
    " run"
)


def fold(name: str) -> str:
    """Return a name without case and separators: `infoToExtract`, `info-to-extract` and `info_to_extract` are one.

    Signs, symbols and the separators between two digits stay: `A-`, `C++`, `v1.5` and `1-5` keep their meaning.
    """
    return _SEPARATOR.sub("", _NUMBER_GAP.sub("\0", name.strip().casefold()))


def words(name: str) -> list[str]:
    """Return the words of a name in snake, kebab, dotted or camel case, in lower case; numbers are words."""
    return [word.casefold() for word in _NO_WORD.split(_HUMP.sub("_", name)) if word]


def nearest_safe_name(
    written: str, candidates: Iterable[str], *, slips: bool = True, vocabulary: Collection[str] = ()
) -> str | None:
    """Return the one candidate that `written` must mean, or None.

    Args:
        written: The name as it was written.
        candidates: The names that exist.
        slips: Accept a typing slip where no candidate is the same but for case and separators.
        vocabulary: More words that are in use here, in lower case; a word that is in use is not a slip.

    Returns:
        A candidate; None if there is none, or more than one.
    """
    names = list(candidates)
    if written in names:
        return written
    form = fold(written)
    same = [name for name in names if form and fold(name) == form]
    if same or not slips or len(written) > _MAX_NAME:
        return same[0] if len(same) == 1 else None
    known = {word for name in names for word in words(name)}.union(vocabulary)
    near = [name for name in names if is_typing_slip(written, name, known)]
    return near[0] if len(near) == 1 else None


def is_typing_slip(written: str, name: str, vocabulary: Collection[str] = ()) -> bool:
    """Tell whether `written` is `name` with one word mistyped, all others the same and in the same order."""
    mine, theirs = words(written[:_MAX_NAME]), words(name)
    one, other = "".join(mine), "".join(theirs)
    if abs(len(one) - len(other)) > 2 or _SYMBOL.sub("", fold(written)) != _SYMBOL.sub("", fold(name)):
        return False
    start = 0
    for word in theirs:
        rest = len(other) - start - len(word)
        end = len(one) - rest
        same_around = one[:start] == other[:start] and one[end:] == other[start + len(word) :]
        if same_around and _within_one(mine, start, end) and is_slip(one[start:end], word, vocabulary):
            return True
        start += len(word)
    return False


def _within_one(parts: list[str], start: int, end: int) -> bool:
    """Tell whether two offsets into the joined parts lie within one part."""
    begin = 0
    for part in parts:
        if begin <= start < end <= begin + len(part):
            return True
        begin += len(part)
    return False


def is_slip(written: str, word: str, vocabulary: Collection[str] = ()) -> bool:
    """Tell whether `written` is `word` with a typing slip: letters swapped, missing, added or mistaken.

    One slip in a word of five letters or more, two from nine letters on (Damerau-Levenshtein). What a word in
    `vocabulary`, a common English word, a prefix or an ending explains is not a slip: it may have been meant.
    """
    if len(word) < _ONE_SLIP or not (written.isalpha() and word.isalpha()) or written in vocabulary:
        return False
    from rapidfuzz.distance import DamerauLevenshtein  # loaded by the first name that does not exist

    most = 2 if len(word) >= _TWO_SLIPS else 1
    if not 0 < DamerauLevenshtein.distance(written, word, score_cutoff=most) <= most:
        return False
    if _swaps_prefix(written, word) or _swaps_ending(written, word) or _exchanges_vowel(written, word):
        return False
    return not _is_word(written)


def _exchanges_vowel(written: str, word: str) -> bool:
    """Tell whether two short words differ in one vowel. Too many of these are names and rare words for any list."""
    if len(written) != len(word) or len(word) > _SHORT:
        return False
    different = [one + other for one, other in zip(written, word, strict=True) if one != other]
    # u, i and o are neighbours on the keyboard.
    return len(different) == 1 and set(different[0]) <= set("aeiou") and not set(different[0]) <= set("uio")


def _swaps_prefix(written: str, word: str) -> bool:
    """Tell whether the words are the same but for what they begin with: un-, in-/ex-, up-/down-."""
    stems = {stem: prefix for prefix, stem in _without_prefix(word)}
    for mine, stem in _without_prefix(written):
        theirs = stems.get(stem, mine)
        exchanged = not (mine and theirs) or frozenset((mine, theirs)) in _OPPOSITE or _is_inflected(stem)
        if mine != theirs and exchanged:
            return True
    return False


def _swaps_ending(written: str, word: str) -> bool:
    """Tell whether the words are the same but for how they end: -s, -er/-ee, -ate/-ite."""
    stems = {stem: ending for ending, stem in _without_ending(word)}
    for mine, stem in _without_ending(written):
        theirs = stems.get(stem, mine)
        exchanged = not (mine and theirs) and not _is_inflected(word)
        if mine != theirs and (exchanged or _is_inflected(stem) or (mine in _EXCHANGED and theirs in _EXCHANGED)):
            return True
    return False


def _without_prefix(word: str) -> list[tuple[str, str]]:
    """Return (prefix, stem) for each way to divide a word; a stem has three letters or more."""
    return [("", word)] + [(p, word[len(p) :]) for p in _PREFIXES if word.startswith(p) and len(word) - len(p) >= 3]


def _without_ending(word: str) -> list[tuple[str, str]]:
    """Return (ending, stem) for each way to divide a word."""
    return [("", word)] + [(s, word[: -len(s)]) for s in _SUFFIXES if word.endswith(s) and len(word) - len(s) >= 3]


def _is_word(written: str) -> bool:
    """Tell whether a word is common English, or is made of such words."""
    if _is_inflected(written):
        return True
    if any(
        prefix in _PRODUCTIVE and len(stem) > 3 and _is_inflected(stem) for prefix, stem in _without_prefix(written)
    ):
        return True
    return any(_is_piece(written[:cut]) and _is_piece(written[cut:]) for cut in range(2, len(written) - 1))


def _is_piece(word: str) -> bool:
    return word in _common_words() if len(word) > 3 else word in _SHORT_WORDS


def _is_inflected(word: str) -> bool:
    """Tell whether a word is in the list, itself or without a regular ending."""
    known = _common_words()
    return word in known or any(base in known for base in _bases(word))


def _bases(word: str) -> Iterator[str]:
    """The words that a word may be a regular form of."""
    for ending in _INFLECTIONS:
        stem = word[: -len(ending)]
        if not word.endswith(ending) or len(stem) < 3:
            continue
        yield stem
        if ending[0] in "aeio" and stem[-1] not in "aeio":
            yield stem + "e"
            if len(stem) > 3 and stem[-1] == stem[-2] and stem[-3] in "aeiou":
                yield stem[:-1]
    for ending in ("ies", "ied", "ier", "iest", "ily", "iness"):
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            yield word[: -len(ending)] + "y"


@lru_cache(maxsize=1)
def _common_words() -> frozenset[str]:
    lines = _WORDS_FILE.read_text("ascii").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
