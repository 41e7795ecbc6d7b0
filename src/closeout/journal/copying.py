"""Copy recorded runs from one journal into another: shards of an evaluation, runs of another machine."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from closeout.errors import JournalError, RunNotFound
from closeout.journal.database import FILE_NAME, LOCK_SECONDS, VERSION, explained, transaction, version_of
from closeout.journal.store import SEQ_BITS, SYNCED_NAME, RunCounts, Store, references

__all__ = ["copy_runs"]

RUNS_AT_ONCE = 100  # runs in one commit, so that other writers do not wait for long
_KEPT = ("answered", "unanswered", "running")  # the status of runs that a copy does not replace


def copy_runs(source: Path, store: Store, run_ids: Collection[str] | None = None) -> int:
    """Copy runs of another journal into a store.

    A run that the store has already is replaced if it did not end with or without an answer, and only by one that did.
    So copying twice copies nothing twice.

    Args:
        source: The home that has the journal, or the journal's file. It is only read.
        store: Where the runs are copied to.
        run_ids: The names of the runs; None for all.

    Returns:
        The number of runs that were copied.

    Raises:
        JournalError: A journal cannot be read or written, or the source is of another format.
    """
    file = source if source.is_file() else source / FILE_NAME
    if not file.exists():
        raise JournalError(f"There is no journal in {source}.")
    store.flush()
    copied = 0
    with explained(store.path), closing(_connected(store.path, file)) as db:
        wanted = [row for row in _runs(db) if run_ids is None or row[1] in run_ids]
        marks = RunCounts(store.path.parent / SYNCED_NAME)
        try:
            for first in range(0, len(wanted), RUNS_AT_ONCE):
                with transaction(db):
                    copied += sum(_copy(db, store, marks, row) for row in wanted[first : first + RUNS_AT_ONCE])
        finally:
            marks.close()
    return copied


def _connected(target: Path, source: Path) -> sqlite3.Connection:
    """Return a connection to the target, with the source as `theirs`."""
    db = sqlite3.connect(target, timeout=LOCK_SECONDS, isolation_level=None, uri=True)
    try:
        with explained(source):
            db.execute("ATTACH ? AS theirs", (f"{source.absolute().as_uri()}?mode=ro",))
            with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as alone:
                version = version_of(alone, source)
        if version != VERSION:
            raise JournalError(
                f"{source} was written by an older version of Closeout. Run `closeout runs` there once to update it."
            )
    except BaseException:
        db.close()
        raise
    return db


def _runs(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    columns = "id, run_id, started, ended, status, task, model, answer, stop_reason"
    return db.execute(f"SELECT {columns} FROM theirs.runs ORDER BY id").fetchall()  # noqa: S608 - constant


def _copy(db: sqlite3.Connection, store: Store, marks: RunCounts, row: tuple[Any, ...]) -> bool:
    """Copy a run, and return whether it was copied."""
    theirs, run_id, _, _, status, *_ = row
    with suppress(RunNotFound):
        if store.run(run_id).status in _KEPT or status not in ("answered", "unanswered"):
            return False
        ((own,),) = db.execute("SELECT id FROM main.runs WHERE run_id=?", (run_id,)).fetchall()
        db.execute("DELETE FROM main.events WHERE place>=? AND place<?", (own << SEQ_BITS, own + 1 << SEQ_BITS))
        db.execute("DELETE FROM main.runs WHERE id=?", (own,))
    number = int(db.execute("INSERT INTO main.runs VALUES (NULL,?,?,?,?,?,?,?,?)", row[1:]).lastrowid or 0)
    marks.clear(number)
    start, end = theirs << SEQ_BITS, theirs + 1 << SEQ_BITS
    # The checksum of an event covers its place in the run, not the run's number: it stays valid.
    db.execute(
        "INSERT INTO main.events SELECT place+?, body, crc FROM theirs.events WHERE place>=? AND place<?",
        ((number << SEQ_BITS) - start, start, end),
    )
    bodies = db.execute("SELECT body FROM theirs.events WHERE place>=? AND place<?", (start, end))
    for digest in {digest for (body,) in bodies for digest in references(body)}:
        db.execute("INSERT OR IGNORE INTO main.bodies SELECT hash, body FROM theirs.bodies WHERE hash=?", (digest,))
    return True
