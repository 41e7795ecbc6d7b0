"""Looking at runs without writing: nothing is created where no journal is, nothing changed where that is not allowed.

A folder that can be written is read through the process's own store.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from closeout.errors import JournalError
from closeout.journal.database import FILE_NAME, JOURNAL_FILES, LOCK_SECONDS, VERSION, explained, prepare, version_of
from closeout.journal.locks import LOCKS_NAME, RunLocks
from closeout.journal.store import MESSAGES_NAME, SYNCED_NAME, RunCounts, Store, open_store

__all__ = ["open_to_read"]

_EFFECTIVE = os.access in os.supports_effective_ids


@contextmanager
def open_to_read(folder: Path) -> Iterator[Store]:
    """Open the runs kept in a folder to look at them; a folder without a journal has no runs. Raises JournalError."""
    try:
        store = open_store(folder, _writable_store)
    except _OnlyToRead:
        with closing(_ReadOnlyStore(folder)) as sealed:
            yield sealed
    else:
        yield store


class _OnlyToRead(Exception):
    """The folder cannot be written, or it has no journal."""


def _writable_store(folder: Path) -> Store:
    journal = folder / FILE_NAME
    if not _exists(journal):
        raise _OnlyToRead
    files = [folder, journal, *(path for name in JOURNAL_FILES[1:] if (path := folder / name).exists())]
    if not all(os.access(path, os.W_OK, effective_ids=_EFFECTIVE) for path in files):
        raise _OnlyToRead
    return Store(folder)


class _ReadOnlyStore(Store):
    """A store that changes nothing in its folder. What would write raises JournalError."""

    def _open(self, folder: Path) -> None:
        with explained(self.path):
            self._db = self._connect()
        self._reader = self._db
        self._locks = RunLocks(folder / LOCKS_NAME, read_only=True)
        self._synced = RunCounts(folder / SYNCED_NAME, read_only=True)
        self._messages = RunCounts(folder / MESSAGES_NAME, read_only=True)

    def _connect(self) -> sqlite3.Connection:
        if _exists(self.path):
            db = self._connected()
            version = version_of(db, self.path)
            if version == VERSION:
                return db
            if version:
                self._has_checksums = False  # the previous format had no checksums, and it may not be migrated here
                return db
            db.close()  # nothing was written yet
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        prepare(db, self.path)
        return db

    def _connected(self) -> sqlite3.Connection:
        if not _log(self.path).exists():
            return self._read_file("mode=ro&immutable=1")
        db = self._read_file("mode=ro")
        try:
            db.execute("PRAGMA schema_version")
            return db
        except sqlite3.OperationalError as error:
            db.close()
            if "unable to open" not in str(error):
                raise
        # The log's index is missing, and must not be created.
        if _log(self.path).stat().st_size == 0:
            return self._read_file("mode=ro&immutable=1")
        raise JournalError(
            f"The latest runs are in {_log(self.path)}, which cannot be read in a folder that cannot be written. "
            "Copy the folder to one you own and set CLOSEOUT_HOME to that."
        )

    def _read_file(self, how: str) -> sqlite3.Connection:
        """`mode=ro` reads beside a writer and needs the log's index; `immutable` is for a file without writers."""
        uri = f"{self.path.absolute().as_uri()}?{how}"
        return sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)


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
