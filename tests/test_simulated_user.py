"""Users that a model plays: they know their part, remember what was said, and are asked once after a crash."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent
from closeout.errors import UsageError
from closeout.evaluate import EvalTask, SimulatedUser, evaluate
from closeout.testing import ScriptedClient, answer, call, once, say


def agent_with(user: SimulatedUser, home: Path, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    script = [
        call("say_to_user", message="How can I help?"),
        call("say_to_user", message="Which order?"),
        call("say_to_user", message="Done. Anything else?"),
        call("say_to_user", message="Hello?"),
        answer("done"),
    ]
    client = ScriptedClient(script)
    tools = [user.tool("You are Ann 安. Return order A1.", **options)]
    return Agent(client, tools, home=home), client


def test_a_user_plays_a_part_and_remembers_what_was_said(home: Path) -> None:
    part = ScriptedClient([say("I want to return something."), say("A1"), say("Bye ###OVER###")])

    def agent_for(task: EvalTask) -> Agent[Any]:
        return agent_with(SimulatedUser(part, home=home), home)[0]

    tasks = [{"id": "a", "question": "A user is waiting.", "answer": "done"}]

    def ended(attempt: Any) -> bool:
        return [reply for _, reply in attempt.state.values()] == ["I want to return something.", "A1", "###OVER###"]

    report = asyncio.run(evaluate(agent_for, tasks, scorer=ended, name="x"))
    assert report.totals.correct == 1
    assert len(part.requests) == 3  # nothing is asked after the end
    last = part.requests[-1].messages
    assert "You are Ann 安. Return order A1." in last[0]["content"]
    assert [(each["role"], each["content"]) for each in last[1:]] == [
        ("user", "How can I help?"),
        ("assistant", "I want to return something."),
        ("user", "Which order?"),
        ("assistant", "A1"),
        ("user", "Done. Anything else?"),
    ]


def test_a_resumed_trial_does_not_ask_the_user_again(home: Path) -> None:
    script = [say("I want to return something."), say("A1"), say("###OVER###")]
    part = ScriptedClient(script, misbehave=once("hang", at=2))
    user = SimulatedUser(part, home=home)
    agent, _ = agent_with(user, home)

    async def work() -> Any:
        run = asyncio.ensure_future(agent.run("A user is waiting.", run_id="r"))
        while len(part.requests) < 2:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        return await agent.resume("r")

    result = asyncio.run(work())
    assert result.answer == "done"
    said = [json.dumps(request.messages[-1]["content"]) for request in part.requests]
    assert said[1] == said[2]  # the one in flight is asked again
    assert len({*said}) == 3


def test_a_user_may_speak_first_and_leaves_at_last(home: Path) -> None:
    part = ScriptedClient([say("A1")] * 9)
    agent, client = agent_with(SimulatedUser(part, home=home, max_messages=2), home, opening="你好")
    assert asyncio.run(agent.run("A user is waiting.")).answer == "done"
    results = [m["content"] for m in client.requests[-1].messages if m["role"] == "tool"]
    assert results[0] == "你好"
    assert results[1] == "A1"
    assert all("ended the conversation" in each for each in results[2:])
    assert len(part.requests) == 1


def test_misuse_is_explained() -> None:
    with pytest.raises(UsageError, match="scenario"):
        SimulatedUser("openai:m", instructions="Play.")
    with pytest.raises(UsageError, match="at least 1"):
        SimulatedUser("openai:m", max_messages=0)


def test_programs_talk_to_a_user_and_other_tools_see_what_was_said(home: Path) -> None:
    def program(*messages: str) -> str:
        lines = [f"print(say_to_user(message={each!r}))" for each in messages]
        return "```python\n" + "\n".join(lines) + "\n```"

    async def talk() -> Any:
        part = ScriptedClient([say("A return."), say("A1"), say("Bye ###OVER###")])
        script = [program("How can I help?", "Which order?"), program("Done?"), "```python\nfinal_answer('done')\n```"]
        user = SimulatedUser(part, home=home)
        agent = Agent(ScriptedClient(script), [user.tool("Return order A1.")], dialect="code", home=home)
        result = await agent.run("A user is waiting.", run_id="talk")
        return result, part, agent

    result, part, agent = asyncio.run(talk())
    assert result.answer == "done"
    assert [pair[1] for pair in result.state.values()] == ["A return.", "A1", "###OVER###"]
    assert [len(request.messages) for request in part.requests] == [2, 4, 6]
    assert result.telemetry.by_tool["say_to_user"]["calls"] == 3
    store = agent.store()
    assert store is not None
    names = {record.run_id for record in store.runs(10)}
    assert names == {
        "talk",
        *(f"talk.say_to_user-{each}" for each in ("r1-program-r1", "r1-program-r2", "r2-program-r1")),
    }
