import asyncio

from agents import Agent, Runner, function_tool
from openai.types.responses import ResponseTextDeltaEvent


@function_tool
def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


async def main():
    agent = Agent(name="shop", model="gpt-5", tools=[price])
    async for event in Runner.run_streamed(agent, "What does a lamp cost?").stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print(event.data.delta, end="", flush=True)
        elif event.type == "run_item_stream_event" and event.item.type == "tool_call_item":
            print(f"[{event.item.raw_item.name}]")


asyncio.run(main())
