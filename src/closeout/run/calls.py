"""The tool calls of one agent: each is journaled before and after, and its result reused on resume."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.codec import json_of_any
from closeout.file_values import File
from closeout.journal.events import (
    REFUSED_CALL,
    Event,
    ModelFailed,
    ModelReplied,
    Noted,
    ToolFinished,
    ToolStarted,
)
from closeout.messages import ToolCall, ToolSpec, Usage
from closeout.results.normal import is_large, json_text
from closeout.results.tool_output import REMOVED_FILES, ToolOutput, ToolTelemetry
from closeout.run.call_context import CallContexts
from closeout.run.middleware.chain import Calling, CallLabels, Middleware, overrides, wrap
from closeout.run.middleware.own_decisions import deciders
from closeout.run.plan import Scope, enter, leave
from closeout.tools.call_records import CallOutcome
from closeout.tools.executor import UNSURE, CallExecutor, PlannedCall
from closeout.tools.run_context import Sample, context_factory
from closeout.tools.running import stopped_output
from closeout.tools.threads import run_in_thread

__all__ = ["ToolCalls", "refusal_note", "refused_calls"]


class ToolCalls:
    """Makes one agent's tool calls, with its middleware and the journal around each.

    `first` is the number of its first call. `sampling` makes what asks the agent's model for the MCP server of a call.
    Without `reads` the middleware takes no note of the results, because it has done so before.
    """

    def __init__(
        self,
        scope: Scope,
        first: int = 1,
        *,
        sampling: Callable[[str], Sample] | None = None,
        reads: bool = True,
    ) -> None:
        self._scope = scope
        chain: Sequence[Middleware] = scope.chain
        self._begin = overrides(chain, "begin")
        self._deciders = deciders(scope)
        self._approved = overrides(chain, "approved")
        self._call = wrap(chain, "call", _start)
        self._record = overrides(chain, "record")
        self._read = overrides(chain, "read") if reads else []
        self._contexts = CallContexts(scope, sampling)
        self.publish_progress = self._contexts.publish_progress
        self._alone = asyncio.Lock() if scope.journal.can_be_taken_over else None
        self._turn = 0
        self._first = self.next = first  # numbers of the reply's first call and of the one after its last

    def handle(self, index: int) -> str:
        """Return the handle of a call by its index in the reply. Calls are numbered through the agent's whole run."""
        return f"r{self._first + index}"

    async def execute(
        self,
        executor: CallExecutor,
        calls: Sequence[ToolCall],
        *,
        turn: int = 0,
        agent: str,
        allow_duplicates: bool = False,
        labels: CallLabels | None = None,
        shows: Callable[[str], bool] | None = None,
    ) -> list[CallOutcome]:
        """Plan, run and judge the calls of one reply. `allow_duplicates` and `shows` are those of `plan_calls`.

        `labels` are what the calls depend on, if it is known better than that it is all that the agent has read.

        Raises:
            Suspended: Calls wait for a decision; all others were made.
        """
        self._turn, self._first, self.next = turn, self.next, self.next + len(calls)
        self._contexts.turn = turn
        for begin in self._begin:
            begin(turn)
        plans = executor.plan_calls(
            calls, agent=agent, allow_duplicates=allow_duplicates, handles=self.handle, turn=turn, shows=shows
        )
        refused = [plan.earlier_attempt is not None or (plan.code == UNSURE and not plan.runs) for plan in plans]
        plans = [self._as_begun(plan, agent) if back else plan for plan, back in zip(plans, refused, strict=True)]
        running = [index for index, plan in enumerate(plans) if plan.runs]
        run = partial(self._run, executor, labels)
        if len(running) == 1:  # the usual case needs no task of its own
            ran = {running[0]: await run(plans[running[0]])}
        else:
            ran = await executor.run_together(plans, run) if running else {}
        return await executor.judge_calls(plans, ran, agent=agent, allow_duplicates=allow_duplicates)

    def _as_begun(self, plan: PlannedCall, agent: str) -> PlannedCall:
        """Return the plan of a repeated call as one that runs if the record has it, from an older version."""
        begun = self._scope.journal.has_started(self._started(plan.call, plan.tool, plan.handle))
        return replace(plan, agent=agent, turn=self._turn, runs=True) if begun else plan

    async def _run(
        self, executor: CallExecutor, labels: CallLabels | None, plan: PlannedCall, decided: Calling | None = None
    ) -> tuple[PlannedCall, ToolOutput]:
        """Make a call, or take its recorded result. Returns the plan as it was approved, and the output.

        `decided` is a call that was decided on before. Nobody reads its result here.
        """
        # The record may say what its server offered at an earlier time.
        served, started = executor.as_served(plan), partial(self._started, handle=plan.handle)
        perform = partial(self._run, executor, labels, plan)
        calling = decided or Calling(plan, served, executor, started, perform=perform, labels=labels)
        for decide in self._deciders if decided is None else ():
            await decide(calling)
            if calling.output is not None:
                return calling.plan, calling.output
        for approved in self._approved:
            approved(calling)
        journal, plan = self._scope.journal, calling.plan
        # A process that wakes from a pause after its lease cannot call back what it has begun, and its successor can
        # look for one such call, not for several. So only calls that may be repeated run together.
        alone = None if plan.tool.policy.crash_rule == "rerun" else self._alone
        async with alone or nullcontext():
            finished = await journal.effect(
                started(plan.call, plan.tool),
                partial(self._make, calling),
                interrupted=None if calling.cut_off is None else partial(self._leave, calling, calling.cut_off),
                below=self._count_recorded,
            )
        assert isinstance(finished, ToolFinished)
        for read in self._read if decided is None else ():
            read(finished, served)
        if calling.output is not None:
            return plan, calling.output
        return plan, _recorded_output(finished, self._scope.files.load)

    async def _make(self, calling: Calling) -> ToolFinished:
        """Make a call, and return its outcome as it is recorded."""
        scope, plan, began = self._scope, calling.plan, time.perf_counter()
        token = enter((scope, plan.handle))
        context = context_factory.set(self._contexts.factory(plan.handle, plan.tool))
        try:
            output = calling.executor.post_process(plan, await self._call(calling))
        finally:
            context_factory.reset(context)
            leave(token)
        calling.output = output
        for file in output.files:
            scope.journal.keep(file.data, file.sha256)
        finished = partial(_finished, scope.path, plan, output, began)
        return self._recorded(calling, await run_in_thread(finished) if is_large(output.result) else finished())

    def _leave(self, calling: Calling, text: str) -> ToolFinished:
        """Return the outcome of a call that a crash cut off, and that is not made again."""
        calling.output = output = stopped_output(calling.plan.tool.name, text, UNSURE)
        cut_off = _finished(self._scope.path, calling.plan, output, time.perf_counter())
        return self._recorded(calling, cut_off, made=False)

    def _recorded(self, calling: Calling, finished: ToolFinished, *, made: bool = True) -> ToolFinished:
        for record in self._record:
            finished = record(calling, finished, made=made)
        return finished

    def _started(self, call: ToolCall, spec: ToolSpec, handle: str) -> ToolStarted:
        return ToolStarted(
            self._scope.path,
            handle,
            spec.name,
            arguments=json_of_any(call.arguments),
            turn=self._turn,
            call_id=call.id,
            server_name=spec.server_name,
            index=int(handle.removeprefix("r")) - self._first,
        )

    def _count_recorded(self, event: Event) -> None:
        """Count what a sub-agent did in a call whose recorded result is reused."""
        if isinstance(event, ToolFinished):
            output = ToolOutput.from_record(json.loads(event.record))
            self._scope.telemetry.record(output.telemetry)
            self._scope.update_state(output)
            for read in self._read:
                read(event, None)
        for refused in refused_calls((event,)):
            self._scope.telemetry.record(refused)
        if isinstance(event, (ModelReplied, ModelFailed)) and event.usage:
            self._scope.budget.charge(Usage(**event.usage))


def _start(calling: Calling) -> Awaitable[ToolOutput]:
    return calling.executor.start(calling.plan, calling.guard)


def refusal_note(agent: str, outcome: CallOutcome) -> Noted:
    """Return the event of a call that could not be made."""
    call = outcome.call
    metadata = {
        "handle": outcome.handle,
        "server_name": call.server_name,
        "tool_name": call.name,
        "arguments": call.arguments,
        "error_code": outcome.output.telemetry.error_code,
        "error": outcome.reason,
    }
    text = f"{call.name} was not called: {outcome.reason}"
    return Noted(agent, "warning", REFUSED_CALL, message=text, metadata=metadata)


def refused_calls(events: Iterable[Event]) -> Iterator[ToolTelemetry]:
    """Yield the telemetry of the calls of known tools that could not be made.

    A resumed run notes them again; each counts once.
    """
    seen = set()
    for event in events:
        if not isinstance(event, Noted) or event.name != REFUSED_CALL:
            continue
        keys = ("tool_name", "error_code", "error", "handle")
        name, code, message, handle = (str(event.metadata.get(key, "")) for key in keys)
        if code != "UnknownTool" and (event.agent, handle) not in seen:
            seen.add((event.agent, handle))
            yield ToolTelemetry(tool_name=name, success=False, error_code=code, error_message=message)


def _finished(agent: str, plan: PlannedCall, output: ToolOutput, began: float) -> ToolFinished:
    telemetry, fields = output.telemetry, output.lean_record()
    result = fields.pop("result", None)
    if is_large(result):
        record = json_text(result, before=f'{json_of_any(fields)[:-1]},"result":', after="}")
    else:
        record = json_of_any(fields if result is None else {"result": result, **fields})
    files: tuple[Mapping[str, Any], ...] = ()
    if output.files or REMOVED_FILES in output.metadata:
        removed = [{"name": name, "removed": True} for name in output.metadata.get(REMOVED_FILES, ())]
        files = (*(file.to_dict() for file in output.files), *removed)
    return ToolFinished(
        agent,
        plan.handle,
        plan.tool.name,
        ok=telemetry.success,
        record=record,
        ms=round((time.perf_counter() - began) * 1000, 3),
        note=telemetry.error_message or "",
        files=files,
    )


def _recorded_output(finished: ToolFinished, load: Callable[[str], bytes]) -> ToolOutput:
    """Return the output of a recorded call, with the files that it left."""
    output = ToolOutput.from_record(json.loads(finished.record))
    if finished.files:
        output.files = tuple(File.recorded(each, load) for each in finished.files if "sha256" in each)
    return output
