"""The base classes of the request formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from closeout.messages import Message, ModelReply, ModelRequest, Repair, ToolSpec
from closeout.models.streaming import ReplyBuilder, StreamReader
from closeout.server.upstream import UpstreamKind

__all__ = ["FormCheck", "Format", "NativeFormat", "RequestTools", "Writer", "with_hint"]


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of a request: functions with their schemas, and the names of tools of other kinds."""

    functions: tuple[ToolSpec, ...] = ()
    others: tuple[str, ...] = ()


class Writer(ABC):
    """Writes a streamed reply, event by event.

    It can begin in the middle of a stream: show it the events that a client got already with `observe`.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.model = str(body.get("model") or "")
        self.id = ""
        self.begun = False

    def observe(self, event: Mapping[str, Any]) -> None:  # noqa: B027  Responses are never passed through
        """Take note of an event of the upstream server that the client got."""

    @abstractmethod
    def begin(self) -> Iterator[bytes]:
        """Begin the reply, unless it has begun."""

    @abstractmethod
    def text(self, piece: str) -> Iterator[bytes]:
        """Write a piece of the text."""

    @abstractmethod
    def finish(self, reply: ModelReply) -> Iterator[bytes]:
        """Write the calls and the end of a reply, whose text has been written."""


class FormCheck(ABC):
    """Finds faults in the form of a reply that clients may not be able to read, whole or event by event.

    Attributes:
        fault: The first fault, such as the "id" of a call; empty without one.
    """

    def __init__(self) -> None:
        self.fault = ""
        self._ids: dict[Any, str] = {}  # ids of the calls so far, keyed by place
        self._seen: set[str] = set()

    @abstractmethod
    def take(self, value: Mapping[str, Any]) -> None:
        """Look at a whole reply, or at an event."""

    def _note(self, fault: str) -> None:
        self.fault = self.fault or fault

    def _take_id(self, place: Any, call_id: Any) -> None:
        """Look at the id with which a call begins."""
        if not isinstance(call_id, str) or not call_id or call_id in self._seen:
            self._note("id")
        self._ids[place] = str(call_id or "")
        self._seen.add(self._ids[place])


class Format(ABC):
    """One of the request formats.

    Attributes:
        path: Where such requests are sent, after the version.
    """

    path: ClassVar[str]

    @abstractmethod
    def tools(self, body: Mapping[str, Any]) -> RequestTools:
        """Return the tools of a request."""

    @abstractmethod
    def mended(self, body: dict[str, Any]) -> tuple[dict[str, Any], list[Repair]]:
        """Return a request whose conversation every server accepts, the same one if it is valid, and its repairs."""

    @abstractmethod
    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        """Return the conversation of a request in the form of Chat Completions."""

    @abstractmethod
    def request(self, body: Mapping[str, Any], tools: RequestTools) -> ModelRequest:
        """Return a request for a server that speaks another format."""

    @abstractmethod
    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        """Return the body of a response."""

    @abstractmethod
    def writer(self, body: Mapping[str, Any]) -> Writer:
        """Return a writer for a streamed response to a request."""

    def parallel(self, body: Mapping[str, Any]) -> bool:
        """Return whether a reply may hold several calls."""
        return body.get("parallel_tool_calls") is not False


class NativeFormat(Format):
    """A format that an upstream server may speak itself: requests and valid replies pass unchanged.

    Attributes:
        protocol: The kind of server that speaks it.
        translated: The fields of a request that a `ModelRequest` has.
    """

    protocol: ClassVar[UpstreamKind]
    translated: ClassVar[frozenset[str]]

    def whole_request(self, body: Mapping[str, Any], tools: RequestTools) -> ModelRequest:
        """Return a request with all its fields, for a server that speaks the same format."""
        more = {name: value for name, value in body.items() if name not in self.translated}
        if isinstance(choice := body.get("tool_choice"), dict):
            more["tool_choice"] = choice
        return replace(self.request(body, tools), extra_body=more)

    @abstractmethod
    def read(self, value: Any) -> ModelReply | None:
        """Return the reply in the body of a response; None if it is not one."""

    @abstractmethod
    def reader(self, builder: ReplyBuilder) -> StreamReader:
        """Return a reader of a streamed response."""

    @abstractmethod
    def form_check(self) -> FormCheck:
        """Return a check of the form of one reply."""

    @abstractmethod
    def repaired(self, value: dict[str, Any], reply: ModelReply) -> dict[str, Any]:
        """Return a server's response with another text and other calls."""

    def asked_again(self, body: Mapping[str, Any], hint: str) -> dict[str, Any]:
        """Return the request with a hint on what was wrong with the reply."""
        return {**body, "messages": with_hint(body["messages"], hint)}


def with_hint(messages: Sequence[Mapping[str, Any]], hint: str) -> list[Any]:
    """Return a conversation that ends with a hint. The faulty reply is left out: the model would repeat it."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": hint}]
    # Roles must alternate for many models.
    more: Any = f"{content}\n\n{hint}" if isinstance(content, str) else [*content, {"type": "text", "text": hint}]
    return [*messages[:-1], {**last, "content": more}]
