"""A ledger in an SQLite file of its own, beside the journal of a folder."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from closeout.journal.database import explained, make_folder, open_file, set_modes, transaction, wipe
from closeout.journal.journal_database import SqlConnection
from closeout.journal.locks import RunLocks

__all__ = ["LEDGER_NAME", "LedgerFile"]

T = TypeVar("T")

LEDGER_NAME = "budgets.sqlite3"
LOCKS_FILE = "budgets.locks"
VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
  key TEXT, period TEXT, start REAL, usd INTEGER, tokens INTEGER, requests INTEGER,
  PRIMARY KEY (key, period, start)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reservations (
  key TEXT, request TEXT, process INTEGER, at REAL, usd INTEGER, tokens INTEGER, requests INTEGER,
  PRIMARY KEY (key, request)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS reservations_by_request ON reservations (request);
CREATE TABLE IF NOT EXISTS processes (last INTEGER);
"""


class LedgerFile:
    """A ledger in a folder: a `LedgerDatabase`.

    Args:
        folder: The folder. It is created.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder, LEDGER_NAME)
        self.path = folder / LEDGER_NAME
        self._guard = threading.Lock()
        with explained(self.path):
            self._db = open_file(self.path, _prepare)
        self.locks = RunLocks(folder / LOCKS_FILE)

    def transact(self, act: Callable[[SqlConnection], T]) -> T:
        """Call a function within a transaction. Other processes wait."""
        with self._guard, explained(self.path), transaction(self._db) as db:
            return act(db)

    def admit(self, db: SqlConnection, keys: Sequence[str]) -> float:
        """Return the time. The transaction keeps everybody else out."""
        return time.time()

    def wipe(self) -> None:
        wipe(self.path)

    def close(self) -> None:
        self.locks.close()
        self._db.close()


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    set_modes(db, path)
    if db.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    with transaction(db):
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        if db.execute("SELECT COUNT(*) FROM processes").fetchone()[0] == 0:
            db.execute("INSERT INTO processes VALUES (0)")
        db.execute(f"PRAGMA user_version={VERSION}")
