"""Checks that a format of the proxy keeps what a request and a reply hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from closeout.codec import decode_json, encode_json, value_or_text
from closeout.messages import ModelReply, ToolCall, Usage
from closeout.models.streaming import EventReader, ReplyBuilder
from closeout.server.formats.format import Format, NativeFormat

__all__ = ["check_format"]

_TEXTS = ("It is 21 degrees.", "", "晴れ\n\n\u2028data: {}\n\n</tool_call>")


def check_format(form: Format, body: Mapping[str, Any]) -> None:
    """Check that a format reads a request and writes replies without losing or changing anything.

    Replies with and without text and calls are written whole and as a stream. A format that servers speak too
    (`NativeFormat`) must read what it wrote; in the others the text and the calls must appear in what was written.

    Args:
        form: The format.
        body: A request with a message of the user's and, if the format has tools, at least one function.

    Raises:
        AssertionError: What it loses.
    """
    before = encode_json(dict(body))
    tools = form.tools(body)
    assert form.mended(dict(body)) == (body, []), "mended() changes a request that is valid"
    messages = form.messages(body)
    assert any(each.role == "user" and each.text for each in messages), "messages() has no text of the user's"
    request = form.request(body, tools)
    assert [each.text for each in request.as_messages] == [each.text for each in messages], "request() loses messages"
    assert request.tools == tools.functions, "request() loses tools"
    for reply in _replies([each.name for each in tools.functions]):
        whole = form.whole(body, reply)
        pieces = list(_written(form, body, reply))
        if isinstance(form, NativeFormat):
            _same(form.read(whole), reply, "whole()")
            _same(_streamed(form, pieces), reply, "writer()")
            assert not _fault(form, [whole]), f"whole() writes what clients cannot read: {_fault(form, [whole])}"
        else:
            _appears_in(encode_json(whole), reply, "whole()")
            _appears_in(b"".join(pieces), reply, "writer()")
    assert encode_json(dict(body)) == before, "the request itself was changed"


def _replies(names: list[str]) -> Iterator[ModelReply]:
    for text in _TEXTS:
        if text or not names:
            yield ModelReply(text or "No.", model="m")
        if names:
            calls = tuple(ToolCall(name, '{"a": "ä\\n"}', id=f"call_{n}") for n, name in enumerate((*names, names[0])))
            yield ModelReply(text, tool_calls=calls, finish_reason="tool_calls", model="m")


def _written(form: Format, body: Mapping[str, Any], reply: ModelReply) -> Iterator[bytes]:
    writer = form.writer(body)
    middle = len(reply.text) // 2
    for piece in filter(None, (reply.text[:middle], reply.text[middle:])):
        yield from writer.text(piece)
    yield from writer.finish(reply)


def _streamed(form: NativeFormat, pieces: Iterable[bytes]) -> ModelReply:
    builder, events = ReplyBuilder(), EventReader()
    reader = form.reader(builder)
    found = [decode_json(data) for piece in pieces for data in events.feed(piece) if data != b"[DONE]"]
    for event in found:
        reader.take(event)
    assert reader.complete, "the stream of writer() does not end"
    assert not _fault(form, found), f"writer() writes what clients cannot read: {_fault(form, found)}"
    return builder.reply(usage=Usage())


def _fault(form: NativeFormat, values: Iterable[Mapping[str, Any]]) -> str:
    check = form.form_check()
    for value in values:
        check.take(value)
    return check.fault


def _same(found: ModelReply | None, reply: ModelReply, where: str) -> None:
    assert found is not None, f"{where} writes what read() does not take for a reply"
    assert found.text == reply.text, f"{where} changes the text {reply.text!r} to {found.text!r}"
    assert _calls(found) == _calls(reply), f"{where} changes the calls {_calls(reply)} to {_calls(found)}"
    assert found.finished, f"{where} does not say that the reply is finished"


def _calls(reply: ModelReply) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, value_or_text(call.arguments)) for call in reply.tool_calls]


def _appears_in(written: bytes, reply: ModelReply, where: str) -> None:
    text = written.decode()
    for call in reply.tool_calls:
        assert call.name in text, f"{where} does not write the call of {call.name}"
    middle = len(reply.text) // 2
    for piece in (reply.text[:middle], reply.text[middle:]):
        quoted = encode_json(piece).decode()[1:-1]
        assert quoted in text or piece in text, f"{where} does not write the text {piece!r}"
