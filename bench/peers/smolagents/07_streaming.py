from smolagents import ChatMessageStreamDelta, FinalAnswerStep, OpenAIModel, ToolCall, ToolCallingAgent, tool


@tool
def price(item: str) -> float:
    """The price of an item in the shop.

    Args:
        item: the item
    """
    return {"lamp": 40.0, "chair": 85.0}[item]


agent = ToolCallingAgent(tools=[price], model=OpenAIModel("gpt-5"), stream_outputs=True, verbosity_level=0)
for event in agent.run("What does a lamp cost?", stream=True):
    if isinstance(event, ChatMessageStreamDelta):
        print(event.content or "", end="", flush=True)
    elif isinstance(event, ToolCall):
        print(f"[{event.name}]")
    elif isinstance(event, FinalAnswerStep):
        print(event.output)
