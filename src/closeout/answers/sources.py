"""The results of a run as sources of quotes, compared literally.

Before they are compared, a quote and a source lose what does not change the words: markup of HTML and Markdown, blanks
and line breaks, hyphens at line ends, the kinds of quotation marks and dashes, full-width and other compatibility
forms. Nothing is compared by likeness. A quote that cuts a word or a number in two is not literal, and text that the
model wrote into a call is no evidence from that call.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from typing import Any

from closeout.journal.events import ToolFinished, ToolStarted
from closeout.journal.store import Row

__all__ = ["Evidence", "sources_of"]

COMPARED = 200_000  # characters of a text that are searched for the passage nearest to a wrong quote

_TAG = re.compile(r"</?(?P<name>[A-Za-z][A-Za-z0-9]{0,20})\b[^<>]{0,2000}>|<!--.{0,2000}?-->", re.DOTALL)
# Elements that may be in the middle of a word; others separate words.
_INLINE = frozenset({
    "a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd", "mark", "q", "s",
    "small", "span", "strong", "sub", "sup", "u", "var",
})  # fmt: skip
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
        ways = {_normal(quote, joined=joined).strip(" .…\"'") for joined in (True, False)}
        return any(
            wanted and wanted not in self._asked and any(_is_in(wanted, text) for text in self._texts)
            for wanted in ways
        )

    def nearest(self, quote: str) -> tuple[float, str]:
        """Return the likeness to a quote of the most similar passage, 0 to 100, and the passage: never evidence."""
        from rapidfuzz import fuzz

        wanted, best = _normal(quote), (0.0, "")
        for text in self._texts:
            found = fuzz.partial_ratio_alignment(wanted, text[:COMPARED], score_cutoff=best[0])
            if found is not None and found.score > best[0]:
                start = text.rfind(" ", 0, found.dest_start + 1) + 1  # whole words
                end = text.find(" ", found.dest_end)
                best = (found.score, text[start : end if end >= 0 else None])
        return best

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        leaves = list(_leaves(self.value))
        return tuple(dict.fromkeys(_normal(leaf, joined=joined) for joined in (True, False) for leaf in leaves))

    @cached_property
    def _asked(self) -> str:
        try:
            return "\n".join(_normal(leaf) for leaf in _leaves(json.loads(self.arguments)))
        except ValueError:  # arguments that could not be read
            return _normal(self.arguments)


def _normal(text: str, *, joined: bool = True) -> str:
    """Return a text without what does not change its words. `joined`: hyphens at line ends are dropped."""
    text = _TAG.sub(lambda tag: "" if (tag["name"] or "").lower() in _INLINE else " ", text)
    text = _MARKDOWN_LINK.sub(r"\1", unescape(text))
    text = _LINE_END.sub(lambda end: "" if joined or end["hyphen"] == "\u00ad" else "-", text)
    text = _BLANKS_IN_CJK.sub("", _INVISIBLE.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", text).translate(_MARKS).split())


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts in JSON data, numbers as they are written."""
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            stack.extend(reversed([*each.values()]))
        elif isinstance(each, list):
            stack.extend(reversed(each))
        elif each is not None:
            yield json.dumps(each)


def _is_in(quote: str, text: str) -> bool:
    """Return whether a quote is in a text without cutting a word or a number in two."""
    start = text.find(quote)
    while start >= 0:
        end = start + len(quote)
        if not _begins_inside(text[max(start - 2, 0) : start], quote) and not _ends_inside(quote, text[end : end + 2]):
            return True
        start = text.find(quote, start + 1)
    return False


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

    What a sub-agent or a program returned is no source: the results of the calls that it made are.
    """
    finished: list[tuple[str, float, ToolFinished]] = []
    arguments: dict[str, str] = {}
    above: set[str] = set()  # handles of calls that began sub-agents or programs
    for row in rows:
        event = row.event
        path = event.agent.partition("/")[2]
        above.add(path.rpartition(":")[0])
        if isinstance(event, ToolStarted):
            arguments[f"{path}/{event.handle}".removeprefix("/")] = event.arguments
        elif isinstance(event, ToolFinished) and event.ok:
            finished.append((f"{path}/{event.handle}".removeprefix("/"), row.time, event))
    derived = {event.name for handle, _, event in finished if handle in above}
    return {
        handle: Evidence(handle, event.name, arguments.get(handle, "{}"), time, event.result)
        for handle, time, event in finished
        if event.name not in derived
    }
