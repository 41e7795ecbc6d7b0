"""The results of a run as sources of quotes, compared literally.

Before they are compared, a quote and a source lose what does not change the words: markup of HTML and Markdown, blanks
and line breaks, hyphens at line ends, the kinds of quotation marks and dashes, full-width and other compatibility
forms. Nothing is compared by likeness. A quote that cuts a word or a number in two is not literal, and text that the
model wrote into a call is no evidence from that call.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import unescape
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from closeout.journal.events import ToolFinished, ToolStarted
from closeout.journal.run_names import call_id
from closeout.journal.store import Row
from closeout.results.normal import compact_json

__all__ = ["Evidence", "QuotePlace", "sources_of"]

JsonPath: TypeAlias = tuple[str | int, ...]  # the keys and indexes that lead to a value in JSON data

LONGEST_ADDRESS = 2_000  # characters
COMPARED = 200_000  # characters of a text that are searched for the passage nearest to a wrong quote

_TAG = re.compile(r"</?(?P<name>[A-Za-z][A-Za-z0-9]{0,20})\b[^<>]{0,2000}>|<!--.{0,2000}?-->", re.DOTALL)
# Elements that may be in the middle of a word; others separate words.
_INLINE = frozenset({
    "a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd", "mark", "q", "s",
    "small", "span", "strong", "sub", "sup", "u", "var",
})  # fmt: skip
_ENTITY = re.compile(r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[^\t\n\f <&#;]{1,32});?")
_MARKDOWN_LINK = re.compile(r"!?\[([^\[\]\n]{1,500})\]\([^()\s]{1,2000}\)")
_LINE_END = re.compile(r"(?<=\w)(?P<hyphen>[-\u00ad‐])[ \t]*\r?\n[ \t]*(?=\w)")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff*`]")  # and the emphasis of Markdown
_MARKS = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»″「」『』", '"'),
        **dict.fromkeys("‘’‚‛′´", "'"),
        **dict.fromkeys("‐‑‒–—―−", "-"),
    }
)
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # characters that are written without blanks between them
_SIGNS = "\u3000-\u303f\uff01-\uff0f\uff1a-\uff1f\uff5b-\uff65"  # and their punctuation
_IS_CJK = re.compile(f"[{_CJK}]")
_BLANKS_IN_CJK = re.compile(rf"(?<=[{_CJK}])\s+(?=[{_CJK}{_SIGNS}])|(?<=[{_SIGNS}])\s+(?=[{_CJK}])")
_BLANKS = re.compile(r"\s+")


class QuotePlace(NamedTuple):
    """Where a quote is in a result: from `start` to `end` of `Evidence.texts[text]`."""

    text: int
    start: int
    end: int


@dataclass(frozen=True)
class Evidence:
    """What a tool returned in a run.

    Attributes:
        handle: The name of the call: "r3", or "r1:reader/r2" for one of the sub-agent that r1 called.
        tool: The tool.
        arguments: Its arguments, as JSON.
        time: When it was recorded, in seconds since the epoch.
        value: What it returned, as JSON data.
    """

    handle: str
    tool: str
    arguments: str
    time: float
    value: Any

    def contains(self, quote: str) -> bool:
        """Return whether a quote is in the result, and not in what the model wrote into the call."""
        return self._find(quote) is not None

    def passage(self, quote: str) -> QuotePlace | None:
        """Return where a quote is in the texts of the result as they were read; None if it is in none of them."""
        found = self._find(quote)
        if found is None:
            return None
        wanted, number, joined, at = found
        places = _placed(self.texts[number][1], joined=joined)
        return QuotePlace(number, places[at][0], places[at + len(wanted) - 1][1])

    def _find(self, quote: str) -> tuple[str, int, bool, int] | None:
        """Return a quote as it is compared, and the text, the way of comparing, and the place where it was found."""
        for wanted in dict.fromkeys(_normal(quote, joined=joined).strip(" .…\"'") for joined in (True, False)):
            if not wanted or wanted in self._asked:
                continue
            for joined, number, text in self._compared:
                if (at := _place_in(wanted, text)) >= 0:
                    return wanted, number, joined, at
        return None

    def nearest(self, quote: str) -> tuple[float, str]:
        """Return the likeness to a quote of the most similar passage, 0 to 100, and the passage: never evidence."""
        from rapidfuzz import fuzz

        wanted, best = _normal(quote), (0.0, "")
        for _, _, text in self._compared:
            found = fuzz.partial_ratio_alignment(wanted, text[:COMPARED], score_cutoff=best[0])
            if found is not None and found.score > best[0]:
                start = text.rfind(" ", 0, found.dest_start + 1) + 1  # whole words
                end = text.find(" ", found.dest_end)
                best = (found.score, text[start : end if end >= 0 else None])
        return best

    @cached_property
    def texts(self) -> tuple[tuple[JsonPath, str], ...]:
        """The texts of the result, each with its path: () for a result that is one text."""
        return tuple(_leaves(self.value))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the result: of a text itself, of other values as JSON."""
        text = self.value if isinstance(self.value, str) else compact_json(self.value)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()

    def address(self, quote: str = "") -> str:
        """Return the web address of the result, or of the part of it that has a quote; empty if it has none.

        It is the one that was called, or else the one beside the quote: each hit of a search has its own.
        """
        found = self._find(quote)
        path = ("",) if found is None else self.texts[found[1]][0]
        called = (text for where, text in self._arguments if len(where) < 2 and _is_address(text))
        beside = (self._addresses.get(path[:depth], "") for depth in range(len(path) - 1, -1, -1))
        return next(called, "") or next(filter(None, beside), "")

    @cached_property
    def _addresses(self) -> dict[JsonPath, str]:
        """The first web address in each object and list of the result."""
        return {path[:-1]: text for path, text in reversed(self.texts) if _is_address(text)}

    @cached_property
    def _compared(self) -> tuple[tuple[bool, int, str], ...]:
        """The texts as they are compared: whether with joined lines, the number of the text, the text."""
        each = {_normal(text, joined=j): (j, n) for j in (False, True) for n, (_, text) in enumerate(self.texts)}
        return tuple((joined, number, text) for text, (joined, number) in each.items())

    @cached_property
    def _arguments(self) -> tuple[tuple[JsonPath, str], ...]:
        try:
            return tuple(_leaves(json.loads(self.arguments)))
        except ValueError:  # they could not be read
            return (((), self.arguments),)

    @property
    def rereads(self) -> set[str]:
        """The handles of the results that the call reads again."""
        agent = self.handle[: self.handle.rfind("/") + 1]
        return {agent + text for where, text in self._arguments if where[:1] in (("handle",), ("handles",))}

    @cached_property
    def _asked(self) -> str:
        return "\n".join(_normal(text) for _, text in self._arguments)


@lru_cache
def _steps(joined: bool) -> tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]:
    """Return what is replaced in a text before it is compared. `joined`: hyphens at line ends are dropped."""
    return (
        (_TAG, lambda tag: "" if (tag["name"] or "").lower() in _INLINE else " "),
        (_ENTITY, lambda entity: unescape(entity[0])),
        (_MARKDOWN_LINK, lambda link: link[1]),
        (_LINE_END, lambda end: "" if joined or end["hyphen"] == "\u00ad" else "-"),
        (_INVISIBLE, lambda _: ""),
        (_BLANKS_IN_CJK, lambda _: ""),
    )


def _normal(text: str, *, joined: bool = True) -> str:
    """Return a text without what does not change its words."""
    for pattern, replacement in _steps(joined):
        text = pattern.sub(replacement, text)
    return " ".join(unicodedata.normalize("NFKC", text).translate(_MARKS).split())


def _placed(text: str, *, joined: bool) -> list[tuple[int, int]]:
    """Return for each character of the normal text which characters of the text it was made of."""
    places = [(at, at + 1) for at in range(len(text))]
    for pattern, replacement in _steps(joined):
        text, places = _replaced(text, places, [(m.start(), m.end(), replacement(m)) for m in pattern.finditer(text)])
    normal = [(start, end, unicodedata.normalize("NFKC", text[start:end])) for start, end in _characters(text)]
    text, places = _replaced(text, places, normal)
    text, places = _replaced(text, places, [(m.start(), m.end(), " ") for m in _BLANKS.finditer(text)])
    return places[len(text) - len(text.lstrip()) :]


def _replaced(
    text: str, places: list[tuple[int, int]], changes: Iterable[tuple[int, int, str]]
) -> tuple[str, list[tuple[int, int]]]:
    """Return a text with parts of it replaced, and the places of its characters."""
    pieces, kept, at = list[str](), list[tuple[int, int]](), 0
    for start, end, new in changes:
        pieces += (text[at:start], new)
        kept += places[at:start]
        inside = text.find(new, start, end)  # the words of a link
        if inside >= 0:
            kept += places[inside : inside + len(new)]
        else:
            kept += [(places[start][0], places[end - 1][1])] * len(new)
        at = end
    return "".join([*pieces, text[at:]]), kept + places[at:]


def _characters(text: str) -> Iterator[tuple[int, int]]:
    """Yield the places of characters beyond ASCII, each with the marks and vowels that are composed with it."""
    start = 0
    for at in range(1, len(text) + 1):
        if at < len(text) and not text[at].isascii() and _is_composed(text[at]):
            continue
        if not text[start:at].isascii():
            yield start, at
        start = at


def _is_composed(character: str) -> bool:
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff"  # vowels and finals of Hangul


def _leaves(value: Any) -> Iterator[tuple[JsonPath, str]]:
    """Yield the texts in JSON data with their paths, numbers as they are written."""
    stack: list[tuple[JsonPath, Any]] = [((), value)]
    while stack:
        path, each = stack.pop()
        if isinstance(each, str):
            yield path, each
        elif isinstance(each, Mapping):
            stack.extend(reversed([((*path, name), item) for name, item in each.items()]))
        elif isinstance(each, list):
            stack.extend(reversed([((*path, number), item) for number, item in enumerate(each)]))
        elif each is not None:
            yield path, json.dumps(each)


def _is_address(text: str) -> bool:
    if not text.startswith(("http://", "https://")) or len(text) > LONGEST_ADDRESS or _BLANKS.search(text):
        return False
    try:
        return bool(urlsplit(text).hostname)
    except ValueError:
        return False


def _place_in(quote: str, text: str) -> int:
    """Return where a quote is in a text without cutting a word or a number in two, -1 if it is not."""
    start = text.find(quote)
    while start >= 0:
        end = start + len(quote)
        if not _begins_inside(text[max(start - 2, 0) : start], quote) and not _ends_inside(quote, text[end : end + 2]):
            return start
        start = text.find(quote, start + 1)
    return -1


def _begins_inside(before: str, quote: str) -> bool:
    """Return whether a quote begins inside a word or a number: `before` has the two characters before it."""
    if _one_word(before[-1:], quote[0]):
        return True
    if not quote[0].isdigit() or not before:
        return False
    beyond = before[:-1]
    return (before[-1] in ".," and beyond.isdigit()) or (before[-1] in "-+" and not beyond.isalnum())  # 1.5 and -5


def _ends_inside(quote: str, after: str) -> bool:
    """Return whether a quote ends inside a word or a number: `after` has the two characters behind it."""
    if _one_word(quote[-1], after[:1]):
        return True
    return quote[-1].isdigit() and after[:1] in (".", ",") and after[1:].isdigit()


def _one_word(left: str, right: str) -> bool:
    return left.isalnum() and right.isalnum() and not (_IS_CJK.match(left) or _IS_CJK.match(right))


def sources_of(rows: Iterable[Row]) -> dict[str, Evidence]:
    """Return the results of a run by handle: of successful calls of tools, those of sub-agents and programs included.

    What a sub-agent or a program returned is no source, nor is it when it is read again: the results of the calls that
    it made are.
    """
    finished: list[tuple[str, float, ToolFinished]] = []
    arguments: dict[str, str] = {}
    above: set[str] = set()  # handles of calls that began sub-agents or programs
    for row in rows:
        event = row.event
        above.add(event.agent.partition("/")[2].rpartition(":")[0])
        if isinstance(event, ToolStarted):
            arguments[call_id(event.agent, event.handle)] = event.arguments
        elif isinstance(event, ToolFinished) and event.ok:
            finished.append((call_id(event.agent, event.handle), row.time, event))
    derived = {event.name for handle, _, event in finished if handle in above}
    found = (
        Evidence(handle, event.name, arguments.get(handle, "{}"), time, event.result)
        for handle, time, event in finished
        if event.name not in derived
    )
    return {each.handle: each for each in found if not above.intersection(each.rereads)}
