"""The usage of one run, summed by day, budget keys, model and agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from closeout.journal.events import AgentStarted, ModelFailed, ModelReplied, RunStarted
from closeout.journal.store import Row
from closeout.messages import Usage, UsageSum

__all__ = ["UsagePart", "usage_of_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePart:
    """The requests of an agent of a run on one day with one model.

    Attributes:
        day: The day (UTC, "2026-11-24").
        keys: The budgets that were charged.
        user: The user that the run was given.
        model: The model.
        agent: The agent's name.
        usage: The sum. A request without a known price adds nothing to the cost.
        unpriced: How many requests have no known price.
    """

    day: str
    keys: tuple[str, ...]
    user: str
    model: str
    agent: str
    usage: Usage
    unpriced: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> UsagePart:
        """Return the part that `to_json` made these values of."""
        return cls(**{**fields, "keys": tuple(fields["keys"]), "usage": Usage(**fields["usage"])})


def usage_of_run(rows: Iterable[Row], model: str) -> list[UsagePart]:
    """Return the usage of a run in parts.

    Args:
        rows: Its events.
        model: The model of its main agent.
    """
    keys: dict[str, set[str]] = {"main": set()}
    user = ""
    models, names = {"main": model}, {"main": ""}
    sums: dict[tuple[str, tuple[str, ...], str, str], tuple[UsageSum, list[int]]] = {}
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
            day = datetime.fromtimestamp(row.time, UTC).date().isoformat()
            name = names.get(path) or path.rpartition(":")[2]
            group = day, tuple(sorted(_keys_of(path, keys))), models.get(path, model), name
            total, unpriced = sums.setdefault(group, (UsageSum(), [0]))
            usage = Usage(**event.usage)
            if usage.cost_usd is None:
                unpriced[0] += usage.requests
                usage = replace(usage, cost_usd=0.0)
            total.add(usage)
    return [
        UsagePart(day=day, keys=charged, user=user, model=used, agent=name, usage=total.total, unpriced=unpriced)
        for (day, charged, used, name), (total, [unpriced]) in sums.items()
    ]


def _keys_of(agent: str, keys: Mapping[str, set[str]]) -> set[str]:
    """Return the keys of an agent, or of the nearest one above it."""
    while agent not in keys and "/" in agent:
        agent = agent.rpartition("/")[0]
    return keys.get(agent, keys["main"])
