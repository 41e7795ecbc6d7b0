"""Python-style calls as families mark them: LFM2, Llama 4, OLMo 3 between tokens, others as a bare list of calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from closeout.dialects.forms.json_text import calls_in, load, value_end
from closeout.dialects.forms.python_calls import CALL_START, read_calls
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.messages import ToolCall

__all__ = ["BARE_PYTHONIC", "LAST_LINE_PYTHONIC", "PYTHONIC", "STRICT_PYTHONIC", "WHOLE_PYTHONIC"]

_BLANK = re.compile(r"\s*+")
_LINE_CALL = re.compile(r"^[ \t]{0,16}(?P<name>[^\W\d][\w.-]{0,199})\s{0,4}\(", re.MULTILINE)
_LIST_START = re.compile(r"\[\s{0,64}" + CALL_START.pattern)


def read_marked(source: Source, toolbox: Toolbox, opener: str, closer: str) -> Found:
    """Calls behind the opening token, to its closing token or the end of the text; JSON is taken there too."""
    blocks: list[Block] = []
    at = source.find(opener, 0)
    while at >= 0:
        block = _behind(source, toolbox, at, at + len(opener), closer)
        blocks.append(block)
        at = source.find(opener, max(block.end, at + len(opener)))
    return Found(tuple(blocks))


def _behind(source: Source, toolbox: Toolbox, start: int, at: int, closer: str) -> Block:
    text = source.text
    blank = _BLANK.match(text, at)
    at = blank.end() if blank else at
    if text[at : at + 1] == "{" or (text[at : at + 1] == "[" and not _LIST_START.match(text, at)):
        end = value_end(source, at)
        loaded = load(text[at:end], mend=source) if end else None
        calls = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs)) if loaded else []
        repairs = list(loaded.repairs) if loaded else []
    else:
        read = read_calls(source, at, toolbox)
        calls, repairs, end = read or ([], [], None)
    stop = source.find(closer, end or at)
    if not calls or end is None or (stop >= 0 and text[end:stop].strip()):
        return Block(start, stop + len(closer) if stop >= 0 else len(text), broken="the calls cannot be read")
    return Block(start, stop + len(closer) if stop >= 0 else end, tuple(calls), tuple(repairs))


def read_bare(source: Source, toolbox: Toolbox, strict: bool = False) -> Found:
    """A list of calls anywhere in the text, or one call that is the whole text.

    `strict`: the text is nothing else, or the list stands on a line of its own and every name is a tool's.
    """
    whole = read_whole(source, toolbox)
    if whole.blocks:
        return whole
    blocks: list[Block] = []
    at = 0
    while not source.exhausted and (opening := _LIST_START.search(source.text, at)):
        at = opening.end()
        read = read_calls(source, opening.start(), toolbox)
        if read and (not strict or _stands_alone(source.text, opening.start(), read[2], read[0], toolbox)):
            blocks.append(Block(opening.start(), read[2], tuple(read[0]), tuple(read[1])))
            at = read[2]
    return Found(tuple(blocks))


def read_whole(source: Source, toolbox: Toolbox) -> Found:
    """A list of calls, or one call of a known tool, that is the whole text."""
    text = source.text.strip()
    if not CALL_START.match(text) and not _LIST_START.match(text):
        return Found()
    offset = len(source.text) - len(source.text.lstrip())
    read = read_calls(source, offset, toolbox)
    if read is None or source.text[read[2] :].strip():
        return Found()
    known = toolbox and all(call.name in toolbox for call in read[0])
    if not known and not text.startswith("["):
        return Found()
    return Found((Block(offset, len(source.text), tuple(read[0]), tuple(read[1])),))


def _stands_alone(text: str, start: int, end: int, calls: Sequence[ToolCall], toolbox: Toolbox) -> bool:
    line_start, line_end = text.rfind("\n", max(0, start - 64), start), text.find("\n", end, end + 64)
    before = text[line_start + 1 : start] if line_start >= 0 or start < 64 else "x"
    after = text[end : line_end if line_end >= 0 else end + 64]
    known = toolbox and all(call.name in toolbox for call in calls)
    return bool(known) and not before.strip() and not after.strip()


def read_last_line(source: Source, toolbox: Toolbox) -> Found:
    """Calls of known tools, one under the other, that begin a line and end the text."""
    if not toolbox:
        return Found()
    tried = 0  # calls under one another are one run: what ends it wrongly for the first does so for all
    for line in _LINE_CALL.finditer(source.text):
        if line.start() < tried or toolbox.resolve(line["name"]) not in toolbox:
            continue
        read = read_calls(source, line.start("name"), toolbox)
        tried = read[2] if read else tried
        if read and not source.text[read[2] :].strip() and all(call.name in toolbox for call in read[0]):
            return Found((Block(line.start(), len(source.text), tuple(read[0]), tuple(read[1])),))
    return Found()


def _marked(family: str, opener: str, closer: str, **options: bool) -> Form:
    return Form(family, (opener,), partial(read_marked, opener=opener, closer=closer), **options)


PYTHONIC = (
    _marked("lfm2_pythonic", "<|tool_call_start|>", "<|tool_call_end|>", keeps_tail=True),
    _marked("pythonic", "<|python_start|>", "<|python_end|>"),
    _marked("pythonic", "<function_calls>", "</function_calls>"),
)
BARE_PYTHONIC = Form("pythonic", (), read_bare)
STRICT_PYTHONIC = Form("pythonic", (), partial(read_bare, strict=True))
WHOLE_PYTHONIC = Form("pythonic", (), read_whole)
LAST_LINE_PYTHONIC = Form("pythonic", (), read_last_line)
