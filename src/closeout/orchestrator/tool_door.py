"""The tools' side of the one door: a call is journaled before it runs and after, and replayed on resume."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from pydantic_core import to_json

from closeout.journal.events import Event, ModelFailed, ModelReplied, ToolFinished, ToolStarted
from closeout.messages import ToolCall, ToolSpec, Usage
from closeout.orchestrator.scope import Scope, enter, leave
from closeout.outputs.models import ToolOutput, ToolTelemetry

__all__ = ["ToolDoor"]

INTERRUPTED = (
    "Interrupted: the program stopped while this call was under way. It may or may not have taken effect; "
    "check before you make it again."
)
OUT_OF_TIME = "Stopped: the time allowed for this run is nearly over, and what is left is needed to answer."


class ToolDoor:
    """What a ToolExecutor sends each call through: `await door(call, spec, handle, run)`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._turn = 0
        self._first = self._next = 1  # numbers of the reply's first call, and of the one after it

    def begin(self, turn: int, calls: int) -> None:
        """So many calls of a reply are to be made."""
        self._turn, self._first, self._next = turn, self._next, self._next + calls

    def handle(self, index: int) -> str:
        """The name of the reply's call number `index`, from 0; calls are numbered through an agent's whole run."""
        return f"r{self._first + index}"

    async def __call__(
        self, call: ToolCall, spec: ToolSpec, handle: str, run: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        scope = self._scope
        live: list[ToolOutput] = []

        async def outcome() -> ToolFinished:
            began = time.perf_counter()
            seconds = self._seconds_left(spec)
            token = enter((scope, handle))
            try:
                output = await run() if seconds is None else await self._in_time(run, spec, seconds)
            finally:
                leave(token)
            live.append(output)
            return _finished(scope.path, handle, spec.name, output, began)

        index = int(handle.removeprefix("r")) - self._first
        started = ToolStarted(
            scope.path, handle, spec.name, _json_text(call.arguments), self._turn, call.id, spec.server_name, index
        )
        interrupted = None
        if spec.policy.crash_rule == "report":

            def interrupted() -> ToolFinished:
                live.append(_failed(spec.name, INTERRUPTED, "Interrupted"))
                return _finished(scope.path, handle, spec.name, live[0], time.perf_counter())

        finished = await scope.journal.effect(started, outcome, interrupted, self._charge)
        if live:
            return live[0]
        assert isinstance(finished, ToolFinished)
        return ToolOutput.from_record(json.loads(finished.record))

    def _charge(self, event: Event) -> None:
        """What an agent spent that ran within a call which is handed back: it was within this budget then."""
        if isinstance(event, (ModelReplied, ModelFailed)) and event.usage:
            self._scope.budget.charge(Usage(**event.usage))

    def _seconds_left(self, spec: ToolSpec) -> float | None:
        """Until the run's time is over. A tool without a deadline of its own keeps its time: it is an agent, whose
        limits lie within this one's.
        """
        return self._scope.budget.seconds_left(closing=False) if spec.policy.timeout is not None else None

    async def _in_time(self, run: Callable[[], Awaitable[ToolOutput]], spec: ToolSpec, seconds: float) -> ToolOutput:
        """What the tool brings before the run's time is over."""
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await run()
        except TimeoutError:
            if not deadline.expired():
                raise
            return _failed(spec.name, OUT_OF_TIME, "OutOfTime")


def _finished(agent: str, handle: str, name: str, output: ToolOutput, began: float) -> ToolFinished:
    ms = round((time.perf_counter() - began) * 1000, 3)
    telemetry, record = output.telemetry, _json_text(output.lean_record())
    return ToolFinished(agent, handle, name, telemetry.success, record, ms, telemetry.error_message or "")


def _failed(name: str, text: str, code: str) -> ToolOutput:
    telemetry = ToolTelemetry(tool_name=name, success=False, error_code=code, error_message=text)
    return ToolOutput(summary=text, telemetry=telemetry)


def _json_text(value: object) -> str:
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, default=str)
