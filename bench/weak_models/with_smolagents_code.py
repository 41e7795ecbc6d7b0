# /// script
# dependencies = ["smolagents[openai]==1.26.0", "openai==3.54.0"]
# ///
"""smolagents with actions as Python code, its own form."""

from bridge import API_KEY, BASE_URL, INSTRUCTIONS, MAX_REQUESTS, MAX_TOKENS, MODEL, TOOLS, answer_questions
from smolagents import CodeAgent, OpenAIModel, tool

model = OpenAIModel(MODEL, api_base=BASE_URL, api_key=API_KEY, temperature=0, max_tokens=MAX_TOKENS)
tools = [tool(each) for each in TOOLS]


def ask(question: str) -> object:
    # Its last request closes the run.
    agent = CodeAgent(tools, model, instructions=INSTRUCTIONS, max_steps=MAX_REQUESTS - 1, verbosity_level=0)
    return agent.run(question)


answer_questions(ask, "smolagents")
