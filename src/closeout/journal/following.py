"""Follow a run: its committed events in order, as they are written, by this process or another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from closeout.journal.events import Event
from closeout.journal.store import COMMIT_SECONDS, Row, Store
from closeout.journal.subscribers import Progress

__all__ = ["Wakeup", "follow", "news_of", "wait_until", "waited"]

# Seconds between two looks at a run that another process executes.
POLL_SECONDS = 0.5
# Seconds between two looks at a run that somebody waits for, at first and at most.
FIRST_LOOK, LAST_LOOK = 0.05, 1.0


@contextmanager
def news_of(store: Store, number: int = 0, *, as_worker: bool = False) -> Iterator[asyncio.Event]:
    """Yield an event that is set when a run has news: a process has let go of it, or it was sent a signal.

    News may get lost, and a folder has no news, so look from time to time as well.

    Args:
        store: Where the run is kept.
        number: The number of the run; 0 for all runs.
        as_worker: Only the news that call for the worker of this process.
    """
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def tell(changed: int) -> None:
        if changed in (0, number) or not number:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(event.set)

    leave = store.database.subscribe(tell, as_worker=as_worker)
    try:
        yield event
    finally:
        leave()


async def waited(news: asyncio.Event, seconds: float) -> bool:
    """Wait for news for some seconds, and return True if there was any. The next wait is for later news."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 may swallow a cancellation
            await news.wait()
    found = news.is_set()
    news.clear()
    return found


async def wait_until(
    store: Store, run_id: str, is_reached: Callable[[], Awaitable[bool]], timeout: float | None
) -> None:
    """Look at a run until it is where it should be: when it has news, and from time to time.

    Args:
        store: Where the run is kept.
        run_id: The run.
        is_reached: Looks, and returns True at the end of the wait.
        timeout: Seconds to wait; None: as long as it takes.

    Raises:
        TimeoutError: It is not there in time.
        RunNotFound: There is no such run.
        JournalError: The journal cannot be read.
    """
    number, between = await store.off_loop(store.number_of, run_id), FIRST_LOOK
    with news_of(store, number) as news:
        async with asyncio.timeout(timeout):
            while not await is_reached():
                await waited(news, between)
                between = min(between * 1.5, LAST_LOOK)


class Wakeup:
    """Wakes the followers of a run that this process executes. Pass it to the run as a listener."""

    def __init__(self) -> None:
        self._changed: asyncio.Event = asyncio.Event()

    def __call__(self, event: Event | Progress) -> None:
        if isinstance(event, Event):
            self.wake()

    def wake(self) -> None:
        """Let the followers look at the record."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def next_change(self) -> asyncio.Event:
        """Return what will be set by the next event. Get it before looking at the record, so that none is missed."""
        return self._changed


async def follow(
    store: Store,
    run_id: str,
    start: int = 0,
    *,
    wakeup: Wakeup | None = None,
    is_under_way: Callable[[], Awaitable[bool]] | None = None,
    news: asyncio.Event | None = None,
    poll: float = POLL_SECONDS,
) -> AsyncIterator[Row]:
    """Iterate over a run's events from a place on, until it is over.

    Only committed events are seen: what was yielded once is still in the record after the process is killed.

    Args:
        store: Where the run is kept.
        run_id: The name of the run.
        start: The place of the first event wanted.
        wakeup: A listener of the run, if this process executes it. The record is looked at every `poll` seconds anyway.
        is_under_way: Returns whether the run is executed or is going to be. By default: whether a process executes it.
        news: What is set when the run may have ended, if another process executes it.
        poll: Seconds between two looks.

    Raises:
        RunNotFound: No run has this name.
        JournalError: The journal cannot be read.
    """

    async def is_executed() -> bool:
        return (await asyncio.to_thread(store.run, run_id)).status == "running"

    is_under_way = is_under_way or is_executed
    while True:
        change = wakeup.next_change() if wakeup is not None else None
        continues = await is_under_way()  # asked before the rows are read, so that the last ones are not missed
        for row in await asyncio.to_thread(store.rows_from, run_id, start):
            start = row.seq + 1
            yield row
        if not continues:
            return
        if change is None:
            await waited(news or asyncio.Event(), poll)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(poll):
                await change.wait()
                await asyncio.sleep(COMMIT_SECONDS)  # let more events share the commit
