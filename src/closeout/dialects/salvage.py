"""`salvage`: calls that a model wrote where the dialect in use did not look. Judges what is meant; reads nothing.

The rules are in docs/design/tool-call-forms.md. They lean to the safe side: a call that is missed costs one more
request, prose that is run as a call does what nobody asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from closeout.dialects.forms import Block, Form, Found, Toolbox, ToolCallsRead
from closeout.dialects.forms.reader import detect_forms
from closeout.dialects.forms.reasoning import plain_content, split_reasoning
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.table import BARE, LAST
from closeout.dialects.intention import is_role, is_talk, last_sentence, speaks_of_calls, states_intention
from closeout.messages import Repair, ToolCall, ToolSpec
from closeout.repair.names import resolve_tool_name

__all__ = ["salvage"]

_CONTEXT = 400  # characters in front of a call in which its sentence is looked for
_SHOWN = 80  # characters of a call in its repair

_THOUGHT = re.compile(r"^[ \t*#]*thought[ \t]*\d*[ \t]*\**[:：]", re.IGNORECASE | re.MULTILINE)
_ANSWERED = re.compile(r"^\s*[*#]*\s*final\s*answer\s*\**\s*[:：]|\\boxed\s*\{|<answer>", re.IGNORECASE | re.MULTILINE)
# Behind a call: closing marks, or a result that the model invented (untrusted, not part of the call).
_TAIL = re.compile(
    r"(?:\s|(?:\]<\]minimax\[>\[)?</[\w:|-]{1,40}>|<\|close\|>\w{1,20}|<[|｜][^<>\n]{1,40}[|｜]>|\[/?[A-Z_]{3,20}\]|```)*+\Z"
)
_INVENTED = re.compile(
    r"\s*+(?:\**observation\**\s*\d*\s*[:：]|<tool_response>|<tool_result>|<function_results?>|<result>)", re.IGNORECASE
)
_FENCE = re.compile(r"^[ \t]{0,8}(```+|~~~+)[^\n`]{0,40}$", re.MULTILINE)
_QUOTES = "`\"'“‘«「『"
_LISTED = re.compile(r"[ \t]*(?:[-*+•|>]|\d+[.)])")
_PLACEHOLDER = re.compile(
    r"\s*(?:\.{2,}|…+|<[\w\s./|-]{1,60}>|\{[\w\s.]{0,60}\}|\[[A-Z][\w\s]{1,60}\]|your[ _-][\w -]{1,60}|xxx+"
    r"|string|todo|placeholder)\s*\Z",
    re.IGNORECASE,
)
_UNMARKED = ("json", "pythonic", "name_line")


def salvage(
    text: str,
    reasoning: str = "",
    tools: Iterable[ToolSpec | Mapping[str, Any]] | None = None,
    *,
    truncated: bool = False,
) -> ToolCallsRead | None:
    """Calls in a reply in which the dialect in use found none, or None if nothing there is meant as a call.

    For a `text` that is not an answer. `reasoning` is looked at only if the text is empty. `truncated` says that the
    reply was cut off (`finish_reason` "length"): then only calls that are complete as they stand count. Every call's
    name is a tool's afterwards, and `repairs` name the form it was found in (`dialect:hermes`) and what was put right.
    """
    specs = _specs(tools)
    if not specs:
        return None
    thinking = split_reasoning(text)
    said, thought = plain_content(thinking.content), "\n".join(filter(None, (reasoning, thinking.reasoning)))
    if said:
        return _salvaged(thinking.content, "reply", thought, specs, truncated, bare=True)
    return _salvaged(thought, "reasoning", "", specs, truncated, bare=False) if thought else None


def _specs(tools: Iterable[ToolSpec | Mapping[str, Any]] | None) -> list[ToolSpec]:
    specs: list[ToolSpec] = []
    for tool in tools or ():
        box = Toolbox([tool])
        specs += [tool] if isinstance(tool, ToolSpec) else [ToolSpec(n, "", box.schema(n), box.server(n)) for n in box]
    return specs


def _salvaged(
    text: str, where: str, reasoning: str, specs: list[ToolSpec], truncated: bool, bare: bool
) -> ToolCallsRead | None:
    toolbox = Toolbox(specs)
    for before, region, whole in _regions(text):
        for form, found in _readings(region, toolbox, bare and not whole):
            if whole and not _outside_fences(text, found):
                continue
            calls = _accepted(form, found, before, region, specs, truncated)
            if calls is None:
                continue
            first = next(block.start for block in found.blocks if block.calls)
            content = plain_content(before + region[:first])
            repairs = tuple(repair for _, named in calls for repair in named)
            mark = Repair(f"dialect:{form.family}", where, region[first : first + _SHOWN].strip(), calls[0][0].name)
            inner = tuple(repair for block in found.blocks for repair in block.repairs)
            named = found.reasoning if form.channels else ""
            return ToolCallsRead(
                tuple(call for call, _ in calls),
                content if found.content is None else plain_content(found.content),
                reasoning or named,
                (mark, *repairs, *inner),
                form.family,
            )
    return None


def _regions(text: str) -> Iterator[tuple[str, str, bool]]:
    """(what stands in front, where to look, whether that is all of a text with code fences).

    Of a text with fences: all of it, for calls outside them; then the last fence, if it ends the text, from inside and
    as a whole (it may itself say that it holds a call); else what stands behind the last fence.
    """
    fences = list(_FENCE.finditer(text))
    yield "", text, bool(fences)
    if not fences:
        return
    closed = len(fences) % 2 == 0
    opening = fences[-2] if closed else fences[-1]
    if closed and text[fences[-1].end() :].strip():
        yield text[: fences[-1].end()], text[fences[-1].end() :], False
        return
    yield text[: opening.start()], text[opening.end() : fences[-1].start()] if closed else text[opening.end() :], False
    yield text[: opening.start()], text[opening.start() :], False


def _outside_fences(text: str, found: Found) -> bool:
    """Whether the first call begins where no fence is open."""
    start = next(block.start for block in found.blocks if block.calls)
    return sum(1 for _ in _FENCE.finditer(text, 0, start)) % 2 == 0


def _readings(region: str, toolbox: Toolbox, bare: bool) -> Iterator[tuple[Form, Found]]:
    forms = [*detect_forms(region), *(BARE if bare else ()), *(LAST if bare else ())]
    for form in forms:
        found = form.read(Source(region), toolbox)
        if found.calls:
            yield form, found


def _accepted(
    form: Form, found: Found, before: str, region: str, specs: list[ToolSpec], truncated: bool
) -> list[tuple[ToolCall, tuple[Repair, ...]]] | None:
    """The calls with their tools' names, if every rule holds for every one of them; else None."""
    blocks = [block for block in found.blocks if block.calls]
    start, end = blocks[0].start, blocks[-1].end
    if _ANSWERED.search((before + region[:start])[-8 * _CONTEXT :]) or not _ends_there(region, blocks, end):
        return None
    if not form.channels and _is_talk(form, before, region, start):
        return None
    if truncated and any(block.repairs or not _complete(block) for block in blocks):
        return None
    resolved = [_resolved(call, form, specs) for block in blocks for call in block.calls]
    return [pair for pair in resolved if pair] if all(resolved) else None


def _ends_there(region: str, blocks: list[Block], end: int) -> bool:
    """Nothing behind the last call, between calls only blanks and marks; an invented result ends the text as well."""
    tail = region[end:]
    if not _TAIL.match(tail) and not _INVENTED.match(_without_marks(tail)):
        return False
    return all(b.start - a.end <= _CONTEXT for a, b in pairwise(blocks))


def _without_marks(tail: str) -> str:
    return re.sub(r"\A(?:\s|</[\w:|-]{1,40}>|<[|｜][^<>\n]{1,40}[|｜]>)*+", "", tail[: 4 * _CONTEXT])


def _is_talk(form: Form, before: str, region: str, start: int) -> bool:
    """Whether the call is quoted, an item of a list or table, or introduced as something other than a call."""
    line = region[max(0, start - _CONTEXT) : start].rpartition("\n")[2]
    if line.rstrip().endswith(tuple(_QUOTES)) or (line.strip() and _LISTED.match(line)):
        return True
    if form.family in _UNMARKED and line.strip():
        return True
    context = (before[-_CONTEXT:] + region[max(0, start - _CONTEXT) : start]).strip()
    if form.family == "react" and (thoughts := list(_THOUGHT.finditer(context))):
        thought, context = context[thoughts[-1].end() :], context[: thoughts[-1].start()].strip()
        if is_talk(last_sentence(thought)) and not states_intention(thought):
            return True
    if is_role(context):
        return False
    return speaks_of_calls(last_sentence(context), marked=form.family not in _UNMARKED)


def _complete(block: Block) -> bool:
    """Whether a cut-off reply shows the end of the call: JSON or a closing tag, not the last words of a line."""
    return all(not call.text or call.text.rstrip()[-1:] in tuple("}])>`") for call in block.calls)


def _resolved(call: ToolCall, form: Form, specs: list[ToolSpec]) -> tuple[ToolCall, tuple[Repair, ...]] | None:
    if not isinstance(call.arguments, Mapping) or any(map(_is_placeholder, call.arguments.values())):
        return None
    found = resolve_tool_name(call.name, specs, dict(call.arguments), call.server_name)
    if found.spec is None:
        return None
    if form.family in _UNMARKED and not _fits(call.arguments, found.spec):
        return None
    server = found.spec.server_name or call.server_name
    return replace(call, name=found.spec.name, server_name=server), found.repairs


def _is_placeholder(value: Any) -> bool:
    return value is ... or (isinstance(value, str) and _PLACEHOLDER.match(value) is not None)


def _fits(arguments: Mapping[str, Any], spec: ToolSpec) -> bool:
    """Whether the arguments name what the tool requires and nothing that it does not have."""
    required = spec.parameters.get("required")
    properties = spec.parameters.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    complete = all(key in arguments for key in required) if isinstance(required, list) else True
    return complete and (not known or all(key in known for key in arguments))
