"""The usage of all runs in a home, summed by day, budget key, user, model, agent or tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.homes import Home, as_home
from closeout.journal.readonly import open_to_read
from closeout.journal.text_search import indexed_usage
from closeout.journal.usage_of_run import usage_of_run
from closeout.messages import Usage, UsageSum

__all__ = ["GROUPS", "UsageTotal", "usage_totals"]

GROUPS = ("day", "key", "user", "model", "agent", "tool")


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
    with open_to_read(home_folder() if home is None else as_home(home)) as store:
        indexed = indexed_usage(store)
        for run in store.each_run():
            if first and run.ended is not None and datetime.fromtimestamp(run.ended, UTC).date().isoformat() < first:
                continue
            ended, parts = indexed.get(run.run_id, (None, []))
            if run.ended is None or ended != run.ended:
                parts = usage_of_run(store.rows(run.run_id), run.model)
            for part in parts:
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


def _day(name: str, text: str) -> str:
    if not text:
        return ""
    try:
        return datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise UsageError(f"{name} must be a day such as 2026-11-24, got {text!r:.40}.") from None
