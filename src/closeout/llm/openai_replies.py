"""Replies of OpenAI-compatible servers, whole or as a stream's events, in all the ways that servers vary them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from closeout.codec import encode_json
from closeout.errors import ServerFailed, StreamDropped
from closeout.llm.building import MOST_COUNTED, ReplyBuilder
from closeout.llm.http import StreamReader
from closeout.messages import ModelReply, ToolCall, Usage

__all__ = ["OpenAIStream", "read_completion", "read_usage", "reasoning_field"]

_FINISHES: Mapping[str, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "max_length": "length",
    "model_length": "length",
    "safety": "content_filter",
}
_REASONING_FIELDS = ("reasoning_content", "reasoning")
# Tokens from the cache: DeepSeek; Moonshot; Anthropic behind a proxy.
_CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")


def read_completion(value: Any) -> ModelReply | None:
    """The reply in the body of a chat or text completion; None if it is neither.

    Raises ServerFailed where the server says in the reply itself that it broke off.
    """
    choice = _first_choice(value)
    if choice is None:
        return None
    message = choice.get("message")
    finish = finish_reason(choice.get("finish_reason"))
    usage = read_usage(value) or Usage(requests=1)
    model = _text(value.get("model"))
    if not isinstance(message, dict):
        text = choice.get("text")
        return ModelReply(text, finish_reason=finish, usage=usage, model=model) if isinstance(text, str) else None
    text, thinking = _content(message.get("content"))
    field = reasoning_field(message)
    calls = _whole_calls(message)
    return ModelReply(
        text or _text(message.get("refusal")),
        thinking or (message[field] if field else ""),
        calls,
        "tool_calls" if calls and finish == "stop" else finish,
        usage,
        model,
        message.get("reasoning_details"),
    )


def _first_choice(value: Any) -> dict[str, Any] | None:
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    choice: dict[str, Any] = choices[0]
    return choice


def finish_reason(given: Any) -> str:
    """A server's finish reason as one of ours. Raises for those that say that the reply was broken off."""
    if given is None:
        return "stop"
    if given == "abort":  # vLLM, SGLang: the engine gave the request up
        raise StreamDropped("The server gave up in the middle of its reply.")
    if given == "error":  # OpenRouter
        raise ServerFailed("The server failed in the middle of its reply.")
    return _FINISHES.get(given, "stop") if isinstance(given, str) else "stop"


def reasoning_field(message: Mapping[str, Any]) -> str | None:
    """Under which name a message of the server carries its reasoning."""
    for name in _REASONING_FIELDS:
        if isinstance(message.get(name), str) and message[name]:
            return name
    return None


def _content(content: Any) -> tuple[str, str]:
    """Text and reasoning in a message's content: a string, nothing, or a list of parts (Mistral's thinking)."""
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
            thoughts.append(inner if isinstance(inner, str) else _content(inner)[0])
        elif isinstance(part, dict):
            texts.append(_text(part.get("text")))
    return "".join(texts), "".join(thoughts)


def _whole_calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    given = message.get("tool_calls")
    if not given:
        old = message.get("function_call")
        given = [{"function": old}] if isinstance(old, dict) else ()
    if not isinstance(given, list):
        return ()
    calls = []
    for number, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            text = _arguments(function.get("arguments"))
            name, given_id = _text(function.get("name")), _text(call.get("id"))
            calls.append(ToolCall(name, text, given_id or f"call_{number}", None, text))
    return tuple(calls)


def _arguments(given: Any) -> str:
    """Arguments as the text of a JSON object: some servers send the object itself."""
    if isinstance(given, str):
        return given
    return "" if given is None else encode_json(given).decode()


def _text(given: Any) -> str:
    return given if isinstance(given, str) else ""


# ------------------------------------------------------------------------------------------------ usage


def read_usage(value: Mapping[str, Any]) -> Usage | None:
    """The usage in a body or event, cached tokens under any of the names that servers give them; None if not there."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if not isinstance(details, dict):
        details = {}
    read = _count(details, "cached_tokens") or _count(usage, *_CACHED)
    timings = value.get("timings")
    if not read and isinstance(timings, dict):  # llama.cpp
        read = _count(timings, "cache_n")
    write = _count(details, "cache_write_tokens") or _count(usage, "cache_creation_input_tokens")
    return Usage(
        _count(usage, "prompt_tokens", "input_tokens"),
        _count(usage, "completion_tokens", "output_tokens"),
        read,
        write,
        1,
        _dollars(usage.get("cost")),  # OpenRouter
    )


def _dollars(given: Any) -> float | None:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return float(given) if is_number and 0 <= given <= MOST_COUNTED else None


def _count(given: Mapping[str, Any], *names: str) -> int:
    """The first of several fields that holds a count."""
    for name in names:
        found = given.get(name)
        if isinstance(found, int) and 0 < found <= MOST_COUNTED:
            return found
    return 0


# ------------------------------------------------------------------------------------------------ streams


class OpenAIStream(StreamReader):
    """Chunks of a chat or text completion. `note_field` is told the name of the field that reasoning comes in."""

    __slots__ = ("_details", "_note_field", "_places")

    def __init__(self, builder: ReplyBuilder, note_field: Callable[[str], None]) -> None:
        super().__init__(builder)
        self._places: dict[int, int] = {}  # the server's index of a call → ours
        self._details: list[Any] = []
        self._note_field = note_field

    @property
    def details(self) -> Any:
        return self._details or None

    def take(self, event: dict[str, Any]) -> None:
        builder = self.builder
        usage = read_usage(event)
        if usage is not None and usage.total_tokens:
            builder.usage = usage
        builder.model = builder.model or _text(event.get("model"))
        choice = _first_choice(event)
        if choice is None:
            return
        # A server that does not stream sends the message whole in one event.
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._take_delta(delta)
        elif isinstance(text := choice.get("text"), str):
            builder.add_text(text)
        if choice.get("finish_reason") is not None:
            finish = finish_reason(choice["finish_reason"])
            builder.finish_reason = "tool_calls" if finish == "stop" and builder.last_call >= 0 else finish

    def _take_delta(self, delta: dict[str, Any]) -> None:
        builder = self.builder
        name = reasoning_field(delta)
        if name is not None:
            self._note_field(name)
            builder.add_reasoning(delta[name])
        content = delta.get("content")
        if isinstance(content, str):
            builder.add_text(content)
        elif content:
            text, thinking = _content(content)
            builder.add_reasoning(thinking)
            builder.add_text(text)
        if isinstance(refusal := delta.get("refusal"), str):
            builder.add_text(refusal)
        if isinstance(details := delta.get("reasoning_details"), list):
            self._details.extend(details)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._take_call(call)
        elif isinstance(old := delta.get("function_call"), dict):
            self._take_call({"index": 0, "function": old})

    def _take_call(self, call: dict[str, Any]) -> None:
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        call_id, name = _text(call.get("id")), _text(function.get("name"))
        self.builder.add_call(
            self._place(call.get("index"), call_id, name),
            call_id=call_id,
            name=name,
            arguments=_arguments(function.get("arguments")),
        )

    def _place(self, index: Any, call_id: str, name: str) -> int:
        """Which call a piece belongs to. Servers leave the index out, or give all parallel calls the index 0."""
        last = self.builder.last_call
        if not isinstance(index, int):
            known = self.builder.call_id(last)
            begins = bool(name) and (not call_id or call_id != known)
            return last + 1 if begins or last < 0 else last
        place = self._places.get(index)
        other = place is not None and name and call_id and self.builder.call_id(place) not in ("", call_id)
        if place is None or other:
            place = self._places[index] = last + 1
        return place
