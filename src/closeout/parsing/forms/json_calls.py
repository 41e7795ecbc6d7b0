"""Tool calls as JSON: one call, a list, or an envelope of either, in the usual spellings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from closeout.messages import Repair, ToolCall
from closeout.parsing.action_keys import ANSWER_KEYS, INPUT_KEYS
from closeout.parsing.action_keys import NAME_KEYS as ACTION_NAME_KEYS
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_values import SEPARATORS, Pairs, Source, json_or_text, load_at, refusal_of
from closeout.parsing.forms.offered import OfferedNames

__all__ = ["BARE_JSON", "calls_in", "flat_call", "make_call", "read_json_run", "refuse"]

NAME_KEYS = ("name", *(key for key in ACTION_NAME_KEYS if key != "name"))
ID_KEYS = ("id", "tool_call_id", "call_id", "tool_use_id")
_WRAPPERS = ("tool_call", "function_call", "functionCall", "function", "tool_use", "action", "tool")
_LISTS = ("tool_calls", "function_calls")
_CANDIDATE = re.compile(r"""\{\s{0,64}["']|\[\s{0,64}\{\s{0,64}["']""")
_FENCE = re.compile(r"```[\w-]{0,16}[ \t]*\n\s{0,64}\Z")
_FENCE_END = re.compile(r"\s{0,64}```")
_MAX_CALLS = 1000  # calls in one value


# -------------------------------------------------------------------------------------------- values that are calls


def as_arguments(value: Any, name: str, toolbox: OfferedNames) -> dict[str, Any] | None:
    """Return a call's arguments: an object, JSON in a string, nothing, or the value of the tool's only parameter.

    None if the value has another form.
    """
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        value = json_or_text(value)
    if isinstance(value, Mapping):
        return value if isinstance(value, dict) else dict(value)
    if value in (None, "", []) or (isinstance(value, str) and not value.strip()):
        return {}
    key = toolbox.only_parameter(name)
    return {key: value} if key else None


def make_call(name: str, arguments: Any, toolbox: OfferedNames, call_id: str = "", text: str = "") -> ToolCall | None:
    """Return a call of an offered tool, or of the name as written; None if the arguments cannot be read."""
    name = toolbox.resolve(name)
    read = as_arguments(arguments, name, toolbox)
    return (
        None if read is None or not name else ToolCall(name, read, call_id, server_name=toolbox.server(name), text=text)
    )


def calls_in(value: Any, toolbox: OfferedNames, *, explicit: bool = False) -> list[ToolCall]:
    """Return the calls in a JSON value: one, a list, or an envelope of either; [] if a member is not a call.

    `explicit`: each call must have both a name and arguments, as nothing else shows that it is one.
    """
    calls: list[ToolCall] = []
    for envelope in _envelopes(value):
        call = _from_envelope(envelope, toolbox, explicit) if envelope is not None else None
        if call is None or len(calls) >= _MAX_CALLS:
            return []
        calls.append(refuse(call, refusal_of(value)))
    return calls


def _envelopes(value: Any) -> Iterator[dict[str, Any] | None]:
    if isinstance(value, list):
        for item in value:
            yield from _envelopes(item) if isinstance(item, dict) else [None]
        return
    if not isinstance(value, dict):
        yield None
        return
    members = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), None)
    if members is not None:
        for member in members:
            yield _unwrapped(member) if isinstance(member, dict) else None
        return
    yield _unwrapped(value)


def _unwrapped(value: dict[str, Any]) -> dict[str, Any]:
    for _ in _WRAPPERS:
        inner = next((value[key] for key in _WRAPPERS if isinstance(value.get(key), dict)), None)
        if inner is None or ("name" in value and not isinstance(value.get("function"), dict)):
            break
        outer = [(key, value[key]) for key in (*ID_KEYS, *ANSWER_KEYS) if key in value]
        refusal = refusal_of(value) or refusal_of(inner)
        value = Pairs([*inner.items(), *outer], refusal) if refusal else {**dict(outer), **inner}
    return value


def _from_envelope(envelope: dict[str, Any], toolbox: OfferedNames, explicit: bool) -> ToolCall | None:
    name = _name_in(envelope, toolbox)
    key = next((key for key in INPUT_KEYS if key in envelope), None)
    if not name.strip() or (explicit and key is None):
        return None
    raw = envelope[key] if key else {}
    if explicit and not isinstance(raw, Mapping) and not (isinstance(raw, str) and raw.strip()[:1] == "{"):
        return None
    if isinstance(raw, Mapping) and _is_schema(raw, envelope):
        return None
    identity = next((str(envelope[key]) for key in ID_KEYS if isinstance(envelope.get(key), str | int)), "")
    server = envelope.get("server_name")
    call = make_call(name, raw, toolbox, identity, raw if isinstance(raw, str) else "")
    if call is None:
        return None
    if isinstance(server, str) and server:
        call = replace(call, server_name=server)
    return refuse(call, _contradiction(envelope, toolbox))


def refuse(call: ToolCall, reason: str) -> ToolCall:
    """Return the call as one that must not run, if there is a reason."""
    if not reason or isinstance(call.arguments, str):
        return call
    return replace(call, arguments=Pairs(call.arguments.items(), reason))


def _name_in(envelope: dict[str, Any], toolbox: OfferedNames) -> str:
    """The call's name: an offered tool's if a key has one, else the first that is written."""
    written = [envelope[key] for key in NAME_KEYS if isinstance(envelope.get(key), str)]
    return next((name for name in written if toolbox.find(name)), written[0] if written else "")


def _contradiction(envelope: dict[str, Any], toolbox: OfferedNames) -> str:
    """Why an envelope does not say clearly what to call, "" if it does."""
    if refusal := refusal_of(envelope):
        return refusal
    if any(key in envelope for key in ANSWER_KEYS):
        return "it has both a call and a final answer"
    names = {toolbox.find(envelope[key]) for key in NAME_KEYS if isinstance(envelope.get(key), str)}
    if len(names - {None}) > 1:
        return "it names two tools"
    inputs = [envelope[key] for key in INPUT_KEYS if isinstance(envelope.get(key), Mapping)]
    return "it has two different sets of arguments" if any(other != inputs[0] for other in inputs[1:]) else ""


def _is_schema(arguments: Mapping[str, Any], envelope: Mapping[str, Any]) -> bool:
    """True if this describes a tool instead of calling it: the "arguments" are a JSON Schema."""
    described = isinstance(arguments.get("properties"), Mapping) and "type" in arguments
    return described or ("description" in envelope and "type" in arguments)


def flat_call(value: dict[str, Any], toolbox: OfferedNames) -> ToolCall | None:
    """A call whose arguments are beside its name, `{"name": "f", "x": 1}`, if the tool's schema confirms it."""
    for key in NAME_KEYS:
        name = toolbox.find(value[key]) if isinstance(value.get(key), str) else None
        arguments = {other: item for other, item in value.items() if other != key}
        if name and arguments and toolbox.properties(name) and toolbox.fits(name, arguments):
            return ToolCall(name, arguments, server_name=toolbox.server(name))
    return None


# ------------------------------------------------------------------------------------------------ JSON in a text


def read_json_run(source: Source, toolbox: OfferedNames, start: int, at: int) -> Block | None:
    """Return consecutive JSON calls from `at` on as one block that begins at `start`, or None."""
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    end = at
    while source.text[at : at + 1] in ("{", "["):
        loaded, stop = load_at(source, at)
        found = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs)) if loaded else []
        if not found or loaded is None or stop is None:
            break
        calls += found
        repairs += loaded.repairs
        end, at = stop, source.skip(SEPARATORS, stop)
    return Block(start, end, tuple(calls), tuple(repairs)) if calls else None


def read_bare_json(source: Source, toolbox: OfferedNames) -> Found:
    """Every JSON value in the text that is a call with a name and arguments."""
    blocks: list[Block] = []
    at = 0
    while not source.exhausted and (candidate := _CANDIDATE.search(source.text, at)):
        start = candidate.start()
        loaded, end = load_at(source, start)
        calls = calls_in(loaded.value, toolbox, explicit=True) if loaded else []
        if calls and loaded and end:
            blocks.append(_fenced(source.text, Block(start, end, tuple(calls), loaded.repairs)))
        # A value that is not a call is skipped whole: what is inside it is data.
        at = end if loaded and end else start + 1
    return Found(tuple(blocks))


def _fenced(text: str, block: Block) -> Block:
    """The block with the code fence around it, if the fence holds nothing else."""
    opening = _FENCE.search(text, max(0, block.start - 96), block.start)
    closing = _FENCE_END.match(text, block.end)
    if not opening or not closing:
        return block
    return Block(opening.start(), closing.end(), block.calls, block.repairs)


BARE_JSON = Form("json", (), read_bare_json)
