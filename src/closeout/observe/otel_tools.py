"""OpenTelemetry instruments of the GenAI semantic conventions, and the export of single tool calls.

Needs the extra `otel`. Runs are exported by `observe.otel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from closeout.results.tool_output import ToolTelemetry

__all__ = ["SCOPE", "Instruments", "ToolTelemetryExporter"]

# Names, units and bucket bounds are the conventions' own (github.com/open-telemetry/semantic-conventions-genai).
SCOPE = "closeout"  # the instrumentation scope of all spans and metrics

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_AGENT_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = tuple(4**power for power in range(14))  # 1 to 67,108,864


class Instruments:
    """The histograms of runs: `tokens` of requests; seconds of requests, tool calls and agents."""

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self.request_seconds = _seconds(meter, "gen_ai.client.operation.duration", "GenAI operation duration.")
        self.agent_seconds = _seconds(
            meter, "gen_ai.invoke_agent.duration", "Duration of agent invocations.", _AGENT_SECONDS
        )
        self.tool_seconds = _tool_seconds(meter)


def _tool_seconds(meter: metrics.Meter) -> metrics.Histogram:
    return _seconds(meter, "gen_ai.execute_tool.duration", "Duration of tool executions.")


def _seconds(
    meter: metrics.Meter, name: str, description: str, bounds: Sequence[float] = _SECONDS
) -> metrics.Histogram:
    return meter.create_histogram(name, unit="s", description=description, explicit_bucket_boundaries_advisory=bounds)


class ToolTelemetryExporter:
    """Exports each call as a span `execute_tool NAME` and as points of two histograms.

    `gen_ai.execute_tool.duration` (seconds) is the conventions' own; `closeout.tool.output.tokens` counts what the
    model was shown. Use it as `TelemetryCollector(forward=exporter.record)`. Providers default to the process's own.
    """

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._duration = _tool_seconds(meter)
        self._tokens = meter.create_histogram(
            "closeout.tool.output.tokens", unit="{token}", description="Tokens of tool results as the model sees them."
        )

    def record(self, telemetry: ToolTelemetry, *, call_id: str = "", context: Any = None) -> None:
        """Export one call that has ended. `context` is the OpenTelemetry context of its parent, by default the current.

        The span has the call's real start and end, not those of the export.
        """
        labels: dict[str, Any] = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": telemetry.tool_name}
        if telemetry.error_code:
            labels["error.type"] = telemetry.error_code
        start = _nanoseconds(telemetry.timestamp)
        span = self._tracer.start_span(
            f"execute_tool {telemetry.tool_name}",
            context=context,
            kind=SpanKind.INTERNAL,
            start_time=start,
            attributes={**labels, **_details(telemetry, call_id)},
        )
        if not telemetry.success:
            span.set_status(Status(StatusCode.ERROR, telemetry.error_message))
        span.end(None if start is None else start + int(telemetry.duration_ms * 1e6))
        self._duration.record(telemetry.duration_ms / 1000, labels)
        self._tokens.record(telemetry.output_tokens, labels)


def _details(telemetry: ToolTelemetry, call_id: str) -> dict[str, Any]:
    details: dict[str, Any] = {
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call_id or telemetry.execution_id,
        "closeout.tool.version": telemetry.tool_version,
        "closeout.tool.latency_ms": telemetry.latency_ms,
        "closeout.tool.input_tokens": telemetry.input_tokens,
        "closeout.tool.output_tokens": telemetry.output_tokens,
        "closeout.tool.cache_hit": telemetry.cache_hit,
        "closeout.tool.retry_count": telemetry.retry_count,
        "closeout.tool.memory_mb": telemetry.memory_mb,
        "closeout.tool.cpu_percent": telemetry.cpu_percent,
    }
    return details | {f"closeout.tool.metrics.{name}": value for name, value in telemetry.metrics.items()}


def _nanoseconds(timestamp: str) -> int | None:
    """Return the epoch time of an ISO 8601 text, None for any other text. A time without a zone is UTC."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1_000
