"""The journal: what is written is kept, what is recorded is returned, and nothing is repeated."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.errors import JournalDamaged, JournalError, JournalFull, JournalLocked, RunNotFound
from closeout.journal import events as ev
from closeout.journal.locks import RunLocks
from closeout.journal.run_journal import Journal
from closeout.journal.run_names import new_run_id
from closeout.journal.store import BODY_LIMIT, COMMIT_SECONDS, Store, open_store
from closeout.journal.totals import RunTotals
from closeout.messages import ModelReply, ToolCall, Usage
from journal_file import store_events, stored_events


def started(task: str = "Why?") -> ev.RunStarted:
    return ev.RunStarted("main", task)


def replied(call: int, text: str = "ok") -> ev.ModelReplied:
    return ev.ModelReplied.of("main", call, ModelReply(text, usage=Usage(10, 2, requests=1)), 1.0)


async def ask(journal: Journal, call: int, effects: list[int], text: str = "ok") -> ev.Event:
    async def effect() -> ev.Event:
        effects.append(call)
        return replied(call, text)

    return await journal.effect(ev.ModelRequested("main", call), effect)


async def use(journal: Journal, handle: str, effects: list[str], *, report: bool = False) -> ev.Event:
    async def effect() -> ev.Event:
        effects.append(handle)
        return ev.ToolFinished("main", handle, "pay", ok=True, record="{}")

    def interrupted() -> ev.Event:
        return ev.ToolFinished("main", handle, "pay", ok=False, record="{}", note="interrupted")

    return await journal.effect(
        ev.ToolStarted("main", handle, "pay", arguments="{}"), effect, interrupted=interrupted if report else None
    )


# ------------------------------------------------------------------------------------------------ keeping


def test_what_is_appended_is_read_back_in_order_as_it_was(home: Path) -> None:
    journal = Journal.start(open_store(home), started("多少？ 🚀"))
    written = [
        started("多少？ 🚀"),
        replied(0, "a" * 5000),
        ev.TurnRolledBack("main", 0, 1, reason="duplicate", detail="twice"),
    ]
    for event in written[1:]:
        journal.append(event)
    assert [row.event for row in journal.rows()] == written


@given(st.text(), st.text(min_size=BODY_LIMIT + 1, max_size=BODY_LIMIT + 50))
def test_any_text_survives_lone_surrogates_too(short: str, long: str) -> None:
    with pytest.MonkeyPatch.context():
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            store = Store(Path(folder))
            journal = Journal.start(store, started(short))
            journal.append(dataclasses.replace(replied(0), text=long + "\ud800"))
            task, reply = (row.event for row in journal.rows())
            store.close()
    assert isinstance(task, ev.RunStarted)
    assert isinstance(reply, ev.ModelReplied)
    assert (task.task, reply.text) == (short, long + "\ud800")


def test_a_large_body_is_stored_once_however_often_it_occurs(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    for call in range(5):
        journal.append(replied(call, "page " * 1000))
    journal.flush()
    with closing(sqlite3.connect(store.database.path)) as db:
        assert db.execute("SELECT count(*) FROM bodies").fetchone() == (1,)
    assert all(row.event.text == "page " * 1000 for row in journal.rows()[1:])  # type: ignore[attr-defined]


@pytest.mark.parametrize("unit", ["a\0b", "\u00e9", "x\ud800", "\U0001f600\ud800"])
def test_a_body_of_several_parts_is_stored_like_one_of_one_part(
    home: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    long = unit * 5000
    monkeypatch.setattr("closeout.journal.store.BODY_PART", 1_001)
    store = open_store(home)
    journal = Journal.start(store, started(long))
    journal.append(dataclasses.replace(replied(0), text=long + "!"))
    journal.flush()
    assert journal.rows()[0].event.task == long  # type: ignore[attr-defined]
    assert journal.rows()[1].event.text == long + "!"  # type: ignore[attr-defined]
    with closing(sqlite3.connect(store.database.path)) as db:
        bodies = dict(db.execute("SELECT hash, body FROM bodies"))
    assert bodies == {hashlib.sha256(body).digest(): body for body in bodies.values()}
    assert long.encode("utf-8", "surrogatepass") in bodies.values()


def test_a_text_that_looks_like_a_reference_is_only_a_text(home: Path) -> None:
    journal = Journal.start(open_store(home), started('{"text": "0000"}'))
    journal.append(replied(0, '{"$ref": "00ff"}'))
    assert journal.rows()[1].event == replied(0, '{"$ref": "00ff"}')


def test_every_type_of_event_survives_the_journal(home: Path) -> None:
    samples: dict[type, Any] = {str: "x", int: 3, float: 1.5, bool: True}
    journal = Journal.start(open_store(home), started())
    written: list[ev.Event] = []
    for name in ev.__all__:
        kind = getattr(ev, name)
        if not isinstance(kind, type) or kind in (ev.Event, ev.Unknown) or not issubclass(kind, ev.Event):
            continue
        required = [f for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
        values = {f.name: samples[{"str": str, "int": int, "bool": bool}.get(str(f.type), str)] for f in required
                  if f.default_factory is dataclasses.MISSING}  # fmt: skip
        written.append(journal.append(kind(**values)))
    assert [row.event for row in journal.rows()][1:] == written
    assert len(written) > 15


def test_a_row_leaves_out_what_is_empty_by_default(home: Path) -> None:
    finished = ev.ToolFinished("main", "r1", "pay", ok=False, record="{}", ms=1.5)
    journal = Journal.start(open_store(home), started(), run_id="r")
    journal.append(finished)
    rows = [row.event for row in journal.rows()]
    *_, (_, _, values) = stored_events(home).values()
    assert values == {"agent": "main", "handle": "r1", "name": "pay", "ok": False, "record": "{}", "ms": 1.5}
    assert rows[-1] == finished
    assert ev.read_event("ToolFinished", finished.values()) == finished  # as older versions wrote it


def test_what_a_row_may_lack_keeps_its_default() -> None:
    kept = (Path(__file__).parent / "data" / "empty_fields.txt").read_text("utf-8").splitlines()
    kinds = ev.EVENT_TYPES.items()
    found = [f"{name}.{each} {default!r}" for name, kind in kinds for each, default in kind.empty.items()]
    assert sorted(found) == kept, "Add new fields. Any other change would change what older records say."


def test_a_model_reply_comes_back_as_the_reply_it_was() -> None:
    call = ToolCall("add", '{"a": 1}', "c1", text='{"a": 1}')
    reply = ModelReply(
        "t",
        "because",
        (call,),
        finish_reason="tool_calls",
        usage=Usage(5, 6, cache_read_tokens=2, requests=1, cost_usd=0.25),
        model="m",
    )
    event = ev.ModelReplied.of("main", 0, reply, 3.0)
    body = json.loads(json.dumps({name: getattr(event, name) for name in event.names}))
    again = ev.event_from("ModelReplied", body)
    assert isinstance(again, ev.ModelReplied)
    assert again.reply() == reply


def test_an_event_of_a_later_version_is_kept_and_does_not_hurt(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    journal.flush()
    row = ((1 << 32) + 1, '[[0, "Teleported", {"agent": "main", "where": 1}]]')
    with closing(sqlite3.connect(store.database.path)) as other:
        other.execute("INSERT INTO events VALUES (?,?,NULL)", row)
        other.commit()
    assert journal.rows()[1].event == ev.Unknown("main", "Teleported", {"agent": "main", "where": 1})


# ------------------------------------------------------------------------------------------------ replaying


def types_on_disk(store: Store) -> list[str]:
    return [kind for _, kind, *_ in stored_events(store.home).values()]


async def test_an_effect_that_may_not_be_repeated_has_its_intent_on_disk_before_it_begins(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())

    async def effect() -> ev.Event:
        assert types_on_disk(store) == ["RunStarted", "ToolStarted"]
        return ev.ToolFinished("main", "r1", "pay", ok=True, record="{}")

    await journal.effect(ev.ToolStarted("main", "r1", "pay", arguments="{}"), effect, interrupted=lambda: replied(0))
    await asyncio.sleep(0)
    assert types_on_disk(store) == ["RunStarted", "ToolStarted", "ToolFinished"]


async def test_its_outcome_is_on_disk_before_anything_follows_from_it(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())

    async def effect() -> ev.Event:
        return ev.ToolFinished("main", "r1", "pay", ok=True, record="{}")

    intent = ev.ToolStarted("main", "r1", "pay", arguments="{}")
    await journal.effect(
        intent, effect, interrupted=lambda: ev.ToolFinished("main", "r1", "pay", ok=False, record="{}")
    )
    assert types_on_disk(store) == ["RunStarted", "ToolStarted", "ToolFinished"]


async def test_any_other_intent_is_on_disk_while_the_effect_is_under_way(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())

    async def effect() -> ev.Event:
        async with asyncio.timeout(60):
            while types_on_disk(store) != ["RunStarted", "ModelRequested"]:  # noqa: ASYNC110  # a thread writes it
                await asyncio.sleep(0.01)
        return replied(0)

    await journal.effect(ev.ModelRequested("main", 0), effect)


async def test_runs_of_a_loop_that_wait_share_one_commit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.journal.store.COMMIT_SECONDS", 3600.0)  # none by the timer
    store = open_store(home)
    journals = [Journal.start(store, started()) for _ in range(20)]
    commits = recorded_commits(store, monkeypatch)
    await asyncio.gather(*(use(journal, "r1", [], report=True) for journal in journals))
    assert [(rows, durable) for rows, durable, _ in commits] == [(20, True), (20, False)], "intents, then outcomes"


async def test_a_loop_makes_quick_commits_itself_and_leaves_slow_ones_to_a_thread(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeout.journal.store.COMMIT_SECONDS", 3600.0)  # none by the timer
    store = open_store(home)
    journal = Journal.start(store, started())
    commits = recorded_commits(store, monkeypatch)
    monkeypatch.setattr("closeout.journal.store.QUICK_SECONDS", 60.0)
    await use(journal, "r1", [], report=True)
    monkeypatch.setattr("closeout.journal.store.QUICK_SECONDS", 0.0)
    monkeypatch.setattr("closeout.journal.store.PAUSE", 10**6)
    await use(journal, "r2", [], report=True)
    *quick, last, slow = [thread == threading.get_ident() for *_, thread in commits]
    assert (quick, last, slow) == ([True, True], True, False)


def test_a_commit_does_not_wait_for_a_crowd_of_runs_that_begin(home: Path) -> None:
    store, begins, seen = open_store(home), threading.Event(), list[list[str]]()
    journal = Journal.start(store, started())
    store.submit(begins.wait, 60)
    crowd = [store.submit(lambda: seen.append(types_on_disk(store))) for _ in range(3)]
    store.put(journal._number, 1, time.time(), replied(0))
    last = store.commit()  # behind the others
    begins.set()
    last.result(60)
    assert [each.result(60) for each in crowd] == [None] * 3
    assert seen == [["RunStarted", "ModelReplied"]] * 3


@pytest.mark.parametrize("again", [False, True], ids=["once", "after a commit that was not confirmed"])
def test_many_runs_are_written_in_one_commit_each_as_it_is(home: Path, *, again: bool) -> None:
    store = open_store(home)
    journals = [Journal.start(store, started(f"{number} 多少？")) for number in range(50)]
    for number, journal in enumerate(journals):
        store.put(journal._number, 1, 5.0, replied(number, "é🚀\0" * number))
    if again:
        store.flush()
        for number, journal in enumerate(journals):
            store.put(journal._number, 1, 5.0, replied(number, "é🚀\0" * number))
        store._tries_again = True
    store.flush()
    for number, journal in enumerate(journals):
        record = store.read(journal.run_id)
        assert (record.problems, record.rows[1].event) == ((), replied(number, "é🚀\0" * number))


@pytest.mark.parametrize(("busy", "hangs"), [(60.0, False), (0.2, True), (0.0, True)])
async def test_a_busy_loop_lets_the_writing_thread_catch_up_unless_the_disk_hangs(
    home: Path, monkeypatch: pytest.MonkeyPatch, busy: float, *, hangs: bool
) -> None:
    store, disk, used = open_store(home), threading.Event(), iter((0.0, busy))
    journal = Journal.start(store, started())
    waiting = store.submit(disk.wait, 60) if hangs else store.submit(time.sleep, 0.05)
    store.put(journal._number, 1, time.time(), replied(0))
    monkeypatch.setattr("time.thread_time", lambda: next(used))
    store.commit_soon()
    await asyncio.sleep(2 * COMMIT_SECONDS)
    assert waiting.done() == (not hangs)
    disk.set()
    store.flush()
    assert types_on_disk(store) == ["RunStarted", "ModelReplied"]


async def test_a_run_that_is_alone_does_not_wait_for_others_to_commit_with_it(home: Path) -> None:
    journal = Journal.start(open_store(home), started())
    journal.append(replied(0, "a"))
    with pytest.raises(StopIteration):  # not after a turn of the loop
        journal.committed().send(None)
    assert types_on_disk(open_store(home)) == ["RunStarted", "ModelReplied"]


async def test_a_loop_leaves_large_events_to_a_thread(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.journal.store.COMMIT_SECONDS", 3600.0)  # none by the timer
    store = open_store(home)
    journal = Journal.start(store, started())
    commits = recorded_commits(store, monkeypatch)
    journal.append(replied(0, "a" * 1_000_000))
    await journal.committed()
    assert [thread == threading.get_ident() for *_, thread in commits] == [False]


async def test_an_outcome_is_synced_soon_also_if_nothing_follows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, effects, synced = open_store(home), list[str](), asyncio.Event()
    journal = Journal.start(store, started())
    loop = asyncio.get_running_loop()

    def noticed(write: Any) -> Any:
        def act(*args: Any, **options: Any) -> Any:
            found = write(*args, **options)
            if options.get("durable") and effects:
                loop.call_soon_threadsafe(synced.set)
            return found

        return act

    for name in ("append", "transact"):
        monkeypatch.setattr(store.database, name, noticed(getattr(store.database, name)))
    await use(journal, "r1", effects, report=True)
    await asyncio.wait_for(synced.wait(), 60)


def recorded_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool, int]]:
    """Rows, durability and thread of each commit from now on, without those of the timer."""
    monkeypatch.setattr("closeout.journal.store.COMMIT_SECONDS", 3600.0)
    commits, append = list[tuple[int, bool, int]](), store.database.append

    def write(rows: Any, **options: Any) -> Any:
        commits.append((len(rows), options["durable"], threading.get_ident()))
        return append(rows, **options)

    monkeypatch.setattr(store.database, "append", write)
    return commits


async def test_a_recorded_outcome_is_returned_and_the_effect_is_not_repeated(home: Path) -> None:
    store, effects = open_store(home), list[int]()
    journal = Journal.start(store, started())
    first = await ask(journal, 0, effects, "the reply")
    journal.flush()
    journal.abandon()

    again = Journal.reopen(store, journal.run_id)
    assert again.replaying
    assert await ask(again, 0, effects, "another") == first
    assert effects == [0]
    assert not again.replaying
    await ask(again, 1, effects)
    assert effects == [0, 1]


async def test_existing_events_are_not_written_twice(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    steps = [ev.AttemptStarted("main", 0), ev.Repaired("main", 0, "x"), ev.Repaired("main", 0, "y")]
    for event in steps:
        journal.append(event)
    journal.flush()
    journal.abandon()
    again = Journal.reopen(store, journal.run_id)
    for event in [*steps, ev.Repaired("main", 1, "z")]:
        again.append(event)
    kinds = [row.event for row in again.rows() if isinstance(row.event, ev.Repaired)]
    assert [r.kind for r in kinds] == ["x", "y", "z"]


async def test_a_started_call_is_run_again_or_reported_as_its_rule_says(home: Path) -> None:
    store, effects = open_store(home), list[str]()
    journal = Journal.start(store, started())
    journal.append(ev.ToolStarted("main", "r1", "pay", arguments="{}"))
    journal.append(ev.ToolStarted("main", "r2", "look", arguments="{}"))
    journal.flush()
    journal.abandon()

    again = Journal.reopen(store, journal.run_id)
    paid = await use(again, "r1", effects, report=True)
    await use(again, "r2", effects)
    assert isinstance(paid, ev.ToolFinished)
    assert paid.note == "interrupted"
    assert effects == ["r2"]


async def test_a_failure_at_the_end_of_the_record_is_tried_again(home: Path) -> None:
    store, effects = open_store(home), list[int]()
    journal = Journal.start(store, started())
    await ask(journal, 0, effects)

    async def fail() -> ev.Event:
        return ev.ModelFailed("main", 1, "ModelUnreachable", error="no connection")

    await journal.effect(ev.ModelRequested("main", 1), fail)
    journal.append(ev.AttemptEnded("main", 0, "model_failed"))
    await journal.end(ev.RunEnded("main", "failed", "model_failed"))

    again = Journal.reopen(store, journal.run_id)
    await ask(again, 0, effects)
    await ask(again, 1, effects)
    again.append(ev.AttemptEnded("main", 0, "answered", answer="42"))
    assert effects == [0, 1]
    ends = [row.event for row in again.rows() if isinstance(row.event, ev.AttemptEnded)]
    assert [e.reason for e in ends] == ["model_failed", "answered"]


async def test_another_call_in_the_place_of_a_recorded_one_gets_no_foreign_outcome(home: Path) -> None:
    store, effects = open_store(home), list[str]()
    journal = Journal.start(store, started())
    await use(journal, "r1", effects)
    journal.flush()
    journal.abandon()
    again = Journal.reopen(store, journal.run_id)

    async def effect() -> ev.Event:
        effects.append("other")
        return ev.ToolFinished("main", "r1", "refund", ok=True, record="{}")

    await again.effect(ev.ToolStarted("main", "r1", "refund", arguments="{}"), effect)
    assert effects == ["r1", "other"]
    assert "was 'pay', now 'refund'" in again.departure


async def test_a_replay_writes_nothing_and_ends_where_the_record_does(home: Path) -> None:
    store, effects = open_store(home), list[int]()
    journal = Journal.start(store, started())
    await ask(journal, 0, effects)
    rows = journal.rows()
    replay = Journal.replay(journal.run_id, rows)
    await ask(replay, 0, effects)
    with pytest.raises(JournalError, match="has no outcome for ModelRequested 1"):
        await ask(replay, 1, effects)
    assert effects == [0]
    assert len(list(store.rows(journal.run_id))) == len(rows)


def test_time_between_crash_and_resume_does_not_count(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    journal.flush()
    journal.abandon()
    earlier = {place: [at - 1000, *event] for place, (at, *event) in stored_events(home).items()}
    store_events(home, earlier)
    again = Journal.reopen(store, journal.run_id)
    assert again.elapsed < 100
    assert again.started_at < journal.started_at - 900


# ------------------------------------------------------------------------------------------------ who leads


def test_a_run_has_one_leader(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    with pytest.raises(JournalLocked, match="being executed right now"):
        Journal.reopen(store, journal.run_id)
    assert store.run(journal.run_id).status == "running"
    journal.abandon()
    assert store.run(journal.run_id).status == "interrupted"
    Journal.reopen(store, journal.run_id)


_LOOKING = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_SH, 1, int(sys.argv[2]), os.SEEK_SET)
print("looking", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there a look is a lock like any other")
def test_who_only_looks_at_a_run_is_not_taken_for_its_leader(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    journal.abandon()
    command = [sys.executable, "-c", _LOOKING, str(home / "journal.locks"), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"looking\n"
        assert store.run(journal.run_id).status == "interrupted"  # also for a second one that looks

        def meanwhile(_: float) -> None:
            other.communicate()

        monkeypatch.setattr("closeout.journal.locks.time.sleep", meanwhile)
        Journal.reopen(store, journal.run_id)
    assert store.run(journal.run_id).status == "running"


def test_a_new_run_is_led_before_others_can_see_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(home)
    seen: list[int] = []
    take = RunLocks.take

    def watched(locks: RunLocks, run_id: str, number: int, db: object = None) -> None:
        with closing(sqlite3.connect(store.database.path)) as other:
            seen.append(other.execute("SELECT count(*) FROM runs").fetchone()[0])
        take(locks, run_id, number, db)

    monkeypatch.setattr(RunLocks, "take", watched)
    Journal.start(store, started())
    assert seen == [0]


def test_a_folder_has_one_store_by_whatever_way_it_is_reached(home: Path, tmp_path: Path) -> None:
    store = open_store(home)
    (tmp_path / "elsewhere").symlink_to(home, target_is_directory=True)
    assert open_store(tmp_path / "elsewhere") is store


def test_no_such_run_says_how_to_list_them(home: Path) -> None:
    with pytest.raises(RunNotFound, match="closeout runs"):
        Journal.reopen(open_store(home), "nope")


def _write_run(folder: str, number: int, out: Any) -> None:
    store = open_store(Path(folder))
    journal = Journal.start(store, started(f"task {number}"))
    for call in range(50):
        journal.append(replied(call, f"{number}:{call} " * 300))
        journal.flush()
    asyncio.run(journal.end(ev.RunEnded("main", "answered", "answered", answer=str(number))))
    out.put(journal.run_id)


def test_several_processes_write_their_runs_at_the_same_time(home: Path) -> None:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=_write_run, args=(str(home), n, out)) for n in range(4)]
    for process in processes:
        process.start()
    names = [out.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    store = open_store(home)
    assert len(set(names)) == 4
    for name in names:
        rows = list(store.rows(name))
        assert [row.seq for row in rows] == list(range(52))
        assert store.run(name).status == "answered"


_FORKING = """
import os, sys, time
from pathlib import Path
from closeout.journal.events import RunStarted
from closeout.journal.run_journal import Journal
from closeout.journal.run_names import new_run_id
from closeout.journal.store import open_store

def write(name):
    Journal.start(open_store(Path(sys.argv[1])), RunStarted("main", name), run_id=name).abandon()

write("the parent's")
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    write("the child's first")
    print("written", flush=True)
    sys.stdin.readline()
    write("the child's second")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_child_that_outlives_its_parent_and_another_process_lose_nothing_of_each_other(home: Path) -> None:
    command = [sys.executable, "-c", _FORKING, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forking:
        assert forking.stdin is not None
        assert forking.stdout is not None
        assert forking.stdout.readline() == b"written\n"
        store = open_store(home)
        Journal.start(store, started(), run_id="another's").abandon()
        forking.stdin.write(b"\n")
        forking.stdin.flush()
        assert forking.stdout.read() == b""  # the child is gone too
    runs = [record.run_id for record in store.runs()]
    assert runs == ["the child's second", "another's", "the child's first", "the parent's"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads: that is what is tested
def test_a_fork_while_runs_are_written_harms_neither_side(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            Journal.start(open_store(home), started(), run_id="the child's").abandon()
        os._exit(0)
    journal.append(replied(0))
    journal.abandon()
    os.waitpid(child, 0)
    assert [row.seq for row in store.rows(journal.run_id)] == [0, 1]
    assert {record.run_id for record in store.runs()} == {"the child's", journal.run_id}


def test_a_journal_that_others_are_making_at_this_moment_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    with closing(sqlite3.connect(home / "journal.sqlite3", isolation_level=None)) as other:
        other.execute("CREATE TABLE half_made (x)")
        other.execute("BEGIN EXCLUSIVE")
        waited: list[float] = []

        def meanwhile(seconds: float) -> None:
            waited.append(seconds)
            other.execute("COMMIT")

        monkeypatch.setattr("closeout.journal.database.LOCK_SECONDS", 0.0)  # SQLite's own patience
        monkeypatch.setattr("closeout.journal.database.time.sleep", meanwhile)
        Journal.start(open_store(home), started())
    assert len(waited) == 1


def test_a_flush_waits_for_the_thread_that_is_writing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(home)
    one, two = Journal.start(store, started()), Journal.start(store, started())
    connection, writing, may_go_on = store.database.db, threading.Event(), threading.Event()

    class Slow:
        def execute(self, *arguments: Any) -> Any:
            writing.set()
            may_go_on.wait(60)
            return connection.execute(*arguments)

    monkeypatch.setattr(store.database, "db", Slow())
    first = threading.Thread(target=one.append, args=(replied(0),))
    second = threading.Thread(target=two.flush)
    first.start()
    writing.wait(60)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    may_go_on.set()
    first.join()
    second.join()
    monkeypatch.setattr(store.database, "db", connection)
    assert [row.seq for row in store.rows(one.run_id)] == [0, 1]


# ------------------------------------------------------------------------------------------------ bad days


def test_a_ctrl_c_while_it_is_written_spoils_neither_this_run_nor_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    connection = store.database.db

    class BrokenOff:
        def execute(self, *arguments: Any) -> None:
            connection.execute(*arguments)
            raise KeyboardInterrupt

    monkeypatch.setattr(store.database, "db", BrokenOff())
    with pytest.raises(KeyboardInterrupt):
        journal.append(replied(0))
    monkeypatch.setattr(store.database, "db", connection)
    journal.abandon()
    after = Journal.start(store, started())
    after.append(replied(0))
    asyncio.run(after.end(ev.RunEnded("main", "answered", "answered", answer="42")))
    assert [row.seq for row in store.rows(journal.run_id)] == [0, 1]
    assert after.failure is None
    assert store.run(after.run_id).status == "answered"


def test_a_file_that_is_not_a_journal_is_named(home: Path) -> None:
    home.mkdir()
    (home / "journal.sqlite3").write_bytes(b"not a database, " * 1000)
    with pytest.raises(JournalDamaged, match="Move it away"):
        open_store(home)


@pytest.mark.parametrize("columns", ["run, seq, at, type, body", "place, at, type, body"])
def test_a_journal_of_another_or_a_later_form_is_named(columns: str, home: Path) -> None:
    home.mkdir()
    with closing(sqlite3.connect(home / "journal.sqlite3")) as old:
        old.executescript(f"CREATE TABLE events ({columns}); PRAGMA user_version=1;")
    with pytest.raises(
        JournalError, match=r"runs this one cannot read.* Move the file away, or set another CLOSEOUT_HOME"
    ):
        open_store(home)
    with closing(sqlite3.connect(home / "journal.sqlite3")) as later:
        later.execute("PRAGMA user_version=99")
    with pytest.raises(JournalError, match="by a newer Closeout"):
        open_store(home)


def test_what_is_kept_of_runs_is_its_owners_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    for folder in (tmp_path / "own", shared):
        store = Store(folder)
        store.create_run("a", "m", started())
        kept = {path.name: path.stat().st_mode & 0o077 for path in folder.iterdir()}
        assert {"journal.sqlite3", "journal.sqlite3-wal"} <= kept.keys()
        assert os.name == "nt" or not any(kept.values()), kept
        store.close()
    assert os.name == "nt" or not (tmp_path / "own").stat().st_mode & 0o077


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="CLOSEOUT_HOME"):
        open_store(tmp_path / "file" / "home")


def test_a_full_disk_fails_its_run_keeps_what_was_written_and_harms_no_other(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    journal.append(replied(0))
    journal.flush()
    pages = store.database.db.execute("PRAGMA page_count").fetchone()[0]
    store.database.db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalFull, match="Free some space"):
        journal.append(replied(1, "\n".join(str(n) for n in range(100_000))))
    asyncio.run(journal.end(ev.RunEnded("main", "failed", "journal_failed")))
    assert isinstance(journal.failure, JournalFull)
    store.database.db.execute("PRAGMA max_page_count=1000000")

    other = Journal.start(store, started("another"))
    other.append(replied(0))
    other.flush()
    assert [type(row.event).__name__ for row in other.rows()] == ["RunStarted", "ModelReplied"]
    assert [type(row.event).__name__ for row in store.rows(journal.run_id)][:2] == ["RunStarted", "ModelReplied"]


def test_unwritten_events_do_not_overwrite_those_of_a_resumed_run(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    (pages,) = store.database.db.execute("PRAGMA page_count").fetchone()
    store.database.db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalFull):
        journal.append(replied(0, "too long " * 5000))
    journal.abandon()
    store.database.db.execute("PRAGMA max_page_count=100000")
    again = Journal.reopen(store, journal.run_id)
    again.append(replied(0, "short"))
    again.abandon()
    kinds = [type(row.event).__name__ for row in store.rows(journal.run_id)]
    assert kinds == ["RunStarted", "RunResumed", "ModelReplied"]


def test_a_damaged_row_does_not_hide_the_rest(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    journal.append(replied(0))
    journal.append(replied(1))
    journal.flush()
    events = stored_events(home)
    store_events(home, {place: b"\xff" if place == min(events) + 1 else event for place, event in events.items()})
    rows = journal.rows()
    assert [type(row.event).__name__ for row in rows] == ["RunStarted", "Unknown", "ModelReplied"]
    assert rows[0].time <= rows[1].time <= rows[2].time


@pytest.mark.parametrize(
    ("field", "value"),
    [("text", 5), ("ms", "long"), ("usage", {"zzz": 1}), ("usage", {"input_tokens": "x"}), ("tool_calls", [1])],
)
def test_an_event_whose_values_cannot_be_its_is_unreadable_and_hides_nothing(
    field: str, value: Any, home: Path
) -> None:
    journal = Journal.start(open_store(home), started())
    journal.append(replied(0))
    journal.append(replied(1))
    journal.flush()
    events = stored_events(home)
    events[min(events) + 1][2][field] = value
    store_events(home, events)
    rows = journal.rows()
    assert [type(row.event).__name__ for row in rows] == ["RunStarted", "Unknown", "ModelReplied"]
    assert RunTotals(row.event for row in rows).usage.requests == 1


def test_a_run_whose_record_was_edited_stays_in_the_list(home: Path) -> None:
    store = open_store(home)
    Journal.start(store, started())
    with closing(sqlite3.connect(store.database.path)) as db:
        db.execute("UPDATE runs SET started = 'long ago', ended = 9e999, answer = x'00ff'")
        db.commit()
    (record,) = store.runs()
    assert (record.started, record.ended, type(record.answer)) == (0.0, None, str)


def test_a_damaged_body_does_not_hide_the_rest(home: Path) -> None:
    store = open_store(home)
    journal = Journal.start(store, started())
    journal.append(replied(0, "x" * 5000))
    journal.append(replied(1))
    journal.flush()
    with closing(sqlite3.connect(store.database.path)) as db:
        db.execute("UPDATE bodies SET body = 'tampered'")
        db.commit()
    kinds = [type(row.event).__name__ for row in journal.rows()]
    assert kinds == ["RunStarted", "Unknown", "ModelReplied"]


# ------------------------------------------------------------------------------------------------ names


def test_names_of_runs_are_unique_and_sort_by_the_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.time_ns()
    names = []
    for later in (0, 1, 2, 999, 1_000, 86_400_000, 10**11):
        monkeypatch.setattr(time, "time_ns", lambda later=later: begun + later * 1_000_000)
        names.append([new_run_id() for _ in range(5_000)])
    assert len({name for found in names for name in found}) == 7 * 5_000
    assert all(max(earlier) < min(later) for earlier, later in pairwise(names))


# ------------------------------------------------------------------------------------------------ views


def test_the_totals_charges_failed_requests_too() -> None:
    totals = RunTotals(
        [
            replied(0),
            ev.ModelFailed("main", 1, "StreamDropped", error="gone", usage={"input_tokens": 7, "requests": 1}),
            ev.TurnRolledBack("main", 0, 0, reason="empty"),
        ]
    )
    assert (totals.usage.input_tokens, totals.usage.requests, totals.rollbacks) == (17, 2, 1)
