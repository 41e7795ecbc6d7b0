"""Find the waiting runs that can continue, because of a time, a signal, a login or decisions, and resume them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from closeout.errors import CloseoutError, JournalError, JournalLocked, RunNotFound
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.sent_signals import runs_with_signals
from closeout.journal.store import Row, Store
from closeout.journal.subscribers import Listener
from closeout.run.handoff import is_run_of
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import resume_run
from closeout.run.waiting import PendingDecision, pending_decisions
from closeout.tools.mcp_logins import login_changed

__all__ = ["DueRuns", "has_login", "resume_due", "waits_since"]

log = logging.getLogger("closeout")


@dataclass(frozen=True, slots=True)
class _Wait:
    """The conditions of a waiting run, the number of the event that states them, and when it began to wait."""

    version: int
    since: float
    pending: tuple[PendingDecision, ...]

    def is_over(self, signals: frozenset[str], now: float) -> bool:
        """Return whether the run can continue.

        A time has passed, a signal has arrived, somebody has signed in, or everything else was decided or has a default
        answer that counts.
        """
        own = [each for each in self.pending if not each.by_person]
        if any(has_login(each, self.since) for each in own):
            return True
        if any(_has_passed(each, now) or each.arguments.get("signal") in signals for each in own):
            return True
        return not own and all(each.default is not None and _has_passed(each, now) for each in self.pending)


def waits_since(rows: Iterable[Row]) -> float:
    """Return when a recorded run was suspended last, in seconds since the epoch."""
    return max((row.time for row in rows if isinstance(row.event, RunEnded)), default=0.0)


def has_login(pending: PendingDecision, since: float) -> bool:
    """Return True if a run waits for a login, and somebody has signed in since it was suspended."""
    return pending.kind == "login" and login_changed(str(pending.arguments.get("url", ""))) > since


def _has_passed(pending: PendingDecision, now: float) -> bool:
    return pending.expires is not None and pending.expires <= now


@dataclass(slots=True)
class DueRuns:
    """Finds the waiting runs of a store that can continue. What a run waits for is read once, not at every look.

    Attributes:
        store: Where the runs are kept.
        next_time: When the next of the waits that were found ends, in seconds since the epoch; infinity if none does.
    """

    store: Store
    next_time: float = math.inf
    _waits: dict[str, _Wait] = field(default_factory=dict)

    def find(self, now: float | None = None) -> Iterator[str]:
        """Yield the ids of the runs that can continue, the oldest first."""
        now = time.time() if now is None else now
        waits: dict[str, _Wait] = {}
        for run_id, version in self.store.waiting_runs():
            known = self._waits.get(run_id)
            if known is None or known.version != version:
                try:
                    rows = list(self.store.rows(run_id))
                    known = _Wait(version, waits_since(rows), pending_decisions(rows))
                except (RunNotFound, JournalError):
                    continue  # it was deleted meanwhile, or cannot be read
            waits[run_id] = known
        self._waits = waits
        names: dict[str, set[str]] = {}
        for run_id, name in runs_with_signals(self.store):
            names.setdefault(run_id, set()).add(name)
        expiries = [each.expires for wait in waits.values() for each in wait.pending if each.expires is not None]
        self.next_time = min((each for each in expiries if each > now), default=math.inf)
        for run_id, wait in waits.items():
            if wait.is_over(frozenset(names.get(run_id, ())), now):
                yield run_id


async def resume_due(
    plan: AgentPlan, store: Store, listeners: Sequence[Listener] = (), *, limit: int = 10, now: datetime | None = None
) -> list[RunResult]:
    """Resume the waiting runs of an agent that can continue: see `Agent.resume_due`."""
    at = time.time() if now is None else now.timestamp()
    if now is not None:
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
