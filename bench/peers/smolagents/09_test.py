from smolagents import ChatMessage, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction


@tool
def price(item: str) -> float:
    """The price of an item in the shop.

    Args:
        item: the item
    """
    return {"lamp": 40.0, "chair": 85.0}[item]


class Scripted(Model):
    def generate(self, messages, **kwargs):
        text = messages[-1].content[-1]["text"]
        if "Observation" in text:
            name, arguments = "final_answer", {"answer": f"It costs {text.split()[-1]}."}
        else:
            name, arguments = "price", {"item": "lamp"}
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(id="1", type="function", function=function)
        return ChatMessage(role="assistant", content="", tool_calls=[call])


def test_the_agent_looks_the_price_up():
    agent = ToolCallingAgent(tools=[price], model=Scripted())
    assert "40" in agent.run("What does a lamp cost?")
