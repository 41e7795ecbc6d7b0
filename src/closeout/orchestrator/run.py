"""Leads a whole run: opens its journal and tools, lets the Orchestrator work, and always ends with a RunResult."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from closeout.errors import CloseoutError, JournalError, ResumeRefused
from closeout.journal.events import Noted, RunEnded, RunStarted
from closeout.journal.journal import Journal, Listener
from closeout.journal.ledger import Ledger
from closeout.journal.store import Row, Store
from closeout.journal.task_log import TaskLog
from closeout.messages import Message
from closeout.orchestrator.closing import Closed
from closeout.orchestrator.files import FileText, dump_texts, load_texts
from closeout.orchestrator.limits import Budget
from closeout.orchestrator.orchestrator import Orchestrator
from closeout.orchestrator.plan import AgentPlan, differences
from closeout.orchestrator.recorded_tools import RecordedTools, dump_specs, load_specs
from closeout.orchestrator.result import RunResult, Status
from closeout.orchestrator.scope import Scope
from closeout.orchestrator.subagents import read_result_tool
from closeout.outputs.artifacts import Artifact
from closeout.tools.manager import ToolManager

__all__ = ["Task", "lead", "replay", "resume"]


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked. `question` is the text the model gets: the task, with the texts of its files before it.

    `texts` are those of which the question holds the head only; `notes` say what was left out of the files.
    """

    text: str
    question: str = ""
    task_id: str = ""
    ground_truth: str | None = None
    files: tuple[str, ...] = ()
    images: tuple[dict[str, Any], ...] = ()
    earlier: tuple[Message, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[FileText, ...] = ()
    notes: tuple[str, ...] = ()


async def lead(
    plan: AgentPlan, task: Task, store: Store | None, listeners: Sequence[Listener] = (), run_id: str = ""
) -> RunResult:
    """A new run from its first event to its last. Raises JournalError where no journal can be started."""
    plan = _able_to_read(plan, bool(task.texts))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plan.manager)
        started = RunStarted(
            "main",
            task.text,
            task.task_id,
            task.question if task.question != task.text else "",
            json.dumps(task.earlier) if task.earlier else "",
            json.dumps(task.images) if task.images else "",
            plan.fingerprint(plan.offered_tools()),
            plan.settings.model_dump(exclude_defaults=True),
            task.origin,
            task.files,
            task.ground_truth,
            dump_texts(task.texts),
            plan.name,
            dump_specs(plan.offered_tools()),
        )
        journal = Journal.start(store, started, plan.client.name, run_id)
        return await _lead(plan, task, journal, listeners)


async def resume(
    plan: AgentPlan, store: Store, run_id: str, listeners: Sequence[Listener] = (), *, despite_changes: bool = False
) -> RunResult:
    """Lead a recorded run on from where it stopped.

    Raises RunNotFound, JournalLocked while somebody leads it, and ResumeRefused with the differences where the agent is
    not the one that made the record, unless `despite_changes`.
    """
    rows = tuple(store.rows(run_id))
    plan = _as_recorded(plan, rows)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plan.manager)
        task = _recorded_task(plan, rows, run_id, despite_changes)
        return await _lead(plan, task, Journal.reopen(store, run_id), listeners)


async def replay(
    plan: AgentPlan, run_id: str, rows: Sequence[Row], listeners: Sequence[Listener] = ()
) -> tuple[RunResult, str]:
    """Run a record again with no model, no tools, no network. Returns the result and where it first departed."""
    plan = _as_recorded(plan, rows)
    started = rows[0].event if rows else None
    if isinstance(started, RunStarted) and started.tools:
        plan = replace(plan, manager=RecordedTools(plan.manager, load_specs(started.tools)))
    task = _recorded_task(plan, tuple(rows), run_id, despite_changes=True)
    journal = Journal.replay(run_id, rows)
    result = await _lead(plan, task, journal, listeners)
    return result, journal.departure


def _as_recorded(plan: AgentPlan, rows: Sequence[Row]) -> AgentPlan:
    """The plan as the run began: able to read its files, and in its dialect, where the agent leaves that open."""
    started = rows[0].event if rows else None
    if not isinstance(started, RunStarted):
        return plan
    plan = _able_to_read(plan, bool(started.texts))
    dialect = started.fingerprint.get("dialect")
    return replace(plan, dialect=str(dialect)) if plan.may_switch_dialect and dialect else plan


def _able_to_read(plan: AgentPlan, needed: bool) -> AgentPlan:
    """The plan with `read_result`, where files are to be read on and the agent has no tools of its own."""
    if not needed or plan.manager.specs():
        return plan
    return replace(plan, manager=ToolManager([read_result_tool]))


def _recorded_task(plan: AgentPlan, rows: tuple[Row, ...], run_id: str, despite_changes: bool) -> Task:
    started = rows[0].event if rows else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"The record of run {run_id} has no readable beginning, so it cannot be led again.")
    found = differences(started.fingerprint, plan.fingerprint(plan.offered_tools()))
    if found and not despite_changes:
        raise ResumeRefused(
            f"Run {run_id} was made by another agent: {'; '.join(found)}. Resume it with that agent, or say "
            "that you want to go on all the same (--force, in Python despite_changes=True).",
            found,
        )
    return Task(
        started.task,
        started.question or started.task,
        started.task_id,
        started.ground_truth,
        started.files,
        tuple(json.loads(started.images)) if started.images else (),
        tuple(map(Message.of, json.loads(started.earlier))) if started.earlier else (),
        texts=load_texts(started.texts),
    )


async def _lead(plan: AgentPlan, task: Task, journal: Journal, listeners: Sequence[Listener]) -> RunResult:
    ledger = Ledger()
    ledger.attempts = 0
    leave = [journal.listen(ledger), *(journal.invite(listener) for listener in listeners)]
    budget = Budget(plan.limits, lambda: journal.elapsed)
    scope = Scope(journal, budget, sub_agents=plan.settings.sub_agents, stream=plan.stream)
    scope.share((text.handle, Artifact(text.text, text.name)) for text in task.texts)
    try:
        journal.announce()
        closed = await _work(plan, task, scope)
        status, why = _status(closed), closed.stop_reason
        journal.end(RunEnded("main", status, why, closed.answer, closed.summary, closed.error, closed.error_kind))
    except asyncio.CancelledError:
        journal.end(RunEnded("main", "cancelled", "cancelled"))
        raise
    except BaseException:
        journal.abandon()
        raise
    finally:
        for stop_listening in leave:
            stop_listening()
    return _result(closed, task, journal, ledger)


async def _work(plan: AgentPlan, task: Task, scope: Scope) -> Closed:
    try:
        for problem in plan.manager.problems:
            scope.journal.append(Noted("main", "warning", "MCP", str(problem)))
        for note in task.notes:
            scope.journal.append(Noted("main", "warning", "Files", note))
        question = task.question or task.text
        orchestrator = Orchestrator(plan, scope, question, earlier=task.earlier, images=task.images, task=task.text)
        return await _best_of(orchestrator, scope)
    except CloseoutError as error:
        return Closed.failed(_reason(error), error)


async def _best_of(orchestrator: Orchestrator, scope: Scope) -> Closed:
    """How the agent's work ends; where something breaks that is nobody's business, the best answer it has so far."""
    try:
        return await orchestrator.run()
    except CloseoutError as error:
        return orchestrator.so_far(Closed.failed(_reason(error), error))
    except Exception as error:  # of this package, or of a contract or client that somebody brought
        text = f"{type(error).__name__}: {error}"
        metadata = {"traceback": traceback.format_exc(limit=-20)}
        scope.journal.append(Noted("main", "error", "Internal error", text, metadata))
        return orchestrator.so_far(Closed.failed("failed", error, f"An error inside the run, {text}"))


def _reason(error: CloseoutError) -> str:
    return "journal_failed" if isinstance(error, JournalError) else "failed"


def _status(closed: Closed) -> Status:
    if closed.stop_reason in ("journal_failed", "failed"):
        return "failed"
    if closed.answer is not None:
        return "answered"
    return "failed" if closed.stop_reason in ("model_failed", "context_overflow") else "unanswered"


def _result(closed: Closed, task: Task, journal: Journal, ledger: Ledger) -> RunResult:
    failure = journal.failure
    return RunResult(
        answer=closed.answer,
        status="failed" if failure else _status(closed),
        stop_reason="journal_failed" if failure else closed.stop_reason,
        run_id=journal.run_id,
        value=closed.value,
        error=str(failure) if failure else closed.error,
        error_kind=type(failure).__name__ if failure else closed.error_kind,
        final_summary=closed.summary,
        failure_experience_summary=closed.experience.text() if closed.experience else None,
        turns=ledger.turns,
        attempts=ledger.attempts,
        rollbacks=ledger.rollbacks,
        repairs=tuple(ledger.repairs),
        usage=ledger.usage,
        seconds=round(journal.elapsed, 3),
        candidates=closed.candidates,
        read_log=lambda: TaskLog.of(journal.rows()),
    )
