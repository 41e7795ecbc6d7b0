"""The tools' side of the one door: a call is journaled before it runs and after, and replayed on resume."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable

from pydantic_core import to_json

from closeout.journal.events import ToolFinished, ToolStarted
from closeout.messages import ToolCall, ToolSpec
from closeout.orchestrator.scope import Scope, enter, leave
from closeout.outputs.models import ToolOutput, ToolTelemetry

__all__ = ["ToolDoor"]

INTERRUPTED = (
    "Interrupted: the program stopped while this call was under way. It may or may not have taken effect; "
    "check before you make it again."
)


class ToolDoor:
    """What a ToolExecutor sends each call through: `await door(call, spec, handle, run)`."""

    def __init__(self, scope: Scope) -> None:
        self.turn = 0
        self._scope = scope

    async def __call__(
        self, call: ToolCall, spec: ToolSpec, handle: str, run: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        scope = self._scope
        live: list[ToolOutput] = []

        async def outcome() -> ToolFinished:
            began = time.perf_counter()
            token = enter(scope.for_call(handle))
            try:
                output = await run()
            finally:
                leave(token)
            live.append(output)
            return _finished(scope.path, handle, spec.name, output, began)

        started = ToolStarted(
            scope.path, handle, spec.name, _json_text(call.arguments), self.turn, call.id, spec.server_name
        )
        interrupted = None
        if spec.policy.crash_rule == "report":

            def interrupted() -> ToolFinished:
                live.append(_interrupted(spec.name))
                return _finished(scope.path, handle, spec.name, live[0], time.perf_counter())

        finished = await scope.journal.effect(started, outcome, interrupted)
        if live:
            return live[0]
        assert isinstance(finished, ToolFinished)
        return ToolOutput.from_record(json.loads(finished.record))


def _finished(agent: str, handle: str, name: str, output: ToolOutput, began: float) -> ToolFinished:
    ms = round((time.perf_counter() - began) * 1000, 3)
    telemetry = output.telemetry
    return ToolFinished(
        agent, handle, name, telemetry.success, _json_text(output.to_record()), ms, telemetry.error_message or ""
    )


def _interrupted(name: str) -> ToolOutput:
    telemetry = ToolTelemetry(tool_name=name, success=False, error_code="Interrupted", error_message=INTERRUPTED)
    return ToolOutput(summary=INTERRUPTED, telemetry=telemetry)


def _json_text(value: object) -> str:
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, default=str)
