"""Reads the whole JSON of one action: which name, which input, what had to be put right. Its borders are given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from closeout.dialects.action_keys import (
    ANSWER_KEYS,
    INPUT_KEYS,
    NAME_KEYS,
    WRAPPER_KEYS,
    is_final_answer,
    is_no_action,
)
from closeout.messages import Repair
from closeout.repair.json_text import repair_json

__all__ = ["REPAIRS", "ActionReading", "plain_input", "read_action", "read_input"]

# The repairs that rule 11 of the parser allows; anything bolder is asked for again.
REPAIRS = frozenset(
    {
        "python_literal",
        "single_quotes",
        "trailing_comma",
        "comment",
        "raw_newline",
        "control_character",
        "unescaped_backslash",
        "double_encoded",
    }
)
_FORM = 'Write it as {"action": "tool name", "action_input": {…}}.'


@dataclass(frozen=True, slots=True)
class ActionReading:
    """What an action says. With a `code` it is no action: "none" says that none was meant, others are defects."""

    name: str = ""
    input: Any = None
    answer: str | None = None  # set if the action is the final answer
    repairs: tuple[Repair, ...] = ()
    code: str = ""
    hint: str = ""


def read_action(raw: str, *, closing: bool = False) -> ActionReading:
    """The action in a JSON text. `closing` allows missing closing brackets at its end to be put there."""
    value, repairs, error = _load(raw, closing)
    if error:
        return ActionReading(code="broken_action", hint=f"The Action is not valid JSON: {error}. {_FORM}")
    action, unwrapped = _unwrap(value)
    if not isinstance(action, dict):
        return ActionReading(code="broken_action", hint=f"The Action holds no tool name. {_FORM}")
    return _read(action, repairs + unwrapped)


def read_input(raw: str, *, closing: bool = False) -> ActionReading:
    """The input in the text of an `Action Input:` that begins with a bracket; it may be a whole action all the same."""
    value, repairs, error = _load(raw, closing)
    if error:
        return ActionReading(code="broken_action", hint=f"The Action Input is not valid JSON: {error}.")
    return ActionReading(input=value, repairs=repairs)


def _load(raw: str, closing: bool) -> tuple[Any, tuple[Repair, ...], str]:
    result = repair_json(raw)
    if result.error:
        return None, (), result.error.rstrip(".")
    allowed = REPAIRS | {"missing_bracket"} if closing else REPAIRS
    for repair in result.repairs:
        if repair.kind not in allowed:
            return None, (), repair.kind.replace("_", " ")
    return result.value, result.repairs, ""


def _unwrap(value: Any) -> tuple[Any, tuple[Repair, ...]]:
    """The object that holds the name: out of lists (the first element counts) and out of wrappers."""
    for _ in range(4):
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, dict) and not _named(value):
            wrapped = (value[key] for key in value if key in WRAPPER_KEYS)
            inner = next((inside for inside in wrapped if isinstance(inside, dict | list)), None)
            if inner is None:
                return value, ()
            value = inner
        else:
            return value, ()
    return value, ()


def _named(action: dict[str, Any]) -> bool:
    return any(isinstance(action.get(key), str) for key in NAME_KEYS) or any(map(is_final_answer, action))


def _read(action: dict[str, Any], repairs: tuple[Repair, ...]) -> ActionReading:
    name_key = next((key for key in NAME_KEYS if isinstance(action.get(key), str)), None)
    answers = [key for key in action if is_final_answer(key) or key in ANSWER_KEYS]
    if name_key is None:
        final = next((key for key in answers if is_final_answer(key)), None)
        if final is not None:
            return ActionReading("Final Answer", action[final], _as_text(action[final]), repairs)
        if any(key in action and action[key] is None for key in NAME_KEYS):
            return ActionReading(code="none", repairs=repairs)
        return ActionReading(code="broken_action", hint=f"The Action holds no tool name. {_FORM}")
    name = action[name_key].strip()
    if is_no_action(name):
        return ActionReading(code="none", repairs=repairs)
    if any(action[key] not in (None, "") for key in answers) and not is_final_answer(name):
        hint = "The Action holds a tool call and an answer at once. Write one of them."
        return ActionReading(code="action_and_answer", hint=hint)
    given = next((action[key] for key in INPUT_KEYS if key in action), None)
    if is_final_answer(name):
        return ActionReading(name, given, _as_text(given), repairs)
    given, decoded = plain_input(given)
    return ActionReading(name, given, None, repairs + decoded)


def plain_input(given: Any) -> tuple[Any, tuple[Repair, ...]]:
    """Nothing means no arguments; a string that holds a JSON object was encoded twice."""
    if given is None:
        return {}, ()
    if isinstance(given, str) and given.lstrip()[:1] == "{":
        try:
            value = json.loads(given)
        except (ValueError, RecursionError):
            return given, ()
        if isinstance(value, dict):
            return value, (Repair("double_encoded", "action_input", given[:40]),)
    return given, ()


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
