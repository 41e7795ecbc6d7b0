"""Read runs without writing: no journal is created, and a folder that cannot be written is not changed.

A folder that can be written is read through the process's own store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from closeout.errors import JournalError
from closeout.homes import DatabaseHome, Home
from closeout.journal.database import (
    CHECKED,
    FILE_NAME,
    JOURNAL_FILES,
    VERSION,
    explained,
    open_connection,
    open_read_only,
    prepare,
    version_of,
)
from closeout.journal.locks import LOCKS_NAME, RunLocks
from closeout.journal.on_sqlite import SqliteJournal
from closeout.journal.run_counts import MESSAGES_NAME, SYNCED_NAME, RunCounts
from closeout.journal.store import Store, open_store

__all__ = ["has_journal", "open_to_read"]

_EFFECTIVE = os.access in os.supports_effective_ids


@contextmanager
def open_to_read(home: Home) -> Iterator[Store]:
    """Open the runs kept in a home to look at them; a folder without a journal has no runs. Raises JournalError."""
    try:
        store = open_store(home, _writable_store)
    except _OnlyToRead:
        assert isinstance(home, Path)
        with closing(Store(home, _ReadOnlyJournal(home))) as sealed:
            yield sealed
    else:
        yield store


def has_journal(home: Home) -> bool:
    """Return whether a home has a journal, or is a database. Raises JournalError."""
    return isinstance(home, DatabaseHome) or _exists(home / FILE_NAME)


class _OnlyToRead(Exception):
    """The folder cannot be written, or it has no journal."""


def _writable_store(home: Home) -> Store:
    if isinstance(home, DatabaseHome):
        return Store(home)
    journal = home / FILE_NAME
    if not _exists(journal):
        raise _OnlyToRead
    files = [home, journal, *(path for name in JOURNAL_FILES[1:] if (path := home / name).exists())]
    if not all(os.access(path, os.W_OK, effective_ids=_EFFECTIVE) for path in files):
        raise _OnlyToRead
    return Store(home)


class _ReadOnlyJournal(SqliteJournal):
    """A journal that changes nothing in its folder. What would write raises JournalError."""

    def _open(self, folder: Path) -> None:
        with explained(self.path):
            self.db = self._connect()
        self._reader = self.db
        self.locks = RunLocks(folder / LOCKS_NAME, read_only=True)
        self.synced = RunCounts(folder / SYNCED_NAME, read_only=True)
        self.messages = RunCounts(folder / MESSAGES_NAME, read_only=True)

    def _connect(self) -> sqlite3.Connection:
        if _exists(self.path):
            db = self._connected()
            version = version_of(db, self.path)
            if version == VERSION:
                return db
            if version == 1:
                db.close()
                raise JournalError(
                    f"{self.path} is of an old format, and cannot be written here. Copy it to a folder of your own, "
                    "and set CLOSEOUT_HOME to that."
                )
            if version:  # it may not be migrated here
                if version < CHECKED:
                    db.execute("CREATE TEMP VIEW events AS SELECT *, NULL AS crc FROM main.events")
                if version < 4:
                    db.execute("CREATE TEMP VIEW runs AS SELECT *, 0.0 AS due FROM main.runs")
                return db
            db.close()  # nothing was written yet
        db = open_connection(":memory:")
        prepare(db, self.path)
        return db

    def _connected(self) -> sqlite3.Connection:
        if not _log(self.path).exists():
            return open_read_only(self.path, "mode=ro&immutable=1")
        db = open_read_only(self.path)
        try:
            db.execute("PRAGMA schema_version")
            return db
        except sqlite3.OperationalError as error:
            db.close()
            if "unable to open" not in str(error):
                raise
        # The log's index is missing, and must not be created.
        if _log(self.path).stat().st_size == 0:
            return open_read_only(self.path, "mode=ro&immutable=1")
        raise JournalError(
            f"The latest runs are in {_log(self.path)}, which cannot be read in a folder that cannot be written. "
            "Copy the folder to one you own and set CLOSEOUT_HOME to that."
        )


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalError(f"Cannot read {path} ({error.strerror}). Set CLOSEOUT_HOME to a folder you own.") from None
    return True


def _log(journal: Path) -> Path:
    return Path(f"{journal}-wal")
