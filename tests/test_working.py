"""Workers: submitted, interrupted and due runs are executed once, by whichever worker is there, on both stores."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from aiohttp import ClientSession

from cli_process import here, start
from closeout import Agent, RunContext, tool
from closeout.errors import AuthenticationFailed, RunNotFound, UsageError
from closeout.fleet.interruptions import MAX_INTERRUPTIONS
from closeout.fleet.made_deps import DepsMaker
from closeout.fleet.working import AgentWorker
from closeout.homes import DatabaseHome, Home
from closeout.journal.claims import Look
from closeout.journal.events import ModelReplied, Noted, ToolStarted
from closeout.journal.run_journal import Journal
from closeout.journal.store import Row, Store, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, serve_script
from postgres_server import PostgresServer


def paying_agent(home: Home, paid: list[str], seconds: float = 0.0, name: str = "shop") -> Agent[Any, Any]:
    @tool
    async def pay(order: str) -> str:
        """Pay."""
        await asyncio.sleep(seconds)
        paid.append(order)
        return f"paid {order}"

    @tool(read_only=True)
    async def await_money(order: str, context: RunContext) -> str:
        """Wait."""
        return f"paid {await context.wait_for('money')}"

    def turn(view: RequestView) -> Turn:
        if "paid" in view.last:
            return answer("done")
        return Turn(calls=[call("await_money" if "wait" in view.question else "pay", order=view.question)])

    return Agent(ScriptedClient(turn), [pay, await_money], home=home, name=name)


async def test_workers_share_what_was_submitted_and_others_wait_for_the_result(
    any_home: Home, elsewhere: Store
) -> None:
    paid: list[str] = []
    agent = paying_agent(any_home, paid)
    ids = [await agent.submit(f"订单 {number}") for number in range(8)]
    waiting = await agent.submit("wait")
    strange = await paying_agent(any_home, paid, name="other").submit("not ours")
    served = await agent.submit("a server's", origin={"serve": {"agent": "shop"}})
    with pytest.raises(TimeoutError):
        await agent.result(ids[0], timeout=0.01)
    results = asyncio.gather(*(agent.result(run_id) for run_id in ids))
    second = in_another_process(paying_agent(any_home, paid), elsewhere)
    await asyncio.gather(agent.work(until_idle=True, limit=3), second.work(until_idle=True, limit=3))
    assert [result.answer for result in await results] == ["done"] * 8
    assert sorted(paid) == [f"订单 {number}" for number in range(8)]
    store = open_store(any_home)
    assert [store.run(each).status for each in (waiting, strange, served)] == ["waiting", *["interrupted"] * 2]
    await agent.signal(waiting, "money", 5)
    await agent.work(until_idle=True)
    assert (await agent.result(waiting)).answer == "done"


async def test_a_stopping_worker_hands_over_what_does_not_end_in_time(any_home: Home) -> None:
    paid: list[str] = []
    agent, stop = paying_agent(any_home, paid, seconds=600), asyncio.Event()
    run_id = await agent.submit("now")
    working = asyncio.create_task(agent.work(stop, drain_seconds=0.05))
    store = open_store(any_home)
    while len(list(store.rows(run_id))) < 5:  # noqa: ASYNC110 - another process would do the same
        await asyncio.sleep(0.02)
    stop.set()
    await working
    assert store.run(run_id).status == "cancelled"
    await paying_agent(any_home, paid).work(until_idle=True)
    assert (await agent.result(run_id)).answer == "done"
    assert store.notes_that_begin_with("handed over ") == []


@pytest.fixture
def elsewhere(any_home: Home) -> Iterator[Store]:
    """The store of another process."""
    with closing(Store(any_home)) as store:
        yield store


def in_another_process(agent: Agent[Any, Any], elsewhere: Store) -> Agent[Any, Any]:
    agent._assembler.store = lambda: elsewhere  # type: ignore[method-assign]
    return agent


async def test_a_run_is_followed_and_cancelled_from_elsewhere(any_home: Home, elsewhere: Store) -> None:
    paid: list[str] = []
    agent, stop = paying_agent(any_home, paid, seconds=600), asyncio.Event()
    other = in_another_process(paying_agent(any_home, paid), elsewhere)
    running, submitted, waiting = [await other.submit(task) for task in ("now", "later", "wait")]
    await other.cancel(submitted)
    working = asyncio.create_task(agent.work(stop))
    seen = []
    async for row in other.follow(running):
        seen.append(row)
        if isinstance(row.event, ToolStarted):
            await other.cancel(running)
    assert seen == [*open_store(any_home).rows(running)]
    assert [row async for row in other.follow(running, after=2)] == seen[3:]
    await other.cancel(waiting)
    await other.cancel(running)  # it stays as it is
    stop.set()
    await working
    results = [await other.result(each) for each in (running, submitted, waiting)]
    assert [result.status for result in results] == ["cancelled"] * 3
    await paying_agent(any_home, paid).work(until_idle=True)
    assert paid == open_store(any_home).notes_that_begin_with("cancel ") == []


STUBBORN = """
import asyncio
from pathlib import Path
from closeout import Agent, tool
from closeout.cli.main import app
from closeout.server import serving
from closeout.testing import ScriptedClient, Turn, call

@tool
async def hang() -> str:
    "Hang."
    Path("at_work").touch()
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

agent = Agent(ScriptedClient([Turn(calls=[call("hang")])]), [hang], home={home!r})
if __name__ == "__main__":
    serving.LATE_SECONDS = 0.5
    app(["work", "stubborn:agent", "--drain", "0"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")
def test_a_tool_that_ignores_its_cancellation_does_not_hold_up_the_end(home: Path, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN.format(home=str(home)))
    run_id = asyncio.run(Agent(ScriptedClient([]), home=home).submit("Go"))
    worker = subprocess.Popen([sys.executable, "stubborn.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "at_work").exists():
        time.sleep(0.05)
    worker.terminate()
    said = worker.communicate()[1]
    assert worker.returncode == 0
    assert said.endswith("A tool ignores its cancellation. Its run is left as after a crash.\n")
    assert open_store(home).run(run_id).status == "interrupted"


async def test_a_run_that_a_program_executes_by_itself_is_cancelled_from_elsewhere(
    any_home: Home, elsewhere: Store
) -> None:
    paid: list[str] = []
    other = in_another_process(paying_agent(any_home, paid), elsewhere)
    running = asyncio.create_task(paying_agent(any_home, paid, seconds=600).run("now", run_id="run"))
    while not await begun_calls(elsewhere):  # noqa: ASYNC110 - another process would do the same
        await asyncio.sleep(0.02)
    await other.cancel("run", timeout=60)
    result = await running  # the program goes on
    assert (result.status, result.answer, paid) == ("cancelled", None, [])
    assert (await other.result("run")).status == "cancelled"
    open_store(any_home).note("cancel run", "1")  # a request that nobody waits for
    assert (await paying_agent(any_home, paid).resume("run")).answer == "done"
    assert elsewhere.notes_that_begin_with("cancel ") == []


async def begun_calls(store: Store) -> list[Row]:
    with suppress(RunNotFound):
        return [row for row in store.rows("run") if isinstance(row.event, ToolStarted)]
    return []


async def test_a_run_that_is_to_be_cancelled_is_not_taken_over(any_home: Home) -> None:
    paid: list[str] = []
    agent = paying_agent(any_home, paid)
    run_id = await agent.submit("now")
    open_store(any_home).note(f"cancel {run_id}", "1")  # the process that executed it died before it saw this
    open_store(any_home).flush()
    await agent.work(until_idle=True)
    assert ((await agent.result(run_id)).status, paid) == ("cancelled", [])


async def test_workers_begin_with_the_highest_priority_and_not_before_the_time(any_home: Home) -> None:
    paid: list[str] = []
    agent = paying_agent(any_home, paid)
    due = datetime.now(UTC) + timedelta(hours=1)
    later = await agent.submit("later", start_at=due, priority=9)
    for task in ("0a", "0b", "5a", "0c", "9a", "0d", "5b", "0e"):
        await agent.submit(task, priority=int(task[0]))
    await agent.work(until_idle=True, limit=1)
    assert paid == ["9a", "5a", "5b", "0a", "0b", "0c", "0d", "0e"]
    store = open_store(any_home)
    assert (store.run(later).status, store.notes_that_begin_with("priority ")) == ("waiting", [])
    with pytest.raises(UsageError, match="start_at must be a datetime with a time zone"):
        await agent.submit("x", start_at=datetime.now())
    with pytest.raises(UsageError, match="so submit takes none"):
        await agent.submit("x", deps=5)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="from 0 to 9"):
        await agent.submit("x", priority=10)
    (result,) = await agent.resume_due(now=due)
    assert (result.answer, result.turns, paid[8:]) == ("done", 2, ["later"])


async def test_the_clock_of_the_database_decides(database: DatabaseHome, monkeypatch: pytest.MonkeyPatch) -> None:
    paid: list[str] = []
    agent = paying_agent(database, paid)
    run_id = await agent.submit("later", start_at=datetime.now(UTC) + timedelta(minutes=30))
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600.0)  # this machine's clock is wrong
    await agent.work(until_idle=True)
    await agent.work(until_idle=True)
    assert open_store(database).run(run_id).status == "waiting"


async def test_news_of_a_database_come_without_polling(database: DatabaseHome, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fleet.work_poller.LOOK_SECONDS", "journal.following.FIRST_LOOK", "journal.following.LAST_LOOK"):
        monkeypatch.setattr(f"closeout.{name}", 600.0)
    with closing(Store(database)) as store:
        paid: list[str] = []
        agent, worker = paying_agent(database, paid), in_another_process(paying_agent(database, paid), store)
        working = asyncio.create_task(worker.work(limit=2))

        async def at_rest() -> None:
            """Wait until the worker has looked, with both places free: one that is looking is not told of a run."""
            noted = ("SELECT 1 FROM workers WHERE places = 2",)
            while not open_store(database).transact(lambda db: db.execute(*noted).fetchall()):  # noqa: ASYNC110 - the worker notes it
                await asyncio.sleep(0.02)

        async with asyncio.timeout(60):
            await at_rest()
            await agent.result(await agent.submit("a"))
            await at_rest()
            waiting = await agent.submit("wait")
            while open_store(database).run(waiting).status != "waiting":  # noqa: ASYNC110 - another process would do so
                await asyncio.sleep(0.02)
            await at_rest()
            await agent.signal(waiting, "money", 5)
            assert (await agent.result(waiting)).answer == "done"
        working.cancel()


async def test_a_damaged_run_does_not_stop_a_worker(any_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    paid: list[str] = []
    broken = await paying_agent(any_home, paid).submit("never")
    store = open_store(any_home)
    store.transact(lambda db: db.execute("UPDATE events SET crc=crc+1"))
    fine = await paying_agent(any_home, paid).submit("fine")
    await paying_agent(any_home, paid).work(until_idle=True)
    assert (store.run(fine).status, store.run(broken).status) == ("answered", "interrupted")
    (warning,) = caplog.messages
    assert warning.startswith(f"Run {broken} cannot be executed: The record of run {broken} is damaged")


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")
async def test_the_command_works_until_it_is_told_to_stop(home: Path, tmp_path: Path) -> None:
    with serve_script(lambda view: answer(f"{view.question} 好")) as server:
        file = tmp_path / "agent.yaml"
        file.write_text(f"agent: {{name: clerk}}\nllm: {{model_name: x, base_url: '{server.base_url}', api_key: k}}\n")
        agent = Agent.from_yaml(file)
        run_id = await agent.submit("第一")
        process = start("work", str(file), "--health", "0", "--json")
        assert process.stderr is not None
        url = (await asyncio.to_thread(process.stderr.readline)).removeprefix("Health: ").strip()
        assert (await agent.result(run_id, timeout=60)).answer == "第一 好"
        async with ClientSession() as session, session.get(url) as response:
            shown = await response.json()
            figures = await (await session.get(url.replace("healthz", "metrics"))).text()
        assert (response.status, shown["status"]) == (200, "ok")
        assert 'closeout_runs_ended_total{status="answered"} 1' in figures
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(process.communicate)
    done = {"runs": 1, "by_status": {"answered": 1}, "failed": [], "problem": ""}
    assert (process.returncode, json.loads(out)) == (0, done)
    assert "left to other workers" in err


def test_the_command_names_the_runs_that_failed(home: Path, tmp_path: Path) -> None:
    def turn(view: RequestView) -> Any:
        return AuthenticationFailed("The key is wrong.", status=401) if "坏" in view.question else answer("好")

    with serve_script(turn) as server:
        file = tmp_path / "agent.yaml"
        file.write_text(f"agent: {{name: clerk}}\nllm: {{model_name: x, base_url: '{server.base_url}', api_key: k}}\n")
        command = ("work", str(file), "--until-idle")
        idle = here(*command)
        assert (idle.code, idle.err.splitlines()[-1]) == (0, "0 runs executed.")
        agent = Agent.from_yaml(file)
        asyncio.run(agent.submit("好"))
        failed = asyncio.run(agent.submit("坏"))
        shown = here(*command)
        again = asyncio.run(agent.submit("又坏"))
        printed = here(*command, "--json")
    first, second = shown.err.splitlines()[-2:]
    assert (shown.code, first) == (3, "2 runs executed: 1 answered, 1 failed.")
    assert second.startswith(f"{failed}  failed: ")
    assert "The key is wrong." in second
    (failure,) = printed.json["failed"]
    assert (printed.code, printed.json["runs"], printed.json["by_status"]) == (3, 1, {"failed": 1})
    assert (failure["run_id"], failure["error_kind"]) == (again, "AuthenticationFailed")


async def test_a_run_that_waited_and_was_continued_is_one_run(any_home: Home) -> None:
    paid: list[str] = []
    agent = paying_agent(any_home, paid)
    waiting, closed = [await agent.submit(task) for task in ("wait", "x")]
    shops = {waiting: "open"}
    worker = AgentWorker(agent.plan(), open_store(any_home), deps=DepsMaker(lambda request: shops[request.run_id]))
    await worker.work(asyncio.Event(), until_idle=True)
    assert +worker.outcomes == {"waiting": 1, "refused": 1}
    assert "dependencies cannot be made" in worker.failures[closed].error
    shops[closed] = "open"
    worker._poller._not_before.clear()  # a minute later
    await agent.signal(waiting, "money", 5)
    await worker.work(asyncio.Event(), until_idle=True)
    assert (+worker.outcomes, worker.ended["answered"], worker.failures) == ({"answered": 2}, 2, {})


async def test_runs_that_were_interrupted_repeatedly_come_last_and_one_at_a_time(
    any_home: Home, elsewhere: Store, caplog: pytest.LogCaptureFixture
) -> None:
    at_work, began = 0, []

    @tool(read_only=True)
    async def read(text: str) -> str:
        """Read."""
        nonlocal at_work
        at_work += text != "新"
        began.append((text, at_work))
        await asyncio.sleep(0.02)
        at_work -= text != "新"
        return "read"

    def turn(view: RequestView) -> Turn:
        return answer("done") if view.last == "read" else Turn(calls=[call("read", text=view.question)])

    agent = Agent(ScriptedClient(turn), [read], home=any_home, name="reader")
    first, second, last = [await agent.submit(task) for task in ("一", "二", "三")]
    for run_id, count in ((first, 2), (second, 3), (last, 4)):
        for _ in range(count):
            Journal.reopen(elsewhere, run_id).abandon()  # a process died
    for _ in range(5):
        await agent.submit("新")
    one, two = [AgentWorker(agent.plan(), store, limit=5) for store in (open_store(any_home), elsewhere)]
    await one.work(asyncio.Event(), until_idle=True)
    assert began == [*[("新", 0)] * 5, ("一", 1), ("二", 1)]
    assert +one.outcomes == {"answered": 7, "failed": 1}
    failed = await agent.result(last)
    assert (failed.status, failed.error_kind, one.failures[last].error) == ("failed", "", failed.error)
    assert failed.error.startswith("It was interrupted 4 times in a row, so it is not resumed automatically")
    warnings = [f"Resuming {first}, interrupted 2 times.", f"Resuming {second}, interrupted 3 times."]
    assert caplog.messages == [*warnings, f"Run {last} has failed. {failed.error}"]
    await two.work(asyncio.Event(), until_idle=True)
    assert +two.outcomes == {}
    assert (await agent.resume(last)).answer == "done"  # a person decides so


async def test_fresh_runs_and_those_interrupted_twice_take_turns_and_those_interrupted_once_go_first(
    any_home: Home, elsewhere: Store
) -> None:
    paid: list[str] = []
    agent = paying_agent(any_home, paid)
    for task in ("fresh 1", "twice 1", "twice 2", "once", "fresh 2", "fresh 3"):
        run_id = await agent.submit(task)
        for _ in range({"once": 1, "twice": 2}.get(task.split()[0], 0)):
            Journal.reopen(elsewhere, run_id).abandon()
    await agent.work(until_idle=True, limit=1)
    assert paid == ["once", "twice 1", "fresh 1", "twice 2", "fresh 2", "fresh 3"]


async def test_an_interruption_after_progress_is_the_first_one_again(any_home: Home, elsewhere: Store) -> None:
    run_id = await paying_agent(any_home, []).submit("x")
    for _ in range(3):
        journal = Journal.reopen(elsewhere, run_id)
        journal.append(Noted("main", "info", "x", message="x"))
        journal.abandon()
    assert [claim.interruptions for claim in elsewhere.look("shop", 1).claims] == [3]
    journal = Journal.reopen(elsewhere, run_id)
    journal.append(ModelReplied("main", 0, "Hello."))
    journal.abandon()
    (claim,) = elsewhere.look("shop", 1).claims
    assert (claim.interruptions, elsewhere.look("shop", 1).claims) == (1, [])
    elsewhere.unclaim(claim.number)
    assert elsewhere.look("shop", 1, exclude=[run_id]).claims == elsewhere.look("other", 1).claims == []


def noted_look(looks: list[Store], store: Store, *args: Any, **options: Any) -> Look:
    looks.append(store)
    return Store.look(store, *args, **options)


async def test_a_submission_wakes_one_of_the_idle_workers(
    database: DatabaseHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeout.fleet.work_poller.LOOK_SECONDS", 600.0)
    monkeypatch.setattr("closeout.journal.postgres_link.IDLE", 0.0)
    paid: list[str] = []
    agent = paying_agent(database, paid)
    with closing(Store(database)) as one, closing(Store(database)) as two, closing(Store(database)) as three:
        looks: list[Store] = []
        working = []
        for store in (one, two, three):
            monkeypatch.setattr(store, "look", partial(noted_look, looks, store))
            working.append(asyncio.create_task(in_another_process(paying_agent(database, paid), store).work(limit=1)))
        while len(looks) < 3 + 3:  # noqa: ASYNC110 - each looks again when it has begun to listen
            await asyncio.sleep(0.02)
        mine = math.inf
        async with asyncio.timeout(60):  # idle ones are closed soon
            while mine > 2 * 3 + 3:  # two of each worker, and the three of this process's own store
                await asyncio.sleep(0.05)
                ((mine,),) = one.query("SELECT count(*) FROM pg_stat_activity WHERE application_name='closeout'")
        del looks[:]
        async with asyncio.timeout(60):
            await agent.result(await agent.submit("a"))
        assert paid == ["a"]
        assert len(set(looks)) == 1, "one is woken; it looks again when it has ended the run"
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


@pytest.mark.usefixtures("home")
def test_the_command_waits_for_its_database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(prefix="pg-") as folder:  # the path of a socket must be short
        file, sockets = Path(folder, "agent.yaml"), Path(folder, "sockets")
        file.write_text("agent: {name: clerk}\nllm: {model_name: x, base_url: 'http://127.0.0.1:1/v1', api_key: k}\n")
        monkeypatch.setenv("CLOSEOUT_HOME", f"postgresql://closeout@/postgres?host={sockets}&schema=late")
        process = start("work", str(file), "--until-idle")
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Waiting for the database. Cannot reach the database")
        sockets.symlink_to(postgres.folder)
        assert "0 runs executed" in process.communicate(timeout=100)[1]
    postgres.execute("DROP SCHEMA late CASCADE")
    assert process.returncode == 0


POISON = """
import asyncio, os
from closeout import Agent, tool
from closeout.testing import ScriptedClient, answer, call

@tool(read_only=True)
def parse(file: str) -> str:
    "Parse."
    if file == "坏" and "KILLS" in os.environ:
        os._exit(139)
    return "parsed"

def turn(view):
    return answer("done") if view.last == "parsed" else call("parse", file=view.question)

agent = Agent(ScriptedClient(turn), [parse], name="parser")
if __name__ == "__main__":
    asyncio.run(agent.work(until_idle=True, limit=1))
"""


def test_a_run_that_kills_its_workers_is_given_up_and_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poison.py").write_text(POISON, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    agent, store = Agent(ScriptedClient([]), name="parser"), open_store(home)
    bad = asyncio.run(agent.submit("坏"))
    good = asyncio.run(agent.submit("好"))
    said = ""
    while store.query("SELECT tries FROM runs WHERE run_id=?", (bad,)) <= [(MAX_INTERRUPTIONS,)]:
        worker = subprocess.run(
            [sys.executable, "poison.py"], env={**os.environ, "KILLS": "1"}, stderr=subprocess.PIPE, text=True
        )
        assert worker.returncode == 139
        said += worker.stderr
    assert said.endswith(f"Resuming {bad}, interrupted 2 times.\nResuming {bad}, interrupted 3 times.\n")
    assert store.run(good).status == "answered"
    ended = here("work", "poison:agent", "--until-idle")
    assert (ended.code, store.run(bad).status) == (3, "failed")
    assert f"{bad}  failed: It was interrupted 4 times in a row during the call r1 of parse" in ended.err


async def test_a_run_that_another_process_took_over_is_left_and_has_not_failed(tmp_path: Path) -> None:
    @tool
    def pay(order: str) -> str:
        """Pay."""
        store.database.locks.drop(1)
        store._lost.add(1)  # as the renewal of leases finds out
        return "paid"

    agent = Agent(ScriptedClient([call("pay", order="1"), answer("done")]), [pay], home=tmp_path)
    store = open_store(tmp_path)
    await agent.submit("Pay")
    worker = AgentWorker(agent.plan(), store)
    (claim,) = store.look("agent", 1).claims
    await worker._execute(claim)
    assert (worker.outcomes, worker.failures) == ({"left": 1}, {})
    assert "failed" not in worker.ended
