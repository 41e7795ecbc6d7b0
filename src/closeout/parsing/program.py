"""Read replies that act by a fenced block of Python: the first block is the program, text without one the answer."""

from __future__ import annotations

import ast
import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterator
from typing import NamedTuple

from closeout.messages import Defect, Delta, ModelReply, Reading, Repair, ToolCall
from closeout.parsing.python_source import MAX_PROGRAM, parse_python
from closeout.parsing.readers import INVENTED_HINT, INVENTED_TAG, ReadEvent, read_native_calls
from closeout.parsing.reasoning import ThinkingSplitter, split_thinking
from closeout.parsing.salvage import AMID_TEXT, only_ends

__all__ = ["ProgramReader"]

_MAX_FENCES = 20  # closing fences that are tried, as a string in the program may hold some

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}+|~{3,}+)[ \t]*+(\w*+)[ \t]*+\r*+$")
_PARTS = re.compile(r"[^\n]*\n|[^\n]+")  # a piece's lines
_TAGS = frozenset({"python", "py", "python3", "tool_code"})
_EMPTY = Defect("empty", "Your last reply was empty. Write a program or give the answer.")
_CUT = Defect("truncated", "Your last reply was cut off at the length limit. Write a shorter program.", refuses=True)
_NO_LANGUAGE = Defect(
    "quoted_call",
    "The block has no language and calls a destructive function, so it was not run. To run it, open it with ```python.",
    refuses=True,
)
_LONG = Defect("too_long", f"The program is longer than {MAX_PROGRAM:,} characters. Write a shorter one.", refuses=True)

_WORD = re.compile(r"[^\W\d]\w*+")


class _FencedBlock(NamedTuple):
    """A fenced block: where it is in the text, its code, and whether its closing fence is there."""

    start: int
    end: int
    language: str
    code: str
    closed: bool


class ProgramReader:
    """Reads a reply of the `code` dialect.

    Args:
        tool: The tool that runs programs: the name of the call that is read.
        functions: What a program can call. A block without a language is a program only if it calls one of them.
        destructive: Names of those of them that a program may name only if its block has a language and the reply
            holds nothing else but reasoning, in any case: a program's repairs change the case of names.
    """

    def __init__(self, tool: str, functions: Collection[str] = (), destructive: Collection[str] = ()) -> None:
        self._tool = tool
        self._functions = frozenset(functions)
        self._destructive = frozenset(map(_folded, destructive))
        self._splitter = ThinkingSplitter()
        self._lines = _LineReader()
        self._mark = ""  # the open block's fence
        self._code: list[str] | None = None  # the program so far, None before it begins
        self._fences = 0  # fences in the program
        self._ended = False  # the program is whole
        self.complete = False

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return [ReadEvent(delta.kind, delta.text, delta.index)] if delta.text else []
        events: list[ReadEvent] = []
        for thinking, piece in self._splitter.feed(delta.text):
            events += [ReadEvent("reasoning", piece)] if thinking else self._read_piece(piece)
        return events

    def _read_piece(self, piece: str) -> Iterator[ReadEvent]:
        """Announce what is new and certain: text, that a program begins, and its lines."""
        certain: list[str] = []
        for part, fence in self._lines.feed(piece) if not self._ended else ():
            if fence is not None and not self._mark:
                self._mark = fence[1][0]
                if fence[2].lower() in _TAGS:
                    yield from self._announced(certain)
                    yield ReadEvent("tool_name", self._tool)
                    self._code, certain = [], []
                    continue
            elif fence is not None and fence[1][0] == self._mark and not fence[2]:
                if self._code is None:
                    self._mark = ""
                elif self._ends(self._code):
                    self._ended = True
                    # Text after a program that names a destructive function decides whether it runs.
                    self.complete = not self._names_destructive("".join(self._code))
                    break
            certain.append(part)
            if self._code is not None:
                self._code.append(part)
        yield from self._announced(certain)

    def _ends(self, code: list[str]) -> bool:
        """True if a fence ends the program. One that leaves it incomplete is inside a string."""
        self._fences += 1
        return self._fences >= _MAX_FENCES or parse_python("".join(code).rstrip()) is not None

    def _announced(self, parts: list[str]) -> Iterator[ReadEvent]:
        if parts:
            yield ReadEvent("text" if self._code is None else "tool_arguments", "".join(parts))

    def close(self, reply: ModelReply) -> Reading:
        thinking, text = split_thinking(reply.text)
        reasoning = "\n".join(filter(None, (reply.reasoning, thinking)))
        block = self._program(text)
        cut = not reply.finished
        if block is not None:
            return self._reading(block, text, reasoning, cut=cut and not block.closed)
        calls, defects = read_native_calls(reply)
        if calls or defects:  # some servers read calls themselves
            return Reading(text, reasoning, calls[:1], defects=defects, raw=reply.text)
        if not text.strip():
            return Reading(text, reasoning, defects=(_CUT if cut else _EMPTY,), raw=reply.text)
        return Reading(text, reasoning, answer=text, defects=(_CUT,) if cut else (), raw=reply.text)

    def _reading(self, block: _FencedBlock, text: str, reasoning: str, *, cut: bool) -> Reading:
        before, raw = text[: block.start], text[: block.end]
        defect = (
            _CUT if cut else _LONG if len(block.code) > MAX_PROGRAM else self._quoted(before, block, text[block.end :])
        )
        if defect is not None:
            return Reading(before.strip(), reasoning, defects=(defect,), raw=raw)
        repairs = () if block.closed else (Repair("unclosed_fence", "reply", after="```"),)
        call = ToolCall(self._tool, {"code": block.code})
        return Reading(before.strip(), reasoning, (call,), repairs=repairs, raw=raw)

    def _quoted(self, before: str, block: _FencedBlock, after: str) -> Defect | None:
        """Why a program must not run that the reply may only show."""
        if INVENTED_TAG.search(before):
            return Defect("invented_observation", INVENTED_HINT, refuses=True)
        if self._names_destructive(block.code):
            if not block.language:
                return _NO_LANGUAGE
            if before.strip() or not only_ends(after):
                return AMID_TEXT
        return None

    def _names_destructive(self, code: str) -> bool:
        return bool(self._destructive) and not self._destructive.isdisjoint(map(_folded, _names(code)))

    def _program(self, text: str) -> _FencedBlock | None:
        """The first block that is a program. What follows it is not read: a result that the model made up, say."""
        end = 0
        for line, start, after in _lines(text):
            opening = _FENCE.match(line)
            if opening is None or start < end:
                continue
            block = _block(text, opening, start, after)
            if block.language in _TAGS or (not block.language and not self._functions.isdisjoint(_called(block.code))):
                return block
            end = block.end
        return None


def _block(text: str, opening: re.Match[str], start: int, begins: int) -> _FencedBlock:
    """The block whose code begins at `begins`. A fence that leaves Python incomplete is inside a string."""
    mark, language = opening[1][0], opening[2].lower()
    may_be_python = not language or language in _TAGS
    first: _FencedBlock | None = None
    tried = 0
    for line, ends, after in _lines(text, begins):
        closing = _FENCE.match(line)
        if closing is None or closing[2] or closing[1][0] != mark:
            continue
        block = _FencedBlock(start, after, language, text[begins:ends].rstrip(), closed=True)
        tried += 1
        if not may_be_python or parse_python(block.code) is not None:
            return block
        first = first or block
        if tried >= _MAX_FENCES:
            break
    return first or _FencedBlock(start, len(text), language, text[begins:].rstrip(), closed=False)


def _called(code: str) -> Iterator[str]:
    """The names that a program calls; none if it is not Python."""
    tree = parse_python(code)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def _names(code: str) -> Iterator[str]:
    """The names in a program, by Python if it reads it with its indentation repaired; else every word is one."""
    tree = parse_python(code) or parse_python(textwrap.dedent(code)) or parse_python(code.lstrip(" \t"))
    if tree is None:
        yield from _WORD.findall(unicodedata.normalize("NFKC", code))
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name):
            yield node.id


def _folded(name: str) -> str:
    return name.replace("_", "").casefold()


def _lines(text: str, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """Each line from `start`, where it begins, and where the next one does."""
    while start < len(text):
        end = text.find("\n", start)
        after = len(text) if end < 0 else end + 1
        yield text[start:after], start, after
        start = after


class _LineReader:
    """Takes a stream apart into fences and other text."""

    def __init__(self) -> None:
        self._first = ""  # the first character of the line that is not blank
        self._held: list[str] = []  # the line as far as it was read, while it may be a fence

    def feed(self, piece: str) -> Iterator[tuple[str, re.Match[str] | None]]:
        """Yield each part that is certain: the line of a fence with its match, or text that ends within its line."""
        for part in _PARTS.findall(piece):
            self._first = self._first or part.lstrip()[:1]
            may_be_fence, ended = self._first in ("", "`", "~"), part.endswith("\n")
            self._held.append(part)
            if may_be_fence and not ended:
                continue
            text = "".join(self._held)
            self._held.clear()
            yield text, _FENCE.match(text) if may_be_fence else None
            if ended:
                self._first = ""
