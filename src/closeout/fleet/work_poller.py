"""Look regularly for the runs that a process must cancel, and for those that it can take."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

from closeout.errors import JournalError
from closeout.fleet.due_runs import DueRuns, name_executor
from closeout.journal.claims import ClaimedRun, Look, SuspectsGo
from closeout.journal.following import news_of, waited
from closeout.journal.store import Store
from closeout.run.cancelling import cancel_requests
from closeout.run.plan import AgentPlan

__all__ = ["WorkPoller"]

log = logging.getLogger("closeout")

# Seconds between two looks, at most and at least. Nothing in a journal changes when a lease ends or a process dies.
LOOK_SECONDS, LOOK_SPACING = 0.5, 0.05


class WorkPoller:
    """Finds the work of a process that executes runs: a worker, or a server.

    Args:
        store: Where the runs are kept.
        plan: The agent.
        tasks: The runs that the process executes, by their ids.
        take: Takes the runs that the process can execute, and returns those that somebody asked to cancel. It raises
            JournalError if they cannot be found.
        executor: What executes the runs, if not the workers of the agent: see `executor_of`.

    Attributes:
        news: Set it to look at once.
        problem: Why no runs can be found at the moment; empty if they can.
    """

    def __init__(
        self,
        store: Store,
        plan: AgentPlan,
        tasks: Mapping[str, asyncio.Future[None]],
        take: Callable[[], Awaitable[Collection[str]]],
        *,
        executor: str = "",
    ) -> None:
        self.news = asyncio.Event()
        self.problem = ""
        self._store = store
        self._plan = plan
        self._tasks = tasks
        self._take = take
        self._as_worker = not executor
        self._executor = executor or plan.name
        self._due = DueRuns(store)
        self._next_due = math.inf
        self._strange: set[str] = set()  # runs of which this agent cannot tell what executes them
        self._suspects: set[str] = set()  # those of the runs at work that were interrupted repeatedly
        self._suspects_go: SuspectsGo = "last"  # they and fresh runs take turns
        self._not_before: dict[str, float] = {}  # run → when it may be claimed again
        self._looked = 0.0

    @contextmanager
    def informed(self) -> Iterator[None]:
        """Receive the news of the store: a process has let go of a run, or a run was sent a signal.

        A worker receives only those for which it is chosen.
        """
        with news_of(self._store, as_worker=self._as_worker) as self.news:
            yield

    async def look(self) -> None:
        """Cancel the runs that others asked to cancel, and take new ones. An unreadable journal is reported once."""
        self._looked = time.monotonic()
        try:
            for run_id in await self._take():
                task = self._tasks.get(run_id)
                if isinstance(task, asyncio.Task) and not task.cancelling():
                    task.cancel()
            self.problem = ""
        except JournalError as error:  # a database that is away for a while
            if str(error) != self.problem:
                log.warning("No runs can be found: %s", error)
            self.problem = str(error)

    async def claim(
        self, places: int, *, exclude: Collection[str] = (), fresh_age: float = -math.inf
    ) -> tuple[list[ClaimedRun], Collection[str]]:
        """Claim runs, those that were interrupted repeatedly one at a time: if the process dies, the cause is clear.

        Args:
            places: How many more runs the process may execute.
            exclude: The ids of runs that are not to be claimed.
            fresh_age: As for `Store.look`.

        Returns:
            The claims, and the runs that somebody asked to cancel.

        Raises:
            JournalError: The journal cannot be read.
        """
        now = time.monotonic()
        self._not_before = {run_id: at for run_id, at in self._not_before.items() if at > now}
        looking = asyncio.create_task(
            asyncio.to_thread(self._claimed, places, {*exclude, *self._not_before}, fresh_age)
        )
        try:
            found, claims = await asyncio.shield(looking)
        except asyncio.CancelledError:
            with suppress(JournalError):
                for claim in (await looking)[1]:
                    self._store.unclaim(claim.number)
            raise
        suspects = [claim.run_id for claim in claims if claim.is_suspect]
        self._suspects.update(suspects)
        if claims:
            self._suspects_go = "last" if suspects else "first"
        return claims, await cancel_requests(self._store, found.cancelled)

    def put_off(self, run_id: str, seconds: float) -> None:
        """Claim a run not before so many seconds have passed."""
        self._not_before[run_id] = time.monotonic() + seconds

    def forget(self, run_id: str) -> None:
        """Free the place of a run."""
        self._suspects.discard(run_id)
        self.news.set()

    def _claimed(self, places: int, exclude: Collection[str], fresh_age: float) -> tuple[Look, list[ClaimedRun]]:
        suspects: SuspectsGo = "nowhere" if self._suspects else self._suspects_go
        found = self._store.look(self._executor, places, suspects=suspects, exclude=exclude, fresh_age=fresh_age)
        claims = list(found.claims)
        self._next_due = found.next_due
        for run_id in self._due.among(found.unsure, self._store.clock()):
            if len(claims) < places and run_id not in exclude:
                claim = self._store.try_claim(run_id)
                claims += [claim] if claim is not None else []
        for run_id in found.unnamed:
            if run_id not in self._strange:
                if name_executor(self._plan, self._store, run_id):
                    self.news.set()
                else:
                    self._strange.add(run_id)
        return found, claims

    async def wait(self) -> None:
        """Wait for news or for the time of the next run that is due, but not for long."""
        due = LOOK_SECONDS if self.problem else self._next_due - self._store.clock()
        # Not all processes look at the same moment.
        most = random.uniform(0.8, 1.2) * LOOK_SECONDS  # noqa: S311 - no secret
        if await waited(self.news, max(0.0, min(due, most))):
            await asyncio.sleep(self._looked + LOOK_SPACING - time.monotonic())  # more news share the look
