"""The usage of one run, summed by day, budget keys, model, agent and tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from pydantic_core import to_json

from closeout.journal.events import (
    AgentStarted,
    Event,
    ModelFailed,
    ModelReplied,
    RunStarted,
    ToolFinished,
    TurnAccepted,
)
from closeout.journal.journal_database import RunUpdate
from closeout.journal.store import Row
from closeout.messages import Usage, UsageSum

__all__ = ["NUMBERS", "RunUsage", "UsagePart", "totals_kept", "usage_of_run"]

DAY = 86_400  # seconds
_COUNTED = frozenset({AgentStarted, ModelFailed, ModelReplied, RunStarted, ToolFinished, TurnAccepted})
_NO_USAGE = Usage()
# The columns of a part, each with its type. What it has in common with those of other runs is kept once.
_COUNTS = ("requests", "input", "cache_read", "cache_write", "output", "usd", "unpriced", "calls", "failures")
NUMBERS = dict.fromkeys((*_COUNTS, "seconds", "result_tokens"), "bigint")
NUMBERS |= dict.fromkeys(("usd", "seconds"), "double precision")
_NOTE_GROUP = """
INSERT INTO usage_groups (day, keys, person, model, agent, tool) VALUES (?,?,?,?,?,?)
ON CONFLICT (day, keys, person, model, agent, tool) DO UPDATE SET tool=excluded.tool
"""  # an update, so that nobody deletes the group meanwhile
_NOTE_USAGE = f"""
INSERT INTO usage (run, {", ".join(NUMBERS)}, usage_group)
SELECT CAST(? AS bigint), {", ".join(f"CAST(? AS {kind})" for kind in NUMBERS.values())}, id
FROM usage_groups WHERE day=? AND keys=? AND person=? AND model=? AND agent=? AND tool=?
ON CONFLICT (usage_group, run) DO UPDATE SET {", ".join(f"{name}=excluded.{name}" for name in NUMBERS)}
"""  # noqa: S608 - constants


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


_Group: TypeAlias = tuple[str, tuple[str, ...], str, str]  # day, keys of budgets, model, agent


class RunUsage:
    """Sums the usage of a run while its events come."""

    def __init__(self, model: str = "") -> None:
        self._model = model  # of its main agent, for requests without a reply
        self._user = ""
        self._keys: dict[str, set[str]] = {"main": set()}
        self._models: dict[str, str] = {"main": model}
        self._asked: dict[str, str] = {}  # of agents with a Fallback: the model that replied last
        self._names = {"main": ""}
        self._groups: dict[tuple[str, float], _Group] = {}  # by agent and day, until one of the four above changes
        self._requests: dict[_Group, tuple[UsageSum, list[int]]] = {}
        # Calls, failures, seconds, tokens of results.
        self._tools: dict[tuple[_Group, str], list[float]] = {}

    def add(self, at: float, event: Event) -> None:
        """Add an event and its time, in seconds since the epoch."""
        if type(event) not in _COUNTED:
            return
        if isinstance(event, (ModelReplied, ModelFailed)) and event.usage:
            model = event.model if isinstance(event, ModelReplied) else ""
            if model != self._asked.get(event.agent) and model in self._model_of(event.agent).split(" | "):
                self._groups.clear()
                self._asked[event.agent] = model  # whatever else the server calls it
            total, unpriced = self._requests.setdefault(self._group(event.agent, at), (UsageSum(), [0]))
            cost = event.usage.get("cost_usd")
            usage = Usage(**{**event.usage, "cost_usd": cost or 0.0})
            if cost is None:
                unpriced[0] += usage.requests
            total.add(usage)
        elif isinstance(event, ToolFinished):
            sums = self._sums(event.name, event.agent, at)
            sums[0] += 1
            sums[1] += not event.ok
            sums[2] += event.ms / 1000
        elif isinstance(event, TurnAccepted):
            for shown in event.returns:
                if shown["call"] < len(event.calls):
                    name = str(event.calls[shown["call"]]["name"])
                    self._sums(name, event.agent, at)[3] += shown.get("tokens") or 0
        elif isinstance(event, RunStarted):
            self._names["main"], self._user = event.name, event.user
            self._keys["main"] = set(event.settings.get("budget") or ())
        elif isinstance(event, AgentStarted):
            self._keys[event.agent] = _keys_of(event.agent, self._keys) | set(event.budget)
            self._models[event.agent], self._names[event.agent] = event.model, event.name
            self._groups.clear()

    def _group(self, path: str, at: float) -> _Group:
        place = path, at // DAY
        if (found := self._groups.get(place)) is None:
            day = datetime.fromtimestamp(at, UTC).date().isoformat()
            name = self._names.get(path) or path.rpartition(":")[2]
            keys, model = tuple(sorted(_keys_of(path, self._keys))), self._asked.get(path)
            found = self._groups[place] = day, keys, model or self._model_of(path), name
        return found

    def _model_of(self, path: str) -> str:
        return self._models.get(path, self._model)

    def _sums(self, name: str, path: str, at: float) -> list[float]:
        return self._tools.setdefault((self._group(path, at), name), [0.0] * 4)

    def parts(self) -> list[UsagePart]:
        """Return the usage in parts."""
        user = self._user
        requests = [
            UsagePart(day=day, keys=charged, user=user, model=used, agent=name, usage=total.total, unpriced=unpriced)
            for (day, charged, used, name), (total, [unpriced]) in self._requests.items()
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
            for ((day, charged, used, name), tool), (calls, failures, seconds, tokens) in self._tools.items()
        ]


def usage_of_run(rows: Iterable[Row], model: str) -> list[UsagePart]:
    """Return the usage of a run in parts, given its events and the model of its main agent."""
    usage = RunUsage(model)
    for row in rows:
        usage.add(row.time, row.event)
    return usage.parts()


def totals_kept(number: int, parts: Iterable[UsagePart]) -> list[RunUpdate]:
    """Return the changes that keep the usage of a run, by its number, beside it."""
    kept = []
    for part in parts:
        used = part.usage
        texts = (part.day, to_json(part.keys).decode(), part.user, part.model, part.agent, part.tool)
        group = tuple(text.encode("utf-8", "replace").decode() for text in texts)
        tokens = (used.input_tokens, used.cache_read_tokens, used.cache_write_tokens, used.output_tokens)
        requests = (used.requests, *tokens, used.cost_usd or 0.0, part.unpriced)
        calls = (part.calls, part.failures, part.seconds, part.result_tokens)
        kept.append((group, (number, *requests, *calls, *group)))
    kept.sort()  # two processes that note new groups note them in the same order
    groups: list[RunUpdate] = [(number, _NOTE_GROUP, group) for group, _ in kept]
    return groups + [(number, _NOTE_USAGE, values) for _, values in kept]


def _keys_of(agent: str, keys: Mapping[str, set[str]]) -> set[str]:
    """Return the keys of an agent, or of the nearest one above it."""
    while agent not in keys and "/" in agent:
        agent = agent.rpartition("/")[0]
    return keys.get(agent, keys["main"])
