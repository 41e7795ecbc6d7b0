"""Export what runs do: OpenTelemetry spans and metrics, structured logs, figures for Prometheus."""
