"""Tool calls as XML-like tags with one tag per parameter: one grammar per family.

Three layouts: `<invoke name="f"><parameter name="k">v</parameter></invoke>` and its kin, GLM's pairs of key and value
tags, and MiniMax M3's nested tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from closeout.messages import Repair, ToolCall
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_values import BLANKS, Pairs, Source, json_or_text, load, refusal_of
from closeout.parsing.forms.offered import OfferedNames, Untyped, decode_entities, kinds, typed

__all__ = ["ARG_PAIRS", "MINIMAX_M3", "MUSE_GLIMMER", "MUSE_INVOKE", "TAG_FAMILIES", "TagGrammar", "read_tagged_calls"]

_MAX_PARAMETERS = 500
_MAX_INDENT = 64  # blanks before a tag on its own line
_ENVELOPES = ("arguments", "parameters", "input")


@dataclass(frozen=True, slots=True)
class TagGrammar:
    """A family's notation of a call as tags.

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
    json_body: bool = False  # the arguments may be one JSON object instead of parameter tags
    unique: bool = False  # the same parameter twice makes the call broken
    known_only: bool = False  # if tools are offered, a call of another name is text


@dataclass(slots=True)
class _Body:
    arguments: Pairs | dict[str, Any]
    repairs: list[Repair]
    end: int
    broken: str = ""


def read_tagged_calls(source: Source, toolbox: OfferedNames, grammar: TagGrammar) -> Found:
    """Read all calls of a text, one block each. A call that the text leaves open is a malformed block."""
    blocks: list[Block] = []
    at = 0
    while not source.exhausted and (opening := grammar.call.search(source.text, at)):
        name = toolbox.resolve(opening["name"].strip())
        if not name or (grammar.known_only and toolbox and name not in toolbox):
            at = opening.end()
            continue
        body = _read_body(source, opening.end(), name, toolbox, grammar)
        end = _after(source, body.end, grammar.wrapper_ends) if not body.broken else body.end
        if body.broken:
            source.fail()
            blocks.append(Block(opening.start(), end, broken=body.broken))
        else:
            arguments = _unwrapped(body.arguments, name, toolbox, body.repairs)
            call = ToolCall(
                name, arguments, server_name=toolbox.server(name), text=source.text[opening.end() : body.end]
            )
            blocks.append(Block(opening.start(), end, (call,), tuple(body.repairs)))
        at = max(body.end, opening.end())
    return Found(tuple(blocks))


def _unwrapped(arguments: dict[str, Any], name: str, toolbox: OfferedNames, repairs: list[Repair]) -> dict[str, Any]:
    """Unwrap arguments that are all in one parameter that the tool does not declare."""
    if len(arguments) == 1 and toolbox.properties(name) and not refusal_of(arguments):
        key, value = next(iter(arguments.items()))
        if key in _ENVELOPES and key not in toolbox.properties(name) and isinstance(value, dict):
            repairs.append(Repair("arguments_wrapper", "arguments", key))
            return value
    return arguments


def _after(source: Source, at: int, ends: tuple[str, ...]) -> int:
    """`at`, or the position after the wrapper's end that follows it."""
    after = source.skip(BLANKS, at)
    return next((after + len(end) for end in ends if source.text.startswith(end, after)), at)


def _read_body(source: Source, at: int, name: str, toolbox: OfferedNames, grammar: TagGrammar) -> _Body:
    if grammar.json_body:
        body = _json_body(source, at, grammar)
        if body:
            return body
    text = source.text
    arguments = Pairs()
    body = _Body(arguments, [], at)
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
        raw, at, repair = _parameter_text(source, parameter.end(), grammar)
        if raw is None:
            body.broken, body.end = "the call is not finished", len(text)
            return body
        body.repairs += repair
        key = parameter["key"].strip().strip("\"'")
        if len(arguments) >= _MAX_PARAMETERS or (grammar.unique and key in arguments):
            body.broken, body.end = f"the parameter {key!r} is given twice", at
            return body
        if grammar.escaped:
            raw, decoded = decode_entities(raw)
            if decoded:
                body.repairs.append(Repair("xml_entities", f"arguments.{key}", after=raw[:80]))
        schema = toolbox.properties(name).get(key) if grammar.declared else None
        marked = parameter.groupdict().get("string")
        if marked == "true":
            value: Any = raw
        elif marked == "false" and schema is None:
            value = json_or_text(raw)
        else:
            value = typed(raw, schema, toolbox.schema(name), grammar.untyped)
        arguments.put(key, value)


def _closed(body: _Body, limit: int, mark: str, followed: bool, grammar: TagGrammar) -> _Body:
    """The body with its end. Without a closing mark it is broken, unless it has arguments and a call follows."""
    body.end = limit + (len(mark) if mark in grammar.call_ends else 0)
    if not mark and not (followed and body.arguments):
        body.broken = "the call is not finished"
    return body


def _json_body(source: Source, at: int, grammar: TagGrammar) -> _Body | None:
    """Arguments as one JSON object between the tags."""
    at = source.skip(BLANKS, at)
    if not source.text.startswith("{", at):
        return None
    end = source.value_end(at)
    stop, mark = source.first((*grammar.call_ends, *grammar.wrapper_ends), end or at)
    loaded = load(source.text[at : end or (stop if stop >= 0 else at)], repair=source)
    if loaded is None or not isinstance(loaded.value, dict) or (end is None and stop < 0):
        return None
    end = end if end is not None else stop
    between = source.text[end:stop] if stop >= 0 else "x"
    end = stop + (len(mark) if mark in grammar.call_ends else 0) if not between.strip() else end
    return _Body(loaded.value, list(loaded.repairs), end)


def _parameter_text(source: Source, at: int, grammar: TagGrammar) -> tuple[str | None, int, list[Repair]]:
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


def _closing(source: Source, at: int, grammar: TagGrammar) -> int:
    """Return the offset of a value's closing tag, -1 without one.

    A closing tag that no tag follows is data if a better one comes. A better one comes before any other tag of the
    call.
    """
    text, end = source.text, grammar.parameter_end
    first = close = source.find(end, at)
    while close >= 0 and not _tag_follows(source, close + len(end), grammar):
        following = source.find(end, close + 1)
        stop, _ = source.first((*grammar.call_ends, *grammar.wrapper_ends), close)
        if following < 0 or 0 <= stop < following or grammar.parameter.search(text, close, following):
            return first
        close = following
    return close


def _tag_follows(source: Source, at: int, grammar: TagGrammar) -> bool:
    """True if a tag of the call, or the end of the text, follows after blanks."""
    text, at = source.text, source.skip(BLANKS, at)
    if at == len(text) or text.startswith((grammar.parameter_end, *grammar.call_ends, *grammar.wrapper_ends), at):
        return True
    return grammar.parameter.match(text, at) is not None or grammar.call.match(text, at) is not None


def _breach(source: Source, at: int, end: int, grammar: TagGrammar) -> int | None:
    """Return the offset, before `end`, of another parameter or call on its own line: it is not part of the value."""
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


_QUOTED_NAME = r"""\s{1,8}name\s{0,4}=\s{0,4}["']?(?P<name>[^"'>\n]{1,200})["']?[^>\n]{0,200}>"""


def _function_grammar(wrapper: str, wrapper_end: str) -> TagGrammar:
    """`<function=NAME>` with `<parameter=KEY>VALUE</parameter>` in it; or one JSON object, as Llama and Functionary."""
    return TagGrammar(
        call=re.compile(rf"(?:{wrapper}\s{{0,64}}<|<)function=(?P<name>[^>\n<]{{1,200}})>"),
        call_ends=("</function>",),
        parameter=re.compile(r"<parameter=(?P<key>[^>\n]{1,200})>"),
        parameter_end="</parameter>",
        wrapper_ends=(wrapper_end,),
        escaped=True,
        json_body=True,
    )


def _invoke_grammar(prefix: str, wrapper: str, wrapper_ends: tuple[str, ...], **options: bool | str) -> TagGrammar:
    """`<invoke name="NAME">` with `<parameter name="KEY">VALUE</parameter>` in it, all tags with a prefix."""
    mark = re.escape(prefix)
    return TagGrammar(
        call=re.compile(rf"(?:{wrapper}\s{{0,64}}<|<){mark}invoke{_QUOTED_NAME}"),
        call_ends=(f"</{prefix}invoke>",),
        parameter=re.compile(
            rf"""<{mark}parameter\s{{1,8}}name\s{{0,4}}=\s{{0,4}}["']?(?P<key>[^"'>\n]{{1,200}})["']?"""
            r"""(?:\s{1,8}string\s{0,4}=\s{0,4}["']?(?P<string>true|false)["']?)?[^>\n]{0,200}>"""
        ),
        parameter_end=f"</{prefix}parameter>",
        wrapper_ends=wrapper_ends,
        **options,  # type: ignore[arg-type]
    )


_STEP_WRAPPER = (
    r"(?:<｜tool_calls_begin｜>\s{0,8})?(?:<｜tool_sep｜>\s{0,8})?<｜tool_call_begin｜>\s{0,8}"
    r"(?:function\s{0,8}<｜tool_sep｜>)?"
)
# Tokenizers that print a blank as "Ġ", or swallow it, leave these tags.
_GAP = r"[\sĠ]{0,8}"
MUSE_INVOKE = _invoke_grammar("atem:", r"<atem:function_calls>", ("</atem:function_calls>",))
MUSE_GLIMMER = _invoke_grammar("atem:", r"<atem:function_calls>", ("</atem:function_calls>",), declared=False)

_GRAMMARS: tuple[tuple[str, tuple[str, ...], TagGrammar], ...] = (
    ("seed_oss", ("<seed:tool_call>",), _function_grammar("<seed:tool_call>", "</seed:tool_call>")),
    ("qwen3_coder", ("<function=",), _function_grammar("<tool_call>", "</tool_call>")),
    (
        "minimax_m2",
        ("<minimax:tool_call>",),
        _invoke_grammar("", "<minimax:tool_call>", ("</minimax:tool_call>",), escaped=True, untyped="scalars"),
    ),
    (
        "deepseek_dsml",
        ("<｜DSML｜",),
        _invoke_grammar(
            "｜DSML｜",
            "<｜DSML｜(?:function_calls|tool_calls)>",
            ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        ),
    ),
    ("step3", ("<steptml:invoke",), _invoke_grammar("steptml:", _STEP_WRAPPER, ("<｜tool_call_end｜>",))),
    ("muse", ("<atem:invoke",), MUSE_INVOKE),
    ("invoke", ("<invoke",), _invoke_grammar("antml:", "<function_calls>", ("</function_calls>",))),
    ("invoke", ("<invoke",), _invoke_grammar("", "<(?:function_calls|tool_calls?)>", ("</function_calls>",))),
    (
        "minicpm_xml",
        ("<function name=", "<functionname=", "<functionĠname="),
        TagGrammar(
            call=re.compile(rf"""<function{_GAP}name=["'](?P<name>[^"'>\n]{{1,200}})["']\s{{0,8}}>"""),
            call_ends=("</function>",),
            parameter=re.compile(rf"""<param(?:eter)?{_GAP}name=["'](?P<key>[^"'>\n]{{1,200}})["']\s{{0,8}}>"""),
            parameter_end="</param>",
            escaped=True,
            unique=True,
            known_only=True,
        ),
    ),
)

TAG_FAMILIES = tuple(
    Form(family, markers, partial(read_tagged_calls, grammar=grammar)) for family, markers, grammar in _GRAMMARS
)


# Tags may carry a namespace before the name ("ifm|") or a checkpoint's suffix after it ("tool_call:6124c78e").
_OPEN = re.compile(
    r"(?:<(?:ifm\|)?tool_calls(?::\w{1,32})?>\s{0,16}<|<)"
    r"(?P<space>ifm\|)?tool_call(?P<suffix>:\w{1,32})?>\s{0,16}(?P<name>[^\W\d][\w.:/-]{0,199})\s{0,16}"
    r"(?:<(?:ifm\|)?tool_sep(?::\w{1,32})?>\s{0,16})?(?=<(?P<bare>/)?(?:ifm\|)?(?:arg_key|tool_call))"
)
_KEY = "arg_key"


def read_arg_pairs(source: Source, toolbox: OfferedNames) -> Found:
    """One block a call; a name alone between the tags is a call without arguments, if there is such a tool."""
    blocks: list[Block] = []
    at = 0
    while opening := _OPEN.search(source.text, at):
        at = opening.end()
        name = toolbox.resolve(opening["name"])
        if opening["bare"] and toolbox and name not in toolbox:
            continue
        blocks.append(_call(source, opening, name, toolbox))
        at = max(at, blocks[-1].end)
    return Found(tuple(blocks))


def _call(source: Source, opening: re.Match[str], name: str, toolbox: OfferedNames) -> Block:
    text, space, suffix = source.text, opening["space"] or "", opening["suffix"] or ""
    arguments = Pairs()
    repairs: list[Repair] = []
    at = opening.end()
    while True:
        at = source.skip(BLANKS, at)
        key, after = _key(source, at, f"{space}arg_key{suffix}", f"<{space}arg_value{suffix}>", repairs)
        if key is None:
            break
        kind, after = _element(source, after, f"{space}arg_type{suffix}")
        value, at = _element(source, after, f"{space}arg_value{suffix}")
        if value is None:
            return Block(opening.start(), len(text), broken="the call is not finished")
        arguments.put(key.strip(), _typed(value, key.strip(), kind, name, toolbox))
    closing = f"</{space}tool_call{suffix}>"
    if not text.startswith(closing, at):
        return Block(opening.start(), max(at, opening.end()), broken="the call is not finished")
    call = ToolCall(name, arguments, server_name=toolbox.server(name), text=text[opening.end() : at])
    return Block(opening.start(), at + len(closing), (call,), tuple(repairs))


def _key(source: Source, at: int, tag: str, value_tag: str, repairs: list[Repair]) -> tuple[str | None, int]:
    """The key's name; one whose closing tag is missing ends where its value begins."""
    if not source.text.startswith(f"<{tag}>", at):
        return None, at
    begin = at + len(tag) + 2
    end, value = source.find(f"</{tag}>", begin), source.find(value_tag, begin)
    if 0 <= value < end or end < 0 <= value:
        repairs.append(Repair("tag_unclosed", "arguments"))
        return source.text[begin:value], value
    return _element(source, at, tag)


def _element(source: Source, at: int, tag: str) -> tuple[str | None, int]:
    """The text of `<tag>…</tag>` after blanks at `at`, and where it ends; (None, at) if it is not there."""
    begin = source.skip(BLANKS, at)
    if not source.text.startswith(f"<{tag}>", begin):
        return None, at
    begin += len(tag) + 2
    first = end = source.find(f"</{tag}>", begin)
    while end >= 0 and not source.text.startswith("<", source.skip(BLANKS, end + len(tag) + 3)):
        # What no tag follows is data, if a better closing comes before the next key.
        end = source.find(f"</{tag}>", end + 1)
        key = source.find(_KEY, first)
        if end < 0 or 0 <= key < end:
            end = first
            break
    return (None, at) if end < 0 else (source.text[begin:end], end + len(tag) + 3)


def _typed(value: str, key: str, kind: str | None, name: str, toolbox: OfferedNames) -> object:
    schema = toolbox.properties(name).get(key)
    if schema is None and kind is not None:
        return value if kind.strip() == "string" else json_or_text(value)
    return typed(trim_value(value), schema, toolbox.schema(name))


ARG_PAIRS = (Form("glm45_xml", ("<tool_call", "<ifm|tool_call>"), read_arg_pairs),)


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


def read_minimax_m3(source: Source, toolbox: OfferedNames) -> Found:
    text, at = source.text, 0
    blocks: list[Block] = []
    stack: list[_Node] = []
    start, call_start = -1, 0  # where the last <tool_call>, which is optional, and the last call begin
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
            call_start = start if start > (blocks[-1].end if blocks else -1) else tag.start()
        elif tag["name"] == "invoke" and tag["close"] and len(stack) == 1:
            root = toolbox.schema(name)
            arguments = {
                child.name: _node_value(child, toolbox.properties(name).get(child.name), root)
                for child in stack[0].children
            }
            blocks.append(Block(call_start, tag.end(), (ToolCall(name, arguments, server_name=toolbox.server(name)),)))
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


def _node_value(node: _Node, schema: Any, root: Mapping[str, Any]) -> Any:
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
        return [_node_value(child, member.get("items"), root) for child in node.children]
    members = _member(schema, "object")
    properties = members.get("properties")
    found: dict[str, list[Any]] = {}
    for child in node.children:
        declared = properties.get(child.name) if isinstance(properties, Mapping) else None
        value = _node_value(child, declared if declared is not None else members.get("additionalProperties"), root)
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
