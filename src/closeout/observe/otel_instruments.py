"""The metric instruments of the GenAI semantic conventions, made once for all exporters of this room.

Names, units and bucket bounds are the conventions' own (github.com/open-telemetry/semantic-conventions-genai).
"""

from __future__ import annotations

from opentelemetry import metrics

__all__ = ["SCOPE", "Instruments", "tool_duration"]

SCOPE = "closeout"  # the instrumentation scope of all spans and metrics

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_AGENT_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = tuple(4**power for power in range(14))  # 1 to 67,108,864


class Instruments:
    """Histograms of what runs do: `tokens` of requests; seconds of requests, tool calls and agents."""

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self.tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self.request_seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.agent_seconds = meter.create_histogram(
            "gen_ai.invoke_agent.duration",
            unit="s",
            description="Duration of agent invocations.",
            explicit_bucket_boundaries_advisory=_AGENT_SECONDS,
        )
        self.tool_seconds = tool_duration(meter)


def tool_duration(meter: metrics.Meter) -> metrics.Histogram:
    """The histogram `gen_ai.execute_tool.duration`, in seconds."""
    return meter.create_histogram(
        "gen_ai.execute_tool.duration",
        unit="s",
        description="Duration of tool executions.",
        explicit_bucket_boundaries_advisory=_SECONDS,
    )
