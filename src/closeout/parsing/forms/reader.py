"""`read_tool_calls` reads a whole reply in any form; `FormDetector` holds a streamed reply back where a call begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from closeout.messages import Defect, Repair, ToolSpec
from closeout.parsing.forms.form import Block, Form, Found, ToolCallsRead
from closeout.parsing.forms.json_values import Source
from closeout.parsing.forms.offered import HasSpec, OfferedNames
from closeout.parsing.forms.registry import MARKED, forms_of, marked_forms
from closeout.parsing.forms.unmarked import UNMARKED, WHOLE
from closeout.parsing.reasoning import WRAPPER_TAGS, Thinking, has_mark, plain_content, split_reasoning

__all__ = ["FormDetector", "defect_of", "detect_forms", "find_call_mark", "read_tool_calls"]

_T = TypeVar("_T")
_Read = tuple[ToolCallsRead, tuple[Block, ...]]

_ESCAPED_UNDERSCORE = re.compile(r"(?<=\w)\\_(?=\w)")
_NAME_END = re.compile(r"[\w.\\]*\Z")
_NAME_START = re.compile(r"[\w.\\]*")
_MAX_ESCAPES = 100  # escapes that are examined in one reply
_LONGEST_PART = 128  # characters of a name on each side of an escape
_MAX_CALLS = 1000  # calls in one reply; more is a model in a loop


def read_tool_calls(
    text: str | None,
    tools: Iterable[ToolSpec | HasSpec | Mapping[str, Any]] | None = None,
    family: str | None = None,
    *,
    forms: Sequence[Form] = (),
) -> ToolCallsRead:
    """Read the tool calls that a model wrote as text, in whatever form, and the text without them.

    Nothing is executed or evaluated. The time is linear in the length of the text.

    Args:
        text: The reply; None, as a server's `content` may be, is an empty one.
        tools: The offered tools: functions decorated with `@tool`, ToolSpec, or dicts in the OpenAI format. Their
            schemas give the types of parameters that are written as plain text, and their names confirm calls in
            forms that have no mark of their own.
        family: The form's family, a vLLM or SGLang parser, or a model. None, or an unknown name, detects the form.
        forms: Forms of your own, tried before the built-in ones.

    Returns:
        The calls, the content before them, the reasoning, and what was repaired or refused. It never raises.
    """
    text, toolbox = text or "", OfferedNames(tools)
    given = forms_of(family, forms) if family else ()
    if given:
        candidates = [form for form in given if not form.markers or any(mark in text for mark in form.markers)]
        return _first_with_calls(candidates, text, toolbox, split_reasoning(text))
    if "\\" in text and is_markdown_escaped(text, toolbox):
        read = _detected(markdown_unescaped(text), toolbox, forms)
        return read._replace(repairs=(Repair("markdown_escapes", "reply"), *read.repairs)) if read.calls else read
    return _detected(text, toolbox, forms)


def _detected(text: str, toolbox: OfferedNames, own: Sequence[Form]) -> ToolCallsRead:
    thinking = split_reasoning(text)
    said = thinking.content
    if said.lstrip()[:1] in ("{", "[", "`"):  # marks inside a reply that consists of calls are data
        whole = _first_with_calls([WHOLE], text, toolbox, thinking)
        if whole.calls or whole.defects:
            return whole
    return _first_with_calls([*detect_forms(text, own), UNMARKED], text, toolbox, thinking)


def is_markdown_escaped(text: str, toolbox: OfferedNames) -> bool:
    """True if a reply writes the name of an offered tool or parameter with Markdown escapes, `read\\_file`."""
    properties = {name for tool in toolbox for name in toolbox.properties(tool)}
    for count, escape in enumerate(_ESCAPED_UNDERSCORE.finditer(text)):
        if count >= _MAX_ESCAPES:
            break
        before = _NAME_END.search(text[max(0, escape.start() - _LONGEST_PART) : escape.start()])
        after = _NAME_START.match(text, escape.end(), escape.end() + _LONGEST_PART)
        name = markdown_unescaped((before[0] if before else "") + escape[0] + (after[0] if after else ""))
        if name in properties or toolbox.find(name):
            return True
    return False


def markdown_unescaped(text: str) -> str:
    """The text without the escapes that Markdown needs in names and formulas."""
    return text.replace("\\_", "_").replace("\\*", "*")


def detect_forms(text: str, own: Sequence[Form] = ()) -> list[Form]:
    """The forms whose marks occur in the text, in the order in which they do."""
    hits = []
    absent: dict[str, bool] = {}  # keyed by a mark's first character: most texts lack most of them
    for rank, form in enumerate(marked_forms(own)):
        positions = []
        for mark in form.markers:
            first = mark[0]
            if first not in absent:
                absent[first] = first not in text
            if not absent[first] and (at := text.find(mark)) >= 0:
                positions.append(at)
        if positions:
            hits.append((min(positions), rank, form))
    return [form for _, _, form in sorted(hits, key=lambda hit: hit[:2])]


def _first_with_calls(forms: Iterable[Form], text: str, toolbox: OfferedNames, thinking: Thinking) -> ToolCallsRead:
    """Return the reading of the first form that finds or refuses a call, else of the first with a malformed call."""
    fallback: ToolCallsRead | None = None
    found: list[_Read] = []
    for form in forms:
        if form is UNMARKED and found and not may_hold(thinking.content, found[0][1]):
            break
        read, blocks = _read_form(form, text, toolbox, thinking)
        if _first_call(blocks) >= 0:
            found.append((read, blocks))
        fallback = fallback or (read if read.defects else None)
    if found:
        return not_nested(found)[0]
    return fallback or ToolCallsRead((), plain_content(thinking.content), thinking.reasoning)


def not_nested(readings: Sequence[tuple[_T, tuple[Block, ...]]]) -> list[_T]:
    """Leave out each reading whose first call begins inside a call of another reading: there it is data."""

    def holds(outer: tuple[Block, ...], at: int) -> bool:
        return any(block.start < at < block.end for block in outer if block.calls or block.refuses)

    return [
        reading
        for reading, blocks in readings
        if not any(holds(other, _first_call(blocks)) for _, other in readings if other is not blocks)
    ]


def may_hold(text: str, blocks: tuple[Block, ...]) -> bool:
    """True if a call without a mark may begin before these, and have them as data."""
    at = _first_call(blocks)
    return text.find("{", 0, at) >= 0 or text.find("(", 0, at) >= 0


def _first_call(blocks: tuple[Block, ...]) -> int:
    return min((block.start for block in blocks if block.calls or block.refuses), default=-1)


def _read_form(form: Form, text: str, toolbox: OfferedNames, thinking: Thinking) -> _Read:
    if form.channels:
        found = form.find(Source(text), toolbox)
        # From its first mark on, what is not a call there is content or reasoning.
        start = min((at for mark in form.markers if (at := text.find(mark)) >= 0), default=0)
        return _assembled(form, found, text, found.reasoning), (Block(start, len(text), refuses=True),)
    if thinking.content == text:
        found = form.find(Source(text), toolbox)
        return _assembled(form, found, text, ""), found.blocks
    whole = form.find(Source(text), toolbox)
    # A reasoning mark may be data inside a call, which then must not begin in reasoning itself.
    holding = [
        (block.start, block.end) for block in whole.blocks if block.calls and has_mark(text, block.start, block.end)
    ]
    if holding and split_reasoning(text[: holding[0][0]]).cut is None:
        thinking = split_reasoning(text, holding)
    found = form.find(Source(thinking.content), toolbox)
    if not found.calls and thinking.cut is not None and whole.calls and not text[whole.blocks[-1].end :].strip():
        # A call ends reasoning that nothing else ends.
        first = next(block.start for block in whole.blocks if block.calls)
        if first > thinking.cut:
            before = split_reasoning(text[:first])
            return _assembled(form, whole, before.content, before.reasoning, cut=True), whole.blocks
    return _assembled(form, found, thinking.content, thinking.reasoning), found.blocks


def _assembled(form: Form, found: Found, text: str, reasoning: str, cut: bool = False) -> ToolCallsRead:
    """`text` is what the blocks' positions are in; with `cut` it is already the text before the first."""
    refused = any(block.refuses for block in found.blocks)
    calls = () if refused else found.calls[:_MAX_CALLS]
    repairs: list[Repair] = [repair for block in found.blocks for repair in block.repairs]
    defects = tuple(map(defect_of, (block for block in found.blocks if block.broken)))
    content = found.content if found.content is not None else text if cut else _outside(text, found.blocks, form)
    if reasoning and found.reasoning and reasoning != found.reasoning:
        reasoning = f"{reasoning}\n{found.reasoning}"
    said = plain_content(content)
    if calls:
        said = next((said[len(opener) :].lstrip() for opener in WRAPPER_TAGS if said.startswith(opener)), said)
    return ToolCallsRead(
        calls=calls,
        content=said,
        reasoning=reasoning or found.reasoning,
        repairs=tuple(repairs),
        family=(found.family or form.family) if calls else "",
        defects=defects,
    )


def defect_of(block: Block) -> Defect:
    """What is wrong with a block whose call is broken."""
    span = (block.start, block.end)
    if block.refuses:
        hint = f"The tool call was not run: {block.broken}. Write the call again, once and without contradictions."
        return Defect("refused_call", hint, span, refuses=True)
    return Defect("broken_call", f"The tool call cannot be read: {block.broken}.", span)


def _outside(text: str, blocks: tuple[Block, ...], form: Form) -> str:
    """The text before the first call, and after it only where the form means that. Malformed calls stay readable."""
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


# ------------------------------------------------------------------------------------------------ streaming

# Marks that ordinary text contains: they mean nothing before the whole reply is there. The other marks are those of
# the forms, and the wrappers before them.
_WEAK = ("Action", "action", "ACTION", ">>>", "<tool_call", "<invoke", "<｜tool", "<|tool calls")
_WRAPPERS = {
    "<tool_call>": "hermes",
    "<tool_call:": "glm45_xml",
    "<tool_calls:": "glm45_xml",
    "<ifm|tool_calls>": "k2_horizon",
    "<|message_sep|>": "gigachat",
    "<invoke name=": "invoke",
    "<｜tool▁call": "deepseek_v3",
    "<|tool_calls_begin|>": "deepseek_v3",
    "<|tool calls begin|>": "deepseek_v3",
    "<｜tool calls begin｜>": "deepseek_v3",
    "<｜tool_calls_begin｜>": "step3",
    "<｜tool_call_begin｜>": "step3",
    "<|start|>assistant": "harmony",
}
_JSON_START = re.compile(
    r'[\[{]\s*(?:\{\s*)?"(?:(?:name|tool_calls|tool_name|function|function_call|action)"'
    r'|(?:role"\s*:\s*"assistant|type"\s*:\s*"(?:function|tool_use))")'
)
_JSON_SHAPE = re.compile(r'[\[{]\s*(?:\{\s*)?(?:"(?:[a-z_]{0,13}"?|(?:role|type)"\s*:\s*(?:"[a-z_]{0,9}"?)?))?\Z')
_LONGEST_JSON_START = 64  # characters
# Where forms write the name: the first key of a JSON call, an attribute, after a token, before a bracket, a recipient.
_NAME_AFTER_MARK = re.compile(
    r"""\{\s{0,16}["'](?:name|function|action)["']\s{0,8}:\s{0,8}["'](?P<json>[^"'\n]{1,200})["']"""
    r"""|["']tool_name["']\s{0,8}:\s{0,8}["'](?P<labelled>[^"'\n]{1,200})["']"""
    r"""|(?:invoke|function)\s{0,4}[\sĠ]?name=["'](?P<tag>[^"'>\n]{1,200})["']|<function=(?P<function>[^>\n<]{1,200})>"""
    r"""|\bto=(?:functions\.)?(?P<recipient>[^\s<|]{1,200})(?=[\s<|])|call:\s{0,8}(?P<gemma>[\w.-]{1,200})(?=\s{0,8}\{)"""
    r"""|<tool_name>(?P<mcp>[^<]{1,200})</tool_name>|\stool="(?P<kimi>[^"]{1,200})\""""
    r"""|\[TOOL_CALLS\]\s{0,8}(?P<mistral>[\w.:/-]{1,200})(?=\s{0,8}[\[{])|tools_prefix\|>\[\{"(?P<apertus>[^"]{1,200})\""""
    r"""|(?:tool[▁_ ]sep|call[▁_ ]begin|call:name)[|｜]>"""
    r"""(?:functions\.)?(?!function[<\s])(?P<token>[\w.-]{1,200})(?=[\s`{<:])"""
    r"""|<(?:ifm\|)?tool_call(?::\w{1,32})?>\s{0,16}(?P<glm>[^\W\d][\w.-]{0,199})(?=[\s<])"""
    r"""|(?P<python>[^\W\d][\w.]{0,199})\("""
)
_NAME_WINDOW = 600  # characters after the mark in which the name is searched


class _OpenMarks:
    """The marks of all forms as one search."""

    def __init__(self, forms: Sequence[Form]) -> None:
        found = {mark: form.family for form in reversed(forms) for mark in form.markers if mark not in _WEAK}
        self.family_of = found | _WRAPPERS
        self.pattern = re.compile("|".join(map(re.escape, sorted(self.family_of, key=len, reverse=True))))
        self.longest = max(map(len, self.family_of))
        self.prefixes = frozenset(mark[:length] for mark in self.family_of for length in range(1, len(mark)))


_marks_of = lru_cache(maxsize=8)(_OpenMarks)


def find_call_mark(text: str) -> int:
    """Return where the first mark of a tool call begins in a text, -1 without one.

    Marks that ordinary text contains, such as `Action:`, and those of messages in channels do not count.
    """
    marks = _marks_of(tuple(form for form in MARKED if not form.channels))
    found = (mark for mark in marks.pattern.finditer(text) if marks.family_of[mark[0]] != "harmony")
    return next((mark.start() for mark in found), -1)


class FormDetector:
    """Holds back what is turning into a tool call while a reply streams.

    Feed the text as it comes and show what `feed` returns. Held back are the beginning of a mark, the beginning of a
    reply that may be a bare JSON call, and everything from a mark on. The same text is shown however it is split.

    Args:
        own: Forms of the user's own.

    Attributes:
        family: The family of the call, set once its mark has been seen.
        name: The called tool's name as written, set once it has been seen where the family writes it.
    """

    __slots__ = ("_blanks", "_head", "_marks", "_pending", "_started", "_tail", "family", "name")

    def __init__(self, own: Sequence[Form] = ()) -> None:
        self.family: str | None = None
        self.name: str | None = None
        self._marks = _marks_of(marked_forms(own))
        self._blanks: list[str] = []  # blanks before everything else
        self._head = ""  # the first characters from the mark on
        self._pending = ""
        self._tail: list[str] = []
        self._started = False

    @property
    def held(self) -> str:
        """The text that has been fed and not shown."""
        return "".join((*self._blanks, *self._tail, self._pending))

    def feed(self, text: str) -> str:
        """Take a piece of the reply and return the text that may be shown now."""
        if self.family is not None:
            self._tail.append(text)
            self._look_for_name(text)
            return ""
        if not self._started and not self._pending and not text.strip():
            self._blanks.append(text)
            return ""
        self._pending += text
        if not self._started and self._may_be_json():
            return ""
        return self._shown()

    def close(self) -> str:
        """Return what was held and is not a call, at the end of the reply; "" once a mark has been seen."""
        if self.family is not None:
            return ""
        rest, self._pending, self._blanks = self.held, "", []
        return rest

    def _may_be_json(self) -> bool:
        """True if the reply, so far, is or may become a bare JSON call; sets the family when it is one."""
        start = self._pending.lstrip()
        if _JSON_START.match(start):
            self._hold(0, "json")
            return True
        self._started = len(start) > _LONGEST_JSON_START or not _JSON_SHAPE.match(start)
        return not self._started

    def _shown(self) -> str:
        pending = "".join((*self._blanks, self._pending))
        self._blanks = []
        mark = self._marks.pattern.search(pending)
        if mark:
            self._pending = pending
            self._hold(mark.start(), self._marks.family_of[mark[0]])
            return pending[: mark.start()]
        longest = min(self._marks.longest, len(pending))
        keep = next((n for n in range(longest, 0, -1) if pending[-n:] in self._marks.prefixes), 0)
        self._pending = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def _hold(self, start: int, family: str) -> None:
        self.family = family
        held, self._pending = self._pending[start:], ""
        self._tail = [held]
        self._look_for_name(held)

    def _look_for_name(self, text: str) -> None:
        if self.name is not None or len(self._head) >= _NAME_WINDOW:
            return
        self._head += text[: _NAME_WINDOW - len(self._head)]
        found = _NAME_AFTER_MARK.search(self._head)
        if found and found.lastgroup:
            self.name = found[found.lastgroup].strip()
