"""The usage of all runs in a home, summed by day, budget key, user, model, agent or tool."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain

from closeout.config import home_folder
from closeout.errors import JournalError, RunNotFound, UsageError
from closeout.homes import Home
from closeout.journal.journal_database import SqlConnection
from closeout.journal.readonly import open_to_read
from closeout.journal.store import Store
from closeout.journal.usage_of_run import NUMBERS, UsagePart, totals_kept, usage_of_run
from closeout.messages import Usage, UsageSum

__all__ = ["GROUPS", "UsageTotal", "usage_totals"]

GROUPS = ("day", "key", "user", "model", "agent", "tool")

# An index has the runs whose totals are not kept: those under way, and those that an older version ended.
_UNCOUNTED = "FROM runs WHERE counted IS NULL OR ended IS NULL OR counted<>ended"
_SELECT_UNCOUNTED = f"SELECT id, run_id, ended, model {_UNCOUNTED}"
_SELECT_ALL = "SELECT id, run_id, ended, model FROM runs"
_SELECT_KEPT = f"""
SELECT day, keys, person, model, agent, tool, used.* FROM usage_groups JOIN (
  SELECT usage_group, {", ".join(f"CAST(sum({name}) AS {kind})" for name, kind in NUMBERS.items())} FROM usage
  WHERE usage_group IN (SELECT id FROM usage_groups WHERE day>=? AND day<=? AND (tool='')=?)
  AND run NOT IN (SELECT id {_UNCOUNTED}) GROUP BY usage_group) AS used ON usage_group=usage_groups.id
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """The usage of one group of requests; if the groups have tools, of calls.

    Attributes:
        group: What the requests have in common: the day (UTC, "2026-11-24"), the key of a budget (empty: the run had
            none), the user that the run was given, the model, the agent's name, the tool.
        usage: Tokens, requests, and the cost of the requests whose price is known.
        unpriced: How many requests have no known price.
        calls: How many calls of the tool were made. This and what follows is 0 for groups of requests.
        failures: How many of them failed.
        seconds: How long they took together.
        result_tokens: The tokens of their results as the model was shown them.
    """

    group: Mapping[str, str]
    usage: Usage
    unpriced: int = 0
    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    result_tokens: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the group and its numbers as JSON values."""
        usage = self.usage
        if "tool" in self.group:
            numbers = ("calls", "failures", "seconds", "result_tokens")
            return {**self.group, **{name: getattr(self, name) for name in numbers}}
        return {
            **self.group,
            "requests": usage.requests,
            "input_tokens": usage.input_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
            "unpriced_requests": self.unpriced,
        }


def usage_totals(
    home: str | Home | None = None,
    *,
    by: Sequence[str] = ("day", "model"),
    since: str = "",
    until: str = "",
) -> list[UsageTotal]:
    """Return the usage of all recorded runs, in groups: failed, cancelled and rolled-back requests included.

    Args:
        home: The folder of the runs. Defaults to `CLOSEOUT_HOME` or the user's data folder.
        by: What the groups have in common: "day", "key", "user", "model", "agent", "tool". A request of a run with
            several budget keys counts for each of them. With "tool" calls are counted instead of requests.
        since: The first day, "2026-11-01" (UTC).
        until: The last day.

    Raises:
        UsageError: A group or a day is not valid.
        JournalError: The runs cannot be read.
    """
    if unknown := [name for name in by if name not in GROUPS]:
        raise UsageError(f"Usage has no group {unknown[0]!r}. Choose from {', '.join(GROUPS)}.")
    first, last = _day("since", since), _day("until", until)
    sums: dict[tuple[str, ...], tuple[UsageSum, list[float]]] = {}
    with open_to_read(home_folder(home)) as store:
        for part in chain(_kept(store, first, last or "9999", "tool" in by), _uncounted(store)):
            if (first and part.day < first) or (last and part.day > last) or bool(part.tool) != ("tool" in by):
                continue
            for key in part.keys or ("",) if "key" in by else ("",):
                group = {"day": part.day, "key": key, "user": part.user, "model": part.model, "agent": part.agent}
                group["tool"] = part.tool
                total, numbers = sums.setdefault(tuple(group[name] for name in by), (UsageSum(), [0] * 5))
                added = (part.unpriced, part.calls, part.failures, part.seconds, part.result_tokens)
                numbers[:] = [before + number for before, number in zip(numbers, added, strict=True)]
                total.add(part.usage)
    return [
        UsageTotal(
            group=dict(zip(by, group, strict=True)),
            usage=total.total,
            unpriced=int(unpriced),
            calls=int(calls),
            failures=int(failures),
            seconds=seconds,
            result_tokens=int(tokens),
        )
        for group, (total, [unpriced, calls, failures, seconds, tokens]) in sorted(sums.items())
    ]


def _kept(store: Store, first: str, last: str, calls: bool) -> Iterator[UsagePart]:
    """Yield the usage that is kept with the runs, summed by what requests or calls have in common."""
    if not store.database.has_table("usage"):  # of an older format, which may only be read
        return
    for day, keys, user, model, agent, tool, _, *sums in store.query(_SELECT_KEPT, (first, last, not calls)):
        of = dict(zip(NUMBERS, sums, strict=True))
        usage = Usage(
            of["input"],
            of["output"],
            cache_read_tokens=of["cache_read"],
            cache_write_tokens=of["cache_write"],
            requests=of["requests"],
            cost_usd=of["usd"],
        )
        yield UsagePart(
            day=day,
            keys=tuple(json.loads(keys)),
            user=user,
            model=model,
            agent=agent,
            usage=usage,
            tool=tool,
            **{name: of[name] for name in ("unpriced", "calls", "failures", "seconds", "result_tokens")},
        )


def _uncounted(store: Store) -> Iterator[UsagePart]:
    """Yield the usage of runs that are under way, and of those of an older version, which is kept then."""
    is_kept = store.database.has_table("usage")
    for number, run_id, ended, model in store.query(_SELECT_UNCOUNTED if is_kept else _SELECT_ALL):
        try:
            parts = usage_of_run(store.rows(run_id), model)
        except RunNotFound:
            continue
        if is_kept and ended is not None:
            with suppress(JournalError):
                store.transact(partial(_keep, number, ended, parts))
        yield from parts


def _keep(number: int, ended: float, parts: Sequence[UsagePart], db: SqlConnection) -> None:
    if db.execute("UPDATE runs SET counted=ended WHERE id=? AND ended=?", (number, ended)).rowcount:
        for _, statement, values in totals_kept(number, parts):
            db.execute(statement, values)


def _day(name: str, text: str) -> str:
    if not text:
        return ""
    try:
        return datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise UsageError(f"{name} must be a day such as 2026-11-24, got {text!r:.40}.") from None
