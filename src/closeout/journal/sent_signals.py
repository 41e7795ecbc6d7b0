"""Signals: events by name that other programs send to a run, kept in its journal's file until the run receives them.

A signal is kept from the moment it is sent, whether the run waits for it, is being executed, or was interrupted. That a
run has received it is an event of the run; what is noted here besides only spares looking at it again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from typing import Any

from pydantic_core import to_json

from closeout.errors import SignalRefused
from closeout.journal.events import REPLIED
from closeout.journal.journal_database import SqlConnection
from closeout.journal.store import Store
from closeout.records import record

__all__ = [
    "MAX_PAYLOAD",
    "SentSignal",
    "check_signal_name",
    "mark_received",
    "open_signals",
    "send_signal",
]

MAX_PAYLOAD = 2**20  # characters of JSON: what is larger belongs into a file or a database, and its address here
MAX_NAME = 200  # characters

_INSERT = "INSERT INTO signals (run_id, id, name, payload, sent) VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING"
_SELECT_SENT = "SELECT name, payload, sent FROM signals WHERE run_id=? AND id=?"
_SELECT_OPEN = (
    "SELECT id, name, payload, sent FROM signals "
    "WHERE run_id=? AND name IN (SELECT value FROM {values}) AND received=0 ORDER BY seq"
)
_MARK = "UPDATE signals SET received=1, payload='' WHERE run_id=? AND id=? AND received=0"


@record
class SentSignal:
    """A signal that a run has not received yet: its id in the run, its name, its payload as JSON, its time."""

    id: str
    name: str
    payload: str
    sent: float


def send_signal(store: Store, run_id: str, name: str, payload: Any = None, *, id: str = "") -> bool:  # noqa: A002
    """Send a signal to a run, synced. The run need not wait for it yet; nothing is resumed.

    Args:
        store: Where the run is kept.
        run_id: The run.
        name: The name that the run waits for.
        payload: A JSON value for the run.
        id: Names this signal. A second one with the same id is ignored, so that a sender can safely repeat it.

    Returns:
        False if a signal with this id was sent before.

    Raises:
        SignalRefused: The name or the payload cannot be used, the id names another signal, or the run is over.
        RunNotFound: There is no such run.
        JournalError: The signal cannot be written.
    """
    check_signal_name(name)
    if not isinstance(id, str) or len(id) > MAX_NAME:
        raise SignalRefused(f"The id of a signal must be a text of at most {MAX_NAME} characters, got {id!r:.80}.")
    try:
        text = json.dumps(payload, allow_nan=False, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise SignalRefused(f"The payload of signal {name!r} is not JSON: {error}.") from None
    if len(text) > MAX_PAYLOAD:
        raise SignalRefused(
            f"The payload of signal {name!r} has {len(text):,} characters as JSON, and {MAX_PAYLOAD:,} are allowed. "
            "Store it elsewhere, and send its address."
        )
    status = store.run(run_id).status
    if status in REPLIED:
        raise SignalRefused(f"Run {run_id} is over ({status}), so it receives no signals.")

    row = (run_id, id or secrets.token_hex(10), name, text, store.clock())

    def insert(db: SqlConnection) -> tuple[Any, ...]:
        db.execute(_INSERT, row)
        return tuple(db.execute(_SELECT_SENT, row[:2]).fetchone())

    sent = store.transact(insert)
    if sent[0] != name or sent[1] not in ("", text):  # the payload is dropped when the run has received it
        raise SignalRefused(f"Signal {id!r} of run {run_id} was sent with another name or payload. Use another id.")
    store.database.tell(store.number_of(run_id))
    return bool(sent == row[2:])


def check_signal_name(name: Any) -> str:
    """Return the name of a signal.

    Raises:
        SignalRefused: It is not a short printable text.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise SignalRefused(f'A signal needs a short name such as "payment", got {name!r:.80}.')
    return name


def open_signals(store: Store, run_id: str, *names: str) -> list[SentSignal]:
    """Return the signals of some names that are not known to be received, in the order in which they were sent."""
    if not store.database.has_table("signals"):  # an older version wrote it, and it is only read
        return []
    query = _SELECT_OPEN.format(values=store.database.values_of)
    return [SentSignal(*row) for row in store.query(query, (run_id, to_json(names).decode()))]


def mark_received(store: Store, run_id: str, ids: Iterable[str]) -> None:
    """Note that a run has received signals. Its record says so already, synced or not: the payload is not needed here.

    Raises:
        JournalError: It cannot be written.
    """
    rows = [(run_id, each) for each in ids]
    if rows:
        store.transact(lambda db: db.executemany(_MARK, rows))
