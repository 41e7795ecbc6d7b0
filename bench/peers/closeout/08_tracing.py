from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from closeout import Agent
from closeout.observe.otel import OpenTelemetryListener


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
agent = Agent("openai:gpt-5", tools=[price])
agent.run_sync("What does a lamp cost?", listeners=[OpenTelemetryListener(provider)])
