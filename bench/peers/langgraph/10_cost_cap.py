from langchain.agents import create_agent
from langchain.agents.middleware import before_model


def read_page(number: int) -> str:
    """Read a page of the catalogue."""
    return f"Page {number}. " + "Lamps, chairs and tables. " * 2000


@before_model(can_jump_to=["end"])
def cost_cap(state, runtime):
    used = [message.usage_metadata for message in state["messages"] if message.type == "ai"]
    if sum(each["input_tokens"] * 1.25e-6 + each["output_tokens"] * 10e-6 for each in used) > 0.10:
        return {"jump_to": "end", "messages": [("ai", "max_cost")]}


agent = create_agent("openai:gpt-5", tools=[read_page], middleware=[cost_cap])
state = agent.invoke({"messages": [("user", "Read the whole catalogue.")]}, {"recursion_limit": 200})
print(state["messages"][-1].content)
