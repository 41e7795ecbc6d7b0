"""Cancel a run, whichever process executes it, and leave one that was cancelled to other processes.

Both requests are notes in the journal. Workers and servers look for them, and every run looks for a cancellation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Self

from closeout.errors import JournalDamaged, JournalError, JournalLocked, RunNotFound
from closeout.journal.claims import CANCEL, HANDED_OVER
from closeout.journal.events import RunEnded
from closeout.journal.following import wait_until
from closeout.journal.run_journal import Journal, open_journal
from closeout.journal.store import RunRecord, Store

__all__ = [
    "CancelWatch",
    "cancel_requests",
    "cancel_run",
    "forget_requests",
    "hand_over",
    "is_handed_over",
    "is_to_be_cancelled",
    "request_cancel",
]

_LOOK_SECONDS = 0.5  # seconds between two looks of a run at the requests
_IDLE = ("interrupted", "waiting")  # the status of runs that nobody executes, and that have no end


async def cancel_run(store: Store, run_id: str, timeout: float | None = None) -> None:
    """Cancel a run, and wait until it has ended. A run that has ended stays as it is.

    A run that nobody executes is ended here. The process that executes a run is asked to cancel it, and so is one that
    takes it over.

    Args:
        store: Where the run is kept.
        run_id: The run.
        timeout: Seconds to wait for the end; None: as long as it takes. The request stays.

    Raises:
        TimeoutError: The run has not ended in time.
        RunNotFound: There is no such run.
        JournalError: The journal cannot be read or written.
    """
    number = await store.off_loop(store.number_of, run_id)
    await wait_until(store, run_id, partial(_has_ended, store, run_id, number), timeout)
    forget_requests(store, run_id)


async def _has_ended(store: Store, run_id: str, number: int) -> bool:
    """Return whether a run has ended. If not, end it, or ask the process that executes it to do so."""
    seen = await store.off_loop(store.run, run_id)
    if seen.status == "running":
        request_cancel(store, run_id)
        store.submit(store.database.tell, number)
    elif seen.status in _IDLE:
        await _end(store, seen)
    else:
        return True
    return False


async def _end(store: Store, seen: RunRecord) -> None:
    """End a run that nobody executes."""
    with suppress(JournalLocked):  # another process was faster
        journal = await open_journal(Journal.reopen, store, seen.run_id, seen=seen)
        await journal.end(RunEnded("main", "cancelled", "cancelled"))


def request_cancel(store: Store, run_id: str) -> None:
    """Ask the process that executes a run to cancel it."""
    store.note(f"{CANCEL}{run_id}", "1")


def is_to_be_cancelled(store: Store, run_id: str) -> bool:
    """Return whether somebody has asked to cancel a run. False if the journal cannot be read."""
    with suppress(JournalError):
        return bool(store.noted(f"{CANCEL}{run_id}"))
    return False


async def cancel_requests(store: Store, requests: Iterable[str] | None = None) -> frozenset[str]:
    """Return the runs to be cancelled that a process executes. End those that nobody executes.

    `requests` are the runs that somebody asked to cancel, if they are known.

    Raises:
        JournalError: The journal cannot be read.
    """
    executed: set[str] = set()
    if requests is None:
        requests = await store.off_loop(store.notes_that_begin_with, CANCEL)
    for run_id in requests:
        try:
            seen = await store.off_loop(store.run, run_id)
            if seen.status == "running":
                executed.add(run_id)
            elif seen.status in _IDLE:
                await _end(store, seen)
            else:
                forget_requests(store, run_id)
        except (RunNotFound, JournalDamaged):
            forget_requests(store, run_id)
    return frozenset(executed)


class CancelWatch:
    """A context manager that cancels the current task when another process asks to cancel its run.

    Nobody can ask for a run that is kept in memory, without a store.
    """

    def __init__(self, store: Store | None, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._began = time.monotonic()
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_asked = False

    def __enter__(self) -> Self:
        if self._store is not None:
            self._task = asyncio.current_task()
            self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        assert self._store is not None
        assert self._task is not None
        at, requests = self._store.glance(CANCEL)
        if self._task.cancelling():  # it is ending
            return
        # A request that was read earlier may be for an earlier execution of the run.
        if at > self._began and self._run_id in requests:
            self._is_asked = True
            self._task.cancel()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def is_answered(self) -> bool:
        """Return whether only this watch has cancelled the task. The cancellation ends here."""
        if not self._is_asked or self._store is None or self._task is None:
            return False
        forget_requests(self._store, self._run_id)
        return self._task.uncancel() == 0


def hand_over(store: Store, run_id: str) -> None:
    """Leave a run that this process is about to cancel to other processes."""
    store.note(f"{HANDED_OVER}{run_id}", "1")


def is_handed_over(store: Store, run_id: str) -> bool:
    """Return whether a cancelled run was left to other processes. Raises JournalError."""
    return bool(store.noted(f"{HANDED_OVER}{run_id}"))


def forget_requests(store: Store, run_id: str) -> None:
    """Withdraw the requests to cancel a run or to continue it elsewhere."""
    store.forget_notes(f"{CANCEL}{run_id}", f"{HANDED_OVER}{run_id}")
