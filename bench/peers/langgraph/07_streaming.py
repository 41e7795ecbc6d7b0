from langchain.agents import create_agent


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


agent = create_agent("openai:gpt-5", tools=[price])
question = {"messages": [("user", "What does a lamp cost?")]}
for piece, metadata in agent.stream(question, stream_mode="messages"):
    if metadata["langgraph_node"] == "model":
        for call in piece.tool_call_chunks:
            if call["name"]:
                print(f"[{call['name']}]")
        print(piece.content, end="", flush=True)
