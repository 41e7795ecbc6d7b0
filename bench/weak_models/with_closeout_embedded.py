"""Closeout with the same weights in its own process, as `Agent("local")` runs them."""

from __future__ import annotations

import os
from typing import Any

from bridge import INSTRUCTIONS, MAX_REQUESTS, MAX_TOKENS, TOOLS, answer_questions

from closeout import Agent, Boxed
from closeout.models.local.embedded import LocalClient

client = LocalClient(os.environ["WEAK_MODELS_WEIGHTS"], threads=int(os.environ["WEAK_MODELS_THREADS"]) or None)
agent = Agent(
    client,
    TOOLS,
    instructions=INSTRUCTIONS,
    answer=Boxed(),
    max_turns=MAX_REQUESTS - 1,
    config={"llm": {"max_tokens": MAX_TOKENS}},
    home=False,
)


def ask(question: str) -> tuple[Any, dict[str, int]]:
    result = agent.run_sync(question)
    if result.status == "failed":
        raise RuntimeError(result.failure)
    usage = result.usage
    counts = {"requests": usage.requests, "input": usage.input_tokens, "output": usage.output_tokens}
    return result.answer, counts | {"cached": usage.cache_read_tokens}


answer_questions(ask, "closeout")
