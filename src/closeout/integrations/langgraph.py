"""Run a LangGraph graph's tools in a node that replaces `ToolNode`: short messages, outputs, telemetry.

Needs the extra `langgraph`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, cast, get_type_hints

from typing_extensions import TypedDict

try:
    from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
    from langchain_core.runnables import Runnable, RunnableConfig
    from langchain_core.tools import BaseTool, StructuredTool, ToolException
    from langchain_core.tools import tool as langchain_tool
    from langgraph.errors import GraphBubbleUp
    from langgraph.graph.message import add_messages
    from langgraph.prebuilt import ToolNode
    from langgraph.types import Command, interrupt
except ImportError as error:
    raise ImportError("LangGraph is not installed: pip install 'closeout[langgraph]'.") from error

from closeout.assembly.checks import check_flow
from closeout.errors import UsageError
from closeout.journal.events import FlowDecided
from closeout.messages import Message, ToolCall, ToolPolicy, ToolSpec
from closeout.results.artifacts import Artifact, ArtifactStore, MemoryArtifacts, read_result
from closeout.results.normal import compact_json, normalise
from closeout.results.present import Presented, present
from closeout.results.summary import summarise
from closeout.results.telemetry import CallMeter, TelemetryCollector, joined_telemetry
from closeout.results.tokens import estimate_tokens
from closeout.results.tool_output import ResponseFormat, ToolOutput, WrappedOutput, present_output
from closeout.run.flow_watch import decisions_after, labels_of_messages
from closeout.tools.flow import UNTRUSTED, Flow
from closeout.tools.run_context import RunContext, context_factory, context_parameter

__all__ = ["AgentState", "StateOutput", "ToolOutputNode", "add_labels", "add_telemetry", "tool_outputs"]

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
    """Return the sum of two telemetry summaries, as the reducer of a state."""
    left, right = left or NO_CALLS, right or NO_CALLS
    return {
        "total_tokens": left["total_tokens"] + right["total_tokens"],
        "total_latency_ms": left["total_latency_ms"] + right["total_latency_ms"],
        "tool_calls": [*left["tool_calls"], *right["tool_calls"]],
    }


def add_labels(left: Sequence[str] | None, right: Sequence[str] | None) -> list[str]:
    """Return the labels of both, as the reducer of a state: they only grow."""
    return sorted({*(left or ()), *(right or ())})


class AgentState(TypedDict, total=False):
    """Messages, every tool's output, what they cost so far, and with flow rules the labels of what was read."""

    messages: Annotated[list[AnyMessage], add_messages]
    tool_outputs: Annotated[list[StateOutput], operator.add]
    telemetry_summary: Annotated[dict[str, Any], add_telemetry]
    flow_labels: Annotated[list[str], add_labels]


def tool_outputs(state: Mapping[str, Any]) -> list[ToolOutput]:
    """The outputs in a state, also in one that a checkpointer restored as plain records."""
    found = state.get("tool_outputs") or ()
    return [one if isinstance(one, ToolOutput) else StateOutput.from_record(one) for one in found]


@dataclass(slots=True)
class _Call:
    """One call while it runs: its meter, and its function's result before LangChain turns it into text."""

    name: str
    arguments: Any
    meter: CallMeter = field(default_factory=CallMeter)
    results: list[Any] = field(default_factory=list)
    failure: Exception | None = None


class CallNotAllowed(Exception):
    """Flow rules, or the person whom they asked, did not allow a call."""


# Why calls must not be made, by their ids.
_denied: ContextVar[Mapping[str, str]] = ContextVar("closeout_langgraph_denied", default={})  # noqa: B039 - read only
_calls: ContextVar[dict[str, _Call] | None] = ContextVar("closeout_langgraph_calls", default=None)
_call: ContextVar[_Call | None] = ContextVar("closeout_langgraph_call", default=None)


class ToolOutputNode(Runnable[Any, Any]):  # type: ignore[misc] # LangChain is an extra, unknown to the type checker
    """Runs the tool calls of the last AI message, at once, as `ToolNode` does, and replaces it in a `StateGraph`.

    Every result becomes a ToolMessage as the model should see it: in the cheapest form, inside its budget, unable to
    forge a marker. The node also writes `tool_outputs` (`StateOutput` each) and `telemetry_summary` (`total_tokens`,
    `total_latency_ms`, `tool_calls`) to the state, if the state has these keys, and applies the `state_update` of
    outputs. A tool's exception becomes a message with status "error"; interrupts and Commands pass. A tool that returns
    a ToolOutput, or is wrapped by UnifiedToolWrapper, decides for itself.

    Args:
        tools: LangChain tools or functions.
        policies: Policies by tool name.
        budget: Tokens of a result; default 4,000.
        model: The model whose tokens are counted.
        store: Keeps whole results; `read_result` joins the tools, so bind `node.tools` to the model. Without one, a
            store in memory is made if a tool shows only summaries (CONCISE).
        collector: Records every call.
        flow: Rules on calls that depend on untrusted text in the state's messages. A person is asked by an interrupt.
        language: Of summaries: "en" or "zh".
        messages_key: The state's key for messages.
        name: The node's name.

    Raises:
        UsageError: A tool needs approval, for which a graph has its own means.
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
        flow: Flow | Mapping[str, Any] | None = None,
        language: str = "en",
        messages_key: str = "messages",
        name: str = "tools",
    ) -> None:
        _refuse_approvals(tools, policies or {})
        made = [one if isinstance(one, BaseTool) else langchain_tool(_with_context(one)) for one in tools]
        if store is None and any(_is_concise(one, (policies or {}).get(one.name)) for one in made):
            store = MemoryArtifacts()  # what CONCISE does not show must be kept somewhere
        if store is not None and all(one.name != "read_result" for one in made):
            made.append(_read_result_tool(store, budget, model))
        self.name = name
        self.tools: list[BaseTool] = made
        self._policies = dict(policies or {})
        self._budget, self._model, self._language = budget, model, language
        self._store, self._collector = store, collector
        self._stored = itertools.count(1)
        self._messages_key = messages_key
        self._flow = check_flow(flow)
        self._specs = {each.name: ToolSpec(each.name, policy=self._policy_of(each, tools)) for each in made}
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
        with _collecting() as calls, self._permitting(input):
            result = self._node.invoke(input, config, **kwargs)
        return self._update(input, result, calls)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the calls as tasks."""
        with _collecting() as calls, self._permitting(input):
            result = await self._node.ainvoke(input, config, **kwargs)
        return self._update(input, result, calls)

    def _policy_of(self, made: BaseTool, given: Sequence[Any]) -> ToolPolicy:
        own = [getattr(each, "policy", None) for each in given if getattr(each, "name", "") == made.name]
        stated = [self._policies.get(made.name), *own]
        # What `read_result` shows is untrusted, whatever it came from.
        usual = ToolPolicy(read_only=made.name == "read_result")
        return next((each for each in stated if isinstance(each, ToolPolicy)), usual)

    @contextmanager
    def _permitting(self, state: Any) -> Iterator[None]:
        """Block the calls that flow rules do not allow. Asks about all of them before any is made."""
        denied: dict[str, str] = {}
        if self._flow is not None:
            read, calls = self._read_before(state)
            asked: list[tuple[ToolCall, FlowDecided]] = []
            found = decisions_after(self._flow, read, calls, tools=self._specs, begins_with=self._begins_with(state))
            for call, decided in zip(calls, found, strict=True):
                if decided is not None and decided.decision == "refuse":
                    denied[call.id] = f"Not allowed: {decided.reason}"
                elif decided is not None and decided.decision == "ask":
                    asked.append((call, decided))
            for (call, _), problem in zip(asked, _ask(asked) if asked else (), strict=True):
                if problem:
                    denied[call.id] = problem
        token = _denied.set(denied)
        try:
            yield
        finally:
            _denied.reset(token)

    def _read_before(self, state: Any) -> tuple[list[Message], list[ToolCall]]:
        """Return what the model had read when it made the calls, and the calls."""
        if isinstance(state, Mapping) and state.get("__type") == "tool_call_with_context":
            return self._read_before(state["state"])[0], [_tool_call(state["tool_call"])]
        if isinstance(state, list) and state and isinstance(state[-1], dict) and state[-1].get("type") == "tool_call":
            return [], list(map(_tool_call, state))
        messages = self._messages_in(state)
        last = max((at for at, each in enumerate(messages) if isinstance(each, AIMessage)), default=-1)
        calls = messages[last].tool_calls if last >= 0 else []
        return list(map(_as_message, messages[: max(last, 0)])), list(map(_tool_call, calls))

    def _messages_in(self, state: Any) -> list[Any]:
        return state if isinstance(state, list) else _listed(state, self._messages_key)

    def _begins_with(self, state: Any) -> list[str]:
        """Return the labels of what was read before the messages that the state holds now."""
        if isinstance(state, Mapping) and state.get("__type") == "tool_call_with_context":
            return self._begins_with(state["state"])
        if isinstance(state, list):  # of calls: their messages are not known
            return [UNTRUSTED] if state and isinstance(state[-1], dict) else []
        return _listed(state, "flow_labels")

    def _update(self, state: Any, result: Any, calls: dict[str, _Call]) -> Any:
        """ToolNode's update, in the same shape, with our messages in it and our keys beside them."""
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
        ours: dict[str, Any] = {"tool_outputs": outputs, "telemetry_summary": _summary(outputs)}
        if self._flow is not None:
            ours["flow_labels"] = self._labels_after(state, update)
        for output in outputs:
            if output.success and isinstance(output.state_update, dict):
                ours.update(output.state_update)
        return {**update, **ours} if isinstance(update, dict) else [*update, ours]

    def _finished(self, message: ToolMessage, call: _Call) -> tuple[ToolMessage, StateOutput]:
        result: Any = message.content
        if call.results:
            result = call.results[-1]
            if isinstance(result, tuple) and len(result) == 2 and message.artifact is not None:
                result = result[0]  # response_format="content_and_artifact"
        whole = None
        if issubclass(type(result), WrappedOutput):
            result, whole = result.output, result.whole
        own = result if issubclass(type(result), ToolOutput) else None
        if own is not None and not own.success:
            message = message.model_copy(update={"status": "error"})
        if call.failure is None and own is None and message.status == "error":  # LangChain's own words: no such tool
            call.failure = ToolException(str(message.content))
        policy = self._policies.get(call.name, ToolPolicy())
        if own is not None:
            value = next((each for each in (own.result, whole, own.summary) if each is not None), None)
            shown = own.model_copy(update={"result": normalise(value)})
        else:
            value = normalise(result)
            shown = ToolOutput(result=value, summary=summarise(value, self._language))
            shown.__pydantic_fields_set__.discard("response_format")
        if policy.response_format is not None and "response_format" not in shown.model_fields_set:
            shown.response_format = ResponseFormat(policy.response_format)
        has_data = own is None or own.result is not None or whole is not None
        handle = ""
        if call.failure is None and call.name != "read_result" and shown.success and has_data:
            handle = self._stored_by(own) or self._kept(shown.result, call)
        if call.failure is None:
            face = present_output(
                shown, tool_name=call.name, policy=policy, budget=self._budget, handle=handle, model=self._model
            )
        else:
            face = present(value, tool_name=call.name, policy=policy, budget=self._budget, model=self._model)
        if isinstance(message.content, str):
            message = message.model_copy(update={"content": face.text})
        return message, self._output(value, call, face, handle, own)

    def _labels_after(self, state: Any, update: Any) -> list[str]:
        """Return the labels of all that was read, with the new results: messages may leave the state later."""
        assert self._flow is not None
        within = state["state"] if isinstance(state, Mapping) and "__type" in state else state
        parts = update if isinstance(update, list) else [update]
        new = [m for part in parts if isinstance(part, dict) for m in part.get(self._messages_key, [])]
        read = list(map(_as_message, [*self._messages_in(within), *new]))
        return list(labels_of_messages(self._flow, read, self._specs, self._begins_with(state)))

    def _stored_by(self, own: ToolOutput | None) -> str:
        """The handle under which the tool itself has stored its result in our store."""
        if own is None or not own.handle or self._store is None:
            return ""
        return own.handle if self._store.get(own.handle) is not None else ""

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
        handles = (f"r{number}" for number in self._stored)
        handle = next(handle for handle in handles if self._store.get(handle) is None)
        self._store.put(handle, Artifact(value, call.name))
        return handle


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
        return read_result(store, handle, offset, path=path, pattern=pattern, budget=budget, model=model)

    return cast(BaseTool, langchain_tool("read_result")(read))


# ------------------------------------------------------------------------------------------------ flow rules


def _listed(state: Any, name: str) -> list[Any]:
    """Return the items of a field of a state, which is a mapping or an object."""
    found = state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)
    return list(found or ())


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    arguments = call.get("args")
    return ToolCall(str(call.get("name")), arguments if isinstance(arguments, Mapping) else {}, str(call.get("id")))


def _as_message(message: Any) -> Message:
    """Return a message of LangChain as one of Chat Completions. A message of an unknown kind is a result."""
    roles = {"human": "user", "ai": "assistant", "system": "system"}
    kind = str(getattr(message, "type", "")).removesuffix("MessageChunk").lower()
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    made = [{"id": str(each.get("id")), "function": {"name": each.get("name")}} for each in calls]
    return Message(
        role=roles.get(kind, "tool"),
        content=getattr(message, "content", None),
        tool_call_id=str(getattr(message, "tool_call_id", "")),
        tool_calls=made,
    )


def _ask(asked: Sequence[tuple[ToolCall, FlowDecided]]) -> list[str]:
    """Interrupt the graph with a question about each call. Returns why each is denied, empty for one that is approved.

    Question and answer have the form of LangChain's `HumanInTheLoopMiddleware`, which user interfaces know.

    Raises:
        UsageError: The answer has another form.
    """
    answer = interrupt(
        {
            "action_requests": [
                {"name": call.name, "args": dict(call.arguments), "description": decided.reason}
                for call, decided in asked
                if isinstance(call.arguments, Mapping)
            ],
            "review_configs": [
                {"action_name": call.name, "allowed_decisions": ["approve", "reject"]} for call, _ in asked
            ],
        }
    )
    decisions = answer.get("decisions") if isinstance(answer, Mapping) else None
    kinds = [each.get("type") for each in decisions if isinstance(each, Mapping)] if isinstance(decisions, list) else []
    if len(kinds) != len(asked) or any(kind not in ("approve", "reject") for kind in kinds):
        raise UsageError(
            f"The answer must have a decision for each of {len(asked)} calls, got {answer!r:.80}. "
            'Resume with Command(resume={"decisions": [{"type": "approve"}]}), or "reject".'
        )
    said = [str(each.get("message") or "") for each in decisions or ()]
    denied = [f"The user denied this call: {each}" if each else "The user denied this call." for each in said]
    return ["" if kind == "approve" else reason for kind, reason in zip(kinds, denied, strict=True)]


# ------------------------------------------------------------------------------------------------ tools


def _refuse_approvals(tools: Sequence[Any], policies: Mapping[str, ToolPolicy]) -> None:
    """Refuse tools that need approval: without a run nothing would ask for it."""
    own = [(getattr(one, "name", ""), getattr(one, "policy", None)) for one in tools]
    for name, policy in (*own, *policies.items()):
        if isinstance(policy, ToolPolicy) and policy.approval not in (None, "never"):
            raise UsageError(
                f"The tool {name!r} needs approval, which this node does not ask for. Call LangGraph's `interrupt` in "
                "the tool, or before the node."
            )


def _is_concise(tool: BaseTool, policy: ToolPolicy | None) -> bool:
    """Return True if a tool's results are shown as summaries only."""
    if policy is not None and policy.response_format is not None:
        return policy.response_format == "concise"
    functions = (getattr(tool, "func", None), getattr(tool, "coroutine", None))
    return any(getattr(function, "tool_response_format", None) is ResponseFormat.CONCISE for function in functions)


# ------------------------------------------------------------------------------------------------ around one call


def _with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its parameter annotated RunContext, which each call fills."""
    signature = inspect.signature(function)
    name = context_parameter(signature)
    if not name:
        return function
    is_async = inspect.iscoroutinefunction(function)

    @functools.wraps(function)
    def filled(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, name: RunContext.current()})

    @functools.wraps(function)
    async def filled_async(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **{**kwargs, name: RunContext.current()})

    made: Any = filled_async if is_async else filled
    hints = get_type_hints(function, include_extras=True)
    kept = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
    made.__signature__ = signature.replace(parameters=[p for p in kept if p.name != name])
    made.__annotations__ = {key: hint for key, hint in hints.items() if key != name}
    del made.__wrapped__  # LangChain would read the hidden parameter from it
    return cast(Callable[..., Any], made)


def _context_of(request: Any) -> RunContext[Any]:
    state = request.state if isinstance(request.state, Mapping) else {}
    return RunContext(handle=str(request.tool_call["id"]), state=dict(state))


def _capturing(tool: BaseTool) -> BaseTool:
    """The tool, whose function also leaves its result with the running call; LangChain passes on only text."""
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


@contextmanager
def _collecting() -> Iterator[dict[str, _Call]]:
    """The calls that begin inside, by their ids."""
    calls: dict[str, _Call] = {}
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


@contextmanager
def _measuring(request: Any) -> Iterator[_Call]:
    """Measure a call, and keep its failure as a result; only the graph's own signals pass through."""
    call = _Call(request.tool_call["name"], request.tool_call["args"])
    calls = _calls.get()
    if calls is not None:
        calls[request.tool_call["id"]] = call
    token, context = _call.set(call), context_factory.set(functools.partial(_context_of, request))
    try:
        yield call
    except GraphBubbleUp:
        raise
    except Exception as failure:
        call.failure = failure
    finally:
        call.meter.stop()
        context_factory.reset(context)
        _call.reset(token)


def _measured(request: Any, handler: Callable[[Any], Any]) -> Any:
    with _measuring(request) as call:
        _check_permitted(request)
        result = handler(request)
    return result if call.failure is None else _failed(call, request)


async def _measured_async(request: Any, handler: Callable[[Any], Any]) -> Any:
    with _measuring(request) as call:
        _check_permitted(request)
        result = await handler(request)
    return result if call.failure is None else _failed(call, request)


def _check_permitted(request: Any) -> None:
    reason = _denied.get().get(str(request.tool_call["id"]))
    if reason:
        raise CallNotAllowed(reason)


def _failed(call: _Call, request: Any) -> ToolMessage:
    return ToolMessage(
        content=f"Error: {call.failure}", name=call.name, tool_call_id=request.tool_call["id"], status="error"
    )
