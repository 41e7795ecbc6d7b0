"""How long `closeout runs usage` takes over a million runs, in a folder and in PostgreSQL.

The runs are written straight into the tables, as their ends leave them: 700 groups of day, model and agent.

    python bench/usage_totals.py [--runs 1000000]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from closeout import usage_totals
from closeout.homes import as_home
from closeout.journal.journal_database import SqlConnection
from closeout.journal.store import close_stores, open_store
from postgres_server import PostgresServer

GROUPS = 700
RUN = "INSERT INTO runs (run_id, started, ended, counted, status, task, model, agent) VALUES (?,?,?,?,?,?,?,?)"
GROUP = "INSERT INTO usage_groups (id, day, keys, person, model, agent, tool) VALUES (?,?,?,?,?,?,?)"
USAGE = "INSERT INTO usage VALUES (?,?,?,?,?,?,?,?,?,0,0,0.0,0)"


def filled(home: str, runs: int) -> None:
    store = open_store(as_home(home))

    def groups() -> Iterator[tuple[Any, ...]]:
        for number in range(GROUPS):
            day = f"2026-{number % 350 // 28 + 1:02}-{number % 28 + 1:02}"
            yield number, day, "[]", "", ("gpt-5", "gpt-5-mini")[number >= GROUPS // 2], "clerk", ""

    ended = (
        (f"run{n}", 1e9 + n, 1e9 + n + 5, 1e9 + n + 5, "answered", "Do it. " * 10, "gpt-5", "clerk")
        for n in range(runs)
    )
    used = ((n * GROUPS // runs, n + 1, 5, 10_000, 500, 0, 700, 0.01, 0) for n in range(runs))
    store.transact(lambda db: db.executemany(GROUP, groups()))
    for statement, rows in ((RUN, ended), (USAGE, used)):
        while part := list(islice(rows, 20_000)):
            store.transact(partial(_insert, statement, part))


def _insert(statement: str, rows: list[tuple[Any, ...]], db: SqlConnection) -> None:
    db.executemany(statement, rows)


def measured(home: str, runs: int) -> float:
    """Return the best of three times in seconds."""
    filled(home, runs)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        found = usage_totals(as_home(home))
        times.append(time.perf_counter() - began)
    assert sum(total.usage.requests for total in found) == 5 * runs
    close_stores()
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        sqlite = measured(folder, runs)
    server = PostgresServer()
    try:
        server.start()
        postgres = measured(server.url(schema="bench"), runs)
    finally:
        server.remove()
    print(f"usage of {runs:,} runs: SQLite {sqlite:.2f} s, PostgreSQL {postgres:.2f} s (load {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    main()
