from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def price(item: str) -> float:
    """The price of an item in the shop.

    Args:
        item: the item
    """
    return {"lamp": 40.0, "chair": 85.0}[item]


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
SmolagentsInstrumentor().instrument(tracer_provider=provider)
agent = ToolCallingAgent(tools=[price], model=OpenAIModel("gpt-5"))
agent.run("What does a lamp cost?")
