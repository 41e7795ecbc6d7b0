"""Undo what a recorded call did, by the function that its tool has for that. The undoing is a run of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from itertools import count
from typing import Any

from closeout.codec import json_of_any
from closeout.errors import RunExists, RunNotFound, UsageError
from closeout.journal.events import Event, RunEnded, RunStarted, ToolFinished, ToolStarted
from closeout.journal.run_journal import Journal, open_journal
from closeout.journal.run_names import call_id
from closeout.journal.store import Row, RunRows, Store
from closeout.results.tool_output import ToolOutput, ToolTelemetry
from closeout.run.plan import AgentPlan
from closeout.run.programs import PROGRAM
from closeout.run.resuming import plan_at
from closeout.tools.executor import UNSURE
from closeout.tools.running import failed_output, stopped_output
from closeout.tools.threads import run_in_thread
from closeout.visible import visible

__all__ = ["undo_call", "undoable_calls"]

_NOT_IN_NAMES = re.compile(r"\W+")

CUT_OFF = "Interrupted: the program stopped while the call was being undone. Look at what is there before you continue."


async def undo_call(plan: AgentPlan, store: Store, run_id: str, call: str) -> ToolOutput:
    """Undo a call of a recorded run. If that has succeeded before, nothing happens again.

    Args:
        plan: The agent, whose tool has `undo`.
        store: Where the run is kept.
        run_id: The run.
        call: The handle of the call, such as r3, or r4:clerk/r2 for a call of the sub-agent in r4.

    Returns:
        What the function returned; why it failed, if it did.

    Raises:
        RunNotFound: No such run.
        UsageError: There is no such call, it did not succeed, or its tool has no `undo`.
        JournalError: The record cannot be read or written, or another process is undoing the call.
    """
    rows = await store.off_loop(lambda: [*store.rows(run_id)])
    if not rows:
        raise RunNotFound(f"There is no run {run_id}.")
    started, finished = _call_in(rows, run_id, call)
    undo = _undo_of(plan, started, call)
    name = f"undo {started.name}"
    began = rows[0].event
    intent = ToolStarted("main", "r1", name, arguments=started.arguments)
    opening = RunStarted(
        "main",
        f"Undo {call} of run {run_id}",
        name=plan.name,
        user=began.user if isinstance(began, RunStarted) else "",
        origin={"undo": {"run": run_id, "call": call}},
    )
    for number in count(1):
        own_id = _undo_id(run_id, call, number)
        try:
            journal = await open_journal(Journal.start, store, opening, run_id=own_id)
            break
        except RunExists:
            tried = _outcome(await store.off_loop(store.read, own_id))
        if tried is None:
            journal = await open_journal(Journal.reopen, store, own_id)
            break
        if tried.success:
            return tried

    async def make() -> Event:
        given = json.loads(started.arguments), ToolOutput.from_record(json.loads(finished.record)).result
        try:
            result = await undo(*given) if iscoroutinefunction(undo) else await run_in_thread(partial(undo, *given))
            output = ToolOutput.of(result, visible(str(result)), ToolTelemetry(tool_name=name))
        except Exception as error:
            output = failed_output(name, f"{type(error).__name__}: {error}", type(error).__name__)
        return _finished(name, output)

    try:
        made = await journal.effect(
            intent, make, interrupted=lambda: _finished(name, stopped_output(name, CUT_OFF, UNSURE))
        )
    except BaseException:
        journal.abandon()
        raise
    assert isinstance(made, ToolFinished)
    if made.ok:
        ended = RunEnded("main", "answered", "undone", answer=f"Undone: {started.name}")
    else:
        ended = RunEnded("main", "failed", "error", error=made.note)
    await journal.end(ended)
    return ToolOutput.from_record(json.loads(made.record))


async def undoable_calls(plan: AgentPlan, store: Store, run_id: str) -> dict[str, bool]:
    """Return the calls of a run whose tools can undo them, and whether they have been undone."""

    def read() -> dict[str, bool]:
        started, finished, found = dict[str, ToolStarted](), dict[str, bool](), dict[str, bool]()
        for event in (row.event for row in store.rows(run_id)):
            if isinstance(event, ToolStarted):
                started[call_id(event.agent, event.handle)] = event
            elif isinstance(event, ToolFinished):
                finished[call_id(event.agent, event.handle)] = event.ok
        for call in (each for each, ok in finished.items() if ok and each in started):
            with suppress(UsageError):
                _undo_of(plan, started[call], call)
                found[call] = False
        for call in found:
            with suppress(RunNotFound):
                for number in count(1):
                    tried = store.run(_undo_id(run_id, call, number))
                    found[call] = found[call] or tried.status == "answered"
        return found

    return await store.off_loop(read)


def _undo_id(run_id: str, call: str, number: int) -> str:
    return f"{run_id}.undo-{_NOT_IN_NAMES.sub('-', call)}" + (f"-{number}" if number > 1 else "")


def _call_in(rows: Sequence[Row], run_id: str, call: str) -> tuple[ToolStarted, ToolFinished]:
    path, _, handle = f"main/{call}".rpartition("/")
    started = finished = None
    for event in (row.event for row in rows):
        if isinstance(event, ToolStarted) and (event.agent, event.handle) == (path, handle):
            started = event
        elif isinstance(event, ToolFinished) and (event.agent, event.handle) == (path, handle):
            finished = event
    if started is None:
        raise UsageError(f"Run {run_id} has made no call {call}. `closeout runs {run_id}` lists its calls.")
    if finished is None or not finished.ok:
        raise UsageError(f"The call {call} of run {run_id} did not succeed, so there is nothing known to undo.")
    return started, finished


def _undo_of(plan: AgentPlan, started: ToolStarted, call: str) -> Any:
    path = started.agent
    below = plan_at(plan, path.rpartition("/")[0] if path.endswith(f":{PROGRAM}") else path)
    tools = () if below is None else below.manager.local_tools
    policy = next((each.spec.policy for each in tools if each.spec.name == started.name), None)
    if policy is None:
        raise UsageError(f"The agent {plan.name} has no tool {started.name}, which the call {call} was made with.")
    if policy.undo is None:
        raise UsageError(f"The tool {started.name} has no undo. Declare it: @tool(undo=function).")
    return policy.undo


def _finished(name: str, output: ToolOutput) -> ToolFinished:
    telemetry = output.telemetry
    record, note = json_of_any(output.lean_record()), telemetry.error_message or ""
    return ToolFinished("main", "r1", name, ok=telemetry.success, record=record, note=note)


def _outcome(record: RunRows) -> ToolOutput | None:
    found = [row.event for row in record.rows if isinstance(row.event, ToolFinished)]
    return ToolOutput.from_record(json.loads(found[-1].record)) if found else None
