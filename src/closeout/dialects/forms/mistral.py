"""Mistral: `[TOOL_CALLS]` in front of a JSON list (old), or of `name{…}` or `name[ARGS]{…}`, also repeated (new)."""

from __future__ import annotations

import re

from closeout.dialects.forms.json_text import calls_in, load, make_call, value_end
from closeout.dialects.forms.records import Block, Form, Found
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox

__all__ = ["MISTRAL"]

_MARK = "[TOOL_CALLS]"
_NAMED = re.compile(
    r"\s{0,8}(?P<name>[\w.:/-]{1,200})\s{0,8}(?:\[CALL_ID\]\s{0,4}(?P<id>\w{1,64})\s{0,4})?(?:\[ARGS\])?\s{0,8}(?=\{)"
)
_BLANK = re.compile(r"\s*+")
_LIST = re.compile(r"\[\s{0,64}\{")
_UNREADABLE = "the JSON in the call cannot be read"


def read_mistral(source: Source, toolbox: Toolbox) -> Found:
    blocks: list[Block] = []
    at = source.find(_MARK, 0)
    while at >= 0:
        found = _named(source, toolbox, at) or _listed(source, toolbox, at)
        blocks += found
        at = source.find(_MARK, max(at + len(_MARK), found[-1].end if found else 0))
    return Found(tuple(blocks))


def _named(source: Source, toolbox: Toolbox, start: int) -> list[Block]:
    """Calls with the name in front of the arguments, as many as follow each other."""
    blocks: list[Block] = []
    at = start + len(_MARK)
    while head := _NAMED.match(source.text, at):
        end = value_end(source, head.end())
        loaded = load(source.text[head.end() : end], mend=source) if end else None
        raw = source.text[head.end() : end]
        call = make_call(head["name"], loaded.value, toolbox, head["id"] or "", raw) if loaded else None
        if call is None or end is None:
            return [*blocks, Block(start, end or len(source.text), broken=_UNREADABLE)]
        blocks.append(Block(start, end, (call,), loaded.repairs if loaded else ()))
        at = start = end
    return blocks


def _listed(source: Source, toolbox: Toolbox, start: int) -> list[Block]:
    """Calls as JSON; words between the mark and a list of objects are passed over."""
    text = source.text
    blank = _BLANK.match(text, start + len(_MARK))
    at = blank.end() if blank else start
    if text[at : at + 1] not in ("[", "{"):
        following = source.find(_MARK, at)
        junk = _LIST.search(text, at, following if following >= 0 else len(text))
        if junk is None:
            return []
        at = junk.start()
    end = value_end(source, at)
    loaded = load(text[at:end], mend=source) if end else None
    calls = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs)) if loaded else []
    if not calls:
        return [Block(start, end or len(text), broken=_UNREADABLE)]
    return [Block(start, end or len(text), tuple(calls), loaded.repairs if loaded else ())]


MISTRAL = (Form("mistral", (_MARK,), read_mistral),)
