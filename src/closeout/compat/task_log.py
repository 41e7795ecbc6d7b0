"""The log of a task for people: a status, the answer, and steps with a level, a name and a message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from closeout.codec import value_or_text
from closeout.compat import check_methods
from closeout.errors import UsageError
from closeout.journal.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointReached,
    Event,
    Evicted,
    HandedOver,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    Noted,
    Repaired,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnRolledBack,
    usage_record,
)
from closeout.journal.recorded import REPLY_INTERRUPTED
from closeout.journal.store import Row
from closeout.journal.story import CallStory, Story
from closeout.journal.subscribers import Progress, RunInfo
from closeout.journal.totals import RunTotals
from closeout.parsing.readers import LOCAL_SERVER
from closeout.shared_files import write_whole

__all__ = ["StepLog", "TaskLog"]

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class StepLog:
    """One line: `level` (debug, info, warning, error), `name` such as "Main Agent | Final Answer", `time` ISO 8601."""

    level: str
    name: str
    message: str
    time: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    # The names of the original systems.
    info_level = property(lambda self: self.level)
    step_name = property(lambda self: self.name)
    timestamp = property(lambda self: self.time)


@dataclass(slots=True)
class TaskLog:
    """The log of one task.

    `status`: running | answered | unanswered | failed | cancelled. `ground_truth` is kept for
    grading; the model never sees it. `usage` holds the tokens, requests and cost of the run, with its sub-agents.
    `tool_calls` holds a record for each call that ran: agent, handle, server_name, tool_name, arguments, result or
    error, and duration_ms. `writer`, if set, is called with each step. `histories` holds the conversation of each agent
    as its model saw it, by the agent's path. `final_judge_result`, `judge_type` and `env_info` are the user's to set.

    As a listener (`agent.run(…, listeners=[MyTaskLog()])`), it logs a run while it happens, one at a time: each step
    goes through `log_step`. Clients, executors and generators of the run then have it as their `task_log`.
    """

    status: str = "running"
    task_id: str = ""
    input: Any = ""
    ground_truth: str | None = None
    final_boxed_answer: str = ""
    error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    step_logs: list[StepLog] = field(default_factory=list)
    start_time: str = field(default_factory=lambda: _iso(time.time()))
    end_time: str = ""
    log_dir: str = "logs"
    final_judge_result: str = ""
    judge_type: str = ""
    env_info: dict[str, Any] = field(default_factory=dict)
    histories: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict, repr=False, compare=False)
    writer: Callable[[StepLog], None] | None = field(default=None, repr=False, compare=False)

    def log_step(self, level: str, step_name: str, message: str, metadata: Mapping[str, Any] | None = None) -> StepLog:
        """Add a step, in constant time. An unknown level becomes info."""
        known = level.lower() if isinstance(level, str) and level.lower() in LEVELS else "info"
        step = StepLog(known, str(step_name), str(message), _iso(time.time()), dict(metadata or {}))
        self.step_logs.append(step)
        if self.writer is not None:
            self.writer(step)
        return step

    def to_dict(self, form: Literal["", "miroflow"] = "") -> dict[str, Any]:
        """Return the log as a record; with "miroflow", as MiroFlow's visualiser reads it, with the conversations."""
        if form not in ("", "miroflow"):
            raise UsageError(f'The form of a log is "" or "miroflow", got {form!r:.40}.')
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("writer", "histories")}
        steps = [asdict(step) if isinstance(step, StepLog) else step for step in self.step_logs]
        own |= {"step_logs": steps, "tool_calls": [*self.tool_calls]}
        return self._as_miroflow(own) if form else own

    def _as_miroflow(self, own: dict[str, Any]) -> dict[str, Any]:
        names = ("step_name", "message", "timestamp", "info_level", "metadata")
        status = {"answered": "success", "running": "running", "cancelled": "interrupted"}.get(self.status, "failed")
        below = (agent for agent in self.histories if agent != "main")
        return own | {
            "status": status,
            "input": {"task_description": self.input, "task_file_name": ""},
            "main_agent_message_history": _history(self.histories.get("main", ())),
            "sub_agent_message_history_sessions": {
                f"{agent.rpartition(':')[2]}_{number}": _history(self.histories[agent])
                for number, agent in enumerate(below, 1)
            },
            "step_logs": [{name: getattr(step, name) for name in names} for step in self.step_logs],
            "trace_data": {},
        }

    def to_json(self, indent: int | None = 2, form: Literal["", "miroflow"] = "") -> str:
        """Return the log as JSON. Values that JSON cannot represent become their text."""
        text = json.dumps(self.to_dict(form), ensure_ascii=False, indent=indent, default=str)
        return text.encode("utf-8", "replace").decode("utf-8")

    def save(self, path: str | Path | None = None) -> Path:
        """Write the log as a JSON file atomically. Returns the path. Raises OSError.

        Without a path it is `log_dir/task_ID_TIME.json`, in the form of MiroFlow's visualiser.
        """
        time_of_start = self.start_time.translate(str.maketrans(":. ", "---"))
        target = Path(path or Path(self.log_dir) / f"task_{self.task_id}_{time_of_start}.json")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, self.to_json(form="" if path else "miroflow").encode())
        return target

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Return a log from what `to_dict` returned. Unknown keys are ignored."""
        known = {f.name for f in fields(cls)} - {"writer", "histories"}
        values = {name: value for name, value in record.items() if name in known}
        names = {f.name for f in fields(StepLog)}
        values["step_logs"] = [
            step if isinstance(step, StepLog) else StepLog(**{k: v for k, v in step.items() if k in names})
            for step in values.get("step_logs") or ()
        ]
        return cls(**values)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """Return the log of a journal's rows."""
        log = cls(start_time="")
        summary = _TaskTotals(log)
        for row in rows:
            at = _iso(row.time)
            summary.take(at, row.event)
            described = _describe(row.event)
            if described is not None:
                level, name, message, metadata = described
                log.step_logs.append(StepLog(level, name, message, at, metadata))
        summary.finish()
        return log

    def __init_subclass__(cls) -> None:
        check_methods(cls)

    def for_run(self, run: RunInfo) -> Callable[[Event | Progress], None]:
        """Return the callback that logs the events of one run.

        Raises:
            UsageError: It logs another run at the moment.
        """
        if self.logs_run():
            raise UsageError("A TaskLog logs one run at a time. Pass each run a TaskLog of its own.")
        return _LoggedRun(self, run)

    def logs_run(self, run_id: str = "") -> bool:
        """Return whether the log is a listener of a run now: of any, or of the one named."""
        logged = getattr(getattr(self, "writer", None), "__self__", None)
        return isinstance(logged, _LoggedRun) and run_id in ("", logged.run_id)


class _TaskTotals:
    """Sets the fields of a log other than its steps, from the events of a run."""

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self._totals = RunTotals()
        self._story = Story()
        self._calls: dict[CallStory, ToolStarted] = {}

    def take(self, at: str, event: Event) -> None:
        self._totals(event)
        log = self._log
        log.start_time = log.start_time or at
        if isinstance(event, RunStarted):
            log.task_id, log.input = event.task_id or log.task_id, event.task
            log.ground_truth = event.ground_truth or log.ground_truth
        elif isinstance(event, RunEnded):
            log.status, log.final_boxed_answer, log.error = event.status, event.answer or "", event.error
            log.end_time = at
        elif isinstance(event, RunResumed):
            log.status, log.end_time = "running", ""
        elif isinstance(event, ModelRequested) and event.added:
            history = log.histories.setdefault(event.agent, [])
            if "prompt" in event.added[0]:  # a text: the rest of the one before
                before = str(history[0].get("content", ""))[: event.shared] if history else ""
                history[:] = [{"role": "user", "content": before + event.added[0]["prompt"]}]
            else:
                history[event.kept :] = event.added
        elif isinstance(event, ModelReplied):
            log.histories.setdefault(event.agent, []).append({"role": "assistant", "content": event.text})
        call = self._story.feed(event).call
        if call is not None and call.started is not None:
            self._calls[call] = call.started

    def finish(self) -> None:
        log, usage = self._log, self._totals.usage
        log.tool_calls = [_call_record(started) | _outcome(call.finished) for call, started in self._calls.items()]
        log.usage = {**usage_record(usage), "total_tokens": usage.total_tokens}


class _LoggedRun:
    """Logs the events of one run, and records the steps that hooks of the run log themselves."""

    def __init__(self, log: TaskLog, run: RunInfo) -> None:
        self.run_id = run.run_id
        self._log = log
        self._run = run
        self._totals_of_run = _TaskTotals(log)
        self._writer, log.writer = log.writer, self._write
        self._logging = False  # an event of the run, which is recorded already
        self._recording = False  # a step, which is logged already

    def __call__(self, event: Event | Progress) -> None:
        if isinstance(event, Progress):
            return
        self._totals_of_run.take(_iso(time.time()), event)
        described = None if self._recording else _describe(event)
        if described is not None:
            self._logging = True
            try:
                self._log.log_step(*described)
            finally:
                self._logging = False

    def _write(self, step: StepLog) -> None:
        if self._writer is not None:
            self._writer(step)
        if not self._logging:
            self._recording = True
            try:
                self._run.add(Noted("main", step.level, step.name, message=step.message, metadata=step.metadata))
            finally:
                self._recording = False

    def close(self) -> None:
        self._totals_of_run.finish()
        self._log.writer = self._writer


def _describe(event: Event) -> tuple[str, str, str, dict[str, Any]] | None:  # noqa: C901 - one case for each event
    """Return level, name, message and metadata of an event, None if the log does not show it."""
    who = "Main Agent" if event.agent == "main" else event.agent.removeprefix("main/")
    match event:
        case RunStarted():
            return "info", f"{who} | Start", event.task, {"files": list(event.files)}
        case AttemptStarted(attempt=attempt):
            return "info", f"{who} | Attempt {attempt}", f"starts with {len(event.experiences)} experiences", {}
        case ModelReplied(call=call):
            return "info", f"{who} | Model reply {call}", event.text, {"usage": dict(event.usage), "ms": event.ms}
        case HandedOver():
            return "info", f"{who} | Handoff", f"{event.name} continues the conversation", {"to": event.to}
        case MessageReceived():
            return "info", f"{who} | Message from the user", event.text, {"by": event.by}
        case ModelFailed(call=call):
            level = "info" if event.kind == REPLY_INTERRUPTED else "error"
            return level, f"{who} | Model request {call}", event.error, {"kind": event.kind}
        case ModelRetried(call=call):
            return "warning", f"{who} | Model request {call}", event.reason, {"wait": event.wait}
        case CheckpointReached():
            return "info", f"{who} | Checkpoint", event.name, {"turn": event.turn, "handle": event.handle}
        case ToolStarted():
            message = f"{event.name} {event.arguments}"
            return "info", f"{who} | Tool Call {event.handle}", message, _call_record(event)
        case ToolFinished(ok=ok):
            metadata = {"tool_name": event.name, "ms": event.ms, "ok": ok}
            metadata |= {"labels": list(event.labels)} if event.labels else {}
            step = f"{who} | Tool Result {event.handle}"
            return "info" if ok else "warning", step, event.note or event.name, metadata
        case Repaired():
            return "info", f"{who} | Repair", f"{event.kind} {event.where}: {event.before} → {event.after}", {}
        case TurnRolledBack(turn=turn):
            message = f"{event.reason}: {event.detail}" if event.detail else event.reason
            return "warning", f"{who} | Rollback of turn {turn}", message, {"change": event.change}
        case Evicted():
            return "info", f"{who} | Eviction", f"{event.results} results, {event.reason}", {"tokens": event.tokens}
        case AttemptEnded(attempt=attempt):
            return "info", f"{who} | End of attempt {attempt}", event.reason, {"answer": event.answer}
        case Noted():
            return event.level, event.name, event.message, dict(event.metadata)
        case RunEnded():
            return "info", f"{who} | End", f"{event.status}: {event.stop_reason}", {"answer": event.answer}
    return None


def _call_record(event: ToolStarted) -> dict[str, Any]:
    return {
        "agent": event.agent,
        "handle": event.handle,
        "server_name": event.server_name or LOCAL_SERVER,
        "tool_name": event.name,
        "arguments": value_or_text(event.arguments),
    }


def _outcome(event: ToolFinished | None) -> dict[str, Any]:
    """Return what the record of a call holds of its outcome; nothing if it has not finished."""
    if event is None:
        return {}
    if not event.ok:
        return {"error": event.note, "duration_ms": event.ms}
    output = value_or_text(event.record)
    result = output.get("result", output.get("summary")) if isinstance(output, dict) else output
    return {"result": result, "duration_ms": event.ms}


def _history(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    has_system = bool(messages) and messages[0].get("role") == "system"
    system = messages[0].get("content", "") if has_system else ""
    return {"system_prompt": system, "message_history": [dict(message) for message in messages[has_system:]]}


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1000):03d}"
