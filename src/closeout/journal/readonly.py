"""The journal for who only looks at runs: nothing is written where nothing may be, nothing made where nothing is.

A folder that can be written is looked at through the process's own store. What rows mean is `store`'s business.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from closeout.errors import JournalError
from closeout.journal.runlock import RunLocks
from closeout.journal.store import FILE_NAME, LOCKS_NAME, VERSION, Store, open_store
from closeout.journal.trouble import LOCK_SECONDS, explained

__all__ = ["open_to_read"]

_EFFECTIVE = os.access in os.supports_effective_ids


@contextmanager
def open_to_read(folder: Path) -> Iterator[Store]:
    """The runs kept in a folder, to be looked at; none where there is no journal. Raises JournalError."""
    try:
        store = open_store(folder, _writable_store)
    except _OnlyToRead:
        with closing(_ReadOnlyStore(folder)) as sealed:
            yield sealed
    else:
        yield store


class _OnlyToRead(Exception):
    """Nothing may be written in the folder, or there is nothing in it yet."""


def _writable_store(folder: Path) -> Store:
    journal = folder / FILE_NAME
    if not _exists(journal):
        raise _OnlyToRead
    beside = [path for path in (_log(journal), _index(journal), folder / LOCKS_NAME) if path.exists()]
    if not all(os.access(path, os.W_OK, effective_ids=_EFFECTIVE) for path in (folder, journal, *beside)):
        raise _OnlyToRead
    return Store(folder)


class _ReadOnlyStore(Store):
    """A store that leaves its folder as it is. What would write raises JournalError."""

    def _open(self, folder: Path) -> None:
        self._connect()
        self._locks = RunLocks(folder / LOCKS_NAME, read_only=True)

    def _connect(self) -> None:
        with explained(self.path):
            if _exists(self.path):
                self._db = self._connected()
                if self._version(self._db) == VERSION:
                    return
                self._db.close()  # nothing was written yet
            self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._prepare(self._db)

    def _connected(self) -> sqlite3.Connection:
        if not _log(self.path).exists():
            return self._read("mode=ro&immutable=1")
        db = self._read("mode=ro")
        try:
            db.execute("PRAGMA schema_version")
            return db
        except sqlite3.OperationalError as error:
            db.close()
            if "unable to open" not in str(error):
                raise
        # The log's index is missing, and may not be made.
        if _log(self.path).stat().st_size == 0:
            return self._read("mode=ro&immutable=1")
        raise JournalError(
            f"The latest runs are in {_log(self.path)}, which cannot be read where nothing may be written. "
            "Copy the folder to one you own and set CLOSEOUT_HOME to that."
        )

    def _read(self, how: str) -> sqlite3.Connection:
        """`mode=ro` reads beside whoever writes, which takes the log's index; `immutable` is for a file at rest."""
        uri = f"{self.path.absolute().as_uri()}?{how}"
        return sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalError(f"Cannot read {path} ({error.strerror}). Set CLOSEOUT_HOME to one you own.") from None
    return True


def _log(journal: Path) -> Path:
    return Path(f"{journal}-wal")


def _index(journal: Path) -> Path:
    return Path(f"{journal}-shm")
