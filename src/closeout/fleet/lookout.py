"""Look regularly for the runs that a process must cancel, and for those that it can take."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from closeout.errors import JournalError
from closeout.fleet.due import DueRuns
from closeout.journal.following import news_of, waited
from closeout.journal.store import Store

__all__ = ["Lookout"]

log = logging.getLogger("closeout")

# Seconds between two looks, at most and at least. Nothing in a journal changes when a lease ends or a process dies.
LOOK_SECONDS, LOOK_SPACING = 0.5, 0.05


class Lookout:
    """Finds the work of a process that executes runs: a worker, or a server.

    Args:
        store: Where the runs are kept.
        tasks: The runs that the process executes, by their ids.
        take: Takes the runs that the process can execute, and returns those that somebody asked to cancel. It raises
            JournalError if they cannot be found.
        as_worker: Receive only the news for which this process is chosen, rather than all.

    Attributes:
        due: Finds the waiting runs that can continue.
        news: Set it to look at once.
        problem: Why no runs can be found at the moment; empty if they can.
    """

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, asyncio.Future[None]],
        take: Callable[[], Awaitable[Collection[str]]],
        *,
        as_worker: bool = False,
    ) -> None:
        self.due = DueRuns(store)
        self.news = asyncio.Event()
        self.problem = ""
        self._store = store
        self._tasks = tasks
        self._take = take
        self._as_worker = as_worker
        self._looked = 0.0

    @contextmanager
    def informed(self) -> Iterator[None]:
        """Receive the news of the store: a process has let go of a run, or a run was sent a signal."""
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

    async def wait(self) -> None:
        """Wait for news or for the time of the next run that is due, but not for long."""
        due = LOOK_SECONDS if self.problem else self.due.next_time - self._store.clock()
        # Not all processes look at the same moment.
        most = random.uniform(0.8, 1.2) * LOOK_SECONDS  # noqa: S311 - no secret
        if await waited(self.news, max(0.0, min(due, most))):
            await asyncio.sleep(self._looked + LOOK_SPACING - time.monotonic())  # more news share the look
