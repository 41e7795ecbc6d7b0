"""A home in PostgreSQL: leases that fence a stopped worker off, cuts, restarts, deletion, tenants, addresses."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

import closeout.journal.events as ev
from cli_process import here
from closeout import Agent, tool
from closeout.config import home_folder
from closeout.errors import JournalError, JournalLocked, LeaseLost, RunExists, RunNotFound, UsageError
from closeout.homes import DatabaseHome, Home, as_home
from closeout.journal import leases
from closeout.journal.inbox import mailbox_of
from closeout.journal.run_journal import Journal
from closeout.journal.sent_signals import open_signals, send_signal
from closeout.journal.store import BODY_LIMIT, Store, close_stores, open_store
from closeout.journal.text_search import SearchIndex
from closeout.messages import ToolCall
from closeout.server.serving import viewer_app
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from harness.database_homes import Wire
from postgres_server import PostgresServer

LONG = "长" * (BODY_LIMIT + 1)


def started(task: str = "Pay.") -> ev.RunStarted:
    return ev.RunStarted("main", task, "t")


def noted(text: str) -> ev.Noted:
    return ev.Noted("main", "info", "Test", message=text)


def texts(store: Store, run_id: str) -> list[str]:
    return [row.event.message for row in store.rows(run_id) if isinstance(row.event, ev.Noted)]


def until(is_so: Callable[[], Any]) -> None:
    give_up = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def fell_silent(store: Store) -> None:
    """As if the process had been stopped for longer than a lease."""
    database: Any = store.database
    database.locks._closing.set()
    if database.locks._thread is not None:
        database.locks._thread.join()
    database._link.execute("UPDATE leases SET until = 'epoch'")


# ------------------------------------------------------------------------------------------------ addresses


def test_a_password_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    address = "postgresql://ann:s3cr%2Ft@127.0.0.1:1/runs?schema=team&lease=5&connect_timeout=1"
    home = as_home(address)
    assert isinstance(home, DatabaseHome)
    assert (dict(home.secrets), home.schema, home.lease) == ({"password": "s3cr/t"}, "team", 5.0)
    assert str(home) == "postgresql://ann@127.0.0.1:1/runs?connect_timeout=1&schema=team"
    with pytest.raises(JournalError, match="Cannot reach the database postgresql://ann@127") as failed:
        open_store(home)
    monkeypatch.setenv("CLOSEOUT_HOME", address)
    shown = [repr(home), str(failed.value), *(f"{d.out}{d.err}" for d in map(here, ("runs", "doctor", "config")))]
    assert all("postgresql://ann@" in text for text in shown[:3])
    assert not any("s3cr" in text for text in shown)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("postgresql://ann:gehe/im@host/runs", "%"),
        ("postgresql:runs", "postgresql://USER@HOST"),
        ("postgresql://host/runs?schema=Team;", "schema="),
        ("postgresql://host/runs?lease=0", "between 1 and"),
        ("postgresql://ann:[geheim@host/runs", "postgresql://USER@HOST"),
        ("mysql://ann:geheim@host/runs", "not mysql://"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_shown(address: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        as_home(address)
    assert "gehe" not in str(refused.value)


# ------------------------------------------------------------------------------------------------ leases


def test_a_worker_that_was_silent_for_longer_than_its_lease_writes_nothing_more(database: DatabaseHome) -> None:
    with closing(Store(database)) as paused, closing(Store(database)) as other:
        lost, kept = Journal.start(paused, started(), run_id="lost"), Journal.start(paused, started(), run_id="kept")
        lost.append(noted("before"))
        paused.flush()
        with pytest.raises(JournalLocked, match="is being executed right now, or its process died"):
            other.reopen_run("lost")
        fell_silent(paused)
        assert other.run("lost").status == "interrupted"
        taken = Journal.reopen(other, "lost")
        for journal in (lost, kept):
            paused.put(journal._number, journal._next, time.time(), noted("late"))
            journal._next += 1
        paused.flush()  # of one batch, the run that is still held is written
        with pytest.raises(LeaseLost, match="taken this run over"):
            lost.append(noted("later"))
        with pytest.raises(LeaseLost):
            paused.end_run(lost._number, "answered", "42", stop_reason="").result()
        taken.append(noted("after"))
        other.flush()
        assert (texts(other, "lost"), texts(other, "kept")) == (["before", "after"], ["late"])
        assert other.run("lost").status == "running"
        assert other.read("lost").problems == other.read("kept").problems == ()
        kept.append(noted("last"))
        paused.flush()
        assert texts(other, "kept") == ["late", "last"]
        taken.abandon()


def test_a_store_that_was_closed_opens_no_connection_again(database: DatabaseHome) -> None:
    store = Store(database)
    store.close()
    with pytest.raises(JournalError, match="was closed in this process"):  # a thread may read to the end of a request
        store.runs()
    store.database.tell(1)


def test_leases_are_renewed_while_a_process_lives_and_end_with_it(
    database: DatabaseHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEWALS", 300)  # each tenth of a second
    home = replace(database, lease=30.0)
    store = Store(home)
    journal = Journal.start(store, started(), run_id="run")
    with closing(Store(home)) as other:
        link: Any = other.database._link  # type: ignore[attr-defined]
        taken = link.execute("SELECT until FROM leases").fetchall()
        until(lambda: link.execute("SELECT until FROM leases").fetchall() > taken)
        assert other.run("run").status == "running"
        journal.abandon()
        assert other.run("run").status == "interrupted"
        store.close()
        other.release(other.reopen_run("run"))


def paying_agent(paid: Path, at_work: Path, may_go_on: Path | None = None) -> Agent:
    """Pays four times. With two payments done it says that it is at work, and thinks until it may go on."""

    @tool
    def pay(n: int) -> str:
        """Pay."""
        with paid.open("a") as file:
            file.write(f"{n}\n")
        return f"paid {n}"

    def turn(view: RequestView) -> Turn:
        done = view.text.count("paid ")
        if done == 2 and may_go_on is not None:
            at_work.touch()
            until(may_go_on.exists)
        return answer("done") if done == 4 else Turn(calls=[call("pay", n=done)])

    return Agent(ScriptedClient(turn), [pay])


WORKER = """
import sys
from pathlib import Path
from test_postgres import paying_agent

result = paying_agent(*map(Path, sys.argv[1:])).run_sync("Go", run_id="run")
print(result.status, result.error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="stops and kills processes")
@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL"])
def test_the_runs_of_a_worker_that_is_stopped_or_killed_are_taken_over(
    database: DatabaseHome, postgres: PostgresServer, tmp_path: Path, how: str
) -> None:
    paid, at_work, may_go_on = tmp_path / "paid", tmp_path / "at_work", tmp_path / "may_go_on"
    command = [sys.executable, "-c", WORKER, str(paid), str(at_work), str(may_go_on)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    try:
        until(at_work.exists)
        worker.send_signal(getattr(signal, how))
        store = open_store(database)
        postgres.end_leases(database.schema)
        until(lambda: store.run("run").status == "interrupted")
        assert paying_agent(paid, at_work).resume_sync("run").answer == "done"
        whole = list(store.rows("run"))
        may_go_on.touch()
        worker.send_signal(signal.SIGCONT)
        says = worker.communicate(timeout=60)[0]
    finally:
        worker.kill()
        worker.wait()
    assert paid.read_text().split() == ["0", "1", "2", "3"]
    assert list(store.rows("run")) == whole
    assert store.read("run").problems == ()
    assert says.startswith("failed Another process has taken this run over" if how == "SIGSTOP" else "")


async def test_only_calls_that_may_be_repeated_run_together_where_a_run_can_be_taken_over(any_home: Home) -> None:
    at_once: dict[str, list[int]] = {"pay": [0], "look": [0]}
    begun: list[int] = []  # payments in the record when one is made

    async def overlap(name: str) -> str:
        at_once[name].append(at_once[name][-1] + 1)
        await asyncio.sleep(0.02)
        at_once[name].append(at_once[name][-1] - 1)
        return "done"

    @tool
    async def pay(bill: int) -> str:
        events = [row.event for row in open_store(any_home).rows("run")]
        begun.append(sum(isinstance(each, ev.ToolStarted) and each.name == "pay" for each in events))
        return await overlap("pay")

    @tool(read_only=True)
    async def look(bill: int) -> str:
        return await overlap("look")

    calls = [ToolCall(name, {"bill": number}, id=f"{name}{number}") for number in range(3) for name in ("pay", "look")]
    agent = Agent(ScriptedClient([Turn(calls=calls), answer("ok")]), [pay, look], home=any_home)
    assert (await agent.run("Go", run_id="run")).answer == "ok"
    assert max(at_once["look"]) == 3
    if isinstance(any_home, DatabaseHome):
        assert (max(at_once["pay"]), begun) == (1, [1, 2, 3])
    else:
        assert max(at_once["pay"]) == 3


# ------------------------------------------------------------------------------------------------ the server fails


def test_cut_connections_and_a_restart_lose_and_double_nothing(
    database: DatabaseHome, postgres: PostgresServer
) -> None:
    store = open_store(database)
    journal = Journal.start(store, started(), run_id="run")
    for number in range(6):
        journal.append(noted(f"{number} {LONG}"))
        store.flush()
        if number == 3:
            postgres.stop()
            postgres.start()
        elif number % 2:
            postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert [text.split()[0] for text in texts(store, "run")] == list("012345")
    assert store.read("run").problems == ()
    assert store.run("run").status == "running"
    journal.abandon()


def test_a_cut_at_any_message_neither_fails_nor_doubles_what_begins_or_is_sent(
    database: DatabaseHome, postgres: PostgresServer
) -> None:
    with tempfile.TemporaryDirectory() as folder, Wire(postgres.folder, Path(folder)) as wire, closing(Store(database)):
        through = replace(database, url=database.url.replace(str(postgres.folder), folder))
        with closing(Store(through)) as store:
            acts: list[Callable[[int], Any]] = [
                lambda n: Journal.start(store, started(), run_id=f"run-{n}").abandon(),
                lambda n: Journal.reopen(store, "run-0", seen=store.run("run-0")).abandon(),
                lambda n: mailbox_of(store, "run-0").send(f"{n}"),
                lambda n: send_signal(store, "run-0", "paid", n, id=f"{n}") or pytest.fail("It was not sent before."),
            ]
            counts = []
            for act in acts:
                act(0)
                count = itertools.count(1)
                for cut in ("before", "after"):
                    for at in itertools.count(1):
                        wire.cut_at(at, cut)
                        act(number := next(count))
                        if wire.sent < at:
                            break
                counts.append(number + 1)
            wire.cut_at(0, "")
            with pytest.raises(RunExists):
                Journal.start(store, started(), run_id="run-0")
            assert not send_signal(store, "run-0", "paid", 1, id="1")
    assert min(counts) > 10
    with closing(Store(database)) as store:
        assert sorted(run.run_id for run in store.runs(1000)) == sorted(f"run-{n}" for n in range(counts[0]))
        assert len(store.messages(store.number_of("run-0"))) == counts[2]
        assert [signal.payload for signal in open_signals(store, "run-0", "paid")] == [str(n) for n in range(counts[3])]
        assert not any(store.read(run.run_id).problems for run in store.runs(1000))


# ------------------------------------------------------------------------------------------------ the rest


def test_deleted_runs_leave_no_bytes_and_take_nothing_from_others(
    database: DatabaseHome, postgres: PostgresServer
) -> None:
    store = open_store(database)
    for run_id in ("one", "two", "three"):
        journal = Journal.start(store, started(), run_id=run_id)
        journal.append(noted("shared" + LONG))
        journal.append(noted(f"{run_id} geheimnis " + LONG))
        journal.abandon()
    with closing(Store(database)) as other:  # knows the shared text, and writes it again while it is deleted
        again = Journal.reopen(other, "three")
        store.delete_runs(["one", "two"])
        again.append(noted("shared" + LONG))
        other.flush()
        again.abandon()
        store.delete_runs(["three"])
        with pytest.raises(RunNotFound):
            store.run("three")
        later = Journal.start(other, started(), run_id="later")
        later.append(noted("shared" + LONG))
        later.append(noted("three geheimnis " + LONG))
        other.flush()
        later.abandon()
    assert [text[:6] for text in texts(store, "later")] == ["shared", "three "]
    store.delete_runs(["later"])
    store.database.wipe()
    tables = ("runs", "events", "bodies", "body_uses", "leases")
    assert [postgres.execute(f"SELECT count(*) FROM {database.schema}.{each}")[0][0] for each in tables] == [0] * 5


def found_with(word: str) -> list[str]:
    with SearchIndex(open_store(home_folder())) as index:
        index.update()
        return [hit.run.run_id for hit in index.search(word)]


def test_the_commands_and_the_search_work_on_it(database: DatabaseHome, tmp_path: Path) -> None:
    @tool(read_only=True)
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"晴 in {city}"

    agent = Agent(ScriptedClient([Turn(calls=[call("weather", city="北京")]), answer("晴")]), [weather])
    run_id = agent.run_sync("北京的天气").run_id
    assert [run["run_id"] for run in here("runs", "--json").json] == [run_id]
    assert found_with("天气") == [run_id]
    assert "晴" in here("runs", run_id).out
    assert here(
        "doctor", "--check"
    ).out == f"{database}: 1 runs with {len(open_store(database).read(run_id).rows)} " + ("events\nNo damage found.\n")
    file = tmp_path / "runs.closeout"
    assert here("runs", "export", "-o", str(file)).out == f"1 run in {file}.\n"
    assert here("runs", "delete", run_id).out == "1 run deleted.\n"
    assert found_with("天气") == []
    assert here("runs", "import", str(file)).out == "1 run imported.\n"
    assert here("runs", "import", str(file)).out == "Nothing new: the journal has runs of these names already.\n"
    assert "晴" in here("runs", run_id).out


def test_each_schema_has_runs_of_its_own_and_one_of_a_newer_version_is_refused(
    database: DatabaseHome, postgres: PostgresServer
) -> None:
    journal = Journal.start(open_store(database), started("NUL \0 and half \ud800 a pair"), run_id="run")
    journal.abandon()
    tenant = replace(database, schema=f"{database.schema}_b")
    assert open_store(tenant).runs() == []
    assert [run.run_id for run in open_store(database).runs()] == ["run"]
    close_stores()
    postgres.execute(f"UPDATE {tenant.schema}.format SET version=99")  # which this version can still use
    open_store(tenant)
    close_stores()
    postgres.execute(f"UPDATE {tenant.schema}.format SET oldest=99")
    with pytest.raises(JournalError, match="made by a newer Closeout"):
        open_store(tenant)
    postgres.execute(f"DROP SCHEMA {tenant.schema} CASCADE")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_neither_ends_its_parents_leases_nor_uses_its_connections(database: DatabaseHome) -> None:
    store = open_store(database)
    journal = Journal.start(store, started(), run_id="run")
    child = os.fork()
    if not child:
        try:
            own = open_store(database)
            os._exit(0 if own is not store and own.run("run").status == "running" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    journal.append(noted("on"))
    store.flush()
    assert texts(store, "run") == ["on"]
    journal.abandon()


async def test_the_viewer_shows_and_follows_runs_of_a_database(database: DatabaseHome) -> None:
    agent = Agent(ScriptedClient([answer("晴")]))
    run_id = (await agent.run("北京的天气")).run_id
    async with TestClient(TestServer(viewer_app(database))) as client:
        (shown,) = (await (await client.get("/viewer/api/runs?q=天气")).json())["runs"]
        assert (shown["run_id"], shown["status"]) == (run_id, "answered")
        async with client.get(f"/viewer/api/runs/{run_id}/follow") as followed:
            text = (await followed.read()).decode()
        assert "晴" in text
