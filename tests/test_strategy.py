"""Strategies: the model is asked otherwise in each turn; the run records, charges and repeats it like any request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, AskOnce, CallFirst, Majority, ModelTurn, Number, Strategy, tool
from closeout.errors import ResumeRefused, ServerFailed, UsageError
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.journal.subscribers import Progress
from closeout.messages import Reading
from closeout.run.lifecycle import replay_run
from closeout.testing import RequestView, ScriptedClient, answer, call
from journal_file import cut_after, cut_record


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"[{key}] is known"


def purposes(home: Path, run_id: str) -> list[str]:
    return [row.event.purpose for row in open_store(home).rows(run_id) if isinstance(row.event, ev.ModelRequested)]


def voting(replies: list[Any], n: int = 3, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    """An agent that decides by majority over replies that are sent one after the other."""
    left = iter(replies)
    client = ScriptedClient(lambda view: next(left))
    options = {"answer": Number(), "home": False, "strategy": Majority(n), **options}
    return Agent(client, [look], **options), client


# ------------------------------------------------------------------------------------------------ the default


async def test_by_default_the_model_is_asked_once_a_turn() -> None:
    for options in ({}, {"strategy": AskOnce()}):
        client = ScriptedClient([call("look", key="a"), answer("5")])
        result = await Agent(client, [look], home=False, **options).run("How many?")
        assert (result.answer, len(client.requests), result.usage.requests) == ("5", 2, 2)


def test_what_is_shipped_follows_the_protocol() -> None:
    assert all(isinstance(each, Strategy) for each in (AskOnce(), Majority(3), CallFirst("look")))
    with pytest.raises(UsageError, match="at least 1"):
        Majority(0)
    with pytest.raises(UsageError):
        Agent(ScriptedClient([]), strategy="majority")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ majority


async def test_a_majority_counts_answers_that_the_contract_reads_as_one_value() -> None:
    agent, client = voting([answer("7"), answer("1,000"), answer("1000.0")])
    assert (await agent.run("How many?")).value == 1000
    assert len(client.requests) == 3


async def test_a_majority_ends_once_it_is_certain() -> None:
    agent, client = voting([answer("5"), answer("5")])
    assert (await agent.run("How many?")).answer == "5"
    agent, five = voting([answer("5"), answer("6"), answer("5"), answer("5")], n=5)
    assert (await agent.run("How many?")).answer == "5"
    assert (len(client.requests), len(five.requests)) == (2, 4)


async def test_without_a_majority_the_first_answer_counts() -> None:
    agent, _ = voting([answer("5"), answer("6"), answer("7")])
    assert (await agent.run("How many?")).answer == "5"


async def test_calls_are_one_choice_and_the_first_ones_are_made() -> None:
    replies = [call("look", key="a"), call("look", key="b"), answer("5"), answer("5")]
    agent, client = voting(replies)
    result = await agent.run("How many?")
    assert result.answer == "5"
    assert "[a] is known" in str(client.requests[-1].messages)
    assert "[b] is known" not in str(client.requests[-1].messages)


@pytest.mark.parametrize(
    ("stated", "llm", "sent"),
    [(None, 0, [0, 0.7]), (0.4, 0, [0, 0.4]), (None, 0.9, [0.9, 0.9]), (0.2, 0.9, [0.9, 0.2])],
)
async def test_further_requests_differ_in_temperature_only(stated: float | None, llm: float, sent: list[float]) -> None:
    agent, client = voting([answer("5")] * 2, temperature=llm, strategy=Majority(3, temperature=stated))
    await agent.run("How many?")
    assert [request.temperature for request in client.requests] == sent
    assert client.requests[0].messages == client.requests[1].messages


async def test_an_extra_request_that_fails_is_left_out() -> None:
    agent, _ = voting([answer("5"), ServerFailed("no"), ServerFailed("no")])
    result = await agent.run("How many?")
    assert (result.answer, result.stop_reason) == ("5", "answered")


async def test_an_extra_request_without_room_in_the_budget_is_left_out() -> None:
    for budget, counted in ((2_000, ("5", 1)), (20_000, ("6", 3))):
        replies = [answer("5", "I counted. " * 800), answer("6"), answer("6")]  # the first alone takes 2,200 tokens
        agent, client = voting(replies, config={"agent.max_tokens": budget})
        result = await agent.run("How many?")
        assert (result.answer, len(client.requests), result.stop_reason) == (*counted, "answered")


# ------------------------------------------------------------------------------------------------ a call first


async def test_a_call_with_the_task_precedes_the_first_request() -> None:
    client = ScriptedClient([answer("5")])
    result = await Agent(client, [look], strategy=CallFirst("look"), home=False).run("Where is it?")
    assert (result.answer, len(client.requests)) == ("5", 1)
    assert "[Where is it?] is known" in str(client.requests[0].messages)


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.mark.parametrize(
    ("name", "problem"), [("lok", "has no such tool. Its tools: add, look"), ("add", "one required text")]
)
async def test_a_tool_that_cannot_be_called_first_ends_the_run_with_an_error_that_says_so(
    name: str, problem: str
) -> None:
    client = ScriptedClient([answer("5")])
    result = await Agent(client, [look, add], strategy=CallFirst(name), home=False).run("Where?")
    assert (result.status, result.answer, client.requests) == ("failed", None, [])
    assert (result.error_kind, problem in result.error) == ("UsageError", True)


async def test_strategies_combine() -> None:
    agent, client = voting([answer("5"), answer("6"), answer("6")], strategy=CallFirst("look", then=Majority(3)))
    assert (await agent.run("How many?")).answer == "6"
    assert len(client.requests) == 3


# ------------------------------------------------------------------------------------------------ one's own


class Second:
    """Takes the second opinion."""

    name = "second"

    def __init__(self, version: str = "1") -> None:
        self.version = version

    async def ask(self, turn: ModelTurn) -> Reading:
        reading = turn.read(await turn.send())
        return reading if reading.calls else turn.read(await turn.send(purpose="opinion"))


def opinions(home: Path | bool, strategy: Any = None, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    seen: set[str] = set()

    def script(view: RequestView) -> Any:
        if "[a] is known" not in view.text:
            return call("look", key="a")
        # The second request of a turn is the same as its first.
        first = view.text not in seen
        seen.add(view.text)
        return answer("5" if first else "6")

    client = ScriptedClient(script, by="question")
    agent = Agent(client, [look], strategy=strategy or Second(), home=home, **options)
    return agent, client


async def test_a_strategy_of_ones_own_is_recorded_with_its_requests(home: Path) -> None:
    agent, _ = opinions(home)
    result = await agent.run("How many?", run_id="r")
    assert (result.answer, result.usage.requests) == ("6", 3)
    assert purposes(home, "r") == ["act", "act", "opinion"]
    started = next(row.event for row in open_store(home).rows("r") if isinstance(row.event, ev.RunStarted))
    assert "second 1" in str(started)


async def test_a_sub_agent_has_a_strategy_of_its_own() -> None:
    clerk, _ = opinions(False)
    client = ScriptedClient([call("clerk", task="find out"), answer("done")])
    result = await Agent(client, [clerk.as_tool("clerk", "Finds out.")], home=False).run("What?")
    assert (result.answer, len(client.requests)) == ("done", 2)
    assert "6" in client.requests[-1].messages[-1].text


async def test_a_request_beside_the_turns_own_needs_a_purpose() -> None:
    class Nameless(Second):
        async def ask(self, turn: ModelTurn) -> Reading:
            await turn.send()
            return turn.read(await turn.send(turn.request))

    agent, client = opinions(False, Nameless())
    result = await agent.run("How many?")
    assert (result.status, len(client.requests)) == ("failed", 1)
    assert "needs a purpose" in result.error


# ------------------------------------------------------------------------------------------------ resumed, forked


@pytest.mark.parametrize("replies", [1, 2, 3])
async def test_a_killed_run_is_resumed_without_repeating_a_request(home: Path, replies: int) -> None:
    agent, _ = opinions(home)
    first = await agent.run("How many?", run_id="r")
    cut_after(home, "ModelReplied", replies - 1)

    seen = len(purposes(home, "r"))
    client = ScriptedClient(lambda view: answer("6") if "[a] is known" in view.text else call("look", key="a"))
    again = await Agent(client, [look], strategy=Second(), home=home).resume("r")
    assert (again.answer, again.usage) == (first.answer, first.usage)
    assert len(client.requests) == 3 - seen == 3 - replies
    assert purposes(home, "r") == ["act", "act", "opinion"]


@pytest.mark.parametrize("other", [Second("2"), AskOnce(), Majority(3)])
async def test_another_strategy_does_not_continue_a_run(home: Path, other: Any) -> None:
    agent, _ = opinions(home)
    await agent.run("How many?", run_id="r")
    cut_record(home, 6)
    with pytest.raises(ResumeRefused, match="strategy"):
        await opinions(home, other)[0].resume("r")


async def test_a_replay_asks_nothing_and_departs_nowhere(home: Path) -> None:
    agent, client = opinions(home)
    await agent.run("How many?", run_id="r")
    asked = len(client.requests)
    result, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (result.answer, departure, len(client.requests)) == ("6", "", asked)


async def test_forks_sessions_and_maps_ask_by_the_strategy(home: Path) -> None:
    agent, _ = opinions(home)
    await agent.run("How many?", run_id="r")
    fork = await agent.fork("r", at=2, note="Count again.")
    said = await agent.session("s").run("How many now?")
    mapped = [each async for each in agent.map(["How many here?", "How many there?"])]
    for result in (fork, said, *mapped):
        assert (result.answer, purposes(home, result.run_id)[-2:]) == ("6", ["act", "opinion"])


# ------------------------------------------------------------------------------------------------ streamed


async def test_a_streamed_reply_that_loses_is_withdrawn() -> None:
    agent, _ = voting([answer("5"), answer("6"), answer("6")])
    shown = ""
    async for event in (stream := agent.stream("How many?")):
        if isinstance(event, Progress):
            shown = "" if event.kind == "discard" else shown + event.text
    assert stream.result.answer == "6"
    assert "6" in shown
    assert "5" not in shown


async def test_a_streamed_reply_that_wins_is_not_withdrawn() -> None:
    agent, _ = voting([answer("5"), answer("5")])
    kinds = [event.kind async for event in agent.stream("How many?") if isinstance(event, Progress)]
    assert "discard" not in kinds
