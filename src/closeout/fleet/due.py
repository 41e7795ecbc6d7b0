"""Find the waiting runs that can continue, because of a time, a signal, a login or decisions, and resume them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from closeout.errors import CloseoutError, JournalError, JournalLocked, RunNotFound
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.sent_signals import waiting_with_signals
from closeout.journal.store import Row, Store
from closeout.journal.subscribers import Listener
from closeout.run.handoff import is_run_of
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import resume_run
from closeout.run.waits.waiting import PendingDecision, due_time, pending_decisions
from closeout.tools.mcp.mcp_logins import login_changed

__all__ = ["DueRuns", "has_login", "resume_due", "waits_since"]

log = logging.getLogger("closeout")


@dataclass(frozen=True, slots=True)
class _Wait:
    """The conditions of a waiting run, the number of the event that states them, and when it began to wait."""

    version: int
    since: float
    pending: tuple[PendingDecision, ...]


def waits_since(rows: Iterable[Row]) -> float:
    """Return when a recorded run was suspended last, in seconds since the epoch."""
    return max((row.time for row in rows if isinstance(row.event, RunEnded)), default=0.0)


def has_login(pending: PendingDecision, since: float) -> bool:
    """Return True if a run waits for a login, and somebody has signed in since it was suspended."""
    return pending.kind == "login" and login_changed(str(pending.arguments.get("url", ""))) > since


@dataclass(slots=True)
class DueRuns:
    """Finds the waiting runs of a store that can continue, by the clock that its processes share.

    The store knows when. Only of runs that have a signal, that wait for a login or that an older version suspended, the
    events are read, once.

    Attributes:
        store: Where the runs are kept.
        next_time: When the next of them can continue without a signal, in seconds since the epoch; infinity if none.
    """

    store: Store
    next_time: float = math.inf
    _waits: dict[str, _Wait] = field(default_factory=dict)  # those that were read

    def find(self, now: float | None = None) -> Iterator[str]:
        """Yield the ids of the runs that can continue: those whose time has come, in its order, and those signalled."""
        now = self.store.clock(exact=True) if now is None else now
        self.next_time = self.store.next_due(now)
        due = self.store.due_runs(now)
        unsure = [(run_id, version, "") for run_id, is_known, version in due if not is_known]
        signalled = [(run_id, version, name) for run_id, name, version in waiting_with_signals(self.store)]
        over = dict.fromkeys(self.among([*unsure, *signalled], now))
        found = [run_id for run_id, is_known, _ in due if is_known or run_id in over]
        if found := [*dict.fromkeys((*found, *over))]:
            imported = self.store.imported_runs()
            yield from (run_id for run_id in found if run_id not in imported)

    def among(self, unsure: Iterable[tuple[str, int, str]], now: float) -> list[str]:
        """Return those of some waiting runs that can continue according to their events: see `Look.unsure`."""
        waits: dict[str, _Wait] = {}
        found = []
        for run_id, version, name in unsure:
            wait = self._read(run_id, version, waits)
            if wait is not None and (any(name in each.signals for each in wait.pending) or _is_over(wait, now)):
                found.append(run_id)
        self._waits = waits
        return found

    def _read(self, run_id: str, version: int, waits: dict[str, _Wait]) -> _Wait | None:
        """Return what a run waits for; None if it was deleted meanwhile, or cannot be read."""
        known = waits.get(run_id) or self._waits.get(run_id)
        if known is None or known.version != version:
            try:
                rows = list(self.store.rows(run_id))
            except (RunNotFound, JournalError):
                return None
            known = _Wait(version, waits_since(rows), pending_decisions(rows))
        waits[run_id] = known
        return known


def _is_over(wait: _Wait, now: float) -> bool:
    return due_time(wait.pending) <= now or any(has_login(each, wait.since) for each in wait.pending)


async def resume_due(
    plan: AgentPlan, store: Store, listeners: Sequence[Listener] = (), *, limit: int = 10, now: datetime | None = None
) -> list[RunResult]:
    """Resume the waiting runs of an agent that can continue: see `Agent.resume_due`."""
    at = None if now is None else now.timestamp()
    if at is not None:
        plan = replace(plan, clock=lambda: at)
    due = iter(await store.off_loop(lambda: list(DueRuns(store).find(at))))
    results: list[RunResult] = []

    async def work() -> None:
        for run_id in due:
            result = await _resumed(plan, store, run_id, listeners)
            if result is not None:
                results.append(result)

    async with asyncio.TaskGroup() as group, plan.manager:
        for _ in range(limit):
            group.create_task(work())
    return results


async def _resumed(plan: AgentPlan, store: Store, run_id: str, listeners: Sequence[Listener]) -> RunResult | None:
    """Resume a run. None: it is another agent's or is being executed, or it cannot be resumed, which is logged."""
    try:
        rows = await store.off_loop(store.rows_from, run_id, 0, 1)
        if not rows or not isinstance(rows[0].event, RunStarted) or not is_run_of(plan, rows[0].event):
            return None
        seen = await store.off_loop(store.run, run_id)
        if seen.status != "waiting":  # another process was faster
            return None
        return await resume_run(plan, store, run_id, listeners, seen=seen)
    except (RunNotFound, JournalLocked):
        return None
    except CloseoutError as error:  # the other runs continue
        log.warning("Run %s is due, but it is not resumed: %s", run_id, error)
        return None
