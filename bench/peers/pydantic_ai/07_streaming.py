import asyncio

from pydantic_ai import Agent, FunctionToolCallEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


async def main():
    agent = Agent("openai-chat:gpt-5", tools=[price])
    async with agent.run_stream_events("What does a lamp cost?") as events:
        async for event in events:
            match event:
                case PartStartEvent(part=TextPart(content=text)):
                    print(text, end="", flush=True)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                    print(text, end="", flush=True)
                case FunctionToolCallEvent(part=part):
                    print(f"[{part.tool_name}]")


asyncio.run(main())
