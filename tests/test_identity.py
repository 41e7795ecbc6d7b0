"""What finds a run again is all that decides its result: nobody gets another's answer, in whatever order they come."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.test_utils import make_mocked_request

import closeout
from closeout import Agent, File, Message, RunContext, tool
from closeout.errors import CloseoutError, ResumeRefused, SignalRefused, UsageError
from closeout.server.serve.client_request import RequestDeps
from closeout.server.serve.request_keys import request_key
from closeout.testing import RequestView, ScriptedClient, answer, call

charged: dict[str, str] = {}  # by run: the service knows a payment that is repeated after a crash


@tool(on_crash="rerun")
def charge(context: RunContext[str | None]) -> str:
    """Charge the monthly fee."""
    who = context.user or str(context.deps)
    assert charged.setdefault(context.run_id, who) == who
    return f"charged {who}"


def shop() -> Agent[Any, Any]:
    def script(view: RequestView) -> Any:
        return answer(view.last) if "charged" in view.text else call("charge")

    charged.clear()
    return Agent(ScriptedClient(script), [charge])


def of(user: str) -> dict[str, Any]:
    return {"task": "Charge the monthly fee.", "user": user}


async def answers(agent: Agent[Any, Any], tasks: list[Any], **options: Any) -> list[str | None]:
    return [result.answer for result in await agent.run_many(tasks, key="fees", **options)]


async def test_equal_tasks_of_several_users_keep_their_answers_in_any_order_and_after_any_loss() -> None:
    agent = shop()
    async for first in agent.map([of("ann"), of("bob")], limit=1, key="fees"):
        assert first.answer == "charged ann"
        break  # the process stops here
    assert await answers(agent, [of("bob"), of("ann")]) == ["charged bob", "charged ann"]
    assert await answers(agent, [of("bob")]) == ["charged bob"]
    assert Counter(charged.values()) == {"ann": 1, "bob": 1}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_random_batches_of_processes_that_die_charge_everybody_once_and_answer_each_with_their_own(
    tmp_path: Path,
) -> None:
    """bench/batches.py executes thousands."""
    batches = Path(__file__).parents[1] / "bench" / "batches.py"
    done = subprocess.run(
        [sys.executable, batches, "--batches", "5", "--folder", tmp_path], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


async def test_dependencies_have_no_identity_so_that_a_task_with_its_own_needs_a_name() -> None:
    agent = shop()
    with pytest.raises(UsageError, match=r"Task 0 has dependencies of its own.*Give it a task_id"):
        await agent.run_many([{"task": "Charge.", "deps": "shop a"}], key="k")
    with pytest.raises(UsageError, match=r"Task 1 differs .* at most in its dependencies.*Give each a task_id"):
        await agent.run_many([{**of("ann"), "deps": "a"}, {**of("ann"), "deps": "b"}], key="k", limit=1)
    named = [{"task": "Charge.", "deps": name, "task_id": name} for name in ("a", "b")]
    assert await answers(agent, named) == ["charged a", "charged b"]
    assert await answers(agent, named[::-1]) == ["charged b", "charged a"]
    assert await agent.run_many([{"task": "Charge.", "deps": "a"}])  # without a key every run is new


# The arguments that decide what a run does, with another value for each, and those that belong to the call alone.
CHANGES: dict[str, Any] = {
    "user": "bob",
    "history": [Message(role="user", content="Before.")],
    "state": {"seen": 1},
    "task_id": "other",
    "files": [File("note.txt", "other")],
    "work_files": [File("work.txt", "other")],
    "handed_to": ["clerk"],
    "history_labels": ["pages"],
    "temperature": 0,
}
OF_THE_CALL = {
    *("max_turns", "max_tokens", "max_seconds", "max_cost", "budget", "listeners", "origin", "ground_truth"),
    *("run_id", "deps"),
}

# Every public function that takes the name of a run, a batch, a conversation or a signal, and what keeps others out.
FINDS_AGAIN = {
    "Agent.run_once": "test_every_argument_that_decides_the_result_is_another_run_or_an_error",
    "Agent.map": "test_every_argument_that_decides_the_result_is_another_run_or_an_error",
    "Agent.run_many": "calls map",
    "Agent.run_many_sync": "calls map",
    "Agent.session": "test_a_session_of_another_user_or_with_another_history_is_not_opened",
    "Agent.leg": "test_a_leg_of_another_task_or_user_is_refused",
    "Agent.signal": "test_a_signal_of_the_same_id_is_the_same_signal",
}
BEGINS = {"Agent.run", "Agent.run_sync", "Agent.stream", "Agent.submit", "Agent.fork", "Orchestrator.run_main_agent"}
ACTS_ON_ONE = {
    *("Agent.cancel", "Agent.follow", "Agent.result", "Agent.resume", "Agent.resume_sync", "Agent.send"),
    "Agent.decide",
    "Agent.undo",  # once for each call of a run: tests/test_undo.py
    *("delete_data", "export_data", "find_data", "TaskLog.logs_run", "Config.get"),
}


def arguments_of(function: Any) -> set[str]:
    """The names of a function's arguments, those of its keywords' TypedDict included."""
    names = set()
    for name, parameter in inspect.signature(function).parameters.items():
        keywords = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        names |= {*function.__globals__[keywords[1]].__optional_keys__} if keywords else {name}
    return names


def test_no_function_that_takes_a_name_is_missing_here() -> None:
    found = set()
    for name in closeout.__all__:
        thing = getattr(closeout, name)
        members = inspect.getmembers(thing, callable) if inspect.isclass(thing) else [("", thing)]
        for member, function in members:
            if member.startswith("_") or not str(getattr(function, "__module__", "")).startswith("closeout"):
                continue
            with suppress(TypeError, ValueError, KeyError):  # KeyError: keywords of a tool's policy
                if arguments_of(function) & {"key", "run_id", "session", "session_id", "task_id", "new_run_id"}:
                    found.add(f"{name}.{member}" if member else name)
    assert found == {*FINDS_AGAIN, *BEGINS, *ACTS_ON_ONE}
    assert arguments_of(Agent.run) - {"self", "task"} == {*CHANGES, *OF_THE_CALL}


@pytest.mark.parametrize("name", CHANGES)
async def test_every_argument_that_decides_the_result_is_another_run_or_an_error(name: str) -> None:
    agent = shop()
    given = {"user": "ann", "files": [File("note.txt", "mine")]}
    first = await agent.run_once("Charge.", run_id="x", **given)
    assert (await agent.run_once("Charge.", run_id="x", **given)).answer == first.answer
    with pytest.raises(ResumeRefused, match="Use another name"):
        await agent.run_once("Charge.", run_id="x", **{**given, name: CHANGES[name]})
    with pytest.raises(ResumeRefused, match="another task"):
        await agent.run_once("Pay.", run_id="x", **given)
    if name != "handed_to":  # here nobody hands over
        mapped = [
            await agent.run_many([{"task": "Go.", **each}], key="m") for each in (given, {**given, name: CHANGES[name]})
        ]
        assert mapped[0][0].run_id != mapped[1][0].run_id or mapped[1][0].error_kind == "ResumeRefused"
    assert Counter(charged.values())["ann"] <= 3


async def test_dependencies_that_are_data_decide_the_result_unless_a_name_stands_for_them() -> None:
    agent = shop()
    assert (await agent.run_once("Charge.", run_id="x", deps="a")).answer == "charged a"
    assert (await agent.run_once("Charge.", run_id="x", deps="a")).answer == "charged a"
    with pytest.raises(ResumeRefused, match="Use another name"):
        await agent.run_once("Charge.", run_id="x", deps="b")
    named = await agent.run_once("Charge.", run_id="y", deps="token 1", task_id="a")
    assert (await agent.run_once("Charge.", run_id="y", deps="token 2", task_id="a")).answer == named.answer


async def test_the_right_answer_for_graders_is_that_of_the_call() -> None:
    agent = shop()
    await agent.run_once("Charge.", run_id="x", user="ann", ground_truth="wrong")
    assert (await agent.run_once("Charge.", run_id="x", user="ann", ground_truth="right")).ground_truth == "right"


async def test_a_name_that_exists_begins_no_other_run() -> None:
    agent = shop()
    await agent.run("Charge.", run_id="x", user="ann")
    for begin in (
        lambda: agent.run("Charge.", run_id="x", user="ann"),
        lambda: agent.submit("Charge.", run_id="x", user="ann"),
        lambda: agent.fork("x", at=1, new_run_id="x"),
    ):
        with pytest.raises(CloseoutError, match="exists"):
            await begin()
    assert list(charged) == ["x"]


async def test_a_signal_of_the_same_id_is_the_same_signal() -> None:
    agent = shop()
    run_id = await agent.submit("Charge.")
    assert await agent.signal(run_id, "paid", {"amount": 1}, id="s1")
    assert not await agent.signal(run_id, "paid", {"amount": 1}, id="s1")
    for name, payload in (("paid", {"amount": 2}), ("refunded", {"amount": 1})):
        with pytest.raises(SignalRefused, match="Use another id"):
            await agent.signal(run_id, name, payload, id="s1")


async def test_tasks_whose_files_have_one_name_and_different_contents_are_different() -> None:
    tasks = [{"task": "Charge.", "files": [File("note.txt", content)]} for content in ("one", "two")]
    results = [await shop().run_many(order, key="f") for order in (tasks, tasks[::-1])]
    assert len({result.run_id for each in results for result in each}) == 2


async def test_a_file_whose_content_changed_is_not_the_file_of_the_recorded_run(tmp_path: Path) -> None:
    agent, note = shop(), tmp_path / "note.txt"
    note.write_text("one")
    await agent.run_once("Charge.", run_id="f", files=[note])
    note.write_text("two")
    with pytest.raises(ResumeRefused, match="the content of a file"):
        await agent.run_once("Charge.", run_id="f", files=[note])
    (changed,) = await agent.run_many([{"task": "Charge.", "files": [note]}], key="f")
    note.write_text("three")
    with pytest.raises(ResumeRefused, match="the content of a file"):
        await agent.run_many([{"task": "Charge.", "files": [note]}], key="f")
    assert changed.status == "answered"


async def test_limits_and_listeners_are_those_of_the_call_that_continues() -> None:
    agent = shop()
    first = await agent.run_once("Charge.", run_id="x", max_turns=5)
    assert (await agent.run_once("Charge.", run_id="x", max_turns=9, listeners=[print])).answer == first.answer


async def test_a_session_of_another_user_or_with_another_history_is_not_opened() -> None:
    agent = Agent(ScriptedClient([answer("Hello, Ann."), answer("Yes, Ann."), answer("Still.")]))
    before = [Message(role="user", content="Be brief."), Message(role="assistant", content="Yes.")]
    await agent.session("chat-1", user="ann", history=before).run("I am Ann. My code is 1234.")
    with pytest.raises(UsageError, match="Session chat-1 is another user's"):
        await agent.session("chat-1", user="bob").run("What is my code?")
    with pytest.raises(UsageError, match="Session chat-1 began with another history"):
        await agent.session("chat-1", user="ann", history=before[:1]).run("What is my code?")
    assert (await agent.session("chat-1", user="ann").run("Me again.")).answer == "Yes, Ann."
    assert (await agent.session("chat-1", user="ann", history=before).run("And again.")).answer == "Still."


async def test_a_run_of_another_user_that_is_named_like_the_next_message_is_not_read_as_one() -> None:
    agent = Agent(ScriptedClient([answer("Hello, Ann."), answer("Bob's code is 99.")]))
    await agent.session("chat-1", user="ann").run("I am Ann.")
    await agent.run_once("What is my code?", run_id="chat-1.2", user="bob")
    with pytest.raises(UsageError, match="Session chat-1 is another user's"):
        await agent.session("chat-1", user="ann").run("What was said?")


async def test_an_idempotency_key_holds_for_its_client_and_for_the_headers_that_make_the_dependencies() -> None:
    deps = RequestDeps(lambda request: None, ["X-Tenant"])

    async def run_id(**headers: str) -> str:
        sent = {"Idempotency-Key": "order 1047", **{name.replace("_", "-"): value for name, value in headers.items()}}
        request = make_mocked_request("POST", "/v1/runs", headers=sent, payload=EMPTY_PAYLOAD)
        found = await request_key(request, "agent", deps)
        assert found is not None
        return found.run_id

    first = await run_id(X_Tenant="bern")
    assert first == await run_id(X_Tenant="bern", X_Other="1")
    assert len({first, await run_id(X_Tenant="rome"), await run_id()}) == 3


async def test_a_leg_of_another_task_or_user_is_refused() -> None:
    agent = shop()
    assert (await agent.leg("r", "Charge.", user="ann")).result.answer == "charged ann"
    assert (await agent.leg("r", "Charge.", user="ann")).result.answer == "charged ann"
    with pytest.raises(UsageError, match="for another user"):
        await agent.leg("r", "Charge.", user="bob")
    with pytest.raises(UsageError, match="another task"):
        await agent.leg("r", "Refund.", user="ann")


async def test_a_run_that_was_begun_or_submitted_by_name_is_not_that_of_another_file() -> None:
    agent = Agent(ScriptedClient(lambda view: answer("read")))
    mine, other = File("list.txt", b"milk"), File("list.txt", b"tea")
    await agent.run("Read.", run_id="begun", files=[mine])
    await agent.submit("Read.", run_id="submitted", files=[mine])
    for name in ("begun", "submitted"):
        with pytest.raises(ResumeRefused, match="other arguments"):
            await agent.run_once("Read.", run_id=name, files=[other])
        assert (await agent.run_once("Read.", run_id=name, files=[mine])).answer == "read"
