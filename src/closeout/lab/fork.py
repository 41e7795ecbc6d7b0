"""Fork a recorded run: a new run that begins with the same events, at no request and no tool call.

The beginning is not copied but executed on the recorded outcomes, so that what the runtime derives from them (the turns
as the model sees them, rollbacks, evictions) is that of the agent that continues, and follows results that are changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from closeout.errors import Suspended, UsageError
from closeout.journal.events import (
    CheckpointReached,
    DecisionMade,
    DecisionRequested,
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    RunStarted,
    ServerAsked,
    ServerTold,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.run_journal import Journal, describe_damage
from closeout.journal.run_names import new_run_id
from closeout.journal.store import Row, Store
from closeout.results.normal import normalise
from closeout.results.summary import summarise
from closeout.results.tool_output import ToolOutput, ToolTelemetry
from closeout.run.lifecycle import as_recorded, execute_on, new_started, recorded_task
from closeout.run.plan import AgentPlan

__all__ = ["fork_run"]

_INTENTS = (ModelRequested, ToolStarted, ServerAsked, DecisionRequested)
_OUTCOMES = (ModelReplied, ModelFailed, ToolFinished, ServerTold)  # a decision belongs to the run in which it was made


async def fork_run(
    plan: AgentPlan,
    store: Store,
    run_id: str,
    *,
    at: int | str | None = None,
    set_results: Mapping[str, Any] | None = None,
    note: str = "",
    new_id: str = "",
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Record a new run that begins as a recorded one did. It is not executed: resuming it does that.

    Args:
        plan: The agent that is to continue; it may be another one.
        store: Where the run is kept, and the new one will be.
        run_id: The run. It stays as it is.
        at: Where: see `Agent.fork`. None: after the results that are set.
        set_results: Other results for calls of the last turn, by handle.
        note: A hint for the model, shown with every request from the fork on.
        new_id: The name of the new run.
        origin: Notes for the person who resumes it; those of the run if None.

    Returns:
        The name of the new run.

    Raises:
        UsageError: There is no such place in the run, or nothing would be left to do after it.
        RunNotFound, JournalError: The record cannot be read, or the new one not written.
    """
    record = await store.off_loop(store.read, run_id)
    if record.problems:
        raise UsageError(describe_damage(run_id, record.problems))
    rows = record.rows
    end = _end_of_prefix(run_id, rows, at, set_results or {})
    prefix = _with_results(run_id, _without_open_permits(_whole(rows, end)), set_results or {})
    plan = as_recorded(plan, rows)
    async with plan.manager:
        task = recorded_task(rows, run_id, load=store.content)
        before = rows[0].event
        assert isinstance(before, RunStarted)
        task = replace(task, origin=before.origin if origin is None else origin)
        started = replace(new_started(plan, task), forked={"run_id": run_id, "events": end}, notes=before.notes)
        journal = Journal.replay(run_id, (Row(0, rows[0].time, started), *prefix[1:]), suspends=True)
        seen: list[tuple[float, Event]] = []  # each with the seconds that the run had been at work

        def collect(event: Any) -> None:
            if isinstance(event, Event) and not isinstance(event, RunStarted):
                seen.append((journal.elapsed, event))

        journal.subscribers.subscribe(collect)
        try:
            await execute_on(plan, task, journal)
        except Suspended:
            pass
        else:
            raise UsageError(f"Run {run_id} is over at that point: nothing is left to do. Fork it earlier.")
    events = _without_open_intents(seen)
    if note:
        requests = sum(isinstance(event, ModelRequested) and event.agent == "main" for _, event in events)
        started = replace(started, notes=(*started.notes, {"request": requests, "text": note}))
    new_id = new_id or new_run_id()
    number = await store.off_loop(store.create_run, new_id, plan.client.name, started, events)
    await store.off_loop(store.release, number)
    return new_id


def _without_open_intents(events: Sequence[tuple[float, Event]]) -> list[tuple[float, Event]]:
    """Return the events without the intents that have no outcome: they are what the new run does next."""
    closed = {_effect(event) for _, event in events if isinstance(event, (*_OUTCOMES, DecisionMade))}
    return [(at, event) for at, event in events if not isinstance(event, _INTENTS) or _effect(event) in closed]


def _effect(event: Event) -> tuple[str, str, str]:
    """The key that an intent and its outcome share."""
    kind = "model" if isinstance(event, (ModelRequested, ModelReplied, ModelFailed)) else ""
    kind = kind or ("tool" if isinstance(event, (ToolStarted, ToolFinished)) else "")
    kind = kind or ("server" if isinstance(event, (ServerAsked, ServerTold)) else "decision")
    return event.agent, kind, event.key


# ------------------------------------------------------------------------------------------------ where


def _end_of_prefix(run_id: str, rows: Sequence[Row], at: int | str | None, set_results: Mapping[str, Any]) -> int:
    """Return how many events the prefix has."""
    after = max((_end_of_turn(run_id, rows, handle) for handle in set_results), default=0)
    if at is None:
        if not set_results:
            raise UsageError(
                "Say where to fork: at=3 (before turn 3), at='e57' (after event 57) or a checkpoint's name."
            )
        return after
    end = _place(run_id, rows, at)
    for handle in set_results:
        finished = _finished(run_id, rows, handle)
        read = [
            row for row in rows[finished:end] if isinstance(row.event, ModelRequested) and row.event.agent == "main"
        ]
        if end <= finished or read:
            raise UsageError(
                f"{handle} does not belong to the last turn before that point, and what follows depends on it. "
                "Leave out `at` to fork right after it."
            )
    return end


def _place(run_id: str, rows: Sequence[Row], at: int | str) -> int:
    text = str(at)
    if text[:1] == "e" and text[1:].isdecimal():
        if int(text[1:]) >= len(rows):
            raise UsageError(f"Run {run_id} has no event {text[1:]}: its last one is {len(rows) - 1}.")
        return max(int(text[1:]), 0) + 1
    attempt, _, turn = text.rpartition(".")
    if turn.isdecimal() and (not attempt or attempt.isdecimal()):
        return _before_turn(run_id, rows, int(attempt) if attempt else None, int(turn))
    named = [n for n, row in enumerate(rows) if isinstance(row.event, CheckpointReached) and row.event.name == text]
    if not named:
        names = sorted({row.event.name for row in rows if isinstance(row.event, CheckpointReached)})
        known = f"It has: {', '.join(names)}." if names else "It has none."
        raise UsageError(f"Run {run_id} has no checkpoint {text!r}. {known} Turns are numbers, events e57.")
    return named[-1] + 1


def _before_turn(run_id: str, rows: Sequence[Row], attempt: int | None, turn: int) -> int:
    """Return the place of the first request of a turn, counted from 1; in the last attempt that has it if None."""
    places: dict[tuple[int, int], int] = {}
    for place, row in enumerate(rows):
        event = row.event
        if isinstance(event, ModelRequested) and event.agent == "main" and event.purpose == "act":
            places.setdefault((event.attempt + 1, event.turn + 1), place)
    found = [at for (number, each), at in places.items() if each == turn and attempt in (None, number)]
    if not found:
        turns = ", ".join(f"{number}.{each}" if number > 1 else str(each) for number, each in places)
        raise UsageError(
            f"Run {run_id} has no turn {turn if attempt is None else f'{attempt}.{turn}'}. It has: {turns}."
        )
    return found[-1]


def _finished(run_id: str, rows: Sequence[Row], handle: str) -> int:
    for place, row in enumerate(rows):
        if isinstance(row.event, ToolFinished) and row.event.agent == "main" and row.event.handle == handle:
            return place
    raise UsageError(
        f"The main agent of run {run_id} has no result {handle!r}. `closeout runs {run_id} --json` has them."
    )


def _end_of_turn(run_id: str, rows: Sequence[Row], handle: str) -> int:
    """Return the place of the event that ends the turn of a call."""
    finished = _finished(run_id, rows, handle)
    for place, row in enumerate(rows[finished:], finished):
        if isinstance(row.event, (TurnAccepted, TurnRolledBack)) and row.event.agent == "main":
            return place
    return len(rows)


def _whole(rows: Sequence[Row], end: int) -> list[Row]:
    """Return the prefix, with the outcomes of effects that began in it and the events of sub-agents in such calls."""
    kept = list(rows[:end])
    closed = {_effect(row.event) for row in kept if isinstance(row.event, _OUTCOMES)}
    begun = {_effect(row.event) for row in kept if isinstance(row.event, _INTENTS)} - closed
    below = tuple(f"{agent}/{key}:" for agent, kind, key in begun if kind == "tool")
    for row in rows[end:]:
        is_outcome = isinstance(row.event, _OUTCOMES) and _effect(row.event) in begun
        if is_outcome or (below and row.event.agent.startswith(below)):
            kept.append(row)
    return kept


def _without_open_permits(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without the approvals and signals that no result of their call follows: each is for one call."""
    kept, finished = list[Row](), set[tuple[str, str]]()
    for row in reversed(rows):
        event = row.event
        if isinstance(event, ToolFinished):
            finished.add((event.agent, event.handle))
        permit = event if isinstance(event, DecisionMade) and event.verdict in ("approve", "signal") else None
        if permit is None or (permit.agent, permit.request.partition(".")[0]) in finished:
            kept.append(row)
    return kept[::-1]


def _with_results(run_id: str, rows: Sequence[Row], results: Mapping[str, Any]) -> list[Row]:
    changed = list(rows)
    for handle, value in results.items():
        place = _finished(run_id, rows, handle)
        event = rows[place].event
        assert isinstance(event, ToolFinished)
        result = normalise(value)
        output = ToolOutput.of(result, summarise(result), ToolTelemetry(tool_name=event.name, success=True))
        record = json.dumps(output.lean_record(), default=str)
        changed[place] = replace(rows[place], event=replace(event, ok=True, record=record, note=""))
    return changed
