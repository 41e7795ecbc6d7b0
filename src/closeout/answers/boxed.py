r"""Boxed answers in text: every `\boxed{…}` with its span, and the one that counts. Pure functions, linear in any text.

What else an answer may look like is decided in `contracts`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from operator import indexOf

from closeout.parsing.reasoning import THINKING_TAGS, CodeQuotes

__all__ = ["PLACEHOLDERS", "Box", "Region", "extract_boxed", "find_boxes", "reasoning_regions"]

PLACEHOLDERS = frozenset({
    "?", "??", "???", "？", "……", "…", "...", "unknown", "Unknown", "UNKNOWN", "None", "your answer",
    "your answer here",
})  # fmt: skip
"""Placeholders that models write into a box when they have no answer. Compared with the whole stripped content."""

_START = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BRACED = re.compile(r"\\(?:boxed|fbox)\s*+\{")
_BRACED_CHAIN = re.compile(r"(?:\s*+\\(?:boxed|fbox)\s*+\{)*+")
_LAST_BRACED = re.compile(r"(?s:.*)(\\(?:boxed|fbox)\s*+\{)")
# Up to three levels of braces, scanned in one go without backtracking: nearly every box there is.
_SHALLOW = re.compile(
    r"(?s)(?:[^{}\\]++|\\.|\{(?:[^{}\\]++|\\.|\{(?:[^{}\\]++|\\.|\{(?:[^{}\\]++|\\.)*+\})*+\})*+\})*+(\})"
)
_SHALLOW_LENGTH = 2048  # characters that the scan above may look at before the general one takes over
# A box without braces: a command with its arguments, a number, one character, or a word that ends its line.
# In the middle of a line `\boxed` before a word is prose about the command.
_BARE_VALUE = (
    r"(?:\\(?!boxed|fbox)[A-Za-z]+(?:\{[^{}]{0,200}\}){0,3}"
    r"|[-+−]?[$€£]?\d(?:[\d.,]*\d)?(?:/\d+)?%?"
    r"|[^\W_](?!\w)"
    r"|(?=\w)(?!(?:format|notation|command|syntax|form|answer|macro|tag|tags)\b)\w[^\s\\{}$.,;!?*)\]`]{0,199}"
    r"(?=[.,;!?*)\]`]{0,8}[ \t]*(?:\n|\Z)))"
)
_BARE = re.compile(rf"\\(?:boxed|fbox)(?![A-Za-z]|\\boxed|\\fbox)[ \t]*+({_BARE_VALUE})")
# Begins with the one "<" that is searched for in C; repeated tags are one.
_TAG = rf"(?i:{'|'.join(THINKING_TAGS)})\s?>"
_REASONING_TAG = re.compile(rf"<(?:{_TAG}(?:<{_TAG})*+|/{_TAG}(?:</{_TAG})*+)")
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)

_NO_BACKSLASH = re.compile(r"[^\\]")
_BRACE = re.compile(rb"[{}]")
_SPACES = b" \t\n\r\v\f"
_NO_BRACES = bytes(code for code in range(256) if code not in b"{}")
_SWAPPED = bytes.maketrans(b"{}", b"}{")
_STEPS = bytes({0x7B: 1, 0x7D: 0xFF}.get(code, 0) for code in range(256))  # signed bytes: +1, -1, 0
_REPLY_LENGTH = 65_536  # characters behind the reasoning that are looked at before the whole text is
_CHUNK = 16_384  # bytes that are counted at once


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a text, `start` inclusive, `end` exclusive: the model's reasoning, or what it says."""

    start: int
    end: int
    in_reasoning: bool


@dataclass(frozen=True, slots=True)
class Box:
    """One box. Offsets are in characters of the text; `start` is the backslash, `end` is after the closing brace."""

    start: int
    end: int
    content_start: int
    content_end: int
    complete: bool = True  # False: the closing brace is missing, the content runs to the end of its region
    braced: bool = True  # False: `\boxed 42`
    in_reasoning: bool = False
    in_fence: bool = False
    enclosed: bool = False  # inside another complete box
    _text: str = field(default="", repr=False, compare=False)

    @property
    def content(self) -> str:
        """The content of the box, stripped. Cut out when asked for: a million open boxes share one text."""
        return self._text[self.content_start : self.content_end].strip()


def extract_boxed(text: str | None, blacklist: Collection[str] = PLACEHOLDERS) -> str:
    r"""The content of the box that counts, stripped; "" without a box or with only a placeholder in it.

    The last box wins. A box without its closing brace runs to the end of the text, unless a complete one follows; a
    box inside a complete box is part of that one's content, except that a box which holds nothing but a box gives the
    inner content. A box in `<think>` counts only if none is outside, `\boxed 42` only if none has braces.
    Never raises, and the time is linear in the length of the text, whatever it is.
    """
    if not text or not _mentions(text):
        return ""
    for span in _candidates(text):
        if span is not None:
            content = text[span[0] : span[1]].strip()
            return "" if content in blacklist else content
    return ""


def find_boxes(text: str | None) -> tuple[Box, ...]:
    """Every box, in the order of their starts: the plain definition of what `extract_boxed` looks up from the end.

    Boxes without braces are listed too. An unclosed box ends where its region (reasoning or not) ends.
    """
    if not text or not _mentions(text):
        return ()
    fences = [found.start() for found in _FENCE.finditer(text)]
    boxes: list[Box] = []
    for region in reasoning_regions(text):
        boxes += _boxes_in(text, region, fences)
    return tuple(boxes)


def reasoning_regions(text: str) -> tuple[Region, ...]:
    """The text cut at `<think>` and `</think>` (`<thinking>`, `<reasoning>`, …), tags left out, empty parts too.

    Reasoning is what a closing tag follows, opened or not (servers may write the opening tag themselves), and what
    follows an opening tag that is never closed. A tag that is quoted as code is text.
    """
    regions: list[Region] = []
    start, opened = 0, False
    code, walked = CodeQuotes() if "`" in text or "~~~" in text else None, 0
    for tag in _REASONING_TAG.finditer(text):
        closes = text.startswith("</", tag.start())
        if code is not None:
            code.walk(text, walked, tag.start(), fences=not opened)
            walked = tag.end()
            if code.quotes(text, *tag.span(), closing=closes):
                continue
            code.begin()
        if tag.start() > start:
            regions.append(Region(start, tag.start(), opened or closes))
        start, opened = tag.end(), not closes
    if start < len(text):
        regions.append(Region(start, len(text), opened))
    return tuple(regions)


def _mentions(text: str) -> bool:
    # The search starts at the end, where answers are: in a long trace with its box at the end it costs nothing.
    return text.rfind("\\boxed") >= 0 or text.rfind("\\fbox") >= 0


# ------------------------------------------------------------------------------------------------ the one that counts


def _candidates(text: str) -> Iterator[tuple[int, int] | None]:
    """Content spans, the best first, looked up only as far as they are asked for."""
    reply = _reply_start(text)
    if reply >= 0:
        yield _last_braced(text, reply, len(text))
    regions = reasoning_regions(text)
    for in_reasoning in (False, True):
        parts = [(r.start, r.end) for r in reversed(regions) if r.in_reasoning is in_reasoning]
        for start, end in parts:
            yield _last_braced(text, start, end)
        for start, end in parts:
            last = deque(_BARE.finditer(text, start, end), maxlen=1)
            yield last[0].span(1) if last else None


def _reply_start(text: str) -> int:
    """The offset of the reply behind the reasoning, if that is near the end: then the reasoning need not be read."""
    tag = _REASONING_TAG.match(text, max(0, text.rfind("</", max(0, len(text) - _REPLY_LENGTH))))
    if tag is None or text[tag.start() + 1] != "/" or _REASONING_TAG.search(text, tag.end()):
        return -1
    if text.find("`", text.rfind("\n", 0, tag.start()) + 1, tag.start()) >= 0 or "```" in text or "~~~" in text:
        return -1  # it may be quoted as code
    return tag.end()


def _last_braced(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The content span of the last box with braces between two offsets, or of the complete box around it."""
    opening = _last_opening(text, start, end)
    if opening is None:
        return None
    box, inner = opening
    shallow = _SHALLOW.match(text, inner, min(end, inner + _SHALLOW_LENGTH))
    closing = shallow.start(1) if shallow else _drop(_pieces(text, inner, end), 1)
    if closing < 0:
        return inner, end
    if text.find("}", closing + 1, end) >= 0 and _BRACED.search(text, start, box):
        inner, closing = _enclosing(text, start, end, inner, closing)
    return _unwrapped(text, inner, closing)


def _last_opening(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The offsets of the last braced box and of its content."""
    last = text.rfind("\\boxed", start, end)
    last = max(last, text.rfind("\\fbox", max(last, start), end))
    if last < 0:
        return None
    # Mostly the last mention is the box itself; else look for one with a brace before it.
    found = _BRACED.match(text, last, end)
    if found:
        return found.span()
    found = _LAST_BRACED.match(text, start, last)
    return found.span(1) if found else None


def _enclosing(text: str, start: int, end: int, inner: int, closing: int) -> tuple[int, int]:
    """Return the content span of the outermost complete box around one, or its own."""
    levels = -_lowest(_pieces(text, closing + 1, end))
    if levels == 0:
        return inner, closing
    before = _braces(text[start : inner - 1])[::-1].translate(_SWAPPED)
    levels = min(levels, -_lowest(_cut(before)))
    if levels == 0:
        return inner, closing
    # The outermost pair of braces that is closed: all between is balanced, so boxes in it are complete.
    position = inner - 2 - _drop(_cut(before), levels)
    command = text.rfind("\\", start, position)
    found = _BRACED.match(text, command, end) if command >= 0 else None
    if not (found and found.end() == position + 1):
        found = _BRACED.search(text, position, end)
    while found and found.end() < inner:
        close = _drop(_pieces(text, found.end(), end), 1)
        if close > closing:
            return found.end(), close
        found = _BRACED.search(text, close, end)
    return inner, closing


def _unwrapped(text: str, inner: int, closing: int) -> tuple[int, int]:
    """The content span without the boxes that hold nothing but a box, all such levels at once."""
    chain = _BRACED_CHAIN.match(text, inner, closing)
    if chain is None or chain.end() == inner:
        return inner, closing
    braces = _braces(text[inner:closing])
    first, last = chain.end() - inner, len(braces.rstrip(b"}" + _SPACES))
    opens = braces[:first].translate(_SWAPPED)
    # Boxes that open the content and stay open up to its last closing braces hold nothing else.
    levels = opens.count(b"}") + _lowest(_cut(braces[first:last]))
    if levels <= 0:
        return inner, closing
    return inner + _drop(_cut(opens), levels) + 1, closing - 1 - _drop(_cut(braces[: first - 1 : -1]), levels)


# ------------------------------------------------------------------------------------------------ counting braces in C


def _braces(text: str) -> bytes:
    """One byte a character, in which every `{` and `}` is a brace that counts: those after a backslash are blanked."""
    blanked = text.replace("\\\\", "xx").replace("\\{", "xx").replace("\\}", "xx") if "\\" in text else text
    return blanked.encode("ascii", "replace")


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The braces of a part of a text, piece by piece with their offsets, small pieces first: what is sought is near."""
    size = 256
    while start < end:
        stop = min(start + size, end)
        if text[stop - 1] == "\\":
            # Neither a run of backslashes nor the character behind it may be cut off.
            behind = _NO_BACKSLASH.search(text, stop, end)
            stop = behind.end() if behind else end
        yield start, _braces(text[start:stop])
        start = stop
        size = min(4 * size, _CHUNK)


def _cut(braces: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the braces in chunks, each with its offset."""
    return ((offset, braces[offset : offset + _CHUNK]) for offset in range(0, len(braces), _CHUNK))


def _drop(pieces: Iterable[tuple[int, bytes]], depth: int) -> int:
    """The first offset where the depth, `depth` before the first piece, falls to 0; -1 if it never does."""
    for offset, piece in pieces:
        lowest, net = _profile(piece)
        if depth + lowest <= 0:
            steps = memoryview(piece.translate(_STEPS)).cast("b")
            return offset + indexOf(accumulate(steps, initial=depth), 0) - 1
        depth += net
    return -1


def _lowest(pieces: Iterable[tuple[int, bytes]]) -> int:
    """The lowest depth reached, counted from 0: minus the number of braces that close nothing here."""
    lowest = depth = 0
    for _, piece in pieces:
        low, net = _profile(piece)
        lowest = min(lowest, depth + low)
        depth += net
    return lowest


def _profile(part: bytes) -> tuple[int, int]:
    """The lowest depth reached in a part (0 or less) and the depth at its end, both counted from 0."""
    left = part.translate(None, _NO_BRACES)
    for _ in range(6):  # take away the innermost pairs; what LaTeX nests is gone then
        if b"{}" not in left:
            break
        left = left.replace(b"{}", b"")
    closing = left.count(b"}")
    net = len(left) - 2 * closing
    if b"{}" in left:
        return min(0, *accumulate(memoryview(left.translate(_STEPS)).cast("b"))), net
    return -closing, net


# ------------------------------------------------------------------------------------------------ all of them


def _boxes_in(text: str, region: Region, fences: list[int]) -> Iterator[Box]:
    """The boxes of one region, found with a stack over its braces."""
    start, end = region.start, region.end
    braces = _braces(text[start:end])
    opened = {found.end() - 1: found.start() for found in _BRACED.finditer(text, start, end)}
    closed: dict[int, int] = {}
    stack: list[int] = []
    for brace in _BRACE.finditer(braces, min(opened, default=end) - start):
        if brace[0] == b"{":
            stack.append(brace.start() + start)
        elif stack:
            closed[stack.pop()] = brace.start() + start
    outermost = start
    for found in _START.finditer(text, start, end):
        braced = _BRACED.match(text, found.start(), end)
        bare = None if braced else _BARE.match(text, found.start(), end)
        if braced:
            content, close = braced.end(), closed.get(braced.end() - 1)
            spans = (content, end if close is None else close, end if close is None else close + 1)
        elif bare:
            spans = (bare.start(1), bare.end(1), bare.end(1))
            close = spans[1]
        else:
            continue
        yield Box(
            start=found.start(),
            end=spans[2],
            content_start=spans[0],
            content_end=spans[1],
            complete=close is not None,
            braced=bare is None,
            in_reasoning=region.in_reasoning,
            in_fence=bisect_right(fences, found.start()) % 2 == 1,
            enclosed=found.start() < outermost,
            _text=text,
        )
        if braced and close is not None:
            outermost = max(outermost, close)
