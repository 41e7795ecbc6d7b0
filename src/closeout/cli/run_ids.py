"""Run ids on the command line: the beginning of an id is enough if no other id begins so, and Tab completes it."""

from __future__ import annotations

from contextlib import suppress

from closeout.errors import CloseoutError, UsageError

__all__ = ["complete_run_id", "full_run_id"]

SHOWN = 5  # candidates that an error lists
OFFERED = 50  # candidates that Tab offers


def full_run_id(text: str) -> str:
    """Return the id of the run that a text names or begins. A text that begins no id is returned unchanged.

    Raises:
        UsageError: Several ids begin with it.
    """
    found = _ids(text, SHOWN + 1)
    if text in found or not found:
        return text
    if len(found) > 1:
        more = ", …" if len(found) > SHOWN else ""
        raise UsageError(f"Several runs begin with {text}: {', '.join(found[:SHOWN])}{more}. Write more of the id.")
    return found[0]


def complete_run_id(incomplete: str) -> list[str]:
    """Return the ids that Tab offers."""
    with suppress(CloseoutError, OSError):
        return _ids(incomplete, OFFERED)
    return []


def _ids(prefix: str, limit: int) -> list[str]:
    """Return ids that begin with a text: the id itself first, then the newest."""
    from closeout.config import home_folder
    from closeout.journal.readonly import open_to_read

    with open_to_read(home_folder()) as store:
        return store.run_ids(prefix, limit)
