"""A reply from a stream: server-sent events are read, and their pieces put together."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from closeout.codec import join_surrogates
from closeout.errors import ServerFailed
from closeout.messages import FINISHED, Delta, ModelReply, ReplyTokens, ToolCall, Usage
from closeout.models.base import OnDelta
from closeout.models.http_errors import json_or_none

__all__ = ["MAX_EVENT", "MOST_COUNTED", "EventReader", "ReplyBuilder", "StreamReader", "unique_ids"]

# ------------------------------------------------------------------------------------------------ server-sent events


# One event carries a few tokens, or an image of some megabytes; more is not an event stream.
MAX_EVENT = 16 * 2**20


class EventReader:
    """Splits bytes into server-sent events and returns the `data` of each. Comments, ids and names are ignored.

    Lines end in LF, CRLF or CR. The data lines of one event are joined by LF, as the standard says.
    """

    __slots__ = ("_data", "_partial", "_size", "_skip_lf")

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # pieces of a line whose end has not come yet
        self._data: list[bytes] = []
        self._size = 0
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that this chunk completes. Raises ServerFailed for one of more than 16 MiB."""
        if not chunk:
            return []
        # A CR has ended its line already; the LF of the same line end may come with the next chunk.
        if self._skip_lf and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skip_lf = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        if lines and self._partial:
            lines[0] = b"".join((*self._partial, lines[0]))
            self._partial.clear()
        for line in lines:
            self._take(line, events)
        if rest:
            self._partial.append(rest)
            self._grow(len(rest))
        return events

    def close(self) -> list[bytes]:
        """Return the data of an event that the end of the stream completes: servers omit the last empty line."""
        events: list[bytes] = []
        if self._partial:
            self._take(b"".join(self._partial), events)
            self._partial.clear()
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
            self._size = 0
        elif line.startswith(b"data:"):
            data = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(data)
            self._grow(len(data))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_EVENT:
            told = "The server sent an event of more than 16 MiB, which cannot be a reply."
            raise ServerFailed(told, about_request=True)


# ------------------------------------------------------------------------------------------------ the reply


MOST_COUNTED = 10**9  # tokens or dollars of one reply; larger counts are ignored


class _PartialText:
    """A text that arrives in pieces. A piece that ends in half a surrogate pair waits for the other half."""

    __slots__ = ("_half", "length", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0
        self._half = ""

    def add(self, piece: str) -> str:
        """Add a piece and return the text that is complete now."""
        if not piece.isascii() or self._half:
            piece, self._half = self._half + piece, ""
            if "\ud800" <= piece[-1] <= "\udbff":
                piece, self._half = piece[:-1], piece[-1]
            piece = join_surrogates(piece)
        if piece:
            self.pieces.append(piece)
            self.length += len(piece)
        return piece

    def whole(self) -> str:
        """Return all of the text. A half that is still waiting becomes U+FFFD."""
        return "".join(self.pieces) + join_surrogates(self._half)


_STRUCTURE = re.compile(r'[{}\[\]"\\]')


@dataclass(slots=True)
class _CallParts:
    id: str = ""
    name: str = ""
    arguments: _PartialText = field(default_factory=_PartialText)
    indexes: set[int] = field(default_factory=set)  # under which the server sent its pieces
    _scanned: int = 0  # pieces whose braces are counted
    _depth: int = 0
    _quoted: bool = False
    _escaped: bool = False
    _whole: bool = False

    @property
    def text(self) -> str:
        """The arguments: the pieces together, or the last one if each repeats all that came before it."""
        pieces, text = self.arguments.pieces, self.arguments.whole()
        if len(pieces) > 1 and all(later.startswith(piece) for piece, later in pairwise(pieces)):
            return pieces[-1] if json_or_none(text) is None and json_or_none(pieces[-1]) is not None else text
        return text

    @property
    def begun(self) -> bool:
        return any(not piece.isspace() for piece in self.arguments.pieces)

    @property
    def whole(self) -> bool:
        """True if the last bracket of the arguments has come."""
        for piece in self.arguments.pieces[self._scanned :]:
            self._scan(piece)
            self._scanned += 1
        return self._whole

    def _scan(self, piece: str) -> None:
        free = 1 if self._escaped else 0  # the first place that no backslash escapes
        self._escaped = False
        for found in _STRUCTURE.finditer(piece):
            mark = found.group()
            if found.start() < free:
                continue
            if mark == "\\":
                free = found.end() + 1
                self._escaped = free > len(piece)
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                self._whole = self._whole or self._depth == 0

    @property
    def clear(self) -> bool:
        """True if the arguments are one JSON value, or left out."""
        return not self.begun or json_or_none(self.arguments.whole()) is not None


class StreamReader(ABC):
    """Reads the events of one protocol into a builder. It is `done` once the reply is known to be complete."""

    __slots__ = ("builder", "done")

    def __init__(self, builder: ReplyBuilder) -> None:
        self.builder = builder
        self.done = False

    @abstractmethod
    def take(self, event: dict[str, Any]) -> None:
        """Read the JSON object of one event."""

    @property
    def complete(self) -> bool:
        """True if the stream may end here without anything missing from the reply."""
        return self.done or bool(self.builder.finish_reason)

    @property
    def attached(self) -> dict[str, Any]:
        """The fields to send back unchanged: see `ModelReply.attached`."""
        return {}

    @property
    def tokens(self) -> ReplyTokens | None:
        """The tokens of the reply, if the server states them."""
        return None


def unique_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids of a reply's calls, with one of our own where the server sent none, or one twice."""
    first = {own: n for n, own in reversed(list(enumerate(ids)))}
    return [own if own and first[own] == n else f"call_{n}" for n, own in enumerate(ids)]


class ReplyBuilder:
    """Puts a reply together from pieces and shows each to `on_delta`.

    Attributes:
        enough: Whether `on_delta` has returned True.
        lost: Whether a piece fits no call, or more than one. Such a reply holds no call.
        renumbered: Whether the server's indexes alone do not tell the calls apart.
    """

    __slots__ = (
        "_calls", "_interleaved", "_on_delta", "_reasoning", "_text", "enough", "finish_reason", "lost", "model",
        "renumbered", "usage",
    )  # fmt: skip

    def __init__(self, on_delta: OnDelta | None = None) -> None:
        self._text = _PartialText()
        self._reasoning = _PartialText()
        self._calls: dict[int, _CallParts] = {}
        self._on_delta = on_delta
        self.enough = self.lost = self.renumbered = self._interleaved = False
        self.finish_reason = ""
        self.model = ""
        self.usage: Usage | None = None

    @property
    def started(self) -> bool:
        """True if any piece of the reply has arrived."""
        return bool(self._text.length or self._reasoning.length or self._calls)

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.whole()

    @property
    def characters(self) -> int:
        """The length so far, from which the output tokens of an incomplete stream are estimated."""
        return self._text.length + self._reasoning.length + sum(c.arguments.length for c in self._calls.values())

    def add_text(self, piece: str) -> None:
        if piece and (piece := self._text.add(piece)):
            self._show(Delta("text", piece))

    def add_reasoning(self, piece: str) -> None:
        if piece and (piece := self._reasoning.add(piece)):
            self._show(Delta("reasoning", piece))

    def add_call(self, index: int, *, call_id: str = "", name: str = "", arguments: str = "") -> None:
        """Add a piece of the tool call at `index`. Servers may repeat the name with every piece."""
        parts = self._calls.get(index)
        if parts is None:
            parts = self._calls[index] = _CallParts()
        self._interleaved = self._interleaved or index != self.last_call
        parts.id = parts.id or join_surrogates(call_id)
        if name and not parts.name:
            parts.name = join_surrogates(name)
            self._show(Delta("tool_name", parts.name, index))
        if arguments and (arguments := parts.arguments.add(arguments)):
            self._show(Delta("tool_arguments", arguments, index))

    def place(self, index: Any, call_id: str, name: str, arguments: str) -> int | None:
        """Return which call a piece belongs to: the one with its id, else with its index, else the last one.

        Some servers omit the index, number all parallel calls 0, or give all of them one id. None: the piece repeats a
        whole call, or fits more than one, which sets `lost`.
        """
        index = int(index) if isinstance(index, int) or (isinstance(index, str) and index.isdecimal()) else None
        calls = self._calls
        of_index = [n for n, call in calls.items() if index in call.indexes]
        of_id = [n for n, call in calls.items() if call_id and call.id == call_id]
        found = [n for n in of_id if n in of_index] or of_id or of_index or list(calls)[-1:]
        growing = [n for n in found if not calls[n].whole]
        takers = [n for n in found if (n in growing and name in ("", calls[n].name)) or (name and not calls[n].name)]
        new_index, new_id = index is not None and not of_index, bool(call_id) and not of_id
        if not found:
            begins = True
        elif name and new_id:
            begins = not any(not (calls[n].id or calls[n].name) for n in growing)
        elif name and new_index:
            begins = not (of_id and any(calls[n].begun for n in takers))
        elif name and not takers:
            same = [n for n in found if calls[n].name == name]
            value = json_or_none(arguments) if same and arguments else None
            if same and (not arguments.strip() or any(json_or_none(calls[n].arguments.whole()) == value for n in same)):
                return None
            begins = True
        else:
            begins = not name and new_id and (new_index or not growing)
        self.renumbered = self.renumbered or (bool(found) and (new_index != begins or len(of_index) > 1))
        if begins:
            place = self.last_call + 1
            calls[place] = _CallParts(indexes=set() if index is None else {index})
            return place
        if not (of_id or of_index):  # neither names the call: it is the last one, if it is the only one that grows
            growing = takers = [n for n, call in calls.items() if not call.whole]
        fitting = takers or found
        if len(fitting) > 1 or (not takers and len(calls) > 1):
            self.lost = self.lost or bool(name or arguments.strip())
            return None
        # A name that comes again without an id may begin another call of the same tool.
        self.renumbered = self.renumbered or bool(name and not call_id and calls[fitting[0]].name)
        if index is not None and new_index and not of_id:  # an index beside an id may be any
            calls[fitting[0]].indexes.add(index)
        return fitting[0]

    @property
    def last_call(self) -> int:
        """The index of the last call; -1 without calls."""
        return next(reversed(self._calls), -1)

    @property
    def reasoning(self) -> str:
        return self._reasoning.whole()

    def call_ids(self) -> dict[int, str]:
        """Return the ids that the calls have in the reply, by their index."""
        return dict(zip(self._calls, unique_ids([parts.id for parts in self._calls.values()]), strict=True))

    def arguments(self, index: int) -> str:
        """Return the arguments of a call as far as they have come."""
        parts = self._calls.get(index)
        return parts.arguments.whole() if parts else ""

    def is_whole(self, index: int) -> bool:
        """Return True if the last bracket of a call's arguments has come."""
        parts = self._calls.get(index)
        return parts is not None and parts.whole

    def reply(
        self, *, usage: Usage, attached: Mapping[str, Any] | None = None, tokens: ReplyTokens | None = None
    ) -> ModelReply:
        """Return the reply so far. Its finish_reason is "cut" if `on_delta` has stopped it."""
        calls, ids = [], self.call_ids()
        finish = "cut" if self.enough else self.finish_reason or "missing"
        if self._is_garbled:
            finish = "malformed_call" if finish in FINISHED else finish
        else:
            for index, parts in self._calls.items():
                text = parts.text
                if parts.name or text.strip():  # else it is a piece without content
                    calls.append(ToolCall(parts.name, text, ids[index], text=text))
        return ModelReply(
            text=self._text.whole(),
            reasoning=self._reasoning.whole(),
            tool_calls=tuple(calls),
            finish_reason=finish,
            usage=usage,
            model=self.model,
            attached=attached or {},
            tokens=tokens,
        )

    @property
    def _is_garbled(self) -> bool:
        """True if a call may hold pieces of another one."""
        if self.lost or any(call.begun and not call.name for call in self._calls.values()):
            return True
        if len(self._calls) < 2 and not self.renumbered:
            return False
        calls = self._calls.values()
        unclear = [call for call in calls if not call.clear]
        crossed = any(call.whole for call in unclear) and any(not call.whole for call in unclear)
        return bool(unclear) and (self.renumbered or self._interleaved or crossed)

    def _show(self, delta: Delta) -> None:
        if self._on_delta is not None and not self.enough and self._on_delta(delta):
            self.enough = True
