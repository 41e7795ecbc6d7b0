"""Kills, write faults, power cuts, hostile replies, leaks, forged calls, growth, cancellation and a soak, at length.

The rigs are those of the tests (tests/harness). A rig is a list of cases; each case that was tried is a line of the
record, so that a measurement that was interrupted continues where it was, and several processes can share the work by
--rigs. A case that went wrong is tried again the next time.

The rigs named database_… do the same with homes in PostgreSQL, and need its programs and `closeout[postgres]`.

    python bench/endurance.py [--rigs NAME,NAME] [--record FILE] [--seconds 1200] [--share 1.0] [--report]
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

import cancelling
import crash
import disk
import forgery
import growth
import hostile_runs
import hostile_secrets
import soak
from database_homes import CUTS, DATABASE, Wire, remove_home
from endless import endless_agent

from closeout.dialects.protocol import DIALECTS
from closeout.journal.store import close_stores, open_store
from postgres_server import PostgresServer

KILLS_A_CHAIN = 4
RUNS_A_CASE = 100  # hostile runs
EVENTS = 100_000
KILOBYTES_A_RUN = 2.0  # that a soak may grow: the record's index and caches that are not full yet


class Outcome(NamedTuple):
    """What a case did: how many things it tried, what is wrong, and what it measured."""

    tried: int
    wrong: list[str]
    note: str = ""


class Rig(NamedTuple):
    """Cases by name, how to try one, and how much is to be tried in all."""

    what: str
    cases: list[str]
    check: Callable[[str, Path], Outcome]
    goal: int


# ------------------------------------------------------------------------------------------------ rigs


def write_faults(folder: Path, share: float) -> Rig:
    workers = preloaded(folder)
    writes = disk.writes_of(disk.recorded_writes(workers, folder))

    def check(case: str, there: Path) -> Outcome:
        fault, at = case.split()
        return Outcome(1, disk.write_fault(workers, there, fault, int(at)))

    cases = [f"{fault} {at}" for at in range(1, writes + 1) for fault in disk.FAULTS]
    return Rig(f"faults at every write of a run ({writes} writes)", cases, check, int(len(cases) * share))


def power_cuts(folder: Path, share: float) -> Rig:
    workers = preloaded(folder)
    entries = disk.recorded_writes(workers, folder)

    def check(case: str, there: Path) -> Outcome:
        return Outcome(1, disk.power_cut(workers, there, entries, int(case)))

    return Rig("homes rebuilt after a power cut", [str(seed) for seed in range(500)], check, int(500 * share))


def preloaded(folder: Path) -> disk.Workers:
    library = disk.build(folder)
    if library is None:
        raise SystemExit("Write faults and power cuts need Linux and a C compiler. Leave them out with --rigs.")
    return disk.Workers(library)


def kills(folder: Path, share: float) -> Rig:
    workers = disk.Workers()

    def check(case: str, there: Path) -> Outcome:
        look = disk.look_around if int(case) % 10 == 0 else None
        return Outcome(*disk.kill_chain(workers, there, int(case), KILLS_A_CHAIN, look))

    return Rig("kills at random moments, in chains", [str(seed) for seed in range(1000)], check, int(1000 * share))


def hostile(folder: Path, share: float) -> Rig:
    return drawn("runs of hostile replies and tool results", hostile_runs.check, int(10_000 * share))


def leaks(folder: Path, share: float) -> Rig:
    return drawn("runs whose tools give a secret away", hostile_secrets.check, int(500 * share))


def drawn(what: str, check_all: Callable[[Path, int, int], None], goal: int) -> Rig:
    """A rig of runs that hypothesis draws."""

    def check(case: str, there: Path) -> Outcome:
        try:
            check_all(there, RUNS_A_CASE, int(case))
        except AssertionError as failure:
            return Outcome(RUNS_A_CASE, ["\n".join([str(failure), *getattr(failure, "__notes__", [])])])
        finally:
            close_stores()
        return Outcome(RUNS_A_CASE, [])

    return Rig(what, [str(seed) for seed in range(-(-goal // RUNS_A_CASE))], check, goal)


def forgeries(folder: Path, share: float) -> Rig:
    def check(case: str, there: Path) -> Outcome:
        chosen = [cell for cell in forgery.cells() if f"{cell.form}, {cell.dialect}" == case]
        return Outcome(len(chosen), [str(cell) for cell in forgery.forged(chosen)])

    cases = [f"{form}, {dialect}" for form in forgery.WRITERS for dialect in DIALECTS]
    whole = len(forgery.cells())
    return Rig(f"quoted calls of a destructive tool ({whole} cells)", cases, check, int(whole * share))


def parsers(folder: Path, share: float) -> Rig:
    def check(case: str, there: Path) -> Outcome:
        tried, found = growth.worst_growth(1, readers=[case], known=None, made=100)
        return Outcome(tried, [str(each) for each in found])

    cases = list(growth.READERS)
    total = len(cases) * (len(growth.WORST) + 100)
    return Rig(f"growth of {len(cases)} parsers: exponents", cases, check, int(total * share))


def cancels(folder: Path, share: float, *, server: bool) -> Rig:
    def check(case: str, there: Path) -> Outcome:
        at = int(case)
        chosen = (at, at + random.Random(at).choice((1, 2, 3))) if at % 3 == 2 else (at,)
        return Outcome(1, cancelling.cancel_at(there, chosen, server=server))

    whole = cancelling.iterations(folder / f"whole{server}", server=server)
    what = "with an MCP server" if server else "without a server"
    cases = [str(at) for at in range(1, whole + 1)]
    return Rig(f"cancellations at each iteration of the event loop, {what}", cases, check, int(whole * share))


def events(folder: Path, share: float) -> Rig:
    """The harness that kills a run before and after each event: a process of its own, which forks."""

    def check(case: str, there: Path) -> Outcome:
        there.mkdir()
        command = [sys.executable, crash.__file__, str(there), f"{case}:{round(1 / share)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return Outcome(0, [done.stderr[-2000:]])
        found = json.loads(done.stdout)
        return Outcome(found["kills"], [str(each) for each in found["problems"]], f"{case}: {found['events']} events")

    return Rig("kills before and after each event", list(crash.SCENARIOS), check, sys.maxsize)


def soaking(folder: Path, share: float) -> Rig:
    """One long process: a case is all of it."""

    def check(case: str, there: Path) -> Outcome:
        rounds, wrong = [], []
        until = time.monotonic() + 300 * share

        async def all_rounds() -> None:
            while time.monotonic() < until or len(rounds) < 8:
                left, found = await soak.one_round(there, 20, len(rounds))
                rounds.append(left)
                wrong.extend(found)

        asyncio.run(all_rounds())
        close_stores()
        wrong += soak.growing(rounds, kilobytes_a_run=KILOBYTES_A_RUN)
        first, last = rounds[len(rounds) // 4], rounds[-1]
        grown = f"from {first.kilobytes} to {last.kilobytes} kB, {first.files} to {last.files} open files"
        return Outcome(sum(each.runs for each in rounds), wrong, f"{len(rounds)} rounds, {grown}")

    return Rig("runs one after another in a process", ["soak"], check, 1)


def resuming(folder: Path, share: float) -> Rig:
    def check(case: str, there: Path) -> Outcome:
        turns = int(case)
        spent = growth.resumed(there, turns, growth.seconds)
        count = sum(1 for _ in open_store(there).rows("run"))
        close_stores()
        note = f"{count} events resumed in {spent:.1f} s of CPU, {spent / count * 1e6:.0f} microseconds an event"
        return Outcome(1, [note] if spent > 20 * max(1, count / EVENTS) else [], note)

    return Rig("long runs resumed", [str(EVENTS // each // 5) for each in (16, 4, 1)], check, 3)


def durability(folder: Path, share: float) -> Rig:
    """A turn whose call must not be repeated beside one whose call may be: CPU and time."""

    def check(case: str, there: Path) -> Outcome:
        cpu, wall = [], []
        for number in range(6):
            began, at = time.process_time(), time.perf_counter()
            asyncio.run(endless_agent(there, 100, read_only=case == "may be repeated").run("What?"))
            if number:
                cpu.append((time.process_time() - began) * 10)
                wall.append((time.perf_counter() - at) * 10)
        close_stores()
        return Outcome(1, [], f"a turn whose call {case}: {median(cpu):.2f} ms of CPU, {median(wall):.2f} ms")

    return Rig("price of durability", ["may be repeated", "must not be repeated"], check, 2)


# ------------------------------------------------------------------------------------------------ over PostgreSQL


def database() -> PostgresServer:
    """Return a server that ends with this process."""
    server = PostgresServer()
    atexit.register(server.remove)
    server.start()
    return server


@contextmanager
def homes_in(server: PostgresServer) -> Iterator[None]:
    """The homes of harnesses are in a database."""
    os.environ[DATABASE] = server.url()
    try:
        yield
    finally:
        del os.environ[DATABASE]


def over_database(folder: Path, share: float, *, rig: Callable[[Path, float], Rig]) -> Rig:
    """The rig with its homes in PostgreSQL."""
    server = database()
    with homes_in(server):
        made = rig(folder, share)

    def check(case: str, there: Path) -> Outcome:
        with homes_in(server):
            try:
                return made.check(case, there)
            finally:
                close_stores()
                remove_home(there)

    return made._replace(what=f"{made.what}, over PostgreSQL", check=check)


def connection_cuts(folder: Path, share: float) -> Rig:
    server, workers = database(), disk.Workers()
    wire = Wire(server.folder, folder)
    through = server.url().replace(str(server.folder), str(folder))

    def check(case: str, there: Path) -> Outcome:
        cut, at = case.split()
        with homes_in(server):
            try:
                return Outcome(1, disk.connection_cut(workers, there, wire, through, cut=cut, at=int(at)))
            finally:
                remove_home(there)

    messages = disk.messages_of(workers, folder, wire, through)
    cases = [f"{cut} {at}" for at in range(1, messages + 1) for cut in CUTS]
    return Rig(f"cuts of the connection at every message ({messages})", cases, check, int(len(cases) * share))


RIGS: dict[str, Callable[[Path, float], Rig]] = {
    "durability": durability,
    "resuming": resuming,
    "writes": write_faults,
    "cuts": power_cuts,
    "kills": kills,
    "events": events,
    "hostile": hostile,
    "secrets": leaks,
    "forgeries": forgeries,
    "growth": parsers,
    "cancels": partial(cancels, server=False),
    "server_cancels": partial(cancels, server=True),
    "soak": soaking,
    "database_kills": partial(over_database, rig=kills),
    "database_events": partial(over_database, rig=events),
    "database_cancels": partial(over_database, rig=partial(cancels, server=False)),
    "database_cuts": connection_cuts,
}

# ------------------------------------------------------------------------------------------------ record


def lines_of(record: Path) -> Iterator[dict[str, Any]]:
    with suppress(FileNotFoundError):
        for line in record.read_text().splitlines():
            with suppress(ValueError):  # cut off by an interruption
                yield json.loads(line)


def outcomes(record: Path, name: str) -> dict[str, Outcome]:
    """The last outcome of each case of a rig."""
    return {line["case"]: Outcome(**line["outcome"]) for line in lines_of(record) if line["rig"] == name}


def try_rig(name: str, rig: Rig, record: Path, seconds: float) -> None:
    """Try the cases that the record has not, until the goal or the time is reached."""
    found_before = outcomes(record, name)
    wrong = [case for case, found in found_before.items() if found.wrong and case in rig.cases]
    tried, until = sum(found.tried for found in found_before.values()), time.monotonic() + seconds
    left = [case for case in rig.cases if case not in found_before]
    random.Random(1).shuffle(left)
    for case in (*wrong, *left):
        if time.monotonic() > until or (tried >= rig.goal and case not in wrong):
            break
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            found = rig.check(case, Path(made) / "case")
        tried += found.tried
        with record.open("a") as file:
            file.write(json.dumps({"rig": name, "what": rig.what, "case": case, "outcome": found._asdict()}) + "\n")
        for each in found.wrong:
            print(f"{name}, {case}: {each}", flush=True)
    report(record, name)


def report(record: Path, name: str) -> None:
    """Print what the record says of a rig."""
    found = outcomes(record, name)
    what = next((line["what"] for line in lines_of(record) if line["rig"] == name), "not tried")
    wrong = sum(len(each.wrong) for each in found.values())
    print(f"{name}: {sum(each.tried for each in found.values())} {what}; {wrong} violations", flush=True)
    for each in found.values():
        if each.note:
            print(f"    {each.note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rigs", default=",".join(RIGS), help="which ones, separated by commas")
    parser.add_argument("--record", type=Path, default=Path("endurance.jsonl"), help="where outcomes are kept")
    parser.add_argument("--seconds", type=float, default=1200, help="of each rig at most, in this process")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases, for a short measurement")
    parser.add_argument("--report", action="store_true", help="only print what the record says")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # runs without an answer are expected
    for name in options.rigs.split(","):
        if options.report:
            report(options.record, name)
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            try_rig(name, RIGS[name](Path(made), options.share), options.record, options.seconds)


if __name__ == "__main__":
    main()
