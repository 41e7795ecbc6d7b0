"""Delete runs by name, or by the days since they ended. Runs on hold are not deleted."""

from __future__ import annotations

import time
from collections.abc import Collection

from closeout.journal.holds import check_not_held, held_runs
from closeout.journal.store import Store
from closeout.journal.text_search import forget_deleted

__all__ = ["UNENDED", "delete_ended", "delete_runs", "ended_before"]

DAY = 86_400.0
UNENDED = ("running", "waiting")  # the status of runs that age does not delete


def ended_before(store: Store, days: float) -> list[str]:
    """Return the ids of the runs that ended, or were interrupted, more than so many days ago."""
    last = time.time() - days * DAY
    found = (run for run in store.each_run() if run.status not in UNENDED and (run.ended or run.started) < last)
    # One that was interrupted has no end, or an earlier one after which it was resumed.
    return [run.run_id for run in found if run.status != "interrupted" or store.last_time(run.run_id) < last]


def delete_ended(store: Store, days: float) -> int:
    """Delete the runs that ended more than so many days ago and are not on hold. Returns how many there were.

    Raises:
        JournalLocked: One of them is being resumed; nothing is deleted.
        JournalError: The journal cannot be written.
    """
    held = held_runs(store)
    return delete_runs(store, [run_id for run_id in ended_before(store, days) if run_id not in held])


def delete_runs(store: Store, run_ids: Collection[str]) -> int:
    """Delete runs, also from the search index, and return how many there were.

    Raises:
        UsageError: One of them is on hold; nothing is deleted.
        RunNotFound: There is no such run; nothing is deleted.
        JournalLocked: One of them is being executed; nothing is deleted.
        JournalError: The journal cannot be written.
    """
    check_not_held(store, run_ids)
    count = store.delete_runs(run_ids) if run_ids else 0
    if count:
        forget_deleted(store)
    return count
