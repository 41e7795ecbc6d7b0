from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic_ai import Agent, InstrumentationSettings


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
agent = Agent("openai-chat:gpt-5", tools=[price])
agent.run_sync("What does a lamp cost?")
