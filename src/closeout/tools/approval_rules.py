"""Rules that approve calls in a person's place: which calls of a tool need no further question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.errors import UsageError
from closeout.journal.events import ToolStarted
from closeout.messages import ToolSpec
from closeout.records import record
from closeout.spelling import suggestion

__all__ = ["ApprovalRule", "Condition", "as_text", "called", "read_rules"]

_LIMITS = {"from": "at_least", "to": "at_most", "begins": "begins", "ends": "ends"}


@record
class Condition:
    """A condition on a value. A list fits if each of its items does.

    Attributes:
        values: The values of which it must be one, as JSON with sorted keys; None: any that fits the rest.
        at_least, at_most: The limits of a number.
        begins, ends: How a text must begin and end.
        anything: Whether every value fits.
    """

    values: tuple[str, ...] | None = None
    at_least: float | None = None
    at_most: float | None = None
    begins: str = ""
    ends: str = ""
    anything: bool = False

    def fits(self, value: Any) -> bool:
        """Return whether a value of a call fits."""
        if self.anything:
            return True
        if self.values is not None:
            return as_text(value) in self.values
        if isinstance(value, list):
            return all(self.fits(each) for each in value)
        if isinstance(value, str):
            limited = self.at_least is not None or self.at_most is not None
            return not limited and value.startswith(self.begins) and value[len(self.begins) :].endswith(self.ends)
        if isinstance(value, bool) or not isinstance(value, int | float) or self.begins or self.ends:
            return False
        low, high = self.at_least, self.at_most
        return (low is None or value >= low) and (high is None or value <= high)

    def written(self) -> Any:
        """Return the condition as it is written in settings."""
        if self.anything:
            return "any"
        if self.values is not None:
            found = [json.loads(each) for each in self.values]
            return {"is": found[0] if len(found) == 1 and not isinstance(found[0], list) else found}
        return {key: value for key, name in _LIMITS.items() if (value := getattr(self, name)) not in (None, "")}


@record
class ApprovalRule:
    """Approves calls of a tool whose arguments fit. A call with an argument that the rule does not name does not fit.

    Attributes:
        tool: The name of the tool; for a tool of an MCP server with the server, `server/tool`.
        where: The condition on each argument.
    """

    tool: str
    where: Mapping[str, Condition]

    def fits(self, tool: str, arguments: Any) -> bool:
        """Return whether the rule approves a call of a tool, which is named as in `tool`."""
        if tool != self.tool or not isinstance(arguments, Mapping) or not arguments.keys() <= self.where.keys():
            return False
        return all(name in arguments and each.fits(arguments[name]) for name, each in self.where.items())

    def written(self) -> dict[str, Any]:
        """Return the rule as it is written in settings."""
        return {"tool": self.tool, "where": {name: each.written() for name, each in self.where.items()}}

    def __str__(self) -> str:
        return json.dumps(self.written(), ensure_ascii=False)


def called(call: ToolSpec | ToolStarted) -> str:
    """Return how rules name the tool of a call: `tool`, or `server/tool`."""
    return f"{call.server_name}/{call.name}" if call.server_name else call.name


def as_text(value: Any) -> str:
    """Return a value as JSON in one form. `1` and `1.0` are one value; `1` and `true` are two."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def read_rules(value: Any) -> tuple[ApprovalRule, ...]:
    """Return rules from a list of `ApprovalRule`, or of mappings as settings have them.

    Raises:
        UsageError: A rule cannot be read.
    """
    if isinstance(value, Mapping | str) or not isinstance(value, Sequence):
        raise UsageError(f"approved must be a list of rules, got {value!r:.80}. Write [{{tool: NAME, where: {{…}}}}].")
    return tuple(each if isinstance(each, ApprovalRule) else _rule(each, n) for n, each in enumerate(value, 1))


def _rule(value: Any, number: int) -> ApprovalRule:
    where = f"Rule {number} of approved"
    if not isinstance(value, Mapping) or not isinstance(value.get("tool"), str) or value.keys() - {"tool", "where"}:
        raise UsageError(f"{where} needs `tool` and `where`, and nothing else, got {value!r:.80}.")
    conditions = value.get("where", {})
    if not isinstance(conditions, Mapping):
        raise UsageError(f"`where` of rule {number} must map arguments to conditions, got {conditions!r:.80}.")
    return ApprovalRule(value["tool"], {str(name): _condition(each, where) for name, each in conditions.items()})


def _condition(value: Any, where: str) -> Condition:
    if value == "any":
        return Condition(anything=True)
    if not isinstance(value, Mapping) or not value:
        raise UsageError(f'{where}: a condition is "any" or a mapping, such as {{is: x}}, got {value!r:.80}.')
    if "is" in value:
        if len(value) > 1:
            raise UsageError(f"{where}: beside `is` there is no other condition, got {value!r:.80}.")
        found = value["is"] if isinstance(value["is"], list) else [value["is"]]
        return Condition(tuple(map(as_text, found)))
    for key, limit in value.items():
        if key not in _LIMITS:
            hint = suggestion(str(key), known := [*_LIMITS, "is"], f"There are: {', '.join(known)}.")
            raise UsageError(f"{where}: there is no condition {key!r}. {hint}")
        wanted = str if key in ("begins", "ends") else (int, float)
        if not isinstance(limit, wanted) or isinstance(limit, bool):
            raise UsageError(f"{where}: `{key}` must be a {'text' if wanted is str else 'number'}, got {limit!r:.80}.")
    return Condition(**{_LIMITS[key]: limit for key, limit in value.items()})
