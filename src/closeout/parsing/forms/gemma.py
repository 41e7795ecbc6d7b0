"""Gemma: `call:name{key:<|"|>text<|"|>,n:7}` between tokens (Gemma 4, FunctionGemma), and fenced calls (Gemma 3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from closeout.messages import ToolCall
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_calls import calls_in
from closeout.parsing.forms.json_values import BLANKS, Pairs, Source, load
from closeout.parsing.forms.offered import OfferedNames, typed
from closeout.parsing.forms.python_calls import read_calls

__all__ = ["GEMMA"]

_OPEN = re.compile(r"<\|tool_call>|<start_function_call>")
_HEAD = re.compile(r"\s{0,8}call:\s{0,8}(?P<name>[\w.-]{1,200})\s{0,8}(?=\{)")
_CLOSE = ("<tool_call|>", "<end_function_call>")
_QUOTES = ('<|"|>', "<escape>", '"')
_KEY = re.compile(r"\s*+([^:{}\[\],<]{1,200}):")
_SCALAR = re.compile(r"[^,{}\[\]<]{0,10000}")
_MAX_DEPTH = 64
_FENCE = re.compile(r"```(?:tool_code|tool_call|function_call|tool)[ \t]*\n(?P<body>.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PRINT = re.compile(r"\s*+print\((?P<inner>.*)\)\s*\Z", re.DOTALL)


class _NotGemma(Exception):
    """The braces hold no arguments; caught in this module."""


@dataclass(slots=True)
class _Braces:
    """Read `{key:value,…}` with strings between quote tokens."""

    source: Source
    at: int

    def accept(self, mark: str) -> bool:
        self.at = self.source.skip(BLANKS, self.at)
        if not self.source.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def mapping(self, properties: Any, root: Any, depth: int = 0) -> dict[str, Any]:
        found = Pairs()
        if depth > _MAX_DEPTH or not self.accept("{"):
            raise _NotGemma
        while not self.accept("}"):
            key = self.quoted()
            if key is None:
                name = _KEY.match(self.source.text, self.at)
                if name is None:
                    raise _NotGemma
                key, self.at = name[1].strip(), name.end()
            elif not self.accept(":"):
                raise _NotGemma
            found.put(key, self.value(properties.get(key) if isinstance(properties, dict) else None, root, depth + 1))
            self.separated("}")
        return found

    def separated(self, closer: str) -> None:
        if not self.accept(",") and not self.source.text.startswith(closer, self.at):
            raise _NotGemma

    def quoted(self) -> str | None:
        for quote in _QUOTES:
            if self.accept(quote):
                end = self.source.find(quote, self.at)
                if end < 0:
                    raise _NotGemma
                text, self.at = self.source.text[self.at : end], end + len(quote)
                return text
        return None

    def value(self, schema: Any, root: Any, depth: int) -> Any:
        text = self.quoted()
        if text is not None:
            return text
        mark = self.source.text[self.at : self.at + 1]
        if mark == "{":
            return self.mapping(schema.get("properties") if isinstance(schema, dict) else None, root, depth)
        if mark == "[" and depth <= _MAX_DEPTH:
            self.at += 1
            items: list[Any] = []
            while not self.accept("]"):
                items.append(self.value(None, root, depth + 1))
                self.separated("]")
            return items
        scalar = _SCALAR.match(self.source.text, self.at)
        if scalar is None or not scalar[0].strip():
            raise _NotGemma
        self.at = scalar.end()
        return typed(scalar[0].strip(), schema, root)


def read_gemma(source: Source, toolbox: OfferedNames) -> Found:
    """Calls between tokens. What is left open, or followed by anything but the closing token, is dropped."""
    blocks: list[Block] = []
    at = 0
    while opening := _OPEN.search(source.text, at):
        block = _call(source, opening, toolbox)
        blocks.append(block)
        at = max(block.end, opening.end())
    return Found(tuple(blocks))


def _call(source: Source, opening: re.Match[str], toolbox: OfferedNames) -> Block:
    text = source.text
    close, mark = source.first(_CLOSE, opening.end())
    stop = close + len(mark) if close >= 0 else len(text)
    head = _HEAD.match(text, opening.end())
    if head is None:
        return Block(opening.start(), stop, broken="the call has no name", hidden=True)
    name = toolbox.resolve(head["name"])
    if not name.replace(".", "").isidentifier() and toolbox and name not in toolbox:
        return Block(opening.start(), stop, broken=f"no tool is called {name[:80]!r}", hidden=True)
    braces = _Braces(source, head.end())
    try:
        arguments = braces.mapping(toolbox.properties(name), toolbox.schema(name))
    except _NotGemma:
        return Block(opening.start(), stop, broken="the arguments cannot be read", hidden=True)
    close, mark = source.first(_CLOSE, braces.at)
    stop = close + len(mark) if close >= 0 else len(text)
    if text[braces.at : close if close >= 0 else len(text)].strip():
        return Block(opening.start(), stop, broken="there is text after the arguments", hidden=True)
    call = ToolCall(name, arguments, server_name=toolbox.server(name), text=text[head.end() : braces.at])
    return Block(opening.start(), stop, (call,))


def read_fenced(source: Source, toolbox: OfferedNames) -> Found:
    """Python-style calls or JSON in a fence that says it holds a call."""
    blocks = []
    for fence in _FENCE.finditer(source.text):
        body = fence["body"]
        printed = _PRINT.match(body)
        inner = Source((printed["inner"] if printed else body).strip())
        loaded = load(inner.text) if inner.text[:1] in ("{", "[") else None
        calls = calls_in(loaded.value, toolbox, explicit=True) if loaded else []
        read = None if calls else read_calls(inner, 0, toolbox)
        if read and not inner.text[read[2] :].strip():
            blocks.append(Block(fence.start(), fence.end(), tuple(read[0]), tuple(read[1])))
        elif calls:
            blocks.append(Block(fence.start(), fence.end(), tuple(calls), loaded.repairs if loaded else ()))
    return Found(tuple(blocks))


GEMMA = (
    Form("gemma", ("<|tool_call>", "<start_function_call>"), read_gemma),
    Form("gemma", ("```tool_code", "```tool_call", "```function_call", "```tool\n"), read_fenced),
)
