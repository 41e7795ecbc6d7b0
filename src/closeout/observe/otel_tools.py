"""Tool telemetry as OpenTelemetry spans and metrics, by the GenAI semantic conventions. Needs the extra `otel`.

Runs and model requests are exported elsewhere in `observe`; what a call cost is measured in `outputs.telemetry`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from closeout.observe.otel_instruments import SCOPE, tool_duration
from closeout.outputs.models import ToolTelemetry

__all__ = ["ToolTelemetryExporter"]


class ToolTelemetryExporter:
    """Makes of each call a span `execute_tool NAME` and points of two histograms.

    `gen_ai.execute_tool.duration` (seconds) is the conventions' own; `closeout.tool.output.tokens` counts what the
    model was shown. Use it as `TelemetryCollector(forward=exporter.record)`. Providers default to the process' own.
    """

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._duration = tool_duration(meter)
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
    """The epoch time of an ISO 8601 text; None if it is none. A time without zone is UTC."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1_000
