"""Replies made of messages with headers: Harmony (gpt-oss), Muse, Functionary and Kimi K3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from closeout.messages import Repair, ToolCall
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_calls import make_call
from closeout.parsing.forms.json_values import Loaded, Pairs, Source, json_or_text, load
from closeout.parsing.forms.offered import OfferedNames, typed
from closeout.parsing.forms.tag_calls import MUSE_GLIMMER, MUSE_INVOKE, TagGrammar, read_tagged_calls

__all__ = ["CHANNELS", "FUNCTIONARY", "GLIMMER_CHANNELS", "KIMI_K3", "MUSE_CHANNELS", "split_channels"]

_HARMONY_TOKEN = re.compile(r"<\|(start|channel|message|constrain|end|call|return|eom|eot)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<|]{1,200})")
_NOBODY = ("self", "user", "assistant", "all", "")  # Recipients that are not tools.
_FUNCTIONS = "functions."
_PARAMETER = re.compile(
    r"""(?:\A|\n|(?<=>))[ \t]{0,8}<rfl:parameter\s{1,8}name=["'](?P<key>[^"'>\n]{1,200})["'][^>\n]{0,100}>"""
)
_PARAMETER_END = re.compile(r"\n?</rfl:parameter>")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChannelMessage:
    start: int
    begin: int  # the body's offset
    end: int
    channel: str
    recipient: str
    complete: bool  # a token ends it


def read_channels(source: Source, toolbox: OfferedNames, grammar: TagGrammar) -> Found:
    """Analysis, or a message to itself, is reasoning; a message to a tool is a call; the rest is content."""
    blocks: list[Block] = []
    thought: list[str] = []
    said: list[str] = []
    messages = list(_messages(source))
    is_final = any(message.channel == "final" for message in messages)
    for message in messages:
        text = source.text[message.begin : message.end]
        if message.recipient not in _NOBODY:
            blocks.append(_body(source, toolbox, message, grammar))
        elif message.channel == "analysis" or message.recipient == "self" or (is_final and message.channel != "final"):
            thought.append(text.strip())
        else:
            said.append(text)
    return Found(tuple(blocks), "".join(said), "\n".join(filter(None, thought)))


def _messages(source: Source) -> Iterator[_ChannelMessage]:
    """Split the text at its tokens. The first header may lack its `<|start|>`, and the first text its header."""
    text = source.text
    start = begin = head = data = 0  # `data`: where a call's JSON ends; tokens inside it are data
    channel = recipient = ""
    in_body = _RECIPIENT.match(text.lstrip()) is None and not text.lstrip().startswith("<|")
    for token in _HARMONY_TOKEN.finditer(text):
        kind = token[1]
        if token.start() < data:
            continue
        if in_body and kind not in ("message", "constrain"):
            if token.start() > begin:
                yield _ChannelMessage(
                    start=start,
                    begin=begin,
                    end=token.start(),
                    channel=channel,
                    recipient=recipient,
                    complete=kind in ("end", "call", "eom", "eot"),
                )
            in_body, channel, recipient, start = False, "", "", token.start()
        if in_body:
            continue
        header = text[head : token.start()]
        named = _RECIPIENT.search(header)
        recipient = named[1] if named else recipient
        head = token.end()
        if kind == "channel":
            following = text[token.end() : token.end() + 32].split("<", 1)[0].split()
            channel = following[0] if following else channel
        elif kind == "message":
            in_body, begin = True, token.end()
            calls = recipient not in _NOBODY and text.startswith("{", begin)
            data = (source.value_end(begin) or 0) if calls else 0
        elif kind != "constrain":
            channel, recipient, start = "", "", token.start()
    if in_body and begin < len(text):
        yield _ChannelMessage(
            start=start, begin=begin, end=len(text), channel=channel, recipient=recipient, complete=False
        )


def _json_or_tags(source: Source, toolbox: OfferedNames, message: _ChannelMessage) -> Block:
    """A Harmony call: JSON, or Beam's parameter tags. The code of a built-in that was not offered is dropped."""
    raw = source.text[message.begin : message.end]
    name = message.recipient.removeprefix(_FUNCTIONS)
    arguments = _beam_arguments(raw, name, toolbox)
    repairs: tuple[Repair, ...] = ()
    if arguments is None:
        loaded = load(raw, repair=source if message.complete else False) if raw.strip()[:1] == "{" else None
        arguments = loaded.value if loaded else None
        repairs = loaded.repairs if loaded else ()
    if arguments is None and raw.strip()[:1] not in ("{", "<") and (key := toolbox.only_parameter(name)):
        arguments = {key: raw}
    if arguments is None and not raw.strip():
        arguments = {}
    call = make_call(name, arguments, toolbox, text=raw) if isinstance(arguments, dict) else None
    if call is None:
        broken = f"the arguments of {name[:80]!r} cannot be read"
        return Block(message.start, message.end, broken=broken, hidden=True)
    return Block(message.start, message.end, (call,), repairs)


def _beam_arguments(raw: str, name: str, toolbox: OfferedNames) -> dict[str, object] | None:
    """Arguments as tags. A value ends at its closing tag, or before the next opening tag on a line of its own."""
    openers = list(_PARAMETER.finditer(raw))
    if not openers or raw[: openers[0].start()].strip():
        return None
    name = toolbox.resolve(name)
    schema, properties = toolbox.schema(name), toolbox.properties(name)
    arguments = Pairs()
    at = 0
    for opener, following in zip(openers, [*openers[1:], None], strict=True):
        if opener.start() < at:
            continue
        limit = following.start() if following else len(raw)
        closing = _PARAMETER_END.search(raw, opener.end(), limit)
        at = closing.start() if closing else limit
        value = raw[opener.end() : at].removeprefix("\n")
        arguments.put(opener["key"], typed(value, properties.get(opener["key"]), schema))
    return arguments


def _body(source: Source, toolbox: OfferedNames, message: _ChannelMessage, grammar: TagGrammar) -> Block:
    """A call: Harmony's, or invoke tags in a message to a tool, as Muse writes it. In JSON a tag is data."""
    raw = source.text[message.begin : message.end]
    if raw.lstrip().startswith("{") or "<atem:invoke" not in raw:
        return _json_or_tags(source, toolbox, message)
    found = read_tagged_calls(Source(raw), toolbox, grammar)
    if found.calls:
        repairs = tuple(repair for block in found.blocks for repair in block.repairs)
        return Block(message.start, message.end, found.calls, repairs)
    broken = f"the call of {message.recipient[:80]!r} cannot be read"
    return Block(message.start, message.end, broken=broken, hidden=True)


def _form(family: str, grammar: TagGrammar) -> Form:
    return Form(family, ("<|channel|>", "<|message|>"), partial(read_channels, grammar=grammar), channels=True)


CHANNELS = _form("harmony", MUSE_INVOKE)
MUSE_CHANNELS = _form("muse", MUSE_INVOKE)
GLIMMER_CHANNELS = _form("muse", MUSE_GLIMMER)


# ------------------------------------------------------------------------------------------------ Functionary

_HEADER = re.compile(
    r"(?:\A\s{0,8}>>>|^>>>|(?<=\S)[ \t]{0,4}>>>(?=[\w.-]{1,200}[ \t]{0,4}\n\s{0,8}\{))"
    r"([^\W\d][\w.-]{0,199})[ \t]{0,4}\n",
    re.MULTILINE,
)
_RECIPIENT_TOKEN = re.compile(r"<\|recipient\|>[ \t]{0,4}([^\W\d][\w.-]{0,199})\s{0,4}<\|content\|>")


def read_headers(source: Source, toolbox: OfferedNames, header: re.Pattern[str]) -> Found:
    """Segments that begin with a recipient: `all` is content, a tool's name is a call with JSON or code."""
    text = source.text
    headers = list(header.finditer(text))
    if not headers:
        return Found()
    blocks: list[Block] = []
    said = [text[: headers[0].start()].removeprefix("all\n")]
    for found, following in zip(headers, [*headers[1:], None], strict=True):
        stop = following.start() if following else len(text)
        body = text[found.end() : stop]
        source.fail()
        if source.exhausted:
            break
        if found[1] == "all":
            said.append(body)
            continue
        name = toolbox.resolve(found[1])
        loaded = _object_in(source, body, following is not None)
        value = loaded.value if loaded else {"code": body.strip()} if name == "python" else None
        call = make_call(name, value, toolbox, text=body.strip()) if isinstance(value, dict) else None
        if call:
            blocks.append(Block(found.start(), stop, (call,), loaded.repairs if loaded else ()))
        else:
            blocks.append(Block(found.start(), stop, broken=f"the arguments of {name[:80]!r} cannot be read"))
    return Found(tuple(blocks), "".join(said))


def _object_in(source: Source, body: str, closed: bool) -> Loaded | None:
    """The object in a segment; one without an end is read only if another segment follows it."""
    inner = Source(body.strip())
    if not inner.text.startswith("{") or (not closed and inner.value_end(0) is None):
        return None
    return load(inner.text, repair=source)


FUNCTIONARY = (
    Form("functionary", (">>>",), partial(read_headers, header=_HEADER)),
    Form("functionary", ("<|recipient|>",), partial(read_headers, header=_RECIPIENT_TOKEN)),
)

# ------------------------------------------------------------------------------------------------ Kimi K3

_KIMI_TOKEN = re.compile(r"<\|(?P<kind>open|close)\|>(?P<head>[^<]{0,400})<\|sep\|>")
_ATTRIBUTE = re.compile(r'(\w{1,32})="([^"]{0,300})"')
_THOUGHT = ("think", "thinking", "reasoning")
_STRAY = re.compile(r"<\|(?:open|close|sep)\|>")


@dataclass(slots=True)
class _Element:
    tag: str
    attributes: dict[str, str]
    start: int
    text: list[str] = field(default_factory=list)
    arguments: Pairs = field(default_factory=Pairs)


def read_kimi_k3(source: Source, toolbox: OfferedNames) -> Found:
    """Read whole calls. A call that the text leaves open is a malformed, hidden block."""
    text, at = source.text, 0
    thought: list[str] = []
    said: list[str] = []
    blocks: list[Block] = []
    stack: list[_Element] = []

    def put(piece: str) -> None:
        if stack and stack[-1].tag not in ("response", "message", *_THOUGHT):
            stack[-1].text.append(piece)
        else:
            (thought if stack and stack[-1].tag in _THOUGHT else said).append(piece)

    for token in _KIMI_TOKEN.finditer(text):
        put(text[at : token.start()])
        at = token.end()
        tag = token["head"].split(maxsplit=1)[0] if token["head"].strip() else ""
        if token["kind"] == "open":
            stack.append(_Element(tag, dict(_ATTRIBUTE.findall(token["head"])), token.start()))
        elif not stack and tag in _THOUGHT:
            thought, said = said, []
        elif stack and stack[-1].tag == tag:
            _close(stack.pop(), stack, blocks, at, toolbox)
    rest = text[at:]
    stray = _STRAY.search(rest)
    put(rest[: stray.start()] if stray else rest)
    if stack and stack[-1].tag in ("tools", "call", "argument"):
        blocks.append(Block(stack[0].start, len(text), broken="the call is not finished", hidden=True))
    return Found(tuple(blocks), "".join(said), "".join(thought).strip())


def _close(element: _Element, stack: list[_Element], blocks: list[Block], end: int, toolbox: OfferedNames) -> None:
    if element.tag == "argument" and stack and "key" in element.attributes:
        text = "".join(element.text)
        value = text if element.attributes.get("type") == "string" else json_or_text(text)
        stack[-1].arguments.put(element.attributes["key"], value)
    elif element.tag == "call" and element.attributes.get("tool"):
        name = toolbox.resolve(element.attributes["tool"])
        call = ToolCall(name, element.arguments, element.attributes.get("id", ""), server_name=toolbox.server(name))
        blocks.append(Block(element.start, end, (call,)))


KIMI_K3 = (Form("kimi_k3", ("<|open|>", "<|close|>"), read_kimi_k3, channels=True),)

# A text in channels begins with a token, or its first token ends the message whose header the prompt wrote.
_IN_CHANNELS = re.compile(
    r"\s*<\|(?:start|channel|message|open)\|>|(?:(?!<\|)[\s\S])*+<\|(?:end\|>\s*<\|start|close)\|>"
)
# What remains of Harmony's tokens on servers that drop them.
_WITHOUT_TOKENS = re.compile(r"\s*analysis(?P<thought>(?!\s)[\s\S]*?)assistantfinal(?P<said>[\s\S]*)")


def split_channels(text: str) -> tuple[str, str] | None:
    """Return reasoning and content of a reply in channels that calls no tool; None for any other reply."""
    if dropped := _WITHOUT_TOKENS.fullmatch(text):
        return dropped["thought"].strip(), dropped["said"].strip()
    for form in (CHANNELS, *KIMI_K3):
        if any(mark in text for mark in form.markers) and _IN_CHANNELS.match(text):
            found = form.find(Source(text), OfferedNames(()))
            return None if found.blocks else (found.reasoning, (found.content or "").strip())
    return None
