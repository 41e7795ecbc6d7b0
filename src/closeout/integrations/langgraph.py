"""LangGraph: a node that runs tools in place of `ToolNode` and gives the graph outputs, telemetry and short messages.

Needs the extra `langgraph`. How results are measured and shown is `outputs`' business.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_core.tools import tool as langchain_tool
from langgraph.errors import GraphBubbleUp
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from typing_extensions import TypedDict

from closeout.messages import ToolPolicy
from closeout.outputs.artifacts import Artifact, ArtifactStore, read_result
from closeout.outputs.models import ToolOutput
from closeout.outputs.normal import compact_json, normalise
from closeout.outputs.present import Presented, present
from closeout.outputs.summary import summarise
from closeout.outputs.telemetry import CallMeter, TelemetryCollector, joined_telemetry
from closeout.outputs.tokens import estimate_tokens
from closeout.outputs.wrapper import WrappedOutput

__all__ = ["AgentState", "StateOutput", "ToolOutputNode", "add_telemetry", "tool_outputs"]

NO_CALLS: Mapping[str, Any] = {"total_tokens": 0, "total_latency_ms": 0.0, "tool_calls": ()}


class StateOutput(ToolOutput):
    """A ToolOutput in a graph's state. Checkpointers write `model_dump()`; here that is the whole record.

    `model_dump_json` stays the model's side. A checkpointer in strict mode gives the record back as a dict, which
    `tool_outputs` reads too.
    """

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The whole record, telemetry and metadata too, unless options ask for something else."""
        return super().model_dump(**options) if options else self.to_record()


def add_telemetry(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> dict[str, Any]:
    """The sum of two telemetry summaries, as the reducer of a state."""
    left, right = left or NO_CALLS, right or NO_CALLS
    return {
        "total_tokens": left["total_tokens"] + right["total_tokens"],
        "total_latency_ms": left["total_latency_ms"] + right["total_latency_ms"],
        "tool_calls": [*left["tool_calls"], *right["tool_calls"]],
    }


class AgentState(TypedDict, total=False):
    """Messages, every tool's output, and what they cost so far."""

    messages: Annotated[list[AnyMessage], add_messages]
    tool_outputs: Annotated[list[StateOutput], operator.add]
    telemetry_summary: Annotated[dict[str, Any], add_telemetry]


def tool_outputs(state: Mapping[str, Any]) -> list[ToolOutput]:
    """The outputs in a state, also in one that a checkpointer gave back as plain records."""
    found = state.get("tool_outputs") or ()
    return [one if isinstance(one, ToolOutput) else StateOutput.from_record(one) for one in found]


@dataclass(slots=True)
class _Call:
    """One call while it runs: its meter, and what its function returned before LangChain made text of it."""

    name: str
    arguments: Any
    meter: CallMeter = field(default_factory=CallMeter)
    results: list[Any] = field(default_factory=list)
    failure: Exception | None = None


_calls: ContextVar[dict[str, _Call] | None] = ContextVar("closeout_langgraph_calls", default=None)
_call: ContextVar[_Call | None] = ContextVar("closeout_langgraph_call", default=None)


class ToolOutputNode(Runnable[Any, Any]):  # type: ignore[misc] # LangChain is an extra, unknown to the type checker
    """Runs the tool calls of the last AI message, at once, as `ToolNode` does, and takes its place in a `StateGraph`.

    Every result becomes a ToolMessage with the model's face of it (`outputs.present`: cheapest form, budget, nothing
    that could pass for a marker). Beside `messages` the node gives the state `tool_outputs` (`StateOutput` each) and
    `telemetry_summary` (`total_tokens`, `total_latency_ms`, `tool_calls`); a state without these keys does without.
    A tool's exception becomes a message with status "error"; interrupts and Commands pass. A tool that returns a
    ToolOutput, or is wrapped by UnifiedToolWrapper, speaks for itself.

    `tools` are LangChain tools or functions. `policies` are by tool name. With a `store`, whole results are kept and
    `read_result` joins the tools: bind `node.tools` to the model.
    """

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        *,
        policies: Mapping[str, ToolPolicy] | None = None,
        budget: int | None = None,
        model: str | None = None,
        store: ArtifactStore | None = None,
        collector: TelemetryCollector | None = None,
        language: str = "en",
        messages_key: str = "messages",
        name: str = "tools",
    ) -> None:
        made = [one if isinstance(one, BaseTool) else langchain_tool(one) for one in tools]
        if store is not None and all(one.name != "read_result" for one in made):
            made.append(_read_result_tool(store, budget, model))
        self.name = name
        self.tools: list[BaseTool] = made
        self._policies = dict(policies or {})
        self._budget, self._model, self._language = budget, model, language
        self._store, self._collector = store, collector
        self._stored = 0
        self._messages_key = messages_key
        self._node = ToolNode(
            [_capturing(one) for one in made],
            name=name,
            handle_tool_errors=False,
            messages_key=messages_key,
            wrap_tool_call=_measured,
            awrap_tool_call=_measured_async,
        )

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002 - LangChain's
        """Run the calls in threads."""
        calls: dict[str, _Call] = {}
        token = _calls.set(calls)
        try:
            result = self._node.invoke(input, config, **kwargs)
        finally:
            _calls.reset(token)
        return self._update(input, result, calls)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the calls as tasks."""
        calls: dict[str, _Call] = {}
        token = _calls.set(calls)
        try:
            result = await self._node.ainvoke(input, config, **kwargs)
        finally:
            _calls.reset(token)
        return self._update(input, result, calls)

    def _update(self, state: Any, result: Any, calls: dict[str, _Call]) -> Any:
        """ToolNode's update with our messages in it, in the shape it had, and our keys beside them."""
        outputs: list[StateOutput] = []

        def shown(message: Any) -> Any:
            call = calls.get(message.tool_call_id) if isinstance(message, ToolMessage) else None
            if call is None:
                return message
            message, output = self._finished(message, call)
            outputs.append(output)
            return message

        def of_part(part: Any) -> Any:
            if isinstance(part, dict):
                return {**part, self._messages_key: [shown(message) for message in part.get(self._messages_key, [])]}
            return part if isinstance(part, Command) else shown(part)

        update = [of_part(part) for part in result] if isinstance(result, list) else of_part(result)
        if isinstance(state, list):
            return update
        ours = {"tool_outputs": outputs, "telemetry_summary": _summary(outputs)}
        return {**update, **ours} if isinstance(update, dict) else [*update, ours]

    def _finished(self, message: ToolMessage, call: _Call) -> tuple[ToolMessage, StateOutput]:
        result: Any = message.content
        if call.results:
            result = call.results[-1]
            if isinstance(result, tuple) and len(result) == 2 and message.artifact is not None:
                result = result[0]  # response_format="content_and_artifact"
        if isinstance(result, WrappedOutput):
            result = result.output
        own = result if isinstance(result, ToolOutput) else None
        value = result if own is None else self._said(own)
        if own is not None and not own.success:
            message = message.model_copy(update={"status": "error"})
        if call.failure is None and own is None and message.status == "error":  # LangChain's own words: no such tool
            call.failure = ToolException(str(message.content))
        keep = call.failure is None and call.name != "read_result" and (own is None or own.result is not None)
        handle = self._kept(value, call) if keep else ""
        face = self._face(value, call, handle)
        if isinstance(message.content, str):
            message = message.model_copy(update={"content": face.text})
        return message, self._output(value, call, face, handle, own)

    def _said(self, own: ToolOutput) -> Any:
        """What of a tool's own output the model is to read: the result, else the summary and where the result is."""
        if not own.success:
            return f"Error: {own.telemetry.error_message or own.summary}"
        if own.result is not None:
            return own.result
        stored = own.handle and self._store is not None and self._store.get(own.handle) is not None
        return own.observation.removeprefix("Observation: ") if stored else own.summary

    def _face(self, value: Any, call: _Call, handle: str) -> Presented:
        policy = self._policies.get(call.name, ToolPolicy())
        return present(value, tool_name=call.name, policy=policy, budget=self._budget, handle=handle, model=self._model)

    def _output(self, value: Any, call: _Call, face: Presented, handle: str, own: ToolOutput | None) -> StateOutput:
        failure = call.failure
        telemetry = call.meter.telemetry(
            call.name,
            input_tokens=estimate_tokens(compact_json(normalise(call.arguments))),
            output_tokens=face.tokens,
            success=failure is None,
            error_code=None if failure is None else type(failure).__name__,
            error_message=None if failure is None else str(failure),
        )
        own = own or ToolOutput()
        telemetry = joined_telemetry(own.telemetry, telemetry)
        telemetry.count_tokens(telemetry.input_tokens, face.tokens)
        if self._collector is not None:
            self._collector.record(telemetry)
        return StateOutput(
            result=None if handle else normalise(value),
            summary=own.summary or summarise(value, self._language),
            observation=f"Observation: {face.text}",
            compressed=face.truncated,
            telemetry=telemetry,
            metadata=own.metadata | ({"handle": handle} if handle else {}),
            state_update=own.state_update,
            checkpoint=own.checkpoint,
        )

    def _kept(self, value: Any, call: _Call) -> str:
        if self._store is None:
            return ""
        self._stored += 1
        while self._store.get(f"r{self._stored}") is not None:
            self._stored += 1
        self._store.put(f"r{self._stored}", Artifact(value, call.name))
        return f"r{self._stored}"


def _summary(outputs: Sequence[ToolOutput]) -> dict[str, Any]:
    records = [output.telemetry for output in outputs]
    return {
        "total_tokens": sum(record.output_tokens for record in records),
        "total_latency_ms": sum(record.latency_ms for record in records),
        "tool_calls": [
            {"tool": record.tool_name, "success": record.success, "latency_ms": record.latency_ms} for record in records
        ],
    }


def _read_result_tool(store: ArtifactStore, budget: int | None, model: str | None) -> BaseTool:
    def read(handle: str, offset: int = 0, path: str | None = None, pattern: str | None = None) -> str:
        """Read more of a stored tool result: from an offset, at a path like rows[3].name, or what a pattern matches."""
        return read_result(store, handle, offset, path, pattern, budget, model=model)

    return cast(BaseTool, langchain_tool("read_result")(read))


# ------------------------------------------------------------------------------------------------ around one call


def _capturing(tool: BaseTool) -> BaseTool:
    """The tool, whose function also leaves what it returns with the running call; LangChain hands on only text."""
    if not isinstance(tool, StructuredTool):
        return tool
    changes: dict[str, Any] = {}
    if tool.func is not None:
        changes["func"] = _leaving(tool.func)
    if tool.coroutine is not None:
        changes["coroutine"] = _leaving_async(tool.coroutine)
    return tool.model_copy(update=changes)


def _leaving(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _left(function(*args, **kwargs))

    return wrapped


def _leaving_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _left(await function(*args, **kwargs))

    return wrapped


def _left(result: Any) -> Any:
    call = _call.get()
    if call is not None and not isinstance(result, (ToolMessage, Command)):
        call.results.append(result)
    return result


def _began(request: Any) -> _Call:
    call = _Call(request.tool_call["name"], request.tool_call["args"])
    calls = _calls.get()
    if calls is not None:
        calls[request.tool_call["id"]] = call
    return call


def _failed(call: _Call, request: Any, failure: Exception) -> ToolMessage:
    call.failure = failure
    return ToolMessage(
        content=f"Error: {failure}", name=call.name, tool_call_id=request.tool_call["id"], status="error"
    )


def _measured(request: Any, handler: Callable[[Any], Any]) -> Any:
    call = _began(request)
    token = _call.set(call)
    try:
        return handler(request)
    except GraphBubbleUp:
        raise
    except Exception as failure:  # a tool's failure is a result; only the graph's own signals pass
        return _failed(call, request, failure)
    finally:
        call.meter.stop()
        _call.reset(token)


async def _measured_async(request: Any, handler: Callable[[Any], Any]) -> Any:
    call = _began(request)
    token = _call.set(call)
    try:
        return await handler(request)
    except GraphBubbleUp:
        raise
    except Exception as failure:
        return _failed(call, request, failure)
    finally:
        call.meter.stop()
        _call.reset(token)
