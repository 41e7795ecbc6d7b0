"""Closeout over HTTP, in the form that it chooses by the model's name."""

from bridge import API_KEY, BASE_URL, INSTRUCTIONS, MAX_REQUESTS, MAX_TOKENS, MODEL, TOOLS, answer_questions

from closeout import Agent, Boxed

settings = {"base_url": BASE_URL, "api_key": API_KEY, "temperature": 0, "max_tokens": MAX_TOKENS}
agent = Agent(
    f"openai:{MODEL}",
    TOOLS,
    instructions=INSTRUCTIONS,
    answer=Boxed(),
    max_turns=MAX_REQUESTS - 1,  # the last request closes the run
    config={"llm": settings},
    home=False,
)


def ask(question: str) -> str | None:
    result = agent.run_sync(question)
    if result.status == "failed":
        raise RuntimeError(result.failure)
    return result.answer


answer_questions(ask, "closeout")
