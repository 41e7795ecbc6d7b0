"""Calls between control tokens, the name apart from the JSON arguments: DeepSeek V3, V3.1 and R1, Kimi K2, Solar."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from closeout.dialects.forms.json_text import load, make_call, value_end
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox

__all__ = ["TOKEN_CALLS"]

_KIMI_ID = re.compile(r"(?:functions?\.)?(?P<name>[^\s:]{1,200})(?::(?P<index>\d{1,9}))?\Z")
_FENCE = re.compile(r"\s{0,16}(?:```[\w-]{0,16}\s{0,16})?")
_FENCE_END = re.compile(r"\s{0,16}(?:```)?\s{0,16}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """`head` matches a call from its opening token to its arguments; `name_and_id` takes both from the match."""

    section: re.Pattern[str]
    head: re.Pattern[str]
    end: re.Pattern[str]
    name_and_id: Callable[[re.Match[str]], tuple[str, str]]


def read_token_calls(source: Source, toolbox: Toolbox, tokens: Tokens) -> Found:
    """One block a call, the first from the section's opening token on. What cannot be read is control text: hidden."""
    text = source.text
    blocks: list[Block] = []
    section = tokens.section.search(text)
    start = section.start() if section else None
    at = section.end() if section else 0
    while head := tokens.head.search(text, at):
        block = _call(source, head, start if start is not None else head.start(), toolbox, tokens)
        blocks.append(block)
        at, start = max(block.end, head.end()), None
    if not blocks and section:
        blocks.append(Block(section.start(), len(text), broken="the call is not finished", hidden=True))
    return Found(tuple(blocks))


def _call(source: Source, head: re.Match[str], start: int, toolbox: Toolbox, tokens: Tokens) -> Block:
    text = source.text
    name, identity = tokens.name_and_id(head)
    fence = _FENCE.match(text, head.end())
    at = fence.end() if fence else head.end()
    end = value_end(source, at) if text.startswith("{", at) else None
    closing = tokens.end.search(text, end or at)
    raw = text[at : end or (closing.start() if closing else len(text))]
    loaded = load(raw, mend=source if closing is not None else False) if raw.startswith("{") else None
    call = make_call(name, loaded.value, toolbox, identity, raw) if loaded else None
    if call is None and not raw.strip() and closing:
        call = make_call(name, {}, toolbox, identity)
    if call is None:
        stop = closing.end() if closing else len(text)
        return Block(start, stop, broken=f"the arguments of {name[:80]!r} cannot be read", hidden=True)
    tail = _FENCE_END.match(text, end) if end else None
    after = tail.end() if tail else end or 0
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


_TABLE = (
    Form(
        "kimi_k2",
        ("<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        partial(
            read_token_calls,
            tokens=Tokens(
                re.compile(r"<\|tool_calls?_section_begin\|>"),
                re.compile(r"<\|tool_call_begin\|>(?P<name>[^<]{1,300})<\|tool_call_argument_begin\|>"),
                re.compile(r"<\|tool_call_end\|>|<\|tool_calls?_section_end\|>|(?=<\|tool_call_begin\|>)"),
                _kimi,
            ),
        ),
    ),
    Form(
        "deepseek_v3",
        ("<｜tool", "<|tool▁", "<|tool calls", "<|tool_sep|>"),
        partial(
            read_token_calls,
            tokens=Tokens(
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
    ),
    Form(
        "solar",
        ("<|tool_call:begin|>",),
        partial(
            read_token_calls,
            tokens=Tokens(
                re.compile(r"<\|tool_calls?:begin\|>(?=\s{0,8}<\|tool_call:begin\|>)"),
                re.compile(
                    r"<\|tool_call:begin\|>(?P<id>[^<]{0,100})<\|tool_call:name\|>(?P<name>[^<]{1,200})<\|tool_call:args\|>"
                ),
                re.compile(r"<\|tool_call:end\|>|(?=<\|tool_call:begin\|>)"),
                _solar,
            ),
        ),
    ),
)
TOKEN_CALLS = _TABLE
