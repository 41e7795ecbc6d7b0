"""The one table of action keys, and `read_action`: which tool name and input a complete JSON action holds."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from closeout.codec import decode_json
from closeout.messages import Repair
from closeout.parsing.json_text import STRICT, read_broken_json

__all__ = [
    "ANSWER_KEYS",
    "INPUT_KEYS",
    "NAME_KEYS",
    "NATIVE_TAGS",
    "WRAPPER_KEYS",
    "ActionReading",
    "contradiction",
    "is_final_answer",
    "is_no_action",
    "names_in",
    "plain_input",
    "read_action",
    "read_input",
    "read_object",
]

# The first key that is present counts. The first of each is the one that the prompts teach.
NAME_KEYS = ("action", "action_name", "tool", "tool_name", "function_name", "name", "function")
INPUT_KEYS = (
    "action_input", "actionInput", "tool_input", "tool_args", "tool_arguments", "input", "arguments", "args",
    "parameters", "params", "kwargs",
)  # fmt: skip
WRAPPER_KEYS = frozenset({"tool_call", "tool_calls", "function_call", "function", "action", "tool"})
ANSWER_KEYS = frozenset({"final_answer", "answer"})
NATIVE_TAGS = ("tool_call", "function_call", "functioncall", "tool_use")

_NO_ACTION = re.compile(
    r"(?:|none|null|n/?a|no (?:further |more )?(?:action|tool)s?)(?: (?:is|are))?(?: (?:needed|required|necessary))?"
)
_NAME_KEY = re.compile(rf"[\"'“](?:{'|'.join(NAME_KEYS)})[\"'”]\s*[:：]")
_IGNORED = str.maketrans("", "", " \t\r\n_-.")

# The repairs that an action may need and still run; a model that wrote anything worse is asked again.
_ALLOWED_REPAIRS = frozenset({
    "python_literal", "single_quotes", "smart_quotes", "full_width", "trailing_comma", "comment", "raw_newline",
    "control_character", "unescaped_backslash", "double_encoded",
})  # fmt: skip
_FORM = 'Write it as {"action": "tool name", "action_input": {…}}.'


@dataclass(frozen=True, slots=True)
class ActionReading:
    """The content of an action.

    A `code` means that there is no call: "none" if the model wanted none, else the code of a defect.
    """

    name: str = ""
    input: Any = None
    answer: str | None = None  # set if the action is the final answer
    repairs: tuple[Repair, ...] = ()
    code: str = ""
    hint: str = ""


def is_final_answer(name: str) -> bool:
    """True if a name means the final answer: "Final Answer", "final_answer", "FinalAnswer." and the like."""
    return len(name) <= 64 and name.strip().casefold().translate(_IGNORED) == "finalanswer"


def is_no_action(name: str) -> bool:
    """True if a name means that no tool is called: empty, None, null, N/A, "no action needed"."""
    return len(name) <= 64 and _NO_ACTION.fullmatch(name.strip(" \t\r\n`\"'.()").casefold()) is not None


def read_action(raw: str, *, closing: bool = False) -> ActionReading:
    """Read the action in a JSON text. `closing` allows missing closing brackets at its end to be added."""
    read = _read_json(raw, closing, "The Action")
    if read.code:
        return replace(read, hint=f"{read.hint} {_FORM}")
    action, answered = _unwrap(read.input)
    if not isinstance(action, dict):
        return ActionReading(code="broken_action", hint=f"The Action has no tool name. {_FORM}")
    return _read_action(action, read.repairs, answered)


def read_input(raw: str, *, closing: bool = False) -> ActionReading:
    """Read the JSON text of an `Action Input:`."""
    return _read_json(raw, closing, "The Action Input")


def plain_input(value: Any) -> tuple[Any, tuple[Repair, ...]]:
    """An action's input as arguments: null means none, and a string that holds a JSON object was encoded twice."""
    if value is None:
        return {}, ()
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return value, ()
        if isinstance(decoded, dict):
            return decoded, (Repair("double_encoded", "action_input", value[:40]),)
    return value, ()


def read_object(text: str) -> dict[str, Any] | None:
    """A strict JSON object, or None. NaN and Infinity are not JSON."""
    try:
        value = decode_json(text)
        if "NaN" in text or "Infinity" in text:
            STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def names_in(raw: str) -> list[str]:
    """Every name that the JSON of an action has under a name key, in its wrappers too, but not in its input."""
    if len(_NAME_KEY.findall(raw)) < 2:
        return []
    names: list[str] = []
    pending = [read_broken_json(raw).value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item[:1])
        elif isinstance(item, dict):
            names += [value for key, value in item.items() if key in NAME_KEYS and isinstance(value, str)]
            pending += [value for key, value in item.items() if key in WRAPPER_KEYS and isinstance(value, dict | list)]
    return names


def contradiction(text: str) -> str:
    """Why a JSON text must not run although it can be read: a key with two values, or NaN. "" if nothing is wrong."""
    if text.count(":") < 2 and "NaN" not in text and "Infinity" not in text:  # one key at most
        return ""
    found: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            found.extend(f'has two values for the key "{key[:40]}"' for key, each in pairs if each != value[key])
        return value

    try:
        json.loads(text, object_pairs_hook=check, parse_constant=lambda name: found.append(f"has {name}, not a number"))
    except (ValueError, RecursionError):
        return ""
    return found[0] if found else ""


def _read_json(raw: str, closing: bool, what: str) -> ActionReading:
    """Read a JSON text as an input, whatever it is. `what` names it in hints."""
    result = read_broken_json(raw)
    allowed = _ALLOWED_REPAIRS | {"missing_bracket"} if closing else _ALLOWED_REPAIRS
    refused = (repair.kind.replace("_", " ") for repair in result.repairs if repair.kind not in allowed)
    if error := (result.error or "").rstrip(".") or next(refused, ""):
        return ActionReading(code="broken_action", hint=f"{what} is not valid JSON: {error}.")
    if doubt := contradiction(raw):
        return ActionReading(code="duplicate_key", hint=f"{what} {doubt}.")
    return ActionReading(input=result.value, repairs=result.repairs)


def _unwrap(value: Any) -> tuple[Any, bool]:
    """The object that holds the name, and whether a wrapper around it has an answer. Of a list the first counts."""
    answered = False
    for _ in range(4):
        if isinstance(value, list):
            value = value[0] if value else None
        elif isinstance(value, dict) and not _is_named(value):
            wrapped = (value[key] for key in value if key in WRAPPER_KEYS)
            inner = next((inside for inside in wrapped if isinstance(inside, dict | list)), None)
            if inner is None:
                break
            answered = answered or _has_answer(value)
            value = inner
        else:
            break
    return value, answered


def _has_answer(action: dict[str, Any]) -> bool:
    return any(action[key] not in (None, "") for key in action if is_final_answer(key) or key in ANSWER_KEYS)


def _is_named(action: dict[str, Any]) -> bool:
    return any(isinstance(action.get(key), str) for key in NAME_KEYS) or any(map(is_final_answer, action))


def _read_action(action: dict[str, Any], repairs: tuple[Repair, ...], answered: bool) -> ActionReading:
    name_key = next((key for key in NAME_KEYS if isinstance(action.get(key), str)), None)
    if name_key is None:
        final = next((key for key in action if is_final_answer(key)), None)
        if final is not None:
            return ActionReading("Final Answer", action[final], _as_text(action[final]), repairs)
        if any(key in action and action[key] is None for key in NAME_KEYS):
            return ActionReading(code="none", repairs=repairs)
        return ActionReading(code="broken_action", hint=f"The Action has no tool name. {_FORM}")
    name = action[name_key].strip()
    if is_no_action(name):
        return ActionReading(code="none", repairs=repairs)
    if (answered or _has_answer(action)) and not is_final_answer(name):
        hint = "The Action has both a tool call and an answer. Write only one of them."
        return ActionReading(code="action_and_answer", hint=hint)
    value, *others = [action[key] for key in INPUT_KEYS if key in action] or [None]
    if any(other != value for other in others):
        return ActionReading(code="duplicate_key", hint=f"The Action has two inputs. {_FORM}")
    if is_final_answer(name):
        return ActionReading(name, value, _as_text(value), repairs)
    value, decoded = plain_input(value)
    return ActionReading(name, value, None, repairs + decoded)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
