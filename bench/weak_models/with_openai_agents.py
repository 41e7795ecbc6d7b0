# /// script
# dependencies = ["openai-agents==0.24.0", "openai==3.54.0"]
# ///
"""OpenAI Agents with Chat Completions, which is what the server speaks."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from bridge import API_KEY, BASE_URL, INSTRUCTIONS, MAX_REQUESTS, MAX_TOKENS, MODEL, TOOLS, answer_questions
from openai import AsyncOpenAI

set_tracing_disabled(True)
agent = Agent(
    name="Assistant",
    instructions=INSTRUCTIONS,
    tools=[function_tool(tool) for tool in TOOLS],
    model=OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)),
    model_settings=ModelSettings(temperature=0, max_tokens=MAX_TOKENS),
)


def ask(question: str) -> str:
    return Runner.run_sync(agent, question, max_turns=MAX_REQUESTS).final_output


answer_questions(ask, "openai-agents")
