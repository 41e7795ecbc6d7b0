"""Messages as one OpenAI-compatible server takes them, and what such servers add to theirs and want back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from closeout.codec import encode_json
from closeout.messages import Message
from closeout.models.sent_names import safe_name

__all__ = [
    "REASONING_FIELDS",
    "SHORT_ID",
    "MessageEncoder",
    "added_names",
    "added_to_call",
    "added_to_message",
    "as_attached",
    "grown",
    "read_content",
]

REASONING_FIELDS = ("reasoning_content", "reasoning")


# ------------------------------------------------------------------------------------------------ writing

# Our keys, not the protocol's: the encoder decides what is sent of them.
_PRIVATE = frozenset({"reasoning_content", "attached"})
_CHANGED = _PRIVATE | {"tool_calls", "tool_call_id"}
# The signature of calls that another model made: https://ai.google.dev/gemini-api/docs/thought-signatures#faqs
_UNSIGNED = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
# The fields that a request needs.
_NEEDED = frozenset({"role", "content", "tool_calls", "function_call", "name"})
SHORT_ID = 9  # letters and digits of an id at Mistral
_IS_SHORT_ID = re.compile(rf"[a-zA-Z0-9]{{{SHORT_ID}}}")


@dataclass(frozen=True, slots=True)
class MessageEncoder:
    """Writes messages as one server takes them.

    Attributes:
        server: The server's name. What it attached to its replies is sent back to it, and left out for others.
        reasoning: The field for reasoning; None leaves it out.
        always: Whether every message of the assistant must have that field, even if it is empty.
        short_ids: Whether ids of calls must be nine letters and digits.
        longest_id: The most characters that they may have.
        sign: Whether calls that Gemini did not make need the value that its documentation names for them.
        refused: Fields that the server does not take, even if it attached them itself.
    """

    server: str = ""
    reasoning: str | None = None
    always: bool = False
    short_ids: bool = False
    longest_id: int = 64
    sign: bool = False
    refused: frozenset[str] = frozenset()

    @property
    def protocol(self) -> str:
        """The name under which a message keeps its bytes."""
        return f"openai-chat {self}"

    def __call__(self, message: Message) -> bytes:
        if not (self.always or self.refused) and _CHANGED.isdisjoint(message):
            return encode_json(dict(message))
        shown = {key: value for key, value in message.items() if key not in _PRIVATE and key not in self.refused}
        attached = _mapping(message.get("attached"))
        if attached.get("server") == self.server:
            self._attach(shown, attached, message.text)
        thought = message.get("reasoning_content") or ""
        if self.reasoning is not None and message.role == "assistant" and (thought or self.always):
            own = attached.get("server") == self.server and not self.always
            name = (own and attached.get("reasoning")) or self.reasoning
            if name not in self.refused:
                shown[name] = thought
        self._make_calls_safe(shown)
        if self.sign:
            _sign_calls(shown)
        return encode_json(shown)

    def _make_calls_safe(self, shown: dict[str, Any]) -> None:
        """Replace names and ids that servers refuse: models write any name, and other servers give any id."""
        if isinstance(answered := shown.get("tool_call_id"), str):
            shown["tool_call_id"] = self._id(answered)
        if calls := _calls(shown):
            kept = [{name: each for name, each in call.items() if name not in self.refused} for call in calls]
            shown["tool_calls"] = [
                {**call, **({"id": self._id(call["id"])} if "id" in call else {}), **_named(call)} for call in kept
            ]

    def _id(self, value: Any) -> str:
        """Return an id as the server takes it: unchanged if it can be, else its digest."""
        text = str(value or "")
        if self.short_ids:
            return text if _IS_SHORT_ID.fullmatch(text) else sha256(text.encode()).hexdigest()[:SHORT_ID]
        return text if 0 < len(text) <= self.longest_id else sha256(text.encode()).hexdigest()[:32]

    def _attach(self, shown: dict[str, Any], attached: Mapping[str, Any], text: str) -> None:
        """Add what the server attached to a message and to its calls."""
        for name, value in _mapping(attached.get("message")).items():
            if name == "content":  # a list of parts; it is kept if its text is unchanged
                shown[name] = value if read_content(value)[0] == text else shown.get(name)
            elif name not in self.refused and (name not in REASONING_FIELDS or self.reasoning is not None):
                shown.setdefault(name, value)
        of_calls, given = _mapping(attached.get("calls")), _mapping(attached.get("ids"))
        if of_calls and shown.get("tool_calls"):
            shown["tool_calls"] = [
                self._with(call, _mapping(of_calls.get(given.get(call["id"], call["id"]))))
                for call in shown["tool_calls"]
            ]

    def _with(self, call: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
        more = {name: value for name, value in added.items() if name not in self.refused}
        function = {**_mapping(more.pop("function", None)), **call["function"]}
        return {**more, **call, "function": function}


def _named(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function of a call with a name that servers take, if its own is not."""
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or (safe := safe_name(name)) == name:
        return {}
    return {"function": {**function, "name": safe}}


def _sign_calls(shown: dict[str, Any]) -> None:
    calls = shown.get("tool_calls")
    if calls and not any("extra_content" in call for call in calls):
        shown["tool_calls"] = [{**calls[0], **_UNSIGNED}, *calls[1:]]


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def added_names(messages: Iterable[Message], server: str) -> set[str]:
    """Return the fields in the assistant's messages and calls that not every server takes, with what `server` attached.

    Reasoning is not among them: see `REASONING_FIELDS`.
    """
    names: set[str] = set()
    for message in messages:
        if message.role != "assistant":
            continue
        names.update(message.keys() - _NEEDED, *(call.keys() - _OF_CALL for call in _calls(message)))
        attached = _mapping(message.get("attached"))
        if attached.get("server") == server:
            names.update(_mapping(attached.get("message")))
            names.update(*map(_mapping, _mapping(attached.get("calls")).values()))
    return names - {"content", "function", "attached", *REASONING_FIELDS}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if value and isinstance(value, Mapping) else {}


# ------------------------------------------------------------------------------------------------ reading

# The keys of messages and calls of every server. The rest is the server's own.
_OF_MESSAGE = frozenset({"role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio"})
_OF_CALL = frozenset({"id", "type", "index", "function"})
_OF_FUNCTION = frozenset({"name", "arguments"})
_GROWING = ("text", "summary", "data")  # Fields of OpenRouter's reasoning details that a stream sends in pieces.


def added_to_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server adds to a message or to a piece of one.

    Reasoning as text is not among it, because a reply has it anyway. An empty one is: DeepSeek wants it back.
    """
    added = _others(message, _OF_MESSAGE)
    added = {name: value for name, value in added.items() if name not in REASONING_FIELDS or value == ""}
    content = message.get("content")
    if isinstance(content, list) and any(isinstance(part, dict) and part.get("type") != "text" for part in content):
        added["content"] = content
    return added


def added_to_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server adds to a call: Gemini's `extra_content` with the signature of the thought before it."""
    more, function = _others(call, _OF_CALL), call.get("function")
    if isinstance(function, dict) and (of_function := _others(function, _OF_FUNCTION)):
        more["function"] = of_function
    return more


def as_attached(
    message: Mapping[str, Any], calls: Mapping[str, Mapping[str, Any]], reasoning: str, field: str | None = None
) -> dict[str, Any]:
    """Return what was added to a message and its calls (by their ids) as a reply keeps it.

    `field` is the name under which the server sent its reasoning: it may take it back under no other.
    """
    fields = {name: value for name, value in message.items() if not (reasoning and name in REASONING_FIELDS)}
    if isinstance(details := fields.get("reasoning_details"), list):
        fields["reasoning_details"] = joined_details(details)
    added = {call_id: dict(more) for call_id, more in calls.items() if more}
    other_field = field if field != REASONING_FIELDS[0] else None
    kept = (("message", fields), ("calls", added), ("reasoning", other_field))
    return {name: value for name, value in kept if value}


def _others(value: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name not in known and each not in (None, [], {})}


def grown(before: Any, piece: Any) -> Any:
    """Return a value of a stream with its next piece: texts and lists grow, anything else is replaced."""
    if isinstance(before, dict) and isinstance(piece, dict):
        return {**before, **{name: grown(before.get(name), value) for name, value in piece.items()}}
    if isinstance(before, list) and isinstance(piece, list):
        before.extend(piece)
        return before
    return before + piece if isinstance(before, str) and isinstance(piece, str) else piece


def joined_details(details: Sequence[Any]) -> list[Any]:
    """Return OpenRouter's reasoning details, the pieces of each put together."""
    joined: list[Any] = []
    pieces: dict[str, list[str]] = {}
    for detail in details:
        last = joined[-1] if joined else None
        if not (isinstance(last, dict) and _continues(last, detail)):
            joined.append(dict(detail) if isinstance(detail, dict) else detail)
            pieces = {}
            continue
        for name, value in detail.items():
            if name in _GROWING and isinstance(value, str) and isinstance(last[name] or "", str):
                pieces.setdefault(name, [last[name] or ""]).append(value)
            elif value is not None:
                last[name] = value
        last.update({name: "".join(found) for name, found in pieces.items()})
    return joined


def _continues(last: Mapping[str, Any], detail: Any) -> bool:
    if not isinstance(detail, dict) or detail.get("index") is None:
        return False
    same = all(last.get(name) == detail.get(name) for name in ("type", "index"))
    return same and all(name in last for name in _GROWING if name in detail)


def read_content(content: Any) -> tuple[str, str]:
    """Return text and reasoning of a message's content: a string, None, or a list of parts (Mistral's thinking)."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    texts, thoughts = [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") == "thinking":
            inner = part.get("thinking")
            thoughts.append(inner if isinstance(inner, str) else read_content(inner)[0])
        elif isinstance(part, dict):
            texts.append(text if isinstance(text := part.get("text"), str) else "")
    return "".join(texts), "".join(thoughts)
