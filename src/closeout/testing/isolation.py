"""Keep the runs of tests away from the user's own, and the user's settings away from the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from closeout.journal.store import close_store

__all__ = ["isolated"]

_PREFIX = "CLOSEOUT_"


@contextmanager
def isolated() -> Iterator[Path]:
    """Give the runs within a home of their own, without settings from the environment.

    `with isolated() as home:` sets CLOSEOUT_HOME to a new folder and removes the other CLOSEOUT_ variables. At the end
    the folder is removed and the environment is as before.

    Yields:
        The folder.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}
    with tempfile.TemporaryDirectory(prefix="closeout-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            _replace_settings({"CLOSEOUT_HOME": name})
            yield folder
        finally:
            _replace_settings(before)
            close_store(folder)


def _replace_settings(values: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(_PREFIX)]:
        del os.environ[name]
    os.environ.update(values)
