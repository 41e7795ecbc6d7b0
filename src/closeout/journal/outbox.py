"""The outbox: the ends and waits of runs that are to be announced, each noted in the transaction that records it."""

from __future__ import annotations

from closeout.journal.claims import CANCEL, HANDED_OVER
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.journal_database import SEQ_BITS, RunUpdate

__all__ = ["noted_end"]

# The place of the event, and the agent whose processes announce it. A process that stops hands a run over as cancelled:
# that is no end, unless somebody has asked for it.
_PUT = (
    "INSERT INTO outbox (place, agent) SELECT CAST(? AS bigint), CAST(? AS text) "
    "WHERE NOT EXISTS (SELECT 1 FROM notes WHERE name=?) OR EXISTS (SELECT 1 FROM notes WHERE name=?) "
    "ON CONFLICT (place) DO NOTHING"
)


def noted_end(started: RunStarted | None, ended: RunEnded, *, run_id: str, number: int, seq: int) -> list[RunUpdate]:
    """Return the change that notes the end or wait of a run, if the run announces it."""
    agent = started and started.announced.get("waiting" if ended.status == "waiting" else "ended")
    if agent is None:
        return []
    notes = (f"{HANDED_OVER}{run_id}", f"{CANCEL}{run_id}") if ended.status == "cancelled" else ("", "")
    return [(number, _PUT, ((number << SEQ_BITS) + seq, agent, *notes))]
