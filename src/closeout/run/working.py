"""A worker: it executes the submitted, interrupted and due runs of an agent, beside any number of other workers."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from closeout.errors import CloseoutError, JournalError, JournalLocked, LeaseLost, RunNotFound
from closeout.journal.events import RunStarted
from closeout.journal.store import Store
from closeout.journal.subscribers import Listener
from closeout.run.cancelling import cancel_requests, cancel_run, forget_requests, hand_over, handed_over
from closeout.run.due import DueRuns
from closeout.run.handoff import is_run_of
from closeout.run.lifecycle import as_recorded
from closeout.run.loading import load_result
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import resume_run

__all__ = ["AgentWorker", "awaited_result"]

log = logging.getLogger("closeout")

# Seconds between two searches for runs. Workers poll because no event reports that a lease has ended.
LOOK_SECONDS = 0.5
# Seconds until a run that could not be resumed is tried again.
REFUSED_SECONDS = 60.0
# Seconds between two checks whether a run has ended, at first and at most.
FIRST_LOOK, LAST_LOOK = 0.05, 1.0
_NO_END = ("running", "interrupted", "waiting")
# The origin of a run has this key if a server began it. The server executes and streams such runs itself.
_SERVED = "serve"


@dataclass(slots=True)
class AgentWorker:
    """Executes the runs of an agent until it is stopped. Which worker gets a run is decided by its lock or lease.

    Attributes:
        plan: The agent.
        store: Where its runs are kept.
        limit: The most runs at the same time.
        drain_seconds: How long runs may continue after the stop. Then they are left to other workers.
        listeners: As for `Agent.run`.
        ended: The number of runs that were executed, by status.
    """

    plan: AgentPlan
    store: Store
    limit: int = 10
    drain_seconds: float = 30.0
    listeners: Sequence[Listener] = ()
    ended: Counter[str] = field(default_factory=Counter)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)  # run → when it may be tried again
    _is_own: dict[str, bool] = field(default_factory=dict)  # run → the agent began it
    _to_cancel: frozenset[str] = frozenset()
    _due: DueRuns | None = None
    _failing: str = ""

    @property
    def executing(self) -> int:
        """The number of runs that are being executed."""
        return len(self._tasks)

    @property
    def problem(self) -> str:
        """Why no runs can be found at the moment; empty if they can."""
        return self._failing

    async def work(self, stop: asyncio.Event, *, until_idle: bool = False) -> None:
        """Execute runs until the event is set.

        Args:
            stop: Begins the end: no more runs are taken, and those at work have `drain_seconds`.
            until_idle: Return when there is nothing to do.
        """
        self._due = DueRuns(self.store)
        async with self.plan.manager:
            try:
                while not stop.is_set():
                    await self._look()
                    if until_idle and not self._tasks:
                        return
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), LOOK_SECONDS)
            finally:
                await self._drain()

    async def _look(self) -> None:
        """Begin to execute runs, as many as there are places."""
        try:
            self._to_cancel = await self.store.off_loop(cancel_requests, self.store)
            has_room = len(self._tasks) < self.limit
            found = await self.store.off_loop(self._claimable) if has_room else []
        except JournalError as error:  # a database that is away for a moment
            if str(error) != self._failing:
                log.warning("No runs can be found: %s", error)
            self._failing = str(error)
            return
        self._failing = ""
        for run_id in self._to_cancel & self._tasks.keys():
            self._tasks[run_id].cancel()
        for run_id in found[: self.limit - len(self._tasks)]:
            task = self._tasks[run_id] = asyncio.create_task(self._execute(run_id), name=f"run {run_id}")
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task.get_name().removeprefix("run "), None)

    def _claimable(self) -> list[str]:
        """Return the runs that may be executed, the oldest first."""
        assert self._due is not None
        ids = [*handed_over(self.store), *self.store.interrupted_runs(), *self._due.find()]
        now = time.monotonic()
        self._not_before = {run_id: at for run_id, at in self._not_before.items() if at > now}
        free = [each for each in dict.fromkeys(ids) if each not in self._tasks and each not in self._not_before]
        own = [run_id for run_id in free if self._owns(run_id)]
        # Workers that look at the same moment do not all try the same run first.
        first = own[: 4 * self.limit]
        random.shuffle(first)
        return first

    def _owns(self, run_id: str) -> bool:
        known = self._is_own.get(run_id)
        if known is None:
            try:
                rows = self.store.rows_from(run_id, 0, 1)
            except RunNotFound:
                return False
            started = rows[0].event if rows else None
            known = isinstance(started, RunStarted) and is_run_of(self.plan, started) and _SERVED not in started.origin
            self._is_own[run_id] = known
        return known

    async def _execute(self, run_id: str) -> None:
        try:
            seen = await self.store.off_loop(self.store.run, run_id)
            if seen.status == "running":
                return  # another worker was faster
            if run_id in self._to_cancel:
                await cancel_run(self.store, run_id)
            elif seen.status in ("interrupted", "waiting", "cancelled"):
                result = await resume_run(self.plan, self.store, run_id, self.listeners, seen=seen)
                self.ended[result.status] += 1
            forget_requests(self.store, run_id)
            self._is_own.pop(run_id, None)
        except asyncio.CancelledError:
            self.ended["cancelled"] += 1
            if run_id in self._to_cancel:
                forget_requests(self.store, run_id)
        except (RunNotFound, JournalLocked, LeaseLost):
            pass
        except CloseoutError as error:
            self.ended["refused"] += 1
            self._not_before[run_id] = time.monotonic() + REFUSED_SECONDS
            log.warning("Run %s cannot be executed: %s", run_id, error)

    async def _drain(self) -> None:
        """Let the runs at work end. Those that do not in time are left to other workers."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=self.drain_seconds)
        left = dict(self._tasks)
        for run_id, task in left.items():
            hand_over(self.store, run_id)
            task.cancel()
        if left:
            await asyncio.gather(*left.values(), return_exceptions=True)
            await self.store.off_loop(lambda: None)  # the notes are written


async def awaited_result(plan: AgentPlan, store: Store, run_id: str, timeout: float | None) -> RunResult:
    """Wait for the end of a run, which any process executes, and return its result: see `Agent.result`."""
    between = FIRST_LOOK
    async with asyncio.timeout(timeout):
        while (await store.off_loop(store.run, run_id)).status in _NO_END:
            await asyncio.sleep(between)
            between = min(between * 1.5, LAST_LOOK)
    rows = (await store.off_loop(store.read, run_id)).rows
    contract = as_recorded(plan, rows).contract
    return load_result(run_id, rows, contract, lambda: store.read(run_id).rows, load=store.content)
