# /// script
# dependencies = ["pydantic-ai-slim[openai]==2.68.0", "openai==3.54.0"]
# ///
"""Pydantic AI with plain text as its output."""

from bridge import API_KEY, BASE_URL, INSTRUCTIONS, MAX_REQUESTS, MAX_TOKENS, MODEL, TOOLS, answer_questions
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
agent = Agent(
    model,
    instructions=INSTRUCTIONS,
    tools=TOOLS,
    model_settings={"temperature": 0, "max_tokens": MAX_TOKENS},
)
limits = UsageLimits(request_limit=MAX_REQUESTS)


def ask(question: str) -> str:
    return agent.run_sync(question, usage_limits=limits).output


answer_questions(ask, "pydantic-ai-slim")
