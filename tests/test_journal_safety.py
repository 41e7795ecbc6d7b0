"""The journal under damage, foreign locks, clock changes and migration: a class of trouble in each section."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import JournalDamaged, JournalError, JournalFull, JournalLocked
from closeout.journal import events as ev
from closeout.journal.check import check_home
from closeout.journal.database import JOURNAL_FILES, VERSION, connect, journal_error
from closeout.journal.locks import LOCKS_NAME, RunLocks
from closeout.journal.recorded import RecordedRun
from closeout.journal.run_journal import Journal
from closeout.journal.store import Row, Store, close_stores, open_store
from closeout.journal.text_search import SearchIndex
from closeout.testing import RequestView, ScriptedClient, answer, call

DATA = Path(__file__).parent / "data" / "journals"
KEYS = ("a", "b", "c")


def paying_agent(home: Path, paid: list[str], **options: Any) -> Agent:
    """An agent that pays three bills, one call in each turn; a payment must not be repeated."""

    @tool
    def pay(key: str) -> str:
        """Pay a bill."""
        paid.append(key)
        return f"[{key}] paid " + "x" * 1500  # long enough to be stored apart

    def script(view: RequestView) -> Any:
        left = [key for key in KEYS if f"[{key}] paid" not in view.text and "Interrupted" not in view.text]
        return call("pay", key=left[0]) if left else answer("done")

    return Agent(ScriptedClient(script), [pay], home=home, **options)


async def interrupted_run(home: Path) -> list[str]:
    """A run that was cancelled after its three payments."""
    paid: list[str] = []

    def stop(event: object) -> None:
        if isinstance(event, ev.ToolFinished) and len(paid) == len(KEYS):
            asyncio.get_running_loop().call_soon(task.cancel)

    task = asyncio.ensure_future(paying_agent(home, paid).run("Pay.", run_id="run", listeners=[stop]))
    await asyncio.gather(task, return_exceptions=True)
    assert paid == list(KEYS)
    close_stores()
    return paid


def change(home: Path, *statements: str) -> None:
    with closing(sqlite3.connect(home / "journal.sqlite3")) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


# ------------------------------------------------------------------------------------------------ damage

FINISHED = "FROM events WHERE instr(CAST(body AS TEXT), 'ToolFinished')"
DAMAGE: dict[str, Callable[[Path], None]] = {
    "a garbled row": lambda home: change(
        home, "UPDATE events SET body=x'ff00' WHERE place=(SELECT max(place) FROM events WHERE place<(1<<32)+9)"
    ),
    "an edited row": lambda home: change(
        home,
        "UPDATE events SET body=replace(CAST(body AS TEXT), 'pay', 'buy') "
        "WHERE place=(SELECT min(place) FROM events WHERE instr(CAST(body AS TEXT), 'ToolStarted'))",
    ),
    "a missing row": lambda home: change(
        home,
        f"DELETE FROM events WHERE place=(SELECT min(place) {FINISHED})",
    ),
    "the last rows missing": lambda home: change(
        home,
        f"DELETE FROM events WHERE place>=(SELECT max(place) {FINISHED})",
    ),
    "no beginning": lambda home: change(home, "DELETE FROM events WHERE place=(SELECT min(place) FROM events)"),
    "missing bodies": lambda home: change(home, "DELETE FROM bodies"),
    "swapped rows": lambda home: change(
        home,
        "UPDATE events SET place=-1 WHERE place=(SELECT max(place) FROM events)",
        "UPDATE events SET place=(1<<32)+5000 WHERE place=-1",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_record_is_not_resumed_unless_forced(damage: str, home: Path) -> None:
    await interrupted_run(home)
    DAMAGE[damage](home)
    paid: list[str] = []
    with pytest.raises(JournalDamaged, match=r"record of run run is damaged: .*--force"):
        await paying_agent(home, paid).resume("run")
    assert paid == []
    assert [run for run, _ in check_home(home).run_problems] == ["run"]
    if damage != "no beginning":
        forced = await paying_agent(home, paid).resume("run", despite_damage=True)
        assert forced.answer == "done"


async def test_a_journal_whose_log_was_deleted_is_not_resumed(home: Path, tmp_path: Path) -> None:
    paid: list[str] = []
    copy = tmp_path / "copy"

    def keep(event: object) -> None:
        if isinstance(event, ev.RunStarted):
            store = open_store(home)
            store.flush()
            with closing(sqlite3.connect(store.database.path)) as db:
                db.execute("PRAGMA wal_checkpoint(FULL)")
        if isinstance(event, ev.ToolStarted) and len(paid) == 2:
            shutil.copytree(home, copy)

    await paying_agent(home, paid).run("Pay.", run_id="run", listeners=[keep])
    (copy / "journal.sqlite3-wal").unlink()
    (copy / "journal.sqlite3-shm").unlink(missing_ok=True)
    with pytest.raises(JournalDamaged, match="were safely on disk"):
        await paying_agent(copy, paid).resume("run")


async def test_an_undamaged_record_has_no_problems(home: Path) -> None:
    await interrupted_run(home)
    report = check_home(home)
    assert (report.runs, report.file_problems, report.run_problems) == (1, (), ())
    paid: list[str] = []
    assert (await paying_agent(home, paid).resume("run")).answer == "done"
    assert paid == []
    assert check_home(home).run_problems == ()


def test_doctor_check_reports_damage_with_exit_code_3(home: Path) -> None:
    asyncio.run(interrupted_run(home))
    command = [sys.executable, "-m", "closeout", "doctor", "--check"]
    well = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (well.returncode, "No damage found." in well.stdout) == (0, True), well
    DAMAGE["a missing row"](home)
    ill = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert ill.returncode == 3
    assert "are missing" in json.loads(ill.stdout)["run_problems"]["run"][0]


# ------------------------------------------------------------------------------------------------ locks


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no open-file-description locks")
def test_opening_and_closing_the_files_of_a_journal_does_not_release_a_run(home: Path) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "Why?"))
    for name in JOURNAL_FILES:
        with (home / name).open("rb"):
            pass
    source = """
import sys
from pathlib import Path
from closeout.journal.run_journal import Journal
from closeout.journal.database import journal_error
from closeout.journal.store import open_store
Journal.reopen(open_store(Path(sys.argv[1])), sys.argv[2])
"""
    command = [sys.executable, "-c", source, str(home), journal.run_id]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "JournalLocked" in other.stderr
    with pytest.raises(JournalLocked):
        Store(home).reopen_run(journal.run_id)


def test_looking_at_a_run_while_it_is_locked_does_not_release_it(tmp_path: Path) -> None:
    mine, other = RunLocks(tmp_path / "locks"), RunLocks(tmp_path / "locks")
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            mine.held_anywhere(7)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for each in lookers:
        each.start()
    lost = 0
    try:
        for _ in range(2_000):
            mine.take("run", 7)
            lost += not other.held_anywhere(7)
            mine.drop(7)
    finally:
        done.set()
        for each in lookers:
            each.join()
        mine.close()
        other.close()
    assert lost == 0


HOLDER = """
import subprocess, sys
from pathlib import Path
sys.platform = "darwin"
import closeout.journal.locks as locks
path = Path(sys.argv[1])
mine = locks.RunLocks(path)
mine.take("run", 7)
other = locks.RunLocks(path, read_only=True)
assert mine.held_anywhere(7)
assert other.held_anywhere(7)
other.close()
sys.exit(subprocess.call([sys.executable, "-c", sys.argv[2], sys.argv[1], "7"]))
"""
LOOKER = """
import sys
from pathlib import Path
from closeout.journal.locks import RunLocks
sys.exit(0 if RunLocks(Path(sys.argv[1])).held_anywhere(int(sys.argv[2])) else 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs both kinds of locks")
def test_locks_that_belong_to_the_whole_process_survive_looking_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "locks"), LOOKER]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_that_closes_its_stores_releases_nothing_of_its_parent(home: Path) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "Pay.", "t"), run_id="run")
    child = os.fork()
    if not child:
        close_stores()
        os._exit(0)
    os.waitpid(child, 0)
    other = subprocess.run([sys.executable, "-c", LOOKER, str(home / LOCKS_NAME), "1"], check=False)
    journal.abandon()
    assert other.returncode == 0


def test_a_record_that_another_process_writes_while_it_is_read_is_not_damaged(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "Pay.", "t"), run_id="run")
    journal.flush()
    reader = Store(home)
    read_marks = reader.database.synced.of

    def write_meanwhile(number: int) -> int:
        journal.append(ev.Noted("main", "info", "Note", message="written meanwhile"), durable=True)
        journal.flush()
        return read_marks(number)

    monkeypatch.setattr(reader.database.synced, "of", write_meanwhile)
    try:
        assert reader.read("run").problems == ()
    finally:
        reader.close()
        journal.abandon()


async def test_a_run_that_is_being_executed_is_locked_and_not_damaged(home: Path) -> None:
    await interrupted_run(home)
    store = open_store(home)
    store.transact(lambda db: db.execute("UPDATE events SET crc = crc + 1"))
    number = store.reopen_run("run")
    try:
        with pytest.raises(JournalLocked, match="being executed"):
            await paying_agent(home, []).resume("run")
    finally:
        store.release(number)
    with pytest.raises(JournalDamaged):
        await paying_agent(home, []).resume("run")


async def test_a_write_lock_of_another_process_does_not_stop_the_event_loop(home: Path) -> None:
    paid: list[str] = []
    agent = paying_agent(home, paid)
    await agent.run("Pay.", run_id="before")
    beats = 0
    with closing(sqlite3.connect(home / "journal.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        async def release() -> None:
            nonlocal beats
            while beats < 100:
                beats += 1
                await asyncio.sleep(0.01)
            other.execute("COMMIT")

        # A loop that waited for the lock would never release it, and the run would fail when SQLite gives up.
        heart = asyncio.ensure_future(release())
        result = await agent.run("Pay.", run_id="blocked")
        assert beats == 100, "the run did not need the lock"
        await heart
    assert result.answer == "done"
    rows = list(open_store(home).rows("blocked"))
    assert [row.seq for row in rows] == list(range(len(rows)))
    assert isinstance(rows[-1].event, ev.RunEnded)


STOPPED_WHILE_IT_RECOVERED = """
import fcntl, sqlite3, sys
held = []
for path in sys.argv[1:]:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("SELECT * FROM sqlite_master").fetchall()
    index = open(path + "-shm", "r+b")
    index.write(bytes(136))  # its header, which tells the next reader to recover the log
    index.flush()
    fcntl.lockf(index, fcntl.LOCK_EX, 1, 120)  # SQLite's WAL_WRITE_LOCK, which recovering takes
    held += [db, index]
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.slow  # SQLite tries for ten seconds
@pytest.mark.skipif(os.name == "nt", reason="the locks are POSIX locks")
def test_a_process_that_is_stopped_while_it_recovers_has_locked_the_file_and_not_damaged_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeout.journal.database._OPEN_SECONDS", 0.0)
    store = open_store(home)
    with SearchIndex(store) as index:
        index.update()
    journal, cache = home / "journal.sqlite3", home / "search.sqlite3"
    close_stores()
    before = cache.stat().st_ino
    command = [sys.executable, "-c", STOPPED_WHILE_IT_RECOVERED, str(journal), str(cache)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with ThreadPoolExecutor() as threads:
            opened = threads.submit(connect, journal)
            searched = threads.submit(SearchIndex, store)
            with pytest.raises(JournalLocked, match="locked by another process"):
                opened.result()
            with pytest.raises(JournalError, match="is locked by another process"):
                searched.result()
        other.kill()
    assert cache.stat().st_ino == before, "a locked index was deleted"
    with closing(connect(journal)), SearchIndex(open_store(home)) as index:
        assert index.update().runs == 0


# ------------------------------------------------------------------------------------------------ the clock


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_change_of_the_wall_clock_neither_ends_a_run_nor_its_limit(
    step: float, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    journal = Journal.start(open_store(home), ev.RunStarted("main", "Why?"))
    monkeypatch.setattr(time, "time", lambda: real() + step)
    journal.append(ev.AttemptStarted("main", 0))
    assert 0 <= journal.elapsed < 5
    journal.abandon()

    again = Journal.reopen(open_store(home), journal.run_id)
    assert 0 <= again.elapsed < 5, "the time between two processes is idle, whatever the clock says"
    again.append(ev.AttemptStarted("main", 0))
    again.append(ev.AttemptStarted("main", 1))
    again.abandon()
    monkeypatch.undo()
    third = Journal.reopen(open_store(home), journal.run_id)
    assert 0 <= third.elapsed < 10


# ------------------------------------------------------------------------------------------------ write errors


class FailingDisk(Store):
    """A store whose writes fail: `failures` of them, from the first that holds an event of a sub-agent."""

    failures = 0

    def _write(self, batch: Any, updates: Any = (), **options: Any) -> bool:
        below = any("/" in event.agent for entries in batch.events.values() for _, _, event in entries)
        if self.failures and below:
            self.failures -= 1
            raise JournalFull("The disk is full.")
        return super()._write(batch, updates, **options)


def chief_and_clerk(home: Path, paid: list[str]) -> Agent:
    clerk = paying_agent(home, paid)

    def script(view: RequestView) -> Any:
        return answer("all paid") if view.messages[-1]["role"] == "tool" else call("clerk", task="Pay.")

    return Agent(ScriptedClient(script), [clerk.as_tool("clerk", "Pays bills.")], home=home)


async def test_a_passing_write_error_in_a_sub_agent_ends_nothing(home: Path) -> None:
    store = open_store(home, make=FailingDisk)
    assert isinstance(store, FailingDisk)
    store.failures, paid = 1, list[str]()
    result = await chief_and_clerk(home, paid).run("Pay.", run_id="run")
    assert (result.answer, paid) == ("all paid", list(KEYS))
    assert check_home(home).run_problems == ()


async def test_a_lasting_write_error_in_a_sub_agent_ends_the_run_and_not_as_answered(home: Path) -> None:
    store = open_store(home, make=FailingDisk)
    assert isinstance(store, FailingDisk)
    store.failures, paid = 1000, list[str]()
    result = await chief_and_clerk(home, paid).run("Pay.", run_id="run")
    assert (result.status, result.stop_reason, result.answer) == ("failed", "journal_failed", None)
    assert paid == [], "a payment whose intent cannot be recorded is not made"
    store.failures = 0
    again = await chief_and_clerk(home, paid).resume("run")
    assert (again.answer, paid) == ("all paid", list(KEYS))


def test_an_io_error_is_not_called_a_full_disk(home: Path) -> None:

    full = journal_error(sqlite3.OperationalError("database or disk is full"), home)
    broken = journal_error(sqlite3.OperationalError("disk I/O error"), home)
    assert isinstance(full, JournalFull)
    assert type(broken) is JournalError
    assert "full" not in str(broken)


def test_an_io_error_on_a_disk_without_space_is_called_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=20_000))
    assert isinstance(journal_error(sqlite3.OperationalError("disk I/O error"), home / "journal.sqlite3"), JournalFull)


# ------------------------------------------------------------------------------------------------ migration


def make_home(folder: Path, dump: str) -> Path:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "journal.sqlite3")) as db:
        db.executescript((DATA / dump).read_text())
    return folder


def agent_of_then(home: Path, paid: list[str]) -> Agent:
    """The agent that made the recorded journals."""

    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"[{key}] known " + ("x" * 1500 if key == "long" else "")

    @tool
    def pay(key: str) -> str:
        """Pay a bill."""
        paid.append(key)
        return f"[{key}] paid"

    return Agent(ScriptedClient([answer("42")], name="model"), [look, pay], home=home)


async def test_a_journal_of_the_previous_format_is_migrated_and_its_runs_resumed(tmp_path: Path) -> None:
    home = make_home(tmp_path / "old", "format2.sql")
    paid: list[str] = []
    agent = agent_of_then(home, paid)
    store = open_store(home)
    assert {record.run_id: record.status for record in store.runs()} == {
        "ended": "answered",
        "interrupted": "interrupted",
    }
    ended = await agent.resume("ended", despite_changes=True)
    resumed = await agent.resume("interrupted", despite_changes=True)
    assert (ended.answer, resumed.answer, paid) == ("42", "42", [])
    outcomes = [row.event for row in store.rows("interrupted") if isinstance(row.event, ev.ToolFinished)]
    assert [event.ok for event in outcomes] == [True, True, True, False], (
        "the payment under way is reported, not repeated"
    )
    assert check_home(home).run_problems == ()
    with closing(sqlite3.connect(home / "journal.sqlite3")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_journal_of_the_previous_format_is_read_where_it_may_not_be_written(tmp_path: Path) -> None:
    from closeout.journal.readonly import _ReadOnlyJournal

    home = make_home(tmp_path / "old", "format2.sql")
    before = (home / "journal.sqlite3").read_bytes()
    with closing(Store(home, _ReadOnlyJournal(home))) as store:
        assert len(store.read("ended").rows) > 10
    assert (home / "journal.sqlite3").read_bytes() == before
    assert [path.name for path in home.iterdir()] == ["journal.sqlite3"]


# ------------------------------------------------------------------------------------------------ growth


def recorded_calls(calls: int) -> tuple[Row, ...]:
    """A record of so many calls of sub-agents, each with a request of its own."""
    events: list[ev.Event] = [ev.RunStarted("main", "Why?")]
    for number in range(calls):
        handle, path = f"r{number}", f"main/r{number}:clerk"
        events += [
            ev.ToolStarted("main", handle, "clerk", arguments="{}"),
            ev.AgentStarted(path, "clerk", "Find out."),
            ev.ModelRequested(path, 0),
            ev.ModelReplied(path, 0, "found"),
            ev.AgentEnded(path, "answered", "found"),
            ev.ToolFinished("main", handle, "clerk", ok=True, record="{}"),
        ]
    return tuple(Row(seq, float(seq), event) for seq, event in enumerate(events))


def steps_to_take(calls: int) -> int:
    """Function calls, Python's and C's, that indexing and taking a record make: the same on a busy machine."""
    rows = recorded_calls(calls)
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        record = RecordedRun(rows)
        for number in range(calls):
            started = ev.ToolStarted("main", f"r{number}", "clerk", arguments="{}")
            record.take_outcome(started)
            record.match(started)
            record.take_below(started)
    finally:
        sys.setprofile(None)
    assert record.outcomes_left == 0
    return count


def test_taking_a_record_with_sub_agents_grows_linearly() -> None:
    assert steps_to_take(800) <= 8.1 * steps_to_take(100)


def test_processes_that_make_a_journal_at_the_same_time_all_open_it(tmp_path: Path) -> None:
    def opened(number: int) -> None:
        connect(tmp_path / f"{number // 6}.sqlite3").close()

    with ThreadPoolExecutor(6) as threads:
        for _ in threads.map(opened, range(600)):
            pass
