"""A whole run, from its first event to its RunResult: new, or replayed from its record."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from closeout.compat.stream_handler import StreamHandler
from closeout.compat.task_log import TaskLog
from closeout.errors import CloseoutError, Failure, JournalError, Suspended, ToolError, UsageError
from closeout.file_values import File
from closeout.journal.events import Noted, RunEnded, RunResumed, RunStarted
from closeout.journal.run_journal import Journal, cancel_again, open_journal
from closeout.journal.run_names import new_run_id
from closeout.journal.store import Row, Store
from closeout.journal.subscribers import Listener
from closeout.journal.totals import RunTotals
from closeout.messages import Message, ToolSpec, Usage
from closeout.redaction import redact
from closeout.results.artifacts import Artifact
from closeout.run.cancelling import CancelWatch
from closeout.run.closing import with_summary
from closeout.run.collecting import run_telemetry
from closeout.run.files_of_run import Load, RunFiles, no_content
from closeout.run.flow_watch import labels_of_task, written_labels
from closeout.run.handoff import plan_after
from closeout.run.limits import Budget
from closeout.run.middleware.chain import found_in
from closeout.run.middleware.flow_rules import FlowMiddleware
from closeout.run.middleware.order import governed
from closeout.run.offered_tools import dump_definitions, dump_specs, load_specs
from closeout.run.orchestrator import AgentLoop
from closeout.run.plan import AgentPlan, RunParts, Scope
from closeout.run.result import AgentResult, RunResult, Status
from closeout.run.subagents import check_flow_names, read_result_tool
from closeout.run.task import Task, dump_texts, load_texts
from closeout.run.waits.decisions import noted_due, pending_of, wait_until
from closeout.run.waits.logins import begin_servers, recall_logins
from closeout.tools.manager import ToolManager

__all__ = [
    "as_recorded",
    "beginning",
    "execute_on",
    "execute_run",
    "new_started",
    "recorded_task",
    "replay_run",
    "run_here",
    "start_journal",
    "with_read_result",
]

T = TypeVar("T")


UNREAD = "The run ended before it read {} of the messages that were sent to it."


async def start_journal(plan: AgentPlan, task: Task, store: Store | None, run_id: str = "") -> Journal:
    """Start the journal of a new run. The plan's tools must be open.

    Raises:
        JournalError: It cannot be kept.
        UsageError: Its budget cannot be kept.
    """
    _check_budget(plan)
    started, model = new_started(plan, task), plan.client.name
    if store is None:
        return Journal.start(None, started, model, run_id=run_id, files=task.kept)
    return await open_journal(Journal.start, store, started, model, run_id=run_id, files=task.kept)


async def submit_run(plan: AgentPlan, task: Task, store: Store, run_id: str = "", *, priority: int = 0) -> str:
    """Record a run for workers and return its id. Raises what `start_journal` raises."""
    _check_budget(plan)
    run_id, started = run_id or new_run_id(), new_started(plan, task)
    create = partial(store.create_run, files=task.kept, submit=True, priority=priority)
    await store.off_loop(create, run_id, plan.client.name, started)
    return run_id


def _check_budget(plan: AgentPlan) -> None:
    """Check that the budget of a run can be kept. Raises UsageError."""
    if plan.settings.budget:
        from closeout.run.reservations import check_replies  # only runs with a budget pay for it

        check_replies(plan.settings.budget, plan.client, plan.llm.max_tokens)


def new_started(plan: AgentPlan, task: Task) -> RunStarted:
    """Return the first event of a run. The plan's tools must be open."""
    tools = plan.offered_tools()
    first = (*plan.predecessors, plan)[0]
    return RunStarted(
        "main",
        task.text,
        task.task_id,
        question=task.question if task.question != task.text else "",
        earlier=json.dumps(task.earlier) if task.earlier else "",
        images=json.dumps(task.images) if task.images else "",
        fingerprint=plan.fingerprint(tools),
        settings=redact(plan.settings.model_dump(exclude_defaults=True)),
        origin=task.origin,
        files=task.files,
        ground_truth=task.ground_truth,
        texts=dump_texts(task.texts),
        name=plan.name,
        tools=dump_specs(tools),
        own_tools=dump_definitions(tools),
        instructions=plan.instructions if plan.record_prompts else "",
        version=plan.spec.version,
        overrides=plan.overrides,
        state=task.state,
        user=task.user,
        kept_files=tuple(file.to_dict() for file in task.kept),
        handed=task.handed,
        labels=written_labels(labels_of_task(plan.flows, task)) if plan.flows else (),
        start_at=task.start_at,
        announced={} if first.spec.webhook is None else dict.fromkeys(first.spec.webhook.events, first.name),
    )


async def replay_run(
    plan: AgentPlan,
    run_id: str,
    rows: Sequence[Row],
    listeners: Sequence[Listener] = (),
    *,
    load: Load = no_content,
) -> tuple[RunResult, str]:
    """Run a record again without a model, tools or the network. `load` returns the content of a file by its SHA-256.

    Returns:
        The result, and where the run first departed from its record (empty if it did not).
    """
    plan = as_recorded(plan, rows)
    started = rows[0].event if rows else None
    if isinstance(started, RunStarted) and started.tools:
        plan = replace(plan, manager=_RecordedTools(plan.manager, load_specs(started.tools)))
    task = recorded_task(tuple(rows), run_id, load=load)
    journal = Journal.replay(run_id, rows, load=load)
    result = await execute_run(plan, task, journal, listeners)
    return result, journal.departure


async def execute_on(plan: AgentPlan, task: Task, journal: Journal) -> None:
    """Run only the loop. Raises whatever ends it."""
    scope = _scope(plan, task, journal)
    await recall_logins(scope)
    await _orchestrator(await plan.with_instructions(scope), task, scope).run()


def _scope(plan: AgentPlan, task: Task, journal: Journal, listeners: Sequence[Listener] = ()) -> Scope:
    stream = next((each for each in listeners if isinstance(each, StreamHandler)), None)
    log = next((each for each in listeners if isinstance(each, TaskLog) and each.logs_run(journal.run_id)), None)
    run = RunParts(
        journal,
        RunFiles(journal.content),
        sub_agents=plan.settings.sub_agents,
        stream=plan.stream,
        record_prompts=plan.record_prompts,
        state=dict(task.state),
        handed=list(task.handed),
        home=plan.home,
        stream_handler=stream or StreamHandler(),
        log=log,
        clock=plan.clock or journal.clock,
    )
    scope = Scope(
        run,
        Budget(plan.limits, lambda: journal.elapsed),
        telemetry=run_telemetry(plan.spec.telemetry, journal),
        prices=plan.llm.prices,
        deps=plan.deps,
    )
    scope.files.begin(task.kept)
    journal.subscribers.subscribe(scope.files)
    journal.subscribers.subscribe(scope.run.effects)
    scope.share((text.handle, Artifact(text.text, text.name)) for text in task.texts)
    return governed(scope, plan, task)


def _orchestrator(plan: AgentPlan, task: Task, scope: Scope) -> AgentLoop:
    question = task.question or task.text
    return AgentLoop(plan, scope, question, earlier=task.earlier, images=task.images, task=task.text)


async def execute_run(plan: AgentPlan, task: Task, journal: Journal, listeners: Sequence[Listener]) -> RunResult:
    """Run a task on a journal until it has a result. Every failure but cancellation is in the result."""
    listeners = (*plan.spec.listeners, *listeners)
    totals, subscribers = RunTotals(), journal.subscribers
    totals.attempts = 0
    unsubscribe = [subscribers.subscribe(totals), *(subscribers.subscribe_listener(each) for each in listeners)]
    scope = _scope(plan, task, journal, listeners)
    orchestrator: AgentLoop | None = None
    watch = CancelWatch(journal.store, journal.run_id)
    try:
        journal.announce()
        try:
            with watch:
                if task.start_at is not None:
                    await wait_until(scope, "start", task.start_at)
                await begin_servers(plan.manager, scope)
                for note in task.notes:
                    scope.warn("Files", note)
                plan.check_secrets()
                check_flow_names(plan)
                orchestrator = _orchestrator(await plan.with_instructions(scope), task, scope)
                result = await orchestrator.run()
        except Suspended as suspended:
            waits = dict.fromkeys((*suspended.requests, *scope.run.waits))  # also waits beside one that ended the call
            waiting = tuple(map(pending_of, waits))
            result = AgentResult(answer=None, stop_reason="waiting", waiting=waiting)
        except Exception as error:  # a failure is a result; an answer seen before it still counts
            result = _broken(error, journal)
            if orchestrator is not None:
                result = orchestrator.best_result(result)
        if result.stop_reason != "waiting" and (unread := journal.inbox.unread):
            scope.warn("Messages", UNREAD.format(unread))
        result = with_summary(plan, result, totals.usage, journal)
        await journal.end(_ended(result), due=noted_due(result.waiting))
    except asyncio.CancelledError as cancelled:
        await journal.end(RunEnded("main", "cancelled", "cancelled"))
        if watch.is_answered():
            result = AgentResult(answer=None, stop_reason="cancelled")
        else:
            if journal.store is not None:
                cancelled.add_note(
                    f"Run {journal.run_id} was cancelled. To continue it: closeout resume {journal.run_id}"
                )
            raise
    except BaseException:
        journal.abandon()
        raise
    finally:
        await _close([closing for leave in unsubscribe if (closing := leave()) is not None])
    return _run_result(task, result, scope, totals)


async def _close(closings: Sequence[Awaitable[object]]) -> None:
    """Wait for the listeners of a run that is over. A cancellation ends the wait, and does not change the result."""
    waiting = asyncio.gather(*closings, return_exceptions=True)
    try:
        await waiting
    except asyncio.CancelledError:
        cancel_again()


def run_here(run: Coroutine[Any, Any, T], *, instead: str = "await agent.run(…)") -> T:
    """Execute a run in an event loop of its own. On Ctrl-C the traceback ends with the command that continues it.

    Raises:
        UsageError: An event loop is running, as in a notebook. The text says what to write `instead`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        run.close()
        raise UsageError(f"An event loop is running here, as in a notebook. Write `{instead}`.")
    try:
        return asyncio.run(run)
    except KeyboardInterrupt as stop:
        for note in getattr(stop.__context__, "__notes__", ()):  # of the run that was cancelled
            stop.add_note(note)
        raise


def _broken(error: Exception, journal: Journal) -> AgentResult:
    """Return the result of a run that an exception ended: one of ours, or of a user's contract, client or tool."""
    if isinstance(error, CloseoutError):
        reason = "journal_failed" if isinstance(error, JournalError) else "failed"
        return AgentResult(answer=None, stop_reason=reason, failure=Failure.of(error))
    text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    metadata = {"traceback": "".join(traceback.format_exception(error, limit=-20))}
    try:
        journal.append(Noted("main", "error", "Internal error", message=text, metadata=metadata))
    except JournalError as failure:
        return AgentResult(answer=None, stop_reason="journal_failed", failure=Failure.of(failure))
    return AgentResult(answer=None, stop_reason="failed", failure=Failure.of(error, f"An error inside the run, {text}"))


def _ended(result: AgentResult) -> RunEnded:
    failure = result.failure or Failure("", "")
    return RunEnded(
        "main",
        _status(result),
        result.stop_reason,
        answer=result.answer,
        summary=result.summary,
        closing_text=result.text,
        error=failure.message,
        error_kind=failure.kind,
        permanent=failure.permanent,
        candidates=result.candidates,
    )


def _status(result: AgentResult) -> Status:
    if result.stop_reason == "waiting":
        return "waiting"
    if result.stop_reason == "cancelled":
        return "cancelled"
    if result.stop_reason in ("journal_failed", "failed"):
        return "failed"
    if result.answer is not None:
        return "answered"
    return "failed" if result.stop_reason in ("model_failed", "context_overflow") else "unanswered"


def _run_result(task: Task, result: AgentResult, scope: Scope, totals: RunTotals) -> RunResult:
    journal = scope.journal
    broken, rules = journal.failure, found_in(scope, FlowMiddleware)
    return RunResult(
        answer=result.answer,
        status="failed" if broken else _status(result),
        stop_reason="journal_failed" if broken else result.stop_reason,
        run_id=journal.run_id,
        value=result.value,
        failure=Failure.of(broken) if broken else result.failure,
        final_summary=result.summary,
        closing_text=result.text,
        failure_experience_summary=result.experience.text() if result.experience else None,
        turns=totals.turns,
        attempts=totals.attempts,
        rollbacks=totals.rollbacks,
        repairs=tuple(totals.repairs),
        warnings=tuple(totals.warnings),
        usage=totals.usage if totals.usage.requests else Usage(cost_usd=0.0),
        seconds=round(journal.elapsed, 3),
        candidates=result.candidates,
        waiting=result.waiting,
        labels=() if rules is None else written_labels(rules.watch.conversation),
        state=scope.run.state,
        files=scope.files.left(),
        work_files=scope.files.all(),
        handed_to=tuple(scope.run.handed),
        telemetry=scope.telemetry,
        task=task.text,
        task_id=task.task_id,
        ground_truth=task.ground_truth,
        read_rows=journal.rows,
    )


# ------------------------------------------------------------------------------------------------ records


def as_recorded(plan: AgentPlan, rows: Sequence[Row]) -> AgentPlan:
    """Return the plan as the run began: with its overrides and files, and its markers and dialect if left open."""
    started = rows[0].event if rows else None
    if not isinstance(started, RunStarted):
        return plan
    plan = plan_after(plan, started.handed)
    overrides = started.overrides
    for row in rows:
        if isinstance(row.event, RunResumed) and row.event.overrides:
            overrides = row.event.overrides
    plan = with_read_result(plan.overridden(overrides), bool(started.texts))
    if not plan.markers:
        plan = replace(plan, markers=started.fingerprint.get("markers") or {})
    dialect = started.fingerprint.get("dialect")
    return replace(plan, dialect=str(dialect)) if plan.may_switch_dialect and dialect else plan


def with_read_result(plan: AgentPlan, needed: bool) -> AgentPlan:
    """Return the plan with `read_result`, if files can be read further and the agent has no tools of its own."""
    if not needed or plan.manager.specs():
        return plan
    return replace(plan, manager=ToolManager([read_result_tool]))


def recorded_task(rows: Sequence[Row], run_id: str, *, load: Load = no_content) -> Task:
    """Return the task of a record. `load` returns the content of a file by its SHA-256.

    Raises:
        JournalError: The record has no readable beginning.
    """
    started = beginning(rows, run_id)
    return Task(
        text=started.task,
        question=started.question or started.task,
        task_id=started.task_id,
        ground_truth=started.ground_truth,
        files=started.files,
        images=tuple(json.loads(started.images)) if started.images else (),
        earlier=tuple(map(Message.of, json.loads(started.earlier))) if started.earlier else (),
        texts=load_texts(started.texts),
        state=started.state,
        user=started.user,
        kept=tuple(File.recorded(each, load) for each in started.kept_files),
        handed=tuple(started.handed),
        labels=tuple(started.labels),
        start_at=started.start_at,
    )


def beginning(rows: Sequence[Row], run_id: str) -> RunStarted:
    """Return the first event of a record.

    Raises:
        JournalError: It cannot be read.
    """
    started = rows[0].event if rows else None
    if not isinstance(started, RunStarted):
        raise JournalError(f"The record of run {run_id} has no readable beginning, so it cannot be run again.")
    return started


class _RecordedTools(ToolManager):
    """An agent's own tools, and the tools that its servers offered when it was recorded. None of them can be called."""

    def __init__(self, own: ToolManager, recorded: Sequence[ToolSpec]) -> None:
        super().__init__()
        names = {spec.name for spec in recorded}
        kept = [spec for spec in own.specs() if spec.name not in names]
        self._all = tuple(sorted((*kept, *recorded), key=lambda spec: spec.name))

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._all

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any], progress: Any = None) -> Any:
        raise ToolError(f"{spec.name} is not called in a replay: the record has no result of this call.")
