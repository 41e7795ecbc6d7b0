"""`salvage` finds calls in a reply in which the dialect in use found none.

It judges what is meant and leans to the safe side: a missed call costs one more request, prose run as a call does
what the user did not ask for. The rules are in docs/design/tool-call-forms.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from closeout.messages import Repair, ToolCall, ToolSpec
from closeout.parsing.forms import Block, Form, Found, Toolbox, ToolCallsRead
from closeout.parsing.forms.json_values import Source
from closeout.parsing.forms.reader import detect_forms, is_markdown_escaped, markdown_unescaped
from closeout.parsing.forms.unmarked import UNMARKED
from closeout.parsing.reasoning import plain_content, split_reasoning

__all__ = ["before_thought", "introduces_quotation", "salvage"]

# What speaks of calls in place of making one: examples, manuals, logs, refusals. Searched in the sentence before.
_TALK = re.compile(
    r"\b(?:examples?|e\.g|for instance|such as|like this|looks? like|syntax|format(?:s|ted)?|usage|template|schema"
    r"|documentation|docs|signature|would|could|might|should|can|cannot|can't|don't|do not|won't|will not|never|not"
    r"|without|instead of|if|unless|suppose|hypothetical\w*|imagine|tried|failed|earlier|previous(?:ly)?|used to"
    r"|how to|in order to use|you (?:need|must|have)|below|above|following|json|xml|(?:tool|function)[ -]calls?"
    r"|(?:the|a) (?:model|assistant|agent|user|log|trace|page|prompt|request|response|reply)|models|assistants|agents"
    r"|tags?|written|writes?|wrote|emits?|outputs?|says?|said|shows?|contains?|reads|illustrat\w+|samples?|snippets?"
    r"|(?:in)?valid|(?:a|the|this|that|each|every) call|calls are)\b"
    r"|调用|例如|比如|譬如|示例|例子|格式|语法|用法|如果|假如|可以|应该|不要|不会|不能|无法|之前|如下|方式|写法|返回",
    re.IGNORECASE,
)
# What the user must do first. Outweighs an intention: "Once you confirm, I'll search:".
_CONDITION = re.compile(
    r"\b(?:if|once|when(?:ever)?|unless|until|after|before|should|in case) (?:you|the user|this is|that is|it is|needed"
    r"|necessary)\b|\bsay (?:the word|yes)\b|如果|假如|一旦",
    re.IGNORECASE,
)
# An intention stated plainly outweighs a hedge in the same sentence: "I can't recall, so I will search:".
_INTENT = re.compile(
    r"(?:\b(?:I(?:['’]ll| will| should| must| need| have to| want to|['’]d like to|['’]m going to| am going to)"
    r"|we(?:['’]ll| will| should| must| need| have to)|let me|let['’]s"
    r"|(?:I|we)(?: am| are|['’]m|['’]re) (?:now )?\w+ing"
    r"|(?:I|we) (?:now |first |then )?(?:call|search|look|check|fetch|query|compute|calculate))\b"
    r"|我来|我将|我会|我要|我需要|我先|让我|让我们|正在)[^.!?。！？]*[.!。！…:：]*\Z",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    r"\A(?:(?:so|now|first|next|ok|okay|then)[, ]+)*(?:searching|looking|checking|calling|fetching|querying|retrieving"
    r"|computing|calculating|invoking)\b(?!.*\b(?:is|are|was|were|returns?|gives?|yields?|means?|requires?|takes?)\b)",
    re.IGNORECASE,
)
_HEDGE_AFTER_INTENT = re.compile(
    r"\b(?:show|explain|describe|illustrate|demonstrate|example|syntax|format|not|never)\b"
    r"|(?:['’]ll|will|let me|let['’]s|to) (?:now |just |also |first )?(?:write|give|provide|draft|present|suggest"
    r"|propose|recommend|quote|print|output|repeat|summari[sz]e|walk you)\b",
    re.IGNORECASE,
)
# What only the caller writes before a call: a label, the next step, "here is the call".
_ANNOUNCED = re.compile(
    r"\bhere(?: is|['’]s) (?:the|my|a|an)?\s*(?:\w+ ){0,3}?(?:call|request|query|action|command)\b"
    r"(?! (?:you|i|we|that)\b)"
    r"|\A[*#\s]*(?:(?:tool|function|mcp|api)[ _-]?(?:call|use|request|invocation)s?[*\s]*[:：]?[*\s]*\Z|action[*\s]*:)"
    r"|\b(?:the|my|our) (?:next|first|second|third|last) (?:step|action|thing) (?:is|will be) to\b|\bnext step\W*:"
    r"|\b(?:appropriate|right|correct|required|needed|necessary) (?:tool|function)(?: call| to (?:use|call))? is\b"
    r"|\A(?:(?:so|now|first|then)[, ]+)*(?:to [^:]{3,80}, )?(?:use|call|invoke) the [\w`-]+ (?:tool|function)\b"
    r"|\bI can (?:do|help|look|check|find|get|search|fetch|compute|calculate)\b"
    r"|(?:下面|以下)是[^。]{0,8}(?:调用|请求)|(?:需要|应该|应当|要)先?(?:调用|使用|查询|搜索|查找)",
    re.IGNORECASE,
)
_SHOWS = re.compile(
    r"\b(?:examples?|format(?:ted)?|syntax|schema|template|would|could|illustrat\w+|samples?|looks|like|wrote|used|made"
    r"|earlier|previous(?:ly)?|describ\w+|not|never|json)\b|例|格式|语法|写法|不",
    re.IGNORECASE,
)
_ROLE = re.compile(r"\W*(?:assistant|model|助手)\W*", re.IGNORECASE)  # a chat template's, repeated by the model
_ACKNOWLEDGED = re.compile(
    r"(?:sure|ok|okay|alright|all right|right|certainly|of course|yes|got it|understood|hm+"
    r"|好的?|好吧|当然)[\s,.!。！，…]*",
    re.IGNORECASE,
)
_FINISHED = re.compile(r"[.!。！…][\s*_\"'”’)）]*\Z")
_SENTENCE_END = re.compile(r"[.!?。！？]['\")\]]*\s|[。！？]|\n\s*\n|\n(?=\s*[-*#\d])")


def last_sentence(text: str) -> str:
    """The last sentence with what ends it."""
    ends = [found.end() for found in _SENTENCE_END.finditer(text) if text[found.end() :].strip()]
    return text[ends[-1] if ends else 0 :].strip()


def speaks_of_calls(sentence: str, *, marked: bool) -> bool:
    """Whether a call after this sentence is shown, not made.

    Made is what an intention announces, or a label, or "here is the call". What a plain statement precedes is made
    too, if its form has a mark. Any other sentence that runs into the call, or has a colon before it, shows it:
    "The log says:", "Models write".
    """
    if not sentence or _ACKNOWLEDGED.fullmatch(sentence):
        return False
    if _CONDITION.search(sentence):
        return True
    if _INTENT.search(sentence):
        return bool(_HEDGE_AFTER_INTENT.search(sentence))
    if _BEGUN.match(sentence) or (_ANNOUNCED.search(sentence) and not _SHOWS.search(sentence)):
        return False
    return not marked or not _FINISHED.search(sentence) or _TALK.search(sentence) is not None


def is_role(text: str) -> bool:
    """Whether it is nothing but the name of a role, as a chat template writes it before a message."""
    return _ROLE.fullmatch(text) is not None


def is_talk(sentence: str) -> bool:
    """Whether it has words that speak of calls, as examples, manuals, logs and refusals do."""
    return _TALK.search(sentence) is not None


def states_intention(text: str) -> bool:
    """Whether it ends in a plain intention, "I'll search"."""
    return _INTENT.search(text) is not None


def introduces_quotation(before: str) -> bool:
    """Whether the text before a call with a mark shows the call as a quotation.

    It does if it ends in a sentence with a colon that does not announce a call ("The page says:"), or if the call
    begins inside a line of prose, a quotation or a list item.
    """
    before = before[-_CONTEXT:]
    line = before.rpartition("\n")[2]
    if line.strip():
        if line.rstrip().endswith(tuple(_QUOTES)) or _LISTED.match(line):
            return True
    elif not before.rstrip().endswith((":", "：")):
        return False
    return speaks_of_calls(last_sentence(before.strip()), marked=True)


# The markers of a thought and of an action of ReAct, also in a list or a block quote.
_ANY_THOUGHT = re.compile(r"^[ \t*#>-]*+thought[ \t]*\d*[ \t]*\**[:：]", re.IGNORECASE | re.MULTILINE)
_INLINE_THOUGHT = re.compile(r"Thought[ \t]*\d*[:：]")
_ACTION = re.compile(r"^[ \t*#]*+action[^\n:：]{0,20}[:：]\s*+\**\s*+\Z", re.IGNORECASE | re.MULTILINE)


def before_thought(before: str) -> str:
    """The text before the thought that belongs to a call; without a thought, the text before an `Action:` marker."""
    before = before[-5 * _CONTEXT :]
    thoughts = [*_ANY_THOUGHT.finditer(before)] or [*_INLINE_THOUGHT.finditer(before)]
    return before[: thoughts[-1].start()] if thoughts else _ACTION.sub("", before)


_CONTEXT = 400  # characters before a call in which its sentence is searched
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
_LINE = re.compile(r"^", re.MULTILINE)
_QUOTED_LINE = re.compile(r"^[ \t]*[<>|\\`\"'“‘«*+-]", re.MULTILINE)


def salvage(
    text: str,
    reasoning: str = "",
    tools: Iterable[ToolSpec | Mapping[str, Any]] | None = None,
    *,
    truncated: bool = False,
) -> ToolCallsRead | None:
    """Find calls in a reply in which the dialect in use found none and which is not an answer.

    Args:
        text: The reply.
        reasoning: The reply's reasoning, searched only if the text is empty.
        tools: The offered tools. A call of any other name refuses the whole reply.
        truncated: The reply was cut off (`finish_reason` "length"): only calls that are complete as they are count,
            and none of a destructive tool.

    Returns:
        The calls, under the tools' own names; `repairs` name the form (`dialect:hermes`) and every repair. None if the
        text holds no call, or one that must not run: one with contradictory keys, with arguments that are not numbers,
        beside a final answer, or after a tool result that the model invented.
    """
    toolbox = Toolbox(tools)
    if not toolbox:
        return None
    thinking = split_reasoning(text)
    said, thought = plain_content(thinking.content), "\n".join(filter(None, (reasoning, thinking.reasoning)))
    if said:
        reply = thinking.content
        if "\\" in reply and is_markdown_escaped(reply, toolbox):
            reply = markdown_unescaped(reply)
        return _Search(toolbox, truncated, bare=True).search(reply, "reply", thought)
    return _Search(toolbox, truncated, bare=False).search(thought, "reasoning", "") if thought else None


@dataclass(frozen=True, slots=True)
class _Search:
    """The rules by which a call in a text is meant as one."""

    toolbox: Toolbox
    truncated: bool
    bare: bool  # accept forms without a mark

    def search(self, text: str, where: str, reasoning: str) -> ToolCallsRead | None:
        """The first reading of a region of the text in which every rule holds for every call."""
        for before, region, whole, fenced in _regions(text):
            for form, found in self._readings(region, self.bare and not whole):
                if any(block.refuses for block in found.blocks):
                    return None
                if not found.calls or (whole and not _outside_fences(text, found)):
                    continue
                calls = self._accepted(form, found, before, region, fenced)
                if calls is None:
                    continue
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

    def _readings(self, region: str, bare: bool) -> Iterator[tuple[Form, Found]]:
        for form in [*detect_forms(region), *([UNMARKED] if bare else [])]:
            yield form, form.find(Source(region), self.toolbox)

    def _accepted(
        self, form: Form, found: Found, before: str, region: str, fenced: bool
    ) -> list[tuple[ToolCall, tuple[Repair, ...]]] | None:
        """The calls under their tools' names, None if a rule does not hold for one of them."""
        blocks = [block for block in found.blocks if block.calls]
        start, end = blocks[0].start, blocks[-1].end
        context = (before + region[:start])[-8 * _CONTEXT :]
        marked = form is not UNMARKED
        if _ANSWERED.search(context) or not _ends_there(region, blocks, end) or _invented_before(context):
            return None
        if not form.channels and _is_talk(form, before, region, start):
            return None
        if self.truncated and any(block.repairs or not _complete(block) for block in blocks):
            return None
        resolved = [self._resolved(call, marked) for block in blocks for call in block.calls]
        if not all(resolved):
            return None
        accepted = [pair for pair in resolved if pair]
        if any(self.toolbox.destructive(call.name) for call, _ in accepted) and not (
            marked and not fenced and not self.truncated and _is_certain(before + region[:start], region[end:])
        ):
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


def _is_certain(before: str, tail: str) -> bool:
    """Whether a reply does nothing but make a call: what a destructive tool needs.

    It consists of marked calls, or of the model's own intention and the calls after it.
    """
    said = plain_content(before)
    if _without_marks(tail).strip() or _QUOTED_LINE.search(said) or introduces_quotation(before_thought(before)):
        return False
    return not said or (states_intention(said) and not is_talk(said))


def _invented_before(context: str) -> bool:
    """Whether the model wrote a tool result before the call; what follows it builds on what did not happen."""
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
    """Whether the first call begins where no fence is open."""
    start = next(block.start for block in found.blocks if block.calls)
    return sum(1 for _ in _FENCE.finditer(text, 0, start)) % 2 == 0


def _ends_there(region: str, blocks: list[Block], end: int) -> bool:
    """Whether nothing follows the last call, and little is between calls; an invented result ends the text as well."""
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
    if form is UNMARKED and line.strip():
        return True
    context = (before[-_CONTEXT:] + region[max(0, start - _CONTEXT) : start]).strip()
    if form.family == "react" and (thoughts := list(_THOUGHT.finditer(context))):
        thought, context = context[thoughts[-1].end() :], context[: thoughts[-1].start()].strip()
        if is_talk(last_sentence(thought)) and not states_intention(thought):
            return True
    if is_role(context):
        return False
    return speaks_of_calls(last_sentence(context), marked=form is not UNMARKED)


def _complete(block: Block) -> bool:
    """Whether a cut-off reply shows the end of the call: JSON or a closing tag, not the last words of a line."""
    return all(not call.text or call.text.rstrip()[-1:] in tuple("}])>`") for call in block.calls)


def _is_placeholder(value: Any) -> bool:
    return value is ... or (isinstance(value, str) and _PLACEHOLDER.match(value) is not None)
