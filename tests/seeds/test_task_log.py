"""The log of a task for people: made from a journal, or step by step; saved whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout import Agent, TaskLog, tool
from closeout.compat.task_log import StepLog
from closeout.journal import events as ev
from closeout.journal.store import Row
from closeout.testing import ScriptedClient, answer, call, say


def names(log: TaskLog) -> list[str]:
    return [step.name for step in log.step_logs]


async def a_run() -> TaskLog:
    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return "known"

    script = [say(""), call("look", key="a"), answer("42")]
    result = await Agent(ScriptedClient(script), [look], home=False).run("What?", task_id="t1", ground_truth="42")
    return result.task_log


async def test_a_task_log_covers_a_run_from_start_to_end() -> None:
    log = await a_run()
    assert (log.status, log.task_id, log.input, log.ground_truth, log.final_boxed_answer) == (
        "answered", "t1", "What?", "42", "42",
    )  # fmt: skip
    assert names(log) == [
        "Main Agent | Start", "Main Agent | Attempt 0", "Main Agent | Model reply 0", "Main Agent | Rollback of turn 0",
        "Main Agent | Model reply 1", "Main Agent | Tool Call r1", "Main Agent | Tool Result r1",
        "Main Agent | Model reply 2", "Main Agent | End of attempt 0", "Main Agent | End",
    ]  # fmt: skip
    assert log.start_time <= log.end_time
    assert {step.level for step in log.step_logs} == {"info", "warning"}


async def test_the_ground_truth_is_never_shown_to_the_model() -> None:
    client = ScriptedClient([answer("1")])
    await Agent(client, home=False).run("What?", ground_truth="the secret truth")
    assert "secret truth" not in str(client.requests)


async def test_what_a_run_does_not_know_of_its_task_stays_as_the_log_was_made() -> None:
    log = TaskLog(task_id="t1", ground_truth="42")
    await Agent(ScriptedClient([answer("42")]), home=False).run("What?", listeners=[log])
    assert (log.task_id, log.input, log.ground_truth) == ("t1", "What?", "42")


def test_sub_agents_are_named_by_their_path() -> None:
    rows = [Row(0, 0.0, ev.AttemptStarted("main/r4:clerk", 1))]
    assert names(TaskLog.of(rows)) == ["r4:clerk | Attempt 1"]


def test_a_resumed_run_is_running_again() -> None:
    ended = ev.RunEnded("main", "failed", "model_failed", error="gone")
    log = TaskLog.of([Row(0, 1.0, ended), Row(1, 2.0, ev.RunResumed("main", 1.0))])
    assert (log.status, log.end_time) == ("running", "")


def test_steps_are_taken_with_any_level_and_written_on() -> None:
    written: list[StepLog] = []
    log = TaskLog(writer=written.append)
    log.log_step("ERROR", "step", "message", {"a": 1})
    log.log_step("loud", "step", "message")
    assert [step.level for step in log.step_logs] == ["error", "info"]
    assert written == log.step_logs


TEXT = st.text(max_size=30) | st.just("长\ud800\x00")


@settings(max_examples=40)
@given(st.lists(st.tuples(TEXT, TEXT, st.dictionaries(TEXT, TEXT | st.integers() | st.none(), max_size=3)), max_size=5))
def test_a_log_survives_being_written_and_read(steps: list[tuple[str, str, dict[str, Any]]]) -> None:
    log = TaskLog(task_id="t", input="what?")
    for name, message, metadata in steps:
        log.log_step("info", name, message, metadata)
    assert TaskLog.from_dict(log.to_dict()) == log
    read = json.loads(log.to_json())
    assert [step["name"] for step in read["step_logs"]] == [n.encode("utf-8", "replace").decode() for n, _, _ in steps]


def test_keys_of_later_versions_are_left_out() -> None:
    log = TaskLog.from_dict(
        {"task_id": "t", "later": 1, "step_logs": [{"level": "info", "name": "n", "message": "m", "x": 2}]}
    )
    assert (log.task_id, names(log)) == ("t", ["n"])


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    log = TaskLog(input=Path("some/file"))
    assert json.loads(log.to_json())["input"] == str(Path("some/file"))


def test_a_log_is_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "logs" / "task.json"
    log = TaskLog(task_id="first")
    assert log.save(target) == target
    assert json.loads(target.read_text("utf-8"))["task_id"] == "first"

    def full(*_: Any, **__: Any) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(TaskLog, "to_json", full)
    with pytest.raises(OSError, match="disk full"):
        log.save(target)
    assert json.loads(target.read_text("utf-8"))["task_id"] == "first"
    assert [path.name for path in target.parent.iterdir()] == ["task.json"], "nothing is left behind"
