"""Checks that the user passes: a function says what is wrong with an answer, and the model is asked again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, Check, CheckedRun, Number, Text, ToolOutput, tool
from closeout.errors import UsageError
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.testing import ScriptedClient, Turn, answer, call, say
from journal_file import cut_after

PROBLEM = "The answer must be even."


@tool(read_only=True)
def look(key: str) -> int:
    """Look up a key."""
    return len(key)


def even(answer: str, run: CheckedRun) -> str | None:
    return None if int(answer) % 2 == 0 else PROBLEM


class Recording:
    """A check that keeps what it was called with."""

    def __init__(self, *problems: str | None) -> None:
        self.problems = list(problems)
        self.seen: list[tuple[str, CheckedRun]] = []

    def __call__(self, answer: str, run: CheckedRun) -> str | None:
        self.seen.append((answer, run))
        return self.problems.pop(0) if self.problems else None

    @property
    def answers(self) -> list[str]:
        return [answer for answer, _ in self.seen]


async def run(replies: list[Any], check: Any, **options: Any) -> tuple[Any, ScriptedClient, list[ev.Event]]:
    client, events = ScriptedClient(replies), list[ev.Event]()
    options = {"answer": Number(), "home": False, **options}
    agent = Agent(client, [look], check=check, **options)
    return await agent.run("How many?", listeners=[events.append]), client, events


# ------------------------------------------------------------------------------------------------ sent back


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_a_check_sends_the_model_back_with_its_reason(dialect: str) -> None:
    said = [say(f"Thought: I know.\nFinal Answer: \\boxed{{{n}}}") for n in (5, 6)]
    replies = said if dialect.startswith("cot") else [answer("5"), answer("6")]
    result, client, events = await run(replies, even, dialect=dialect)
    assert (result.answer, result.stop_reason, len(client.requests)) == ("6", "answered", 2)
    again = client.requests[1].prompt or str(client.requests[1].messages)
    assert PROBLEM in again
    assert "boxed{5}" in again, "the model sees what it had answered"
    back = [(each.reason, each.detail) for each in events if isinstance(each, ev.TurnRolledBack)]
    assert back == [("check", PROBLEM)]
    assert "5" not in result.closing_text + result.messages[-1].text, "a refused answer is no part of the conversation"


async def test_a_check_sends_a_program_back_with_its_reason() -> None:
    pytest.importorskip("pydantic_monty")
    programs = [say(f"```python\nfinal_answer(look('abc') + {n})\n```") for n in (0, 1)]
    check = Recording(PROBLEM)
    result, client, _ = await run(programs, check, dialect="code")
    assert (result.answer, result.value, len(client.requests)) == ("4", 4, 2)
    assert PROBLEM in str(client.requests[1].messages)
    assert [run.program for _, run in check.seen] == [f"final_answer(look('abc') + {n})" for n in (0, 1)]


async def test_an_answer_that_passes_costs_nothing() -> None:
    check = Recording()
    result, client, events = await run([call("look", key="ab"), answer("2")], check)
    assert (result.answer, len(client.requests), check.answers) == ("2", 2, ["2"])
    assert [each.problem for each in events if isinstance(each, ev.CheckFinished)] == [""]


@pytest.mark.parametrize("times", [0, 1, 2, 4])
async def test_the_model_is_sent_back_so_many_times_and_then_the_answer_stands(times: int) -> None:
    result, client, _ = await run([answer("5")] * 9, Check(even, times=times))
    assert (result.answer, result.value, result.status, result.stop_reason) == ("5", 5, "answered", "answered")
    assert len(client.requests) == times + 1


@pytest.mark.parametrize("times", [0, 2])
async def test_the_run_ends_without_an_answer_if_the_user_wants_that(times: int) -> None:
    result, client, _ = await run([answer("5")] * 9, Check(even, times=times, then="unanswered"))
    assert (result.answer, result.status, result.stop_reason) == (None, "unanswered", "check_failed")
    assert (result.error, len(client.requests)) == (PROBLEM, times + 1)


async def test_a_program_whose_answer_is_refused_to_the_end_has_none() -> None:
    pytest.importorskip("pydantic_monty")
    programs = [say(f"```python\nfinal_answer({n})\n```") for n in (5, 7)]
    result, client, _ = await run(programs, Check(even, times=1, then="unanswered"), dialect="code")
    assert (result.answer, result.stop_reason, result.error, len(client.requests)) == (None, "check_failed", PROBLEM, 2)


async def test_without_rollbacks_left_the_model_is_not_sent_back() -> None:
    result, client, _ = await run(
        [answer("5")] * 9, Check(even, times=9), config={"agent.max_consecutive_rollbacks": 2}
    )
    assert (result.answer, len(client.requests)) == ("5", 3)


async def test_each_attempt_may_be_sent_back() -> None:
    check = Check(even, times=1, then="unanswered")
    result, client, _ = await run([*[answer("5")] * 3, answer("6")], check, context_compress_limit=1)
    assert (result.answer, result.attempts, len(client.requests)) == ("6", 2, 4)
    assert PROBLEM in str(client.requests[2].messages), "the second attempt knows why the first one failed"


# ------------------------------------------------------------------------------------------------ several, async


async def test_several_checks_are_asked_in_order_and_the_first_reason_counts() -> None:
    second = Recording("It must be below 8.")
    result, client, _ = await run([answer("5"), answer("8"), answer("6")], [even, second])
    assert (result.answer, len(client.requests)) == ("6", 3)
    assert second.answers == ["8", "6"], "5 was refused before"
    assert PROBLEM in str(client.requests[1].messages[-1])
    assert "below 8" in str(client.requests[2].messages[-1])


async def test_a_check_that_has_been_heard_out_does_not_silence_the_next() -> None:
    never, second = Check(lambda answer, run: "No.", times=0), Recording("It must be below 8.")
    result, _, _ = await run([answer("9"), answer("7")], [never, second])
    assert (result.answer, second.answers) == ("7", ["9", "7"])


async def test_a_check_may_be_async() -> None:
    async def judged(answer: str, run: CheckedRun) -> str | None:
        other = await Agent(ScriptedClient([say("no" if answer == "5" else "yes")]), home=False).run(run.task)
        return None if other.answer == "yes" else "Another model disagrees."

    result, client, _ = await run([answer("5"), answer("6")], judged)
    assert (result.answer, len(client.requests)) == ("6", 2)
    assert "Another model disagrees." in str(client.requests[1].messages)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("even", "must be a function"),
        ([even, 5], "must be a function"),
        (5, "must be a function"),
        (lambda answer: None, "two arguments"),
    ],
)
def test_what_is_not_a_check_is_refused(wrong: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Agent(ScriptedClient([]), check=wrong, home=False)


def test_a_check_states_what_it_cannot_take() -> None:
    with pytest.raises(UsageError, match="0 or more"):
        Check(even, times=-1)
    with pytest.raises(UsageError, match="'accept' or 'unanswered'"):
        Check(even, then="fail")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ what it sees


async def test_a_check_sees_the_task_the_value_and_the_calls() -> None:
    check = Recording()
    replies = [call("look", key="abc"), Turn("Again.", calls=[call("look", key="a"), call("none", x=1)]), answer("3")]
    result, _, _ = await run(replies, check)
    ((text, seen),) = check.seen
    assert (text, seen.value, seen.task, seen.run_id, seen.program) == ("3", 3, "How many?", result.run_id, None)
    assert [(each.name, each.arguments, each.result, each.text, each.ok) for each in seen.calls[:2]] == [
        ("look", {"key": "abc"}, 3, "3", True),
        ("look", {"key": "a"}, 1, "1", True),
    ]
    assert [(each.name, each.ok) for each in seen.calls[2:]] == [("none", False)]


async def test_a_check_sees_for_whom_the_run_is_and_what_it_was_given() -> None:
    @tool(read_only=True)
    def prices(city: str) -> ToolOutput:
        """Look up prices."""
        return ToolOutput(result=[3], state_update={"asked": [city]})

    check, deps = Recording("Again.", None), object()
    client = ScriptedClient([call("prices", city="Ulm"), answer("3"), answer("3 again")])
    agent = Agent(client, [prices], check=check, home=False)
    await agent.run("How dear?", user="ann", deps=deps)
    (_, seen), (_, later) = check.seen
    assert (seen.user, seen.deps, seen.state) == ("ann", deps, {"asked": ["Ulm"]})
    seen.state["asked"].append("Bonn")
    assert later.state == {"asked": ["Ulm"]}


async def test_the_task_is_the_users_own_without_the_texts_of_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a long text")
    check = Recording()
    agent = Agent(ScriptedClient([answer("2")]), answer=Number(), check=check, home=False)
    await agent.run("How many?", files=[tmp_path / "notes.txt"])
    assert check.seen[0][1].task == "How many?"


@pytest.mark.parametrize("contract", [Text(), Boxed()])
async def test_a_check_gets_the_answer_as_the_contract_reads_it(contract: Any) -> None:
    check = Recording()
    result, _, _ = await run([answer("six", "I counted.")], check, answer=contract)
    assert check.answers == [result.answer] == ["six"]


# ------------------------------------------------------------------------------------------------ closing


async def test_an_answer_of_closing_is_checked_and_stands_or_not() -> None:
    replies = [call("look", key="a"), answer("5")]
    for then, expected in (("accept", ("5", "max_turns")), ("unanswered", (None, "check_failed"))):
        result, client, _ = await run(replies, Check(even, then=then), max_turns=1)
        assert (result.answer, result.stop_reason) == expected
        assert len(client.requests) == 2, "closing does not ask again for a check"


async def test_an_answer_on_the_way_is_checked_before_it_is_fallen_back_on() -> None:
    on_the_way = Turn("It may be \\boxed{5}.", calls=[call("look", key="a")])
    result, _, _ = await run([on_the_way, *[say("")] * 9], Check(even, then="unanswered"), max_turns=1)
    assert (result.answer, result.stop_reason, result.error) == (None, "check_failed", PROBLEM)


# ------------------------------------------------------------------------------------------------ resumed


def stored(home: Path, run_id: str, kind: type[ev.Event]) -> list[Any]:
    return [row.event for row in open_store(home).rows(run_id) if isinstance(row.event, kind)]


def checking(home: Path, check: Any, replies: list[Any]) -> tuple[Agent[Any], ScriptedClient]:
    client = ScriptedClient(replies)
    return Agent(client, [look], answer=Number(), check=check, home=home), client


async def test_a_check_that_raises_fails_the_run_which_is_resumed_with_a_mended_one(home: Path) -> None:
    def broken(answer: str, run: CheckedRun) -> str | None:
        raise ZeroDivisionError("a mistake of mine")

    agent, _ = checking(home, broken, [answer("5")])
    failed = await agent.run("How many?", run_id="r")
    assert (failed.status, failed.answer, failed.error_kind) == ("failed", None, "ZeroDivisionError")
    assert "a mistake of mine" in failed.error
    assert "broken raised it. It gets the answer as text; run.value is its value." in failed.error

    agent, client = checking(home, even, [answer("6")])
    result = await agent.resume("r")
    assert (result.answer, result.status, len(client.requests)) == ("6", "answered", 1)
    assert [each.problem for each in stored(home, "r", ev.CheckFinished)] == [PROBLEM, ""]


async def test_a_check_that_returns_no_text_is_an_error_that_says_so() -> None:
    result, _, _ = await run([answer("5")], lambda answer, run: False)
    assert (result.status, result.error_kind) == ("failed", "UsageError")
    assert "must return a text or None, got False" in result.error


async def test_a_resumed_run_repeats_no_check_that_has_ended(home: Path) -> None:
    check = Recording(PROBLEM, None)
    replies = [call("look", key="ab"), answer("5"), answer("6")]
    first = await checking(home, check, replies)[0].run("How many?", run_id="r")
    cut_after(home, "CheckFinished")

    again = Recording()
    agent, client = checking(home, again, [answer("6")])
    result = await agent.resume("r")
    assert (result.answer, result.usage) == (first.answer, first.usage)
    assert (again.answers, len(client.requests)) == (["6"], 1)
    assert len(stored(home, "r", ev.CheckStarted)) == 2


async def test_a_check_that_was_interrupted_is_made_again(home: Path) -> None:
    await checking(home, Recording(), [answer("6")])[0].run("How many?", run_id="r")
    cut_after(home, "CheckStarted")

    again = Recording()
    result = await checking(home, again, [])[0].resume("r")
    assert (result.answer, again.answers) == ("6", ["6"])
