"""Messages with a header: Harmony (gpt-oss) channels, Muse recipients, and calls as parameter tags in them (Beam)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from closeout.dialects.forms.json_text import load, make_call, value_end
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.tag_families import MUSE_GLIMMER, MUSE_INVOKE
from closeout.dialects.forms.tags import Grammar, read_tagged_calls
from closeout.dialects.forms.toolbox import Toolbox
from closeout.dialects.forms.values import typed
from closeout.messages import Repair

__all__ = ["CHANNELS", "GLIMMER_CHANNELS", "MUSE_CHANNELS"]

_TOKEN = re.compile(r"<\|(start|channel|message|constrain|end|call|return|eom|eot)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<|]{1,200})")
_NOBODY = ("self", "user", "assistant", "all", "")  # not a tool
_FUNCTIONS = "functions."
_PARAMETER = re.compile(
    r"""(?:\A|\n|(?<=>))[ \t]{0,8}<rfl:parameter\s{1,8}name=["'](?P<key>[^"'>\n]{1,200})["'][^>\n]{0,100}>"""
)
_PARAMETER_END = re.compile(r"\n?</rfl:parameter>")


@dataclass(frozen=True, slots=True)
class _Message:
    start: int
    begin: int  # of the body
    end: int
    channel: str
    recipient: str
    complete: bool  # a token ends it


def read_channels(source: Source, toolbox: Toolbox, body: Callable[[Source, Toolbox, _Message], Block]) -> Found:
    """Analysis, or a message to itself, is reasoning; a message to a tool is a call; the rest is content."""
    blocks: list[Block] = []
    thought: list[str] = []
    said: list[str] = []
    for message in _messages(source):
        text = source.text[message.begin : message.end]
        if message.recipient not in _NOBODY:
            blocks.append(body(source, toolbox, message))
        elif message.channel == "analysis" or message.recipient == "self":
            thought.append(text.strip())
        else:
            said.append(text)
    return Found(tuple(blocks), "".join(said), "\n".join(filter(None, thought)))


def _messages(source: Source) -> Iterator[_Message]:
    """Cuts the text at its tokens. The first header may lack its `<|start|>`, and the first text its header."""
    text = source.text
    start = begin = head = data = 0  # `data`: where a call's JSON ends, whose tokens are none
    channel = recipient = ""
    in_body = False
    waiting = _RECIPIENT.match(text.lstrip()) is None and not text.lstrip().startswith("<|")
    if waiting:
        in_body = True
    for token in _TOKEN.finditer(text):
        kind = token[1]
        if token.start() < data:
            continue
        if in_body and kind not in ("message", "constrain"):
            if token.start() > begin:
                yield _Message(start, begin, token.start(), channel, recipient, kind in ("end", "call", "eom", "eot"))
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
            data = (value_end(source, begin) or 0) if calls else 0
        elif kind != "constrain":
            channel, recipient, start = "", "", token.start()
    if in_body and begin < len(text):
        yield _Message(start, begin, len(text), channel, recipient, False)


def _json_or_tags(source: Source, toolbox: Toolbox, message: _Message) -> Block:
    """A Harmony call: JSON, or Beam's parameter tags. The code of a built-in that was not offered is dropped."""
    raw = source.text[message.begin : message.end]
    name = message.recipient.removeprefix(_FUNCTIONS)
    arguments = _beam_arguments(raw, name, toolbox)
    repairs: tuple[Repair, ...] = ()
    if arguments is None:
        loaded = load(raw, mend=source if message.complete else False) if raw.strip()[:1] == "{" else None
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


def _beam_arguments(raw: str, name: str, toolbox: Toolbox) -> dict[str, object] | None:
    """Arguments as tags. A value ends at its closing tag, or before the next opening tag on a line of its own."""
    openers = list(_PARAMETER.finditer(raw))
    if not openers or raw[: openers[0].start()].strip():
        return None
    name = toolbox.resolve(name)
    schema, properties = toolbox.schema(name), toolbox.properties(name)
    arguments: dict[str, object] = {}
    at = 0
    for opener, following in zip(openers, [*openers[1:], None], strict=True):
        if opener.start() < at:
            continue
        limit = following.start() if following else len(raw)
        closing = _PARAMETER_END.search(raw, opener.end(), limit)
        at = closing.start() if closing else limit
        value = raw[opener.end() : at].removeprefix("\n")
        arguments[opener["key"]] = typed(value, properties.get(opener["key"]), schema)
    return arguments


def _invoked(source: Source, toolbox: Toolbox, message: _Message, grammar: Grammar) -> Block:
    """A Muse call: invoke tags in a message to a tool."""
    raw = source.text[message.begin : message.end]
    found = read_tagged_calls(Source(raw), toolbox, grammar)
    if found.calls:
        repairs = tuple(repair for block in found.blocks for repair in block.repairs)
        return Block(message.start, message.end, found.calls, repairs)
    broken = f"the call of {message.recipient[:80]!r} cannot be read"
    return Block(message.start, message.end, broken=broken, hidden=True)


def _body(source: Source, toolbox: Toolbox, message: _Message, grammar: Grammar) -> Block:
    invoked = 0 <= source.find("<atem:invoke", message.begin) < message.end
    return _invoked(source, toolbox, message, grammar) if invoked else _json_or_tags(source, toolbox, message)


def _form(family: str, grammar: Grammar) -> Form:
    read = partial(read_channels, body=partial(_body, grammar=grammar))
    return Form(family, ("<|channel|>", "<|message|>"), read, channels=True)


CHANNELS = _form("harmony", MUSE_INVOKE)
MUSE_CHANNELS = _form("muse", MUSE_INVOKE)
GLIMMER_CHANNELS = _form("muse", MUSE_GLIMMER)
