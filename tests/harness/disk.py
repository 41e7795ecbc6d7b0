"""Write faults, power cuts and kills for a real run in a process of its own, and the oracle for what is left.

The oracle: every payment is made at most once, and in the end exactly once; every call has exactly one outcome; the
usage of the result equals the usage of the record; the record is undamaged.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from database_homes import DATABASE, Wire, end_leases, home_of

from closeout.homes import DatabaseHome
from closeout.journal import events as ev
from closeout.journal.check import check_home
from closeout.journal.store import close_stores, open_store
from closeout.journal.totals import RunTotals

HERE = Path(__file__).parent
RUN, ANSWER = "run", "all done"
PAYMENTS = ("p1", "p2", "p3", "p4")
FAULTS = ("before", "torn", "after", "enospc", "enospc_ever", "eio")
SECTOR = 512
SECONDS = 120.0  # that a worker may take


def build(folder: Path) -> Path | None:
    """Compile the preloaded library; None without a C compiler or on another system than Linux."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        return None
    library = folder / "disk.so"
    source = str(HERE / "disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source, "-ldl"], check=True)
    return library


class Workers:
    """Runs or resumes the run in a folder, in a process of its own, one at a time (tests/harness/worker.py).

    Args:
        library: Preloaded into the processes; see disk.c.
    """

    def __init__(self, library: Path | None = None) -> None:
        environment = os.environ if library is None else {**os.environ, "LD_PRELOAD": str(library)}
        command = [sys.executable, str(HERE / "worker.py")]
        self._parent = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._folder = Path()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.communicate(timeout=60)

    def start(self, folder: Path, **settings: str) -> int:
        """Start a process and return its id."""
        folder.mkdir(exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        self._folder = folder
        settings = {name: os.environ[name] for name in (DATABASE,) if name in os.environ} | settings
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps({"folder": str(folder), "settings": settings}).encode() + b"\n")
        return self._line()

    def running(self) -> bool:
        """Whether the process that was started last has not ended."""
        return not select.select([self._parent.stdout], [], [], 0)[0]

    def finish(self) -> dict[str, Any]:
        """Wait for the process. Returns what came of it, or the signal that ended it."""
        status = self._line()
        if os.WIFSIGNALED(status):
            return {"status": f"killed {os.WTERMSIG(status)}"}
        found: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return found

    def run(self, folder: Path, **settings: str) -> dict[str, Any]:
        """Run or resume the run in a folder to its end, or to the fault in the settings."""
        self.start(folder, **settings)
        return self.finish()

    def _line(self) -> int:
        if not select.select([self._parent.stdout], [], [], SECONDS)[0]:
            raise TimeoutError(f"A worker has not ended after {SECONDS:.0f} seconds.")
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())


def problems(folder: Path, found: dict[str, Any]) -> list[str]:
    """What the oracle objects to, once the run has been resumed to its end."""
    wrong: list[str] = []
    if (found.get("status"), found.get("answer")) != ("answered", ANSWER):
        wrong.append(f"it did not end: {found}")
    paid = (folder / "paid.txt").read_text().split() if (folder / "paid.txt").exists() else []
    if sorted(paid) != sorted(PAYMENTS):
        wrong.append(f"payments: {paid}")
    home = home_of(folder)
    try:
        report = check_home(home)
        wrong += [*report.file_problems, *(str(each) for each in report.run_problems)]
        rows = list(open_store(home).rows(RUN))
    finally:
        close_stores()
    outcomes = [(row.event.agent, row.event.handle) for row in rows if isinstance(row.event, ev.ToolFinished)]
    if len(outcomes) != len(set(outcomes)):
        wrong.append(f"outcomes twice: {sorted(outcomes)}")
    calls = {(row.event.agent, row.event.handle) for row in rows if isinstance(row.event, ev.ToolStarted)}
    if calls - set(outcomes):
        wrong.append(f"calls without outcome: {calls - set(outcomes)}")
    usage = RunTotals(row.event for row in rows).usage
    if usage.requests != found.get("requests"):
        wrong.append(f"usage: {usage.requests} requests in the record, {found.get('requests')} in the result")
    return wrong


# ------------------------------------------------------------------------------------------------ write faults


def write_fault(workers: Workers, folder: Path, fault: str, at: int) -> list[str]:
    """Let a run's write number `at` fail, resume the run without faults, and return what is wrong."""
    first = workers.run(folder, DISK_FAULT=fault, DISK_AT=str(at))
    if fault in ("before", "torn", "after"):
        if not first["status"].startswith("killed") and first.get("answer") != ANSWER:
            return [f"first: {first}"]
    elif first["status"] not in ("answered", "failed", "refused"):
        return [f"first: {first}"]
    if fault in ("enospc", "eio") and first["status"] == "answered" and first["answer"] != ANSWER:
        return [f"answered without its work: {first}"]
    return problems(folder, workers.run(folder))


# ------------------------------------------------------------------------------------------------ cut connections


def messages_of(workers: Workers, folder: Path, wire: Wire, address: str) -> int:
    """How many messages a run sends to its database."""
    wire.cut_at(0, "")
    workers.run(folder / "whole", **{DATABASE: address})
    return wire.sent


def connection_cut(workers: Workers, folder: Path, wire: Wire, address: str, *, cut: str, at: int) -> list[str]:
    """Cut a run's connections to its database at a message, and return what is wrong. It goes on, or is resumed."""
    wire.cut_at(at, cut)
    first = workers.run(folder, **{DATABASE: address})
    wire.cut_at(0, "")
    if first["status"] not in ("answered", "failed", "refused"):
        return [f"first: {first}"]
    end_leases(folder)
    return problems(folder, first if first["status"] == "answered" else workers.run(folder))


# ------------------------------------------------------------------------------------------------ power cuts


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that reached the operating system: a write, truncation, sync or removal, or a mark of the program."""

    kind: str
    name: str
    offset: int
    data: bytes


def read_trace(path: Path) -> list[Entry]:
    data, place, entries = path.read_bytes(), 0, []
    while place < len(data):
        kind, length, offset, size = struct.unpack_from("<cHqq", data, place)
        place += 19
        name = data[place : place + length].decode()
        place += length
        body = data[place : place + size] if kind == b"w" else b""
        place += len(body)
        entries.append(Entry(kind.decode(), name, offset, body))
    return entries


def after_power_cut(entries: Sequence[Entry], chance: random.Random) -> dict[str, bytes]:
    """The files as a power cut may leave them: all that was synced, and any part of what was not, sector by sector."""
    last_sync = {entry.name: number for number, entry in enumerate(entries) if entry.kind == "s"}
    keep = chance.choice((0.0, 0.5, 0.9))
    files: dict[str, bytearray] = {}
    for number, entry in enumerate(entries):
        if entry.kind == "m":
            continue
        file = files.setdefault(entry.name, bytearray())
        safe = number < last_sync.get(entry.name, -1)
        if entry.kind == "t" and (safe or chance.random() < keep):
            del file[entry.offset :]
        if entry.kind == "u":  # SQLite syncs the folder after it, before it writes on
            del files[entry.name]
        for start in range(0, len(entry.data), SECTOR):
            if safe or chance.random() < keep:
                piece, offset = entry.data[start : start + SECTOR], entry.offset + start
                file.extend(bytes(max(offset + len(piece) - len(file), 0)))
                file[offset : offset + len(piece)] = piece
    return {name: bytes(file) for name, file in files.items()}


def recorded_writes(workers: Workers, folder: Path) -> list[Entry]:
    """Run once without a fault and return what reached the operating system."""
    workers.run(folder / "whole", DISK_TRACE=str(folder / "trace"))
    return read_trace(folder / "trace")


def writes_of(entries: Sequence[Entry]) -> int:
    """How many writes to the journal's files there are."""
    return sum(entry.kind == "w" for entry in entries)


def power_cut(workers: Workers, folder: Path, entries: Sequence[Entry], seed: int) -> list[str]:
    """Rebuild what a power cut at a random moment leaves, resume the run there, and return what is wrong.

    A payment counts as made if it was made before the cut: the world outside does not lose power.
    """
    chance = random.Random(seed)
    first_sync = next(number for number, entry in enumerate(entries) if entry.kind == "s")
    at = chance.randrange(first_sync, len(entries) + 1)
    (folder / "home").mkdir(parents=True)
    for name, content in after_power_cut(entries[:at], chance).items():
        (folder / "home" / name).write_bytes(content)
    paid = [entry.name.removeprefix("paid ") for entry in entries[:at] if entry.kind == "m"]
    (folder / "paid.txt").write_text("".join(f"{key}\n" for key in paid))
    return problems(folder, workers.run(folder))


# ------------------------------------------------------------------------------------------------ kill chains


def kill_chain(
    workers: Workers, folder: Path, seed: int, kills: int, look: Callable[[Path], None] | None = None
) -> tuple[int, list[str]]:
    """Kill a run again and again at random moments while a bystander looks at it, then resume it to its end.

    Returns:
        How many kills hit the run, and what is wrong.
    """
    chance = random.Random(seed)
    hits = 0
    for _ in range(kills):
        pid, due = workers.start(folder), chance.randrange(len(PAYMENTS))
        while workers.running() and not _has_paid(folder, due):
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.02))
        with suppress(ProcessLookupError):
            try:
                if look is not None:
                    os.kill(pid, signal.SIGSTOP)  # alive and holding its locks, however long the bystander takes
                    look(folder)
            finally:
                os.kill(pid, signal.SIGKILL)  # a stopped one would hold up whatever uses these workers next
        hits += workers.finish()["status"].startswith("killed")
        end_leases(folder)
    return hits, problems(folder, workers.run(folder))


def _has_paid(folder: Path, payments: int) -> bool:
    """Whether a run has made so many payments; if none are asked for, whether it has a journal, or may have one."""
    home = home_of(folder)
    if not payments:
        return isinstance(home, DatabaseHome) or (home / "journal.sqlite3").exists()
    paid = folder / "paid.txt"
    return paid.exists() and len(paid.read_text().split()) >= payments


def look_around(folder: Path) -> None:
    """What a bystander does to the home in a folder: lists the runs, tries to resume one, and reads its files."""
    source = """
import sys
from pathlib import Path
from database_homes import home_of
from closeout.errors import JournalError
from closeout.journal.run_journal import Journal
from closeout.journal.readonly import open_to_read
from closeout.journal.store import open_store
home = home_of(Path(sys.argv[1]))
for path in home.iterdir() if isinstance(home, Path) else ():
    path.read_bytes()
with open_to_read(home) as store:
    for record in store.runs():
        store.read(record.run_id)
        if record.status == "running":
            try:
                Journal.reopen(open_store(home), record.run_id)
            except JournalError:
                pass
            else:
                print("resumed a run that is being executed")
"""
    command = [sys.executable, "-c", source, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    locked = "JournalLocked: " in done.stderr  # the run was stopped while it wrote, or made the tables
    assert done.returncode == 0 or locked, done.stderr
    if done.stdout.strip():
        raise AssertionError(done.stdout)
