"""The bill and the counts of a run: what its events add up to, heard live or read from a record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from closeout import Agent, tool
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.journal.subscribers import Progress
from closeout.journal.totals import RunTotals
from closeout.messages import Usage
from closeout.testing import ScriptedClient, Turn, answer, call, say


def replied(tokens: int, cost: float | None = None, agent: str = "main") -> ev.ModelReplied:
    return ev.ModelReplied(
        agent,
        0,
        usage=ev.usage_record(Usage(tokens, 1, cache_read_tokens=2, cache_write_tokens=3, requests=1, cost_usd=cost)),
    )


def test_an_empty_run_costs_nothing() -> None:
    totals = RunTotals()
    assert (totals.usage, totals.turns, totals.rollbacks, totals.repairs, totals.ended) == (Usage(), 0, 0, [], None)


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_usage_is_the_sum_of_all_replies_and_failures(tokens: list[int]) -> None:
    totals = RunTotals(replied(n, n * 0.001) for n in tokens)
    assert totals.usage.input_tokens == sum(tokens)
    assert totals.usage.requests == len(tokens)
    assert (totals.usage.cache_read_tokens, totals.usage.cache_write_tokens) == (2 * len(tokens), 3 * len(tokens))


def test_sub_agents_count_in_the_usage_but_not_in_the_turns() -> None:
    clerk = "main/r1:clerk"
    totals = RunTotals(
        [replied(10), replied(20, agent=clerk), ev.TurnAccepted("main", 0, 0), ev.TurnAccepted(clerk, 0, 0),
         ev.AttemptStarted("main", 0), ev.AttemptStarted(clerk, 0), ev.TurnRolledBack(clerk, 0, 0, reason="empty"),
         ev.AnswerSeen("main", 0, 0, answer="5"), ev.AnswerSeen(clerk, 0, 0, answer="6")]
    )  # fmt: skip
    assert (totals.usage.input_tokens, totals.turns, totals.attempts, totals.rollbacks) == (30, 1, 1, 1)
    assert [seen.answer for seen in totals.candidates] == ["5"]


def test_the_reply_that_answers_is_a_turn_too_and_attempts_add_up() -> None:
    first = [
        ev.AttemptStarted("main", 0),
        ev.TurnAccepted("main", 0, 0),
        ev.AttemptEnded("main", 0, "max_turns", turns=1),
    ]
    second = [
        ev.AttemptStarted("main", 1),
        ev.TurnAccepted("main", 1, 0),
        ev.AttemptEnded("main", 1, "answered", turns=2),
    ]
    below = [ev.AttemptEnded("main/r1:clerk", 0, "answered", turns=7)]
    totals = RunTotals(first)
    assert totals.turns == 1, "closing it took a request, not a turn"
    for event in below + second:
        totals(event)
    assert (totals.turns, totals.attempts) == (3, 2)


def test_one_request_without_a_price_makes_the_sum_unknown() -> None:
    assert RunTotals([replied(1, 0.5), replied(1, 0.5)]).usage.cost_usd == 1.0
    assert RunTotals([replied(1, 0.5), replied(1, None)]).usage.cost_usd is None


def test_progress_and_unknown_events_count_for_nothing() -> None:
    totals = RunTotals()
    totals(Progress("main", 0, "text", "hello"))
    totals(ev.Unknown("main", "FromTheFuture", {}))
    assert totals.usage == Usage()


async def test_a_record_adds_up_to_its_result() -> None:
    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return "known"

    both = Turn(calls=[call("look", Key="a"), call("look", key="b")])
    result = await Agent(ScriptedClient([say(""), both, answer("42")]), [look]).run("What?")
    from closeout.config import home_folder

    totals = RunTotals(row.event for row in open_store(home_folder()).rows(result.run_id))
    assert totals.usage == result.usage
    assert (totals.turns, totals.attempts, totals.rollbacks) == (result.turns, result.attempts, result.rollbacks)
    assert tuple(totals.repairs) == result.repairs != ()
    assert (totals.tool_calls, totals.tool_failures) == (2, 0)
    assert totals.ended is not None
    assert totals.ended.answer == "42"
