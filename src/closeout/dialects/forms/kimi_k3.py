"""Kimi K3: elements made of control tokens, `<|open|>tag key="…"<|sep|>…<|close|>tag<|sep|>`, calls among them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from closeout.dialects.forms.json_text import load
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.messages import ToolCall

__all__ = ["KIMI_K3"]

_TOKEN = re.compile(r"<\|(?P<kind>open|close)\|>(?P<head>[^<]{0,400})<\|sep\|>")
_ATTRIBUTE = re.compile(r'(\w{1,32})="([^"]{0,300})"')
_THOUGHT = ("think", "thinking", "reasoning")
_STRAY = re.compile(r"<\|(?:open|close|sep)\|>")


@dataclass(slots=True)
class _Element:
    tag: str
    attributes: dict[str, str]
    start: int
    text: list[str] = field(default_factory=list)
    arguments: dict[str, object] = field(default_factory=dict)


def read_kimi_k3(source: Source, toolbox: Toolbox) -> Found:
    """Whole calls only: what is left open at the end of the text is a broken block, and shown to nobody."""
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

    for token in _TOKEN.finditer(text):
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


def _close(element: _Element, stack: list[_Element], blocks: list[Block], end: int, toolbox: Toolbox) -> None:
    if element.tag == "argument" and stack and "key" in element.attributes:
        value = "".join(element.text)
        loaded = None if element.attributes.get("type") == "string" else load(value)
        stack[-1].arguments[element.attributes["key"]] = loaded.value if loaded else value
    elif element.tag == "call" and element.attributes.get("tool"):
        name = toolbox.resolve(element.attributes["tool"])
        call = ToolCall(name, element.arguments, element.attributes.get("id", ""), toolbox.server(name))
        blocks.append(Block(element.start, end, (call,)))


KIMI_K3 = (Form("kimi_k3", ("<|open|>", "<|close|>"), read_kimi_k3, channels=True),)
