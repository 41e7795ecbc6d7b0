from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


class Scripted(BaseChatModel):
    _llm_type = "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        if messages[-1].type == "tool":
            reply = AIMessage(f"It costs {messages[-1].content}.")
        else:
            reply = AIMessage("", tool_calls=[{"name": "price", "args": {"item": "lamp"}, "id": "1"}])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def test_the_agent_looks_the_price_up():
    agent = create_agent(Scripted(), tools=[price])
    state = agent.invoke({"messages": [("user", "What does a lamp cost?")]})
    assert "40" in state["messages"][-1].content
