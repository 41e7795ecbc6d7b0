"""`<use_mcp_tool>`: a server, a tool and its arguments as JSON, each in a tag (the MiroFlow line, Cline)."""

from __future__ import annotations

import re

from closeout.dialects.forms.json_text import load, value_end
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.dialects.forms.values import decode_entities
from closeout.messages import Repair, ToolCall

__all__ = ["USE_MCP_TOOL"]

_OPEN, _CLOSE = "<use_mcp_tool>", "</use_mcp_tool>"
_SERVER = re.compile(r"<server_name>([^<]{0,200})</server_name>")
_TOOL = re.compile(r"<tool_name>([^<]{1,200})</tool_name>")
_ARGUMENTS = re.compile(r"<arguments>\s*+")
_ARGUMENTS_END = "</arguments>"
_BLANK = re.compile(r"\s*+")
_HEAD = 2000  # characters in which the server and the tool must be named


def read_use_mcp_tool(source: Source, toolbox: Toolbox) -> Found:
    blocks: list[Block] = []
    at = source.find(_OPEN, 0)
    while at >= 0:
        following = source.find(_OPEN, at + len(_OPEN))
        block = _call(source, toolbox, at, following if following >= 0 else len(source.text))
        if block:
            blocks.append(block)
        at = source.find(_OPEN, max(block.end if block else 0, at + len(_OPEN)))
    return Found(tuple(blocks))


def _call(source: Source, toolbox: Toolbox, start: int, limit: int) -> Block | None:
    text = source.text
    head = min(limit, start + _HEAD)
    tool = _TOOL.search(text, start, head)
    if tool is None:
        return None
    name = toolbox.resolve(tool[1])
    server = _SERVER.search(text, start, head)
    opening = _ARGUMENTS.search(text, tool.end(), head)
    begin = opening.end() if opening else tool.end()
    arguments, repairs, end = _arguments(source, begin) if opening else ({}, (), begin)
    if arguments is None:
        return Block(start, end, broken=f"the arguments of {name[:80]!r} cannot be read")
    for closing in (_ARGUMENTS_END, _CLOSE):
        blank = _BLANK.match(text, end)
        after = blank.end() if blank else end
        end = after + len(closing) if text.startswith(closing, after) else end
    if not opening and not text.startswith(_CLOSE, end - len(_CLOSE)):
        return Block(start, end, broken="the call is not finished")
    named = server[1].strip() if server else ""
    call = ToolCall(name, arguments, "", named or toolbox.server(name), text[begin:end])
    return Block(start, end, (call,), repairs)


def _arguments(source: Source, at: int) -> tuple[dict[str, object] | None, tuple[Repair, ...], int]:
    """The object at `at`, to its own end, else (broken JSON) to the closing tag."""
    text = source.text
    end = value_end(source, at) if text.startswith("{", at) else None
    loaded = load(text[at:end], mend=False) if end else None
    if loaded is None:
        closing = source.find(_ARGUMENTS_END, at)
        end = closing if closing >= 0 else end
        if end is None:
            return None, (), len(text)
        raw, decoded = decode_entities(text[at:end].strip())
        loaded = load(raw, mend=source) if raw else None
        if not raw:
            return {}, (), end
        if loaded and decoded:
            return _object(loaded.value), (Repair("xml_entities", "arguments"), *loaded.repairs), end
    if loaded is None or end is None:
        return None, (), end if end is not None else len(text)
    return _object(loaded.value), loaded.repairs, end


def _object(value: object) -> dict[str, object] | None:
    return value if isinstance(value, dict) else None


USE_MCP_TOOL = (Form("mcp_xml", (_OPEN,), read_use_mcp_tool),)
