"""Sub-agents in the background: their caller goes on, is told when they have ended, and reads their reports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Flow, tool
from closeout.errors import ToolDefinitionError
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say
from journal_file import cuts

PAGES = {"canal": "The canal opened in 1832.", "bridge": "The bridge fell in 1907."}
START = Turn(calls=[call("reader", task="Read canal"), call("reader", task="Read bridge")])
WAIT = call("wait", handles=["r1", "r2"])
BOTH = f"r1: It says: {PAGES['canal']}\n\nr2: It says: {PAGES['bridge']}"


class World:
    """Readers that fetch a page each, once it is open, and pay for it."""

    def __init__(self, home: Path | bool = False, **fetching: Any) -> None:
        self.home = home
        self.fetching = fetching
        self.fetched: list[str] = []
        self.notes: list[str] = []
        self.begun = asyncio.Event()
        self.opened = {name: asyncio.Event() for name in PAGES}
        for each in self.opened.values():
            each.set()

    def agent(self, script: Any, **options: Any) -> Agent[Any]:
        @tool(**self.fetching)
        async def fetch(page: str) -> str:
            """Fetch a page."""
            await self.opened[page].wait()
            self.fetched.append(page)
            self.begun.set()
            return PAGES[page]

        @tool
        async def note(text: str) -> str:
            """Write a note down."""
            self.notes.append(text)
            return "noted"

        def read(view: RequestView) -> Turn:
            found = [page for page, text in PAGES.items() if text in view.text]
            if found or "fetch" in str(view.messages):
                return say(f"It says: {PAGES[found[0]]}" if found else "It is not known.")
            return call("fetch", page=view.question.split()[-1])

        reader = Agent(ScriptedClient(read), [fetch], home=False)
        tools = [reader.as_tool("reader", "Reads a page.", background=True), note]
        return Agent(ScriptedClient(script), tools, home=self.home, **options)


def script(view: RequestView) -> Turn:
    """Start both, write a note, wait, answer."""
    if "r1: It" in view.text:
        return answer("1832 and 1907" if BOTH in view.text else "one year")
    if "noted" in view.text:
        return Turn(calls=[WAIT])
    return Turn(calls=[call("note", text="Begun.")]) if "Started as r1" in view.text else START


def shown(agent: Agent[Any]) -> list[str]:
    client: Any = agent.plan().client
    return [message.text for message in client.requests[-1].messages if message.role in ("tool", "user")]


async def test_the_caller_goes_on_and_waits_for_the_reports() -> None:
    world = World()
    world.opened["canal"].clear()

    def opening(view: RequestView) -> Turn:
        if "noted" in view.text:
            world.opened["canal"].set()
        return script(view)

    agent = world.agent(opening)
    result = await agent.run("When?")
    assert (result.answer, world.notes) == ("1832 and 1907", ["Begun."])
    assert shown(agent)[1].startswith("Started as r1.")
    assert shown(agent)[-1] == BOTH
    order = [type(row.event).__name__ + row.event.key for row in result.read_rows() if row.event.agent == "main"]
    assert order.index("ToolStartedr3") < order.index("ToolFinishedr1"), "it worked meanwhile"


async def test_a_message_says_when_one_has_ended_and_the_caller_does_not_end_before() -> None:
    def script(view: RequestView) -> Turn:
        if "It says" in view.text:
            return answer("done")
        if "(reader) has ended" in view.text:
            return call("read_result", handle="r1")
        return say("I wait for r1.") if "Started" in view.text else call("reader", task="Read canal")

    agent = World().agent(script)
    result = await agent.run("When?")
    assert result.answer == "done"
    assert 'r1 (reader) has ended. wait(handles=["r1"]) returns its report.' in shown(agent)
    assert shown(agent)[-1] == f"It says: {PAGES['canal']}"
    (message,) = [row.event for row in result.read_rows() if isinstance(row.event, ev.MessageReceived)]
    assert message.by == "closeout"


@pytest.mark.parametrize("fetching", [{"read_only": True}, {"on_crash": "report"}])
async def test_killed_at_every_event_and_resumed_nothing_is_done_twice(tmp_path: Path, fetching: Any) -> None:
    whole = await World(tmp_path, **fetching).agent(script).run("When?", run_id="run")
    assert whole.answer == "1832 and 1907"
    for kept in cuts(tmp_path):
        rows = list(open_store(tmp_path).rows("run"))
        finished = {row.event.name for row in rows if isinstance(row.event, ev.ToolFinished)}
        pages = {json.loads(row.event.arguments)["page"]: row.event.agent for row in rows if _is(row, "fetch")}
        done = [row.event.agent for row in rows if isinstance(row.event, ev.ToolFinished) and row.event.name == "fetch"]
        recorded = {page for page, agent in pages.items() if agent in done}
        world = World(tmp_path, **fetching)
        result = await world.agent(script).resume("run")
        cut_off = {page for page in pages if page not in recorded} if fetching.get("on_crash") else set()
        assert sorted(world.fetched) == sorted(PAGES.keys() - recorded - cut_off), kept
        assert result.answer == ("one year" if cut_off else "1832 and 1907"), kept
        if "note" in finished:
            assert world.notes == [], kept


def _is(row: Any, name: str) -> bool:
    return isinstance(row.event, ev.ToolStarted) and row.event.name == name


async def test_a_replay_and_a_fork_do_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, read_only=True)
    agent = world.agent(script)
    whole = await agent.run("When?", run_id="run")
    forked = await agent.fork("run", at=2)
    assert forked.answer == whole.answer
    assert sorted(world.fetched) == sorted(PAGES)


async def test_limits_hold_for_all_together() -> None:
    @tool(read_only=True)
    def look(number: int) -> str:
        """Look a number up."""
        return f"Value {number}: " + "word " * 50

    reader = Agent(ScriptedClient(lambda view: call("look", number=len(view.messages))), [look])
    script = [START, WAIT, *[answer("enough")] * 3]
    for most in (6_000, 12_000):
        tools = [reader.as_tool("reader", "Reads.", background=True)]
        agent = Agent(ScriptedClient(script), tools, config={"agent": {"max_tokens": most}}, home=False)
        result = await agent.run("When?")
        assert most / 3 < result.usage.total_tokens <= most
        assert len({each.agent for each in result.usage_log}) == 3


async def test_flow_rules_see_what_they_have_read_once_the_caller_reads_it(tmp_path: Path) -> None:
    def script(view: RequestView) -> Turn:
        if "Not allowed" in view.text:
            return answer("refused")
        if "It says" in view.text:
            return call("note", text="After.")
        if "noted" in view.text:
            return Turn(calls=[WAIT])
        return Turn(calls=[call("note", text="Before.")]) if "Started as r1" in view.text else START

    def agent(world: World) -> Agent[Any]:
        return world.agent(script, flow=Flow(trusted=["note"], guard="refuse"))

    world = World(tmp_path, read_only=True)
    whole = await agent(world).run("When?", run_id="run")
    assert (whole.answer, world.notes) == ("refused", ["Before."])
    labels = {row.event.key: row.event.labels for row in whole.read_rows() if _finished_by_main(row)}
    assert labels == {"r1": ("untrusted",), "r2": ("untrusted",), "r3": ("trusted",), "r4": ("untrusted",)}
    for kept in cuts(tmp_path, 3):
        resumed = await agent(World(tmp_path, read_only=True)).resume("run")
        assert resumed.answer == "refused", kept


def _finished_by_main(row: Any) -> bool:
    return isinstance(row.event, ev.ToolFinished) and row.event.agent == "main"


async def test_one_that_waits_for_a_person_suspends_the_run_when_the_others_have_ended(tmp_path: Path) -> None:
    world = World(tmp_path, approval="always")
    agent = world.agent(script)
    waiting = await agent.run("When?", run_id="run")
    assert (waiting.status, world.notes, world.fetched) == ("waiting", ["Begun."], [])
    assert [each.id for each in waiting.waiting] == ["r1:reader/r1", "r2:reader/r1"] or len(waiting.waiting) == 2
    result = await agent.resume("run", decisions={each.id: True for each in waiting.waiting})
    assert (result.answer, sorted(world.fetched), world.notes) == ("1832 and 1907", ["bridge", "canal"], ["Begun."])


async def test_a_cancelled_run_cancels_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.opened["canal"].clear()
    running = asyncio.create_task(world.agent(script).run("When?", run_id="run"))
    await world.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.fetched == ["bridge"]
    assert [task for task in asyncio.all_tasks() if "BackgroundMiddleware" in repr(task)] == []


async def test_their_reports_are_no_evidence_but_what_they_have_read_is() -> None:
    quotes = [("r1", "The canal opened in 1832"), ("r3", "It says"), ("r2", "It says")]
    text = " ".join(f'[{handle}: "{words}"]' for handle, words in quotes)
    script = [START, WAIT, call("read_result", handle="r1"), say(text)]
    result = await World().agent(script).run("When?")
    found = [citation.source.handle if citation.source else "" for citation in result.citations]
    assert found == ["r1:reader/r1", "", ""]
    with pytest.raises(ToolDefinitionError, match="gives_answer"):
        Agent(ScriptedClient([])).as_tool("reader", "Reads.", background=True, gives_answer=True)


async def test_what_went_wrong_is_said() -> None:
    script = [
        call("wait", handles=["r7"]),
        call("reader", task="Read nothing"),
        call("wait", handles=["r2"]),
        answer("no"),
    ]
    agent = World().agent(script)
    result = await agent.run("When?")
    assert result.answer == "no"
    assert any("r7 does not work in the background. Nothing was started." in each for each in shown(agent))
    assert shown(agent)[-1] == "r2: It is not known."
