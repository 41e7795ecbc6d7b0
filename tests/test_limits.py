"""Budgets: turns, tokens, cost, wall clock. None is gone beyond, not by closing either, and each says what it was."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout import Agent, Boxed, RunResult, tool
from closeout.journal import events as ev
from closeout.messages import Usage
from closeout.run.limits import RESERVE, Budget, Limits
from closeout.run.requests import UNPRICED
from closeout.testing import RequestView, ScriptedClient, Turn, always, answer, call, say


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def budget(clock: Callable[[], float] | None = None, parent: Budget | None = None, **limits: Any) -> Budget:
    made = Budget(Limits(**limits), clock or Clock(), parent)
    made.begin()
    return made


def spend(on: Budget, tokens: int, cost: float | None = None, seconds: float = 0.0) -> None:
    usage = Usage(tokens, 0, requests=1, cost_usd=cost)
    on.charge(usage)
    on.note_request(usage, seconds)


# ------------------------------------------------------------------------------------------------ counting


def test_without_limits_only_turns_count() -> None:
    free = budget(max_turns=3)
    spend(free, 10**9, 10.0**6)
    assert [free.reached(turns) for turns in (0, 2, 3, 4)] == ["", "", "max_turns", "max_turns"]


def test_a_limit_is_reached_while_closing_is_still_possible() -> None:
    own = budget(max_tokens=10_000)
    spend(own, 1000)
    assert own.reached(0) == ""
    for _ in range(6):
        spend(own, 1000)
    assert own.usage.total_tokens == 7000
    assert own.reached(0) == "", "the next and the closing request: 7000 + 2 * 1000 + 400 < 10000"
    own.added = 300  # what the next prompt has beyond the last one
    assert own.reached(0) == "max_tokens"
    assert own.exhausted() == ""


def test_a_failed_request_is_charged_and_says_nothing_of_the_next_ones_size() -> None:
    own = budget(max_tokens=4000)
    spend(own, 1000)
    spend(own, 0)
    assert own.last.total_tokens == 1000


def test_cost_is_counted_although_some_requests_have_no_price() -> None:
    own = budget(max_cost=1.0)
    spend(own, 1000, 0.4)
    spend(own, 0, None)
    spend(own, 1000, 0.4)
    assert own.usage.cost_usd is None, "the bill does not pretend to know"
    assert own.reached(0) == "max_cost"


def test_the_clock_keeps_a_reserve_for_closing() -> None:
    clock = Clock()
    own = budget(clock, max_seconds=100)
    spend(own, 10, seconds=1.0)
    assert (own.seconds_left(closing=False), own.seconds_left(closing=True)) == (100 * (1 - RESERVE), 100)
    clock.now = 89
    assert own.reached(0) == ""
    clock.now = 91
    assert own.reached(0) == "max_seconds"
    assert own.exhausted() == ""
    clock.now = 101
    assert own.exhausted() == "max_seconds"
    assert own.seconds_left(closing=True) == 0


def test_an_agent_that_starts_late_has_its_whole_time() -> None:
    clock = Clock()
    clock.now = 50
    assert budget(clock, max_seconds=100).seconds_left(closing=True) == 100


# ------------------------------------------------------------------------------------------------ nested


def test_what_a_sub_agent_spends_is_its_parents_too() -> None:
    top = budget(max_tokens=5000)
    below = budget(parent=budget(parent=top), max_tokens=100_000)
    spend(below, 4000)
    assert (top.usage.total_tokens, below.reached(0)) == (4000, "max_tokens")


def test_a_sub_agent_leaves_its_parent_enough_to_close() -> None:
    top = budget(max_tokens=20_000)
    spend(top, 5000)
    below = budget(parent=top)
    spend(below, 2000)
    assert below.reached(0) == ""
    spend(below, 4000)
    assert top.usage.total_tokens == 11_000
    assert below.reached(0) == "max_tokens", "11,000 and 2 * 4,000 of its own and 5,000 of the parent's closing"


def test_concurrent_sub_agents_leave_each_other_enough() -> None:
    top = budget(max_tokens=18_000)
    one, two = budget(parent=top), budget(parent=top)
    spend(one, 3000)
    spend(two, 3000)
    assert one.reached(0) == "", (
        "6,000 spent, 6,400 for its next request and its closing, 3,400 for the other's closing"
    )
    two.request_pending = True
    assert one.reached(0) == "max_tokens", "the other's request that is under way counts too"
    two.end()
    assert one.reached(0) == "", "what is done needs nothing any more"


def test_sub_agents_leave_their_caller_enough_for_their_reports() -> None:
    top = budget(max_tokens=22_000)
    spend(top, 1000)
    one, two = budget(parent=top), budget(parent=top)
    spend(one, 3000)
    spend(two, 4000)
    assert one.reached(0) == "", (
        "8,000 spent, 6,400 for what it does next, 4,400 for the other, 2,200 to close with two reports"
    )
    top.added += 3000  # a report has come, and waits for the others
    assert one.reached(0) == "max_tokens"


def test_a_first_request_is_expected_before_it_is_counted() -> None:
    own = budget(max_tokens=1000)
    own.expect(700)
    assert own.reached(0) == "max_tokens"


def test_a_sub_agents_time_ends_before_its_parents_reserve() -> None:
    clock = Clock()
    top = budget(clock, max_seconds=100)
    below = budget(clock, top)
    closing, acting = below.seconds_left(closing=True), below.seconds_left(closing=False)
    assert closing == pytest.approx(90)
    assert acting == pytest.approx(81)


GROWTH = st.integers(1, 900)  # tokens that a prompt grows by


@given(
    st.lists(GROWTH, min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(1, 3), GROWTH), max_size=60),
    st.integers(2500, 20_000),
)
def test_an_agent_that_spends_everything_can_close(own: list[int], others: list[tuple[int, int]], limit: int) -> None:
    """An agent works, then three that it called; each as long as it may. Then all close, each as large as its last."""
    top = budget(max_tokens=limit)
    agents = [top, *(budget(parent=top) for _ in range(3))]
    for who, grown in [*((0, grown) for grown in own), *others]:
        agent = agents[who]
        agent.begin()
        if agent.usage.requests:
            agent.added = grown
        else:
            agent.expect(grown)
        if not agent.reached(0):
            spend(agent, agent.last.total_tokens + agent.added)
        elif agent.usage.requests:
            agent.added = 0  # closing leaves out results that there is no room for
        else:
            agent.end()
    for agent in (*agents[1:], top):
        needed = agent.last.total_tokens + 399
        if agent.usage.requests:
            assert not agent.forbids(needed)
            spend(agent, needed)
        agent.end()
    assert top.usage.total_tokens <= limit


# ------------------------------------------------------------------------------------------------ in a run


@tool(read_only=True)
async def look(key: str) -> str:
    """Look up a key."""
    return f"the value of {key} is known, and here are some more words about it: " + key * 5


def endless(view: RequestView) -> Turn:
    """A model that never stops looking things up, and answers when it is closed."""
    if "closing turn" in view.last:
        return answer("so far")
    return Turn("I look.", calls=[call("look", key=hashlib.sha256(str(view.number).encode()).hexdigest())])


PRICE = 1e-5


def priced(script: Callable[[RequestView], Turn]) -> Callable[[RequestView], Turn]:
    def turn(view: RequestView) -> Turn:
        made, tokens = script(view), len(view.text) // 4
        usage = Usage(tokens, 40, requests=1, cost_usd=(tokens + 40) * PRICE)
        return Turn(made.thought, made.calls, made.answer, made.text, usage=usage)

    return turn


async def run(script: Any, tools: Sequence[Any] = (look,), **agent: Any) -> RunResult:
    options = {"max_turns": 10_000, "home": False, **agent}
    return await Agent(
        ScriptedClient(script, by=lambda view: view.question), list(tools), **{"answer": Boxed(), **options}
    ).run("What?")


@pytest.mark.parametrize("limit", [600, 1000, 3000, 9000, 40_000])
async def test_tokens_are_never_exceeded(limit: int) -> None:
    result = await run(endless, config={"agent": {"max_tokens": limit}})
    assert result.stop_reason == "max_tokens"
    assert result.usage.total_tokens <= limit
    assert result.answer == "so far"
    assert result.usage.total_tokens >= limit * 0.4 or limit <= 1000, "and most of them are used"


@pytest.mark.parametrize(("limit", "by"), [(0.01, "client"), (0.05, "settings"), (0.3, "client")])
async def test_cost_is_never_exceeded(limit: float, by: str) -> None:
    script, prices = (priced(endless), {}) if by == "client" else (endless, {"*": [PRICE * 1e6] * 2})
    result = await run(script, config={"agent": {"max_cost": limit}, "llm": {"prices": prices}})
    assert result.warnings == ()
    assert (result.stop_reason, result.answer) == ("max_cost", "so far")
    assert result.usage.cost_usd is not None
    assert result.usage.cost_usd <= limit


async def test_a_limit_too_small_for_one_request_costs_nothing() -> None:
    result = await run(endless, config={"agent": {"max_tokens": 20}})
    assert (result.stop_reason, result.answer, result.usage.requests) == ("max_tokens", None, 0)
    assert result.status == "unanswered"


async def test_closing_that_needs_several_requests_stays_within_the_limit() -> None:
    def stubborn(view: RequestView) -> Turn:
        return endless(view) if "closing turn" not in view.text else say("I would rather go on.")

    result = await run(stubborn, config={"agent": {"max_tokens": 6000}})
    assert (result.stop_reason, result.answer) == ("max_tokens", None)
    assert result.usage.total_tokens <= 6000
    assert result.failure_experience_summary


async def test_a_result_too_large_for_closing_is_left_out_of_it() -> None:
    @tool(read_only=True)
    async def page(number: int) -> str:
        """Read a page."""
        return f"page {number} " * 1500

    def script(view: RequestView) -> Turn:
        return answer("read") if "closing turn" in view.last else Turn(calls=[call("page", number=view.number)])

    for limit in (7000, 12_000, 30_000):
        result = await run(script, [page], config={"agent": {"max_tokens": limit}})
        assert (result.answer, result.stop_reason) == ("read", "max_tokens")
        assert result.usage.total_tokens <= limit


async def test_rollbacks_count_against_the_budget() -> None:
    config = {"agent": {"max_tokens": 3000, "max_consecutive_rollbacks": 1000, "max_rollbacks": 1000}}
    result = await run(lambda view: answer("7") if "closing turn" in view.last else say(""), config=config)
    assert (result.stop_reason, result.answer) == ("max_tokens", "7")
    assert result.rollbacks > 3
    assert result.usage.total_tokens <= 3000


async def test_no_attempt_follows_a_spent_budget_and_the_last_one_answers() -> None:
    config = {"agent": {"max_tokens": 5000}}
    result = await run(endless, context_compress_limit=3, config=config)
    assert (result.stop_reason, result.attempts, result.answer) == ("max_tokens", 1, "so far")


async def test_the_turn_limit_counts_per_attempt() -> None:
    def script(view: RequestView) -> Any:
        return "Failure type: incomplete" if "This attempt ends here" in view.text else endless(view)

    result = await run(script, max_turns=3, context_compress_limit=1)
    assert (result.stop_reason, result.attempts, result.turns, result.answer) == ("max_turns", 2, 6, "so far")


async def test_time_ends_a_tool_that_hangs_and_leaves_enough_to_answer(skip_time: Callable[[float], None]) -> None:
    @tool(read_only=True)
    async def wait(key: str) -> str:
        """Wait for ever."""
        skip_time(901)
        await asyncio.Event().wait()
        return key

    def script(view: RequestView) -> Turn:
        return answer("late") if "nearly over" in view.text else Turn(calls=[call("wait", key="a")])

    result = await run(script, [wait], config={"agent": {"max_seconds": 1000}})
    assert (result.stop_reason, result.answer) == ("max_seconds", "late")


async def test_time_ends_a_model_that_hangs(skip_time: Callable[[float], None]) -> None:
    def script(view: RequestView) -> Turn:
        if view.number == 1:
            asyncio.get_running_loop().call_soon(skip_time, 901)
        return endless(view)

    client = ScriptedClient(script, misbehave="hang")
    config = {"agent": {"max_seconds": 1000}, "llm": {"timeout": 5000}}
    result = await Agent(client, [look], home=False, config=config).run("What?")
    assert result.stop_reason == "max_seconds"
    assert result.answer == "so far"


# ------------------------------------------------------------------------------------------------ sub-agents


def team(script: Any, limits: dict[str, Any], of_clerk: dict[str, Any] | None = None, calls: int = 3) -> Agent:
    clerk = Agent(
        ScriptedClient(script, by=lambda view: view.question),
        [look],
        max_turns=10_000,
        config={"agent": of_clerk or {}},
    )

    def chiefs(view: RequestView) -> Turn:
        tasks = [call("clerk", task=f"look up things of kind {n}") for n in range(calls)]
        return answer("done") if view.number > 1 else Turn(calls=tasks)

    return Agent(ScriptedClient(chiefs), [clerk.as_tool("clerk", "Looks.")], home=False, config={"agent": limits})


@pytest.mark.parametrize("calls", [1, 3, 6])
async def test_sub_agents_together_stay_within_their_callers_limit(calls: int) -> None:
    result = await team(endless, {"max_tokens": 30_000}, calls=calls).run("What?")
    assert result.answer == "done", "and leave it room to answer"
    assert result.usage.total_tokens <= 30_000
    assert result.usage.total_tokens >= 10_000


@pytest.mark.parametrize("words", [60, 250])
@pytest.mark.parametrize("calls", [2, 3, 5])
async def test_concurrent_reports_leave_their_caller_enough_to_close_on_them(calls: int, words: int) -> None:
    """The reports are far longer than anything that was written before, and arrive at the same time."""

    def clerk(view: RequestView) -> Turn:
        if "closing turn" in view.last:
            return Turn("It is known. " * (words // 3), answer="x")
        return Turn(calls=[call("look", key=f"k{view.number}")])

    def chief(view: RequestView) -> Turn:
        if view.number == 1:
            return Turn(calls=[call("clerk", task=f"look up things of kind {n}") for n in range(calls)])
        return answer("informed" if view.text.count("It is known.") >= calls else "from nothing")

    for limit in (8000, 11_000, 14_000, 20_000, 29_000):
        clerks = Agent(ScriptedClient(clerk, by=lambda view: view.question), [look], max_turns=10_000)
        tools = [clerks.as_tool("clerk", "Looks.")]
        config = {"agent": {"max_tokens": limit}}
        result = await Agent(ScriptedClient(chief), tools, home=False, config=config).run("What?")
        assert (result.answer, result.usage.total_tokens <= limit) == ("informed", True), limit


async def test_a_sub_agent_has_limits_of_its_own_within_them() -> None:
    result = await team(endless, {"max_tokens": 100_000}, {"max_tokens": 4000}, calls=2).run("What?")
    assert result.answer == "done"
    assert result.usage.total_tokens <= 2 * 4000 + 2000


async def test_settings_of_the_caller_say_how_many_turns_a_sub_agent_has() -> None:
    seen: list[Any] = []
    agent = team(endless, {"sub_agents": {"clerk": {"max_turns": 2}}}, calls=1)
    result = await agent.run("What?", listeners=[seen.append])
    turns = [e for e in seen if isinstance(e, ev.TurnAccepted) and e.agent == "main/r1:clerk"]
    assert (result.answer, len(turns)) == ("done", 2)
    ended = [e for e in seen if isinstance(e, ev.AgentEnded)]
    assert [e.status for e in ended] == ["max_turns"]


@settings(max_examples=25)
@given(st.integers(300, 8000), st.integers(0, 3), st.booleans())
def test_whatever_the_limit_it_is_not_exceeded(limit: int, attempts: int, boxes: bool) -> None:
    def script(view: RequestView) -> Any:
        if "This attempt ends here" in view.text:
            return "Failure type: incomplete\nUseful findings: none"
        if "closing turn" in view.text and not boxes:
            return say("no box here")
        return endless(view)

    config = {"agent": {"max_tokens": limit}}
    result = asyncio.run(run(script, context_compress_limit=attempts, max_turns=6, config=config))
    assert result.usage.total_tokens <= limit


async def test_a_reply_that_outlasts_the_time_is_the_end_of_the_time_not_a_failure_of_the_model(
    skip_time: Callable[[float], None],
) -> None:
    def script(view: RequestView) -> Turn:
        asyncio.get_running_loop().call_soon(skip_time, 1001)
        return endless(view)

    model = ScriptedClient(script, misbehave=always("slow", seconds=5000))
    config = {"agent": {"max_seconds": 1000}, "llm": {"timeout": 5000}}
    result = await Agent(model, [look], home=False, config=config).run("What?")
    assert (result.status, result.stop_reason) == ("unanswered", "max_seconds")
    assert "max_seconds" in result.error


async def test_a_cost_that_cannot_be_counted_is_warned_of_once() -> None:
    notes: list[str] = []

    def hear(event: Any) -> None:
        if isinstance(event, ev.Noted) and event.level == "warning":
            notes.append(event.message)

    for script in (endless, priced(endless)):
        agent = Agent(ScriptedClient(script), [look], home=False, max_turns=4, config={"agent": {"max_cost": 100}})
        assert (await agent.run("What?", listeners=[hear])).stop_reason == "max_turns"
    assert notes == [UNPRICED.format("scripted")]
