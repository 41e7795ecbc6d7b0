"""Workers: submitted, interrupted and due runs are executed once, by whichever worker is there, on both stores."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from cli_process import start
from closeout import Agent, RunContext, tool
from closeout.homes import Home
from closeout.journal.store import Store, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, serve_script


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


async def test_workers_share_what_was_submitted_and_others_wait_for_the_result(any_home: Home) -> None:
    paid: list[str] = []
    agent = paying_agent(any_home, paid)
    ids = [await agent.submit(f"订单 {number}") for number in range(8)]
    waiting = await agent.submit("wait")
    strange = await paying_agent(any_home, paid, name="other").submit("not ours")
    served = await agent.submit("a server's", origin={"serve": {"agent": "shop"}})
    with pytest.raises(TimeoutError):
        await agent.result(ids[0], timeout=0.01)
    results = asyncio.gather(*(agent.result(run_id) for run_id in ids))
    with closing(Store(any_home)) as elsewhere:
        second = paying_agent(any_home, paid)
        second._assembler.store = lambda: elsewhere  # type: ignore[method-assign]
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
    agent, stop = paying_agent(any_home, paid, seconds=60), asyncio.Event()
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


async def test_a_damaged_run_does_not_stop_a_worker(any_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    paid: list[str] = []
    broken = await paying_agent(any_home, paid).submit("never")
    store = open_store(any_home)
    with store.database.transaction() as db:
        db.execute("UPDATE events SET crc=crc+1")
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
        assert (response.status, shown["status"]) == (200, "ok")
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(process.communicate)
    assert (process.returncode, json.loads(out)) == (0, {"runs": 1, "by_status": {"answered": 1}})
    assert "left to other workers" in err
