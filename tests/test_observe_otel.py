"""Runs through the real OpenTelemetry SDK: spans and parents, usage on leaves only, metrics, no content unasked."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from closeout import Agent, tool
from closeout.errors import RateLimited, ToolError
from closeout.messages import Usage
from closeout.observe.otel import OpenTelemetryListener
from closeout.testing import ScriptedClient, Turn, answer, call, say

SECRET = "the-secret-word"


class Backend:
    """Where spans and metrics arrive."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    def listener(self, **options: Any) -> OpenTelemetryListener:
        return OpenTelemetryListener(self.tracers, self.meters, **options)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> str:
        above = [s.name for s in self.spans if span.parent and s.context.span_id == span.parent.span_id]
        return above[0] if above else ""

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = (m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics)
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    def everything(self) -> str:
        """All that was exported, as text."""
        return "".join(span.to_json() for span in self.spans) + repr(self.points())


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]


@tool(read_only=True)
async def look(key: str) -> str:
    """Look up a key."""
    await asyncio.sleep(0)
    return f"{key} is 1, {SECRET}"


@tool
def fail() -> str:
    """Fail."""
    raise ToolError(f"no luck, {SECRET}")


def bill(turn: Turn, tokens_in: int, tokens_out: int, cached: int = 0) -> Turn:
    usage = Usage(tokens_in, tokens_out, cache_read_tokens=cached, requests=1, cost_usd=0.5)
    return Turn(turn.thought, turn.calls, turn.answer, turn.text, usage=usage)


# ------------------------------------------------------------------------------------------------ spans


async def test_a_run_is_an_agent_span_with_its_requests_and_calls_below(backend: Backend) -> None:
    script = [bill(Turn(calls=[call("look", key="a")]), 100, 10), bill(answer("1"), 150, 5, cached=96)]
    client = ScriptedClient(script, name="openai:gpt-5")
    agent = Agent(client, [look], name="Finder", dialect="function_call")
    result = await agent.run("What?", listeners=[backend.listener()])

    run = backend.one("invoke_agent Finder")
    assert run.kind is SpanKind.INTERNAL
    assert run.parent is None
    assert attributes(run) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "Finder",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.conversation.id": result.run_id,
        "closeout.agent": "main",
        "closeout.status": "answered",
        "closeout.stop_reason": "answered",
    }
    first, second = backend.named("chat gpt-5")
    assert first.kind is SpanKind.CLIENT
    shown = attributes(second)
    assert shown["gen_ai.usage.input_tokens"] == 150
    assert shown["gen_ai.usage.output_tokens"] == 5
    assert shown["gen_ai.usage.cache_read.input_tokens"] == 96
    assert shown["closeout.usage.cost_usd"] == 0.5
    assert shown["gen_ai.response.finish_reasons"] == ("stop",)
    assert shown["gen_ai.provider.name"] == "openai"
    assert shown["closeout.prompt.shared_characters"] > 0
    called = backend.one("execute_tool look")
    assert attributes(called) | {"gen_ai.tool.name": "look", "gen_ai.tool.type": "function"} == attributes(called)
    assert {backend.parent(span) for span in (first, second, called)} == {"invoke_agent Finder"}
    assert len({span.context.trace_id for span in backend.spans}) == 1
    assert all(span.status.status_code is StatusCode.UNSET for span in backend.spans)


async def test_usage_is_on_leaves_only_so_that_a_trace_adds_up(backend: Backend) -> None:
    script = {
        "find it": [bill(answer("7"), 30, 3)],
        "Which": [bill(Turn(calls=[call("clerk", task="find it")]), 100, 10), bill(answer("7"), 120, 5)],
    }
    clerk = Agent(ScriptedClient(script), name="c").as_tool("clerk", "Finds things.")
    client = ScriptedClient(script, by="question")
    result = await Agent(client, [clerk], dialect="function_call").run("Which?", listeners=[backend.listener()])
    for kind, total in (("input", result.usage.input_tokens), ("output", result.usage.output_tokens)):
        name = f"gen_ai.usage.{kind}_tokens"
        assert sum(attributes(span).get(name, 0) for span in backend.spans) == total
        assert all(span.name.startswith("chat") for span in backend.spans if name in attributes(span))


async def test_a_sub_agents_span_is_below_the_call_that_started_it(
    backend: Backend,
) -> None:
    both = Turn(calls=[call("clerk", task="count apples"), call("clerk", task="count pears")])
    script = {
        "count apples": [call("look", key="apples"), answer("3")],
        "count pears": [call("look", key="pears"), answer("4")],
        "How many": [both, answer("7")],
    }
    clerk = Agent(ScriptedClient(script, by="question", name="openai:small"), [look], dialect="function_call")
    chief = Agent(
        ScriptedClient(script, by="question", name="openai:large"),
        [clerk.as_tool("clerk", "Counts.")],
        name="chief",
        dialect="function_call",
    )
    await chief.run("How many?", listeners=[backend.listener()])

    by_id = {span.context.span_id: span for span in backend.spans}
    calls = backend.named("execute_tool clerk")
    clerks = backend.named("invoke_agent clerk")
    assert {backend.parent(span) for span in calls} == {"invoke_agent chief"}
    assert sorted(span.parent.span_id for span in clerks if span.parent) == sorted(s.context.span_id for s in calls)
    for looked in backend.named("execute_tool look"):
        assert looked.parent is not None
        assert by_id[looked.parent.span_id].name == "invoke_agent clerk"
    assert len({s.parent.span_id for s in backend.named("execute_tool look") if s.parent}) == 2
    assert len(backend.named("chat small")) == 4
    assert {backend.parent(span) for span in backend.named("chat small")} == {"invoke_agent clerk"}
    assert {backend.parent(span) for span in backend.named("chat large")} == {"invoke_agent chief"}


async def test_other_instrumentation_finds_the_right_parent(backend: Backend) -> None:
    tracer = backend.tracers.get_tracer("a database")

    @tool(read_only=True)
    async def query(key: str) -> str:
        """Ask the database."""
        with tracer.start_as_current_span(f"SELECT {key}"):
            await asyncio.sleep(0)
        return key

    both = Turn(calls=[call("query", key="a"), call("query", key="b")])
    agent = Agent(ScriptedClient([both, answer("1")]), [query], name="x", dialect="function_call")
    with tracer.start_as_current_span("request") as outer:
        await agent.run("What?", listeners=[backend.listener()])
        assert trace.get_current_span() is outer, "the caller's context is as it was"
    assert backend.parent(backend.one("invoke_agent x")) == "request"
    parents = {s.parent.span_id for name in "ab" for s in backend.named(f"SELECT {name}") if s.parent}
    assert parents == {span.context.span_id for span in backend.named("execute_tool query")}


async def test_failures_are_errors_with_a_type(backend: Backend) -> None:
    script = [call("fail"), RateLimited("slow down", status=429, usage=Usage(40, 0, requests=1))]
    agent = Agent(ScriptedClient(script, name="openai:m"), [fail], name="x", dialect="function_call")
    result = await agent.run("What?", listeners=[backend.listener()])
    assert result.status == "failed"
    called, run = backend.one("execute_tool fail"), backend.one("invoke_agent x")
    failed = backend.named("chat m")[-1]
    for span, kind in ((called, "ToolError"), (failed, "RateLimited"), (run, "model_failed")):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == kind
        assert span.status.description is None
    assert attributes(failed)["gen_ai.usage.input_tokens"] == 40, "a failed request counts too"


async def test_rollbacks_and_repairs_are_events_of_the_agent_span(backend: Backend) -> None:
    script = [say(""), call("look", Key="a"), answer("1")]
    agent = Agent(ScriptedClient(script), [look], name="x", dialect="function_call")
    result = await agent.run("What?", listeners=[backend.listener()])
    assert (result.rollbacks, len(result.repairs)) == (1, 1)
    run = backend.one("invoke_agent x")
    assert events(run)[0] == "closeout.attempt"
    rollback = next(event for event in run.events if event.name == "closeout.rollback")
    assert dict(rollback.attributes or {})["closeout.reason"] == "empty"
    assert "closeout.repair" in events(run)


async def test_a_cancelled_run_leaves_no_span_open(backend: Backend) -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(ScriptedClient([call("hang")]), [hang], name="x", dialect="function_call")
    running = asyncio.create_task(agent.run("What?", listeners=[backend.listener()]))
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert attributes(backend.one("execute_tool hang"))["error.type"] == "cancelled"
    assert attributes(backend.one("invoke_agent x"))["closeout.status"] == "cancelled"


async def test_one_listener_serves_runs_at_the_same_time(backend: Backend) -> None:
    listener = backend.listener()
    agents = [
        Agent(ScriptedClient([call("look", key="a"), answer("1")]), [look], name=f"a{n}", dialect="function_call")
        for n in range(5)
    ]
    await asyncio.gather(*(agent.run("What?", listeners=[listener]) for agent in agents))
    assert len({span.context.trace_id for span in backend.spans}) == 5
    for number in range(5):
        run = backend.one(f"invoke_agent a{number}")
        below = [span.name for span in backend.spans if span.parent and span.parent.span_id == run.context.span_id]
        assert sorted(below) == ["chat scripted", "chat scripted", "execute_tool look"]


async def test_of_a_resumed_run_only_new_work_is_exported(backend: Backend) -> None:
    def agent(*script: Any) -> Agent:
        return Agent(ScriptedClient(script), [look], name="x", dialect="function_call")

    script = (call("look", key="a"), RateLimited("down"))
    await agent(*script).run("What?", run_id="cut", listeners=[backend.listener()])
    backend.exporter.clear()
    result = await agent(answer("1")).resume("cut", listeners=[backend.listener()])
    assert result.answer == "1"
    assert sorted(span.name for span in backend.spans) == ["chat scripted", "invoke_agent x"]
    run = backend.one("invoke_agent x")
    assert attributes(run)["closeout.resumed"] is True
    assert "closeout.resume" in events(run)
    assert "closeout.attempt" not in events(run), "that attempt was begun, and told of, before"


async def test_a_streamed_reply_says_when_its_first_piece_came(backend: Backend) -> None:
    await Agent(ScriptedClient([answer("1")])).run("What?", listeners=[backend.listener()])
    shown = attributes(backend.one("chat scripted"))
    assert shown["gen_ai.request.stream"] is True
    assert shown["gen_ai.response.time_to_first_chunk"] >= 0


async def test_a_text_prompt_is_a_text_completion(backend: Backend) -> None:
    await Agent(ScriptedClient([answer("1")]), dialect="cot_completion").run("What?", listeners=[backend.listener()])
    assert attributes(backend.one("text_completion scripted"))["gen_ai.operation.name"] == "text_completion"


# ------------------------------------------------------------------------------------------------ metrics


async def test_metrics_follow_the_conventions(backend: Backend) -> None:
    script = [bill(Turn(calls=[call("look", key="a")]), 100, 10), bill(answer("1"), 150, 5)]
    agent = Agent(ScriptedClient(script, name="openai:m"), [look], name="x", dialect="function_call")
    await agent.run("What?", listeners=[backend.listener()])
    points = backend.points()
    assert set(points) == {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "gen_ai.invoke_agent.duration",
        "gen_ai.execute_tool.duration",
    }
    tokens = {point.attributes["gen_ai.token.type"]: point for point in points["gen_ai.client.token.usage"]}
    assert (tokens["input"].sum, tokens["output"].sum, tokens["input"].count) == (250, 15, 2)
    assert tokens["input"].explicit_bounds[-1] == 67_108_864
    [requests] = points["gen_ai.client.operation.duration"]
    assert dict(requests.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "scripted",
    }
    assert requests.count == 2
    [called] = points["gen_ai.execute_tool.duration"]
    assert called.attributes["gen_ai.tool.name"] == "look"


# ------------------------------------------------------------------------------------------------ content


def talkative() -> Agent:
    script = [
        say(""),
        Turn(f"I think of {SECRET}.", calls=[call("look", key=SECRET), call("fail")]),
        answer(SECRET),
    ]
    return Agent(ScriptedClient(script), [look, fail], name="x", dialect="function_call")


async def test_no_content_leaves_the_process_unasked(backend: Backend) -> None:
    result = await talkative().run(f"What is {SECRET}?", listeners=[backend.listener()])
    assert result.answer == SECRET
    assert backend.spans
    assert SECRET not in backend.everything()


async def test_content_is_captured_when_asked_for(backend: Backend) -> None:
    await talkative().run(f"What is {SECRET} \ud800?", listeners=[backend.listener(capture_content=True)])
    run, chat = attributes(backend.one("invoke_agent x")), attributes(backend.named("chat scripted")[1])
    [asked] = json.loads(run["gen_ai.input.messages"])
    assert asked["role"] == "user"
    assert SECRET in asked["parts"][0]["content"]
    [said] = json.loads(chat["gen_ai.output.messages"])
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call", "tool_call"]
    assert said["finish_reason"] == "tool_calls"
    called = attributes(backend.one("execute_tool look"))
    assert json.loads(called["gen_ai.tool.call.arguments"]) == {"key": SECRET}
    assert SECRET in called["gen_ai.tool.call.result"]
    assert SECRET in str(backend.one("execute_tool fail").status.description)
    for span in backend.spans:
        span.to_json().encode("utf-8")


# ------------------------------------------------------------------------------------------------ the extra


def test_without_the_extra_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "closeout.observe.otel")
    with pytest.raises(ImportError, match=r"pip install 'closeout\[otel\]'"):
        importlib.import_module("closeout.observe.otel")


# What each backend reads, from its documentation: Langfuse "OpenTelemetry property mapping", Phoenix "OpenInference
# semantic conventions", MLflow "Attribute mapping reference", Logfire "LLM panels" (October 2026). Jaeger shows all.
READ_BY = {
    "langfuse": {
        "invoke_agent": ("input.value", "output.value", "user.id"),
        "chat": ("gen_ai.request.model", "gen_ai.usage.input_tokens", "input.value", "output.value"),
        "execute_tool": ("input.value", "output.value"),
    },
    "phoenix": {
        "invoke_agent": ("openinference.span.kind", "input.value", "output.value", "input.mime_type", "user.id"),
        "chat": ("openinference.span.kind", "llm.model_name", "llm.token_count.prompt", "llm.token_count.completion"),
        "execute_tool": ("openinference.span.kind", "tool.name", "input.value", "output.value"),
    },
    "mlflow and logfire": {
        "invoke_agent": ("gen_ai.operation.name", "gen_ai.input.messages", "gen_ai.output.messages"),
        "chat": ("gen_ai.operation.name", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.response.model"),
        "execute_tool": ("gen_ai.tool.name", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    },
}


async def test_each_backend_finds_the_attributes_that_it_reads(backend: Backend) -> None:
    listener = backend.listener(capture_content=True, openinference=True)
    await talkative().run("What is k1?", user="ann", listeners=[listener])
    spans = {name.split()[0]: dict(span.attributes or {}) for span in backend.spans if (name := span.name)}
    for reader, kinds in READ_BY.items():
        for kind, names in kinds.items():
            lacking = [name for name in names if not spans[kind].get(name)]
            assert lacking == [], f"{reader}: {kind} lacks {lacking}"
    assert [spans[kind]["openinference.span.kind"] for kind in READ_BY["phoenix"]] == ["AGENT", "LLM", "TOOL"]
    texts = [json.loads(str(span.attributes["gen_ai.input.messages"])) for span in backend.spans if "chat" in span.name]
    assert texts[0][-1] == {"role": "user", "parts": [{"type": "text", "content": "What is k1?"}]}
    # Only what a request adds: the reply before it, and the results of its two calls.
    assert [part["type"] for each in texts[2] for part in each["parts"]] == [
        "text", "tool_call", "tool_call", "tool_call_response", "tool_call_response",
    ]  # fmt: skip


async def test_without_content_no_words_of_a_user_are_exported_under_any_name(backend: Backend) -> None:
    await talkative().run(f"What is {SECRET}?", user=SECRET, listeners=[backend.listener(openinference=True)])
    assert SECRET not in str([dict(span.attributes or {}) for span in backend.spans])
