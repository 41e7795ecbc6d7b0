"""`read_tool_calls`: one reader for all forms. Chooses the form, keeps reasoning apart, puts the result together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from closeout.dialects.forms.reasoning import WRAPPER_TAGS, has_mark, plain_content, split_reasoning
from closeout.dialects.forms.records import Block, Form, Found, ToolCallsRead
from closeout.dialects.forms.source import Source
from closeout.dialects.forms.table import BARE, MARKED, WHOLE, forms_of
from closeout.dialects.forms.toolbox import HasSpec, Toolbox
from closeout.messages import Defect, Repair, ToolSpec

__all__ = ["detect_forms", "read_tool_calls"]

_MAX_CALLS = 1000  # in one reply; more is a model in a loop


def read_tool_calls(
    text: str | None,
    tools: Iterable[ToolSpec | HasSpec | Mapping[str, Any]] | None = None,
    family: str | None = None,
    *,
    split: bool = True,
    unfence: bool = False,
) -> ToolCallsRead:
    """The tool calls that a model wrote as text, in whatever form, and the text without them.

    `text` may be None, as a server's `content` may. `tools` (what `@tool` makes, ToolSpec, or dicts in the OpenAI
    shape) give the types of parameters that are written as plain text, and
    confirm names where a form has no mark of its own. `family` names the form: a family, a vLLM or SGLang parser, or
    a model; None, or a name that is not known, detects it by its marks. `split=False` leaves reasoning marks in the
    content, as servers do that were asked not to separate them; `unfence=True` takes content that is one code fence out
    of it, as servers do when the reply was asked for as JSON. Nothing is executed or evaluated, nothing is raised for
    any text, and the time is linear in its length.
    """
    read = _read_text(text or "", Toolbox(tools), family, split)
    return read._replace(content=plain_content(read.content, unfence=True)) if unfence else read


def _read_text(text: str, toolbox: Toolbox, family: str | None, split: bool) -> ToolCallsRead:
    forms = forms_of(family) if family else ()
    if forms:
        candidates = [form for form in forms if not form.markers or any(mark in text for mark in form.markers)]
        return _first_with_calls(candidates, text, toolbox, split)
    said = split_reasoning(text).content if split else text
    if said.lstrip()[:1] in ("{", "[", "`"):
        whole = _first_with_calls(WHOLE, text, toolbox, split)
        if whole.calls:
            return whole
    candidates = detect_forms(text)
    read = _first_with_calls(candidates, text, toolbox, split)
    if read.calls or read.defects:
        return read
    bare = _first_with_calls(BARE, text, toolbox, split)
    return bare if bare.calls else read


def detect_forms(text: str) -> list[Form]:
    """The forms whose marks occur in the text, in the order in which they do."""
    hits = []
    for rank, form in enumerate(MARKED):
        positions = [at for mark in form.markers if (at := text.find(mark)) >= 0]
        if positions:
            hits.append((min(positions), rank))
    return [MARKED[rank] for _, rank in sorted(hits)]


def _first_with_calls(forms: Iterable[Form], text: str, toolbox: Toolbox, split: bool) -> ToolCallsRead:
    """What the first form reads that finds a call; else of the first that found the ruin of one."""
    fallback: ToolCallsRead | None = None
    for form in forms:
        read = _read(form, text, toolbox, split)
        if read.calls:
            return read
        if form.channels:  # what is not a call there is said or thought
            return read
        fallback = fallback or (read if read.defects else None)
    if fallback is not None:
        return fallback
    thinking = split_reasoning(text) if split else None
    if thinking is None:
        return ToolCallsRead((), plain_content(text))
    return ToolCallsRead((), plain_content(thinking.content), thinking.reasoning)


def _read(form: Form, text: str, toolbox: Toolbox, split: bool) -> ToolCallsRead:
    if form.channels or not split:
        found = form.read(Source(text), toolbox)
        return _assembled(form, found, text, found.reasoning)
    thinking = split_reasoning(text)
    if thinking.content == text:
        return _assembled(form, form.read(Source(text), toolbox), text, "")
    whole = form.read(Source(text), toolbox)
    # A reasoning mark may be data inside a call, which then must not begin in reasoning itself.
    holding = [
        (block.start, block.end) for block in whole.blocks if block.calls and has_mark(text, block.start, block.end)
    ]
    if holding and split_reasoning(text[: holding[0][0]]).cut is None:
        thinking = split_reasoning(text, holding)
    found = form.read(Source(thinking.content), toolbox)
    if not found.calls and thinking.cut is not None and whole.calls and not text[whole.blocks[-1].end :].strip():
        # A call ends reasoning that nothing else ends.
        first = next(block.start for block in whole.blocks if block.calls)
        if first > thinking.cut:
            before = split_reasoning(text[:first])
            return _assembled(form, whole, before.content, before.reasoning, cut=True)
    return _assembled(form, found, thinking.content, thinking.reasoning)


def _assembled(form: Form, found: Found, text: str, reasoning: str, cut: bool = False) -> ToolCallsRead:
    """`text` is what the blocks' positions are in; with `cut` it is already the text in front of the first."""
    calls = found.calls[:_MAX_CALLS]
    repairs: list[Repair] = [repair for block in found.blocks for repair in block.repairs]
    defects = tuple(
        Defect("broken_call", f"The tool call cannot be read: {block.broken}.", (block.start, block.end))
        for block in found.blocks
        if block.broken
    )
    content = found.content if found.content is not None else text if cut else _outside(text, found.blocks, form)
    if reasoning and found.reasoning and reasoning != found.reasoning:
        reasoning = f"{reasoning}\n{found.reasoning}"
    said = plain_content(content)
    if calls:
        said = next((said[len(opener) :].lstrip() for opener in WRAPPER_TAGS if said.startswith(opener)), said)
    return ToolCallsRead(
        calls,
        said,
        reasoning or found.reasoning,
        tuple(repairs),
        form.family if calls else "",
        defects,
    )


def _outside(text: str, blocks: tuple[Block, ...], form: Form) -> str:
    """The text in front of the first call; behind it only where the form means that. Broken calls stay readable."""
    first = next((block.start for block in blocks if block.calls), None)
    if first is not None and not form.keeps_tail:
        hidden = next((block.start for block in blocks if block.hidden), first)
        return text[: min(first, hidden)]
    kept, at = [], 0
    for block in blocks:
        if block.calls or block.hidden:
            kept.append(text[at : block.start])
            at = max(at, block.end)
    return "".join([*kept, text[at:]])
