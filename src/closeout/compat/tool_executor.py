"""ToolExecutor: the governed calls of a run, with the methods of the original systems, which a subclass overrides."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeAlias

from closeout.answers.formatter import OutputFormatter
from closeout.errors import Suspended, ToolDefinitionError
from closeout.messages import Repair, ToolCall, ToolSpec
from closeout.overrides import failure_of, is_overridden, returned, shaped
from closeout.parsing.json_text import repair_json
from closeout.repair.argument_repair import RepairedArguments
from closeout.results.normal import compact_json, normalise
from closeout.results.summary import summarise
from closeout.results.telemetry import CallMeter
from closeout.results.tool_output import ToolOutput
from closeout.tools.call_records import CallOutcome, DuplicateCheck, cache_name, query_key
from closeout.tools.executor import CallExecutor, MethodFailed, PlannedCall, renamed, result_record, with_result
from closeout.tools.judge import (
    Judgement,
    has_no_organic_results,
    judge,
    names_unknown_tool,
    says_tool_failed,
    shorten_text,
)
from closeout.tools.manager import LOCAL
from closeout.tools.running import ToolSource, failed_output, succeeded
from closeout.tools.shipped_policies import DEMO_SCRAPE_MAX_LENGTH

__all__ = ["DEMO_SCRAPE_MAX_LENGTH", "MakeExecutor", "SingleCall", "ToolExecutor", "made_executor"]

logger = logging.getLogger(__name__)


class SingleCall(NamedTuple):
    """The result of `execute_single_tool_call`.

    Attributes:
        tool_result: The manager's result, or `{"error": …}`.
        duration_ms: Milliseconds.
        tool_calls_data: Records to log.
    """

    tool_result: dict[str, Any]
    duration_ms: int
    tool_calls_data: list[dict[str, Any]]


class ToolExecutor(CallExecutor):
    """Governs the tool calls of one run and its agents by methods that a subclass overrides.

    Pass the subclass to `Agent(tool_executor=…)`. A run calls every method below "methods to override", and what an
    override returns is what happens. One that raises fails its call, not the run; of `format_tool_result_for_llm`, the
    result is then shown as it is by default. A constructor may take the first six arguments only: the others are then
    set as attributes.

    Args:
        main_agent_tool_manager: The tools. Methods that only look at values work without.
        sub_agent_tool_managers: The tools of its sub-agents, by name. Kept for subclasses.
        output_formatter: Its `format_tool_result_for_user` writes every result that the model is shown.
        task_log: `execute_single_tool_call` logs to its `log_step`.
        stream_handler: Kept for subclasses.
        max_consecutive_rollbacks: How many turns a run rolls back in a row.
        options: As for `CallExecutor`.
    """

    def __init__(
        self,
        main_agent_tool_manager: ToolSource | None = None,
        sub_agent_tool_managers: Mapping[str, ToolSource] | None = None,
        output_formatter: Any = None,
        task_log: Any = None,
        stream_handler: Any = None,
        max_consecutive_rollbacks: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(
            main_agent_tool_manager,
            output_formatter,
            max_consecutive_rollbacks=max_consecutive_rollbacks,
            **options,
        )
        self.sub_agent_tool_managers = dict(sub_agent_tool_managers or {})
        self.task_log = task_log
        self.stream = stream_handler

    # ------------------------------------------------------------------------------------ where they are called

    def _overrides(self, name: str) -> bool:
        """Return whether a method is not the one of ToolExecutor."""
        return is_overridden(self, ToolExecutor, name)

    def _call_method(self, name: str, *arguments: Any, shape: Any = None) -> Any:
        """Return the value of an overridable method. Raises `MethodFailed` instead of what an override raises."""
        try:
            value = getattr(self, name)(*arguments)
            return value if shape is None else shaped(value, shape, self, name)
        except ToolDefinitionError:
            raise
        except Exception as error:
            raise self._method_failed(name, error) from error

    def _method_failed(self, name: str, error: Exception) -> MethodFailed:
        logger.error("%s.%s failed.", type(self).__name__, name, exc_info=error)
        return MethodFailed(failure_of(self, name, error))

    def _repaired(self, call: ToolCall, spec: ToolSpec) -> RepairedArguments:
        arguments, found = call.arguments, super()._repaired(call, spec)
        if not self._overrides("fix_tool_call_arguments"):
            return found
        given = arguments if isinstance(arguments, Mapping) else found.arguments if found.ok else _as_object(arguments)
        if not isinstance(given, Mapping) or (not found.ok and not given):
            return found
        fixed = self._call_method("fix_tool_call_arguments", spec.name, dict(given))
        if not isinstance(fixed, Mapping):
            raise MethodFailed(f"{type(self).__name__}.fix_tool_call_arguments must return a dict, got {fixed!r:.80}.")
        unchanged = found.arguments if found.ok else given
        if fixed in (unchanged, ToolExecutor.fix_tool_call_arguments(self, spec.name, dict(given))):
            return found
        again = self._toolbox.repair(spec, fixed)
        if not again.ok:
            return again
        repair = Repair("fix_tool_call_arguments", "arguments", summarise(given), after=summarise(again.arguments))
        return again._replace(repairs=(*found.repairs, repair))

    def _query_of(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
        query: str | None = self._call_method("get_query_str_from_tool_call", spec.name, dict(arguments))
        return query

    def _look(self, agent: str, spec: ToolSpec, query: str) -> tuple[bool, CallOutcome | None, bool]:
        repeated, earlier, _ = super()._look(agent, spec, query)
        if not self._overrides("is_duplicate_query"):
            return repeated, earlier, False
        found = self._call_method("is_duplicate_query", cache_name(agent, spec.name), query, shape=DuplicateCheck)
        return bool(found[0]), earlier if found[0] else None, True

    def _count(self, agent: str, spec: ToolSpec, query: str) -> str:
        try:
            self._call_method("record_query", cache_name(agent, spec.name), query)
        except MethodFailed as error:  # the call is over, and its result is good
            return str(error)
        return ""

    def _make(
        self, plan: PlannedCall, source: ToolSource, run: Callable[[Mapping[str, Any]], Awaitable[ToolOutput]]
    ) -> Awaitable[ToolOutput]:
        if self._overrides("execute_single_tool_call"):
            return self._make_by_override(plan, _GovernedManager(source, plan.tool, run))
        return super()._make(plan, source, run)

    async def _make_by_override(self, plan: PlannedCall, manager: _GovernedManager) -> ToolOutput:
        """Make a call by an override of `execute_single_tool_call`, which also post-processes its result."""
        spec, meter = plan.tool, CallMeter()
        assert isinstance(plan.call.arguments, Mapping)
        server, agent = spec.server_name or LOCAL, plan.agent.rpartition(":")[2]
        try:
            made = self.execute_single_tool_call(
                manager, server, spec.name, dict(plan.call.arguments), agent, plan.turn
            )
            tool_result = shaped(await returned(made), SingleCall, self, "execute_single_tool_call").tool_result
        except Suspended:
            raise
        except Exception as error:
            failed = self._method_failed("execute_single_tool_call", error)
            return failed_output(spec.name, str(failed), "ToolExecutorError", meter)
        meter.stop()
        output = manager.output
        if output is None:  # the override did without the tool
            output = succeeded(spec, None, None, meter, 0)
        return _post_processed(spec, output, output.value, tool_result)

    def post_process(self, plan: PlannedCall, output: ToolOutput) -> ToolOutput:
        """Return the output as `post_process_tool_call_result` leaves it: what is recorded, judged and shown."""
        if self._overrides("execute_single_tool_call"):  # what it returns is final
            return output
        before = result_record(plan.tool, output)
        shown = before.get("result")
        try:
            after = self._call_method("post_process_tool_call_result", plan.tool.name, before)
        except MethodFailed as error:
            return failed_output(plan.tool.name, str(error), "ToolExecutorError")
        return _post_processed(plan.tool, output, shown, after)

    def _rolls_back(
        self, spec: ToolSpec, output: ToolOutput, failure: str, judgement: Judgement | None, is_evidence: bool
    ) -> bool:
        tool_result = _NormalRecord(result_record(spec, output))
        tool_result.is_evidence = is_evidence
        shown = output.value if judgement is not None else failure
        rollback = bool(self._call_method("should_rollback_result", spec.name, shown, tool_result))
        if judgement is None and not self._overrides("should_rollback_result"):
            return rollback and names_unknown_tool(failure)
        return rollback

    @property
    def _insists(self) -> bool:
        return self._overrides("should_rollback_result") or self._overrides("is_google_search_empty_result")

    @property
    def _writer(self) -> str:
        return f"{type(self).__name__}.format_tool_result_for_llm"

    def _part(self, tool_result: dict[str, Any]) -> Any:
        return self.format_tool_result_for_llm(tool_result)

    # ------------------------------------------------------------------------------------ methods to override

    def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the arguments, repaired as the tool's policy and schema allow.

        Called before every call. What it changes is recorded as a repair, and must fit the tool's schema. Arguments
        that cannot be repaired are returned unchanged; if the tool is unknown, its policy's aliases and defaults apply.
        """
        spec = self._toolbox.named(tool_name)
        if spec is None:
            return renamed(_as_object(arguments), self._toolbox.policy(tool_name))
        repaired = self._toolbox.repair(spec, arguments)
        return dict(repaired.arguments if repaired.ok else _as_object(arguments))

    def get_query_str_from_tool_call(self, tool_name: str, arguments: dict[str, Any]) -> str | None:
        """Return the key that two calls share if they are the same call, such as `google_search_<q>`.

        Called for every call. None means that the call may be repeated, as one of a tool that is unknown here.
        """
        policy = self._toolbox.policy(tool_name)
        if policy.duplicate_key is None and self._toolbox.named(tool_name) is None:
            return None
        return query_key(tool_name, _as_object(arguments), policy)

    def post_process_tool_call_result(self, tool_name: str, tool_call_result: dict[str, Any]) -> dict[str, Any]:
        """Return the result as it is judged, stored and shown; with DEMO_MODE=1, with scraped texts shortened.

        Called after every call that ran, before its outcome is recorded. A resumed run reuses the recorded outcome.
        Called by `execute_single_tool_call` if that is overridden.

        Args:
            tool_name: The tool's name.
            tool_call_result: `server_name`, `tool_name`, and `result` or `error`. Not changed.
        """
        length = self._toolbox.policy(tool_name).demo_length
        if "result" not in tool_call_result or length is None or os.environ.get("DEMO_MODE") != "1":
            return tool_call_result
        result = tool_call_result["result"]
        if self._overrides("get_scrape_result"):
            text = result if isinstance(result, str) else compact_json(normalise(result))
            return {**tool_call_result, "result": self.get_scrape_result(text)}
        return {**tool_call_result, "result": shorten_text(result, length)}

    def should_rollback_result(self, tool_name: str, result: Any, tool_result: dict[str, Any]) -> bool:
        """Return whether a turn with this result is better rolled back: the tool failed, found nothing, was blocked.

        Called for every call that ran. An override decides: the turn is rolled back as long as rollbacks are left, then
        the model is shown the result. By the built-in rules, a second empty result in a row is accepted as evidence.

        Args:
            tool_name: The tool's name.
            result: The result, or the error's text.
            tool_result: `server_name`, `tool_name`, and `result` or `error`.
        """
        if says_tool_failed(result) or says_tool_failed(tool_result.get("error")):
            return True
        if tool_result.get("error"):
            return False
        found, is_normal = tool_result.get("result", result), isinstance(tool_result, _NormalRecord)
        judgement = judge(found, self._toolbox.policy(tool_name), tool_name, is_normal=is_normal)
        if self._overrides("is_google_search_empty_result"):
            if self.is_google_search_empty_result(tool_name, tool_result):
                return True
            if ToolExecutor.is_google_search_empty_result(self, tool_name, tool_result):
                return False
        is_evidence = judgement.quality == "empty" and getattr(tool_result, "is_evidence", False)
        return judgement.ask_again and not is_evidence

    def format_tool_result_for_llm(self, tool_result: dict[str, Any]) -> dict[str, Any]:
        """Return the result as a message part, `{"type": "text", "text": …}`; the output formatter's, if there is one.

        Called for every result. What it returns is what the model is shown.

        Args:
            tool_result: `server_name`, `tool_name`, and `result` or `error`. In a run also `text`, the result as it is
                shown by default (inside its budget, markers escaped) unless `result` is replaced, and its `handle`.
        """
        part: dict[str, Any] = (self.output_formatter or OutputFormatter()).format_tool_result_for_user(tool_result)
        return part

    @property
    def used_queries(self) -> dict[str, dict[str, int]]:
        """Cache name, such as "main_google_search" → query → how often it was made."""
        return self._memory.counts

    @used_queries.setter
    def used_queries(self, counts: dict[str, dict[str, int]]) -> None:
        self._memory.counts = counts

    def is_duplicate_query(self, cache_name: str, query_str: str) -> DuplicateCheck:
        """Return whether a query was recorded in a cache ("main_google_search"), and how often.

        Called for every call with a query; one that an override finds new runs.
        """
        return self._memory.check(cache_name, query_str)

    def record_query(self, cache_name: str, query_str: str) -> None:
        """Count one more execution of a query. Called after every call with a query that did not fail."""
        self._memory.record(cache_name, query_str)

    def is_google_search_empty_result(self, tool_name: str, tool_result: dict[str, Any]) -> bool:
        """Return whether a search has no organic results; False for tools without them and for unreadable results.

        An override is called by `should_rollback_result`, for the results of every tool.
        """
        return "organic" in self._toolbox.policy(tool_name).empty_at and has_no_organic_results(
            tool_result.get("result")
        )

    def get_scrape_result(self, result: str) -> str:
        """Return a scraped text of at most DEMO_SCRAPE_MAX_LENGTH characters; in JSON, only its "text" is cut.

        An override is called by `post_process_tool_call_result` for the text of each page while DEMO_MODE=1.
        """
        return str(shorten_text(result, DEMO_SCRAPE_MAX_LENGTH))

    async def execute_single_tool_call(
        self,
        tool_manager: Any,
        server_name: str,
        tool_name: str,
        arguments: dict[str, Any],
        agent_name: str = "main",
        turn_count: int = 0,
    ) -> SingleCall:
        """Make one call through `tool_manager.execute_tool_call`, measured and logged. Raises only cancellation.

        A run calls an override for every call. The `tool_result` that it returns, with `result` or `error`, is what is
        recorded, judged and shown. Its `tool_manager` keeps the deadline and the retries of the tool.
        """
        began = time.perf_counter()
        entry: dict[str, Any] = {"server_name": server_name, "tool_name": tool_name, "arguments": arguments}
        try:
            found = await tool_manager.execute_tool_call(
                server_name=server_name, tool_name=tool_name, arguments=arguments
            )
            if not isinstance(found, Mapping):  # the bare result
                found = {"server_name": server_name, "tool_name": tool_name, "result": found}
            tool_result = self.post_process_tool_call_result(tool_name, dict(found))
            entry["result"] = tool_result
            level, message = "info", f"Tool {tool_name} completed in {{}}ms"
        except Suspended:
            raise
        except (Exception, SystemExit) as error:
            tool_result = {"error": f"Tool call failed: {error}", "server_name": server_name, "tool_name": tool_name}
            entry["error"] = str(error)
            level, message = "error", f"Tool {tool_name} failed to execute after {{}}ms: {error}"
        duration_ms = int((time.perf_counter() - began) * 1000)
        entry |= {"duration_ms": duration_ms, "call_time": datetime.now(UTC).isoformat()}
        if self.task_log is not None:
            step = f"{agent_name} | Turn: {turn_count} | Tool Call"
            self.task_log.log_step(level, step, message.replace("{}", str(duration_ms), 1))
        return SingleCall(tool_result, duration_ms, [entry])


MakeExecutor: TypeAlias = Callable[..., ToolExecutor]
"""A `ToolExecutor` class, or a function that takes the same arguments by keyword."""

PARTS = tuple(signature(ToolExecutor).parameters)[:6]


def made_executor(make: MakeExecutor, parts: Sequence[Any], options: Mapping[str, Any]) -> ToolExecutor:
    """Make a user's executor, with the options that its constructor does not take as attributes.

    An option stays as it is if the class has chosen another value than its base class.

    Args:
        make: The class, or a function that makes the executor.
        parts: The six arguments of `ToolExecutor`.
        options: The options of `CallExecutor`.
    """
    parameters = signature(make).parameters
    # The `**` of a class passes on to classes that may take less.
    takes_all = not isinstance(make, type) and any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    takes = {name: value for name, value in options.items() if takes_all or name in parameters}
    made = make(**dict(zip(PARTS, parts, strict=True)), **takes)
    defaults = signature(CallExecutor).parameters
    for name in options.keys() - takes.keys():
        if getattr(made, name) == defaults[name].default:
            setattr(made, name, options[name])
    return made


class _GovernedManager:
    """A tool manager as a run passes it to `execute_single_tool_call`. Its one call keeps deadline, retries and output.

    Attributes:
        output: The tool's output, once it was called.
    """

    def __init__(
        self, source: ToolSource, spec: ToolSpec, run: Callable[[Mapping[str, Any]], Awaitable[ToolOutput]]
    ) -> None:
        self.output: ToolOutput | None = None
        self._source = source
        self._spec = spec
        self._run = run

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Mapping[str, Any]) -> Any:
        if tool_name != self._spec.name:
            return await self._source.execute_tool_call(  # type: ignore[attr-defined] # another tool of the manager
                server_name=server_name, tool_name=tool_name, arguments=arguments
            )
        self.output = await self._run(arguments)
        return result_record(self._spec, self.output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _NormalRecord(dict[str, Any]):
    """A result in the shape that the overridable methods take, already normal: walking a large one takes seconds."""

    is_evidence = False  # if it is empty: the one before was too, and the model asked in other words


def _post_processed(spec: ToolSpec, output: ToolOutput, before: Any, after: Any) -> ToolOutput:
    """The output with the result that `post_process_tool_call_result` returned in place of `before`."""
    if not isinstance(after, Mapping):
        message = f"post_process_tool_call_result must return a dict, got {type(after).__name__}."
        return failed_output(spec.name, message, "ToolExecutorError")
    if after.get("error"):
        if not output.telemetry.success and after["error"] == (output.telemetry.error_message or output.summary):
            return output
        return failed_output(spec.name, str(after["error"]), output.telemetry.error_code or "ToolError")
    if "result" not in after or (output.telemetry.success and after["result"] is before):
        return output
    return with_result(output, after["result"])


def _as_object(arguments: Any) -> Mapping[str, Any]:
    """Arguments that may still be the model's text, or missing."""
    value = repair_json(arguments).value if isinstance(arguments, str) else arguments
    return value if isinstance(value, Mapping) else {}
