"""Delete runs that ended longer ago than they are to be kept."""

from __future__ import annotations

import time

from closeout.journal.store import Store
from closeout.journal.text_search import forget_deleted

__all__ = ["UNENDED", "delete_ended", "ended_before"]

DAY = 86_400.0
UNENDED = ("running", "waiting")  # the status of runs that age does not delete


def ended_before(store: Store, days: float) -> list[str]:
    """Return the ids of the runs that ended, or were interrupted, more than so many days ago."""
    last = time.time() - days * DAY
    found = (run for run in store.each_run() if run.status not in UNENDED and (run.ended or run.started) < last)
    # One that was interrupted has no end, or an earlier one after which it was resumed.
    return [run.run_id for run in found if run.status != "interrupted" or store.last_time(run.run_id) < last]


def delete_ended(store: Store, days: float) -> int:
    """Delete the runs that ended more than so many days ago, also from the search index. Returns how many there were.

    Raises:
        JournalLocked: One of them is being resumed; nothing is deleted.
        JournalError: The journal cannot be written.
    """
    found = ended_before(store, days)
    if found:
        store.delete_runs(found)
        forget_deleted(store)
    return len(found)
