"""The ReAct scratchpad and the history before a run, as text: `Thought / Action / Observation`, `Question`.

Which messages these texts go into is decided by the dialects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from closeout.dialects.action_keys import is_final_answer
from closeout.dialects.function_call import NOT_RUN
from closeout.messages import Message, Step, ToolCall

__all__ = [
    "AgentScratchpadUnit",
    "action_text",
    "conversation",
    "fit_history",
    "historic_prompt",
    "history_turns",
    "observation_text",
    "scratchpad_text",
    "step_units",
]


@dataclass
class AgentScratchpadUnit:
    """One step of an agent: what it thought, did and saw. A unit without an action is the final one."""

    @dataclass
    class Action:
        """A tool's name and its input: an object, or text."""

        action_name: str
        action_input: dict[str, Any] | str

        def to_dict(self) -> dict[str, Any]:
            """The object that the prompts teach."""
            return {"action": self.action_name, "action_input": self.action_input}

    agent_response: str | None = None
    thought: str | None = None
    action_str: str | None = None
    observation: str | None = None
    action: Action | None = None

    def is_final(self) -> bool:
        """Whether the unit answers: it has no action, or its action is the final answer."""
        return self.action is None or is_final_answer(self.action.action_name)


def action_text(call: ToolCall) -> str:
    """A call as the JSON object that the prompts teach, UTF-8 unescaped."""
    return json.dumps({"action": call.name, "action_input": call.arguments}, ensure_ascii=False, default=dict)


def observation_text(result: str) -> str:
    return f"Observation: {result}"


def step_units(step: Step) -> Iterator[AgentScratchpadUnit]:
    """A step as scratchpad units, one for each of its calls; a step without calls is a thought."""
    results = [result.text for result in step.returns]
    for index, call in enumerate(step.calls):
        yield AgentScratchpadUnit(
            agent_response=step.raw,
            thought=step.text if index == 0 else None,
            action_str=action_text(call),
            observation=results[index] if index < len(results) else NOT_RUN,
            action=AgentScratchpadUnit.Action(call.name, _input(call)),
        )
    if not step.calls:
        yield AgentScratchpadUnit(agent_response=step.raw, thought=step.text)


def _input(call: ToolCall) -> dict[str, Any] | str:
    return call.arguments if isinstance(call.arguments, str) else dict(call.arguments)


def said_text(unit: AgentScratchpadUnit) -> str:
    """What the model said in a unit: thought and action, or its final answer."""
    if unit.is_final():
        return f"Final Answer: {unit.agent_response}" if not unit.thought else f"Thought: {unit.thought}"
    thought = f"Thought: {unit.thought}\n" if unit.thought else ""
    return f"{thought}Action: {unit.action_str}"


def scratchpad_text(units: Iterable[AgentScratchpadUnit]) -> str:
    """Units as one text, a line end behind each."""
    lines = []
    for unit in units:
        if unit.is_final():
            lines.append(f"Final Answer: {unit.agent_response or ''}\n")
            continue
        lines.append(f"Thought: {unit.thought}\n" if unit.thought else "Thought:\n")
        if unit.action_str:
            lines.append(f"Action: {unit.action_str}\n")
        if unit.observation is not None:
            lines.append(f"{observation_text(unit.observation)}\n")
    return "".join(lines)


# ------------------------------------------------------------------------------------------------ history


def conversation(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Earlier messages for a text dialect: calls and results of tools as text, system messages left out."""
    result: list[Message] = []
    for message in map(Message.of, messages):
        if message.role in ("user", "tool"):
            text = observation_text(message.text) if message.role == "tool" else None
            _say(result, "user", message, text)
        elif message.role == "assistant":
            _say(result, "assistant", message, _assistant_text(message))
    return tuple(result)


def _say(result: list[Message], role: str, message: Message, text: str | None) -> None:
    """Adds a message; texts of one role in a row become one message, for roles must alternate for many models."""
    last = result[-1] if result else None
    if text is None:
        if last is None or last.role != role:
            result.append(message)
            return
        text = message.text
    if last is not None and last.role == role:
        result[-1] = Message(role=role, content=f"{last.text}\n{text}")
    else:
        result.append(Message(role=role, content=text))


def _assistant_text(message: Message) -> str | None:
    """An assistant's text with its calls written as actions; None if the message can stay as it is."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return None if isinstance(message.get("content"), str) else message.text
    parts = [f"Thought: {message.text}"] if message.text.strip() else []
    for call in calls:
        function = call.get("function") or {}
        arguments = function.get("arguments") or "{}"
        parts.append(f'Action: {{"action": {json.dumps(function.get("name", ""))}, "action_input": {arguments}}}')
    return "\n".join(parts)


def historic_prompt(messages: Sequence[Mapping[str, Any]]) -> str:
    """Earlier messages as text for one prompt: `Question: …` for the user's, an assistant's as they are.

    A blank line stands behind each. Of list contents the text parts count; images and files are left out.
    """
    parts = []
    for message in map(Message.of, messages):
        if message.role == "user":
            parts.append(f"Question: {message.text}\n\n")
        elif message.role == "tool":
            parts.append(f"{observation_text(message.text)}\n\n")
        elif message.role == "assistant":
            text = _assistant_text(message)
            parts.append(f"{message.text if text is None else text}\n\n")
    return "".join(parts)


def history_turns(messages: Sequence[Mapping[str, Any]]) -> list[list[Message]]:
    """The messages by turns: each begins with a user's message and holds all up to the next, its answer among them."""
    turns: list[list[Message]] = []
    for message in map(Message.of, messages):
        if message.role == "system":
            continue
        if not turns or (message.role == "user" and turns[-1][-1].role != "user"):
            turns.append([])
        turns[-1].append(message)
    return turns


def fit_history(
    messages: Sequence[Mapping[str, Any]], budget: int | None, count: Callable[[str], int]
) -> tuple[Message, ...]:
    """The newest whole turns that fit into a budget of tokens, as `count` counts them. None: no limit.

    A turn is kept whole, steps and answer, or left out; the newest turn is always kept.
    """
    turns = history_turns(messages)
    if budget is not None and turns:
        left, first = budget, len(turns)
        for index in range(len(turns) - 1, -1, -1):
            left -= count(historic_prompt(turns[index]))
            if left < 0 and first < len(turns):
                break
            first = index
        turns = turns[first:]
    return tuple(message for turn in turns for message in turn)
