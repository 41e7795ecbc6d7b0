"""A million events in SQLite and in PostgreSQL: each page of the viewer, commands and retention, as the home grows.

The runs are appended as agents append them, several at once. What a page asks its server for is measured from the
request to the last byte, with the index of the search made; a command, from its start to its end. The same is asked of
homes with a hundredth and a tenth of the events. Then half of the runs are deleted, and the space is given back.
Without PostgreSQL's programs, SQLite alone is measured.

    python bench/million_events.py [--quick] [--waiting 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from aiohttp.test_utils import TestClient, TestServer

from closeout.homes import Home, as_home
from closeout.journal import events as ev
from closeout.journal.retention import delete_runs
from closeout.journal.store import Store, close_stores, open_store
from closeout.journal.text_search import SearchIndex
from closeout.server.serving import viewer_app
from many_runs import short_run
from postgres_server import PostgresServer, program

TURNS = 8
AT_ONCE = 100  # runs that are executed together
A_COMMIT = 5  # events of a run in a commit
LIMIT = 1000.0  # milliseconds
PAGES = {
    "the latest runs": "runs",
    "older runs": "runs?before=run{half:06d}",
    "search, common words": "runs?text=canal",
    "search, two words": "runs?text=Rideau%20Panama",
    "search, a phrase": "runs?text=%22lock%20gate%22",
    "search, one run": "runs?text=task%20{half}",
    "search, nothing": "runs?text=nothing%20of%20the%20kind",
    "failed runs": "runs?status=failed",
    "a run": "runs/run{half:06d}/story",
    "a long run": "runs/long/story",
    "the end of a long run": "runs/long/events?start={last}",
    "usage": "usage",
}
COMMANDS = {
    "closeout runs": ["runs"],
    "closeout runs RUN": ["runs", "run{half:06d}"],
    "closeout runs --status failed": ["runs", "--status", "failed"],
    "closeout runs --text": ["runs", "--text", "Rideau Panama"],
    "closeout runs --user": ["runs", "--user", "ann"],
    "closeout runs --agent": ["runs", "--agent", "nobody"],
    "closeout data list": ["data", "list", "--user", "ann"],
    "closeout data users": ["data", "users"],
}


# ------------------------------------------------------------------------------------------------ the runs


def append_runs(store: Store, runs: Iterator[tuple[str, list[ev.Event]]]) -> int:
    """Execute recorded runs again as far as the journal sees it. Return the number of events."""
    count = 0
    while together := list(islice(runs, AT_ONCE)):
        numbers = {}
        for run_id, events in together:
            assert isinstance(events[0], ev.RunStarted)
            numbers[run_id] = store.create_run(run_id, "openai:m", events[0])
        for first in range(1, max(len(events) for _, events in together), A_COMMIT):
            for run_id, events in together:
                for seq, event in enumerate(events[first : first + A_COMMIT], first):
                    store.put(numbers[run_id], seq, time.time(), event)
            store.flush()
        for run_id, events in together:
            last = events[-1]
            assert isinstance(last, ev.RunEnded)
            store.end_run(numbers[run_id], last.status, last.answer, stop_reason=last.stop_reason)
            count += len(events)
        store.flush()
    return count


def runs_of(events: int) -> Iterator[tuple[str, list[ev.Event]]]:
    """A tenth of the events is one run; the others have about fifty each."""
    yield "long", short_run(0, turns=events // 10 // 5)
    for number in range(events * 9 // 10 // len(short_run(0, turns=TURNS))):
        yield f"run{number:06d}", short_run(number, turns=TURNS)


# ------------------------------------------------------------------------------------------------ measuring


async def pages(home: Home, runs: int, last: int) -> dict[str, float]:
    """Milliseconds of each page, the median of three."""
    found = {}
    async with TestClient(TestServer(viewer_app(home))) as client:
        for name, address in PAGES.items():
            times = []
            for _ in range(3):
                began = time.perf_counter()
                async with client.get(f"/viewer/api/{address.format(half=runs // 2, last=last)}") as response:
                    await response.read()
                    assert response.status == 200, (name, await response.text())
                times.append((time.perf_counter() - began) * 1000)
            found[name] = median(times)
    return found


def commands(address: str, runs: int) -> dict[str, float]:
    """Milliseconds of each command, the median of three."""
    found = {}
    environment = {**os.environ, "CLOSEOUT_HOME": address}
    for name, words in COMMANDS.items():
        command = [sys.executable, "-m", "closeout", *(word.format(half=runs // 2) for word in words)]
        times = []
        for _ in range(3):
            began = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            times.append((time.perf_counter() - began) * 1000)
        found[name] = median(times)
    return found


def looks(store: Store, waiting: int) -> float:
    """Milliseconds of a worker's look for due runs, beside so many that wait for a later time."""
    rows = [(f"wait{number}", time.time(), "waiting", "Wait.", "openai:m", 4e9 + number) for number in range(waiting)]
    insert = "INSERT INTO runs (run_id, started, status, task, model, due) VALUES (?,?,?,?,?,?)"
    store.transact(lambda db: db.executemany(insert, rows))
    times = []
    for _ in range(11):
        began = time.perf_counter()
        assert store.look("agent", 1).claims == []
        times.append((time.perf_counter() - began) * 1000)
    return median(times)


def measured(address: str, events: int, waiting: int) -> dict[str, float]:
    """Build a home, and return the milliseconds of everything that is asked of it."""
    home = as_home(address)
    store, began = open_store(home), time.perf_counter()
    count = append_runs(store, runs_of(events))
    written = time.perf_counter() - began
    began = time.perf_counter()
    with SearchIndex(store) as index:
        runs = index.update().runs
    indexed = time.perf_counter() - began
    print(f"  {count:,} events of {runs:,} runs: appended in {written:.0f} s, indexed in {indexed:.0f} s")
    found = {**asyncio.run(pages(home, runs - 1, max(events // 10 - 100, 0))), **commands(address, runs - 1)}
    found["a worker's look for due runs"] = looks(store, waiting)
    half = [
        run_id for run_id, number in store.query("SELECT run_id, id FROM runs WHERE due IS NULL OR due=0") if number % 2
    ]
    found["MB in the files"] = size = megabytes(store)
    began = time.perf_counter()
    delete_runs(store, half)
    found["delete half of the runs"] = (time.perf_counter() - began) * 1000
    began = time.perf_counter()
    store.database.wipe()
    found["give the space back"] = (time.perf_counter() - began) * 1000
    found["MB in the files after it"] = megabytes(store)
    assert found["MB in the files after it"] < size
    close_stores()
    return found


def megabytes(store: Store) -> float:
    if isinstance(store.home, Path):
        return sum(file.stat().st_size for file in store.home.glob("journal.sqlite3*")) / 2**20
    sizes = (
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid=c.relnamespace "
        "WHERE c.relkind='r' AND n.nspname=?"
    )
    return float(store.query(sizes, (store.home.schema,))[0][0]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the events")
    parser.add_argument("--waiting", type=int, default=100_000, help="runs that wait, beside the others")
    options = parser.parse_args()
    events = 50_000 if options.quick else 1_000_000
    slowest = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder  # the search index of a database
        server = PostgresServer() if program("initdb") else None
        homes = {"SQLite": folder}
        if server is not None:
            server.start()
            homes["PostgreSQL"] = server.url(schema="million")
        try:
            for name, address in homes.items():
                print(f"{name}:")
                grown = []
                for share in (100, 10, 1):
                    place = f"{address}_{share}" if "://" in address else f"{folder}/{share}"
                    grown.append(measured(place, events // share, options.waiting // share))
                print(f"  {'ms, with a hundredth, a tenth and all of the events':52}")
                for what in grown[-1]:
                    print(f"  {what:32} {' '.join(f'{each[what]:9.1f}' for each in grown)}")
                asked = {what: grown[-1][what] for what in (*PAGES, *COMMANDS)}
                slowest[name] = max(asked.items(), key=lambda each: each[1])
        finally:
            close_stores()
            if server is not None:
                server.remove()
    shown = "; ".join(f"{name} {ms:.0f} ms ({what})" for name, (what, ms) in slowest.items())
    print(f"million_events: the slowest answer over {events:,} events: {shown}; at most {LIMIT:.0f} ms are allowed")


if __name__ == "__main__":
    main()
