"""A worker: it executes the submitted, interrupted and due runs of an agent, beside any number of other workers."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from closeout.errors import CloseoutError, JournalLocked, LeaseLost, RunNotFound
from closeout.fleet.interruptions import ended_in_vain, interruptions, is_suspect
from closeout.fleet.lookout import Lookout
from closeout.fleet.made_deps import DepsMaker
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.following import follow, news_of, wait_until
from closeout.journal.store import Row, Store
from closeout.journal.subscribers import Listener
from closeout.messages import Usage
from closeout.run.cancelling import forget_requests, hand_over, handed_over
from closeout.run.handoff import is_run_of
from closeout.run.lifecycle import as_recorded
from closeout.run.loading import load_result
from closeout.run.plan import AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import resume_run

__all__ = ["AgentWorker", "RunFailure", "awaited_result", "followed", "prioritise"]

log = logging.getLogger("closeout")

# Seconds until a run that could not be resumed is tried again.
REFUSED_SECONDS = 60.0
MIXING_SECONDS = 10.0  # seconds for which a worker tries runs in a random order after another one was faster
_NO_END = ("running", "interrupted", "waiting")
# The prefix of a note on a run with a priority, so that notes are in the order of the highest first.
_PRIORITY = "priority "
MAX_PRIORITY = 9
# The origin of a run has this key if a server began it. The server executes and streams such runs itself.
_SERVED = "serve"
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
        ended: The number of executions, by the status at their end. A run that waited and continued counts twice.
        outcomes: The number of runs, by the status that the last execution of each here ended with. Those that could
            not be resumed are `"refused"`, those handed over at the stop or taken over by another process `"left"`.
        failures: The latest runs that failed or were refused.
        usage: What they used.
    """

    plan: AgentPlan
    store: Store
    limit: int = 10
    drain_seconds: float = 30.0
    listeners: Sequence[Listener] = ()
    deps: DepsMaker = field(default_factory=lambda: DepsMaker(None))
    ended: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, RunFailure] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)  # run → when it may be tried again
    # Run of the agent → how often it was interrupted without progress; of another one → None.
    _known: dict[str, int | None] = field(default_factory=dict)
    _urgent: dict[str, int] = field(default_factory=dict)  # run → its priority
    _open: dict[str, str] = field(default_factory=dict)  # run → the outcome that another one may replace
    _left: set[str] = field(default_factory=set)  # runs that are handed over
    _mixes_until: float = 0.0
    _lookout: Lookout = field(init=False)

    def __post_init__(self) -> None:
        self._lookout = Lookout(self.store, self._tasks, self._take)

    @property
    def executing(self) -> int:
        """The number of runs that are being executed."""
        return len(self._tasks)

    @property
    def problem(self) -> str:
        """Why no runs can be found at the moment; empty if they can."""
        return self._lookout.problem

    async def work(self, stop: asyncio.Event, *, until_idle: bool = False) -> None:
        """Execute runs until the event is set.

        Args:
            stop: Begins the end: no more runs are taken, and those at work have `drain_seconds`.
            until_idle: Return when there is nothing to do.
        """
        lookout = self._lookout
        async with self.plan.manager:
            with lookout.informed():
                stopping = asyncio.create_task(self._wake_at(stop))
                try:
                    while not stop.is_set():
                        await lookout.look()
                        if until_idle and not self._tasks:
                            return
                        await lookout.wait()
                finally:
                    stopping.cancel()
                    await self._drain()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._lookout.news.set()

    async def _take(self) -> None:
        """Begin to execute runs, as many as there are places."""
        has_room = len(self._tasks) < self.limit
        found = await self.store.off_loop(self._claimable) if has_room else []
        for run_id in found:
            if len(self._tasks) >= self.limit:
                break
            if self._is_suspect(run_id) and any(map(self._is_suspect, self._tasks)):
                continue  # if the process dies again, it is clear of which run
            task = self._tasks[run_id] = asyncio.create_task(self._execute(run_id), name=f"run {run_id}")
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task.get_name().removeprefix("run "), None)
        self._lookout.news.set()  # there is a place for another run

    def _claimable(self) -> list[str]:
        """Return runs that may be executed: those of the highest priority first, and of these the oldest.

        Those of a priority that were interrupted repeatedly come last.
        """
        now, wanted = time.monotonic(), 4 * self.limit
        self._not_before = {run_id: at for run_id, at in self._not_before.items() if at > now}
        self._urgent = prioritised(self.store)
        found: dict[str, None] = {}
        for run_id in chain(
            handed_over(self.store), self._lookout.due.find(), self._urgent, self.store.interrupted_runs()
        ):
            if run_id not in self._tasks and run_id not in self._not_before and self._owns(run_id):
                found[run_id] = None
                wanted -= not self._is_suspect(run_id)
                if not wanted:
                    break
        first = list(found)
        if now < self._mixes_until:  # others look at the same moment: not all of them try the same run first
            random.shuffle(first)
        return sorted(first, key=lambda run_id: (-self._urgent.get(run_id, 0), self._is_suspect(run_id)))

    def _is_suspect(self, run_id: str) -> bool:
        return is_suspect(self._known.get(run_id) or 0)

    def _owns(self, run_id: str) -> bool:
        if run_id not in self._known:
            try:
                rows = self.store.rows_from(run_id, 0, 2)
                started = rows[0].event if rows else None
                is_own = (
                    isinstance(started, RunStarted) and is_run_of(self.plan, started) and _SERVED not in started.origin
                )
                if is_own and len(rows) > 1:
                    rows = self.store.rows_from(run_id, 0)
            except RunNotFound:
                return False
            self._known[run_id] = interruptions(rows) if is_own else None
        return self._known[run_id] is not None

    async def _execute(self, run_id: str) -> None:
        if run_id in self._urgent:
            self.store.forget_note(_priority_note(run_id, self._urgent[run_id]))
        try:
            seen = await self.store.off_loop(self.store.run, run_id)
            if seen.status == "running":  # another worker was faster
                self._mixes_until = time.monotonic() + MIXING_SECONDS
                return
            ended: RunEnded | None = None
            if seen.status == "interrupted":
                rows = await self.store.off_loop(self.store.rows_from, run_id, 0)
                was_suspect, self._known[run_id] = self._is_suspect(run_id), interruptions(rows)
                if self._is_suspect(run_id) and not was_suspect:
                    return  # another worker has died since: the run is taken in its turn
                ended = await ended_in_vain(self.store, seen, rows)
            if ended is not None:
                self._count(run_id, ended.status, ended.error)
            elif seen.status in ("interrupted", "waiting", "cancelled"):
                async with AsyncExitStack() as stack:
                    plan = await self._with_deps(stack, run_id)
                    result = await resume_run(plan, self.store, run_id, self.listeners, seen=seen)
                self.usage += result.usage
                if result.error_kind == LeaseLost.__name__:
                    raise LeaseLost(result.error)
                self._count(run_id, result.status, result.error or result.stop_reason, result.error_kind)
            forget_requests(self.store, run_id)
            self._known.pop(run_id, None)
        except asyncio.CancelledError:
            self._count(run_id, "left" if run_id in self._left else "cancelled")
        except JournalLocked:
            self._mixes_until = time.monotonic() + MIXING_SECONDS
        except LeaseLost:
            self._count(run_id, "left")
        except RunNotFound:
            pass
        except CloseoutError as error:
            self._count(run_id, "refused", str(error), type(error).__name__)
            self._not_before[run_id] = time.monotonic() + REFUSED_SECONDS
            log.warning("Run %s cannot be executed: %s", run_id, error)

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
        return await self.deps.given(self.plan, stack, run_id, {"user": user})

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
    rows = (await store.off_loop(store.read, run_id)).rows
    contract = as_recorded(plan, rows).contract
    return load_result(run_id, rows, contract, lambda: store.read(run_id).rows, load=store.content)


async def _has_no_end(store: Store, run_id: str) -> bool:
    return (await store.off_loop(store.run, run_id)).status in _NO_END


async def followed(store: Store, run_id: str, start: int = 0) -> AsyncIterator[Row]:
    """Iterate over the events of a run, which any process executes, to its end: see `Agent.follow`."""
    with news_of(store, await store.off_loop(store.number_of, run_id)) as news:
        async for row in follow(store, run_id, start, is_under_way=partial(_has_no_end, store, run_id), news=news):
            yield row


def prioritise(store: Store, run_id: str, priority: int) -> None:
    """Let workers execute a submitted run before those with a lower priority."""
    store.note(_priority_note(run_id, priority), "1")


def _priority_note(run_id: str, priority: int) -> str:
    return f"{_PRIORITY}{MAX_PRIORITY - priority} {run_id}"


def prioritised(store: Store) -> dict[str, int]:
    """Return the priorities of the runs that have one. Raises JournalError."""
    pairs = [text.split(" ", 1) for text in store.notes_that_begin_with(_PRIORITY)]
    return {run_id: MAX_PRIORITY - int(place) for place, run_id in pairs}
