"""Count how often a run was interrupted without progress, and end one that may be what kills its processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from closeout.journal.events import ModelFailed, ModelReplied, ModelRequested, RunEnded, ToolFinished, ToolStarted
from closeout.journal.run_journal import Journal, open_journal
from closeout.journal.store import Row, RunRecord, Store

__all__ = ["MAX_INTERRUPTIONS", "ended_in_vain"]

log = logging.getLogger("closeout")

# How often in a row a run that makes no progress may be interrupted until no process resumes it by itself.
MAX_INTERRUPTIONS = 3


async def ended_in_vain(store: Store, run_id: str, *, seen: RunRecord | None = None) -> RunEnded | None:
    """End a run as failed if it was interrupted too often without progress. A resume by hand continues it nevertheless.

    Args:
        store: Where the run is kept.
        run_id: The run, which nobody executes.
        seen: The run as the caller saw it, unless this process has claimed it.

    Returns:
        The end. None: the run is to be resumed; if it was interrupted, the log says so.

    Raises:
        JournalLocked: Another process has executed it since.
        JournalError: The journal cannot be read or written.
    """
    ((count,),) = await store.off_loop(store.query, "SELECT tries FROM runs WHERE run_id=?", (run_id,))
    if count <= MAX_INTERRUPTIONS:
        if count:
            log.warning("Resuming %s, interrupted %d time%s.", run_id, count, "" if count == 1 else "s")
        return None
    rows = await store.off_loop(store.rows_from, run_id, 0)
    ended = RunEnded(
        "main",
        "failed",
        "failed",
        error=f"It was interrupted {count} times in a row{_where(rows)}, so it is not resumed automatically: it may be "
        f"what ends the process. To resume it: closeout resume {run_id}",
    )
    journal = await open_journal(Journal.reopen, store, run_id, seen=seen)
    await journal.end(ended)
    log.warning("Run %s has failed. %s", run_id, ended.error)
    return ended


def _where(rows: Sequence[Row]) -> str:
    """Return what the run was doing when it was interrupted."""
    under_way: dict[tuple[str, str], ToolStarted | ModelRequested] = {}
    for event in (row.event for row in rows):
        if isinstance(event, (ToolStarted, ModelRequested)):
            under_way.pop((event.agent, event.key), None)  # the last one is the latest
            under_way[event.agent, event.key] = event
        elif isinstance(event, (ToolFinished, ModelReplied, ModelFailed)):
            under_way.pop((event.agent, event.key), None)
    last = next(reversed(under_way.values()), None)
    if isinstance(last, ToolStarted):
        by = "" if last.agent == "main" else f" by {last.agent}"
        return f" during the call {last.handle} of {last.name}{by}"
    return "" if last is None else " during a request to the model"
