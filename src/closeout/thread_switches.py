"""Let threads take turns more often while one of them handles a large value."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["short_switches"]

# Seconds after which a thread that runs passes the interpreter's lock on; Python's default is 0.005. While a thread
# handles 100 MB of text, a turn of another run and the thread each wait for it many times: with Python's default
# a turn took at most 127 ms and the whole 4 to 7 s, so 43 to 52 ms and 3 to 4 s (bench/large_result.py).
SWITCH_SECONDS = 0.0005

_lock = threading.Lock()
_inside = 0
_usual = 0.0


@contextmanager
def short_switches() -> Iterator[None]:
    """Shorten the interpreter's switch interval within a block, for all threads. Blocks may overlap."""
    global _inside, _usual
    with _lock:
        _inside += 1
        if _inside == 1:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, SWITCH_SECONDS))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setswitchinterval(_usual)
