"""Legs: an engine executes a run from one wait to the next, as often as it likes, on both stores."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from closeout import Agent, RunContext, tool
from closeout.errors import JournalLocked, RunNotFound, UsageError
from closeout.homes import Home
from closeout.journal.run_journal import Journal
from closeout.journal.store import Store, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call


def shop(home: Home, paid: list[str], *, hold: asyncio.Event | None = None) -> Agent[Any, Any]:
    @tool(approval="always")
    async def pay(order: str) -> str:
        """Pay."""
        paid.append(order)
        return "paid"

    @tool(read_only=True)
    async def sleep(seconds: float, context: RunContext) -> str:
        """Sleep."""
        await context.sleep(seconds)
        return "slept"

    @tool(read_only=True)
    async def expect(context: RunContext) -> str:
        """Wait."""
        return f"got {await context.wait_for('money', timeout=3600)}"

    @tool(read_only=True)
    async def think() -> str:
        """Think."""
        if hold is not None:
            hold.set()
            await asyncio.sleep(600)
        return "thought"

    def turn(view: RequestView) -> Turn:
        done = sum(message.get("role") == "tool" for message in view.messages)
        steps = [call("think"), call("pay", order=view.question), call("sleep", seconds=0.05), call("expect")]
        return answer(view.last) if done == len(steps) else Turn(calls=[steps[done]])

    client = ScriptedClient(turn)
    return Agent(client, [pay, sleep, expect, think], home=home, name="shop", dialect="function_call")


async def test_an_engine_drives_a_run_leg_by_leg_and_may_repeat_each(any_home: Home) -> None:
    paid: list[str] = []
    agent = shop(any_home, paid)
    for _ in range(2):  # the second one does nothing
        leg = await agent.leg("order-1", "茶")
        assert (leg.ended, leg.until, leg.signals, leg.result.status) == (False, None, (), "waiting")
    (asked,) = leg.waiting
    with pytest.raises(UsageError, match="exists with another task"):
        await agent.leg("order-1", "Kaffee")
    with pytest.raises(RunNotFound):
        await agent.leg("order-2")
    decisions = {asked.id: True}
    leg = await agent.leg("order-1", "茶", decisions=decisions)
    while not leg.signals:  # its timer has not ended yet
        assert leg.waiting[0].kind == "timer"
        assert leg.until is not None
        assert leg.until < datetime.now(UTC) + timedelta(minutes=1)
        leg = await agent.leg("order-1", decisions=decisions)  # they were recorded before
    assert leg.signals == ("money",)
    assert leg.until is not None
    assert leg.until > datetime.now(UTC) + timedelta(minutes=50)
    await agent.signal("order-1", "money", 5)
    for _ in range(2):
        leg = await agent.leg("order-1")
        assert (leg.ended, leg.result.answer, leg.waiting) == (True, "got 5", ())
    assert paid == ["茶"]


async def test_a_leg_holds_its_run_and_what_is_cut_off_is_continued(any_home: Home) -> None:
    paid: list[str] = []
    hold = asyncio.Event()
    cut = asyncio.create_task(shop(any_home, paid, hold=hold).leg("r", "茶"))
    await hold.wait()
    with closing(Store(any_home)) as elsewhere:
        agent = shop(any_home, paid)
        agent._assembler.store = lambda: elsewhere  # type: ignore[method-assign]
        with pytest.raises(JournalLocked, match="being executed"):
            await agent.leg("r")
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        assert (await agent.leg("r")).waiting[0].kind == "approval"
        await agent.submit("Tee", run_id="s")
        for _ in range(4):
            Journal.reopen(elsewhere, "s").abandon()  # its process died
        assert (await agent.leg("s")).result.status == "failed"
    assert open_store(any_home).notes_that_begin_with("handed over ") == []


async def test_an_engine_learns_which_runs_can_continue_whoever_decided_or_signalled(any_home: Home) -> None:
    paid: list[str] = []
    agent = shop(any_home, paid)
    await agent.submit("茶", run_id="order-1")
    other = Agent(ScriptedClient([answer("done")]), home=any_home, name="other")
    await other.submit("Other", run_id="order-2")
    await agent.submit("Served", run_id="order-3", origin={"serve": {"agent": "shop"}})
    assert (await agent.ready_runs(), await other.ready_runs()) == (["order-1"], ["order-2"])
    leg = await agent.leg("order-1")
    assert await agent.ready_runs() == []
    assert await agent.decide("order-1", {leg.waiting[0].id: True}, by="Ann") == ()
    assert (await agent.ready_runs(), paid) == (["order-1"], [])
    while not (leg := await agent.leg("order-1")).signals:  # it sleeps a moment
        pass
    assert await agent.ready_runs() == []
    await agent.signal("order-1", "other")
    assert await agent.ready_runs() == []
    await agent.signal("order-1", "money", 5)
    assert await agent.ready_runs() == ["order-1"]
    assert (await agent.leg("order-1")).ended
    assert (await agent.ready_runs(), paid) == ([], ["茶"])
