"""Find the waiting runs that can continue, because of a time, a signal, a login or decisions, and resume them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from closeout.errors import CloseoutError, JournalError, JournalLocked, RunNotFound
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.store import Row, Store, executor_of
from closeout.journal.subscribers import Listener
from closeout.run.handoff import is_run_of
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import resume_run
from closeout.run.waits.decisions import PendingDecision, due_time, pending_decisions
from closeout.tools.mcp.mcp_logins import login_changed

__all__ = ["DueRuns", "due_runs", "has_login", "name_executor", "ready_runs", "resume_due", "waits_since"]

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
    """Finds the waiting runs that can continue according to their events, which it reads once.

    These are runs that have a signal, that wait for a login, or that an older version suspended. Of others the store
    knows when.

    Attributes:
        store: Where the runs are kept.
    """

    store: Store
    _waits: dict[str, _Wait] = field(default_factory=dict)  # those that were read

    def among(self, unsure: Iterable[tuple[str, int, str]], now: float) -> list[str]:
        """Return those of some waiting runs that can continue according to their events: see `Look.unsure`."""
        waits: dict[str, _Wait] = {}
        found = []
        for run_id, version, name in unsure:
            wait = self._read_wait(run_id, version, waits)
            if wait is not None and (any(name in each.signals for each in wait.pending) or _is_over(wait, now)):
                found.append(run_id)
        self._waits = waits
        return found

    def _read_wait(self, run_id: str, version: int, waits: dict[str, _Wait]) -> _Wait | None:
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


def ready_runs(plan: AgentPlan, store: Store, now: float | None = None) -> dict[str, str]:
    """Return the runs of an agent that can continue and that nobody executes, each with its status.

    Args:
        plan: The agent.
        store: Where the runs are kept.
        now: The time that counts.
    """
    now = store.clock(exact=True) if now is None else now
    ready, others = store.ready(plan.name, now)
    named = [name_executor(plan, store, run_id) for run_id in others.unnamed]
    if any(named):
        ready, others = store.ready(plan.name, now)
    return ready | dict.fromkeys(DueRuns(store).among(others.unsure, now), "waiting")


def due_runs(store: Store, now: float | None = None) -> list[str]:
    """Return the waiting runs of all agents and servers that can continue, now or at a time."""
    now, due, waits = now or store.clock(exact=True), list[str](), DueRuns(store)
    executors = store.query("SELECT DISTINCT agent FROM runs WHERE status='waiting' AND agent<>''")
    unnamed: list[str] = []
    for (executor,) in executors or [("",)]:
        ready, others = store.ready(executor, now)
        due += [run_id for run_id, status in ready.items() if status == "waiting"]
        due += waits.among(others.unsure, now)
        unnamed = others.unnamed
    due += waits.among([(run_id, 0, "") for run_id in unnamed], now)
    return list(dict.fromkeys(due))


def name_executor(plan: AgentPlan, store: Store, run_id: str) -> bool:
    """Note what executes a run of an older version, or one that began after a handoff. Returns False if unknown."""
    try:
        rows = store.rows_from(run_id, 0, 1)
    except RunNotFound:
        return False
    started = rows[0].event if rows else None
    if not isinstance(started, RunStarted):
        return False
    executor = executor_of(started)
    if executor is None and is_run_of(plan, started):
        executor = plan.name
    if executor is not None:
        store.name_agent(run_id, executor)
    return executor is not None


async def resume_due(
    plan: AgentPlan, store: Store, listeners: Sequence[Listener] = (), *, limit: int = 10, now: datetime | None = None
) -> list[RunResult]:
    """Resume the waiting runs of an agent that can continue: see `Agent.resume_due`."""
    at = None if now is None else now.timestamp()
    if at is not None:
        plan = replace(plan, clock=lambda: at)
    ready = await store.off_loop(ready_runs, plan, store, at)
    due = iter([run_id for run_id, status in ready.items() if status == "waiting"])
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
    """Resume a run. None: it is being executed, or it cannot be resumed, which is logged."""
    try:
        seen = await store.off_loop(store.run, run_id)
        if seen.status != "waiting":  # another process was faster
            return None
        return await resume_run(plan, store, run_id, listeners, seen=seen)
    except (RunNotFound, JournalLocked):
        return None
    except CloseoutError as error:  # the other runs continue
        log.warning("Run %s is due, but it is not resumed: %s", run_id, error)
        return None
