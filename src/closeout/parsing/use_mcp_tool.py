"""Read `<use_mcp_tool>` calls: a server, a tool and its arguments as JSON, each in a tag (the MiroFlow line, Cline).

`CallScanner` is the one reader of this form. The `mcp_xml` dialect feeds it a stream, the tool-call forms a whole text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from closeout.messages import Defect
from closeout.parsing.action_keys import contradiction, read_object
from closeout.parsing.json_stream import JsonScanner, Signal

__all__ = ["OPENING_TAG", "CallScanner", "TaggedCall"]

OPENING_TAG = "<use_mcp_tool>"
_SERVER = re.compile(r"<server_name>([^<]{0,200})</server_name>", re.IGNORECASE)
_TOOL = re.compile(r"<tool_name>([^<]{0,200})</tool_name>", re.IGNORECASE)
_HEAD_END = re.compile(r"<arguments>|(?P<closed></arguments>\s*+)?</use_mcp_tool>", re.IGNORECASE)
_HEAD_LIMIT = 2000  # characters in which the server and the tool must be named
_VALUE_START = re.compile(r"\s*+(?:```\w{0,16}\s*+|null\s*+)?")
_TAIL = re.compile(r"\s*+(?:```\s*+)?(?P<arguments></arguments>)?\s*+(?P<call></use_mcp_tool>)?", re.IGNORECASE)
_TAIL_PART = re.compile(r"\s*`{0,2}|\s*(?:```)?\s*(?:</arguments>)?\s*(?:</?[a-z_]{0,12})?", re.IGNORECASE)
_TAGS = re.compile(r"<(/?)(use_mcp_tool|arguments)>", re.IGNORECASE)
_HINT = "Write one <use_mcp_tool> block with server_name, tool_name and arguments. The arguments are one JSON object."
_AMBIGUOUS = (
    "The arguments are not valid JSON and contain tags, so nothing was run. Write them again as one valid JSON object."
)
_NOT_FINITE = (
    "The arguments contain NaN or Infinity, which JSON does not have. Nothing was run. Write a number or null."
)
_CUT = "Your last call was cut off at the length limit. Write it again and be brief."


class _TagState(Enum):
    HEAD = auto()  # server and tool name
    VALUE = auto()  # the text after `<arguments>`
    JSON = auto()
    TAIL = auto()  # closing tags after the JSON
    BROKEN = auto()  # no valid JSON: the rest of the text is collected
    DONE = auto()


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """The content of a call's tags. `arguments` are the text as written where they are not a JSON object."""

    name: str
    server: str
    arguments: dict[str, Any] | str
    written: str


class CallScanner:
    """Scan one call that begins after its opening tag. Tags inside a JSON string are data.

    `name` is set once the tool is known; `pieces` collects the arguments as written.
    """

    def __init__(self) -> None:
        self.name = ""
        self.server = ""
        self.pieces: list[str] = []
        self._state = _TagState.HEAD
        self._json = JsonScanner(plain=True)
        self._empty = False  # no arguments were written

    @property
    def complete(self) -> bool:
        """True if the call is whole: what follows is not part of it."""
        return self._state is _TagState.DONE

    @property
    def unfinished(self) -> bool:
        """True if the text ended before anything closed the call."""
        if self._state is _TagState.BROKEN:
            return not any(_TAGS.search(piece) for piece in self.pieces)
        return self._state not in (_TagState.DONE, _TagState.TAIL)

    def scan(self, text: str, at: int, *, last: bool = False) -> int:
        """Read on from a position and return how far the text is used up. `last`: there is no more text."""
        while self._state is not _TagState.DONE:
            state = self._state
            if state is _TagState.HEAD:
                at = self._read_head(text, at)
            elif state is _TagState.VALUE:
                at = self._read_value_start(text, at, last)
            elif state is _TagState.JSON:
                at = self._read_json(text, at)
            elif state is _TagState.TAIL:
                at = self._read_tail(text, at, last)
            else:
                self.pieces.append(text[at:])
                at = len(text)
            if self._state is state:
                break
        return at

    def _read_head(self, text: str, at: int) -> int:
        limit = at + _HEAD_LIMIT
        end = _HEAD_END.search(text, at, limit)
        if not self.name and (tool := _TOOL.search(text, at, end.start() if end else limit)):
            self.name = tool[1].strip()
        if end is None:
            self._state = _TagState.BROKEN if len(text) >= limit else self._state
            return at
        if server := _SERVER.search(text, at, end.start()):
            self.server = server[1].strip()
        if end[0].casefold() == "<arguments>":
            self._state = _TagState.VALUE
            return end.end()
        self._empty = "{" not in text[at : end.start()]
        self._state = _TagState.DONE
        return end.end()

    def _read_value_start(self, text: str, at: int, last: bool) -> int:
        start = _VALUE_START.match(text, at).end()  # type: ignore[union-attr]
        if start == len(text) or (not last and "null".startswith(text[start:])):
            return at
        self._empty = text[start] == "<"
        self._state = _TagState.JSON if text[start] == "{" else _TagState.TAIL if self._empty else _TagState.BROKEN
        return start if text[start] == "{" else at

    def _read_json(self, text: str, at: int) -> int:
        signal, end = self._json.scan(text, at)
        self.pieces.append(text[at:end])
        if signal is Signal.DONE:
            self._state = _TagState.TAIL
        elif signal is not Signal.MORE:
            self._state = _TagState.BROKEN
        return end

    def _read_tail(self, text: str, at: int, last: bool) -> int:
        start = _VALUE_START.match(text, at).end() if self._empty else at  # type: ignore[union-attr]
        tail = _TAIL.match(text, start)
        assert tail is not None
        if tail["call"] is None and _TAIL_PART.fullmatch(text, start):
            return len(text) if last else at  # a closing tag may be missing or cut off
        if tail["call"] is None and tail["arguments"] is None:
            self._state = _TagState.BROKEN  # text after the JSON
            return at
        self._state = _TagState.DONE
        return tail.end()

    def result(self, *, truncated: bool = False) -> TaggedCall | Defect:
        """The call, once the text has ended or the call is complete.

        Args:
            truncated: The reply was cut off, so that nothing unfinished is completed.
        """
        written = "".join(self.pieces)
        if self._state is _TagState.DONE:
            if not self.name or not (written or self._empty):
                return Defect("broken_action", _HINT)
        elif truncated:
            return Defect("truncated", _CUT, refuses=True)
        elif not self.name or self._state in (_TagState.HEAD, _TagState.VALUE):
            return Defect("broken_action", _HINT)
        elif self._json.not_finite:
            return Defect("broken_action", _NOT_FINITE, refuses=True)
        elif self._state is not _TagState.TAIL:
            end = _only_end(written)
            if end < 0:
                return Defect("broken_action", _AMBIGUOUS, refuses=True)
            written = written[:end].strip()
        if written in ("", "null"):
            return TaggedCall(self.name, self.server, {}, written)
        if refused := contradiction(written):
            return Defect("broken_action", f"The call of {self.name} {refused}. {_HINT}", refuses=True)
        value = read_object(written)
        return TaggedCall(self.name, self.server, written if value is None else value, written)


def _only_end(text: str) -> int:
    """Return the end of broken arguments if only one reading is possible, else -1."""
    tags = list(_TAGS.finditer(text))
    if not tags:
        return len(text)
    names = [(tag[1] + tag[2]).casefold() for tag in tags]
    if names not in (["/arguments"], ["/use_mcp_tool"], ["/arguments", "/use_mcp_tool"]):
        return -1
    if names[0] == "/arguments" and text[tags[0].end() : tags[1].start() if len(tags) > 1 else None].strip():
        return -1
    return tags[0].start()
