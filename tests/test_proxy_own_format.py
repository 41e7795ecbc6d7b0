"""A request format of a user's own at the proxy, and the check that formats pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from closeout.errors import UsageError
from closeout.messages import ModelReply
from closeout.server.formats import FORMATS, Format, check_format, register_format
from closeout.server.formats.chat_completions import ChatCompletions

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "model": "m",
        "messages": [{"role": "user", "content": "Is it warm?"}],
        "tools": [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("look", "ask")],
    },
    "responses": {
        "model": "m",
        "input": "Is it warm?",
        "tools": [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("look", "ask")],
    },
    "messages": {
        "model": "m",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Is it warm?"}],
        "tools": [{"name": name, "input_schema": SCHEMA} for name in ("look", "ask")],
    },
}


class LosesCalls(ChatCompletions):
    def whole(self, body: Any, reply: ModelReply) -> dict[str, Any]:
        return super().whole(body, ModelReply(reply.text))


class ForgetsMessages(ChatCompletions):
    def messages(self, body: Any) -> list[Any]:
        return []


class StreamsNoEnd(ChatCompletions):
    def writer(self, body: Any) -> Any:
        class Endless(type(super().writer(body))):  # type: ignore[misc]
            def finish(self, reply: ModelReply) -> Iterator[bytes]:
                yield from ()

        return Endless(body)


def test_the_built_in_formats_pass_the_check() -> None:
    assert {each.path for each in FORMATS} >= REQUESTS.keys()
    for form in FORMATS[: len(REQUESTS)]:
        check_format(form, REQUESTS[form.path])


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (LosesCalls(), r"whole\(\) changes the calls"),
        (ForgetsMessages(), r"messages\(\) has no text"),
        (StreamsNoEnd(), r"writer\(\)"),
    ],
)
def test_the_check_names_what_a_format_loses(form: Format, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_format(form, REQUESTS["chat/completions"])


def test_a_built_in_format_cannot_be_replaced() -> None:
    with pytest.raises(UsageError, match="'chat/completions' is the path of a built-in format"):
        register_format(ChatCompletions())
