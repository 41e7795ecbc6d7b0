"""Log runs with stdlib `logging`: one JSON object for each event, whose fields keep their names and meaning."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from closeout.journal import events as ev
from closeout.journal.subscribers import Progress, RunInfo

__all__ = ["JsonLogListener"]

# The fields beside time, run_id, agent and event. What a person, a model or a tool wrote is in _CONTENT.
_FIELDS: Mapping[type[ev.Event], tuple[str, ...]] = {
    ev.RunStarted: ("name", "task_id"),
    ev.RunResumed: ("idle",),
    ev.RunEnded: ("status", "stop_reason", "error", "error_kind"),
    ev.InstructionsWritten: (),
    ev.AgentStarted: ("name", "model"),
    ev.AgentEnded: ("status",),
    ev.AttemptStarted: ("attempt",),
    ev.AttemptEnded: ("attempt", "reason", "turns"),
    ev.ModelRequested: ("call", "attempt", "turn", "purpose", "messages", "size", "shared", "temperature"),
    ev.ModelRetried: ("call", "reason", "wait"),
    ev.ReplyStreamed: ("call", "offset"),
    ev.ModelReplied: ("call", "finish_reason", "model", "ms", "usage"),
    ev.ModelFailed: ("call", "kind", "error", "status", "ms", "usage"),
    ev.ServerAsked: ("what",),
    ev.ServerTold: ("what", "value"),
    ev.ToolStarted: ("handle", "name", "turn", "call_id", "server_name"),
    ev.ToolFinished: ("handle", "name", "ok", "ms", "labels"),
    ev.ToolsChanged: ("request",),
    ev.FlowDecided: ("handle", "name", "decision", "labels"),
    ev.CallDecided: ("request", "name", "decision"),
    ev.DecisionRequested: ("request", "kind", "name"),
    ev.DecisionMade: ("request", "verdict", "by"),
    ev.AnswerGiven: ("request",),
    ev.CallRepeated: ("request",),
    ev.TaskCreated: ("handle", "task"),
    ev.Repaired: ("turn", "kind", "where"),
    ev.TurnAccepted: ("attempt", "turn"),
    ev.TurnRolledBack: ("attempt", "turn", "reason", "tokens"),
    ev.AnswerSeen: ("attempt", "turn"),
    ev.CheckStarted: ("number", "name"),
    ev.CheckFinished: ("number", "ms"),
    ev.CheckpointReached: ("attempt", "turn", "name", "handle"),
    ev.Evicted: ("attempt", "before", "results", "tokens", "reason"),
    ev.Compacted: ("attempt", "before", "tokens"),
    ev.HandedOver: ("name", "to"),
    ev.MessageReceived: ("id", "request", "by", "interrupts"),
    ev.Noted: ("level", "name", "message"),
}
_CONTENT: Mapping[type[ev.Event], tuple[str, ...]] = {
    ev.RunStarted: ("task", "files", "ground_truth"),
    ev.RunEnded: ("answer", "summary"),
    ev.InstructionsWritten: ("text",),
    ev.AgentStarted: ("task",),
    ev.AgentEnded: ("report",),
    ev.AttemptEnded: ("answer", "experience"),
    ev.ReplyStreamed: ("text",),
    ev.ModelReplied: ("text", "reasoning", "tool_calls"),
    ev.ToolStarted: ("arguments",),
    ev.ToolFinished: ("note", "record"),
    ev.ToolsChanged: ("tools",),
    ev.CheckStarted: ("answer",),
    ev.CheckFinished: ("problem",),
    ev.DecisionRequested: ("arguments", "reason"),
    ev.FlowDecided: ("arguments", "reason"),
    ev.CallDecided: ("arguments", "reason"),
    ev.DecisionMade: ("arguments", "text"),
    ev.Repaired: ("before", "after"),
    ev.TurnRolledBack: ("detail", "change"),
    ev.AnswerSeen: ("answer",),
    ev.Compacted: ("summary",),
    ev.MessageReceived: ("text",),
}
_QUIET = (ev.ModelRequested, ev.ReplyStreamed, ev.ServerAsked, ev.ToolStarted, ev.AttemptStarted, ev.AnswerGiven)
_WARNINGS = (ev.ModelRetried, ev.ModelFailed, ev.TurnRolledBack)


class JsonLogListener:
    """Logs runs: `agent.run(…, listeners=[JsonLogListener()])`. One serves any number of runs at once.

    Each line is an object with `time` (ISO 8601, UTC), `run_id`, `agent` (its path), `event` (its type) and the event's
    own fields. Intents are logged at DEBUG; failures, retries and rollbacks at WARNING; a run that failed at ERROR; the
    rest at INFO. Events from the record of a resumed run are not logged again. `capture_content` also logs
    prompts, replies, arguments and results. Without it the only texts are those of errors and notes.
    """

    def __init__(self, logger: str | logging.Logger = "closeout.run", capture_content: bool = False) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._content = capture_content

    def for_run(self, run: RunInfo) -> _RunLog:
        """The callback that logs one run."""
        return _RunLog(self._logger, run, self._content)


class _RunLog:
    def __init__(self, logger: logging.Logger, run: RunInfo, content: bool) -> None:
        self._logger = logger
        self._run = run
        self._content = content

    def __call__(self, event: ev.Event | Progress) -> None:
        if isinstance(event, Progress) or self._run.from_record:
            return
        level = _level(event)
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", json.dumps(self._record(event), default=str))

    def _record(self, event: ev.Event) -> dict[str, Any]:
        kind = type(event)
        record: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run_id": self._run.run_id,
            "agent": event.agent,
            "event": kind.__name__,
        }
        if isinstance(event, ev.RunStarted):
            record |= {key: event.fingerprint.get(key) for key in ("model", "dialect")}
        elif isinstance(event, ev.TurnAccepted):
            record["calls"] = len(event.calls)
        elif isinstance(event, ev.ToolFinished) and not event.ok:
            record["error"] = event.note
        names = _FIELDS.get(kind, ())
        if self._content:
            names += _CONTENT.get(kind, ())
        return record | {name: getattr(event, name) for name in names}


def _level(event: ev.Event) -> int:
    if isinstance(event, _QUIET):
        return logging.DEBUG
    if isinstance(event, _WARNINGS) or (isinstance(event, ev.ToolFinished) and not event.ok):
        return logging.WARNING
    if isinstance(event, ev.RunEnded) and event.status == "failed":
        return logging.ERROR
    if isinstance(event, ev.Noted):
        return logging.getLevelNamesMapping().get(event.level.upper(), logging.INFO)
    return logging.INFO
