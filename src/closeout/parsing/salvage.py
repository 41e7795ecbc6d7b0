"""`salvage` finds calls in a reply in which the dialect in use found none.

Structure and the tools' policies decide which of them may run, never the words around them: see `AMID_TEXT`. The rules
are in docs/design/tool-call-forms.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from closeout.messages import Defect, Repair, ToolCall, ToolSpec
from closeout.parsing.forms import Block, Form, Found, OfferedNames, ToolCallsRead
from closeout.parsing.forms.json_values import Source
from closeout.parsing.forms.reader import (
    FormDetector,
    defect_of,
    detect_forms,
    is_markdown_escaped,
    markdown_unescaped,
    not_nested,
)
from closeout.parsing.forms.unmarked import UNMARKED
from closeout.parsing.reasoning import plain_content, split_reasoning

__all__ = ["AMID_TEXT", "begins_quotation", "only_ends", "salvage"]

AMID_TEXT = Defect("call_amid_text", "Your reply holds a call amid text. Send only the call to make it.", refuses=True)
"""The defect of a call that the reply may only quote. A read-only tool may still run."""

_BETWEEN = 400  # characters between two calls
_CONTEXT = 8 * _BETWEEN  # characters before a call in which an answer or an invented result is searched
_SHOWN = 80  # characters of a call in its repair

_THOUGHT = re.compile(r"[\s*#]*thought[ \t]*\d*[ \t]*\**[:：]", re.IGNORECASE)
_ANSWERED = re.compile(r"^\s*[*#]*\s*final\s*answer\s*\**\s*[:：]|\\boxed\s*\{|<answer>", re.IGNORECASE | re.MULTILINE)
# After a call: closing marks, or a result that the model invented (untrusted, not part of the call).
_TAIL = re.compile(
    r"(?:\s|(?:\]<\]minimax\[>\[)?</[\w:|-]{1,40}>|<\|close\|>\w{1,20}|<[|｜][^<>\n]{1,40}[|｜]>|\[/?[A-Z_]{3,20}\]|```)*+\Z"
)
_INVENTED = re.compile(
    r"\s*+(?:\**observation\**\s*\d*\s*[:：]|<tool_response>|<tool_result>|<function_results?>|<result>)", re.IGNORECASE
)
_FENCE = re.compile(r"^[ \t]{0,8}(```+|~~~+)[^\n`]{0,40}$", re.MULTILINE)
_PLACEHOLDER = re.compile(
    r"\s*(?:\.{2,}|…+|<[\w\s./|-]{1,60}>|\{[\w\s.]{0,60}\}|\[[A-Z][\w\s]{1,60}\]|your[ _-][\w -]{1,60}|xxx+"
    r"|string|todo|placeholder)\s*\Z",
    re.IGNORECASE,
)
_LINE = re.compile(r"^", re.MULTILINE)
_QUOTES = "`\"'“‘«「『"
_LISTED = re.compile(r"[ \t]*(?:[-*+•|>]|\d+[.)])")


def salvage(
    text: str,
    reasoning: str = "",
    tools: Iterable[ToolSpec | Mapping[str, Any]] | None = None,
    *,
    truncated: bool = False,
    forms: Sequence[Form] = (),
) -> ToolCallsRead | None:
    """Find calls in a reply in which the dialect in use found none and which is not an answer.

    Args:
        text: The reply.
        reasoning: The reply's reasoning, searched only if the text is empty.
        tools: The offered tools. A call of any other name refuses the whole reply.
        truncated: The reply was cut off (`finish_reason` "length"): only calls that are complete as they are count,
            and none of a destructive tool.
        forms: Forms of the user's own.

    Returns:
        The calls, under the tools' own names; `repairs` name the form (`dialect:hermes`) and every repair. No calls but
        a defect if the call ends the reply and cannot be read, or ("call_amid_text") if the reply has other text than
        reasoning, and not all tools only read. None if the text holds no call, or one that must not run: beside a final
        answer, or after a tool result that the model invented.
    """
    toolbox = OfferedNames(tools)
    if not toolbox:
        return None
    thinking = split_reasoning(text)
    said, thought = plain_content(thinking.content), "\n".join(filter(None, (reasoning, thinking.reasoning)))
    if said:
        reply = thinking.content
        if "\\" in reply and is_markdown_escaped(reply, toolbox):
            reply = markdown_unescaped(reply)
        search = _Search(toolbox, truncated, forms, bare=True)
        return search.search(reply, "reply", thought) or search.unreadable(reply)
    return _Search(toolbox, truncated, forms, bare=False).search(thought, "reasoning", "") if thought else None


@dataclass(frozen=True, slots=True)
class _Search:
    """The rules by which a call in a text is meant as one."""

    toolbox: OfferedNames
    truncated: bool
    forms: Sequence[Form]
    bare: bool  # accept forms without a mark

    def search(self, text: str, where: str, reasoning: str) -> ToolCallsRead | None:
        """The first reading of a region of the text in which every rule holds for every call."""
        for before, region, whole, fenced in _regions(text):
            for form, found in self._readings(region, self.bare and not whole):
                if any(block.refuses for block in found.blocks):
                    return None
                if not found.calls or (whole and not _outside_fences(text, found)):
                    continue
                calls = self._accepted(form, found, before, region)
                names = [call.name for call, _ in calls or ()]
                if calls is None or (fenced and any(map(self.toolbox.destructive, names))):
                    continue
                if not all(map(self.toolbox.only_reads, names)) and not _is_alone(form, found, before, region):
                    return ToolCallsRead(defects=(AMID_TEXT,))
                first = next(block.start for block in found.blocks if block.calls)
                family = found.family or form.family
                content = plain_content(before + region[:first])
                mark = Repair(
                    f"dialect:{family}", where, region[first : first + _SHOWN].strip(), after=calls[0][0].name
                )
                return ToolCallsRead(
                    tuple(call for call, _ in calls),
                    content if found.content is None else plain_content(found.content),
                    reasoning or (found.reasoning if form.channels else ""),
                    (
                        mark,
                        *(repair for _, named in calls for repair in named),
                        *(repair for block in found.blocks for repair in block.repairs),
                    ),
                    family,
                )
        return None

    def unreadable(self, reply: str) -> ToolCallsRead | None:
        """The defect of a call of an offered tool that ends the reply and cannot be read, or None."""
        text = reply.strip()
        last = [form.find(Source(text), self.toolbox).blocks[-1:] for form in detect_forms(text, self.forms)]
        if text[:1] == "{" and Source(text).value_end(0) is None:
            last.append((Block(0, len(text), broken="it breaks off"),))
        for block in chain.from_iterable(last):
            said = text[: block.start]
            detector = FormDetector(self.forms)
            detector.feed(text[block.start :])
            quoted = (
                begins_quotation(said.rpartition("\n")[2]) or len(_FENCE.findall(said)) % 2 or _ANSWERED.search(said)
            )
            offered = detector.name and self.toolbox.find(detector.name)
            if block.broken and offered and not quoted and only_ends(text[block.end :]):
                return ToolCallsRead(defects=(defect_of(block),))
        return None

    def _readings(self, region: str, bare: bool) -> list[tuple[Form, Found]]:
        readings: list[tuple[tuple[Form, Found], tuple[Block, ...]]] = []
        for form in [*detect_forms(region, self.forms), *([UNMARKED] if bare else [])]:
            found = form.find(Source(region), self.toolbox)
            readings.append(((form, found), found.blocks))
        return not_nested(readings)

    def _accepted(
        self, form: Form, found: Found, before: str, region: str
    ) -> list[tuple[ToolCall, tuple[Repair, ...]]] | None:
        """The calls under their tools' names, None if a rule does not hold for one of them."""
        blocks = [block for block in found.blocks if block.calls]
        start, end = blocks[0].start, blocks[-1].end
        context = (before + region[:start])[-_CONTEXT:]
        marked = form is not UNMARKED
        if _ANSWERED.search(context) or not _ends_there(region, blocks, end) or _invented_before(context):
            return None
        line = context.rpartition("\n")[2]
        if not form.channels and (begins_quotation(line) or (line.strip() and not marked)):
            return None
        if self.truncated and any(block.repairs or not _complete(block) for block in blocks):
            return None
        resolved = [self._resolved(call, marked) for block in blocks for call in block.calls]
        if not all(resolved):
            return None
        accepted = [pair for pair in resolved if pair]
        if any(self.toolbox.destructive(call.name) for call, _ in accepted) and (not marked or self.truncated):
            return None
        return accepted

    def _resolved(self, call: ToolCall, marked: bool) -> tuple[ToolCall, tuple[Repair, ...]] | None:
        if not isinstance(call.arguments, Mapping) or any(map(_is_placeholder, call.arguments.values())):
            return None
        name = self.toolbox.find(call.name)
        if name is None or not (marked or self.toolbox.fits(name, call.arguments)):
            return None
        repairs = () if name == call.name else (Repair("tool_name", "name", call.name[:_SHOWN], after=name),)
        return replace(call, name=name, server_name=self.toolbox.server(name, call.server_name)), repairs


def _is_alone(form: Form, found: Found, before: str, region: str) -> bool:
    """True if a reply holds nothing but calls and reasoning, which `Thought:` begins in ReAct."""
    blocks = [block for block in found.blocks if block.calls]
    said = found.content if form.channels and found.content is not None else before + region[: blocks[0].start]
    if form.family == "react" and _THOUGHT.match(said):
        said = ""
    if any(repair.kind == "surrounding_text" for block in blocks for repair in block.repairs):
        return False  # A form whose calls have no end takes the text after one for a part of it.
    between = (region[a.end : b.start].strip(" \t\r\n,;") for a, b in pairwise(blocks))
    return (
        not plain_content(said) and _TAIL.match(region, blocks[-1].end) is not None and all(map(_TAIL.match, between))
    )


def begins_quotation(line: str) -> bool:
    """Return whether a call after this part of its line is quoted, or an item of a list or table."""
    return bool(line.strip()) and (line.rstrip().endswith(tuple(_QUOTES)) or _LISTED.match(line) is not None)


def only_ends(tail: str) -> bool:
    """Return whether nothing follows a call but closing marks, or a result that the model invented."""
    return _TAIL.match(tail) is not None or _INVENTED.match(_without_marks(tail)) is not None


def _invented_before(context: str) -> bool:
    """True if the model wrote a tool result before the call; what follows it builds on what did not happen."""
    return any(_INVENTED.match(context, line.start()) for line in _LINE.finditer(context))


def _regions(text: str) -> Iterator[tuple[str, str, bool, bool]]:
    """(the text before, where to look, whether that is all of a text with code fences, whether it is inside a fence).

    Of a text with fences: all of it, for calls outside them; then the last fence, if it ends the text, from inside and
    as a whole (it may itself say that it holds a call); else the text after the last fence.
    """
    fences = list(_FENCE.finditer(text))
    yield "", text, bool(fences), False
    if not fences:
        return
    closed = len(fences) % 2 == 0
    opening = fences[-2] if closed else fences[-1]
    if closed and text[fences[-1].end() :].strip():
        yield text[: fences[-1].end()], text[fences[-1].end() :], False, False
        return
    inside = text[opening.end() : fences[-1].start()] if closed else text[opening.end() :]
    yield text[: opening.start()], inside, False, True
    yield text[: opening.start()], text[opening.start() :], False, False


def _outside_fences(text: str, found: Found) -> bool:
    """True if the first call begins where no fence is open."""
    start = next(block.start for block in found.blocks if block.calls)
    return sum(1 for _ in _FENCE.finditer(text, 0, start)) % 2 == 0


def _ends_there(region: str, blocks: list[Block], end: int) -> bool:
    """True if nothing follows the last call, and little is between calls; an invented result ends the text as well."""
    return only_ends(region[end:]) and all(b.start - a.end <= _BETWEEN for a, b in pairwise(blocks))


def _without_marks(tail: str) -> str:
    return re.sub(r"\A(?:\s|</[\w:|-]{1,40}>|<[|｜][^<>\n]{1,40}[|｜]>)*+", "", tail[: 4 * _BETWEEN])


def _complete(block: Block) -> bool:
    """True if a cut-off reply shows the end of the call: JSON or a closing tag, not the last words of a line."""
    return all(not call.text or call.text.rstrip()[-1:] in tuple("}])>`") for call in block.calls)


def _is_placeholder(value: Any) -> bool:
    return value is ... or (isinstance(value, str) and _PLACEHOLDER.match(value) is not None)
