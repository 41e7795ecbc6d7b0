"""Closeout with its journal in PostgreSQL: everything else as in closeout_sqlite.

docs/several-machines.md#leases: a lease says how long a silent process keeps its runs.
"""

from __future__ import annotations

import closeout_sqlite
import kit
from closeout_sqlite import decide, resume, start

__all__ = ["decide", "resume", "start"]


def home() -> str:
    return f"{kit.postgres()}&lease=2"


closeout_sqlite.home = home
