"""Load the result of a run that has ended from its record, without running anything again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from closeout.answers.contracts import AnswerContract
from closeout.errors import Failure, JournalError
from closeout.journal.events import AnswerSeen, AttemptEnded, Event, RunStarted
from closeout.journal.recorded import RecordedRun
from closeout.journal.store import Row
from closeout.journal.totals import RunTotals
from closeout.messages import Usage
from closeout.results.telemetry import TelemetryCollector
from closeout.run.calls import refused_calls
from closeout.run.files_of_run import Load, files_of
from closeout.run.flow_watch import labels_of_events
from closeout.run.handoff import handed_to_of
from closeout.run.result import RunResult, Status, outputs_of, state_of

__all__ = ["load_result"]


def load_result(
    run_id: str,
    rows: Sequence[Row],
    contract: AnswerContract,
    read_rows: Callable[[], Sequence[Row]],
    *,
    load: Load,
) -> RunResult:
    """Return the result of a recorded run that has ended.

    Args:
        run_id: The name of the run.
        rows: Its record.
        contract: Reads `value` from the recorded answer.
        read_rows: Reads the record again, for the result's views of it.
        load: Returns the content of a file by its SHA-256.

    Raises:
        JournalError: The run has not ended.
    """
    events = [row.event for row in rows]
    totals = RunTotals(events)
    ended, started = totals.ended, events[0] if events else None
    if ended is None or not isinstance(started, RunStarted):
        raise JournalError(f"Run {run_id} has not ended, so it has no result. `closeout resume {run_id}` continues it.")
    failed = ended.error or ended.error_kind
    files = files_of(events, load)
    telemetry = TelemetryCollector()
    for output in outputs_of(events):
        telemetry.record(output.telemetry)
    for refused in refused_calls(events):
        telemetry.record(refused)
    return RunResult(
        answer=ended.answer,
        status=cast(Status, ended.status),
        stop_reason=ended.stop_reason,
        run_id=run_id,
        value=None if ended.answer is None else _value(contract, ended.answer, ended.closing_text, events),
        failure=Failure(ended.error_kind, ended.error, permanent=ended.permanent) if failed else None,
        final_summary=ended.summary,
        closing_text=ended.closing_text,
        failure_experience_summary=_experience(events) if ended.answer is None else None,
        turns=totals.turns,
        attempts=totals.attempts,
        rollbacks=totals.rollbacks,
        repairs=tuple(totals.repairs),
        warnings=tuple(totals.warnings),
        usage=totals.usage if totals.usage.requests else Usage(cost_usd=0.0),
        seconds=round(RecordedRun(tuple(rows)).work, 3),
        candidates=tuple((str(answer), float(share)) for answer, share in ended.candidates),
        labels=labels_of_events(events),
        state=state_of(events),
        files=files.left(),
        work_files=files.all(),
        handed_to=handed_to_of(events),
        telemetry=telemetry,
        task=started.task,
        task_id=started.task_id,
        ground_truth=started.ground_truth,
        read_rows=read_rows,
    )


def _value(contract: AnswerContract, answer: str, closing_text: str, events: Iterable[Event]) -> Any:
    """Return the answer in the contract's own type, read from the text in which the model gave it."""
    seen = [event.text or event.answer for event in events if isinstance(event, AnswerSeen) and event.answer == answer]
    for text in (closing_text, *reversed(seen), answer):
        reading = contract.read(text)
        if reading.ok and reading.text == answer:
            return reading.value
    return None


def _experience(events: Iterable[Event]) -> str | None:
    texts = [event.experience for event in events if isinstance(event, AttemptEnded) and event.agent == "main"]
    return texts[-1] if texts and texts[-1] else None
