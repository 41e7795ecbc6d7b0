"""Families that put JSON between two marks: Hermes, Granite, InternLM, Jamba, Hunyuan, MiniMax M1, Nemotron, Phi, ….

One row a family; the JSON is one call, a list, several one after the other, or an OpenAI envelope.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from closeout.dialects.forms.json_text import Loaded, calls_in, load, value_end
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.dialects.forms.values import kinds, typed
from closeout.messages import Repair, ToolCall

__all__ = ["TAGGED_JSON", "Marks", "read_between"]

_BLANK = re.compile(r"(?:\s|[,;])*+")
_FENCE = re.compile(r"\s*```[\w-]{0,16}\s*")
_FENCE_END = re.compile(r"\s*```")
_MAX_VALUES = 1000


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands around the JSON. `opener` is matched where one of the form's literal markers may be."""

    opener: re.Pattern[str]
    closers: tuple[str, ...] = ()
    short: bool = False  # {"name": {arguments}} in place of {"name": …, "arguments": …}
    coerce: bool = False  # scalars in strings are turned into what the tool's schema declares


def read_between(source: Source, toolbox: Toolbox, marks: Marks) -> Found:
    """One block for every opener that JSON follows."""
    blocks: list[Block] = []
    at = 0
    while not source.exhausted and (opening := marks.opener.search(source.text, at)):
        fence = _FENCE.match(source.text, opening.end())
        block = _block(source, toolbox, marks, opening.start(), (fence or opening).end())
        if block:
            blocks.append(block)
        at = max(block.end if block else 0, opening.end())
    return Found(tuple(blocks))


def _block(source: Source, toolbox: Toolbox, marks: Marks, start: int, at: int) -> Block | None:
    text = source.text
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    at = _skip(text, at)
    if text[at : at + 1] not in ("{", "["):
        return None
    end = at
    for _ in range(_MAX_VALUES):
        if text[at : at + 1] not in ("{", "["):
            break
        value, end = _value(source, marks, at)
        found = _calls(value, toolbox, marks) if value else []
        if value is None or not found:
            return Block(start, max(end, at + 1), broken="the JSON in the call cannot be read")
        calls += found
        repairs += value.repairs
        at = _skip(text, end)
    return Block(start, _behind_closer(text, end, marks.closers), tuple(calls), tuple(repairs))


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _behind_closer(text: str, at: int, closers: tuple[str, ...]) -> int:
    fence = _FENCE_END.match(text, at)
    after = _skip(text, fence.end() if fence else at)
    return next((after + len(closer) for closer in closers if text.startswith(closer, after)), at)


def _value(source: Source, marks: Marks, at: int) -> tuple[Loaded | None, int]:
    """The JSON at `at` and its end. JSON that does not end is mended only in front of a closing mark."""
    end = value_end(source, at)
    closer, _ = source.first(marks.closers, end or at)
    if end is not None:
        loaded = load(source.text[at:end], mend=False)
        between = source.text[end:closer].strip() if closer >= 0 else ""
        if loaded or (closer < 0 and marks.closers):
            return loaded or load(source.text[at:end], mend=source), end
        if not between:
            return load(source.text[at:end], mend=source), end
    if closer < 0:
        return None, end or len(source.text)
    return load(source.text[at:closer], mend=source), closer


def _calls(loaded: Loaded, toolbox: Toolbox, marks: Marks) -> list[ToolCall]:
    if marks.short:
        return _short_calls(loaded.value, toolbox)
    calls = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs))
    return [_coerced(call, toolbox) for call in calls] if marks.coerce else calls


def _short_calls(value: Any, toolbox: Toolbox) -> list[ToolCall]:
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or len(item) != 1:
            return calls_in(value, toolbox)
        name, arguments = next(iter(item.items()))
        if not isinstance(arguments, dict):
            return []
        name = toolbox.resolve(name)
        calls.append(ToolCall(name, arguments, "", toolbox.server(name)))
    return calls


def _coerced(call: ToolCall, toolbox: Toolbox) -> ToolCall:
    if isinstance(call.arguments, str):
        return call
    schema, properties = toolbox.schema(call.name), toolbox.properties(call.name)
    arguments = {
        key: typed(value, properties[key], schema)
        if isinstance(value, str) and kinds(properties.get(key), schema)
        else value
        for key, value in call.arguments.items()
    }
    return replace(call, arguments=arguments)


def _row(family: str, markers: tuple[str, ...], *closers: str, opener: str = "", **options: bool) -> Form:
    pattern = re.compile(opener or "|".join(map(re.escape, markers)))
    return Form(family, markers, partial(read_between, marks=Marks(pattern, closers, **options)))


TAGGED_JSON = (
    _row("hermes", ("<tool_call>",), "</tool_call>"),
    _row("granite", ("<|tool_call|>",), "<|/tool_call|>", opener=r"<\|tool_call\|>"),
    _row("granite_20b_fc", ("<function_call>",), "</function_call>"),
    _row(
        "internlm",
        ("<|action_start|>",),
        "<|action_end|>",
        opener=r"<\|action_start\|>\s{0,4}(?:<\|(?:plugin|interpreter)\|>)?",
    ),
    _row("jamba", ("<tool_calls>",), "</tool_calls>"),
    _row("nemotron", ("<TOOLCALL>",), "</TOOLCALL>"),
    _row("longcat", ("<longcat_tool_call>",), "</longcat_tool_call>"),
    _row(
        "gigachat",
        ("<|function_call|>", "function call<|role_sep|>"),
        opener=r"<\|function_call\|>|(?:<\|message_sep\|>\s{0,8})?function call<\|role_sep\|>",
    ),
    _row("phi4", ("functools[",), opener=r"\bfunctools(?=\[)"),
    _row("cohere", ("<|START_ACTION|>",), "<|END_ACTION|>"),
    _row("apertus", ("<|tools_prefix|>",), "<|tools_suffix|>", short=True),
    _row(
        "k2_horizon",
        ("<ifm|tool_call>",),
        "</ifm|tool_call>",
        "</ifm|tool_calls>",
        opener=r"(?:<ifm\|tool_calls>\s{0,8})?<ifm\|tool_call>",
        coerce=True,
    ),
    _row("pangu", ("[unused11]",), "[unused12]"),
    _row("hyperclova", ("-> tool/function_call",)),
)
"""The rows, most common first: of two that fit the same text the first wins."""
