"""A worker: it executes the submitted, interrupted and due runs of an agent, beside any number of other workers."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from closeout.errors import CloseoutError, JournalLocked, LeaseLost, RunNotFound
from closeout.fleet.chores import Chores
from closeout.fleet.interruptions import ended_in_vain
from closeout.fleet.legs import execute_leg, recorded_result
from closeout.fleet.made_deps import DepsMaker
from closeout.fleet.work_poller import WorkPoller
from closeout.journal.claims import ClaimedRun
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.following import follow, news_of, wait_until
from closeout.journal.store import Row, Store
from closeout.journal.subscribers import Listener
from closeout.run.cancelling import forget_requests, hand_over
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult

__all__ = ["AgentWorker", "RunFailure", "awaited_result", "followed"]

log = logging.getLogger("closeout")

# Seconds until a run that could not be resumed is tried again.
REFUSED_SECONDS = 60.0
_NO_END = ("running", "interrupted", "waiting")
MAX_PRIORITY = 9
# The most failures that a worker remembers: the latest ones.
KEPT_FAILURES = 1000


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The failure of a run that a worker executed, or could not execute.

    Attributes:
        run_id: The run.
        status: `"failed"`, or `"refused"` if it could not be resumed.
        error: The reason.
        error_kind: The name of the exception.
    """

    run_id: str
    status: str
    error: str
    error_kind: str


@dataclass(slots=True)
class AgentWorker:
    """Executes the runs of an agent until it is stopped. Which worker gets a run is decided by its lock or lease.

    Attributes:
        plan: The agent.
        store: Where its runs are kept.
        limit: The most runs at the same time.
        drain_seconds: How long runs may continue after the stop. Then they are left to other workers.
        listeners: As for `Agent.run`.
        deps: Makes the dependencies of each run; without a function, the agent's are those of all.
        chores: What it does beside the runs.
        ended: The number of executions, by the status at their end. A run that waited and continued counts twice.
        outcomes: The number of runs, by the status that the last execution of each here ended with. Those that could
            not be resumed are `"refused"`, those handed over at the stop or taken over by another process `"left"`.
        failures: The latest runs that failed or were refused.
    """

    plan: AgentPlan
    store: Store
    limit: int = 10
    drain_seconds: float = 30.0
    listeners: Sequence[Listener] = ()
    deps: DepsMaker = field(default_factory=lambda: DepsMaker(None))
    chores: Chores | None = None
    ended: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, RunFailure] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _open: dict[str, str] = field(default_factory=dict)  # run → the outcome that another one may replace
    _left: set[str] = field(default_factory=set)  # runs that are handed over
    _poller: WorkPoller = field(init=False)

    def __post_init__(self) -> None:
        self._poller = WorkPoller(self.store, self.plan, self._tasks, self._take)

    @property
    def executing(self) -> int:
        """The number of runs that are being executed."""
        return len(self._tasks)

    @property
    def problem(self) -> str:
        """Why no runs can be found at the moment; empty if they can."""
        return self._poller.problem

    async def work(self, stop: asyncio.Event, *, until_idle: bool = False) -> None:
        """Execute runs until the event is set.

        Args:
            stop: Begins the end: no more runs are taken, and those at work have `drain_seconds`.
            until_idle: Return when there is nothing to do.
        """
        poller = self._poller
        if self.chores is not None:
            await self.chores.begin()
            await self.chores.fire()
        async with self.plan.manager:
            with poller.informed():
                beside = [asyncio.create_task(self._wake_at(stop))]
                if self.chores is not None and not until_idle:
                    beside.append(asyncio.create_task(self.chores.keep()))
                try:
                    while not stop.is_set():
                        was_busy = bool(self._tasks)  # then there may have been no place for a run
                        await poller.look()
                        if until_idle and not was_busy and not self._tasks:
                            return
                        await poller.wait()
                finally:
                    for task in beside:
                        task.cancel()
                    await self._drain()
                    if self.chores is not None and until_idle:
                        await self.chores.announce()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._poller.news.set()

    async def _take(self) -> Collection[str]:
        """Begin to execute runs, as many as there are places. Returns the runs that somebody asked to cancel."""
        claims, cancelled = await self._poller.claim(self.limit - len(self._tasks))
        for claim in claims:
            task = self._tasks[claim.run_id] = asyncio.create_task(self._execute(claim), name=f"run {claim.run_id}")
            task.add_done_callback(self._forget)
        return cancelled

    def _forget(self, task: asyncio.Task[None]) -> None:
        run_id = task.get_name().removeprefix("run ")
        self._tasks.pop(run_id, None)
        self._poller.forget(run_id)
        if self.chores is not None:
            self.chores.tell()

    async def _execute(self, claim: ClaimedRun) -> None:
        run_id = claim.run_id
        try:
            ended: RunEnded | None = None
            if claim.status == "running" and claim.interruptions:
                ended = await ended_in_vain(self.store, run_id)
            if ended is not None:
                self._count(run_id, ended.status, ended.error)
            else:
                async with AsyncExitStack() as stack:
                    plan = await self._with_deps(stack, run_id)
                    result = (await execute_leg(plan, self.store, run_id, self.listeners)).result
                if result.error_kind == LeaseLost.__name__:
                    raise LeaseLost(result.error)
                self._count(run_id, result.status, result.error or result.stop_reason, result.error_kind)
            forget_requests(self.store, run_id)
        except asyncio.CancelledError:
            self._count(run_id, "left" if run_id in self._left else "cancelled")
        except LeaseLost:
            self._count(run_id, "left")
        except (JournalLocked, RunNotFound):  # somebody resumed it in this process, or deleted it
            pass
        except CloseoutError as error:
            self._count(run_id, "refused", str(error), type(error).__name__)
            self._poller.put_off(run_id, REFUSED_SECONDS)
            log.warning("Run %s cannot be executed: %s", run_id, error)
        finally:
            self.store.submit(self.store.unclaim, claim.number)

    def _count(self, run_id: str, status: str, error: str = "", error_kind: str = "") -> None:
        """Count the end of an execution. It replaces the outcome of an earlier one of the same run."""
        self.ended["cancelled" if status == "left" and run_id in self._left else status] += 1
        self.outcomes[status] += 1
        if run_id in self._open:
            self.outcomes[self._open.pop(run_id)] -= 1
            self.failures.pop(run_id, None)
        if status in ("waiting", "refused"):
            self._open[run_id] = status
        if status in ("failed", "refused"):
            self.failures[run_id] = RunFailure(run_id, status, error, error_kind)
            if len(self.failures) > KEPT_FAILURES:
                del self.failures[next(iter(self.failures))]

    async def _with_deps(self, stack: AsyncExitStack, run_id: str) -> AgentPlan:
        """Return the agent with the dependencies of a run. Raises UsageError if they cannot be made."""
        if not self.deps:
            return self.plan
        started = (await self.store.off_loop(self.store.rows_from, run_id, 0, 1))[0].event
        user = started.user if isinstance(started, RunStarted) else ""
        return await self.deps.provide(self.plan, stack, run_id, {"user": user})

    async def _drain(self) -> None:
        """Let the runs at work end. Those that do not in time are left to other workers."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=self.drain_seconds)
        left = dict(self._tasks)
        self._left.update(left)
        for run_id, task in left.items():
            hand_over(self.store, run_id)
            task.cancel()
        if left:
            await asyncio.gather(*left.values(), return_exceptions=True)
            await self.store.off_loop(lambda: None)  # the notes are written


async def awaited_result(plan: AgentPlan, store: Store, run_id: str, timeout: float | None) -> RunResult:
    """Wait for the end of a run, which any process executes, and return its result: see `Agent.result`."""

    async def has_ended() -> bool:
        return not await _has_no_end(store, run_id)

    await wait_until(store, run_id, has_ended, timeout)
    return await recorded_result(plan, store, run_id)


async def _has_no_end(store: Store, run_id: str) -> bool:
    return (await store.off_loop(store.run, run_id)).status in _NO_END


async def followed(store: Store, run_id: str, start: int = 0) -> AsyncIterator[Row]:
    """Iterate over the events of a run, which any process executes, to its end: see `Agent.follow`."""
    with news_of(store, await store.off_loop(store.number_of, run_id)) as news:
        async for row in follow(store, run_id, start, is_under_way=partial(_has_no_end, store, run_id), news=news):
            yield row
