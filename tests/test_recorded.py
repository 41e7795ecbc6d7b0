"""A recorded run as a fixture: its model played back, an agent held against the record, and runs as files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import JournalDamaged, JournalError, RateLimited, RunNotFound, UsageError
from closeout.journal import events as ev
from closeout.messages import Message, ModelRequest
from closeout.testing import RecordedClient, ScriptedClient, Turn, answer, call, export_run, recorded, say

DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml")


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"{key} is {len(key)}"


@tool(name="look", read_only=True)
def look_otherwise(key: str) -> str:
    """Look up a key."""
    return f"I know nothing of {key}, and say so at length"


def agent(*script: Any, **options: Any) -> Agent:
    settings = {"dialect": "function_call", "name": "x", **options}
    return Agent(ScriptedClient(script), settings.pop("tools", [look]), **settings)


TURNS = (say(""), Turn("I look.", calls=[call("look", key="a"), call("look", Key="bb")]), answer("3"))


# ------------------------------------------------------------------------------------------------ following


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_unchanged_agent_follows_its_record_without_a_model(dialect: str) -> None:
    first = await agent(*TURNS, dialect=dialect).run("What?")
    silent = agent(dialect=dialect)
    result = await recorded(first.run_id).follow(silent)
    assert (result.answer, result.turns, result.rollbacks) == (first.answer, first.turns, first.rollbacks)
    assert result.usage == first.usage
    assert silent.plan().client.requests == []  # type: ignore[attr-defined]


async def test_a_changed_prompt_departs_at_the_first_request_and_says_what_changed() -> None:
    first = await agent(*TURNS).run("What?")
    with pytest.raises(AssertionError) as raised:
        await recorded(first.run_id).follow(agent(instructions="Be brief."))
    assert f"departs from run {first.run_id} at main: ModelRequested 0: " in str(raised.value)
    assert "What differs: instructions differ" in str(raised.value)


async def test_an_agent_that_would_stop_earlier_departs() -> None:
    first = await agent(call("look", key="a"), call("look", key="b"), answer("3")).run("What?")
    with pytest.raises(AssertionError, match=r"main: (ModelRequested|AttemptEnded)"):
        await recorded(first.run_id).follow(agent(max_turns=1))


async def test_another_answer_contract_departs_at_the_end() -> None:
    class Shouting:
        finish_prefix = "\\boxed{"

        def instruction(self) -> str:
            return original.instruction()

        def finishing(self) -> str:
            return original.finishing()

        def constraint(self) -> None:
            return None

        def read(self, text: str) -> Any:
            from dataclasses import replace

            found = original.read(text)
            return replace(found, text=found.text + "!") if found.ok else found

    from closeout import Boxed

    original = Boxed()
    first = await agent(answer("3"), answer=original).run("What?")
    with pytest.raises(AssertionError, match=r"answer was '3', now '3!'"):
        await recorded(first.run_id).follow(agent(answer=Shouting()))


async def test_an_interrupted_run_is_followed_to_the_end_of_its_record() -> None:
    first = await agent(call("look", key="a"), RateLimited("down")).run("What?")
    assert first.status == "failed"
    await recorded(first.run_id).follow(agent())


def test_following_works_without_an_event_loop() -> None:
    first = agent(*TURNS).run_sync("What?")
    assert recorded(first.run_id).follow_sync(agent()).answer == "3"


async def test_a_record_with_sub_agents_and_files_is_followed(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("line\n" * 40_000)
    script = {
        "find": [call("look", key="a"), answer("1")],
        "Which": [call("clerk", task="find it"), call("read_result", handle="file1", offset=9000), answer("7")],
    }

    def chief() -> Agent:
        clerk = Agent(ScriptedClient(script), [look], dialect="function_call").as_tool("clerk", "Finds.")
        return Agent(ScriptedClient(script, by="question"), [clerk], dialect="function_call")

    first = await chief().run("Which?", files=[tmp_path / "long.txt"])
    (tmp_path / "long.txt").unlink()
    assert (await recorded(first.run_id).follow(chief())).answer == "7"


# ------------------------------------------------------------------------------------------------ the model


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_recorded_model_repeats_its_replies(dialect: str, stream: bool) -> None:
    first = await agent(*TURNS, dialect=dialect, stream=stream).run("What?")
    client = recorded(first.run_id).client(strict=True)
    again = await Agent(client, [look], name="x", stream=stream).run("What?")
    assert (again.answer, again.turns, again.usage) == (first.answer, first.turns, first.usage)
    assert len(client.requests) == first.usage.requests


async def test_the_recorded_model_accepts_other_tool_results_unless_strict() -> None:
    first = await agent(call("look", key="a"), answer("1")).run("What?")
    record = recorded(first.run_id)
    result = await Agent(record.client(), [look_otherwise], name="x").run("What?")
    assert result.answer == "1"
    result = await Agent(record.client(strict=True), [look_otherwise], name="x").run("What?")
    assert result.status == "failed"
    assert re.search(r"at main: ModelRequested 1: 3 messages of \d+ characters then, 3 of \d+ now", result.error)


async def test_agents_of_one_run_share_the_recorded_model() -> None:
    both = Turn(calls=[call("clerk", task="count apples"), call("clerk", task="count the many pears")])
    script = {
        "How many": [both, answer("7")],
        "apples": [call("look", key="apples"), answer("3 apples")],
        "pears": [call("look", key="pears of all kinds"), answer("4 pears")],
    }

    def chief(client: Any) -> Agent:
        clerk = Agent(client, [look], dialect="function_call").as_tool("clerk", "Counts.")
        return Agent(client, [clerk], dialect="function_call")

    first = await chief(ScriptedClient(script, by="question")).run("How many?")
    client = recorded(first.run_id).client(strict=True)
    assert (await chief(client).run("How many?")).answer == first.answer == "7"
    assert len(client.requests) == 6


async def test_failures_are_repeated_too_and_a_request_after_the_end_is_an_error() -> None:
    first = await agent(RateLimited("slow down", status=429)).run("What?")
    client = recorded(first.run_id).client()
    assert isinstance(client, RecordedClient)
    request = ModelRequest(messages=[Message(role="user", content="What?")])
    with pytest.raises(RateLimited, match="slow down"):
        await client.complete(request)
    with pytest.raises(AssertionError, match="no recorded reply to request 2"):
        await client.complete(request)


# ------------------------------------------------------------------------------------------------ files


async def test_an_exported_run_is_the_same_record(tmp_path: Path) -> None:
    first = await agent(*TURNS).run("What? 字 \ud800", origin={"config": ["llm.api_key=sk-secret"]})
    path = export_run(first.run_id, tmp_path / "runs" / "look.jsonl")
    kept, loaded = recorded(first.run_id), recorded(path)
    assert loaded.run_id == first.run_id
    assert loaded.events[1:] == kept.events[1:]
    assert [row.time for row in loaded.rows] == [row.time for row in kept.rows]
    assert (loaded.task, loaded.answer) == ("What? 字 \ud800", "3")
    text = path.read_text("utf-8")
    assert "sk-secret" not in text, "what one machine was told is not for others"
    assert all(json.loads(line) for line in text.splitlines())
    assert [each.name for each in path.parent.iterdir()] == ["look.jsonl"]
    assert (await loaded.follow(agent())).answer == "3"


async def test_a_home_can_be_named(tmp_path: Path) -> None:
    first = await agent(answer("1"), home=tmp_path / "elsewhere").run("What?")
    with pytest.raises(RunNotFound):
        recorded(first.run_id)
    record = recorded(first.run_id, home=tmp_path / "elsewhere")
    assert record.answer == "1"
    assert isinstance(record.ended, ev.RunEnded)
    assert export_run(first.run_id, tmp_path / "run.jsonl", home=tmp_path / "elsewhere").is_file()


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        ("", JournalDamaged, "contains no events"),
        ("not json\n", JournalDamaged, "cannot read line 1"),
        ('{"a": 1}\n', JournalDamaged, "is not an exported run"),
        ('{"format": "closeout-run", "version": 99, "run_id": "r"}\n', JournalError, "newer Closeout"),
        ('{"format": "closeout-run", "version": 1, "run_id": "r"}\n{"seq": 0}\n', JournalDamaged, "line 2"),
        ("[" * 100_000, JournalDamaged, "line 1"),
        (b"\xff\xfe\x00", JournalDamaged, "cannot read"),
    ],
)
def test_a_file_that_is_not_an_exported_run_is_an_error(
    content: str | bytes, error: type[Exception], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(error, match=says):
        recorded(path)


@pytest.mark.parametrize("name", ["gone.jsonl", "runs/gone", Path("gone")])
def test_a_missing_file_is_not_taken_for_a_run_id(name: Any) -> None:
    with pytest.raises(UsageError, match="No such file"):
        recorded(name)
