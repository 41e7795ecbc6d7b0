"""Export runs as OpenTelemetry spans and metrics, by the GenAI semantic conventions. Needs the extra `otel`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError("OpenTelemetry is not installed: pip install 'closeout[otel]'.") from error

from closeout.journal.events import (
    AgentEnded,
    AgentStarted,
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    RunEnded,
    ToolFinished,
    ToolStarted,
)
from closeout.journal.story import AgentStory, CallStory, RequestStory, Story
from closeout.journal.subscribers import Progress, RunInfo
from closeout.observe import otel_attributes as attributes
from closeout.observe.otel_tools import SCOPE, Instruments

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

__all__ = ["OpenTelemetryListener"]

_Node: TypeAlias = AgentStory | RequestStory | CallStory


class OpenTelemetryListener:
    """Exports runs: `agent.run(…, listeners=[OpenTelemetryListener()])`. One serves any number of runs at once.

    Spans: `invoke_agent NAME` for the run and for each sub-agent, below it `chat MODEL` (`text_completion MODEL`) and
    `execute_tool NAME`. Tokens are on the chat spans only, so that a trace adds up. Rollbacks, repairs, evictions and
    retries are span events. Of a resumed run only new work is exported. Providers default to the process's own;
    the span that is current where the run starts is the parent.

    `capture_content` also exports prompts, replies, arguments, results and the texts of errors. Without it none of that
    leaves the process. `openinference` also writes what is exported under the names of OpenInference, which Phoenix
    reads.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        capture_content: bool = False,
        openinference: bool = False,
    ) -> None:
        self._openinference = openinference
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._instruments = Instruments(meter_provider)
        self._capture_content = capture_content

    def for_run(self, run: RunInfo) -> _RunSpans:
        """The callback that exports one run."""
        return _RunSpans(self._tracer, self._instruments, run, self._capture_content, self._openinference)


@dataclass(slots=True)
class _Open:
    """A span that has not ended. `labels` are its metrics' attributes; `token` detaches it from the current context."""

    span: trace.Span
    agent: str  # the path of its agent
    began: int  # nanoseconds since the epoch
    labels: dict[str, Any]
    token: Any = None
    is_streamed: bool = False  # a piece of the reply has come


class _RunSpans:
    """The spans of one run: one for each agent, request and call of its story. Events from the record make none."""

    def __init__(
        self,
        tracer: trace.Tracer,
        instruments: Instruments,
        run: RunInfo,
        capture_content: bool,
        openinference: bool,
    ) -> None:
        self._tracer = tracer
        self._translate = attributes.with_openinference if openinference else dict
        self._instruments = instruments
        self._run = run
        self._content = capture_content
        self._story = Story()
        self._main = self._story.agent("main")
        self._open: dict[_Node | None, _Open] = {}
        self._agents: dict[str, attributes.AgentIdentity] = {}
        self._outer = otel_context.get_current()
        self._error = "interrupted"  # the error of spans that the run leaves open
        self._begin_run()

    def _begin_run(self) -> None:
        started = self._run.started
        name = started.name if started is not None else ""
        model = str(started.fingerprint.get("model", "")) if started is not None else ""
        more = attributes.of_run(self._run, self._content)
        self._begin_agent(self._main, name, model, self._outer, more)
        self._make_current(self._open[self._main])

    def __call__(self, event: Event | Progress) -> None:
        if isinstance(event, Progress):
            self._note_first_piece(event)
            return
        place = self._story.feed(event)
        # An agent has a span although its start is recorded: its new work belongs below it.
        if self._run.from_record and not isinstance(event, AgentStarted | AgentEnded | RunEnded):
            return
        match event:
            case AgentStarted():
                self._agent_started(place.agent, event)
            case AgentEnded():
                self._agent_ended(place.agent, event)
            case RunEnded():
                self._run_ended(event)
            case ModelRequested() if place.request is not None:
                self._model_requested(place.request, event)
            case ModelReplied() | ModelFailed() if place.request is not None:
                self._end_request(place.request, event)
            case ModelRetried():
                if held := self._open.get(place.request):
                    held.span.add_event("closeout.retry", attributes.of_retry(event, self._content))
            case ToolStarted() if place.call is not None:
                self._tool_started(place.call, event)
            case ToolFinished() if place.call is not None:
                self._tool_finished(place.call, event)
            case _:
                self._note(place.agent, event)

    def close(self) -> None:
        """End what the run left open, the innermost first."""
        for node in reversed(list(self._open)):
            self._end(node, {}, error=self._error)

    # ------------------------------------------------------------------------------------------ agents

    def _begin_agent(self, agent: AgentStory, name: str, model: str, context: Any, more: Mapping[str, Any]) -> None:
        named = name or agent.path.rpartition(":")[2]
        identity = self._agents[agent.path] = attributes.AgentIdentity.from_client(named, model)
        self._begin(
            agent,
            agent.path,
            f"invoke_agent {identity.name}",
            SpanKind.INTERNAL,
            details={
                **identity.of("invoke_agent"),
                "gen_ai.conversation.id": self._run.run_id,
                "closeout.agent": agent.path,
                **more,
            },
            labels=identity.agent_labels(),
            context=context,
        )

    def _agent_started(self, agent: AgentStory, event: AgentStarted) -> None:
        caller = self._open.get(agent.caller)
        if caller is None and self._run.from_record:
            return  # it ran and ended in an earlier process
        above = event.agent.rpartition("/")[0]
        parent = self._context_of(above) if caller is None else trace.set_span_in_context(caller.span, self._outer)
        content = {"gen_ai.input.messages": attributes.user_message(event.task)} if self._content else {}
        self._begin_agent(agent, event.name, event.model, parent, content)

    def _agent_ended(self, agent: AgentStory, event: AgentEnded) -> None:
        failed = event.status in attributes.FAILURES
        content = {"gen_ai.output.messages": attributes.assistant_message(event.report)} if self._content else {}
        ended = {"closeout.stop_reason": event.status, **content}
        self._end(agent, ended, error=event.status if failed else "")

    def _run_ended(self, event: RunEnded) -> None:
        ended = attributes.of_run_end(event, self._content)
        if event.status == "cancelled":
            self._error = "cancelled"
            self._open[self._main].span.set_attributes(self._translate(ended))
            self.close()
            return
        error = event.stop_reason if event.status == "failed" else ""
        self._end(self._main, ended, error=error, message=event.error)

    def _note(self, agent: AgentStory, event: Event) -> None:
        """Add an event to the agent's span."""
        described = attributes.of_note(event, self._content)
        held = self._open.get(agent)
        if described is not None and held is not None:
            held.span.add_event(*described)

    # ------------------------------------------------------------------------------------------ requests

    def _model_requested(self, request: RequestStory, event: ModelRequested) -> None:
        identity = self._identity(event.agent)
        operation = "chat" if event.messages else "text_completion"
        self._begin(
            request,
            event.agent,
            f"{operation} {identity.model}".rstrip(),
            SpanKind.CLIENT,
            details={**identity.of(operation), **attributes.of_request(event, self._run.run_id, self._content)},
            labels=identity.request_labels(operation),
            context=self._context_of(event.agent),
            current=True,
        )

    def _end_request(self, request: RequestStory, event: ModelReplied | ModelFailed) -> None:
        held = self._open.get(request)
        if held is None:
            return
        if isinstance(event, ModelFailed):
            self._end(request, attributes.of_usage(event.usage), error=event.kind, message=event.error)
        else:
            if event.model:
                held.labels["gen_ai.response.model"] = event.model
            self._end(request, attributes.of_reply(event, self._content))
        for kind in ("input", "output"):
            count = event.usage.get(f"{kind}_tokens", 0)
            if count:
                self._instruments.tokens.record(count, {**held.labels, "gen_ai.token.type": kind})

    def _note_first_piece(self, piece: Progress) -> None:
        requests = self._story.agent(piece.agent).requests
        held = self._open.get(next(reversed(requests.values()), None))
        if held is not None and not held.is_streamed and piece.kind != "discard":
            held.is_streamed = True
            seconds = (time.time_ns() - held.began) / 1e9
            held.span.set_attributes(
                {"gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": max(seconds, 0.0)}
            )

    # ------------------------------------------------------------------------------------------ tools

    def _tool_started(self, call: CallStory, event: ToolStarted) -> None:
        identity = self._identity(event.agent)
        labels = {"gen_ai.tool.name": event.name, "gen_ai.tool.type": "function", "gen_ai.agent.name": identity.name}
        self._begin(
            call,
            event.agent,
            f"execute_tool {event.name}",
            SpanKind.INTERNAL,
            details={"gen_ai.operation.name": "execute_tool", **labels, **attributes.of_call(event, self._content)},
            labels=labels,
            context=self._context_of(event.agent),
            current=True,
        )

    def _tool_finished(self, call: CallStory, event: ToolFinished) -> None:
        below = f"{event.agent}/{event.handle}:"
        for node in [node for node, held in self._open.items() if held.agent.startswith(below)]:
            self._end(node, {}, error=self._error)  # a sub-agent that a timeout cut off
        ended = attributes.of_result(event, self._content)
        error = "" if event.ok else attributes.error_code_of(event)
        self._end(call, ended, error=error, message=event.note)

    # ------------------------------------------------------------------------------------------ spans

    def _identity(self, path: str) -> attributes.AgentIdentity:
        return self._agents.get(path) or self._agents["main"]

    def _context_of(self, path: str) -> Any:
        held = self._open.get(self._story.agent(path)) or self._open.get(self._main)
        return self._outer if held is None else trace.set_span_in_context(held.span, self._outer)

    def _begin(
        self,
        node: _Node,
        agent: str,
        name: str,
        kind: SpanKind,
        *,
        details: Mapping[str, Any],
        labels: Mapping[str, Any],
        context: Any,
        current: bool = False,
    ) -> None:
        began = time.time_ns()
        span = self._tracer.start_span(name, context, kind, self._translate(details), start_time=began)
        held = self._open[node] = _Open(span, agent, began, dict(labels))
        if current:
            self._make_current(held)

    def _make_current(self, held: _Open) -> None:
        """Make spans of other instrumentations (HTTP, databases) that begin in this task children of this one."""
        held.token = otel_context.attach(trace.set_span_in_context(held.span))

    def _end(self, node: _Node | None, ended: Mapping[str, Any], *, error: str = "", message: str = "") -> None:
        held = self._open.pop(node, None)
        if held is None:
            return
        if held.token is not None and trace.get_current_span() is held.span:
            otel_context.detach(held.token)  # a span of another task's context is not current, and ends with that task
        held.span.set_attributes(self._translate(ended))
        if error:
            held.labels["error.type"] = error
            held.span.set_attribute("error.type", error)
            held.span.set_status(Status(StatusCode.ERROR, attributes.clean(message) if self._content else None))
        now = max(time.time_ns(), held.began)
        held.span.end(now)
        self._seconds_of[type(node)](self._instruments).record((now - held.began) / 1e9, held.labels)

    _seconds_of: Mapping[type, Callable[[Instruments], Any]] = {
        AgentStory: lambda instruments: instruments.agent_seconds,
        RequestStory: lambda instruments: instruments.request_seconds,
        CallStory: lambda instruments: instruments.tool_seconds,
    }
