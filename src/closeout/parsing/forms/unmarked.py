"""Tool calls without a mark of their own: JSON, Python-style calls, a name above its arguments, and mixtures.

Models write them in many layouts: a list of calls, of strings that hold calls, of `{"f": {…}}` objects, in a code
fence, one per line. One reader takes them all. It looks where a line, a label or a fence begins, reads a literal there,
and accepts it if it means calls and the offered tools confirm them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from closeout.messages import Repair, ToolCall
from closeout.parsing.action_keys import ANSWER_KEYS, INPUT_KEYS
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_calls import ID_KEYS, NAME_KEYS, calls_in, flat_call, make_call, refuse
from closeout.parsing.forms.json_values import Source, load, load_at, refusal_of
from closeout.parsing.forms.offered import OfferedNames
from closeout.parsing.forms.python_calls import CALL_START, CallNode, NotACall, PythonScanner, TooDeep, bind, settled

__all__ = ["UNMARKED", "WHOLE"]

_NAME = r"[^\W\d][\w.:-]{0,199}"
# Where a call may begin: after the start of a line, a list item or a fence, a label, or a token of a chat template.
_AT_ANCHOR = (
    r"[ \t]{0,64}(?P<item>(?:[-*•]|\d{1,3}[.)])[ \t]{1,8})?"
    r"(?P<code>(?:[^\W\d]\w{0,63}\s?=\s?)?(?:print\(\s{0,64})?)(?=[\[({'\"]{1,4}\s{0,64}[\w{\[\"'({}]"
    rf"|{_NAME}\s{{0,4}}\(|{_NAME}[ \t]{{0,4}}\n\s{{0,8}}\{{)"
)
_ANCHOR = re.compile(r"(?P<place>[\n:：>`])(?:(?<=[\n>])|(?<=```)|(?<=[\w)*][:：]))" + _AT_ANCHOR)
_FIRST_ANCHOR = re.compile(r"(?P<place>)" + _AT_ANCHOR)
_JUNK = re.compile(r"[\[({'\"\s]{0,8}")
_NAME_LINE = re.compile(rf"(?P<name>{_NAME})[ \t]{{0,4}}\n\s{{0,8}}(?=\{{)")
_BETWEEN = re.compile(r"(?:[\s,;+*/\]})-]|['\"](?=\s*+[,\]])|\[\d{1,3}\]|\(\)|#[^\n]{0,200}\n)*+")
_TAIL = re.compile(r"""(?:\[\d{1,3}\]|\(\)|[ \t\]})'"`,;.])*+(?:#[^\n]*+)?(?=\n|\Z|<)""")
_WHOLE_TAIL = re.compile(r"""(?:\[\d{1,3}\]|\(\)|[\s\]})'",;])*+(?:```)?\s*+\Z""")
_WHOLE_START = re.compile(r"\s*+(?:```[\w-]{0,16}[ \t]*\n\s*+)?")
_FENCE = re.compile(r"^[ \t]{0,8}```", re.MULTILINE)
_ENVELOPE_KEYS = {*NAME_KEYS, *INPUT_KEYS, *ID_KEYS, *ANSWER_KEYS, "type", "tool_calls", "tool_call", "function_call"}
_MESSAGE_KEYS = {
    *_ENVELOPE_KEYS, "role", "content", "refusal", "reasoning_content", "reasoning", "annotations", "index",
}  # fmt: skip
_PROGRAM = re.compile(
    r"^[ \t]*(?:import|from|def|class|for|while|if|with|return|async|try|function|const|let|var|#include|public)\b",
    re.MULTILINE,
)
_FAILED_SCAN = 8  # a literal is read in Python, at an eighth of the speed of a search
_MAX_CALLS = 1000
_MAX_DEPTH = 8  # nested calls within strings and lists


@dataclass(frozen=True, slots=True)
class _Group(Block):
    """Calls that follow each other with separators only between them."""

    family: str = "json"
    loose: bool = False  # a list item, or after a label on its line


class _NotCalls(Exception):
    """A value does not mean calls; caught in this module."""


@dataclass(slots=True)
class _Interpreter:
    """Reads a literal as calls of the offered tools."""

    toolbox: OfferedNames
    explicit: bool  # accept names that no tool has, where name and arguments are labelled
    repairs: list[Repair] = field(default_factory=list)
    family: str = "json"

    def calls(self, value: Any, depth: int = 0) -> list[ToolCall]:
        """The calls that a value means; raises _NotCalls."""
        if depth > _MAX_DEPTH:
            raise _NotCalls
        if isinstance(value, CallNode):
            return [self._bound(value)]
        if isinstance(value, dict):
            return [refuse(call, refusal_of(value)) for call in self._from_object(value, depth)]
        if isinstance(value, str):
            return self._from_string(value, depth)
        if not isinstance(value, list) or not value:
            raise _NotCalls
        if isinstance(value[0], str) and self.toolbox.find(value[0]) and len(value) % 2 == 0:
            return self._from_pairs(value)
        members = [item for item in value if item not in ("", "[]", [])]
        return [call for item in members for call in self.calls(item, depth + 1)]

    def _bound(self, node: CallNode) -> ToolCall:
        if not self.toolbox.find(node.name) and not self.explicit:
            raise _NotCalls
        try:
            call, repairs = bind(node, self.toolbox)
        except NotACall:
            raise _NotCalls from None
        self.repairs += repairs
        self.family = "pythonic"
        return call

    def _from_object(self, value: dict[str, Any], depth: int) -> list[ToolCall]:
        box = self.toolbox
        if value and box and all(box.find(key) for key in value):  # {"f": {…}, "g": {…}}
            return [call for key, item in value.items() for call in self._named(key, item)]
        lists = next((value[key] for key in ("tool_calls", "function_calls") if isinstance(value.get(key), list)), None)
        if lists is not None:
            return [call for item in lists for call in self.calls(item, depth + 1)]
        flat = flat_call(value, box)
        if flat is not None:
            return [flat]
        doubled = {key: value[key][0] for key in INPUT_KEYS if _is_doubled(value.get(key))}
        if doubled:
            self.repairs.append(Repair("extra_bracket", "json"))
            value = {**value, **doubled}
        calls = calls_in(value, box, explicit=True)
        if not calls or not (self.explicit or all(call.name in box for call in calls)):
            raise _NotCalls
        return calls

    def _named(self, name: str, arguments: Any) -> Iterator[ToolCall]:
        several = isinstance(arguments, list) and bool(arguments) and all(isinstance(one, dict) for one in arguments)
        for one in arguments if several else [arguments]:
            call = make_call(name, one, self.toolbox) if isinstance(one, dict) else None  # else it is data
            if call is None:
                raise _NotCalls
            yield call

    def _from_pairs(self, value: list[Any]) -> list[ToolCall]:
        """`["f", {…}, "g", {…}]`."""
        calls: list[ToolCall] = []
        for name, arguments in zip(value[::2], value[1::2], strict=True):
            if not isinstance(name, str) or not self.toolbox.find(name) or not isinstance(arguments, dict):
                raise _NotCalls
            calls.extend(self._named(name, arguments))
        return calls

    def _from_string(self, text: str, depth: int) -> list[ToolCall]:
        """A string that holds calls and nothing else."""
        scanner = PythonScanner(text.strip(), 0)
        if not CALL_START.match(scanner.text):
            loaded = load(text, repair=False) if text.lstrip()[:1] in ("{", "[") else None
            if loaded is None:
                raise _NotCalls
            return self.calls(loaded.value, depth + 1)
        calls: list[ToolCall] = []
        while scanner.at < len(scanner.text):
            try:
                calls.append(self._bound(scanner.call()))
            except NotACall:
                raise _NotCalls from None
            between = _BETWEEN.match(scanner.text, scanner.at)
            scanner.at = between.end() if between else scanner.at
        return calls


def _is_doubled(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)


# ------------------------------------------------------------------------------------------------ groups in a text


def read_unmarked(source: Source, toolbox: OfferedNames, whole: bool = False) -> Found:
    """Return a block for each group of calls in a text that has no marks.

    A call that repeats one of an earlier group is left out. Without tools, or with `whole`, only a text that consists
    of calls is read.
    """
    group = _whole(source, toolbox)
    if group is not None:
        return Found((group,), family=group.family)
    if whole or not toolbox.mentioned(source.text):
        return Found()
    groups = list(_groups(source, toolbox))  # those on lines of their own; else those in list items and after labels
    chosen = tuple(_distinct([group for group in groups if not group.loose] or groups))
    return Found(chosen, family=chosen[0].family if chosen else "")


def _whole(source: Source, toolbox: OfferedNames) -> _Group | None:
    """The text as one group of calls, in a code fence or not."""
    text = source.text
    at = source.skip(_WHOLE_START, 0)
    if at >= len(text) or not (text[at] in "{[('\"" or CALL_START.match(text, at) or _NAME_LINE.match(text, at)):
        return None
    group = _group(source, toolbox, at, explicit=True)
    if group is None or not _WHOLE_TAIL.match(text, group.end):
        return None
    known = bool(toolbox) and all(call.name in toolbox for call in group.calls)
    if not known and not _is_plain(source, at, group):
        return None
    return _Group(0, len(text), group.calls, group.repairs, family=group.family)


def _is_plain(source: Source, at: int, group: _Group) -> bool:
    """True if calls of unknown names are a list of calls, or JSON with no keys but those of calls."""
    if group.family == "pythonic":
        return source.text[at] == "["
    if group.family != "json":
        return False
    loaded, _ = load_at(source, at)
    members = loaded.value if loaded and isinstance(loaded.value, list) else [loaded.value if loaded else None]
    return all(isinstance(member, dict) and _only_call_keys(member) for member in members)


def _only_call_keys(value: dict[str, Any]) -> bool:
    return (_MESSAGE_KEYS if "tool_calls" in value else _ENVELOPE_KEYS).issuperset(value)


def _groups(source: Source, toolbox: OfferedNames) -> Iterator[_Group]:
    """The groups of calls at the anchors of the text, with arguments that fit their tools."""
    text, at = source.text, 0
    fences = [fence.start() for fence in _FENCE.finditer(text)] if "```" in text else []
    fence = count = 0
    anchor = _FIRST_ANCHOR.match(text) or _ANCHOR.search(text)
    while anchor and not source.exhausted and count < _MAX_CALLS:
        while fence < len(fences) and fences[fence] <= anchor.start():
            fence += 1
        at = anchor.end()
        closing = (fences[fence] if fence < len(fences) else len(text)) if fence % 2 else -1
        if closing >= 0 and _PROGRAM.search(text, fences[fence - 1], closing):  # code to read, not calls to make
            at = closing
        elif closing >= 0 or not anchor["code"]:  # an assignment or a print outside a fence is not a call
            group = _group(source, toolbox, at, explicit=False)
            tail = _TAIL.match(text, group.end) if group else None
            if group and tail and all(_fits(call, toolbox) for call in group.calls):
                count += len(group.calls)
                loose = anchor["place"] not in "\n>" or bool(anchor["item"])
                yield _Group(at, tail.end(), group.calls, group.repairs, family=group.family, loose=loose)
            else:
                source.fail()
            at = max(tail.end() if tail else group.end, at) if group else max(at, _data_end(source, at))
        anchor = _ANCHOR.search(text, at)


def _data_end(source: Source, at: int) -> int:
    """The end of a JSON value at `at`; a value that does not mean calls is data, and so is what it holds."""
    loaded, end = load_at(source, at, repair=False) if source.text[at : at + 1] in ("{", "[") else (None, None)
    return end if end and loaded else at


def _fits(call: ToolCall, toolbox: OfferedNames) -> bool:
    return isinstance(call.arguments, Mapping) and toolbox.fits(call.name, call.arguments)


def _distinct(groups: list[_Group]) -> Iterator[_Group]:
    """The groups without calls that repeat one of an earlier group; in one list, the same call twice is two calls."""
    seen: set[str] = set()
    for group in groups:
        named = {json.dumps([call.name, call.arguments], sort_keys=True, default=str): call for call in group.calls}
        fresh = tuple(call for identity, call in named.items() if identity not in seen)
        if fresh and seen:
            group = _Group(group.start, group.end, fresh, group.repairs, family=group.family)
        seen.update(named)
        if fresh:
            yield group


def _group(source: Source, toolbox: OfferedNames, at: int, *, explicit: bool) -> _Group | None:
    """The calls that begin at `at`, with separators only between them."""
    start, text = at, source.text
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    end, family = at, ""
    while len(calls) < _MAX_CALLS:
        read = _one(source, toolbox, at, explicit)
        if read is None and (junk := _JUNK.match(text, at)) and junk.end() > at:
            read = _one(source, toolbox, junk.end(), explicit) if CALL_START.match(text, junk.end()) else None
        if read is None:
            break
        calls += read.calls
        repairs += read.repairs
        end, family = read.end, family or read.family
        at = source.skip(_BETWEEN, end)
    return _Group(start, end, tuple(calls), tuple(repairs), family=family) if calls else None


def _one(source: Source, toolbox: OfferedNames, at: int, explicit: bool) -> _Group | None:
    """One literal, call, or name with arguments below it, as calls."""
    text = source.text
    if text[at : at + 1] in ("{", "["):
        return _json(source, toolbox, at, explicit, False) or _literal(source, toolbox, at, explicit) or (
            _json(source, toolbox, at, explicit, True)
        )  # fmt: skip
    if CALL_START.match(text, at) or text[at : at + 1] in ("(", "'", '"'):
        return _literal(source, toolbox, at, explicit)
    head = _NAME_LINE.match(text, at)
    name = toolbox.find(head["name"]) if head else None
    if head is None or name is None:
        return None
    loaded, end = load_at(source, head.end())
    call = make_call(name, loaded.value, toolbox) if loaded and isinstance(loaded.value, dict) else None
    if call is None or loaded is None or end is None:
        return None
    return _Group(at, end, (call,), loaded.repairs, family="name_line")


def _json(source: Source, toolbox: OfferedNames, at: int, explicit: bool, repair: bool) -> _Group | None:
    loaded, end = load_at(source, at, repair=repair)
    if loaded is None or end is None:
        return None
    interpreter = _Interpreter(toolbox, explicit)
    try:
        calls = interpreter.calls(loaded.value)
    except _NotCalls:
        return None
    return _Group(at, end, tuple(calls), (*loaded.repairs, *interpreter.repairs), family=interpreter.family)


def _literal(source: Source, toolbox: OfferedNames, at: int, explicit: bool) -> _Group | None:
    """A Python literal that may hold calls, or one call."""
    if source.exhausted or (at < source.deep_until and source.text[at] in "[{("):
        return None
    scanner = PythonScanner(source.text, at)
    interpreter = _Interpreter(toolbox, explicit)
    failed = True
    try:
        value = scanner.call() if CALL_START.match(source.text, at) else scanner.value(0, calls=True)
        calls = [settled(call, toolbox) for call in interpreter.calls(value)]
        failed = False
    except TooDeep:
        source.deep_until = scanner.at
        return None
    except (NotACall, _NotCalls):
        return None
    finally:
        source.spend((_FAILED_SCAN if failed else 1) * (scanner.at - at) + 4 * scanner.looked)
    repairs = (*scanner.repairs, *interpreter.repairs)
    return _Group(at, scanner.at, tuple(calls), repairs, family=interpreter.family) if calls else None


UNMARKED = Form("json", (), read_unmarked)
WHOLE = Form("json", (), partial(read_unmarked, whole=True))
