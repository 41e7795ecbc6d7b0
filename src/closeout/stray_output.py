"""Keep what tools print out of stdout, which has the answer of a command, or the messages of a protocol."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

__all__ = ["stray_output_to_stderr"]

STDOUT, STDERR = 1, 2  # file descriptors, which child processes and libraries in C write to


@contextmanager
def stray_output_to_stderr() -> Iterator[None]:
    """Send to stderr what is printed meanwhile: by tools, by modules that are imported, by child processes.

    Closeout prints its own output afterwards, or to a stream that it has opened for itself.
    """
    own = sys.stdout
    own.flush()
    try:
        kept = os.dup(STDOUT)
    except OSError:  # closed by the parent process
        kept = -1
    try:
        if kept >= 0:
            _point_at_stderr()
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(OSError, ValueError):
            own.flush()  # somebody may have kept it: what was printed there is not ours
        with suppress(OSError, TypeError):  # Windows
            ctypes.CDLL(None).fflush(None)  # what libraries in C have printed
        if kept >= 0:
            os.dup2(kept, STDOUT)
            os.close(kept)


def _point_at_stderr() -> None:
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:  # stderr is closed
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, STDOUT)
        os.close(nothing)
