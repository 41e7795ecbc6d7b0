"""A message is frozen and encoded once, and what a conversation was joined to is added to as it grows."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.codec import encode_json
from closeout.messages import Message, Usage, UsageSum


def encode(message: Message) -> bytes:
    return encode_json(dict(message))


def plainly(messages: list[Message]) -> bytes:
    return b",".join(map(encode, messages))


def said(*texts: str) -> list[Message]:
    return [Message(role="user", content=text) for text in texts]


def test_a_conversation_only_grows() -> None:
    encoded: list[str] = []

    def watched(message: Message) -> bytes:
        encoded.append(message.text)
        return encode(message)

    messages = said("a", "b")
    Message.joined(messages, "chat", watched)
    messages += said("c", "文")
    assert Message.joined(messages, "chat", watched) == plainly(messages)
    assert Message.joined(tuple(messages), "chat", watched) == plainly(messages)
    assert encoded == ["a", "b", "c", "文"]


def test_two_conversations_with_the_same_messages_in_them() -> None:
    start, others, tail = said("a"), said("x"), said("same", "end")
    one, two = start + tail, others + tail
    for _ in range(2):
        assert Message.joined(one, "chat", encode) == plainly(one)
        assert Message.joined(two, "chat", encode) == plainly(two)
        assert Message.joined(one[:2], "chat", encode) == plainly(one[:2])


def test_each_protocol_has_its_own_bytes() -> None:
    messages = said("a", "b")
    assert Message.joined(messages, "loud", lambda message: message.text.upper().encode()) == b"A,B"
    assert Message.joined(messages, "chat", encode) == plainly(messages)


def test_nothing_at_all() -> None:
    assert Message.joined([], "chat", encode) == b""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=12))
def test_whatever_is_cut_and_added_the_bytes_are_those_of_the_messages(changes: list[tuple[int, int]]) -> None:
    pool = said(*"abcdefg")
    messages: list[Message] = []
    for keep, number in changes:
        messages = [*messages[: len(messages) - keep], *pool[number:], *said("new")]
        assert Message.joined(messages, "chat", encode) == plainly(messages)


def test_an_unreferenced_conversation_is_freed_at_once() -> None:
    class Held(Message):
        __slots__ = ("__weakref__",)

    messages: list[Message] = [Held(role="user", content="a"), Held(role="user", content="b")]
    gone = [weakref.ref(message) for message in messages]
    gc.disable()
    try:
        Message.joined(messages, "chat", encode)
        messages.clear()
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_a_message_is_frozen() -> None:
    message: Any = Message(role="user", content="a")
    with pytest.raises(TypeError, match="build a new one"):
        message["content"] = "b"


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 0.0, 0.25])), max_size=80))
def test_usage_adds_up_to_the_same_whenever_it_is_read(items: list[tuple[int, float | None]]) -> None:
    asked, quiet, total = UsageSum(), UsageSum(), Usage()
    for tokens, cost in items:
        usage = Usage(tokens, 2 * tokens, cache_read_tokens=1, cache_write_tokens=0, requests=1, cost_usd=cost)
        total += usage
        asked.add(usage)
        quiet.add(usage)
        assert asked.total == total
    assert quiet.total == total
