"""The dialects' own forms, `<use_mcp_tool>` and ReAct, read in whole texts by the readers that also stream them."""

from __future__ import annotations

import re

from closeout.messages import Defect, Repair, ToolCall
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_calls import calls_in, make_call
from closeout.parsing.forms.json_values import Source, load
from closeout.parsing.forms.offered import OfferedNames, decode_entities
from closeout.parsing.react import CotAgentOutputParser
from closeout.parsing.use_mcp_tool import OPENING_TAG, CallScanner

__all__ = ["REACT", "USE_MCP_TOOL"]

_ACTION = re.compile(r"^[ \t*#]{0,8}action[ \t]{0,4}\d{0,3}[ \t]{0,4}\*{0,2}[:：]", re.MULTILINE | re.IGNORECASE)


def read_use_mcp_tool(source: Source, toolbox: OfferedNames) -> Found:
    """Read every call in a whole text."""
    blocks: list[Block] = []
    start = source.find(OPENING_TAG, 0)
    while start >= 0:
        scanner = CallScanner()
        end = scanner.scan(source.text, start + len(OPENING_TAG), last=True)
        if scanner.name:
            blocks.append(_block(scanner, source, toolbox, start, end))
        start = source.find(OPENING_TAG, max(end, start + len(OPENING_TAG)))
    return Found(tuple(blocks))


def _block(scanner: CallScanner, source: Source, toolbox: OfferedNames, start: int, end: int) -> Block:
    call = scanner.result(truncated=scanner.unfinished)
    if isinstance(call, Defect):
        return Block(start, end, broken=call.hint.rstrip("."), refuses=call.refuses)
    arguments = call.arguments
    repairs: tuple[Repair, ...] = ()
    if isinstance(arguments, str):
        raw, decoded = decode_entities(arguments)
        loaded = load(raw, repair=source)
        if loaded is None or not isinstance(loaded.value, dict):
            return Block(start, end, broken=f"the arguments of {call.name[:80]!r} cannot be read")
        arguments = loaded.value
        repairs = (Repair("xml_entities", "arguments"), *loaded.repairs) if decoded else loaded.repairs
    server = call.server or toolbox.server(toolbox.resolve(call.name))
    made = ToolCall(toolbox.resolve(call.name), arguments, server_name=server, text=call.written)
    return Block(start, end, (made,), repairs)


def read_react(source: Source, toolbox: OfferedNames) -> Found:
    """The first complete action; all text after it is untrusted."""
    text, parser = source.text, CotAgentOutputParser()
    for event in (*parser.feed(text), *parser.close()):
        if event.span is None:
            continue
        if event.refuses and event.code != "invented_observation":  # text that follows no call may mention results
            return Found((Block(*event.span, broken=event.hint.rstrip("."), refuses=True),))
        if event.kind != "action" or event.role:
            continue
        if any(repair.kind == "missing_bracket" for repair in event.repairs):
            break  # an action that is cut off
        start, end = event.span
        name, raw = toolbox.resolve(event.name), event.raw
        marker = max((found.start() for found in _ACTION.finditer(text, 0, start)), default=start)
        if raw[:1] in ("{", "[") and event.name not in text[start : text.find(raw, start)]:  # the name is in the JSON
            loaded = load(raw, repair=source)
            calls = calls_in(loaded.value, toolbox) if loaded else []
            return Found((Block(marker, end, tuple(calls), loaded.repairs),)) if calls and loaded else Found()
        call = make_call(name, event.input, toolbox, text=raw)
        if call is None or (not raw.strip() and (name not in toolbox or toolbox.required(name))):
            break  # a name whose input is missing
        return Found((Block(marker, end, (call,), event.repairs),))
    return Found()


USE_MCP_TOOL = (Form("mcp_xml", (OPENING_TAG,), read_use_mcp_tool),)
REACT = Form("react", ("Action", "action", "ACTION"), read_react)
