"""Legs: a run executes from one wait to the next, driven by a worker of ours or by an engine that calls `Agent.leg`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime

from closeout.errors import UsageError
from closeout.fleet.due_runs import DueRuns
from closeout.fleet.interruptions import ended_in_vain
from closeout.journal.events import DecisionRequested
from closeout.journal.locks import locked
from closeout.journal.sent_signals import open_signals
from closeout.journal.store import RunRecord, Store
from closeout.journal.subscribers import Listener
from closeout.records import record
from closeout.run.cancelling import forget_requests, hand_over, is_handed_over
from closeout.run.lifecycle import as_recorded
from closeout.run.loading import load_result
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import resume_run
from closeout.run.waits.decisions import Decisions, PendingDecision, due_time, pending_decisions, pending_of

__all__ = ["Leg", "check_same_run", "execute_leg", "next_leg", "recorded_result"]


@record(kw_only=True)
class Leg:
    """The state of a run after a leg: it has ended, or it waits.

    Attributes:
        run_id: The run.
        result: Its result; the status is "waiting" if it waits.
        waiting: What it waits for; empty if it has ended.
        until: When it can continue without a signal or a decision; None if it cannot.
        signals: The names of the signals of which one lets it continue.
    """

    run_id: str
    result: RunResult
    waiting: tuple[PendingDecision, ...] = ()
    until: datetime | None = None
    signals: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """True if the run has ended."""
        return self.result.status != "waiting"


async def execute_leg(
    plan: AgentPlan,
    store: Store,
    run_id: str,
    listeners: Sequence[Listener] = (),
    *,
    decisions: Decisions | None = None,
    seen: RunRecord | None = None,
) -> Leg:
    """Continue a run to its end or its next wait. Raises what `resume_run` raises."""
    result = await resume_run(plan, store, run_id, listeners, decisions=decisions, seen=seen)
    return _leg(result, result.waiting)


async def next_leg(
    plan: AgentPlan, store: Store, run_id: str, listeners: Sequence[Listener], decisions: Decisions | None
) -> Leg:
    """Continue a run if it can continue: see `Agent.leg`. If the task is cancelled, the next leg continues the run."""
    leg = asyncio.create_task(_next_leg(plan, store, run_id, listeners, decisions))
    try:
        return await asyncio.shield(leg)
    except asyncio.CancelledError:
        hand_over(store, run_id)  # before its end is recorded: others must not take the run for a cancelled one
        leg.cancel()
        await asyncio.gather(leg, return_exceptions=True)
        if not leg.cancelled():
            forget_requests(store, run_id)
        raise


async def _next_leg(
    plan: AgentPlan, store: Store, run_id: str, listeners: Sequence[Listener], decisions: Decisions | None
) -> Leg:
    seen = await store.off_loop(store.run, run_id)
    if seen.status == "running":
        raise locked(run_id)
    if seen.status == "interrupted" and await ended_in_vain(store, run_id, seen=seen) is None:
        return await execute_leg(plan, store, run_id, listeners, seen=seen)
    if seen.status == "cancelled" and await store.off_loop(is_handed_over, store, run_id):
        leg = await execute_leg(plan, store, run_id, listeners, seen=seen)
        forget_requests(store, run_id)
        return leg
    rows = await store.off_loop(store.rows_from, run_id, 0) if seen.status == "waiting" else []
    pending = pending_decisions(rows)
    if pending:
        # A repetition of a leg that was cut off may bring decisions that are recorded already.
        asked = {pending_of(row.event).id for row in rows if isinstance(row.event, DecisionRequested)}
        decided = asked - {each.id for each in pending}
        left = {name: each for name, each in (decisions or {}).items() if name not in decided}
        if left:
            return await execute_leg(plan, store, run_id, listeners, decisions=left)
        if await store.off_loop(_can_continue, store, run_id, pending):
            return await execute_leg(plan, store, run_id, listeners, seen=seen)
    elif seen.status == "waiting":  # everything is decided
        return await execute_leg(plan, store, run_id, listeners, seen=seen)
    return _leg(await recorded_result(plan, store, run_id), pending)


def _can_continue(store: Store, run_id: str, pending: Sequence[PendingDecision]) -> bool:
    names = [name for each in pending for name in each.signals]
    if names and open_signals(store, run_id, *names):
        return True
    return bool(DueRuns(store).among([(run_id, 0, "")], store.clock(exact=True)))


def _leg(result: RunResult, pending: Sequence[PendingDecision]) -> Leg:
    due = due_time(pending) if pending else math.inf
    return Leg(
        run_id=result.run_id,
        result=result,
        waiting=tuple(pending),
        until=None if due == math.inf else datetime.fromtimestamp(due, UTC),
        signals=tuple(dict.fromkeys(name for each in pending for name in each.signals)),
    )


async def recorded_result(plan: AgentPlan, store: Store, run_id: str) -> RunResult:
    """Return the result of a run that nobody executes, from its record."""
    rows = (await store.off_loop(store.read, run_id)).rows
    contract = as_recorded(plan, rows).contract
    return load_result(run_id, rows, contract, lambda: store.read(run_id).rows, load=store.content)


def check_same_run(store: Store, run_id: str, task: str, user: str) -> None:
    """Check that a recorded run has this task and is for this user. Raises UsageError."""
    started = store.beginning(run_id)
    if started is None:
        return
    if task not in (started.task, started.question):
        raise UsageError(f"Run {run_id} exists with another task ({started.task[:60]!r}). Use another run_id.")
    if user != started.user:
        raise UsageError(f"Run {run_id} is for another user. Use another run_id, or name its user.")
