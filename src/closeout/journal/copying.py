"""Copy recorded runs from one journal into another: shards of an evaluation, runs of another machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from closeout.errors import JournalDamaged, JournalError
from closeout.homes import DatabaseHome, Home
from closeout.journal.claims import IMPORTED
from closeout.journal.database import CHECKED, FILE_NAME, explained, open_read_only, version_of
from closeout.journal.events import REPLIED
from closeout.journal.holds import held_runs
from closeout.journal.journal_database import SEQ_BITS, EventRow, SqlConnection
from closeout.journal.on_sqlite import references
from closeout.journal.readonly import open_to_read
from closeout.journal.store import NEW_NOTE, Store

__all__ = ["copy_runs"]

RUNS_AT_ONCE = 100  # runs in one commit, so that other writers do not wait for long
ROWS_AT_ONCE = 1000
_KEPT = (*REPLIED, "running")  # the status of runs that a copy does not replace
_COLUMNS = "run_id, started, ended, status, task, model, answer, stop_reason"
_SELECT_RUNS = f"SELECT id, {_COLUMNS} FROM runs ORDER BY id"  # noqa: S608 - constant
_INSERT_RUN = f"INSERT INTO runs ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)"  # noqa: S608 - constant
_SELECT_OWN = "SELECT id, status FROM runs WHERE run_id=?"
_SELECT_ROWS = "SELECT place, body, crc FROM events WHERE place>=? AND place<? ORDER BY place LIMIT ?"


class _ReadsRows(Protocol):
    """Reads from a journal."""

    def __call__(self, statement: str, values: tuple[Any, ...] = (), /) -> list[Any]: ...


def copy_runs(source: Home, store: Store, run_ids: Collection[str] | None = None, *, untrusted: bool = False) -> int:
    """Copy runs of another journal into a store.

    A run that the store has already is replaced if it did not end with or without an answer, and only by one that did.
    So copying twice copies nothing twice. A run on hold is never replaced, and no run is by a stranger's.

    Args:
        source: The home that has the journal, or the journal's file. It is only read.
        store: Where the runs are copied to.
        run_ids: The names of the runs; None for all.
        untrusted: The runs may come from a stranger: nothing of them is executed before a person trusts them.

    Returns:
        The number of runs that were copied.

    Raises:
        JournalError: A journal cannot be read or written, or the source is of another format.
    """
    store.flush()
    with _opened(source) as query:
        held = held_runs(store)

        def copy(rows: list[Any], db: SqlConnection) -> int:
            copied = [row for row in rows if _copy(query, db, store, row, replace=not untrusted and row[1] not in held)]
            for row in copied if untrusted else ():
                db.execute(NEW_NOTE, (f"{IMPORTED}{row[1]}", ""))
            return len(copied)

        wanted = [row for row in query(_SELECT_RUNS) if run_ids is None or row[1] in run_ids]
        parts = (wanted[first : first + RUNS_AT_ONCE] for first in range(0, len(wanted), RUNS_AT_ONCE))
        return sum(store.database.transact(partial(copy, part)) for part in parts)


@contextmanager
def _opened(source: Home) -> Iterator[_ReadsRows]:
    if isinstance(source, DatabaseHome):
        with open_to_read(source) as store:
            yield store.query
        return
    file = source if source.is_file() else source / FILE_NAME
    if not file.exists():
        raise JournalError(f"There is no journal in {source}.")
    try:
        with explained(file):
            journal = _open_file(file)
    except JournalDamaged:
        raise JournalDamaged(
            f"{file} is no journal, such as `closeout runs export` writes, or damaged. Nothing of it was imported."
        ) from None

    def query(statement: str, values: tuple[Any, ...] = (), /) -> list[Any]:
        return journal.execute(statement, values).fetchall()

    with explained(file), closing(journal):
        yield query


def _open_file(file: Path) -> sqlite3.Connection:
    """Open a journal's file, whatever its name, to read it."""
    db = open_read_only(file)
    try:
        if version_of(db, file) < CHECKED:
            raise JournalError(
                f"{file} was written by an older version of Closeout. Run `closeout runs` there once to update it."
            )
    except BaseException:
        db.close()
        raise
    return db


def _copy(query: _ReadsRows, db: SqlConnection, store: Store, row: tuple[Any, ...], *, replace: bool) -> bool:
    """Copy a run, and return whether it was copied."""
    number, run_id, _, _, status, *_ = row
    for own, own_status in db.execute(_SELECT_OWN, (run_id,)).fetchall():
        is_interrupted = own_status == "running" and not store.database.locks.held_of([own])
        if not replace or (own_status in _KEPT and not is_interrupted) or status not in REPLIED:
            return False
        store.database.discard(db, run_id, own)
    db.execute(_INSERT_RUN, row[1:])
    own = int(db.execute(_SELECT_OWN, (run_id,)).fetchone()[0])
    store.database.synced.clear(own)
    for place, body, crc in _rows(query, number):
        # The checksum of an event covers its place in the run, not the run's number: it stays valid.
        data = body.encode() if isinstance(body, str) else body
        moved: EventRow = (place + (own - number << SEQ_BITS), data, crc)
        store.database.insert(db, moved, _bodies(query, data))
    return True


def _rows(query: _ReadsRows, number: int) -> Iterator[tuple[int, Any, Any]]:
    first, end = number << SEQ_BITS, number + 1 << SEQ_BITS
    while found := query(_SELECT_ROWS, (first, end, ROWS_AT_ONCE)):
        yield from found
        first = found[-1][0] + 1


def _bodies(query: _ReadsRows, row: bytes) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for digest in references(row):
        for (body,) in query("SELECT body FROM bodies WHERE hash=?", (digest,)):
            found[digest] = [body]
    return found
