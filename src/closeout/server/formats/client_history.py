"""Repair the calls and results of a conversation that a client sends, so that every server accepts it. No I/O.

A client that once accepted a broken call sends it with every later request, and some servers always fail on it.
Valid messages stay unchanged.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from closeout.codec import decode_json
from closeout.dialects.function_call import new_call_id
from closeout.messages import NO_RESULT, Repair
from closeout.models.sent_names import safe_name
from closeout.parsing.json_text import repair_json

__all__ = ["repair_blocks", "repair_chat"]

NOTHING_LEFT = "(a result of no known call was left out)"
MALFORMED = "malformed"  # the argument that holds what cannot be read as arguments
_SHOWN = 80  # characters of a value in its repair

_CALL_ID = re.compile(r"(?s:.{1,64})")
_BLOCK_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # Anthropic's

Messages = Sequence[Mapping[str, Any]]


def repair_chat(messages: Messages) -> tuple[list[Mapping[str, Any]], list[Repair]]:
    """Repair a conversation of Chat Completions.

    Returns:
        The messages, valid ones unchanged, and the repairs.
    """
    ids, found = _CallIds(), list[Mapping[str, Any]]()
    for head, rest in _turns(messages):
        calls = head.get("tool_calls") if head is not None else None
        calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        kept = [_chat_call(call, ids) for call in calls]
        if head is not None:
            found.append(head if kept == calls else {**head, "tool_calls": kept})
        turn = ids.turn([call.get("id") for call in calls], [call["id"] for call in kept])
        results, others = [], []
        for message in rest:
            if message.get("role") != "tool":
                others.append(message)
            elif (call_id := turn.claim(message.get("tool_call_id"))) is not None:
                same = call_id == message.get("tool_call_id")
                results.append(message if same else {**message, "tool_call_id": call_id})
        ids.check_order(rest, [*results, *others])
        results += [{"role": "tool", "tool_call_id": each, "content": NO_RESULT} for each in turn.without_result()]
        found += [*results, *others]
    return found, ids.repairs


def _chat_call(call: Mapping[str, Any], ids: _CallIds) -> dict[str, Any]:
    kept = {**call, "id": ids.unique(call.get("id"))}
    function = call.get("function")
    if isinstance(function, dict):
        arguments = _arguments_text(function.get("arguments"), ids.repairs)
        kept["function"] = {**function, "name": _name(function.get("name"), ids.repairs), "arguments": arguments}
    return kept


def _name(given: Any, repairs: list[Repair]) -> str:
    """Return the name of a call as every server takes it: models write any name."""
    name = safe_name(str(given or ""))
    if name != given:
        repairs.append(Repair("history_name", "messages", str(given)[:_SHOWN], after=name))
    return name


def repair_blocks(messages: Messages) -> tuple[list[Mapping[str, Any]], list[Repair]]:
    """Repair a conversation of Anthropic's Messages: see `repair_chat`."""
    ids, found = _CallIds(), list[Mapping[str, Any]]()
    for head, rest in _turns(messages):
        blocks = _blocks(head) if head is not None else []
        kept = [_tool_use(block, ids) if block.get("type") == "tool_use" else block for block in blocks]
        if head is not None:
            found.append(head if kept == blocks else {**head, "content": kept})
        uses = [(was, now) for was, now in zip(blocks, kept, strict=True) if was.get("type") == "tool_use"]
        turn = ids.turn([was.get("id") for was, _ in uses], [now["id"] for _, now in uses])
        answered = [_with_results(message, turn, ids) for message in rest]
        missing: list[Any] = [
            {"type": "tool_result", "tool_use_id": each, "content": NO_RESULT, "is_error": True}
            for each in turn.without_result()
        ]
        if missing and answered and answered[0].get("role") == "user":
            content = answered[0].get("content")
            said = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
            place = next((n for n, block in enumerate(said) if block.get("type") != "tool_result"), len(said))
            answered[0] = {**answered[0], "content": [*said[:place], *missing, *said[place:]]}
        elif missing:
            answered.insert(0, {"role": "user", "content": missing})
        found += answered
    return found, ids.repairs


def _tool_use(block: Mapping[str, Any], ids: _CallIds) -> dict[str, Any]:
    given = block.get("input")
    return {
        **block,
        "id": ids.unique(block.get("id"), _BLOCK_ID),
        "name": _name(block.get("name"), ids.repairs),
        "input": given if isinstance(given, dict) else _read_arguments(given, ids.repairs),
    }


def _with_results(message: Mapping[str, Any], turn: _OpenCalls, ids: _CallIds) -> Mapping[str, Any]:
    blocks = _blocks(message)
    results, others = [], []
    for block in blocks:
        if block.get("type") != "tool_result":
            others.append(block)
        elif (call_id := turn.claim(block.get("tool_use_id"))) is not None:
            results.append(block if call_id == block.get("tool_use_id") else {**block, "tool_use_id": call_id})
    kept = [*results, *others]
    if kept == blocks:
        return message
    ids.check_order(blocks, kept)
    return {**message, "content": kept or [{"type": "text", "text": NOTHING_LEFT}]}


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) and all(isinstance(block, dict) for block in content) else []


# ------------------------------------------------------------------------------------------------ both


def _turns(messages: Messages) -> Iterable[tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]]:
    """Yield each message of the assistant with what follows it; first, with None, what precedes them all."""
    head: Mapping[str, Any] | None = None
    rest: list[Mapping[str, Any]] = []
    for message in messages:
        if message.get("role") == "assistant":
            yield head, rest
            head, rest = message, []
        else:
            rest.append(message)
    yield head, rest


class _CallIds:
    """The ids of the calls in a conversation, and what was repaired in it."""

    def __init__(self) -> None:
        self.repairs: list[Repair] = []
        self._seen: set[str] = set()

    def unique(self, given: Any, valid: re.Pattern[str] = _CALL_ID) -> str:
        """Return the id of a call: a new one if it has none, one of an earlier call, or one that servers refuse.

        New ids depend on the conversation only, so that later requests begin with the same bytes. They are nine
        letters and digits, which every server takes.
        """
        call_id = given if isinstance(given, str) and given else ""
        if not valid.fullmatch(call_id) or call_id in self._seen:
            call_id = new_call_id(call_id, len(self._seen))
            self.repairs.append(Repair("history_id", "messages", str(given)[:_SHOWN], after=call_id))
        self._seen.add(call_id)
        return call_id

    def check_order(self, was: Messages, now: Messages) -> None:
        """Note that results come first now, if nothing else has changed."""
        if [*was] != [*now] and set(map(id, was)) == set(map(id, now)):
            self.repairs.append(Repair("history_order", "messages"))

    def turn(self, given: Sequence[Any], kept: Sequence[str]) -> _OpenCalls:
        return _OpenCalls([*zip(given, kept, strict=True)], self.repairs.append)


class _OpenCalls:
    """The calls of one message of the assistant, which wait for their results."""

    def __init__(self, calls: list[tuple[Any, str]], note: Callable[[Repair], object]) -> None:
        self._open = OrderedDict(enumerate(calls))
        self._by_id: dict[str, deque[int]] = {}  # the places of the open calls with an id
        self._note = note
        for place, (given, _) in self._open.items():
            self._by_id.setdefault(repr(given), deque()).append(place)

    def claim(self, given: Any) -> str | None:
        """Return the id of the call that a result belongs to; None for a result of no call, which is left out.

        A result without an id belongs to the first call that is open.
        """
        places = self._by_id.get(repr(given)) or (() if given else (next(iter(self._open), -1),))
        if not places or places[0] not in self._open:
            self._note(Repair("history_orphan", "messages", str(given)[:_SHOWN]))
            return None
        was, call_id = self._open.pop(places[0])
        self._by_id[repr(was)].remove(places[0])  # the first of them
        if was != given:
            self._note(Repair("history_id", "messages", str(given)[:_SHOWN], after=call_id))
        return call_id

    def without_result(self) -> list[str]:
        """Return the ids of the calls that have no result."""
        for _, call_id in self._open.values():
            self._note(Repair("history_result", "messages", call_id, after=NO_RESULT))
        return [call_id for _, call_id in self._open.values()]


def _arguments_text(given: Any, repairs: list[Repair]) -> str:
    """Return the arguments of a call as the text of a JSON object."""
    if isinstance(given, str):
        try:
            if isinstance(decode_json(given), dict):
                return given
        except ValueError:
            pass
    return json.dumps(_read_arguments(given, repairs), ensure_ascii=False)


def _read_arguments(given: Any, repairs: list[Repair]) -> dict[str, Any]:
    found = repair_json(given).value if isinstance(given, str) and given.strip() else given
    if not isinstance(found, dict):
        found = {MALFORMED: given} if given and given != "null" else {}
    after = json.dumps(found, ensure_ascii=False)[:_SHOWN]
    repairs.append(Repair("history_arguments", "messages", str(given)[:_SHOWN], after=after))
    return found
