"""Select runs by status, model, text, calls and age: the filters of `closeout runs`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from closeout.errors import UsageError
from closeout.journal.events import DecisionMade, DecisionRequested, ToolFinished
from closeout.journal.persons import belongs_to
from closeout.journal.run_names import LAB
from closeout.journal.store import Row, RunRecord, Store

__all__ = ["RunFilter", "seconds_in"]

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
STATUSES = ("answered", "unanswered", "failed", "cancelled", "interrupted", "running", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A selection of runs. An empty field matches any; with no field set, runs of what-if comparisons are left out.

    Attributes:
        status: One of the statuses of a run.
        model: A part of the model's name.
        text: Words that the run contains, in its task, replies, calls, results or answer.
        agent: The name of the agent.
        user: A person for whom the run is.
        older_than: An age such as "30d"; the run began earlier.
        newer_than: The run began later.
        tool: The name of a tool that the run called.
        failed_call: A call of the run, or of this tool, failed, or a person denied it.
    """

    status: str = ""
    model: str = ""
    text: str = ""
    agent: str = ""
    user: str = ""
    older_than: str = ""
    newer_than: str = ""
    tool: str = ""
    failed_call: bool = False

    def __post_init__(self) -> None:
        if self.status and self.status not in STATUSES:
            raise UsageError(f"Unknown status '{self.status}'. --status takes {', '.join(STATUSES)}.")

    @property
    def is_set(self) -> bool:
        """True if any field limits the runs."""
        return self != RunFilter()

    def select(self, store: Store) -> Iterator[RunRecord]:
        """Iterate over the runs that match, newest first."""
        now = time.time()
        began_before = now - seconds_in("--older-than", self.older_than) if self.older_than else now + 86_400
        began_after = now - seconds_in("--newer-than", self.newer_than) if self.newer_than else 0.0
        for record in self._found(store):
            if self.status and record.status != self.status:
                continue
            if self.model and self.model.casefold() not in record.model.casefold():
                continue
            if began_after <= record.started <= began_before and self._has_call(store, record.run_id):
                yield record

    def _has_call(self, store: Store, run_id: str) -> bool:
        calls = _ended_calls(store.rows(run_id)) if self.tool or self.failed_call else [("", False)]
        return any(self.tool in ("", name) and not (self.failed_call and ok) for name, ok in calls)

    def _found(self, store: Store) -> Iterator[RunRecord]:
        if self.text:
            from closeout.journal.text_search import SearchIndex

            with SearchIndex(store) as index:
                index.update()
                for hit in index.search(self.text):
                    started = store.beginning(hit.run.run_id) if self.agent or self.user else None
                    if belongs_to(started, agent=self.agent, user=self.user):
                        yield hit.run
        elif self.agent or self.user:
            for run_id, started in store.beginnings(self.user or self.agent):
                if belongs_to(started, agent=self.agent, user=self.user):
                    yield store.run(run_id)
        else:
            yield from store.each_run(not_under=() if self.is_set else [LAB])


def _ended_calls(rows: Iterable[Row]) -> Iterator[tuple[str, bool]]:
    """Yield each called tool, and whether the call succeeded. A denied call did not."""
    asked: dict[tuple[str, str], str] = {}
    for event in (row.event for row in rows):
        if isinstance(event, ToolFinished):
            yield event.name, event.ok
        elif isinstance(event, DecisionRequested):
            asked[event.agent, event.request] = event.name
        elif isinstance(event, DecisionMade) and event.verdict == "deny":
            yield asked.get((event.agent, event.request), ""), False


def seconds_in(option: str, age: str) -> float:
    """Return the seconds of an age such as `12h`.

    Raises:
        UsageError: The text is not a duration.
    """
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise UsageError(f"{option} must be a number with s, m, h, d or w, got '{age}'. Write {option} 30d.")
    return float(found[1]) * _UNITS[found[2]]
