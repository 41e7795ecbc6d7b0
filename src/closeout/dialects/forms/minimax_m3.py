"""MiniMax M3: nested tags, each with the same token in front, so that tags inside a value stay text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.dialects.forms.values import kinds, typed
from closeout.messages import ToolCall

__all__ = ["MINIMAX_M3"]

_TOKEN = "]<]minimax[>["  # noqa: S105 - a mark in the text, no secret
_TAG = re.compile(
    re.escape(_TOKEN) + r"""<(?P<close>/?)(?P<name>[\w.:-]{1,200})(?:\s+name=["'](?P<call>[^"'>]{1,200})["'])?\s*>"""
)
_MAX_DEPTH = 64


@dataclass(slots=True)
class _Node:
    name: str
    text: list[str] = field(default_factory=list)
    children: list[_Node] = field(default_factory=list)


def read_minimax_m3(source: Source, toolbox: Toolbox) -> Found:
    text, at = source.text, 0
    blocks: list[Block] = []
    stack: list[_Node] = []
    start = call_start = 0
    name = ""
    for tag in _TAG.finditer(text):
        if stack:
            stack[-1].text.append(text[at : tag.start()])
        at = tag.end()
        if tag["name"] == "tool_call":
            start = tag.start() if not tag["close"] else start
            stack = []
        elif tag["name"] == "invoke" and tag["call"] and not tag["close"]:
            name, stack = toolbox.resolve(tag["call"]), [_Node("")]
            call_start = start if not blocks or start > blocks[-1].end else tag.start()
        elif tag["name"] == "invoke" and tag["close"] and len(stack) == 1:
            root = toolbox.schema(name)
            arguments = {
                child.name: _value(child, toolbox.properties(name).get(child.name), root) for child in stack[0].children
            }
            blocks.append(Block(call_start, tag.end(), (ToolCall(name, arguments, "", toolbox.server(name)),)))
            stack = []
        elif stack and not tag["close"]:
            node = _Node(tag["name"])
            stack[-1].children.append(node)
            if len(stack) < _MAX_DEPTH:
                stack.append(node)
        elif len(stack) > 1 and stack[-1].name == tag["name"]:
            stack.pop()
    if stack:
        blocks.append(Block(call_start, len(text), broken="the call is not finished", hidden=True))
    return Found(tuple(blocks))


def _value(node: _Node, schema: Any, root: Mapping[str, Any]) -> Any:
    """A leaf by its declared type; children as a list if they are items or the schema says so, else as an object."""
    if not node.children:
        text = "".join(node.text)
        allowed = kinds(schema, root)
        if not text.strip() and allowed and "string" not in allowed:
            return {} if "object" in allowed else [] if "array" in allowed else None
        return typed(text, schema, root)
    names = {child.name for child in node.children}
    member = _member(schema, "array")
    if names == {"item"} and (not kinds(schema, root) or "array" in kinds(schema, root)):
        return [_value(child, member.get("items"), root) for child in node.children]
    members = _member(schema, "object")
    properties = members.get("properties")
    found: dict[str, list[Any]] = {}
    for child in node.children:
        declared = properties.get(child.name) if isinstance(properties, Mapping) else None
        value = _value(child, declared if declared is not None else members.get("additionalProperties"), root)
        found.setdefault(child.name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _member(schema: Any, kind: str) -> Mapping[str, Any]:
    """The part of a schema, or of the union that it is, which describes values of a kind."""
    if not isinstance(schema, Mapping):
        return {}
    for word in ("anyOf", "oneOf"):
        for member in schema.get(word) or ():
            if isinstance(member, Mapping) and kind in kinds(member, {}):
                return member
    return schema


MINIMAX_M3 = (Form("minimax_m3", (_TOKEN,), read_minimax_m3),)
