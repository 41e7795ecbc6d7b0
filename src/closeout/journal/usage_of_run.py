"""The usage of one run, summed by day, budget keys, model, agent and tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from closeout.journal.events import AgentStarted, ModelFailed, ModelReplied, RunStarted, ToolFinished, TurnAccepted
from closeout.journal.store import Row
from closeout.messages import Usage, UsageSum

__all__ = ["UsagePart", "usage_of_run"]


_NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePart:
    """The requests of an agent of a run on one day with one model, or its calls of one tool.

    Attributes:
        day: The day (UTC, "2026-11-24").
        keys: The budgets that were charged.
        user: The user that the run was given.
        model: The model.
        agent: The agent's name.
        usage: The sum. A request without a known price adds nothing to the cost.
        unpriced: How many requests have no known price.
        tool: The tool; empty for requests.
        calls: The calls of the tool.
        failures: Those of them that failed.
        seconds: How long they took together.
        result_tokens: The tokens of their results as the model was shown them.
    """

    day: str
    keys: tuple[str, ...]
    user: str
    model: str
    agent: str
    usage: Usage = _NO_USAGE
    unpriced: int = 0
    tool: str = ""
    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    result_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> UsagePart:
        """Return the part that `to_json` made these values of."""
        return cls(**{**fields, "keys": tuple(fields["keys"]), "usage": Usage(**fields["usage"])})


_Group: TypeAlias = tuple[str, tuple[str, ...], str, str]  # day, keys of budgets, model, agent


def usage_of_run(rows: Iterable[Row], model: str) -> list[UsagePart]:
    """Return the usage of a run in parts.

    Args:
        rows: Its events.
        model: The model of its main agent.
    """
    keys: dict[str, set[str]] = {"main": set()}
    user = ""
    models, names = {"main": model}, {"main": ""}
    sums: dict[_Group, tuple[UsageSum, list[int]]] = {}
    tools: dict[tuple[_Group, str], list[float]] = {}  # calls, failures, seconds, tokens of results

    def group_of(path: str, time: float) -> _Group:
        day = datetime.fromtimestamp(time, UTC).date().isoformat()
        name = names.get(path) or path.rpartition(":")[2]
        return day, tuple(sorted(_keys_of(path, keys))), models.get(path, model), name

    def add(name: str, path: str, time: float, *numbers: float) -> None:
        sum_ = tools.setdefault((group_of(path, time), name), [0.0] * 4)
        sum_[:] = [before + number for before, number in zip(sum_, numbers, strict=True)]

    for row in rows:
        event = row.event
        if isinstance(event, RunStarted):
            names["main"], user = event.name, event.user
            keys["main"] = set(event.settings.get("budget") or ())
        elif isinstance(event, AgentStarted):
            keys[event.agent] = _keys_of(event.agent, keys) | set(event.budget)
            models[event.agent], names[event.agent] = event.model, event.name
        elif isinstance(event, ModelReplied | ModelFailed) and event.usage:
            path = event.agent
            if isinstance(event, ModelReplied) and event.model:
                models[path] = event.model
            total, unpriced = sums.setdefault(group_of(path, row.time), (UsageSum(), [0]))
            usage = Usage(**event.usage)
            if usage.cost_usd is None:
                unpriced[0] += usage.requests
                usage = replace(usage, cost_usd=0.0)
            total.add(usage)
        elif isinstance(event, ToolFinished):
            add(event.name, event.agent, row.time, 1, not event.ok, event.ms / 1000, 0)
        elif isinstance(event, TurnAccepted):
            for shown in event.returns:
                if shown["call"] < len(event.calls):
                    name = str(event.calls[shown["call"]]["name"])
                    add(name, event.agent, row.time, 0, 0, 0, shown.get("tokens") or 0)
    requests = [
        UsagePart(day=day, keys=charged, user=user, model=used, agent=name, usage=total.total, unpriced=unpriced)
        for (day, charged, used, name), (total, [unpriced]) in sums.items()
    ]
    return requests + [
        UsagePart(
            day=day,
            keys=charged,
            user=user,
            model=used,
            agent=name,
            tool=tool,
            calls=int(calls),
            failures=int(failures),
            seconds=seconds,
            result_tokens=int(tokens),
        )
        for ((day, charged, used, name), tool), (calls, failures, seconds, tokens) in tools.items()
    ]


def _keys_of(agent: str, keys: Mapping[str, set[str]]) -> set[str]:
    """Return the keys of an agent, or of the nearest one above it."""
    while agent not in keys and "/" in agent:
        agent = agent.rpartition("/")[0]
    return keys.get(agent, keys["main"])
