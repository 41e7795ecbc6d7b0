"""What SQLite and the disk complain of, as sentences that tell the next step. What is done about it is in `store`."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from closeout.errors import JournalDamaged, JournalError, JournalFull, JournalLocked

__all__ = ["LOCK_SECONDS", "explained", "journal_error", "make_folder", "unless_locked"]

LOCK_SECONDS = 20.0  # how long a commit waits for another process's


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as sentences that tell the next step."""
    try:
        yield
    except sqlite3.Error as error:
        raise journal_error(error, path) from error


def journal_error(error: sqlite3.Error, path: Path) -> JournalError:
    text = str(error)
    if "disk is full" in text or "disk I/O" in text or "database or disk" in text:
        return JournalFull(f"The disk that holds {path} is full. Free some space first.")
    if "locked" in text or "busy" in text:
        return JournalLocked(
            f"{path} has been locked by another process for {LOCK_SECONDS:.0f} seconds. Try again later."
        )
    if "not a database" in text or "malformed" in text or "corrupt" in text:
        return JournalDamaged(
            f"{path} is damaged ({text}). Move it away to start afresh; `sqlite3 FILE .recover` may save runs."
        )
    if "readonly" in text or "unable to open" in text:
        return JournalError(f"Cannot write {path} ({text}). Set CLOSEOUT_HOME to a folder you own.")
    return JournalError(f"The journal {path} failed: {text}.")


def make_folder(folder: Path, file: str) -> None:
    """The folder of runs with its file. What is made is its owner's alone: questions and results stand in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(folder / file, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite's own files beside it follow it
    except OSError as error:
        raise JournalError(
            f"Cannot make the folder {folder} for the record of runs ({error.strerror}). "
            "Set CLOSEOUT_HOME to one you own."
        ) from None


def unless_locked(act: Callable[[], None]) -> None:
    """Do it, again while others are in the way. While a file becomes a journal SQLite does not wait by itself."""
    patience = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > patience:
                raise
        time.sleep(0.01)
