"""How one tool call is governed: resolve → repair → check duplicate → run → judge → ToolOutput.

Each stage returns a value that says what it did; nothing here raises for a bad call or a failing tool. What tools are
lives in tool.py and manager.py, how results are shown in `closeout.outputs`, how calls are put right in
`closeout.repair`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.outputs.models import ToolOutput
from closeout.outputs.present import present
from closeout.repair.arguments import repair_arguments
from closeout.repair.json_text import repair_json
from closeout.tools.duplicates import CallMemory, DuplicateCheck, cache_name, query_key
from closeout.tools.judge import judge, says_tool_failed
from closeout.tools.outcome import CallOutcome, Status
from closeout.tools.planning import Plan, plan_call, with_twins
from closeout.tools.running import ToolSource, failed_output, images_of, run_tool
from closeout.tools.scrape import (
    DEMO_SCRAPE_MAX_LENGTH,
    formatted_as_text,
    has_no_organic_results,
    is_demo_cut,
    shorten_scrape,
)
from closeout.tools.toolbox import Toolbox

__all__ = ["DEMO_SCRAPE_MAX_LENGTH", "CallOutcome", "SingleCall", "Through", "ToolExecutor", "directly"]

CHARACTERS_A_TOKEN = 4  # of what a call was made with: telemetry that nothing is decided by, so a rough rate will do

Run: TypeAlias = Callable[[], Awaitable[ToolOutput]]
Through: TypeAlias = Callable[[ToolCall, ToolSpec, str, Run], Awaitable[ToolOutput]]


async def directly(call: ToolCall, spec: ToolSpec, handle: str, run: Run) -> ToolOutput:
    """The door that does nothing but run the tool. A journal's door writes the intent before and the outcome after."""
    return await run()


class SingleCall(NamedTuple):
    """What `execute_single_tool_call` brings: the manager's result or `{"error": …}`, milliseconds, records to log."""

    tool_result: dict[str, Any]
    duration_ms: int
    tool_calls_data: list[dict[str, Any]]


class ToolExecutor:
    """Governs tool calls for one run and its agents.

    Every collaborator is optional: the methods that only look at values work on a bare `ToolExecutor()`.
    `result_budget` is in tokens, `retry_delay` in seconds; `max_parallel` calls run at once. `sub_agent_tool_managers`
    maps an agent's name to its manager; agents without one use the main one.
    """

    def __init__(
        self,
        main_agent_tool_manager: ToolSource | None = None,
        sub_agent_tool_managers: Mapping[str, ToolSource] | None = None,
        output_formatter: Any = None,
        task_log: Any = None,
        stream_handler: Any = None,
        max_consecutive_rollbacks: int = 5,
        *,
        result_budget: int | None = 4000,
        max_parallel: int = 8,
        retry_delay: float = 0.5,
        model: str | None = None,
    ) -> None:
        self.main_agent_tool_manager = main_agent_tool_manager
        self.sub_agent_tool_managers = dict(sub_agent_tool_managers or {})
        self.output_formatter = output_formatter
        self.task_log = task_log
        self.stream = stream_handler
        self.max_consecutive_rollbacks = max_consecutive_rollbacks
        self.result_budget = result_budget
        self.max_parallel = max_parallel
        self.retry_delay = retry_delay
        self.model = model
        self._toolbox = Toolbox(main_agent_tool_manager)
        self._toolboxes = {name: Toolbox(manager) for name, manager in self.sub_agent_tool_managers.items()}
        self._memory = CallMemory()
        self._accepted_empty: set[tuple[str, str]] = set()  # (agent, tool) whose next empty result is evidence

    # ------------------------------------------------------------------------------------ many calls of one reply

    async def execute_calls(
        self,
        calls: Sequence[ToolCall],
        *,
        agent: str = "main",
        allow_duplicates: bool = False,
        through: Through = directly,
        handles: Callable[[int], str] | None = None,
    ) -> list[CallOutcome]:
        """The outcomes of the calls of one reply, in their order; independent calls run at once.

        `allow_duplicates` says that the rollback budget is spent: then a call that was made before is answered with
        its earlier result if the tool is read-only, and run again if it is not. `handles` gives the name under which
        the result of call number n is stored. Raises only what `through` raises, and cancellation.
        """
        toolbox = self._toolbox_of(agent)
        plans = with_twins([plan_call(call, toolbox, self._memory, agent) for call in calls])
        named = [(plan, handles(index) if handles else "") for index, plan in enumerate(plans)]
        running = {index: each for index, each in enumerate(named) if each[0].is_to_run(allow_duplicates)}
        if len(running) == 1:  # nearly always: in the caller's task
            ((index, (plan, handle)),) = running.items()
            outputs = {index: await self._run(toolbox, plan, handle, through)}
        else:
            outputs = await self._run_together(toolbox, running, through)
        outcomes: list[CallOutcome] = []
        for index, (plan, handle) in enumerate(named):
            if index in outputs:
                outcome = self._finish(plan, outputs[index], handle, agent)
            else:
                outcome = self._without_running(plan, outcomes, handle, allow_duplicates)
            outcomes.append(outcome)
        return outcomes

    def begin_attempt(self, agent: str = "main") -> None:
        """Call this when an agent starts again with an empty history: what it called before is no repetition now."""
        self._memory.begin_attempt(agent)

    # ------------------------------------------------------------------------------------ run

    def _run(self, toolbox: Toolbox, plan: Plan, handle: str, through: Through) -> Awaitable[ToolOutput]:
        """One call on its way through the door."""
        source, spec, arguments = toolbox.source, plan.spec, plan.call.arguments
        assert source is not None
        assert spec is not None
        assert not isinstance(arguments, str)
        run = partial(run_tool, source, spec, arguments, retry_delay=self.retry_delay)
        return through(plan.call, spec, handle, run)

    async def _run_together(
        self, toolbox: Toolbox, running: Mapping[int, tuple[Plan, str]], through: Through
    ) -> dict[int, ToolOutput]:
        """Outputs by index, of calls that each run in their own task, `max_parallel` at once."""
        if not running:
            return {}
        slots = asyncio.Semaphore(max(self.max_parallel, 1))

        async def run_in_slot(plan: Plan, handle: str) -> ToolOutput:
            async with slots:
                return await self._run(toolbox, plan, handle, through)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {index: group.create_task(run_in_slot(*each)) for index, each in running.items()}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {index: task.result() for index, task in tasks.items()}

    # ------------------------------------------------------------------------------------ judge

    def _finish(self, plan: Plan, output: ToolOutput, handle: str, agent: str) -> CallOutcome:
        """What a call that ran has brought, as the model and the loop take it."""
        spec = plan.spec
        assert spec is not None
        status, reason, rollback = self._judge(output, spec, agent)
        shown = (
            output.result if output.telemetry.success else f"Error: {output.telemetry.error_message or output.summary}"
        )
        face = present(
            shown, tool_name=spec.name, policy=spec.policy, budget=self.result_budget, handle=handle, model=self.model
        )
        given = len(plan.call.text or str(plan.call.arguments)) // CHARACTERS_A_TOKEN
        output.telemetry.count_tokens(given, face.tokens)
        outcome = CallOutcome(
            plan.call,
            spec,
            output,
            face.text,
            status,
            reason,
            plan.repairs,
            output.telemetry.duration_ms,
            handle,
            rollback,
            face.tokens,
            face.truncated,
            images_of(output) if output.metadata else (),
        )
        if plan.query is not None and status in ("ok", "low_quality"):
            if spec.policy.destructive or (spec.policy.idempotent and not spec.policy.read_only):
                self._memory.something_changed(agent)
            self._memory.record(cache_name(agent, spec.name), plan.query)
            self._memory.keep(agent, plan.query, outcome)
        return outcome

    def _judge(self, output: ToolOutput, spec: ToolSpec, agent: str) -> tuple[Status, str, bool]:
        """Status, reason, and whether the turn is better taken back."""
        telemetry = output.telemetry
        if not telemetry.success:
            message = telemetry.error_message or output.summary
            if telemetry.error_code == "Interrupted":
                return "interrupted", message, False
            return "error", message, says_tool_failed(message)
        judgement = judge(output.result, spec.policy, spec.name)
        place = (agent, spec.name)
        if judgement.quality == "empty" and judgement.ask_again:
            accepted = place in self._accepted_empty  # asked again in other words, and still nothing: that is a finding
            self._accepted_empty ^= {place}
            return "low_quality", judgement.reason, not accepted
        self._accepted_empty.discard(place)
        if judgement.quality == "good":
            return "ok", "", False
        return "error" if judgement.quality == "error" else "low_quality", judgement.reason, judgement.ask_again

    def _without_running(
        self, plan: Plan, outcomes: Sequence[CallOutcome], handle: str, allow_duplicates: bool
    ) -> CallOutcome:
        """The outcome of a call that is refused, or whose result is there already."""
        if plan.refusal or plan.spec is None:
            return self._refused(plan, handle)
        if plan.twin >= 0:
            first = outcomes[plan.twin]
            text = f"The same call as {first.handle or 'one above'} in this reply: its result counts for both."
            return replace(
                first, call=plan.call, text=text, status="duplicate", reason=text, repairs=plan.repairs, tokens=20
            )
        earlier = plan.earlier
        if not plan.repeated and earlier is not None:
            return replace(earlier, call=plan.call, repairs=plan.repairs, duration_ms=0.0, rollback=False)
        reason = f"You already called {plan.spec.name} with these arguments: use its result, or ask something else."
        if earlier is not None and earlier.status == "low_quality":
            reason = (
                f"You already called {plan.spec.name} with these arguments and it brought nothing: ask something else."
            )
        if earlier is not None and plan.spec.policy.read_only:
            return replace(
                earlier,
                call=plan.call,
                status="duplicate",
                reason=reason,
                repairs=plan.repairs,
                duration_ms=0.0,
                rollback=not allow_duplicates,
            )
        output = failed_output(plan.spec.name, reason, "Duplicate")
        return CallOutcome(
            plan.call, plan.spec, output, reason, "duplicate", reason, plan.repairs, 0.0, handle, True, 30
        )

    def _refused(self, plan: Plan, handle: str) -> CallOutcome:
        output = failed_output(plan.call.name, plan.refusal, plan.code)
        face = present(f"Error: {plan.refusal}", budget=self.result_budget, model=self.model)
        return CallOutcome(
            plan.call,
            plan.spec,
            output,
            face.text,
            "refused",
            plan.refusal,
            plan.repairs,
            0.0,
            handle,
            plan.code == "UnknownTool",
            face.tokens,
        )

    def _toolbox_of(self, agent: str) -> Toolbox:
        if not self._toolboxes:
            return self._toolbox
        return self._toolboxes.get(agent) or self._toolboxes.get(agent.rsplit(":", 1)[-1]) or self._toolbox

    def _toolbox_with(self, tool_name: str) -> Toolbox:
        """The toolbox that holds a tool, whichever agent it is for: the methods below are not told which."""
        toolboxes = (self._toolbox, *self._toolboxes.values())
        return next((toolbox for toolbox in toolboxes if toolbox.named(tool_name) is not None), self._toolbox)

    def _policy(self, tool_name: str) -> ToolPolicy:
        return self._toolbox_with(tool_name).policy(tool_name)

    # ------------------------------------------------------------------------------------ the seed design's methods

    @property
    def used_queries(self) -> dict[str, dict[str, int]]:
        """Cache name, such as "main_google_search" → query → how often it was made."""
        return self._memory.counts

    def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A copy of the arguments, put right as the tool's policy and schema allow; the given ones stay as they are.

        Arguments that cannot be made valid come back with their declared aliases and defaults applied and no more; of
        what is no object and no text for one, nothing is left.
        """
        toolbox = self._toolbox_with(tool_name)
        spec = toolbox.named(tool_name)
        if spec is not None:
            repaired = repair_arguments(
                arguments, toolbox.rules(spec), spec.policy.aliases, defaults=spec.policy.defaults
            )
            if repaired.ok:
                return dict(repaired.arguments)
        return _renamed(_as_object(arguments), self._policy(tool_name))

    def get_query_str_from_tool_call(self, tool_name: str, arguments: dict[str, Any]) -> str | None:
        """What makes two calls the same, `google_search_<q>` for instance; None if the tool may be repeated."""
        return query_key(tool_name, _as_object(arguments), self._policy(tool_name))

    def is_duplicate_query(self, cache_name: str, query_str: str) -> DuplicateCheck:
        """Whether the query was recorded in that cache ("main_google_search"), and how often."""
        return self._memory.check(cache_name, query_str)

    def record_query(self, cache_name: str, query_str: str) -> None:
        """Counts one more execution of the query."""
        self._memory.record(cache_name, query_str)

    def is_google_search_empty_result(self, tool_name: str, tool_result: dict[str, Any]) -> bool:
        """Whether a google_search brought no organic results; False for other tools and for what cannot be read."""
        return tool_name == "google_search" and has_no_organic_results(tool_result.get("result"))

    def get_scrape_result(self, result: str) -> str:
        """A scraped text of at most DEMO_SCRAPE_MAX_LENGTH characters; of JSON with a "text", only that is cut."""
        return str(shorten_scrape(result))

    def post_process_tool_call_result(self, tool_name: str, tool_call_result: dict[str, Any]) -> dict[str, Any]:
        """The result, scraped text shortened where the environment says DEMO_MODE=1; the given one stays as it is."""
        if "result" not in tool_call_result or not is_demo_cut(tool_name):
            return tool_call_result
        return {**tool_call_result, "result": shorten_scrape(tool_call_result["result"])}

    def should_rollback_result(self, tool_name: str, result: Any, tool_result: dict[str, Any]) -> bool:
        """Whether a turn with this result is better taken back: the tool failed, found nothing, or read a bot wall."""
        if says_tool_failed(str(result)) or self.is_google_search_empty_result(tool_name, tool_result):
            return True
        if tool_result.get("error"):
            return False
        return judge(tool_result.get("result", result), self._policy(tool_name), tool_name).ask_again

    async def execute_single_tool_call(
        self,
        tool_manager: Any,
        server_name: str,
        tool_name: str,
        arguments: dict[str, Any],
        agent_name: str = "main",
        turn_count: int = 0,
    ) -> SingleCall:
        """One call through `tool_manager.execute_tool_call`, measured and logged. Never raises but for cancellation."""
        began = time.perf_counter()
        record: dict[str, Any] = {"server_name": server_name, "tool_name": tool_name, "arguments": arguments}
        try:
            found = await tool_manager.execute_tool_call(server_name, tool_name, arguments)
            if not isinstance(found, Mapping):  # the bare result
                found = {"server_name": server_name, "tool_name": tool_name, "result": found}
            tool_result = self.post_process_tool_call_result(tool_name, found)
            record["result"] = tool_result
            level, message = "info", f"Tool {tool_name} completed in {{}}ms"
        except (Exception, SystemExit) as error:
            tool_result = {"error": f"Tool call failed: {error}", "server_name": server_name, "tool_name": tool_name}
            record["error"] = str(error)
            level, message = "error", f"Tool {tool_name} failed to execute after {{}}ms: {error}"
        duration_ms = int((time.perf_counter() - began) * 1000)
        record |= {"duration_ms": duration_ms, "call_time": datetime.now(UTC).isoformat()}
        if self.task_log is not None:
            step = f"{agent_name} | Turn: {turn_count} | Tool Call"
            self.task_log.log_step(level, step, message.replace("{}", str(duration_ms), 1))
        return SingleCall(tool_result, duration_ms, [record])

    def format_tool_result_for_llm(self, tool_result: dict[str, Any]) -> dict[str, Any]:
        """The result as a message part, `{"type": "text", "text": …}`; the output formatter's, where there is one."""
        if self.output_formatter is not None:
            return dict(self.output_formatter.format_tool_result_for_user(tool_result))
        return formatted_as_text(tool_result, self.result_budget)


def _as_object(arguments: Any) -> Mapping[str, Any]:
    """Arguments that may still be the model's text, or nothing."""
    value = repair_json(arguments).value if isinstance(arguments, str) else arguments
    return value if isinstance(value, Mapping) else {}


def _renamed(arguments: Mapping[str, Any], policy: ToolPolicy) -> dict[str, Any]:
    """The arguments with a policy's aliases and defaults applied, where no schema is known."""
    fixed = dict(arguments)
    for parameter, aliases in policy.aliases.items():
        alias = next((name for name in aliases if name in fixed), None)
        if parameter not in fixed and alias is not None:
            fixed[parameter] = fixed.pop(alias)
    return {**policy.defaults, **fixed}
