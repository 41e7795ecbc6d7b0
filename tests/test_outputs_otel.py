"""Tool telemetry through the real OpenTelemetry SDK: spans and metrics by the GenAI conventions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from closeout.observe.otel_tools import ToolTelemetryExporter
from closeout.results.telemetry import TelemetryCollector
from closeout.results.tool_output import ToolTelemetry

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def exported(*calls: ToolTelemetry) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The spans, and the points of each metric by its name."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    collector = TelemetryCollector(forward=ToolTelemetryExporter(tracers, meters).record)
    for call in calls:
        collector.record(call)
    data = reader.get_metrics_data()
    assert data is not None
    points = {m.name: m.data.data_points for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    tracers.shutdown()
    meters.shutdown()
    return spans.get_finished_spans(), points


def test_a_call_is_a_span_with_its_own_times() -> None:
    call = ToolTelemetry(tool_name="search", execution_id="e1", timestamp=START.isoformat(), duration_ms=250.0)
    [span], _ = exported(call.model_copy(update={"retry_count": 1, "metrics": {"hits": 3.0}}))
    assert span.name == "execute_tool search"
    assert span.start_time == int(START.timestamp() * 1e9)
    assert span.end_time - span.start_time == 250_000_000
    assert span.attributes["gen_ai.operation.name"] == "execute_tool"
    assert span.attributes["gen_ai.tool.name"] == "search"
    assert span.attributes["gen_ai.tool.call.id"] == "e1"
    assert span.attributes["closeout.tool.retry_count"] == 1
    assert span.attributes["closeout.tool.metrics.hits"] == 3.0
    assert span.status.status_code is StatusCode.UNSET


def test_a_failure_has_its_type_and_metrics_are_by_tool() -> None:
    spans, points = exported(
        ToolTelemetry(tool_name="a", duration_ms=500.0, output_tokens=40),
        ToolTelemetry(tool_name="a", duration_ms=1500.0, output_tokens=60),
        ToolTelemetry(tool_name="b", timestamp="no time", success=False, error_code="KeyError", error_message="k"),
    )
    assert spans[2].status.status_code is StatusCode.ERROR
    assert spans[2].attributes["error.type"] == "KeyError"
    durations = {point.attributes["gen_ai.tool.name"]: point for point in points["gen_ai.execute_tool.duration"]}
    assert (durations["a"].count, durations["a"].sum) == (2, 2.0)
    assert durations["b"].attributes["error.type"] == "KeyError"
    tokens = {point.attributes["gen_ai.tool.name"]: point.sum for point in points["closeout.tool.output.tokens"]}
    assert tokens == {"a": 100, "b": 0}
