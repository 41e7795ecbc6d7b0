"""Run recorded runs again with a changed agent, and find the differences. Only requests that differ are paid for."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from closeout.errors import CloseoutError, JournalError, UsageError
from closeout.journal.events import (
    REPLIED,
    Event,
    HandedOver,
    MessageReceived,
    ModelReplied,
    ModelRequested,
    RunEnded,
    RunStarted,
    ToolFinished,
)
from closeout.journal.run_journal import describe_damage
from closeout.journal.run_names import LAB
from closeout.journal.store import Row, Store
from closeout.journal.totals import RunTotals
from closeout.lab.client_conversation import CONVERSATION, as_client
from closeout.lab.compare import agent_differences, first_difference
from closeout.lab.recorded_effects import CostLimit, KnownTools, RecordedEffects, WhatIfJournal, shown
from closeout.lab.saved_lanes import SavedLane, delete_lanes
from closeout.models.base import price_of
from closeout.records import record
from closeout.run.lifecycle import as_recorded, beginning, execute_run, new_started, recorded_task
from closeout.run.plan import AgentPlan

__all__ = ["Lane", "WhatIfCase", "run_again"]

_SHOWN = 200  # characters of a task


@record(kw_only=True)
class Lane:
    """A task as executed by one agent.

    Attributes:
        answer: Its answer.
        status: "answered", "unanswered", "failed", "left the record" or "stopped" (at the cost limit).
        turns: Its turns.
        tokens: Tokens of its requests, including those answered from the record. None for a client of the proxy.
        calls: Its tool calls, agent by agent, in order.
        paid: The number of requests sent to the model.
        cost: Their cost in dollars; None if a price is unknown.
        run_cost: The cost of all its requests, including those answered from the record; None if a price is unknown.
        left: The call that it wanted to make, which is not in the record and must not be made.
        problem: Why it failed or stopped.
        run_id: The run in the home with its events; empty if it did what was recorded, so that they were not kept.
    """

    answer: str | None
    status: str
    turns: int = 0
    tokens: int | None = 0
    calls: tuple[str, ...] = ()
    paid: int = 0
    cost: float | None = 0.0
    run_cost: float | None = None
    left: str = ""
    problem: str = ""
    run_id: str = ""


@record(kw_only=True)
class WhatIfCase:
    """One recorded run, and a changed agent's run of its task.

    Attributes:
        run_id: The recorded run.
        task: The beginning of its task.
        then: The run as recorded; None if it cannot be read.
        now: With the candidate; None if the run was not run again.
        baseline: With the agent to compare with. Its model is asked from the request at which the candidate left the
            record, so this shows how much the model varies by itself. None without a baseline.
        differences: How the candidate differs from the recorded run's agent, as far as the records show.
        divergence: The first difference between `then` and `now`; empty if there is none.
        problem: Why the run was not run again.
    """

    run_id: str
    task: str = ""
    then: Lane | None = None
    now: Lane | None = None
    baseline: Lane | None = None
    differences: tuple[str, ...] = ()
    divergence: str = ""
    problem: str = ""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes that were run: the candidate, and the baseline if there is one."""
        return tuple(lane for lane in (self.now, self.baseline) if lane is not None)

    @property
    def page(self) -> str:
        """The page of the viewer that shows the lanes side by side, without its address; empty if none is kept."""
        ids = [self.run_id, *(lane.run_id for lane in (self.baseline, self.now) if lane is not None and lane.run_id)]
        return "#/compare/" + "/".join(quote(each, safe="") for each in ids) if len(ids) > 1 else ""

    @property
    def added(self) -> tuple[str, ...]:
        """The calls of the candidate that the recorded run did not make."""
        return _more(self.now, self.then)

    @property
    def lost(self) -> tuple[str, ...]:
        """The calls of the recorded run that the candidate does not make."""
        return _more(self.then, self.now)

    @property
    def changed(self) -> bool:
        """True if the candidate's answer, end, calls or order of calls differ."""
        return differs(self.then, self.now)


def differs(then: Lane | None, now: Lane | None) -> bool:
    """Return True if two lanes have other answers, ends or calls, or calls in another order.

    A stopped lane never differs: its end is unknown.
    """
    if then is None or now is None or now.status == "stopped":
        return False
    return (then.answer, then.status, then.calls) != (now.answer, now.status, now.calls)


def _more(first: Lane | None, second: Lane | None) -> tuple[str, ...]:
    if first is None or second is None:
        return ()
    return tuple((Counter(first.calls) - Counter(second.calls)).elements())


async def run_again(
    plan: AgentPlan,
    store: Store | None,
    runs: int | Iterable[str],
    *,
    baseline: AgentPlan | None = None,
    allow_read_only: bool = False,
    limit_cost: float | None = None,
    parallel: int = 4,
    progress: Callable[[int, int], object] | None = None,
) -> list[WhatIfCase]:
    """Run recorded runs again with an agent. The records stay unchanged.

    Lanes that differ or have paid requests are saved as runs.

    Args:
        plan: The changed agent.
        store: The store of the runs. None raises UsageError.
        runs: The ids of the runs, or the number of the newest ended runs of agents of this name.
        baseline: The agent to compare it with.
        allow_read_only: Run tools that only read for calls that are not in the record.
        limit_cost: Dollars after which no further request is sent.
        parallel: Runs at a time.
        progress: Called after each run with the number of finished runs and of all runs.

    Raises:
        UsageError: An argument is wrong.
        RunNotFound: No run has such an id.
        JournalLocked: Another process is running this comparison.
        JournalError: The journal cannot be read or written.
    """
    if store is None:
        raise UsageError(
            "This agent keeps its runs in memory (home=False), so there are none to run again. Pass a home."
        )
    if parallel < 1:
        raise UsageError(f"parallel must be at least 1, got {parallel}.")
    if limit_cost is not None and not limit_cost > 0:
        raise UsageError(f"limit_cost must be more than 0 dollars, got {limit_cost}.")
    for each in (plan, baseline):
        if limit_cost is not None and each is not None and price_of(each.client, each.llm.prices) is None:
            raise UsageError(
                f"limit_cost cannot be kept: the price of {each.client.name} is unknown. State it as "
                "llm.prices={MODEL: [INPUT, OUTPUT]}, in dollars per million tokens. Nothing was sent."
            )
    runs = runs if isinstance(runs, int) else [runs] if isinstance(runs, str) else list(runs)
    candidate, other = _quiet(plan), None if baseline is None else _quiet(baseline)
    places = asyncio.Semaphore(parallel)
    done = 0

    async def case(run_id: str) -> WhatIfCase:
        nonlocal done
        async with places:
            found = await lab.case(run_id, candidate, other)
        done += 1
        if progress is not None:
            progress(done, len(chosen))
        return found

    async with AsyncExitStack() as stack:
        for each in (plan, baseline):
            if each is not None:
                await stack.enter_async_context(each.manager)
        chosen = await store.off_loop(_chosen, store, plan.name, runs)
        name = _name(candidate, other, runs, allow_read_only=allow_read_only)
        await store.off_loop(delete_lanes, store, name)
        lab = _Lab(store, name, allow_read_only=allow_read_only, cost=CostLimit(limit_cost))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(case(run_id)) for run_id in chosen]
    return [task.result() for task in tasks]


def _name(plan: AgentPlan, baseline: AgentPlan | None, runs: object, *, allow_read_only: bool) -> str:
    """Return a name made only of the agents and the runs: a repeated comparison has the same name."""
    agents = [
        None if each is None else [each.name, each.fingerprint(each.offered_tools()), each.settings.model_dump()]
        for each in (plan, baseline)
    ]
    text = json.dumps([agents, runs, allow_read_only], default=str, sort_keys=True)
    return f"{LAB}.{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _chosen(store: Store, name: str, runs: int | Iterable[str]) -> list[str]:
    if not isinstance(runs, int):
        return list(dict.fromkeys(store.run(run_id).run_id for run_id in runs))
    if runs < 1:
        raise UsageError(f"runs must be run ids or the number of runs, at least 1; got {runs}.")
    found: list[str] = []
    for run in store.each_run(not_under=[LAB]):
        if run.status not in REPLIED:
            continue
        first = next(store.rows(run.run_id), None)
        if first is not None and isinstance(first.event, RunStarted) and first.event.name == name:
            found.append(run.run_id)
            if len(found) == runs:
                break
    return found


def _quiet(plan: AgentPlan) -> AgentPlan:
    """Return the plan without listeners, telemetry and webhook. Prompts are recorded, to compare them."""
    spec = replace(plan.spec, listeners=(), telemetry=None, webhook=None)
    return replace(plan, spec=spec, remember_dialect=None, remember_rules=None, record_prompts=True)


class _Lab:
    """Runs cases, which share `cost`."""

    def __init__(self, store: Store, name: str, *, allow_read_only: bool, cost: CostLimit) -> None:
        self._store = store
        self._name = name
        self._allow_read_only = allow_read_only
        self._cost = cost

    async def case(self, run_id: str, plan: AgentPlan, baseline: AgentPlan | None) -> WhatIfCase:
        """Run one recorded run again."""
        try:
            recorded = await self._store.off_loop(self._store.read, run_id)
        except JournalError as error:
            return WhatIfCase(run_id=run_id, problem=str(error))
        rows = recorded.rows
        started = rows[0].event if rows else None
        if recorded.problems or not isinstance(started, RunStarted):
            return WhatIfCase(run_id=run_id, problem=describe_damage(run_id, recorded.problems))
        case = WhatIfCase(run_id=run_id, task=started.task[:_SHOWN])
        if problem := _unfit(rows):
            return replace(case, problem=problem)
        try:
            return await self._lanes(case, rows, plan, baseline)
        except CloseoutError as error:
            return replace(case, problem=f"the agent cannot run the task: {error}")

    async def _lanes(
        self, case: WhatIfCase, rows: Sequence[Row], plan: AgentPlan, baseline: AgentPlan | None
    ) -> WhatIfCase:
        lane = self._kept_lane(case.run_id, "candidate")
        try:
            then, now, journal = await self._lane(case.run_id, rows, plan, lane)
            if then is None:
                problem = (
                    "The run was recorded without its prompts (journal.prompts is off), so they cannot be compared."
                )
                return replace(case, problem=problem)
            difference = first_difference(_behaviour(rows), _behaviour(journal.rows()))
            now = await _kept(lane, now, journal, differs=difference is not None)
        finally:
            lane.abandon()
        case = replace(
            case,
            then=then,
            now=now,
            differences=_differences(rows, journal.rows()),
            divergence="" if difference is None else str(difference),
        )
        if baseline is None:
            return case
        lane = self._kept_lane(case.run_id, "baseline")
        try:
            _, again, other = await self._lane(
                case.run_id, rows, baseline, lane, ask_from=journal.first_paid, names=journal.tools
            )
            again = await _kept(lane, again, other, differs=differs(then, again))
        finally:
            lane.abandon()
        return replace(case, baseline=again)

    def _kept_lane(self, run_id: str, lane: str) -> SavedLane:
        return SavedLane(self._store, f"{self._name}.{run_id}.{lane}", origin={"run": run_id, "lane": lane})

    async def _lane(
        self,
        run_id: str,
        rows: Sequence[Row],
        plan: AgentPlan,
        lane: SavedLane,
        *,
        ask_from: int | None = None,
        names: KnownTools | None = None,
    ) -> tuple[Lane | None, Lane, WhatIfJournal]:
        started = beginning(rows, run_id)
        plan = as_client(as_recorded(plan, rows), started)
        task = recorded_task(rows, run_id, load=self._store.content)
        async with plan.manager:
            tools = KnownTools(plan)
            effects = RecordedEffects.of((row.event for row in rows), tools)
            then = None if effects.lacks_prompts else _as_recorded(rows, effects.calls)
            journal = WhatIfJournal(
                new_started(plan, task),
                effects,
                tools,
                lane,
                load=self._store.content,
                allow_read_only=self._allow_read_only,
                cost=self._cost,
                ask_from=ask_from,
            )
            if then is None:
                return None, Lane(answer=None, status="failed"), journal
            result = await execute_run(plan, task, journal, ())
        status = "left the record" if journal.left else "stopped" if journal.problem else result.status
        now = Lane(
            answer=None if journal.problem else result.answer,
            status=status,
            turns=result.turns,
            tokens=result.usage.total_tokens,
            calls=_by_agent((agent, shown((names or tools).canonical(*each))) for agent, *each in journal.calls),
            paid=journal.requests_paid,
            cost=journal.paid.cost_usd if journal.requests_paid else 0.0,
            run_cost=result.usage.cost_usd,
            left=journal.left,
            problem=journal.problem or result.error,
        )
        return then, now, journal


async def _kept(lane: SavedLane, found: Lane, journal: WhatIfJournal, *, differs: bool) -> Lane:
    """Save a lane that differs or has paid requests. Return it with its run."""
    if differs and not lane.run_id and found.status != "stopped":
        await lane.begin(journal)
    ends = {"left the record": ("failed", "left_record"), "stopped": ("cancelled", "cost_limit")}
    status, reason = ends.get(found.status, (found.status, ""))
    await lane.end(RunEnded("main", status, reason, answer=found.answer, error=found.problem))
    return replace(found, run_id=lane.run_id)


def _unfit(rows: Sequence[Row]) -> str:
    """Return why a run cannot be run again; empty if it can."""
    last = rows[-1].event
    if not isinstance(last, RunEnded) or last.status not in (*REPLIED, "failed"):
        return "The run has not ended with an answer or without one."
    if any(isinstance(row.event, HandedOver) for row in rows):
        return "The conversation was handed over to another agent, and its model is not recorded."
    if any(isinstance(row.event, MessageReceived) for row in rows):
        return "Messages were sent to the run while it was running, and their time cannot be repeated."
    return ""


def _as_recorded(rows: Sequence[Row], calls: Iterable[tuple[str, str]]) -> Lane:
    totals = RunTotals(row.event for row in rows)
    ended = rows[-1].event
    assert isinstance(ended, RunEnded)
    return Lane(
        answer=ended.answer,
        status=ended.status,
        turns=totals.turns,
        tokens=None if _is_clients(rows) else totals.usage.total_tokens,
        calls=_by_agent(calls),
        cost=totals.usage.cost_usd,
        run_cost=None if _is_clients(rows) else totals.usage.cost_usd,
        problem=ended.error,
    )


def _by_agent(calls: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return calls agent by agent: concurrent agents make them in any order."""
    return tuple(call for _, call in sorted(calls, key=itemgetter(0)))


def _differences(then: Sequence[Row], now: Sequence[Row]) -> tuple[str, ...]:
    """Return how two agents differ, and the settings of their first requests."""
    agents = [] if _is_clients(then) else agent_differences(then, now)
    first, second = (_first_settings(rows) for rows in (then, now))
    settings = [
        f"{name}: {first.get(name, 'unset')} then, {second.get(name, 'unset')} now"
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
    ]
    return (*agents, *settings)


def _is_clients(rows: Sequence[Row]) -> bool:
    started = rows[0].event
    return isinstance(started, RunStarted) and started.name == CONVERSATION


def _first_settings(rows: Sequence[Row]) -> dict[str, Any]:
    asked = (row.event for row in rows if isinstance(row.event, ModelRequested) and row.event.agent == "main")
    return next(({"temperature": each.temperature, **each.options} for each in asked), {})


def _behaviour(rows: Iterable[Row]) -> list[Row]:
    """Return replies, results and the end. Requests are reduced to their turn."""
    found = []
    for row in rows:
        event: Event = row.event
        if isinstance(event, ModelRequested):
            event = ModelRequested(event.agent, event.call, event.attempt, turn=event.turn, purpose=event.purpose)
        elif not isinstance(event, (ModelReplied, ToolFinished, RunEnded)):
            continue
        if isinstance(event, RunEnded):
            event = RunEnded(event.agent, event.status, event.stop_reason, answer=event.answer)
        found.append(replace(row, event=event))
    return found
