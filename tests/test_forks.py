"""Forks of recorded runs: the same prefix at no request and no call, the origin kept; and what differs between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, ToolOutput, tool
from closeout.errors import UsageError
from closeout.homes import Home
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.lab.compare import agent_differences, first_difference
from closeout.lab.fork import fork_run
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, serve_script

KEYS = ("a", "b", "c", "d")


class World:
    """Four look-ups in four turns; the answer is what the model was shown. Counts requests and calls."""

    def __init__(self, home: Path, name: str = "model") -> None:
        self.asked: list[str] = []  # the end of each request
        self.looked: list[str] = []
        self.home = home

        @tool
        def look(key: str) -> Any:
            """Look up a key."""
            self.looked.append(key)
            found = f"[{key}] is {key}1"
            return ToolOutput(result=found, checkpoint="middle") if key == "b" else found

        def script(view: RequestView) -> Turn:
            self.asked.append(view.text[-300:])
            left = [key for key in KEYS if f"[{key}]" not in view.text]
            if left:
                return Turn(f"Next {left[0]}.", calls=[call("look", key=left[0])])
            return answer(" ".join(part.split()[0] for part in view.text.split("] is ")[1:]))

        self.agent = Agent(ScriptedClient(script, name=name), [look], home=home)

    def events(self, run_id: str) -> list[ev.Event]:
        return [row.event for row in open_store(self.home).rows(run_id)]

    def rows(self, run_id: str) -> Any:
        return list(open_store(self.home).rows(run_id))


@pytest.fixture
async def world(home: Path) -> World:
    found = World(home)
    assert (await found.agent.run("Find them", run_id="origin")).answer == "a1 b1 c1 d1"
    found.asked.clear()
    found.looked.clear()
    return found


def durable(events: list[ev.Event]) -> list[Any]:
    """What the run did, without what belongs to a process or says when."""
    return [(type(e).__name__, e.key or getattr(e, "text", "")) for e in events if not e.momentary]


async def test_a_fork_has_the_prefix_at_no_request_and_no_call(world: World) -> None:
    before = world.rows("origin")
    result = await world.agent.fork("origin", at=3, new_run_id="fork")
    assert (result.run_id, result.answer, result.turns) == ("fork", "a1 b1 c1 d1", 5)
    assert (len(world.asked), world.looked) == (3, ["c", "d"])
    assert durable(world.events("fork")) == durable(world.events("origin"))
    assert world.rows("origin") == before
    started = world.events("fork")[0]
    assert isinstance(started, ev.RunStarted)
    assert started.forked["run_id"] == "origin"
    assert first_difference(world.rows("origin"), world.rows("fork")) is None
    assert open_store(world.home).read("fork").problems == ()


@pytest.mark.parametrize(
    ("at", "requests", "looked"),
    [(1, 5, 4), ("1.2", 4, 3), (5, 1, 0), ("middle", 3, 2), ("e0", 5, 4)],
)
async def test_a_fork_begins_at_a_turn_an_event_or_a_checkpoint(
    world: World, at: int | str, requests: int, looked: int
) -> None:
    result = await world.agent.fork("origin", at=at)
    assert (result.answer, len(world.asked), len(world.looked)) == ("a1 b1 c1 d1", requests, looked)


async def test_what_had_begun_at_an_event_belongs_to_the_prefix(world: World) -> None:
    for place, event in enumerate(world.events("origin")):
        if isinstance(event, ev.ModelReplied):
            break
        world.asked.clear()
        world.looked.clear()
        await world.agent.fork("origin", at=f"e{place}")
        began = isinstance(event, ev.ModelRequested)
        assert (len(world.asked), len(world.looked)) == (4 if began else 5, 4)
    started = [n for n, event in enumerate(world.events("origin")) if isinstance(event, ev.ToolStarted)]
    world.looked.clear()
    await world.agent.fork("origin", at=f"e{started[1]}")
    assert world.looked == ["c", "d"], "the second call had begun, so it is not made again"


async def test_another_result_is_what_the_model_reads_from_there_on(world: World) -> None:
    result = await world.agent.fork("origin", set_results={"r2": "[b] is b9"})
    assert (result.answer, len(world.asked), world.looked) == ("a1 b9 c1 d1", 3, ["c", "d"])
    found = first_difference(world.rows("origin"), world.rows(result.run_id))
    assert found is not None
    assert (str(found), found.a, found.b) == ("turn 2: ToolFinished: record", "[b] is b1", "[b] is b9")
    again = await world.agent.fork("origin", at=3, set_results={"r2": {"text": "[b] is b8"}})
    assert again.answer is not None
    assert "b8" in again.answer


async def test_a_note_is_shown_with_every_request_from_there_on_and_survives(world: World) -> None:
    result = await world.agent.fork("origin", at=3, note="Be quick.", new_run_id="fork")
    assert result.answer == "a1 b1 c1 d1"
    assert all(text.endswith("Note from the user: Be quick.") for text in world.asked)
    notes = [event.note for event in world.events("fork") if isinstance(event, ev.ModelRequested)]
    assert notes == ["", "", *["Note from the user: Be quick."] * 3]
    second = await world.agent.fork("fork", at=4, note="And careful.")
    assert world.asked[-1].endswith("Note from the user: Be quick.\n\nNote from the user: And careful.")
    assert second.answer == result.answer


async def test_another_agent_may_continue(world: World) -> None:
    other = World(world.home, "another")
    result = await other.agent.fork("origin", at=4)
    assert (result.answer, len(other.asked), world.asked) == ("a1 b1 c1 d1", 2, [])
    assert (await other.agent.resume(result.run_id)).answer == result.answer, "its record is of the other agent"
    (said,) = agent_differences(world.rows("origin"), world.rows(result.run_id))
    assert said.startswith("model: ")


async def test_an_unfinished_fork_is_resumed_at_no_further_cost(world: World) -> None:
    name = await fork_run(world.agent.plan(), open_store(world.home), "origin", at=4)
    assert open_store(world.home).run(name).status == "interrupted"
    assert (await world.agent.resume(name)).answer == "a1 b1 c1 d1"
    assert (len(world.asked), world.looked) == (2, ["d"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Say where to fork"),
        ({"at": 9}, r"has no turn 9. It has: 1, 2, 3, 4, 5"),
        ({"at": "2.1"}, r"has no turn 2.1"),
        ({"at": "e999"}, "has no event 999"),
        ({"at": "nowhere"}, r"has no checkpoint 'nowhere'. It has: middle"),
        ({"set_results": {"r9": 1}}, "has no result 'r9'"),
        ({"at": 4, "set_results": {"r1": 1}}, "does not belong to the last turn"),
        ({"at": 2, "set_results": {"r3": 1}}, "does not belong to the last turn"),
    ],
)
async def test_a_fork_that_cannot_be_says_why(world: World, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        await world.agent.fork("origin", **options)
    assert [record.run_id for record in open_store(world.home).runs()] == ["origin"]


async def test_a_run_that_is_over_at_that_point_is_not_forked(world: World) -> None:
    last = len(world.events("origin")) - 1
    with pytest.raises(UsageError, match="nothing is left to do"):
        await world.agent.fork("origin", at=f"e{last}")


async def test_a_waiting_run_is_forked_before_its_decision(any_home: Home) -> None:
    paid: list[str] = []

    @tool(approval="always")
    def pay(key: str) -> str:
        """Pay a bill."""
        paid.append(key)
        return f"[{key}] paid"

    def script(view: RequestView) -> Turn:
        if "denied" in view.text or "paid" in view.text:
            return answer("denied" if "denied" in view.text else "paid")
        return Turn(calls=[call("pay", key="a")])

    agent = Agent(ScriptedClient(script), [pay], home=any_home)
    await agent.run("Pay", run_id="r")
    requested = [
        n for n, row in enumerate(open_store(any_home).rows("r")) if isinstance(row.event, ev.DecisionRequested)
    ]
    assert (await agent.resume("r", decisions={"r1": False})).answer == "denied"
    fork = await agent.fork("r", at=f"e{requested[0]}")
    assert (fork.status, [pending.id for pending in fork.waiting], paid) == ("waiting", ["r1"], [])
    assert (await agent.resume(fork.run_id, decisions={"r1": True})).answer == "paid"
    assert first_difference(*(list(open_store(any_home).rows(name)) for name in ("r", fork.run_id))) is not None


async def test_a_fork_after_a_decision_asks_again(home: Path) -> None:
    paid: list[str] = []

    @tool(approval="always")
    def pay(key: str) -> str:
        """Pay a bill."""
        paid.append(key)
        return f"[{key}] paid"

    script = lambda view: answer("paid") if "] paid" in view.text else Turn(calls=[call("pay", key="a")])  # noqa: E731
    agent = Agent(ScriptedClient(script), [pay], home=home)
    await agent.run("Pay", run_id="r")
    await agent.resume("r", decisions={"r1": True})
    rows = list(open_store(home).rows("r"))
    (decided,) = [n for n, row in enumerate(rows) if isinstance(row.event, ev.DecisionMade)]
    (begun,) = [n for n, row in enumerate(rows) if isinstance(row.event, ev.ToolStarted)]
    for _ in range(3):
        fork = await agent.fork("r", at=f"e{decided}")
        assert (fork.status, [pending.id for pending in fork.waiting]) == ("waiting", ["r1"])
    assert (await agent.fork("r", at=f"e{begun}")).answer == "paid", "the result of the call belongs to the prefix"
    assert paid == ["a"]


async def test_a_sub_agent_in_the_prefix_is_not_run_again(any_home: Home) -> None:
    asked: list[str] = []

    def clerk_script(view: RequestView) -> Turn:
        asked.append("clerk")
        return answer("[a] settled")

    def script(view: RequestView) -> Turn:
        asked.append("main")
        return answer("done") if "settled" in view.text else Turn(calls=[call("clerk", task="settle a")])

    clerk = Agent(ScriptedClient(clerk_script), home=any_home).as_tool("clerk", "Settles a bill.")
    agent = Agent(ScriptedClient(script), [clerk], home=any_home)
    first = await agent.run("Settle", run_id="r")
    within = [n for n, row in enumerate(open_store(any_home).rows("r")) if row.event.agent != "main"]
    for at in (2, f"e{within[1]}"):
        asked.clear()
        fork = await agent.fork("r", at=at)
        assert (fork.answer, asked, fork.usage.requests) == ("done", ["main"], first.usage.requests)
        assert first_difference(*(list(open_store(any_home).rows(name)) for name in ("r", fork.run_id))) is None


def test_the_command_line_forks_and_compares(home: Path) -> None:
    def once(view: RequestView) -> Turn:
        told = [m for m in view.messages if m["role"] == "tool"]
        if "Answer five" in view.text:
            return answer("5")
        return answer(str(told[-1]["content"])) if told else Turn(calls=[call("calculate", expression="2+2")])

    with serve_script(once, record=False) as server:
        model = ["-m", "openai:scripted", "--base-url", server.base_url, "--dialect", "function_call"]
        origin = here("run", "What is 2+2?", *model, "--json").json["run_id"]
        same = here("runs", "fork", origin, "--at", "2", "--json")
        assert (same.code, same.json["answer"]) == (0, "4")
        assert here("runs", "diff", origin, same.json["run_id"]).out == "The runs did the same.\n"
        other = here("runs", "fork", origin, "--set-result", "r1=7", "--json").json
        assert other["answer"] == "7"
        noted = here("runs", "fork", origin, "--at", "2", "--note", "Answer five.", "--json").json
        assert noted["answer"] == "5"
        done = here("runs", "diff", origin, other["run_id"])
        assert (done.code, done.out.splitlines()[0]) == (1, "turn 1: ToolFinished: record")
        assert here("runs", "diff", origin, noted["run_id"], "--json").json["difference"]["field"] == "note"
        for options, message in (
            (["--at", "9"], "has no turn 9"),
            (["--set-result", "r1"], "must be HANDLE=JSON"),
            (["--set-result", "r1=text"], "is not JSON"),
            ([], "Say where to fork"),
        ):
            wrong = here("runs", "fork", origin, *options)
            assert (wrong.code, message in wrong.err) == (2, True)
