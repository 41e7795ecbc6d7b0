"""JSON calls with no mark around them (xLAM, Llama 3, guided decoding), and behind Llama's `<|python_tag|>`."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from closeout.dialects.forms.json_text import ARGUMENT_KEYS, ID_KEYS, NAME_KEYS, calls_in, load, value_end
from closeout.dialects.forms.python_calls import read_calls
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.messages import Repair, ToolCall

__all__ = ["BARE_JSON", "PYTHON_TAG", "STRICT_JSON", "WHOLE_JSON"]

_TAG = "<|python_tag|>"
_CANDIDATE = re.compile(r"""\{\s{0,64}["']|\[\s{0,64}\{\s{0,64}["']""")
_GAP = re.compile(r"(?:\s|[;,])*+")
_FENCE = re.compile(r"```[\w-]{0,16}[ \t]*\n\s{0,64}\Z")
_FENCE_END = re.compile(r"\s{0,64}```")
_MAX_INDENT = 64  # blanks in front of a value on its own line
_ENVELOPE_KEYS = {*NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS, "type", "tool_calls", "tool_call", "function_call"}
_MESSAGE_KEYS = {
    *_ENVELOPE_KEYS,
    "role",
    "content",
    "refusal",
    "reasoning_content",
    "reasoning",
    "annotations",
    "index",
}
_CODE_TOOLS = ("python", "code_interpreter", "ipython")


def read_bare_json(source: Source, toolbox: Toolbox, strict: bool = False, whole: bool = False) -> Found:
    """Every JSON value of the text that is a call with a name and arguments.

    `whole`: the text is nothing else and has no key that calls do not have. `strict`: that, or the value begins its
    line and every name is a tool's.
    """
    hits: list[tuple[Block, Any]] = []
    at = 0
    while not source.exhausted and (candidate := _CANDIDATE.search(source.text, at)):
        start = candidate.start()
        end = value_end(source, start)
        loaded = load(source.text[start:end], mend=source) if end else None
        calls = calls_in(loaded.value, toolbox, explicit=True) if loaded else []
        if calls and loaded and end:
            hits.append((_fenced(source.text, Block(start, end, tuple(calls), loaded.repairs)), loaded.value))
        # A value that is no call is passed over whole: what stands inside it is data.
        at = end if loaded and end else start + 1
    if (strict or whole) and not _nothing_else(source.text, hits):
        hits = (
            []
            if whole
            else [hit for hit in hits if _begins_line(source.text, hit[0].start) and _all_known(hit[0].calls, toolbox)]
        )
    return Found(tuple(block for block, _ in hits))


def _all_known(calls: tuple[ToolCall, ...], toolbox: Toolbox) -> bool:
    return bool(toolbox) and all(call.name in toolbox for call in calls)


def _begins_line(text: str, at: int) -> bool:
    _, newline, indent = text[max(0, at - _MAX_INDENT) : at].rpartition("\n")
    return not indent.strip() and (bool(newline) or at <= _MAX_INDENT)


def _nothing_else(text: str, hits: list[tuple[Block, Any]]) -> bool:
    """Whether the text is these values, with separators between them, and they have keys of calls only."""
    at = 0
    for block, value in hits:
        members = value if isinstance(value, list) else [value]
        if _GAP.fullmatch(text, at, block.start) is None or not all(map(_only_a_call, members)):
            return False
        at = block.end
    return bool(hits) and _GAP.fullmatch(text, at) is not None


def _only_a_call(value: Any) -> bool:
    known = _MESSAGE_KEYS if isinstance(value, dict) and "tool_calls" in value else _ENVELOPE_KEYS
    return known.issuperset(value)


def _fenced(text: str, block: Block) -> Block:
    """The block with the code fence around it, if it has one to itself."""
    opening = _FENCE.search(text, max(0, block.start - 96), block.start)
    closing = _FENCE_END.match(text, block.end)
    if not opening or not closing:
        return block
    return Block(opening.start(), closing.end(), block.calls, block.repairs)


def read_python_tag(source: Source, toolbox: Toolbox) -> Found:
    """Behind the tag: JSON calls, one after the other; a Python-style call of a built-in; or code for a tool."""
    text = source.text
    blocks: list[Block] = []
    start = source.find(_TAG, 0)
    while start >= 0:
        gap = _GAP.match(text, start + len(_TAG))
        at = gap.end() if gap else start
        following = source.find(_TAG, start + len(_TAG))
        stop = following if following >= 0 else len(text)
        blocks.append(_json_run(source, toolbox, start, at) or _python(source, toolbox, start, at, stop))
        start = source.find(_TAG, max(blocks[-1].end, start + len(_TAG)))
    return Found(tuple(blocks))


def _json_run(source: Source, toolbox: Toolbox, start: int, at: int) -> Block | None:
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    end = at
    while source.text[at : at + 1] in ("{", "["):
        stop = value_end(source, at)
        loaded = load(source.text[at:stop], mend=source) if stop else None
        found = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs)) if loaded else []
        if not found or loaded is None or stop is None:
            break
        calls += found
        repairs += loaded.repairs
        gap = _GAP.match(source.text, stop)
        end, at = stop, gap.end() if gap else stop
    return Block(start, end, tuple(calls), tuple(repairs)) if calls else None


def _python(source: Source, toolbox: Toolbox, start: int, at: int, stop: int) -> Block:
    read = read_calls(source, at, toolbox)
    if read and not source.text[read[2] : stop].strip().removesuffix("<|eom_id|>"):
        calls = tuple(
            ToolCall(call.name.removesuffix(".call"), call.arguments, server_name=call.server_name) for call in read[0]
        )
        if not toolbox or all(call.name in toolbox for call in calls):
            return Block(start, read[2], calls, tuple(read[1]))
    code = source.text[at:stop].strip()
    runner = next((name for name in _CODE_TOOLS if name in toolbox), None)
    if runner and code and code[:1] not in "{[":
        key = next(iter(toolbox.properties(runner)), "code")
        return Block(start, stop, (ToolCall(runner, {key: code}, "", toolbox.server(runner), code),))
    return Block(start, stop, broken="what follows the tag is no call")


PYTHON_TAG = Form("llama3_json", (_TAG,), read_python_tag)
BARE_JSON = Form("json", (), read_bare_json)
STRICT_JSON = Form("json", (), partial(read_bare_json, strict=True))
WHOLE_JSON = Form("json", (), partial(read_bare_json, whole=True))
