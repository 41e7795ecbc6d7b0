"""A home for the runs of tests: one temporary folder for the process, removed at its end."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from closeout.journal.store import close_store

__all__ = ["scratch_home"]


def scratch_home() -> Path:
    """Return the folder. A child process after a fork gets its own."""
    return _folder_of(os.getpid())


@cache
def _folder_of(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="closeout-"))

    def remove() -> None:
        if os.getpid() == process:  # a fork inherits this function
            close_store(folder)
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
