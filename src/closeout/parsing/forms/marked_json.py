"""JSON calls between marks: one row per family.

Three layouts: the whole call as JSON between two marks (Hermes, Granite, InternLM, Jamba, …), the name before its
JSON arguments between control tokens (DeepSeek, Kimi K2, Solar), and Mistral's `[TOOL_CALLS]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from closeout.messages import Repair, ToolCall
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_calls import calls_in, make_call
from closeout.parsing.forms.json_values import BLANKS, SEPARATORS, Loaded, Source, load, load_at
from closeout.parsing.forms.offered import OfferedNames, kinds, typed

__all__ = ["MISTRAL", "TAGGED_JSON", "TOKEN_CALLS", "Marks"]

_FENCE = re.compile(r"\s*```[\w-]{0,16}\s*")
_FENCE_END = re.compile(r"\s*```")
_MAX_VALUES = 1000
_UNREADABLE = "the JSON in the call cannot be read"


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around the JSON. `opener` is matched where one of the form's literal markers may be."""

    opener: re.Pattern[str]
    closers: tuple[str, ...] = ()
    short: bool = False  # {"name": {arguments}} instead of {"name": …, "arguments": …}
    coerce: bool = False  # scalars in strings are turned into what the tool's schema declares


def read_between(source: Source, toolbox: OfferedNames, marks: Marks) -> Found:
    """One block for every opener that JSON follows."""
    blocks: list[Block] = []
    at = 0
    while not source.exhausted and (opening := marks.opener.search(source.text, at)):
        block = _block(source, toolbox, marks, opening.start(), source.skip(_FENCE, opening.end()))
        if block:
            blocks.append(block)
        at = max(block.end if block else 0, opening.end())
    return Found(tuple(blocks))


def _block(source: Source, toolbox: OfferedNames, marks: Marks, start: int, at: int) -> Block | None:
    text = source.text
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    at = source.skip(SEPARATORS, at)
    if text[at : at + 1] not in ("{", "["):
        return None
    end = at
    for _ in range(_MAX_VALUES):
        if text[at : at + 1] not in ("{", "[") or text.startswith(marks.closers, at):  # Pangu's begins with "["
            break
        value, end = _value(source, marks, at)
        found = _calls(value, toolbox, marks) if value else []
        if value is None or not found:
            return Block(start, max(end, at + 1), broken=_UNREADABLE)
        calls += found
        repairs += value.repairs
        at = source.skip(SEPARATORS, end)
    return Block(start, _after_closer(source, end, marks.closers), tuple(calls), tuple(repairs))


def _after_closer(source: Source, at: int, closers: tuple[str, ...]) -> int:
    after = source.skip(SEPARATORS, source.skip(_FENCE_END, at))
    return next((after + len(closer) for closer in closers if source.text.startswith(closer, after)), at)


def _value(source: Source, marks: Marks, at: int) -> tuple[Loaded | None, int]:
    """The JSON at `at` and its end. Unfinished JSON is repaired only before a closing mark."""
    end = source.value_end(at)
    closer, _ = source.first(marks.closers, end or at)
    if end is not None:
        loaded = load(source.text[at:end], repair=False)
        between = source.text[end:closer].strip() if closer >= 0 else ""
        if loaded or (closer < 0 and marks.closers):
            return loaded or load(source.text[at:end], repair=source), end
        if not between:
            return load(source.text[at:end], repair=source), end
    if closer < 0:
        return None, end or len(source.text)
    return load(source.text[at:closer], repair=source), closer


def _calls(loaded: Loaded, toolbox: OfferedNames, marks: Marks) -> list[ToolCall]:
    if marks.short:
        return _short_calls(loaded.value, toolbox)
    calls = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs))
    return [_coerced(call, toolbox) for call in calls] if marks.coerce else calls


def _short_calls(value: Any, toolbox: OfferedNames) -> list[ToolCall]:
    calls = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or len(item) != 1:
            return calls_in(value, toolbox)
        name, arguments = next(iter(item.items()))
        if not isinstance(arguments, dict):
            return []
        name = toolbox.resolve(name)
        calls.append(ToolCall(name, arguments, server_name=toolbox.server(name)))
    return calls


def _coerced(call: ToolCall, toolbox: OfferedNames) -> ToolCall:
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


_KIMI_ID = re.compile(r"(?:functions?\.)?(?P<name>[^\s:]{1,200})(?::(?P<index>\d{1,9}))?\Z")
_MAYBE_FENCE = re.compile(r"\s{0,16}(?:```[\w-]{0,16}\s{0,16})?")
_MAYBE_FENCE_END = re.compile(r"\s{0,16}(?:```)?\s{0,16}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """`head` matches a call from its opening token to its arguments; `name_and_id` takes both from the match."""

    section: re.Pattern[str]
    head: re.Pattern[str]
    end: re.Pattern[str]
    name_and_id: Callable[[re.Match[str]], tuple[str, str]]


def read_token_calls(source: Source, toolbox: OfferedNames, tokens: Tokens) -> Found:
    """One block a call, the first from the section's opening token on. A malformed call is hidden."""
    text = source.text
    blocks: list[Block] = []
    first = tokens.head.search(text)
    # Later ones are between calls, or data.
    section = tokens.section.search(text, 0, first.start() if first else len(text))
    start = section.start() if section else None
    at = section.end() if section else 0
    while head := tokens.head.search(text, at):
        block = _call(source, head, start if start is not None else head.start(), toolbox, tokens)
        blocks.append(block)
        at, start = max(block.end, head.end()), None
    if not blocks and section:
        blocks.append(Block(section.start(), len(text), broken="the call is not finished", hidden=True))
    return Found(tuple(blocks))


def _call(source: Source, head: re.Match[str], start: int, toolbox: OfferedNames, tokens: Tokens) -> Block:
    text = source.text
    name, identity = tokens.name_and_id(head)
    at = source.skip(_MAYBE_FENCE, head.end())
    end = source.value_end(at) if text.startswith("{", at) else None
    closing = tokens.end.search(text, end or at)
    raw = text[at : end or (closing.start() if closing else len(text))]
    loaded = load(raw, repair=source if closing is not None else False) if raw.startswith("{") else None
    call = make_call(name, loaded.value, toolbox, identity, raw) if loaded else None
    if call is None and not raw.strip() and closing:
        call = make_call(name, {}, toolbox, identity)
    if call is None:
        stop = closing.end() if closing else len(text)
        return Block(start, stop, broken=f"the arguments of {name[:80]!r} cannot be read", hidden=True)
    after = source.skip(_MAYBE_FENCE_END, end) if end else 0
    stop = closing.end() if closing and (end is None or closing.start() <= after) else after
    return Block(start, stop, (call,), loaded.repairs if loaded else ())


def _kimi(head: re.Match[str]) -> tuple[str, str]:
    identity = head["name"].strip()
    parts = _KIMI_ID.match(identity)
    return (parts["name"], identity if parts["index"] else "") if parts else (identity, "")


def _deepseek(head: re.Match[str]) -> tuple[str, str]:
    return (head["name"] or head["name31"]).strip(), ""


def _solar(head: re.Match[str]) -> tuple[str, str]:
    return head["name"].strip(), head["id"].strip()


def _deepseek_token(words: str) -> str:
    """The token in its own spelling and in those that tokenizers and distilled models make of it."""
    return r"<[|｜]" + words.replace(" ", r"\\?[▁_ ]") + r"[|｜]>"


def _token_form(family: str, markers: tuple[str, ...], tokens: Tokens) -> Form:
    return Form(family, markers, partial(read_token_calls, tokens=tokens))


TOKEN_CALLS = (
    _token_form(
        "kimi_k2",
        ("<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        Tokens(
            re.compile(r"<\|tool_calls?_section_begin\|>"),
            re.compile(r"<\|tool_call_begin\|>(?P<name>[^<]{1,300})<\|tool_call_argument_begin\|>"),
            re.compile(r"<\|tool_call_end\|>|<\|tool_calls?_section_end\|>|(?=<\|tool_call_begin\|>)"),
            _kimi,
        ),
    ),
    _token_form(
        "deepseek_v3",
        ("<｜tool", "<|tool▁", "<|tool calls", "<|tool_sep|>"),
        Tokens(
            re.compile(_deepseek_token("tool calls begin") + "|" + _deepseek_token("tool calls")),
            re.compile(
                _deepseek_token("tool call begin")
                + r"\s{0,8}(?:function\s{0,8}"
                + _deepseek_token("tool sep")
                + r"\s{0,8}(?P<name>[^\n{<`]{1,200})(?=\s{0,16}[`{\n])|(?P<name31>[^\n{<`]{1,200})"
                + _deepseek_token("tool sep")
                + ")"
            ),
            re.compile(_deepseek_token("tool calls? end") + "|(?=" + _deepseek_token("tool call begin") + ")"),
            _deepseek,
        ),
    ),
    _token_form(
        "solar",
        ("<|tool_call:begin|>",),
        Tokens(
            re.compile(r"<\|tool_calls?:begin\|>(?=\s{0,8}<\|tool_call:begin\|>)"),
            re.compile(
                r"<\|tool_call:begin\|>(?P<id>[^<]{0,100})<\|tool_call:name\|>(?P<name>[^<]{1,200})<\|tool_call:args\|>"
            ),
            re.compile(r"<\|tool_call:end\|>|(?=<\|tool_call:begin\|>)"),
            _solar,
        ),
    ),
)


_MARK = "[TOOL_CALLS]"
_NAMED = re.compile(
    r"\s{0,8}(?P<name>[\w.:/-]{1,200})\s{0,8}(?:\[CALL_ID\]\s{0,4}(?P<id>\w{1,64})\s{0,4})?(?:\[ARGS\])?\s{0,8}(?=\{)"
)
_LIST = re.compile(r"\[\s{0,64}\{")


def read_mistral(source: Source, toolbox: OfferedNames) -> Found:
    blocks: list[Block] = []
    at = source.find(_MARK, 0)
    while at >= 0 and not source.exhausted:
        source.fail()
        found = _named(source, toolbox, at) or _listed(source, toolbox, at)
        blocks += found
        at = source.find(_MARK, max(at + len(_MARK), found[-1].end if found else 0))
    return Found(tuple(blocks))


def _named(source: Source, toolbox: OfferedNames, start: int) -> list[Block]:
    """Read the calls that follow each other with the name before the arguments."""
    blocks: list[Block] = []
    at = start + len(_MARK)
    while head := _NAMED.match(source.text, at):
        loaded, end = load_at(source, head.end())
        raw = source.text[head.end() : end]
        call = make_call(head["name"], loaded.value, toolbox, head["id"] or "", raw) if loaded else None
        if call is None or end is None:
            return [*blocks, Block(start, end or len(source.text), broken=_UNREADABLE)]
        blocks.append(Block(start, end, (call,), loaded.repairs if loaded else ()))
        at = start = end
    return blocks


def _listed(source: Source, toolbox: OfferedNames, start: int) -> list[Block]:
    """Read calls as JSON. Words between the mark and a list of objects are skipped."""
    text = source.text
    at = source.skip(BLANKS, start + len(_MARK))
    if text[at : at + 1] not in ("[", "{"):
        following = source.find(_MARK, at)
        junk = _LIST.search(text, at, following if following >= 0 else len(text))
        if junk is None:
            return []
        at = junk.start()
    loaded, end = load_at(source, at)
    calls = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs)) if loaded else []
    if not calls:
        return [Block(start, end or len(text), broken=_UNREADABLE)]
    return [Block(start, end or len(text), tuple(calls), loaded.repairs if loaded else ())]


MISTRAL = (Form("mistral", (_MARK,), read_mistral),)
