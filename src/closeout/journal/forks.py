"""Stores and `os.fork`: no connection to SQLite is open while the process splits. What a store does is in `store`.

SQLite keeps the locks of a process in that process' memory. A child inherits the note that they are held, but not the
locks: once its parent is gone, what it writes and what others write destroy each other. So connections are closed
before a fork and opened again in the parent; a child opens its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Protocol, TypeVar

__all__ = ["Splittable", "closed_while_forking"]


class Splittable(Protocol):
    """What a store must be able to do."""

    def pause(self) -> None:
        """Let nobody in until `go_on`, and hold nothing that a child must not inherit."""
        ...

    def go_on(self, *, reopen: bool) -> None: ...


S = TypeVar("S", bound=Splittable)


def closed_while_forking(stores: MutableMapping[tuple[int, Path], S], lock: threading.Lock) -> None:
    """From now on the process' stores, which `lock` guards, are closed while it forks; a child does not know them."""
    paused: list[S] = []

    def before() -> None:
        lock.acquire()
        paused[:] = {store for (process, _), store in stores.items() if process == os.getpid()}
        for store in paused:
            store.pause()

    def resumed(*, reopen: bool) -> None:
        for store in paused:
            store.go_on(reopen=reopen)
        paused.clear()
        lock.release()

    def in_child() -> None:
        stores.clear()
        resumed(reopen=False)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=lambda: resumed(reopen=True), after_in_child=in_child)
