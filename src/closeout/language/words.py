"""Split text into words, and leave out those that say nothing in a search.

Scripts without spaces between words (Chinese, Japanese, Thai, Lao, Burmese, Khmer) are indexed by character, and a word
of them is searched for as a phrase of characters. So is Korean, which writes particles as part of the word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

__all__ = ["is_unspaced", "spaced", "split_characters", "stem", "telling_words", "words"]

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
_CHARACTER = re.compile(f"([{_UNSPACED}])")
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+")

# Words that do not change what is asked, and question words that say whether a time, a place, a person or a number is.
_SMALL = frozenset(
    "a about also an and any are as at be been between by can could did do does find for from give"  # noqa: SIM905  a list of words reads best as one
    " had has have i if in into is it its know like me my need of on or our please s search "
    " should show some tell than that the their then there these they think this those to us use "
    " want was we were what which will with would you your".split()
)
_ASKING = frozenset("how many much when where who whom whose why".split())  # noqa: SIM905
_CHINESE_SMALL = "是什么|什么|哪个|哪些|请问|之间|以及|[的了是在和与吗呢有]"
_CHINESE_ASKING = "什么时候|为什么|哪一年|多少年|怎么样|哪年|哪里|多少|怎么|如何|[多几]"
_CHINESE_STOP = (re.compile(f"{_CHINESE_ASKING}|{_CHINESE_SMALL}"), re.compile(_CHINESE_SMALL))

_ENDINGS = (
    *("ization", "ations", "ation", "ingly", "ments", "ment", "ities", "ity", "ing", "ies", "ied", "edly", "ers"),
    *("er", "ed", "es", "ly", "al", "s", "e"),
)


def is_unspaced(word: str) -> bool:
    """Return whether a word is of a script that is split into characters."""
    return not word.isascii() and _CHARACTER.match(word) is not None


def spaced(text: str) -> str:
    """Return a text with spaces around each character of an unspaced script, as an index stores it."""
    return _CHARACTER.sub(r" \1 ", _plain(text))


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; a run of an unspaced script is one word."""
    return _WORD.findall(_plain(text).lower())


def telling_words(text: str, *, keep_asking: bool = False) -> list[str]:
    """Return the words of a text without stop words; empty if it has no others.

    Args:
        text: The text.
        keep_asking: Keep "when", "where" and other question words that say what kind of thing is asked for.
    """
    telling: list[str] = []
    for word in words(text):
        if is_unspaced(word):
            telling.extend(filter(None, _CHINESE_STOP[keep_asking].split(word)))
        elif word not in _SMALL and (keep_asking or word not in _ASKING):
            telling.append(word)
    return telling


def split_characters(found: Iterable[str]) -> Iterator[str]:
    """Yield words; of those of an unspaced script the characters."""
    for word in found:
        yield from word if is_unspaced(word) else (word,)


def stem(word: str) -> str:
    """Return an English word without its ending: "calculation" and "calculated" have the same stem."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _plain(text: str) -> str:
    """Return a text in one form of Unicode, without what SQLite cannot store."""
    text = text if text.isascii() else unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode())
    return text.replace("\0", " ")
