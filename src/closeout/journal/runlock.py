"""Who leads a run: one byte of a lock file for each run, locked by the process that leads it.

The operating system lets go of the byte when the process dies, however it dies, so a lock is never stale.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from closeout.errors import JournalError, JournalLocked

__all__ = ["RunLocks"]

# Whoever lists runs locks a byte for some microseconds, to see whether it is free. That is no leader: ask again.
_TRIES = 20
_BETWEEN = 0.01  # seconds
_ABSENT = -1  # in place of a file: there is none, so nobody leads a run
_SEALED = -2  # there is one that may not be read, so what the record says of a run stands


class RunLocks:
    """Locks on runs, by their numbers. One file handle a process: closing any handle would drop all its POSIX locks."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """`read_only` is for who only looks: nothing is made, and no run can be taken."""
        self._file = _opened_to_read(path) if read_only else _opened(path)
        self._held: set[int] = set()

    def take(self, run_id: str, number: int) -> None:
        """Raises JournalLocked while somebody leads the run, this process included."""
        if number in self._held or not self._taken(number):
            raise JournalLocked(f"Run {run_id} is being led right now. Wait for it to end, or stop it first.")
        self._held.add(number)

    def _taken(self, number: int) -> bool:
        for _ in range(_TRIES - 1):
            if _lock(self._file, number):
                return True
            time.sleep(_BETWEEN)
        return _lock(self._file, number)

    def drop(self, number: int) -> None:
        if number in self._held:
            self._held.discard(number)
            _unlock(self._file, number)

    def held_anywhere(self, number: int) -> bool:
        if number in self._held:
            return True
        if self._file < 0:
            return self._file == _SEALED
        if not _lock(self._file, number, shared=True):  # two that look at once are not in each other's way
            return True
        _unlock(self._file, number)
        return False

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._held.clear()


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise JournalError(f"Cannot write {path} ({error.strerror}). Set CLOSEOUT_HOME to a folder you own.") from None


def _opened_to_read(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return _ABSENT
    except OSError:
        return _SEALED


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int, number: int, *, shared: bool = False) -> bool:
        os.lseek(file, number, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int, number: int) -> None:
        os.lseek(file, number, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: int, number: int, *, shared: bool = False) -> bool:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, number, os.SEEK_SET)
        except OSError:
            return False
        return True

    def _unlock(file: int, number: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number, os.SEEK_SET)
