"""An adaptive limit follows what a simulated endpoint can take; a gate admits no more than its limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from closeout import Agent
from closeout.evaluate.pacing import AdaptiveLimit, SweepGate
from closeout.evaluate.scorers import Judge
from closeout.evaluate.scores import Attempted
from closeout.evaluate.tasks import EvalTask
from closeout.testing import ScriptedClient, answer, call


class Endpoint:
    """Serves so many requests at once, a second each; more of them wait for each other."""

    def __init__(self, capacity: int, *, first: int = 8, highest: int = 512) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.limit = AdaptiveLimit(first, highest, clock=lambda: self.now)

    def serve(self, replies: int) -> None:
        for _ in range(replies):
            in_flight = self.limit.limit
            self.now += 1.0 / min(in_flight, self.capacity)
            self.limit.replied(50, in_flight=in_flight)


@pytest.mark.parametrize("capacity", [3, 20, 100])
def test_the_limit_rises_until_the_endpoint_slows_down(capacity: int) -> None:
    endpoint = Endpoint(capacity, first=2)
    endpoint.serve(6_000)
    assert capacity * 0.5 <= endpoint.limit.limit <= capacity * 2.2


def test_the_limit_stays_within_its_bounds() -> None:
    endpoint = Endpoint(1_000, highest=32)
    endpoint.serve(5_000)
    assert endpoint.limit.limit == 32


def test_a_refusal_halves_it_at_once_and_those_sent_before_count_as_one() -> None:
    endpoint = Endpoint(1_000)
    endpoint.serve(500)
    before, sent_at = endpoint.limit.limit, endpoint.now
    endpoint.now += 1
    for _ in range(10):
        endpoint.limit.refused(sent_at)
    assert endpoint.limit.limit == before // 2
    endpoint.now += 1
    endpoint.limit.refused(endpoint.now)
    assert endpoint.limit.limit == before // 4
    for _ in range(20):
        endpoint.now += 1
        endpoint.limit.refused(endpoint.now)
    assert endpoint.limit.limit == 1


def test_it_recovers_after_a_refusal() -> None:
    endpoint = Endpoint(1_000)
    endpoint.serve(100)
    endpoint.now += 1
    endpoint.limit.refused(endpoint.now)
    low = endpoint.limit.limit
    endpoint.serve(5_000)
    assert endpoint.limit.limit > low


def test_too_little_work_teaches_nothing() -> None:
    endpoint = Endpoint(1_000)
    for _ in range(1_000):
        endpoint.now += 1
        endpoint.limit.replied(50, in_flight=1)
    assert endpoint.limit.limit == 8


def spends(sums: list[float]) -> Callable[[float, int], asyncio.Future[tuple[float, int]]]:
    def spend(cost: float, tokens: int) -> asyncio.Future[tuple[float, int]]:
        sums[0] += cost
        done = asyncio.get_running_loop().create_future()
        done.set_result((sums[0], 0))
        return done

    return spend


async def test_a_closed_gate_admits_nobody_and_a_cancelled_wait_leaves_no_trace() -> None:
    gate = SweepGate(1)
    await gate.enter()
    waiting = [asyncio.ensure_future(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    assert (gate.in_flight, gate.blocked) == (1, 3)
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    gate.leave(None)
    await asyncio.sleep(0)
    assert (gate.in_flight, gate.blocked) == (1, 1)
    gate.close("stopped")
    gate.leave(None)
    await asyncio.sleep(0)
    assert (gate.in_flight, gate.blocked) == (0, 1)
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (gate.in_flight, gate.blocked) == (0, 0)


async def test_a_wait_that_is_cancelled_as_it_is_admitted_gives_its_place_back() -> None:
    gate = SweepGate(1)
    await gate.enter()
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    gate.leave(None)  # the place is given to the one that waits
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gate.in_flight == 0
    await asyncio.wait_for(gate.enter(), 60)


async def test_a_spent_budget_closes_the_gate() -> None:
    sums = [0.0]
    gate = SweepGate(4, spend=spends(sums), max_cost=1.0)
    await gate.enter()
    gate.leave(None)
    sums[0] = 1.0
    waiting = asyncio.ensure_future(gate.enter())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (gate.closed, gate.in_flight, gate.blocked) == ("max_cost", 0, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


class Counting:
    """A gate that admits every request."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    async def enter(self) -> None:
        self.entered += 1

    def leave(self, outcome: object) -> None:
        self.left += 1

    def retried(self, error: Exception) -> None: ...


async def test_a_gate_admits_the_requests_of_an_agent_and_of_its_sub_agents(home: Path) -> None:
    clerk = Agent(ScriptedClient([answer("4")])).as_tool("clerk", "Finds things out.")
    agent = Agent(ScriptedClient([call("clerk", task="find out"), answer("4"), answer("5")]), [clerk])
    gate = Counting()
    assert (await agent.with_gate(gate).run_once("What?", run_id="first")).answer == "4"
    assert (gate.entered, gate.left) == (3, 3)
    assert (await agent.with_gate(gate).run_once("What?", run_id="first")).answer == "4"
    assert gate.entered == 3, "a recorded reply is no request"
    assert (await agent.run("And now?")).answer == "5"
    assert gate.entered == 3, "the agent itself has no gate"


async def test_a_judge_asks_within_the_limits_of_the_evaluation(home: Path) -> None:
    gate = Counting()
    attempt = Attempted(EvalTask(id="t", question="How many?", answer="4"), "four", run_id="trial", gate=gate)
    assert (await Judge(ScriptedClient([answer("right")])).score(attempt)).correct
    assert (gate.entered, gate.left) == (1, 1)
