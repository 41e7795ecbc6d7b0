"""Forms bound to lines: ReAct's `Action:`, Command-R's list behind it, Functionary's `>>>name`, GLM 4's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from closeout.dialects.forms.json_text import Loaded, calls_in, load, make_call, value_end
from closeout.dialects.forms.python_calls import read_call
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.messages import ToolCall

__all__ = ["FUNCTIONARY", "NAME_LINE", "REACT", "STRICT_NAME_LINE"]

_ACTION = re.compile(
    r"^[ \t*#]{0,8}action[ \t]{0,4}\d{0,3}[ \t]{0,4}\*{0,2}[:：][ \t*]{0,8}", re.MULTILINE | re.IGNORECASE
)
_INPUT = re.compile(
    r"\n[ \t*#]{0,8}action[ \t_]{0,2}input[ \t]{0,4}\d{0,3}[ \t]{0,4}\*{0,2}[:：][ \t*]{0,8}", re.IGNORECASE
)
_NEXT = re.compile(
    r"\n[ \t*#]{0,8}(?:observation|thought|final answer|action)[ \t]{0,4}\d{0,3}[ \t]{0,4}\*{0,2}[:：]", re.IGNORECASE
)
_FENCE = re.compile(r"\s{0,8}(?:```|~~~)[\w-]{0,16}\s{0,8}")
_FENCE_END = re.compile(r"\s{0,8}(?:```|~~~)")
_GAP = re.compile(r"\s{0,8}")
_TOOL_NAME = re.compile(r"""[\s"'`\[<]{0,4}([^\W\d][\w.:/-]{0,199})[\s"'`\]>*]{0,6}\Z""")
_NO_TOOL = ("finalanswer", "none", "na", "n/a", "directlyanswer")
_LINE_END = re.compile(r"[ \t`*]{0,8}(?:\n|\Z)")
_LONGEST_NAME = 256  # characters
_HEADER = re.compile(
    r"(?:\A\s{0,8}>>>|^>>>|(?<=\S)[ \t]{0,4}>>>(?=[\w.-]{1,200}[ \t]{0,4}\n\s{0,8}\{))"
    r"([^\W\d][\w.-]{0,199})[ \t]{0,4}\n",
    re.MULTILINE,
)
_RECIPIENT = re.compile(r"<\|recipient\|>[ \t]{0,4}([^\W\d][\w.-]{0,199})\s{0,4}<\|content\|>")
_NAME_LINE = re.compile(r"\A\s{0,16}([^\W\d][\w.-]{0,199})[ \t]{0,4}\n\s{0,8}(?=\{)")


def _is_call(name: str) -> bool:
    return re.sub(r"[\s_.-]", "", name.casefold()) not in _NO_TOOL


def read_react(source: Source, toolbox: Toolbox) -> Found:
    """The first complete action; all behind it is untrusted."""
    for action in _ACTION.finditer(source.text):
        block = _blob(source, toolbox, action) or _lines(source, toolbox, action) or _function(source, toolbox, action)
        if block:
            return Found((block,))
    return Found()


def _blob(source: Source, toolbox: Toolbox, action: re.Match[str]) -> Block | None:
    """An action as one JSON value, in a fence or not."""
    text = source.text
    fence = _FENCE.match(text, action.end())
    gap = _GAP.match(text, action.end())
    at = (fence or gap or action).end()
    if text[at : at + 1] not in ("{", "["):
        return None
    end = value_end(source, at)
    loaded = load(text[at:end], mend=source) if end else None
    calls = calls_in(loaded.value, toolbox) if loaded else []
    if not calls or loaded is None or end is None or not all(_is_call(call.name) for call in calls):
        return None
    closing = _FENCE_END.match(text, end) if fence else None
    return Block(action.start(), closing.end() if closing else end, tuple(calls), loaded.repairs)


def _lines(source: Source, toolbox: Toolbox, action: re.Match[str]) -> Block | None:
    """A name on the action's line and its input behind the next marker."""
    text = source.text
    marker = _INPUT.search(text, action.end(), action.end() + _LONGEST_NAME)
    name = _TOOL_NAME.match(text[action.end() : marker.start()]) if marker else None
    if marker is None or name is None or not _is_call(name[1]):
        return None
    fence = _FENCE.match(text, marker.end())
    at = fence.end() if fence else marker.end()
    end = value_end(source, at) if text[at : at + 1] in ("{", "[") else None
    following = _NEXT.search(text, end or at)
    stop = end or (following.start() if following else len(text))
    raw = text[at:stop].strip().removesuffix("```").strip()
    loaded = load(raw, mend=source) if raw[:1] in ("{", "[") else None
    name_read = toolbox.resolve(name[1])
    if stop == len(text) and end is None and _cut_off(text[at:], toolbox.schema(name_read)):
        return None
    call = _with_input(name_read, loaded, raw, toolbox)
    if call is None:
        return None
    closing = _FENCE_END.match(text, stop) if fence else None
    return Block(action.start(), closing.end() if closing else stop, (call,), loaded.repairs if loaded else ())


def _cut_off(rest: str, schema: Mapping[str, Any]) -> bool:
    """Whether a text that ends in an input ends before it is whole: open JSON, or nothing where something is due."""
    rest = rest.strip()
    return rest[:1] in ("{", "[") and not rest.endswith("```") if rest else bool(schema.get("required"))


def _function(source: Source, toolbox: Toolbox, action: re.Match[str]) -> Block | None:
    """The action as `name(…)`, alone on its line; `name({…})` too."""
    read = read_call(source, action.end(), toolbox)
    if read is None or not _is_call(read[0].name) or not _LINE_END.match(source.text, read[2]):
        return None
    return Block(action.start(), read[2], (read[0],), read[1])


def _with_input(name: str, loaded: Loaded | None, raw: str, toolbox: Toolbox) -> ToolCall | None:
    value: Any = loaded.value if loaded else raw
    if not loaded and len(raw) > 1 and raw[0] == raw[-1] and raw[0] in "\"'":
        value = raw[1:-1]
    if isinstance(value, str) and value and not toolbox.properties(name):
        value = {"input": value}
    return make_call(name, value, toolbox, text=raw)


def read_headers(source: Source, toolbox: Toolbox, header: re.Pattern[str]) -> Found:
    """Segments with a recipient in front: `all` is content, a tool's name is a call with JSON (or code) behind it."""
    text = source.text
    headers = list(header.finditer(text))
    if not headers:
        return read_name_line(source, toolbox)
    blocks: list[Block] = []
    said = [text[: headers[0].start()].removeprefix("all\n")]
    for found, following in zip(headers, [*headers[1:], None], strict=True):
        stop = following.start() if following else len(text)
        body = text[found.end() : stop]
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
    """The object in a segment; one without an end is read only where another segment shows that it is over."""
    inner = Source(body.strip())
    if not inner.text.startswith("{") or (not closed and value_end(inner, 0) is None):
        return None
    return load(inner.text, mend=source)


def read_name_line(source: Source, toolbox: Toolbox, strict: bool = False) -> Found:
    """The text is a tool's name on a line and its arguments as one object below. `strict`: the tool must be known."""
    head = _NAME_LINE.match(source.text)
    name = toolbox.resolve(head[1]) if head else ""
    if head is None or ((strict or toolbox) and name not in toolbox):
        return Found()
    end = value_end(source, head.end())
    loaded = load(source.text[head.end() : end], mend=source) if end else None
    call = make_call(name, loaded.value, toolbox) if loaded and isinstance(loaded.value, dict) else None
    if call is None or end is None or loaded is None or (strict and source.text[end:].strip()):
        return Found()
    return Found((Block(head.start(), end, (call,), loaded.repairs),))


REACT = Form("react", ("Action", "action", "ACTION"), read_react)
FUNCTIONARY = (
    Form("functionary", (">>>",), partial(read_headers, header=_HEADER)),
    Form("functionary", ("<|recipient|>",), partial(read_headers, header=_RECIPIENT)),
)
NAME_LINE = Form("name_line", (), read_name_line)
STRICT_NAME_LINE = Form("name_line", (), partial(read_name_line, strict=True))
