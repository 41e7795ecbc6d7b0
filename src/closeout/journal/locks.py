"""Run locks: one byte of a lock file for each run, locked by the process that executes the run.

The operating system releases the byte when the process dies, however it dies, so a lock is never stale. Where there are
open-file-description locks (Linux), the lock belongs to this module's file handle: another part of the process may open
and close the same file without releasing it, which would drop an ordinary POSIX lock.

A lock that this process holds is never looked at through the operating system, because looking is to lock and unlock.
The process remembers what it holds, and one thread at a time takes, drops or looks at locks.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from closeout.errors import JournalLocked
from closeout.journal.database import open_or_create

__all__ = ["LOCKS_NAME", "RunLocks", "locked"]

LOCKS_NAME = "journal.locks"

# A process that lists runs locks a byte for some microseconds to see whether it is free. Retry before giving up.
_TRIES = 20
_BETWEEN = 0.01  # seconds
_ABSENT = -1  # In place of a file handle: without a lock file, no run is being executed.
_SEALED = -2  # the lock file may not be read, so the status in the record has to be believed

_guard = threading.Lock()
_held: set[tuple[int, int, int]] = set()  # locks of this process: device and inode of the file, number of the run


def _forget_parent() -> None:
    """Begin without locks in a forked process: those that it inherits are its parent's."""
    global _guard
    _guard = threading.Lock()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


class RunLocks:
    """The locks of a journal's runs, by run number.

    Args:
        path: the lock file.
        read_only: create nothing. Runs can then be looked at, but not locked.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._file = _open_to_read(path) if read_only else open_or_create(path)
        self._place = (0, 0)
        if self._file >= 0:
            found = os.fstat(self._file)
            self._place = found.st_dev, found.st_ino
        self._held: set[int] = set()

    def take(self, run_id: str, number: int, db: object = None) -> None:
        """Lock a run. Raises JournalLocked while it is being executed, by this process or another one."""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_BETWEEN)
            if self.try_take(number):
                return
            if (*self._place, number) in _held:
                break
        raise locked(run_id)

    def try_take(self, number: int) -> bool:
        """Take a lock if it is free, and return whether it was."""
        with _guard:
            if (*self._place, number) in _held or not _lock(self._file, number):
                return False
            self._held.add(number)
            _held.add((*self._place, number))
            return True

    def drop(self, number: int, db: object = None) -> None:
        """Release a run, if this object holds its lock."""
        with _guard:
            if number in self._held:
                self._held.discard(number)
                _held.discard((*self._place, number))
                _unlock(self._file, number)

    def held_anywhere(self, number: int) -> bool:
        """Return whether any process executes the run."""
        if self._file < 0:
            return self._file == _SEALED
        with _guard:
            if (*self._place, number) in _held:
                return True
            if not _lock(self._file, number, shared=True):  # shared: two processes that look do not disturb each other
                return True
            _unlock(self._file, number)
            return False

    def held_of(self, numbers: Sequence[int]) -> set[int]:
        """Return those of some runs that any process executes."""
        return {number for number in numbers if self.held_anywhere(number)}

    def close(self) -> None:
        """Release every lock."""
        with _guard:
            _held.difference_update((*self._place, number) for number in self._held)
            if _BELONG_TO_HANDLE or all(held[:2] != self._place for held in _held):
                if self._file >= 0:
                    os.close(self._file)
            else:  # closing the file would release the lock of another object of this process
                for number in self._held:
                    _unlock(self._file, number)
            self._file = _ABSENT
            self._held.clear()


def locked(run_id: str) -> JournalLocked:
    """Return the error for a run that a process executes."""
    return JournalLocked(f"Run {run_id} is being executed right now. Wait for it to end, or stop it first.")


def _open_to_read(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return _ABSENT
    except OSError:
        return _SEALED


if sys.platform == "win32":
    import msvcrt

    _BELONG_TO_HANDLE = True

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

elif sys.platform == "linux":
    import fcntl

    _BELONG_TO_HANDLE = True

    def _flock(kind: int, number: int) -> bytes:
        """`struct flock` for one byte at `number`; the process id must be 0."""
        fields = (kind, os.SEEK_SET, number, 1, 0)
        return struct.pack("@hhqqi4x", *fields)

    def _lock(file: int, number: int, *, shared: bool = False) -> bool:
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, number))
        except OSError:
            return False
        return True

    def _unlock(file: int, number: int) -> None:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, number))

else:
    import fcntl

    _BELONG_TO_HANDLE = False

    def _lock(file: int, number: int, *, shared: bool = False) -> bool:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, number, os.SEEK_SET)
        except OSError:
            return False
        return True

    def _unlock(file: int, number: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number, os.SEEK_SET)
