"""Reading a run from a place on, following it while it is executed, and runs that are submitted before they start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from closeout import Agent, Number, tool
from closeout.errors import JournalError, RunNotFound, UsageError
from closeout.journal.events import RunEnded, RunStarted
from closeout.journal.following import Wakeup, follow
from closeout.testing import ScriptedClient, answer, call


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look up a key."""
    return "42"


def an_agent() -> Agent:
    return Agent(ScriptedClient([call("lookup", key="k1"), call("lookup", key="k2"), answer("42")]), [lookup])


async def test_rows_from_any_place_are_the_rest_of_the_record() -> None:
    agent = an_agent()
    result = await agent.run("What is k1?")
    store = agent.store()
    assert store is not None
    rows = list(store.rows(result.run_id))
    for seq in range(len(rows) + 2):
        assert store.rows_from(result.run_id, seq) == rows[seq:]


async def test_a_run_is_followed_from_its_first_to_its_last_event() -> None:
    agent = an_agent()
    store, wakeup = agent.store(), Wakeup()
    assert store is not None
    await agent.submit("What is k1?", run_id="one")
    running = asyncio.create_task(agent.resume("one", listeners=[wakeup]))

    async def is_under_way() -> bool:
        return not running.done()

    seen = [row async for row in follow(store, "one", wakeup=wakeup, is_under_way=is_under_way, poll=0.01)]
    assert seen == list(store.rows("one"))
    assert isinstance(seen[-1].event, RunEnded)


async def test_a_run_that_is_to_be_executed_is_waited_for() -> None:
    agent = an_agent()
    store = agent.store()
    assert store is not None
    await agent.submit("What is k1?", run_id="one")
    waiting = True

    async def is_under_way() -> bool:
        return waiting

    async def followed() -> list[type]:
        return [type(row.event) async for row in follow(store, "one", is_under_way=is_under_way, poll=0.01)]

    following = asyncio.create_task(followed())
    await agent.resume("one")
    waiting = False
    assert (await following)[-1] is RunEnded


async def test_following_an_unknown_run_says_so(home: Path) -> None:
    store = an_agent().store()
    assert store is not None
    with pytest.raises(RunNotFound):
        [row async for row in follow(store, "none")]


async def test_a_submitted_run_is_recorded_and_runs_when_it_is_resumed() -> None:
    agent = Agent(ScriptedClient([call("lookup", key="k1"), answer("42")]), [lookup], answer=Number())
    run_id = await agent.submit("What is k1?", origin={"of": "a test"})
    store = agent.store()
    assert store is not None
    assert store.run(run_id).status == "interrupted"
    (row,) = store.rows(run_id)
    assert isinstance(row.event, RunStarted)
    assert row.event.origin == {"of": "a test"}
    assert (await agent.resume(run_id)).value == 42


async def test_a_run_in_memory_cannot_be_submitted() -> None:
    with pytest.raises(UsageError, match="home"):
        await Agent(ScriptedClient([answer("1")]), home=False).submit("1?")


async def test_two_runs_cannot_have_one_name() -> None:
    agent = an_agent()
    await agent.submit("What is k1?", run_id="one")
    with pytest.raises(JournalError, match="exists already"):
        await agent.submit("What is k1?", run_id="one")
