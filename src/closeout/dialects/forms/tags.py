"""Calls written as tags with one tag a parameter (`<invoke name="f"><parameter name="k">v</parameter></invoke>`).

The one reader behind all families of that kind; what differs between them is a `Grammar`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from closeout.dialects.forms.json_text import load, value_end
from closeout.dialects.forms.records import Block, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.dialects.forms.values import Untyped, decode_entities, typed
from closeout.messages import Repair, ToolCall

__all__ = ["Grammar", "read_tagged_calls", "trim_value"]

_MAX_PARAMETERS = 500
_MAX_INDENT = 64  # blanks in front of a tag on its own line
_ENVELOPES = ("arguments", "parameters", "input")
_BLANK = re.compile(r"\s*+")


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a family writes a call as tags.

    `call` has a group `name`, and may begin with an optional wrapper, which then belongs to the block. `parameter` has
    a group `key` and may have `string` ("true" | "false": the value is text, or JSON). `wrapper_ends` close a call
    that lacks its own closing tag, and belong to the block where they follow it.
    """

    call: re.Pattern[str]
    call_ends: tuple[str, ...]
    parameter: re.Pattern[str]
    parameter_end: str
    wrapper_ends: tuple[str, ...] = ()
    escaped: bool = False  # values may be written with XML entities or CDATA
    untyped: Untyped = "json"
    declared: bool = True  # the tool's schema decides about types; else the text alone
    json_body: bool = False  # the arguments may stand as one JSON object in place of parameter tags
    unique: bool = False  # the same parameter twice makes the call broken
    known_only: bool = False  # with tools at hand, a call of another name is text


@dataclass(slots=True)
class _Body:
    arguments: dict[str, Any]
    repairs: list[Repair]
    end: int
    broken: str = ""


def read_tagged_calls(source: Source, toolbox: Toolbox, grammar: Grammar) -> Found:
    """All calls of a text, one block each; a call that the text leaves open is a broken block."""
    blocks: list[Block] = []
    at = 0
    while opening := grammar.call.search(source.text, at):
        name = toolbox.resolve(opening["name"].strip())
        if not name or (grammar.known_only and toolbox and name not in toolbox):
            at = opening.end()
            continue
        body = _read_body(source, opening.end(), name, toolbox, grammar)
        end = _behind(source, body.end, grammar.wrapper_ends) if not body.broken else body.end
        if body.broken:
            blocks.append(Block(opening.start(), end, broken=body.broken))
        else:
            arguments = _unwrapped(body.arguments, name, toolbox, body.repairs)
            call = ToolCall(name, arguments, "", toolbox.server(name), source.text[opening.end() : body.end])
            blocks.append(Block(opening.start(), end, (call,), tuple(body.repairs)))
        at = max(body.end, opening.end())
    return Found(tuple(blocks))


def _unwrapped(arguments: dict[str, Any], name: str, toolbox: Toolbox, repairs: list[Repair]) -> dict[str, Any]:
    """The arguments out of a single parameter that holds them all and that the tool does not have."""
    if len(arguments) == 1 and toolbox.properties(name):
        key, value = next(iter(arguments.items()))
        if key in _ENVELOPES and key not in toolbox.properties(name) and isinstance(value, dict):
            repairs.append(Repair("arguments_wrapper", "arguments", key))
            return value
    return arguments


def _behind(source: Source, at: int, ends: tuple[str, ...]) -> int:
    """`at`, or behind the wrapper's end that follows it."""
    blank = _BLANK.match(source.text, at)
    after = blank.end() if blank else at
    return next((after + len(end) for end in ends if source.text.startswith(end, after)), at)


def _read_body(source: Source, at: int, name: str, toolbox: Toolbox, grammar: Grammar) -> _Body:
    if grammar.json_body:
        body = _json_body(source, at, grammar)
        if body:
            return body
    text = source.text
    body = _Body({}, [], at)
    following = grammar.call.search(text, at)
    while True:
        while following and following.start() < at:
            following = grammar.call.search(text, at)
        stop, mark = source.first((*grammar.call_ends, *grammar.wrapper_ends), at)
        limit = following.start() if following else len(text)
        if 0 <= stop <= limit:
            limit = stop
        # Bounded by the call's end, so that a later call's parameters are not this one's.
        parameter = grammar.parameter.search(text, at, limit)
        if parameter is None:
            return _closed(body, limit, mark if stop == limit else "", following is not None, grammar)
        raw, at, repair = _value(source, parameter.end(), grammar)
        if raw is None:
            body.broken, body.end = "the call is not finished", len(text)
            return body
        body.repairs += repair
        key = parameter["key"].strip().strip("\"'")
        if len(body.arguments) >= _MAX_PARAMETERS or (grammar.unique and key in body.arguments):
            body.broken, body.end = f"the parameter {key!r} is given twice", at
            return body
        body.arguments[key] = _read_value(raw, key, name, parameter, toolbox, grammar, body.repairs)


def _closed(body: _Body, limit: int, mark: str, followed: bool, grammar: Grammar) -> _Body:
    """The body with its end. Without a closing mark it is broken, unless it has arguments and a call follows."""
    body.end = limit + (len(mark) if mark in grammar.call_ends else 0)
    if not mark and not (followed and body.arguments):
        body.broken = "the call is not finished"
    return body


def _json_body(source: Source, at: int, grammar: Grammar) -> _Body | None:
    """Arguments as one JSON object between the tags."""
    blank = _BLANK.match(source.text, at)
    at = blank.end() if blank else at
    if not source.text.startswith("{", at):
        return None
    end = value_end(source, at)
    stop, mark = source.first((*grammar.call_ends, *grammar.wrapper_ends), end or at)
    loaded = load(source.text[at : end or (stop if stop >= 0 else at)], mend=source)
    if loaded is None or not isinstance(loaded.value, dict) or (end is None and stop < 0):
        return None
    end = end if end is not None else stop
    between = source.text[end:stop] if stop >= 0 else "x"
    end = stop + (len(mark) if mark in grammar.call_ends else 0) if not between.strip() else end
    return _Body(loaded.value, list(loaded.repairs), end)


def _value(source: Source, at: int, grammar: Grammar) -> tuple[str | None, int, list[Repair]]:
    """(the parameter's text, where it ends, repairs). Its closing tag may be missing where another tag begins."""
    text = source.text
    if grammar.escaped and text.startswith("<![CDATA[", at):
        inner = source.find("]]>", at)
        if inner >= 0:
            close = source.find(grammar.parameter_end, inner)
            return text[at + 9 : inner], close + len(grammar.parameter_end) if close >= 0 else inner + 3, []
    close = _closing(source, at, grammar)
    breach = _breach(source, at, close if close >= 0 else len(text), grammar)
    if close >= 0 and breach is None:
        return trim_value(text[at:close]), close + len(grammar.parameter_end), []
    if breach is None:
        stop, _ = source.first((*grammar.call_ends, *grammar.wrapper_ends), at)
        if stop < 0:
            return None, len(text), []
        breach = stop
    return trim_value(text[at:breach]).rstrip(), breach, [Repair("tag_unclosed", "arguments")]


def _closing(source: Source, at: int, grammar: Grammar) -> int:
    """Where the closing tag of a value stands, -1 without one. One that no tag follows is data, if a better one comes.

    A better one comes before any other tag of the call.
    """
    text, end = source.text, grammar.parameter_end
    first = close = source.find(end, at)
    while close >= 0 and not _tag_follows(text, close + len(end), grammar):
        following = source.find(end, close + 1)
        stop, _ = source.first((*grammar.call_ends, *grammar.wrapper_ends), close)
        if following < 0 or 0 <= stop < following or grammar.parameter.search(text, close, following):
            return first
        close = following
    return close


def _tag_follows(text: str, at: int, grammar: Grammar) -> bool:
    """Whether behind blanks a tag of the call comes, or nothing more."""
    blank = _BLANK.match(text, at)
    at = blank.end() if blank else at
    if at == len(text) or text.startswith((grammar.parameter_end, *grammar.call_ends, *grammar.wrapper_ends), at):
        return True
    return grammar.parameter.match(text, at) is not None or grammar.call.match(text, at) is not None


def _breach(source: Source, at: int, end: int, grammar: Grammar) -> int | None:
    """Where, before `end`, a tag begins that cannot be part of the value: another parameter or call on its own line."""
    text = source.text
    for pattern in (grammar.parameter, grammar.call):
        for found in pattern.finditer(text, at, end):
            margin = text[max(at, found.start() - _MAX_INDENT) : found.start()]
            own_line = "\n" in margin and not margin.rpartition("\n")[2].strip()
            if not own_line and end < len(text):
                continue
            if pattern is grammar.parameter:
                return found.start()
            stop, _ = source.first(grammar.call_ends, at)
            return stop if 0 <= stop < found.start() else None
    return None


def trim_value(value: str) -> str:
    """A value without the line breaks that set it apart from its tags: one on each side, or none."""
    if value.startswith("\n"):
        return value[1:-1] if value.endswith("\n") and len(value) > 1 else value[1:]
    return value


def _read_value(
    raw: str,
    key: str,
    name: str,
    parameter: re.Match[str],
    toolbox: Toolbox,
    grammar: Grammar,
    repairs: list[Repair],
) -> Any:
    marked = parameter.groupdict().get("string")
    if grammar.escaped:
        raw, decoded = decode_entities(raw)
        if decoded:
            repairs.append(Repair("xml_entities", f"arguments.{key}", after=raw[:80]))
    schema = toolbox.properties(name).get(key) if grammar.declared else None
    if marked == "true":
        return raw
    if schema is None and marked == "false":
        loaded = load(raw)
        return loaded.value if loaded else raw
    return typed(raw, schema, toolbox.schema(name), grammar.untyped)
