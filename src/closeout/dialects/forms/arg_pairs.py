"""GLM's form and its kin: a name, then pairs of key and value tags (Poolside, Ling, Spark, Hunyuan v3, K2 Horizon)."""

from __future__ import annotations

import re

from closeout.dialects.forms.json_text import load
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.tags import trim_value
from closeout.dialects.forms.toolbox import Toolbox
from closeout.dialects.forms.values import typed
from closeout.messages import Repair, ToolCall

__all__ = ["ARG_PAIRS"]

# Tags may carry a namespace in front ("ifm|") or a checkpoint's suffix behind ("tool_call:6124c78e").
_OPEN = re.compile(
    r"(?:<(?:ifm\|)?tool_calls(?::\w{1,32})?>\s{0,16})?"
    r"<(?P<space>ifm\|)?tool_call(?P<suffix>:\w{1,32})?>\s{0,16}(?P<name>[^\W\d][\w.:/-]{0,199})\s{0,16}"
    r"(?:<(?:ifm\|)?tool_sep(?::\w{1,32})?>\s{0,16})?(?=<(?P<bare>/)?(?:ifm\|)?(?:arg_key|tool_call))"
)
_BLANK = re.compile(r"\s*+")
_KEY = "arg_key"


def read_arg_pairs(source: Source, toolbox: Toolbox) -> Found:
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


def _call(source: Source, opening: re.Match[str], name: str, toolbox: Toolbox) -> Block:
    text, space, suffix = source.text, opening["space"] or "", opening["suffix"] or ""
    arguments: dict[str, object] = {}
    repairs: list[Repair] = []
    at = opening.end()
    while True:
        at = _blank(text, at)
        key, after = _key(source, at, f"{space}arg_key{suffix}", f"<{space}arg_value{suffix}>", repairs)
        if key is None:
            break
        kind, after = _element(source, after, f"{space}arg_type{suffix}")
        value, at = _element(source, after, f"{space}arg_value{suffix}")
        if value is None:
            return Block(opening.start(), len(text), broken="the call is not finished")
        arguments[key.strip()] = _typed(value, key.strip(), kind, name, toolbox)
    closing = f"</{space}tool_call{suffix}>"
    if not text.startswith(closing, at):
        return Block(opening.start(), max(at, opening.end()), broken="the call is not finished")
    call = ToolCall(name, arguments, "", toolbox.server(name), text[opening.end() : at])
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


def _blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _element(source: Source, at: int, tag: str) -> tuple[str | None, int]:
    """The text of `<tag>…</tag>` behind blanks at `at`, and where it ends; (None, at) if it is not there."""
    begin = _blank(source.text, at)
    if not source.text.startswith(f"<{tag}>", begin):
        return None, at
    begin += len(tag) + 2
    first = end = source.find(f"</{tag}>", begin)
    while end >= 0 and not source.text.startswith("<", _blank(source.text, end + len(tag) + 3)):
        # What no tag follows is data, if a better closing comes before the next key.
        end = source.find(f"</{tag}>", end + 1)
        key = source.find(_KEY, first)
        if end < 0 or 0 <= key < end:
            end = first
            break
    return (None, at) if end < 0 else (source.text[begin:end], end + len(tag) + 3)


def _typed(value: str, key: str, kind: str | None, name: str, toolbox: Toolbox) -> object:
    schema = toolbox.properties(name).get(key)
    if schema is None and kind is not None:
        loaded = None if kind.strip() == "string" else load(value)
        return loaded.value if loaded else value
    return typed(trim_value(value), schema, toolbox.schema(name))


ARG_PAIRS = (Form("glm45_xml", ("<tool_call", "<ifm|tool_call>"), read_arg_pairs),)
