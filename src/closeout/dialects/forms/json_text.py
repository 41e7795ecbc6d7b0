"""JSON inside a reply: where a value ends, what it is (strictly, else repaired), and the calls that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.messages import Repair, ToolCall
from closeout.repair.json_text import repair_json

__all__ = ["Loaded", "as_arguments", "calls_in", "load", "make_call", "value_end"]

NAME_KEYS = ("name", "tool_name", "function_name", "tool", "action", "function")
ARGUMENT_KEYS = (
    "arguments", "parameters", "args", "params", "input", "action_input", "tool_input", "tool_args", "kwargs",
)  # fmt: skip
ID_KEYS = ("id", "tool_call_id", "call_id", "tool_use_id")
_WRAPPERS = ("tool_call", "function_call", "functionCall", "function", "tool_use")
_LISTS = ("tool_calls", "function_calls")
_STRUCTURE = re.compile(r'[{}\[\]"]')
_STRING_REST = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MAX_REPAIRED = 1 << 18  # characters; a broken value beyond this is not worth a guess
_MAX_CALLS = 1000  # in one value


@dataclass(frozen=True, slots=True)
class Loaded:
    value: Any
    repairs: tuple[Repair, ...] = ()


def value_end(source: Source, start: int) -> int | None:
    """Where the object or array that opens at `start` ends, or None if it does not."""
    text, at, depth = source.text, start, 0
    if source.exhausted:
        return None
    while found := _STRUCTURE.search(text, at):
        at, mark = found.end(), found[0]
        if mark == '"':
            string = _STRING_REST.match(text, at)
            if string is None:
                break
            at = string.end()
        elif mark in "{[":
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                source.spend(at - start)
                return at
    source.spend(len(text) - start)
    return None


def load(text: str, *, mend: bool | Source = True) -> Loaded | None:
    """The JSON value of a text: strictly first, then with named repairs. None: it is no JSON.

    `mend` False: strictly only; a Source: as long as that has repairs left.
    """
    try:
        return Loaded(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        pass
    try:
        return Loaded(json.loads(text, strict=False, parse_constant=_refuse), (Repair("raw_control", "json"),))
    except (ValueError, RecursionError):
        pass
    if len(text) > _MAX_REPAIRED or not (mend.may_mend() if isinstance(mend, Source) else mend):
        return None
    return _mended(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _mended(text: str) -> Loaded | None:
    repaired = repair_json(text)
    return Loaded(repaired.value, repaired.repairs) if repaired.ok and isinstance(repaired.value, dict | list) else None


def as_arguments(value: Any, name: str, toolbox: Toolbox) -> dict[str, Any] | None:
    """A call's arguments as a dict: objects, JSON in a string, nothing, or the value of a tool's only parameter."""
    if isinstance(value, str) and value.strip():
        loaded = load(value) if value.strip()[:1] in "{[" else None
        value = loaded.value if loaded else value
    if isinstance(value, Mapping):
        return dict(value)
    if value in (None, "", []) or (isinstance(value, str) and not value.strip()):
        return {}
    key = toolbox.only_parameter(name)
    return {key: value} if key else None


def make_call(name: str, arguments: Any, toolbox: Toolbox, call_id: str = "", text: str = "") -> ToolCall | None:
    """A call of that name, None if the arguments are no object and cannot stand for one."""
    name = toolbox.resolve(name)
    read = as_arguments(arguments, name, toolbox)
    return None if read is None or not name else ToolCall(name, read, call_id, toolbox.server(name), text)


def calls_in(value: Any, toolbox: Toolbox, *, explicit: bool = False) -> list[ToolCall]:
    """The calls that a JSON value stands for: one, a list, or an envelope of either, in the usual spellings.

    `explicit`: each must carry both a name and arguments, as nothing else shows that it is a call. All or nothing: a
    value with a member that is no call yields none.
    """
    calls: list[ToolCall] = []
    for envelope in _envelopes(value):
        call = _from_envelope(envelope, toolbox, explicit) if envelope is not None else None
        if call is None or len(calls) >= _MAX_CALLS:
            return []
        calls.append(call)
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
        value = {**{key: value[key] for key in ID_KEYS if key in value}, **inner}
    return value


def _from_envelope(envelope: dict[str, Any], toolbox: Toolbox, explicit: bool) -> ToolCall | None:
    name = next((envelope[key] for key in NAME_KEYS if isinstance(envelope.get(key), str)), "")
    key = next((key for key in ARGUMENT_KEYS if key in envelope), None)
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
    if call and isinstance(server, str) and server:
        return ToolCall(call.name, call.arguments, call.id, server, call.text)
    return call


def _is_schema(arguments: Mapping[str, Any], envelope: Mapping[str, Any]) -> bool:
    """Whether this describes a tool instead of calling it: the "arguments" are a JSON Schema."""
    described = isinstance(arguments.get("properties"), Mapping) and "type" in arguments
    return described or ("description" in envelope and "type" in arguments)
