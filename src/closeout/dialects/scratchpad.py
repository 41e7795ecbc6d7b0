"""The ReAct scratchpad: what a step looks like as `Thought / Action / Observation` text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from closeout.dialects.function_call import NOT_RUN
from closeout.messages import Step, ToolCall

__all__ = ["action_text", "observation_text", "step_texts"]


def action_text(call: ToolCall) -> str:
    """A call as the JSON object that the prompts teach."""
    return json.dumps({"action": call.name, "action_input": call.arguments}, ensure_ascii=False, default=dict)


def observation_text(result: str) -> str:
    return f"Observation: {result}"


def step_texts(step: Step) -> Iterator[tuple[str, str]]:
    """What the model said and what came back, for each call of a step."""
    results = [result.text for result in step.returns]
    for index, call in enumerate(step.calls):
        thought = f"Thought: {step.text}\n" if index == 0 and step.text else ""
        yield f"{thought}Action: {action_text(call)}", results[index] if index < len(results) else NOT_RUN
    if not step.calls:
        yield f"Thought: {step.text}", "Go on: use a tool, or give the Final Answer."
