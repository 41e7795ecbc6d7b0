"""A number for each run, in a file beside the journal."""

from __future__ import annotations

import os
import struct
import threading
from contextlib import suppress
from pathlib import Path

from closeout.errors import JournalError
from closeout.journal.database import open_or_create

__all__ = ["MESSAGES_NAME", "SYNCED_NAME", "RunCounts"]

SYNCED_NAME = "journal.synced"
MESSAGES_NAME = "journal.messages"


class RunCounts:
    """A number for each run: eight bytes in a file beside the journal, which every process can read at next to no cost.

    One file counts the events of a run that a durable commit has synced. If the journal holds fewer, it has lost events
    that were safely on disk, for example because its log was deleted. Another counts the messages that were sent to a
    run. The files are not synced themselves: a number that a power cut loses hides such a loss, or is counted again.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._lock = threading.Lock()  # the file has one position
        self._path = path
        self._file = -1
        if not read_only:
            self._file = open_or_create(path)
            return
        with suppress(OSError):
            self._file = os.open(path, os.O_RDONLY)

    def of(self, run: int) -> int:
        """Return the number of a run; 0 if the run is unknown."""
        if self._file < 0:
            return 0
        with self._lock:
            os.lseek(self._file, run * 8, os.SEEK_SET)
            found = os.read(self._file, 8)
        return int(struct.unpack("<Q", found)[0]) if len(found) == 8 else 0

    def set(self, run: int, count: int) -> None:
        """Remember the number of a run. Raises JournalError."""
        try:
            with self._lock:
                os.lseek(self._file, run * 8, os.SEEK_SET)
                os.write(self._file, struct.pack("<Q", count))
        except OSError as error:
            raise JournalError(f"{self._path} cannot be written ({error.strerror}).") from None

    def clear(self, run: int) -> None:
        """Forget the number of a lost run whose place a new run gets."""
        if self.of(run):
            with suppress(JournalError):
                self.set(run, 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
