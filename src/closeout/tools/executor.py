"""Govern tool calls: resolve, repair, check for duplicates, run, judge, present.

A call that fails gives an outcome, not an exception. A subclass may decide otherwise at the places below "what a
subclass may decide"; `compat` has one with the methods of the original systems.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.dialects.functions import RUN_PROGRAM
from closeout.errors import Suspended, ToolDefinitionError
from closeout.messages import Repair, ToolCall, ToolPolicy, ToolSpec
from closeout.records import record
from closeout.repair.argument_repair import RepairedArguments
from closeout.repair.schema_rules import SchemaRules
from closeout.results.budgets import TOOL_RESULT_MAX_LENGTH, TRUNCATED
from closeout.results.encoding import Encoding, known_encodings
from closeout.results.escape import break_markers
from closeout.results.normal import EncodingError, is_large, normalise
from closeout.results.present import Presented, ShownText, present
from closeout.results.summary import summarise
from closeout.results.telemetry import CallMeter
from closeout.results.tokens import count_tokens
from closeout.results.tool_output import ToolOutput, ToolTelemetry, observation_of, present_output
from closeout.tools.call_records import CallMemory, CallOutcome, EarlierCall, Status, cache_name, query_key
from closeout.tools.judge import Judgement, judge, names_unknown_tool, says_tool_failed, shorten_text
from closeout.tools.manager import LOCAL
from closeout.tools.running import (
    AnyCallSpent,
    CallGuard,
    CallSpent,
    CallUnsure,
    ToolSource,
    failed_output,
    images_of,
    run_tool,
)
from closeout.tools.threads import run_in_thread
from closeout.tools.toolbox import Toolbox

__all__ = [
    "UNSURE",
    "CallExecutor",
    "CallOutcome",
    "MethodFailed",
    "PlannedCall",
    "is_unsure",
    "renamed",
    "result_record",
    "with_result",
]

CHARACTERS_A_TOKEN = 4  # A rough rate for a call's arguments, used only in telemetry.
SPENT = "LimitReached"  # the error code of a call that would only reach a limit again
UNSURE = "Interrupted"  # the code of a call that repeats an interrupted one
MADE_BEFORE = "An earlier attempt has made this call. It is not made again; its result was:"

logger = logging.getLogger(__name__)


@record(kw_only=True)
class PlannedCall:
    """The decision on one call, made before anything runs.

    With a `refusal` nothing runs; with `earlier_outcome` there is a result already. `runs`: the tool is to be called.
    """

    call: ToolCall
    spec: ToolSpec | None
    repairs: tuple[Repair, ...] = ()
    query: str | None = None  # calls with the same query are the same call; None: it may be repeated
    refusal: str = ""
    code: str = ""  # error code of the refusal; of a repeated call UNSURE, if the first one was interrupted
    seen_before: bool = False  # the agent has seen its result
    left_out: bool = False  # the agent has seen its result, which has left the context
    again: bool = False  # made before, but something has changed since: a person is asked
    earlier_outcome: CallOutcome | None = None
    earlier_attempt: EarlierCall | None = None  # an earlier attempt made it, and this one has not seen its result
    same_as: int = -1  # index of the same call in the same reply
    handle: str = ""
    note: str = ""  # what the model sees beside the result
    agent: str = "main"
    turn: int = 0
    runs: bool = False

    @property
    def tool(self) -> ToolSpec:
        """The tool of a call that is to run."""
        assert self.spec is not None
        return self.spec


class MethodFailed(Exception):
    """A subclass could not decide. The text says which method failed, and how."""


class CallExecutor:
    """Governs the tool calls of one run and its agents.

    Args:
        main_agent_tool_manager: The tools. Methods that only look at values work without.
        output_formatter: Writes every result that the model is shown.
        max_consecutive_rollbacks: How many turns a run rolls back in a row.
        result_budget: Tokens of a result that the model is shown.
        max_parallel: How many calls of a reply run at once.
        retry_delay: Seconds before a failed call is tried again.
        model: The model whose tokens are counted.
        on_progress: Called with a call's handle and the progress that its tool reports: done, total, message.
        format_observation: Writes what the model is shown of an output, in place of `present_output`.
        encodings: Ways to write results, beside the built-in ones.
        markers: Markers of the user's own forms of tool calls. They are broken in every result.
    """

    def __init__(
        self,
        main_agent_tool_manager: ToolSource | None = None,
        output_formatter: Any = None,
        *,
        max_consecutive_rollbacks: int = 5,
        result_budget: int | None = 4000,
        max_parallel: int = 8,
        retry_delay: float = 0.5,
        model: str | None = None,
        on_progress: Callable[[str, float, float | None, str], None] | None = None,
        format_observation: Callable[[ToolOutput], str] | None = None,
        encodings: Sequence[Encoding] = (),
        markers: Sequence[str] = (),
    ) -> None:
        self.main_agent_tool_manager = main_agent_tool_manager
        self.output_formatter = output_formatter
        self.max_consecutive_rollbacks = max_consecutive_rollbacks
        self.result_budget = result_budget
        self.max_parallel = max_parallel
        self.retry_delay = retry_delay
        self.model = model
        self.on_progress = on_progress
        self.format_observation = format_observation
        self.encodings = encodings
        self.markers = markers
        self._toolbox = Toolbox(main_agent_tool_manager)
        self._memory = CallMemory()
        self._accepts_empty: set[tuple[str, str]] = set()  # (agent, tool) whose next empty result is evidence
        self._hinted: set[tuple[str, ...]] = set()  # server, tool, argument and format of each hint that was given
        self._spent: dict[str, set[str]] = {}  # agent → tools, and queries, that reached a limit in this attempt
        self._unsure: dict[str, set[str]] = {}  # agent → queries that were interrupted, until it has made another call
        # agent → query → the call of an earlier attempt that is not made again; None once this attempt has its result
        self._made: dict[str, dict[str, EarlierCall | None]] = {}

    # ------------------------------------------------------------------------------------ the calls of one reply

    async def execute_calls(
        self,
        calls: Sequence[ToolCall],
        *,
        agent: str = "main",
        allow_duplicates: bool = False,
        handles: Callable[[int], str] | None = None,
    ) -> list[CallOutcome]:
        """Execute the calls of one reply outside of a run: plan, run, judge. Independent calls run at once.

        A call that needs an approval is refused. A run takes the same three steps, with its journal around the second.

        Args:
            calls: The calls as the model made them.
            agent: The calling agent's name.
            allow_duplicates: As for `plan_calls`.
            handles: As for `plan_calls`.

        Returns:
            The outcomes, in the order of the calls. Raises only cancellation.
        """
        plans = self.plan_calls(calls, agent=agent, allow_duplicates=allow_duplicates, handles=handles)
        ran = await self.run_together(plans, self._run_unjournaled)
        return await self.judge_calls(plans, ran, agent=agent, allow_duplicates=allow_duplicates)

    async def _run_unjournaled(self, plan: PlannedCall) -> tuple[PlannedCall, ToolOutput]:
        spec = plan.tool
        if plan.again or spec.policy.approval not in (None, "never"):
            text = f"{spec.name} needs the approval of a person, which only a run of an Agent can ask for."
            return plan, failed_output(spec.name, text, "Denied")
        return plan, self.post_process(plan, await self.start(plan))

    def offer(self, specs: Sequence[ToolSpec]) -> None:
        """Resolve calls among these tools, instead of those that the manager has at the moment of a call."""
        self._toolbox.offer(specs)

    def begin_attempt(self, agent: str = "main") -> None:
        """Start an attempt with an empty history: earlier calls no longer count as repetitions."""
        self._memory.begin_attempt(agent)
        self._spent.pop(agent, None)
        self._made.pop(agent, None)

    def take_over(self, calls: Sequence[EarlierCall], agent: str = "main") -> None:
        """Count calls of earlier attempts as repetitions in this one.

        The first repetition gets the earlier result, the next ones are rolled back; nothing runs. A call that was cut
        off is refused until another call was made.
        """
        made: dict[str, EarlierCall | None] = {}
        unsure: set[str] = set()
        for call in calls:
            try:
                query = self._query_of(call.spec, call.arguments)
            except MethodFailed:
                query = query_key(call.spec.name, call.arguments, call.spec.policy)
            if query is None:
                continue
            if call.unsure:
                unsure.add(query)
                continue
            made[query] = call
            self._memory.record(cache_name(agent, call.spec.name), query)
        self._made[agent] = made
        self._unsure[agent] = unsure - made.keys()

    # ------------------------------------------------------------------------------------ plan

    def plan_calls(
        self,
        calls: Sequence[ToolCall],
        *,
        agent: str = "main",
        allow_duplicates: bool = False,
        handles: Callable[[int], str] | None = None,
        turn: int = 0,
        shows: Callable[[str], bool] | None = None,
    ) -> list[PlannedCall]:
        """Decide what to do about the calls of one reply: resolve, repair, look for repetitions. Nothing runs.

        Args:
            calls: The calls as the model made them.
            agent: The calling agent's name.
            allow_duplicates: The rollback budget is spent: a call that was made before gets its earlier result if the
                tool is read-only, and runs again if it is idempotent, or was cut off and is not destructive.
            handles: Returns the name under which the result of call number n is stored.
            turn: The number of the turn, for `execute_single_tool_call`.
            shows: Returns whether the model still sees a result. A call whose result has left the context gets it
                again, and does not run. None: the model sees all of them.
        """
        plans = [
            _again_if_left_out(self._plan(call, agent, handles(index) if handles else ""), shows)
            for index, call in enumerate(calls)
        ]
        return [
            replace(plan, agent=agent, turn=turn, runs=True) if _is_to_run(plan, allow_duplicates) else plan
            for plan in _mark_repeats(plans)
        ]

    def _plan(self, call: ToolCall, agent: str, handle: str) -> PlannedCall:
        """Resolve the tool, repair the arguments and look for an earlier call like this one. Nothing runs."""
        spec, repairs, message = self._toolbox.resolve(call)
        if spec is None:
            return PlannedCall(call=call, spec=None, refusal=message, code="UnknownTool", handle=handle)
        refused = partial(PlannedCall, call=call, spec=spec, handle=handle)
        try:
            arguments, made, errors = self._repaired(call, spec)
        except ToolDefinitionError as error:
            return refused(refusal=f"{spec.name} cannot be called: {error}", code="ToolDefinitionError")
        except MethodFailed as error:
            return refused(refusal=str(error), code="ToolExecutorError")
        if errors:
            return refused(repairs=repairs, refusal=errors[0], code="InvalidArguments")
        repairs += made
        if repairs and spec.policy.repair == "none":
            names = ", ".join(dict.fromkeys(repair.kind for repair in repairs))
            refusal = f"{spec.name} takes only calls that need no repair; this one needed: {names}."
            return refused(repairs=(), refusal=refusal, code="InvalidArguments")
        if repairs or arguments is not call.arguments:
            server = spec.server_name or call.server_name
            text = "" if repairs else call.text  # the history shows the call as it was made
            call = replace(call, name=spec.name, arguments=arguments, server_name=server, text=text)
        try:
            query = self._query_of(spec, arguments)
        except MethodFailed as error:
            return refused(repairs=repairs, refusal=str(error), code="ToolExecutorError")
        if not self._spent.get(agent, frozenset()).isdisjoint((spec.name, query)):
            refusal = f"{spec.name} has reached its limit and would again. Do without it, or give your answer."
            return refused(repairs=repairs, refusal=refusal, code=SPENT)
        planned = partial(PlannedCall, call=call, spec=spec, repairs=repairs, handle=handle)
        if query is None:
            return planned()
        try:
            repeated, earlier, is_certain = self._look(agent, spec, query)
        except MethodFailed as error:
            return refused(repairs=repairs, refusal=str(error), code="ToolExecutorError")
        if query in self._unsure.get(agent, ()):
            return planned(query=query, seen_before=True, code=UNSURE)
        of_attempts = self._made.get(agent)
        if of_attempts and query in of_attempts and (repeated or not is_certain):
            return planned(query=query, seen_before=True, earlier_outcome=earlier, earlier_attempt=of_attempts[query])
        once = spec.policy.destructive and not spec.policy.idempotent
        again = once and not repeated and self._memory.check(cache_name(agent, spec.name), query).is_duplicate
        return planned(query=query, seen_before=repeated, earlier_outcome=earlier, again=again)

    # ------------------------------------------------------------------------------------ run

    def start(self, plan: PlannedCall, guard: CallGuard | None = None) -> Awaitable[ToolOutput]:
        """Call the tool of a plan, with a guard between them. The output is to be post-processed."""
        source = self._toolbox.source
        assert source is not None
        assert not isinstance(plan.call.arguments, str)
        progress = None if self.on_progress is None else partial(self.on_progress, plan.handle)
        run = partial(run_tool, source, plan.tool, retry_delay=self.retry_delay, progress=progress)
        if guard is not None:
            run = partial(run, guard=guard)
        return self._make(plan, source, run)

    def as_served(self, plan: PlannedCall) -> ToolSpec:
        """Return the tool of a planned call as its server defines it at this moment."""
        return self._toolbox.as_served(plan.tool)

    def edited(self, plan: PlannedCall, call: ToolCall) -> PlannedCall:
        """Return the plan with arguments that a person wrote: they are used exactly as written or not at all."""
        spec = plan.tool
        checked = self._toolbox.repair(spec, call.arguments)
        assert isinstance(call.arguments, Mapping)
        if checked.errors or checked.repairs:
            problem = checked.errors[0] if checked.errors else checked.repairs[0].kind
            return replace(plan, refusal=f"The arguments that the user wrote instead do not fit: {problem}")
        edit = Repair("edited_by_user", "arguments", summarise(plan.call.arguments), after=summarise(call.arguments))
        note = "The user changed the arguments of this call before it was made."
        query = query_key(spec.name, call.arguments, spec.policy)
        return replace(plan, call=call, query=query, repairs=(*plan.repairs, edit), note=note)

    async def run_together(
        self, plans: Sequence[PlannedCall], run: Callable[[PlannedCall], Awaitable[tuple[PlannedCall, ToolOutput]]]
    ) -> dict[int, tuple[PlannedCall, ToolOutput]]:
        """Run the calls that are to run: several each in its own task, `max_parallel` at once.

        Args:
            plans: The plans of one reply.
            run: Runs one of them. If it raises `Suspended` for one call, the others are made first.

        Returns:
            The plans as they were approved, and the outputs, by index.
        """
        running = [(index, plan) for index, plan in enumerate(plans) if plan.runs]
        if len(running) == 1:  # as most replies have: it needs no task
            return {index: await run(plan) for index, plan in running}
        slots = asyncio.Semaphore(max(self.max_parallel, 1))
        outputs: dict[int, tuple[PlannedCall, ToolOutput]] = {}
        suspended: dict[int, Suspended] = {}

        async def run_in_slot(index: int, plan: PlannedCall) -> None:
            async with slots:
                try:
                    outputs[index] = await run(plan)
                except Suspended as waiting:  # the others are not to be cancelled
                    suspended[index] = waiting

        try:
            async with asyncio.TaskGroup() as group:
                for index, plan in running:
                    group.create_task(run_in_slot(index, plan))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if suspended:
            raise Suspended([request for index in sorted(suspended) for request in suspended[index].requests])
        return outputs

    # ------------------------------------------------------------------------------------ judge and present

    async def judge_calls(
        self,
        plans: Sequence[PlannedCall],
        ran: Mapping[int, tuple[PlannedCall, ToolOutput]],
        *,
        agent: str = "main",
        allow_duplicates: bool = False,
    ) -> list[CallOutcome]:
        """Return the outcomes of the calls of one reply.

        Args:
            plans: Their plans.
            ran: By index, the plan as it was approved and the output, of each call that ran.
            agent: The calling agent's name.
            allow_duplicates: As for `plan_calls`.
        """
        outcomes: list[CallOutcome] = []
        for index, plan in enumerate(plans):
            if index in ran:
                outcomes.append(await self._finish(*ran[index], agent, allow_duplicates))
            elif plan.earlier_attempt is not None and plan.same_as < 0:
                outcomes.append(await self._made_before(plan, plan.earlier_attempt, agent, allow_duplicates))
            else:
                outcomes.append(self._without_running(plan, outcomes, allow_duplicates))
        interrupted = {plan.query for plan, one in zip(plans, outcomes, strict=True) if is_unsure(one.spec, one.output)}
        if interrupted:
            self._unsure[agent] = {query for query in interrupted if query is not None}
        elif any(one.was_executed and plan.earlier_attempt is None for plan, one in zip(plans, outcomes, strict=True)):
            self._unsure.pop(agent, None)
        return outcomes

    async def _made_before(
        self, plan: PlannedCall, made: EarlierCall, agent: str, allow_duplicates: bool
    ) -> CallOutcome:
        """The result of a call that an earlier attempt made, for one that has not seen it. It changes nothing again."""
        telemetry = _telemetry_of_reuse(plan, made.output)
        output = made.output.model_copy(
            update={"telemetry": telemetry, "state_update": None, "checkpoint": None, "files": ()}
        )
        outcome = await self._finish(replace(plan, note=MADE_BEFORE), output, agent, allow_duplicates)
        if not outcome.rollback and plan.query is not None:
            self._made[agent][plan.query] = None
        return outcome

    def _format_hint(self, plan: PlannedCall) -> str:
        """Return a note, once, about an argument without the format that a server's tool states; "" without one."""
        if plan.tool.server_name is None:
            return ""
        wrong = SchemaRules.of(plan.tool.parameters).wrong_format(plan.call.arguments)
        place = (plan.tool.server_name, plan.tool.name, *(wrong or ()))
        if wrong is None or place in self._hinted:
            return ""
        self._hinted.add(place)
        return f"The call was made, but its argument {wrong[0]} should be a {wrong[1]}."

    async def _finish(self, plan: PlannedCall, output: ToolOutput, agent: str, is_spent: bool) -> CallOutcome:
        """The outcome of a call that ran. `is_spent`: no more rollbacks are allowed."""
        spec = plan.tool
        try:
            failed, (status, reason, rollback) = "", self._judge(output, spec, agent)
        except MethodFailed as error:
            failed = reason = str(error)
            status, rollback = "error", False
        rollback = rollback and not (is_spent and self._insists)
        show = partial(
            present_output,
            output,
            tool_name="" if spec.name == RUN_PROGRAM else spec.name,  # the model may not know that one by its name
            policy=spec.policy,
            budget=self.result_budget,
            handle=plan.handle,
            model=self.model,
            is_normal=True,
            known=known_encodings(self.encodings),
        )
        presented = await run_in_thread(show) if is_large(output.result) else show()
        presented, own_problem = self._observed(output, plan.handle, presented)
        text, tokens, warning = self._formatted(result_record(spec, output), presented, plan.handle)
        if plan.query is not None and status in ("ok", "low_quality"):
            failed = self._count(agent, spec, plan.query)
        own_problem = failed or own_problem or _state_problem(spec, output)
        if note := plan.note or self._format_hint(plan):
            text, tokens = f"{note}\n{text}", tokens + count_tokens(note, self.model)
        output.compressed = output.compressed or presented.truncated or presented.saved_tokens > 0
        output.telemetry.count_tokens(len(plan.call.text or str(plan.call.arguments)) // CHARACTERS_A_TOKEN, tokens)
        if spec.policy.duplicate_key is not None and output.telemetry.cache_key is None:
            output.telemetry.cache_key = plan.query
        outcome = CallOutcome(
            call=plan.call,
            spec=spec,
            output=output,
            text=text,
            status=status,
            reason=reason,
            repairs=plan.repairs,
            duration_ms=output.telemetry.duration_ms,
            handle=plan.handle,
            rollback=rollback,
            tokens=tokens,
            truncated=presented.truncated,
            images=images_of(output) if output.metadata else (),
            warning=own_problem or warning,
        )
        if output.telemetry.error_code == AnyCallSpent.__name__:
            self._spent.setdefault(agent, set()).add(spec.name)
        elif output.telemetry.error_code == CallSpent.__name__ and plan.query is not None:
            self._spent.setdefault(agent, set()).add(plan.query)
        if plan.earlier_attempt is None:
            self._memory.was_executed(agent, spec.policy)  # also if it failed: it may have taken effect
        if plan.query is not None and status in ("ok", "low_quality"):
            self._memory.keep(agent, spec, plan.query, outcome)
        return outcome

    def _judge(self, output: ToolOutput, spec: ToolSpec, agent: str) -> tuple[Status, str, bool]:
        """Return status, reason, and True if the turn should be rolled back. Raises `MethodFailed`."""
        telemetry = output.telemetry
        failure = "" if telemetry.success else telemetry.error_message or output.summary
        if telemetry.error_code == "Interrupted":
            return "interrupted", failure, False
        if telemetry.error_code == "Denied":
            return "refused", failure, False
        place = (agent, spec.name)
        judgement = judge(output.value, spec.policy, spec.name, is_normal=True) if telemetry.success else None
        is_evidence = place in self._accepts_empty  # if it is empty: the one before was too, in other words
        rollback = self._rolls_back(spec, output, failure, judgement, is_evidence)
        if judgement is None:
            return "error", failure, rollback
        quality, reason = judgement.quality, judgement.reason
        if quality == "empty" and judgement.ask_again and not is_evidence:
            self._accepts_empty.add(place)
        else:
            self._accepts_empty.discard(place)
        if quality == "good" and not rollback:
            return "ok", "", False
        reason = reason or f"The result of {spec.name} is not usable: make another call."
        return "error" if quality == "error" else "low_quality", reason, rollback

    def _observed(self, output: ToolOutput, handle: str, presented: Presented) -> tuple[Presented, str]:
        """The result as `format_observation` writes it, and a warning if it failed; without one as it is presented."""
        if self.format_observation is None:
            return presented, ""
        try:
            output.telemetry.count_tokens(0, presented.tokens)
            text: Any = self.format_observation(
                output.model_copy(update={"metadata": {**output.metadata, "handle": handle}})
            )
            if isinstance(text, str):
                text = _shortened(text)
                return Presented(text, count_tokens(text, self.model)), ""
            problem = f"returned {text!r:.80}, not a string"
        except Exception as error:
            logger.exception("format_observation failed.")
            problem = f"raised {type(error).__name__}: {error}"
        return presented, f"format_observation {problem}. The result is shown as it is by default."

    def _formatted(self, tool_result: dict[str, Any], presented: Presented, handle: str) -> tuple[str, int, str]:
        """The text that the model is shown, its tokens, and a warning if that is not what a formatter returned."""
        if self.markers:
            inert = break_markers(presented.text, self.markers)
            if inert != presented.text:
                presented = replace(presented, text=inert, tokens=count_tokens(inert, self.model))
        outcome = {**tool_result, "text": ShownText(presented.text), "handle": handle}
        outcome["text"].shows = tool_result
        problem = ""
        try:
            part = self._part(outcome)
            text = part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(text, str):
                text, wanted = None, '{"type": "text", "text": "…"}'
                problem = f"{self._writer} must return {wanted}, got {part!r:.80}"
        except Exception as error:
            logger.error("%s failed.", self._writer, exc_info=error)
            text, problem = None, f"{self._writer} raised {type(error).__name__}: {error}"
        if problem:
            problem = f"{problem}. The result is shown as it is by default."
        if text is None or text == presented.text:
            return presented.text, presented.tokens, problem
        text = _shortened(break_markers(text, self.markers) if self.markers else text)
        return text, count_tokens(text, self.model), problem

    # ------------------------------------------------------------------------------------ outcomes without a run

    def _without_running(
        self, plan: PlannedCall, outcomes: Sequence[CallOutcome], allow_duplicates: bool
    ) -> CallOutcome:
        """The outcome of a call that is refused, or whose result is there already."""
        spec, earlier = plan.spec, plan.earlier_outcome
        if plan.refusal or spec is None:
            rolled_back = plan.code in ("UnknownTool", SPENT)
            return self._refused(plan, "refused", plan.refusal, plan.code, rollback=rolled_back)
        if plan.same_as >= 0:
            first = outcomes[plan.same_as]
            text = f"The same call as {first.handle or 'one above'} in this reply: its result counts for both."
            return replace(
                first, call=plan.call, text=text, status="duplicate", reason=text, repairs=plan.repairs, tokens=20
            )
        if not plan.seen_before and earlier is not None:
            return self._from_memory(plan, earlier, rollback=False)
        reason = f"You already called {spec.name} with these arguments: use its result, or ask something else."
        if plan.code == UNSURE:
            reason = (
                f"{spec.name} was cut off with these arguments and may have taken effect: check that with another "
                "call first, or say so in your answer."
            )
        elif spec.name == RUN_PROGRAM:
            reason = "You already ran this program: use its result to give the answer, or write another one."
        elif earlier is not None and earlier.status == "low_quality":
            reason = f"You already called {spec.name} with these arguments and found nothing: ask something else."
        if earlier is not None and spec.policy.read_only:
            again = self._from_memory(plan, earlier, rollback=not allow_duplicates)
            return replace(again, status="duplicate", reason=reason)
        return self._refused(plan, "duplicate", reason, "Duplicate", rollback=True)

    def _from_memory(self, plan: PlannedCall, earlier: CallOutcome, *, rollback: bool) -> CallOutcome:
        """An earlier outcome as the outcome of this call; its telemetry says that nothing ran."""
        telemetry = _telemetry_of_reuse(plan, earlier.output)
        telemetry.count_tokens(len(plan.call.text or str(plan.call.arguments)) // CHARACTERS_A_TOKEN, earlier.tokens)
        return replace(
            earlier,
            call=plan.call,
            output=earlier.output.model_copy(update={"telemetry": telemetry}),
            repairs=plan.repairs,
            duration_ms=telemetry.duration_ms,
            rollback=rollback,
        )

    def _refused(self, plan: PlannedCall, status: Status, reason: str, code: str, *, rollback: bool) -> CallOutcome:
        output = failed_output(plan.call.name if plan.spec is None else plan.spec.name, reason, code)
        words = reason if status == "duplicate" else f"Error: {reason}"
        presented = present(words, budget=self.result_budget, model=self.model)
        tool_result = {"server_name": plan.call.server_name or LOCAL, "tool_name": plan.call.name, "error": reason}
        text, tokens, warning = self._formatted(tool_result, presented, plan.handle)
        return CallOutcome(
            call=plan.call,
            spec=plan.spec,
            output=output,
            text=text,
            status=status,
            reason=reason,
            repairs=plan.repairs,
            handle=plan.handle,
            rollback=rollback,
            tokens=tokens,
            warning=warning,
        )

    # ------------------------------------------------------------------------------------ what a subclass may decide

    def _repaired(self, call: ToolCall, spec: ToolSpec) -> RepairedArguments:
        return self._toolbox.repair(spec, call.arguments, call.text)

    def _query_of(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
        """The key that two calls share if they are the same call; None if it may be repeated."""
        return query_key(spec.name, arguments, spec.policy)

    def _look(self, agent: str, spec: ToolSpec, query: str) -> tuple[bool, CallOutcome | None, bool]:
        """Return if a call repeats another, the outcome of that one, and if this holds for earlier attempts too."""
        return (*self._memory.look(agent, spec, query), False)

    def _count(self, agent: str, spec: ToolSpec, query: str) -> str:
        """Count a call that did not fail. Returns a warning, "" if all is well."""
        self._memory.record(cache_name(agent, spec.name), query)
        return ""

    def _make(
        self, plan: PlannedCall, source: ToolSource, run: Callable[[Mapping[str, Any]], Awaitable[ToolOutput]]
    ) -> Awaitable[ToolOutput]:
        """Call the tool: `run` does, with its deadline, its retries and the guard."""
        assert isinstance(plan.call.arguments, Mapping)
        return run(plan.call.arguments)

    def post_process(self, plan: PlannedCall, output: ToolOutput) -> ToolOutput:
        """Return the output as it is recorded, judged and shown; with DEMO_MODE=1, with scraped texts shortened."""
        length = plan.tool.policy.demo_length
        if length is None or not output.telemetry.success or os.environ.get("DEMO_MODE") != "1":
            return output
        return with_result(output, shorten_text(output.result, length))

    def _rolls_back(
        self, spec: ToolSpec, output: ToolOutput, failure: str, judgement: Judgement | None, is_evidence: bool
    ) -> bool:
        """Return True if the turn should be rolled back. `judgement` is None if the call failed."""
        if judgement is None:  # any other error says what to do, and the call may have taken effect
            return names_unknown_tool(failure)
        return says_tool_failed(output.value) or (
            judgement.ask_again and not (judgement.quality == "empty" and is_evidence)
        )

    @property
    def _insists(self) -> bool:
        """True if a subclass may ask for a rollback of the same result again and again."""
        return False

    @property
    def _writer(self) -> str:
        return f"{type(self.output_formatter).__name__}.format_tool_result_for_user"

    def _part(self, tool_result: dict[str, Any]) -> Any:
        """The result as a message part."""
        if self.output_formatter is None:
            return tool_result
        return self.output_formatter.format_tool_result_for_user(tool_result)


def _telemetry_of_reuse(plan: PlannedCall, output: ToolOutput) -> ToolTelemetry:
    """Return the telemetry of a call that gets an earlier output: nothing ran."""
    meter, before = CallMeter(), output.telemetry
    meter.stop()
    return meter.telemetry(before.tool_name, tool_version=before.tool_version, cache_hit=True, cache_key=plan.query)


def _state_problem(spec: ToolSpec, output: ToolOutput) -> str:
    """Return what is wrong with a call's update of the state; empty if it is JSON."""
    if not output.state_update:
        return ""
    try:
        normalise(output.state_update, strict=True)
    except EncodingError as error:
        return f"What the state_update of {spec.name} holds is not all JSON, and recorded as text: {error}"
    return ""


def _shortened(text: str) -> str:
    """A text that a user's function wrote, cut to the longest that a result may have."""
    return f"{text[:TOOL_RESULT_MAX_LENGTH]}\n{TRUNCATED}" if len(text) > TOOL_RESULT_MAX_LENGTH else text


def is_unsure(spec: ToolSpec | None, output: ToolOutput) -> bool:
    """Return whether nobody knows if a call has taken effect: it was interrupted, or late and declared to have some."""
    has_effects = spec is not None and (spec.policy.destructive or spec.policy.on_crash in ("report", "ask"))
    code = output.telemetry.error_code
    return code == "Interrupted" or (has_effects and code in ("TimeoutError", "OutOfTime", CallUnsure.__name__))


def _again_if_left_out(plan: PlannedCall, shows: Callable[[str], bool] | None) -> PlannedCall:
    """Let a repeated call get its earlier result again if that has left the context."""
    earlier = plan.earlier_outcome
    if shows is None or not plan.seen_before or plan.earlier_attempt or earlier is None or shows(earlier.handle):
        return plan
    return replace(plan, seen_before=False, left_out=True)


def _is_to_run(plan: PlannedCall, allow_duplicates: bool) -> bool:
    if plan.refusal or plan.spec is None or plan.same_as >= 0 or plan.earlier_attempt is not None or plan.left_out:
        return False
    policy = plan.spec.policy
    if plan.earlier_outcome is not None and policy.read_only:
        return False
    # If the model insists, a call is repeated if it has no effects, or if it was cut off without a result, is not
    # destructive and needs no person.
    may_repeat = policy.crash_rule == "rerun" or (
        plan.code == UNSURE and not policy.destructive and policy.crash_rule != "ask"
    )
    return not plan.seen_before or (allow_duplicates and may_repeat)


def _mark_repeats(plans: Sequence[PlannedCall]) -> list[PlannedCall]:
    """The plans of one reply, in which a call that occurs twice runs once."""
    if len(plans) == 1:
        return list(plans)
    first: dict[str, int] = {}
    marked = []
    for index, plan in enumerate(plans):
        is_same = plan.query is not None and first.setdefault(plan.query, index) != index
        marked.append(replace(plan, same_as=first[plan.query or ""]) if is_same else plan)
    return marked


def result_record(spec: ToolSpec, output: ToolOutput) -> dict[str, Any]:
    """Return a result in the shape that formatters and overridable methods take."""
    named: dict[str, Any] = {"server_name": spec.server_name or LOCAL, "tool_name": spec.name}
    if output.telemetry.success:
        named["result"] = output.value
    else:
        named["error"] = output.telemetry.error_message or output.summary
    return named


def with_result(output: ToolOutput, value: Any) -> ToolOutput:
    """Return an output that succeeded with another result."""
    result = normalise(value)
    summary = summarise(result)
    telemetry = output.telemetry.model_copy(update={"success": True, "error_code": None, "error_message": None})
    return output.with_written(observation_of(summary), result=result, summary=summary, telemetry=telemetry)


def renamed(arguments: Mapping[str, Any], policy: ToolPolicy) -> dict[str, Any]:
    """The arguments with a policy's aliases and defaults applied, where no schema is known or an older one was used."""
    fixed = dict(arguments)
    for parameter, aliases in policy.aliases.items():
        alias = next((name for name in aliases if name in fixed), None)
        if parameter not in fixed and alias is not None:
            fixed[parameter] = fixed.pop(alias)
    return {**policy.defaults, **fixed}
