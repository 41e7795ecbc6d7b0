"""A run as structured logs: one JSON object a line and event, stable fields, no content unasked."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import RateLimited
from closeout.journal import events as ev
from closeout.observe.logs import _CONTENT, _FIELDS, JsonLogListener
from closeout.testing import ScriptedClient, answer, call, say

SECRET = "the-secret-word"


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    if key == "lost":
        raise LookupError("No key lost.")
    return f"{key} is {SECRET}"


def agent(*script: Any) -> Agent:
    return Agent(ScriptedClient(script), [look], name="x", dialect="function_call")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "closeout.run"]


async def test_each_event_is_a_line_that_says_whose_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "closeout.run")
    result = await agent(call("look", key="a"), answer("1")).run("What?", listeners=[JsonLogListener()])
    logged = lines(caplog)
    assert [line["event"] for line in logged] == [
        "RunStarted", "AttemptStarted", "ModelRequested", "ModelReplied", "ToolStarted", "ToolFinished",
        "TurnAccepted", "ModelRequested", "ModelReplied", "AttemptEnded", "RunEnded",
    ]  # fmt: skip
    assert {line["run_id"] for line in logged} == {result.run_id}
    assert {line["agent"] for line in logged} == {"main"}
    assert all(line["time"].endswith("+00:00") for line in logged)
    replied = next(line for line in logged if line["event"] == "ModelReplied")
    assert replied["usage"]["output_tokens"] > 0
    assert logged[0]["model"] == "scripted"
    assert logged[-1] | {"status": "answered", "stop_reason": "answered", "error": ""} == logged[-1]


async def test_intents_outcomes_and_problems_have_different_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "closeout.run")
    await agent(say(""), call("look", key="a"), RateLimited("down")).run("What?", listeners=[JsonLogListener()])
    levels = {json.loads(r.getMessage())["event"]: r.levelname for r in caplog.records if r.name == "closeout.run"}
    assert levels["ModelRequested"] == levels["ToolStarted"] == "DEBUG"
    assert levels["ModelReplied"] == levels["ToolFinished"] == "INFO"
    assert levels["ModelFailed"] == levels["TurnRolledBack"] == "WARNING"
    assert levels["RunEnded"] == "ERROR"


async def test_a_failed_call_is_a_warning_that_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "closeout.run")
    await agent(call("look", key="lost"), answer("1")).run("What?", listeners=[JsonLogListener()])
    (failed,) = [each for each in caplog.records if each.levelname == "WARNING" and each.name == "closeout.run"]
    assert "No key lost." in json.loads(failed.getMessage())["error"]


async def test_nothing_that_was_said_is_logged_unasked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "closeout.run")
    script = (call("look", key=SECRET), answer(SECRET, f"It is {SECRET}."))
    await agent(*script).run(f"What is {SECRET}?", listeners=[JsonLogListener()])
    assert lines(caplog)
    assert SECRET not in caplog.text
    await agent(*script).run(f"What is {SECRET}?", listeners=[JsonLogListener(capture_content=True)])
    content = {line["event"]: line for line in lines(caplog)}
    assert content["RunStarted"]["task"] == f"What is {SECRET}?"
    assert json.loads(content["ToolStarted"]["arguments"]) == {"key": SECRET}
    assert content["RunEnded"]["answer"] == SECRET


async def test_what_a_resumed_run_takes_from_its_record_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    await agent(call("look", key="a"), RateLimited("down")).run("What?", run_id="cut")
    caplog.set_level(logging.DEBUG, "closeout.run")
    result = await agent(answer("1")).resume("cut", listeners=[JsonLogListener()])
    assert result.answer == "1"
    assert [line["event"] for line in lines(caplog)] == [
        "RunResumed", "ModelRequested", "ModelReplied", "AttemptEnded", "RunEnded",
    ]  # fmt: skip


def test_the_table_names_fields_that_the_events_have() -> None:
    for table in (_FIELDS, _CONTENT):
        for kind, names in table.items():
            assert set(names) <= set(kind.names), kind
    kinds = {k for k in vars(ev).values() if isinstance(k, type) and issubclass(k, ev.Event)} - {ev.Event, ev.Unknown}
    assert kinds == set(_FIELDS), "a new event needs a line in the table"
