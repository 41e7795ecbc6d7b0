"""Read replies that act by a fenced block of Python: the first block is the program, text without one the answer."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterator
from typing import NamedTuple

from closeout.messages import Defect, Delta, ModelReply, Reading, Repair, ToolCall
from closeout.parsing.readers import INVENTED_HINT, INVENTED_TAG, QUOTED_HINT, ReadEvent, read_native_calls
from closeout.parsing.reasoning import ThinkingSplitter, split_thinking
from closeout.parsing.salvage import introduces_quotation

__all__ = ["MAX_PROGRAM", "ProgramReader", "parse_python"]

MAX_PROGRAM = 100_000  # characters
_MAX_FENCES = 20  # closing fences that are tried, as a string in the program may hold some

_OPENING = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*(\w*)[ \t]*$")
_NOT_BLANK = re.compile(r"\S")
_TAGS = frozenset({"python", "py", "python3", "tool_code"})
_EMPTY = Defect("empty", "Your last reply was empty. Write a program or give the answer.")
_CUT = Defect("truncated", "Your last reply was cut off at the length limit. Write a shorter program.", refuses=True)
_NO_LANGUAGE = Defect(
    "quoted_call",
    "The block has no language and calls a destructive function, so it was not run. To run it, open it with ```python.",
    refuses=True,
)
_LONG = Defect("too_long", f"The program is longer than {MAX_PROGRAM:,} characters. Write a shorter one.", refuses=True)


class _Block(NamedTuple):
    """A fenced block: the text before it, its code, and whether its closing fence is there."""

    before: str
    language: str
    code: str
    closed: bool
    end: int  # where the block ends in the text


class ProgramReader:
    """Reads a reply of the `code` dialect.

    Args:
        tool: The tool that runs programs: the name of the call that is read.
        functions: What a program can call. A block without a language is a program only if it calls one of them.
        destructive: Those of them that a block never calls that has no language, or that the reply introduces as a
            quotation.
    """

    def __init__(self, tool: str, functions: Collection[str] = (), destructive: Collection[str] = ()) -> None:
        self._tool = tool
        self._functions = frozenset(functions)
        self._destructive = frozenset(destructive)
        self._splitter = ThinkingSplitter()
        self._text = ""  # without reasoning
        self._line = 0  # where the line being written begins
        self._searched = 0  # how far the line being written was searched for its end
        self._blank = 0  # up to where it is blank
        self._shown = 0  # how much was announced
        self._code_from = -1  # where the program begins
        self._fences = 0
        self.complete = False

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return [ReadEvent(delta.kind, delta.text, delta.index)] if delta.text else []
        events: list[ReadEvent] = []
        for thinking, piece in self._splitter.feed(delta.text):
            if thinking:
                events.append(ReadEvent("reasoning", piece))
            elif not self.complete:
                self._text += piece
                events += self._scan()
        return events

    def _scan(self) -> Iterator[ReadEvent]:
        while not self.complete and (end := self._text.find("\n", max(self._line, self._searched))) >= 0:
            line, start, self._line = self._text[self._line : end], self._line, end + 1
            opening = _OPENING.match(line)
            if self._code_from < 0 and opening and opening[2].lower() in _TAGS:
                self._code_from = self._line
                yield ReadEvent("tool_name", self._tool)
            elif self._code_from >= 0 and opening and not opening[2]:
                self._fences += 1
                self.complete = (
                    self._fences >= _MAX_FENCES or parse_python(self._text[self._code_from : start]) is not None
                )
        yield from self._announced()

    def _announced(self) -> Iterator[ReadEvent]:
        """What is new and certain: lines that are no fence."""
        if self.complete or self._code_from > self._shown:
            self._shown = max(self._shown, self._code_from)
        self._searched = len(self._text)
        first = _NOT_BLANK.search(self._text, max(self._line, self._blank))
        self._blank = first.start() if first else self._searched
        until = self._searched if first and first[0] not in "`~" else self._line
        if not self.complete and until > self._shown:
            piece, self._shown = self._text[self._shown : until], until
            yield ReadEvent("text" if self._code_from < 0 else "tool_arguments", piece)

    def close(self, reply: ModelReply) -> Reading:
        thinking, text = split_thinking(reply.text)
        reasoning = "\n".join(filter(None, (reply.reasoning, thinking)))
        block = self._program(text)
        cut = reply.finish_reason == "length"
        if block is not None:
            return self._reading(block, text, reasoning, cut=cut and not block.closed)
        calls, defects = read_native_calls(reply)
        if calls or defects:  # some servers read calls themselves
            return Reading(text, reasoning, calls[:1], defects=defects, raw=reply.text)
        if not text.strip():
            return Reading(text, reasoning, defects=(_CUT if cut else _EMPTY,), raw=reply.text)
        return Reading(text, reasoning, answer=text, defects=(_CUT,) if cut else (), raw=reply.text)

    def _reading(self, block: _Block, text: str, reasoning: str, *, cut: bool) -> Reading:
        before, raw = block.before.strip(), text[: block.end]
        defect = _CUT if cut else _LONG if len(block.code) > MAX_PROGRAM else self._quoted(block)
        if defect is not None:
            return Reading(before, reasoning, defects=(defect,), raw=raw)
        repairs = () if block.closed else (Repair("unclosed_fence", "reply", after="```"),)
        call = ToolCall(self._tool, {"code": block.code})
        return Reading(before, reasoning, (call,), repairs=repairs, raw=raw)

    def _quoted(self, block: _Block) -> Defect | None:
        """Why a program must not run that the reply may only show."""
        if INVENTED_TAG.search(block.before):
            return Defect("invented_observation", INVENTED_HINT, refuses=True)
        if not self._destructive.isdisjoint(_names(block.code)):
            if not block.language:
                return _NO_LANGUAGE
            if introduces_quotation(block.before):
                return Defect("quoted_call", QUOTED_HINT, refuses=True)
        return None

    def _program(self, text: str) -> _Block | None:
        """The first block that is a program. What follows it is not read: a result that the model made up, say."""
        start = 0
        for line, begins, ends in _lines(text):
            opening = _OPENING.match(line)
            if opening is None or begins < start:
                continue
            block = _block(text, opening, begins, ends)
            if block.language in _TAGS or (not block.language and self._calls_function(block.code)):
                return block
            start = block.end
        return None

    def _calls_function(self, code: str) -> bool:
        return not self._functions.isdisjoint(_names(code, called=True))


def _block(text: str, opening: re.Match[str], before: int, begins: int) -> _Block:
    """The block whose code begins there. A fence that leaves the code incomplete is inside a string."""
    mark, language = opening[1][0], opening[2].lower()
    first: _Block | None = None
    tried = 0
    for line, start, end in _lines(text[begins:]):
        closing = _OPENING.match(line)
        if closing is None or closing[2] or closing[1][0] != mark:
            continue
        block = _Block(text[:before], language, text[begins : begins + start].rstrip(), True, begins + end)
        tried += 1
        if parse_python(block.code) is not None:
            return block
        first = first or block
        if tried >= _MAX_FENCES:
            break
    return first or _Block(text[:before], language, text[begins:].rstrip(), False, len(text))


def _names(code: str, *, called: bool = False) -> Iterator[str]:
    """The names in a program, or only those that it calls; none if it is not Python."""
    tree = parse_python(code)
    for node in ast.walk(tree) if tree is not None else ():
        named = node.func if called and isinstance(node, ast.Call) else node if not called else None
        if isinstance(named, ast.Name):
            yield named.id


def _lines(text: str) -> Iterator[tuple[str, int, int]]:
    """Each line, where it begins, and where the next one does."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        after = len(text) if end < 0 else end + 1
        yield text[start : len(text) if end < 0 else end].rstrip("\r"), start, after
        start = after


def parse_python(code: str) -> ast.Module | None:
    """Return the syntax tree of a program, None if it is not Python or too long. Nothing is run."""
    if len(code) > MAX_PROGRAM:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in a string is the model's affair
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
