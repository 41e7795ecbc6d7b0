"""How a command ends: its exit codes, and which error means which. One place, since scripts rely on them."""

from __future__ import annotations

from closeout.errors import (
    CloseoutError,
    JournalDamaged,
    JournalFull,
    JournalLocked,
    ModelError,
    ModelUnavailable,
)

__all__ = ["ANSWERED", "BROKEN_PIPE", "FAILED", "MISUSED", "OK", "OUTCOMES", "STOPPED", "UNANSWERED", "exit_code_of"]

OK = ANSWERED = 0
UNANSWERED = 1
MISUSED = 2  # wrong usage or configuration: what was typed must change
FAILED = 3  # what was typed is right, the world was not
STOPPED = 130  # Ctrl-C, as shells say it: 128 + SIGINT
BROKEN_PIPE = 141  # whoever read our output is gone: 128 + SIGPIPE

OUTCOMES = {"answered": ANSWERED, "unanswered": UNANSWERED, "failed": FAILED, "cancelled": STOPPED}
"""The exit code for each status of a run."""

_FAILURES = (ModelError, JournalFull, JournalLocked, JournalDamaged)


def exit_code_of(error: CloseoutError) -> int:
    """FAILED for what happened to a right command, MISUSED for a command or configuration to be changed."""
    return FAILED if isinstance(error, _FAILURES) and not isinstance(error, ModelUnavailable) else MISUSED
