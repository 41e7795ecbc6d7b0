from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


@function_tool
def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


class Scripted(Model):
    async def get_response(self, system_instructions, input, *args, **kwargs):
        results = [i["output"] for i in input if isinstance(i, dict) and i.get("type") == "function_call_output"]
        if not results:
            call = {"name": "price", "arguments": '{"item": "lamp"}', "call_id": "1"}
            output = ResponseFunctionToolCall(type="function_call", **call)
        else:
            text = ResponseOutputText(type="output_text", text=f"It costs {results[0]}.", annotations=[])
            output = ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def test_the_agent_looks_the_price_up():
    agent = Agent(name="shop", model=Scripted(), tools=[price])
    assert "40" in Runner.run_sync(agent, "What does a lamp cost?").final_output
