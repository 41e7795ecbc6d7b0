"""What listeners are told of a run that is left or cancelled at any of its events is what its record holds."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.journal.events import Event, RunEnded
from closeout.testing import ScriptedClient, Turn, answer, call


def clerk() -> Agent:
    """An agent that reads and pays at once, and asks a sub-agent that pays."""

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    @tool
    async def pay(key: str) -> str:
        """Pay."""
        return f"paid {key}"

    below = ScriptedClient([Turn(calls=[call("pay", key="b")]), answer("helped")])
    helper = Agent(below, [pay], name="helper").as_tool("ask_helper", "Helps.")
    turns = [
        Turn(calls=[call("look"), call("pay", key="a")]),
        Turn(calls=[call("ask_helper", task="x")]),
        answer("done"),
    ]
    return Agent(ScriptedClient(turns), [look, pay, helper], name="clerk")


async def leave(way: str, place: int) -> tuple[list[Event], list[Event]]:
    """What is told and what is recorded of a run that is left at the event of a place."""
    agent, run_id = clerk(), f"{way}{place}.1"
    told: list[Event] = []

    def listen(event: Any) -> None:
        if isinstance(event, Event):
            told.append(event)
            if len(told) == place and way != "stream":
                task.cancel()

    async def read() -> None:
        seen = 0
        stream: Any = agent.stream("Work.", run_id=run_id, listeners=[listen])
        async with aclosing(aiter(stream)) as events:
            async for event in events:
                seen += isinstance(event, Event)
                if seen == place:
                    break

    match way:
        case "stream":
            work: Any = read()
        case "session":
            work = agent.session(f"{way}{place}").run("Work.", listeners=[listen])
        case _:
            work = agent.run("Work.", run_id=run_id, listeners=[listen])
    task = asyncio.ensure_future(work)
    await asyncio.gather(task, return_exceptions=True)
    store = agent.store()
    assert store is not None
    return told, [row.event for row in store.rows(run_id)]


def as_json(events: list[Event]) -> list[tuple[str, str]]:
    """Events by their values: a record has lists where a new event has tuples."""
    return [(type(each).__name__, json.dumps(asdict(each), sort_keys=True, default=str)) for each in events]


@pytest.mark.parametrize("way", ["run", "session", "stream"])
async def test_a_run_left_at_any_event_has_told_what_it_records(way: str) -> None:
    whole, _ = await leave(way, 1_000)
    assert len(whole) > 20
    left = await asyncio.gather(*(leave(way, place) for place in range(1, len(whole) + 1)))
    for place, (told, recorded) in enumerate(left, 1):
        assert as_json(told) == as_json(recorded), place
        assert isinstance(told[-1], RunEnded), place
