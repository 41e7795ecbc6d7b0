"""The tool `run_program`: programs that a model writes, in a run, with the agent's tools as functions.

A program is one call of the tool `run_program`. Each call inside it is journaled below that call, so a program that was
interrupted is executed again on the recorded outcomes up to that point, and then continues. Clock, sleep and randomness
are fixed by the run's id, so that the second execution does the same. See docs/design/programs.md.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from closeout.codec import json_of_any
from closeout.dialects.functions import FINAL_ANSWER, RUN_PROGRAM, answer_function, call_form, functions_of, takes_any
from closeout.errors import ToolError
from closeout.journal.events import AttemptStarted, Event, Repaired, ToolFinished, ToolStarted
from closeout.journal.run_journal import Journal
from closeout.journal.store import Row
from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.results.normal import normalise
from closeout.results.tool_output import ToolOutput
from closeout.run.calls import ToolCalls
from closeout.run.flow_watch import FlowWatch
from closeout.run.limits import Limits
from closeout.run.middleware.chain import found_in
from closeout.run.middleware.flow_rules import FlowMiddleware
from closeout.run.middleware.order import below
from closeout.run.plan import Scope, current_scope
from closeout.run.review import Answers
from closeout.tools.builtin.program_flow import ProgramFlow
from closeout.tools.builtin.program_sandbox import (
    ANSWER_KEY,
    LOST_KEY,
    Call,
    ProgramExecution,
    ProgramSandbox,
    labels_at,
)
from closeout.tools.executor import CallExecutor, CallOutcome
from closeout.tools.flow import CallLabels, Labels
from closeout.tools.running import failed_output
from closeout.tools.tool import tool

__all__ = ["PROGRAM", "Programs", "answer_given", "program_tool"]

PROGRAM = "program"  # the last part of a program's path in the run

_current: ContextVar[Programs | None] = ContextVar("closeout_programs", default=None)


# Its own calls are journaled, so running it again repeats none of them.
@tool(name=RUN_PROGRAM, policy=ToolPolicy(on_crash="rerun", timeout=None, returns="below"))
async def program_tool(code: str) -> ToolOutput:
    """Run a Python program that can call the other tools as functions.

    Args:
        code: the program
    """
    programs, scope = _current.get(), current_scope()
    if programs is None or scope is None:
        raise ToolError(f"{RUN_PROGRAM} works only inside a run.")
    return await programs.run(code, scope)


program_tool.reads_files = True


def answer_given(outcomes: Sequence[CallOutcome], answers: Answers) -> str | None:
    """Return the answer that the calls of a turn gave, None if none did. The last one counts.

    A program gives it with `final_answer`; a tool with `gives_answer` gives it by a result that fits the contract.
    """
    for outcome in reversed(outcomes):
        if not outcome.was_executed or outcome.spec is None:
            continue
        answer = None
        if outcome.spec.policy is program_tool.spec.policy:
            answer = outcome.output.metadata.get(ANSWER_KEY)
        elif outcome.spec.policy.gives_answer and outcome.status == "ok" and outcome.output.success:
            answer = answers.form_of(normalise(outcome.output.value))
        if isinstance(answer, str):
            return answer
    return None


@dataclass(slots=True)
class _Past:
    """A program of the record that the sandbox has not executed, with the events of its calls."""

    code: str
    rows: list[Row] = field(default_factory=list)
    done: bool = False


class _PastJournal(Journal):
    """The record of one program, to execute it again. A call without an outcome has failed."""

    def _doing(self, started: Event, run: Callable[[], Awaitable[Event]]) -> Callable[[], Awaitable[Event]]:
        async def not_recorded() -> Event:
            assert isinstance(started, ToolStarted)
            output = failed_output(started.name, "This call is not in the record.", "ToolError")
            record = json_of_any(output.lean_record())
            return ToolFinished(started.agent, started.handle, started.name, ok=False, record=record)

        return not_recorded


class Programs:
    """The programs of one agent in one run, and the sandbox that keeps their variables.

    `executor` governs the calls inside programs, `tools` returns the tools that are offered now.
    """

    def __init__(
        self,
        scope: Scope,
        executor: CallExecutor,
        answers: Answers,
        tools: Callable[[], tuple[ToolSpec, ...]],
    ) -> None:
        self._scope = scope
        self._executor = executor
        self._answers = answers
        self._tools = tools
        self._sandbox = ProgramSandbox(scope.journal.started_at, scope.journal.run_id)
        self._answer_function = answer_function(answers.schema)
        self._past: dict[str, _Past] = {}  # by handle
        self._stack = AsyncExitStack()
        self._functions: Mapping[str, ToolSpec] = {}
        self._flow: ProgramFlow | None = None
        rules = found_in(scope, FlowMiddleware)
        self._watch = watch = None if rules is None else rules.watch
        if watch is not None:
            self._flow = ProgramFlow(partial(self._labels_of, watch), lambda: watch.top, self._reads_files)
            watch.plan_with(scope.path, self._labelled_calls)

    def _labelled_calls(self, code: str) -> list[tuple[ToolCall, CallLabels]]:
        """Return the calls of a program that depend on something with labels, before it runs."""
        assert self._flow is not None
        self._functions = functions_of(self._tools())
        past = [each.code for each in self._past.values() if each.done]  # the sandbox executes them first
        calls = self._flow.labelled_calls([*past, code])
        found = [(self._functions[name], site) for name, site in calls if name in self._functions]
        return [(ToolCall(spec.name, server_name=spec.server_name), labels_at(site, spec)) for spec, site in found]

    def _labels_of(self, flow: FlowWatch, name: str) -> Labels | None:
        """Return the labels of the results of a function, None if that is not known before it is called."""
        spec = self._functions.get(name)
        if spec is None:
            return frozenset() if name == FINAL_ANSWER else None
        return None if spec.policy.returns in ("read", "below") else flow.labels_of(spec)

    def _reads_files(self, name: str) -> bool:
        spec = self._functions.get(name)
        return spec is not None and spec.policy.returns == "files"

    async def __aenter__(self) -> Programs:
        token = _current.set(self)
        self._stack.callback(_current.reset, token)
        self._stack.callback(self._scope.subscribers.subscribe(self._note))
        self._stack.push_async_callback(self._sandbox.aclose)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _note(self, event: Any) -> None:
        """Keep the programs that a resumed run takes from its record: a later one may need their variables."""
        path = self._scope.path
        if isinstance(event, AttemptStarted) and event.agent == path:
            self._past.clear()
            self._sandbox.forget()
        elif isinstance(event, ToolStarted) and event.agent == path and event.name == RUN_PROGRAM:
            self._past[event.handle] = _Past(_code_of(event))
        elif isinstance(event, ToolFinished) and event.agent == path and event.handle in self._past:
            if LOST_KEY in ToolOutput.from_record(json.loads(event.record)).metadata:
                self._past.clear()
            else:
                self._past[event.handle].done = True
        elif event.agent.startswith(f"{path}/") and event.agent.endswith(f":{PROGRAM}"):
            past = self._past.get(event.agent.removeprefix(f"{path}/").removesuffix(f":{PROGRAM}"))
            if past is not None:
                past.rows.append(Row(len(past.rows), 0.0, event))

    async def run(self, code: str, scope: Scope) -> ToolOutput:
        """Execute a program as the call `scope.handle`.

        Returns:
            What it printed and the value of its last line; what went wrong, if it failed.
        """
        self._functions = functions = functions_of(self._tools())
        await self._catch_up(functions, scope.handle)
        place = replace(below(scope, PROGRAM, Limits()), artifacts=self._scope.artifacts)
        make = self._counted(self._caller(ToolCalls(place)))
        execution = self._execution(scope.handle, functions, make, self._accept)
        await execution.run(code)
        if self._watch is not None and self._flow is not None and execution.began:
            # What is shown may be any value that this program, or an earlier one, has read.
            read = self._watch.read_inside(scope.path) if execution.shows else frozenset()
            self._watch.note_shown(f"{scope.path}/{scope.handle}", self._flow.decided | read)
        for repair in execution.repairs:
            place.journal.append(
                Repaired(place.path, 0, repair.kind, where=repair.where, before=repair.before, after=repair.after)
            )
        self._past.pop(scope.handle, None)
        return execution.output()

    async def _catch_up(self, functions: Mapping[str, ToolSpec], running: str) -> None:
        """Execute the programs of the record again, on their recorded outcomes, for the variables they define."""
        for handle, past in list(self._past.items()):
            if handle == running or not past.done:
                continue
            journal = _PastJournal(self._scope.journal.run_id, None, 0, recorded=past.rows)
            then = replace(self._scope, run=replace(self._scope.run, journal=journal, waits=[]), handle=handle)
            make = self._caller(ToolCalls(below(then, PROGRAM, Limits()), reads=False))
            await self._execution(handle, functions, make, self._accept_again).run(past.code)
            del self._past[handle]

    def _execution(
        self, handle: str, functions: Mapping[str, ToolSpec], make: Call, accept: Callable[[Any], str]
    ) -> ProgramExecution:
        view = self._scope.files.before(self._scope.path, handle)
        return ProgramExecution(
            self._sandbox, functions, make, accept, self._answer_function, view=view, flow=self._flow
        )

    def _caller(self, calls: ToolCalls) -> Call:
        """Return what makes the calls of one program, which are numbered r1, r2, …"""

        async def call(spec: ToolSpec, arguments: dict[str, Any], labels: CallLabels | None) -> CallOutcome:
            (outcome,) = await calls.execute(
                self._executor,
                [ToolCall(spec.name, arguments, server_name=spec.server_name)],
                agent=self._scope.path,
                allow_duplicates=spec.policy.read_only,  # the earlier result is the value
                labels=labels,
            )
            return outcome

        return call

    def _counted(self, make: Call) -> Call:
        """Return what also adds each call to the state and telemetry of the run, so that the next call sees it."""
        scope = self._scope

        async def call(spec: ToolSpec, arguments: dict[str, Any], labels: CallLabels | None) -> CallOutcome:
            outcome = await make(spec, arguments, labels)
            if outcome.was_executed:
                scope.telemetry.record(outcome.output.telemetry)
                scope.update_state(outcome.output)
            return outcome

        return call

    def _accept(self, value: Any) -> str:
        """Return the answer that a program gives, in a form that the contract takes. Raises `ValueError`."""
        if (form := self._answers.form_of(value)) is not None:
            return form
        text, contract = self._answers.written(value), self._answers.contract
        problem, wanted = self._answers.read(text).problem, contract.instruction()
        if not takes_any(self._answer_function):
            problem = problem if isinstance(value, dict) else "The answer has fields."
            wanted = f"Call {call_form(self._answer_function)}."
        raise ValueError(f"{problem} {wanted}".strip())

    def _accept_again(self, value: Any) -> str:
        """Refuse the answer of a program of the record: with an accepted answer, no other would have followed it."""
        self._accept(value)
        raise ValueError("The answer was refused.")


def _code_of(event: ToolStarted) -> str:
    code = json.loads(event.arguments).get("code")
    return code if isinstance(code, str) else ""
