"""A turn that is rolled back changes the next request, is counted, and comes to an end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from closeout import Agent, Boxed, RunResult, tool
from closeout.journal import events as ev
from closeout.messages import ModelRequest
from closeout.run.review import FAILURES, HOTTEST, RollBack, RollbackPolicy
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say

EMPTY = RollBack("empty", "Your last reply was empty.")


# ------------------------------------------------------------------------------------------------ the policy


def test_nothing_is_changed_before_the_first() -> None:
    policy = RollbackPolicy(temperature=0.0)
    assert (policy.note, policy.withheld, policy.exhausted) == ("", frozenset(), False)
    assert policy.adjust(ModelRequest(temperature=0.0)).temperature == 0.0


@pytest.mark.parametrize("base", [None, 0.0, 0.7, 1.0, 1.5])
def test_each_in_a_row_asks_something_else_than_the_one_before(base: float | None) -> None:
    policy = RollbackPolicy(temperature=base)
    asked = [("", base)]
    for _ in range(5):
        assert policy.roll_back(EMPTY), "the journal records what changes"
        asked.append((policy.note, policy.adjust(ModelRequest(temperature=base)).temperature))
    assert len(set(asked)) == len(asked)
    heats = [heat for _, heat in asked if heat is not None]
    assert heats == sorted(heats), "it only gets warmer"
    assert max(heats, default=0) <= max(HOTTEST, base or 0)


def test_a_temperature_left_to_the_server_is_never_lowered_below_what_servers_take() -> None:
    policy = RollbackPolicy()
    policy.roll_back(EMPTY)
    assert policy.adjust(ModelRequest()).temperature is None, "the first changes the hint only"
    policy.roll_back(EMPTY)
    assert (policy.adjust(ModelRequest()).temperature or 0) >= 0.7


def test_success_drops_all_of_it_but_the_total() -> None:
    policy = RollbackPolicy(max_consecutive=2, max_total=3, temperature=0.0)
    policy.roll_back(EMPTY)
    policy.roll_back(EMPTY)
    assert policy.exhausted
    policy.succeed()
    assert (policy.note, policy.exhausted, policy.total) == ("", False, 2)
    assert policy.adjust(ModelRequest(temperature=0.0)).temperature == 0.0
    policy.roll_back(EMPTY)
    assert policy.exhausted, "the cap in all"


def test_a_tool_that_keeps_failing_is_withheld_if_there_are_others() -> None:
    failing = RollBack("low_quality", "It found nothing.", tool="search")
    policy = RollbackPolicy(tools=["search", "look"])
    changes = [policy.roll_back(failing) for _ in range(FAILURES)]
    assert ["without search" in change for change in changes] == [False] * (FAILURES - 1) + [True]
    assert policy.withheld == {"search"}
    policy.succeed()
    assert policy.withheld == frozenset()

    alone = RollbackPolicy(tools=["search"])
    mixed = RollbackPolicy(tools=["search", "look"])
    for _ in range(FAILURES):
        alone.roll_back(failing)
        mixed.roll_back(failing)
        mixed.roll_back(EMPTY)
    assert alone.withheld == mixed.withheld == frozenset()


# ------------------------------------------------------------------------------------------------ in a run


def tools() -> list[Any]:
    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return f"the value of {key} is known"

    @tool(read_only=True, empty_at=("hits",))
    async def search(q: str) -> dict[str, list[str]]:
        """Search."""
        return {"hits": []}

    return [look, search]


async def run(script: Any, **agent: Any) -> tuple[RunResult, list[ModelRequest], list[Any]]:
    client = ScriptedClient(script)
    seen: list[Any] = []
    result = await Agent(client, tools(), home=False, **agent).run("What?", listeners=[seen.append])
    return result, client.requests, [e for e in seen if isinstance(e, ev.TurnRolledBack)]


REPEATED = "I look at it once more, just to be sure of it. " * 60


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (say(""), "empty"),
        (say("   \n "), "empty"),
        (say("I'm sorry, but I can't help with that."), "no_action"),
        (say("抱歉，我无法完成这个任务。"), "no_action"),
        (say("Let me search for that."), "no_action"),
        (say(REPEATED), "repeating"),
        (Turn(text=REPEATED, finish_reason="length"), "repeating"),
        (Turn(text="The first of the", finish_reason="length"), "truncated"),
        (say("Tool result: it is 13.\nSo \\boxed{13}"), "invented_observation"),
        (call("no_such_tool_at_all", x=1), "refused"),
        (call("search", q="first"), "low_quality"),
    ],
)
async def test_each_kind_is_rolled_back_with_its_reason_and_its_cost(bad: Any, reason: str) -> None:
    result, requests, backs = await run([bad, call("look", key="a"), answer("42")], answer=Boxed())
    assert (result.answer, result.rollbacks) == ("42", 1)
    assert [back.reason for back in backs] == [reason]
    assert backs[0].tokens > 0
    assert backs[0].change == "hint"
    first, second, third = (list(request.messages) for request in requests[:3])
    assert second[: len(first)] == first, "the hint follows the stable prefix"
    assert len(second) == len(first) + (2 if backs[0].draft else 1)
    assert second[-1].text not in "".join(message.text for message in third), "and is dropped once a turn succeeds"


async def test_a_duplicate_is_rolled_back_with_a_hint_and_finally_allowed() -> None:
    result, requests, backs = await run([call("look", key="a")] * 7 + [answer("42")])
    assert result.answer == "42"
    assert [back.reason for back in backs] == ["duplicate"] * 5
    assert "already called look" in requests[2].messages[-1].text
    for before, now in pairwise(requests[1:7]):
        assert (before.messages[-1], before.temperature) != (now.messages[-1], now.temperature)


async def test_a_tool_that_came_to_nothing_three_times_is_not_offered_the_fourth() -> None:
    def script(view: RequestView) -> Any:
        return call("search", q=f"words number {view.number * 7919}") if "search" in view.tools else answer("none")

    def offered(requests: list[ModelRequest]) -> list[bool]:
        return [any(spec.name == "search" for spec in request.tools) for request in requests]

    # An empty result is evidence after one reformulation, so only a tool whose failures are its own keeps failing.
    @tool(read_only=True)
    async def search(q: str) -> str:
        """Search."""
        return "Error executing tool search: the index is down"

    client = ScriptedClient(script)
    result = await Agent(client, [tools()[0], search], home=False).run("What?")
    assert offered(client.requests) == [True] * FAILURES + [False]
    assert (result.answer, result.rollbacks) == ("none", FAILURES)
    assert "the index is down" not in client.requests[1].text, "text of a tool speaks for the user nowhere"


async def test_an_empty_result_is_evidence_after_one_reformulation() -> None:
    result, requests, _ = await run([call("search", q="one"), call("search", q="two"), answer("nothing there")])
    assert (result.answer, result.rollbacks, result.turns) == ("nothing there", 1, 2)
    assert requests[2].messages[-1].role == "tool"


async def test_the_cap_in_a_row_and_the_cap_in_all_end_the_attempt() -> None:
    closing = lambda view: answer("7") if "closing turn" in view.last else say("")  # noqa: E731
    result, requests, _ = await run(closing, config={"agent": {"max_consecutive_rollbacks": 2}})
    assert (result.answer, result.stop_reason, result.rollbacks, len(requests)) == ("7", "rollbacks", 2, 4)

    def every_other(view: RequestView) -> Any:
        if "closing turn" in view.last:
            return answer("7")
        return say("") if view.number % 2 else call("look", key=f"k{view.number}")

    result, _, _ = await run(every_other, config={"agent": {"max_rollbacks": 3}})
    assert (result.answer, result.stop_reason, result.rollbacks, result.turns) == ("7", "rollbacks", 3, 3)


async def test_no_rollback_at_all_may_be_allowed() -> None:
    config = {"agent": {"max_consecutive_rollbacks": 0}}
    result, _, backs = await run([say(""), answer("7")], config=config)
    assert (result.answer, result.stop_reason, backs) == ("7", "rollbacks", [])


async def test_siblings_of_a_call_that_comes_to_nothing_are_kept() -> None:
    both = Turn(calls=[call("search", q="one"), call("look", key="a")])
    result, requests, backs = await run([both, answer("42")])
    assert (result.answer, result.turns, backs) == ("42", 2, [])
    assert [m.text for m in requests[1].messages if m.role == "tool"][1] == "the value of a is known"
