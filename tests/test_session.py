"""A conversation: each message knows those before it, also in another process; what failed is not part of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import DecisionRefused, RunNotFound, UsageError
from closeout.journal.events import ModelReplied
from closeout.journal.store import open_store
from closeout.messages import Capabilities
from closeout.testing import RequestView, ScriptedClient, answer, call, serve_script


@tool(read_only=True)
def weight(animal: str) -> str:
    """Look up a weight."""
    return f"a {animal} weighs {len(animal)} t"


def talk(view: RequestView) -> Any:
    """Look an animal up, then say what the user said so far."""
    said = [message["content"] for message in view.messages if message.get("role") == "user"]
    if said[-1] == "And a whale?" and "whale weighs" not in view.text:
        return call("weight", animal="whale")
    return answer(" | ".join(said))


def agent_for(script: Any = talk, **options: Any) -> Agent[Any]:
    return Agent(ScriptedClient(script, by=lambda view: ""), [weight], **options)


async def test_each_message_knows_those_before_it() -> None:
    agent = agent_for()
    session = agent.session("zoo")
    assert (await session.run("Hello")).answer == "Hello"
    result = await session.run("And a whale?")
    assert result.answer == "Hello | And a whale?"
    assert [message.role for message in session.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.messages == result.messages
    assert [record.run_id for record in session.runs] == ["zoo.1", "zoo.2"]


async def test_a_request_extends_the_last_one_of_the_message_before() -> None:
    with serve_script(talk, by=lambda view: "") as server:
        agent = Agent("openai:scripted", [weight], base_url=server.base_url, api_key="key")
        session = agent.session()
        for text in ("Hello", "And a whale?", "Thanks"):
            await session.run(text)
        sent = [request.json["messages"] for request in server.requests if request.body]
    assert len(sent) == 4
    for before, after in itertools.pairwise(sent):
        assert after[: len(before)] == before


@pytest.mark.usefixtures("any_home")
async def test_the_same_id_continues_the_conversation() -> None:
    await agent_for().session("zoo").run("Hello")
    again = agent_for().session("zoo")
    assert [message.text for message in again.messages if message.role == "user"] == ["Hello"]
    assert (await again.run("Still there?")).answer == "Hello | Still there?"
    assert (await agent_for().session("zoo2").run("Who?")).answer == "Who?"
    assert (await agent_for().session().run("New")).answer == "New"


async def test_a_conversation_may_start_from_messages_and_live_in_memory() -> None:
    session = agent_for(home=False).session(history=[{"role": "user", "content": "Before"}])
    await session.run("Now")
    assert (await session.run("Then")).answer == "Before | Now | Then"
    assert session.runs == []


async def test_a_failed_or_cancelled_message_is_not_part_of_it() -> None:
    begun = asyncio.Event()

    def script(view: RequestView) -> Any:
        if view.last == "Fail":
            return ConnectionError("no server")
        return call("wait") if view.last == "Wait" else talk(view)

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(600)
        return ""

    session = Agent(ScriptedClient(script, by=lambda view: ""), [wait]).session("zoo")
    await session.run("Hello")
    assert (await session.run("Fail")).status == "failed"
    waiting = asyncio.ensure_future(session.run("Wait"))
    await begun.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await session.run("Again")).answer == "Hello | Again"
    assert [record.status for record in session.runs] == ["answered", "failed", "cancelled", "answered"]


async def test_the_last_message_can_be_resumed() -> None:
    down = [True]

    def script(view: RequestView) -> Any:
        return ConnectionError("no server") if view.last == "Fail" and down.pop() else talk(view)

    session = agent_for(script).session("zoo")
    with pytest.raises(RunNotFound, match="nothing to resume"):
        await session.resume()
    await session.run("Hello")
    await session.run("Fail")
    down.append(False)
    assert (await session.resume()).answer == "Hello | Fail"
    assert (await session.run("Next")).answer == "Hello | Fail | Next"
    with pytest.raises(RunNotFound, match="nothing to resume"):
        await session.resume()


async def test_a_message_that_is_resumed_after_another_one_was_answered_joins_the_conversation() -> None:
    down = [True]

    def script(view: RequestView) -> Any:
        if view.last == "Ox?" and down:
            return ConnectionError("no server")
        return talk(view)

    agent = agent_for(script)
    session = agent.session("zoo")
    await session.run("Hello")
    assert (await session.run("Ox?")).status == "failed"
    assert (await session.run("Next")).answer == "Hello | Next"
    down.clear()
    await agent.resume("zoo.2")
    for each in (session, agent.session("zoo")):
        assert [message.text for message in each.messages if message.role == "user"] == ["Hello", "Next", "Ox?"]
    assert (await session.run("Last")).answer == "Hello | Next | Ox? | Last"
    assert (await agent.session("zoo").run("End")).answer == "Hello | Next | Ox? | Last | End"


@pytest.mark.usefixtures("any_home")
async def test_a_message_that_waits_for_a_decision_stays_in_the_conversation() -> None:
    refunded: list[int] = []

    @tool(approval="always")
    def refund(amount: int) -> str:
        """Refund money."""
        refunded.append(amount)
        return f"refunded {amount}"

    def script(view: RequestView) -> Any:
        return talk(view) if "refunded" in view.text or view.last != "Refund" else call("refund", amount=5)

    agent = Agent(ScriptedClient(script, by=lambda view: ""), [refund])
    session = agent.session("zoo")
    assert (await session.run("Refund")).status == "waiting"
    for each in (session, agent.session("zoo")):
        with pytest.raises(DecisionRefused, match=r"closeout approve zoo\.1"):
            await each.run("And now?")
    assert (await session.resume(decisions={"r1": True})).answer == "Refund"
    result = await session.run("And now?")
    assert (result.answer, refunded) == ("Refund | And now?", [5])
    assert "refunded 5" in str(result.messages)


async def test_a_name_of_a_user_is_never_taken_for_a_run_or_a_part_of_another_session() -> None:
    agent = agent_for()
    await agent.session("ann").run("My PIN is 1234.")
    await agent.run("A secret", run_id="bob")
    for name in ("ann.1", "bob", "ann.", "a"):
        session = agent.session(name)
        assert (session.runs, session.messages) == ([], ())
        assert (await session.run("Hi")).answer == "Hi"
    assert len(agent.session("ann").runs) == 1


async def test_the_id_of_a_run_continues_with_that_run() -> None:
    first = await agent_for().run("Hello")
    assert (await agent_for().session(first.run_id).run("Again")).answer == "Hello | Again"


async def test_messages_sent_at_once_are_answered_in_turn() -> None:
    session, other = agent_for().session("zoo"), agent_for().session("zoo")
    results = await asyncio.gather(*(each.run(f"{n}") for n, each in enumerate((session, session, other, other))))
    assert sorted(len(result.messages) for result in results) == [2, 4, 6, 8]
    assert len(session.messages) == len(other.messages) == 8


async def test_a_message_can_be_streamed() -> None:
    session = agent_for().session("zoo")
    stream = session.stream("Hello")
    kinds = {type(event) async for event in stream}
    assert ModelReplied in kinds
    assert stream.result.answer == "Hello"
    assert len(session.messages) == 2


async def test_a_long_conversation_loses_its_oldest_messages_rarely() -> None:
    client = ScriptedClient(talk_briefly, by=lambda view: "", capabilities=Capabilities(max_context=4000, known=True))
    session = Agent(client).session("zoo")
    for number in range(40):
        await session.run(f"Message {number}: " + "word " * 60)
    sizes = [len(request.messages) for request in client.requests]
    drops = [number for number, (a, b) in enumerate(itertools.pairwise(sizes)) if b < a]
    assert 1 <= len(drops) <= 6, "many messages leave at once, so that the cached prefix is kept between"
    assert all("Message 39" in message.text for message in client.requests[-1].messages[-1:])
    assert len(session.messages) < 80


def talk_briefly(view: RequestView) -> Any:
    return answer("yes")


@pytest.mark.parametrize("options", [{"history": []}, {"run_id": "mine"}])
async def test_a_session_sets_history_and_run_id_itself(options: Any) -> None:
    with pytest.raises(UsageError, match="A session sets"):
        await agent_for().session("zoo").run("Hello", **options)


@pytest.mark.parametrize("name", ["a\nb", 5, "x" * 300])
def test_an_unusable_id_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="session_id must be a short text"):
        agent_for().session(name)


async def test_a_key_of_the_same_name_does_not_disturb_it() -> None:
    await agent_for().run_many(["Hello", "And a whale?"], key="zoo")
    session = agent_for().session("zoo")
    assert session.runs == []
    assert (await session.run("Hi")).answer == "Hi"


CHAT = """
import os, signal, sys
from closeout import Agent, tool

@tool(read_only=True)
def weight(animal: str) -> str:
    "Look up a weight."
    os.kill(os.getpid(), signal.SIGKILL)

session = Agent("openai:scripted", [weight], base_url=sys.argv[1], api_key="key").session("zoo")
session.run_sync("Hello")
session.run_sync("And a whale?")
"""


@pytest.mark.skipif(not hasattr(os, "kill") or sys.platform == "win32", reason="kills with SIGKILL")
async def test_a_conversation_survives_a_kill(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve_script(talk, by=lambda view: "", record=False) as server:
        process = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", CHAT, server.base_url], capture_output=True, check=False
        )
        assert process.returncode == -9, process.stderr
        assert [record.status for record in open_store(home).runs()] == ["interrupted", "answered"]
        agent = Agent("openai:scripted", [weight], base_url=server.base_url, api_key="key")
        session = agent.session("zoo")
        assert (await session.run("Next")).answer == "Hello | Next"
        assert "Message zoo.2 was interrupted, so the conversation continues without it" in caplog.text
        result = await session.resume()
        assert (result.run_id, result.answer) == ("zoo.2", "Hello | And a whale?")
        assert [each.text for each in session.messages if each.role == "user"] == ["Hello", "Next", "And a whale?"]
