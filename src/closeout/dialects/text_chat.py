"""`TextChat`: the base of chat dialects whose calls are text; and earlier conversations as text.

A request has a system message that teaches the form, the steps, and a hint in the last message.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from closeout.dialects.function_call import Transcript, head_messages
from closeout.dialects.prompts import Prompts, examples_slots
from closeout.dialects.protocol import HistoryView
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolSpec
from closeout.parsing.readers import Reader

__all__ = ["TextChat", "conversation", "fit_history", "historic_prompt", "observation_text", "said_by_user"]


class TextChat(ABC):
    """A chat dialect in text, with one call in a reply.

    Subclass it to add a dialect: set `name` and, if the server should stop early, `stop`; write `reader`,
    `system_text` and `step_messages`.

    Args:
        prompts: Templates that replace the package's, name → Jinja text.
    """

    name = ""
    parallel_calls = False
    writes_messages = True
    stop: tuple[str, ...] = ()

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self._prompts = Prompts(prompts)
        self._head: tuple[tuple[Any, ...], tuple[Message, ...]] | None = None
        self._transcript = Transcript()

    @abstractmethod
    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Make a reader for one reply."""

    @abstractmethod
    def system_text(self, view: HistoryView, examples: bool) -> str:
        """The system message; with worked examples if they are asked for."""

    @abstractmethod
    def step_messages(self, step: Step) -> Iterable[Message]:
        """A step as messages, the same in every later request."""

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        head = self._rendered_head(view, capabilities.weak)
        messages: Sequence[Message] = self._transcript.write(head, view.steps, self.name, self._with_messages)
        marks = {len(head) - 1, *map(self._transcript.last_of, view.borders)}
        stable = len(messages) - 1
        hint = "\n\n".join(text for text in (view.note, view.closing) if text)
        if hint:
            stable -= 1
            messages = [*messages[:-1], with_hint(messages[-1], hint)]
        return ModelRequest(
            messages=messages,
            stop=self.stop if capabilities.stop else (),
            breakpoints=tuple(sorted({max(0, min(mark, stable)) for mark in (*marks, stable)})),
        )

    def _with_messages(self, step: Step) -> Iterable[Message]:
        """Write a step, with the user's messages after it as part of its last message: roles must alternate."""
        written = self.step_messages(step)
        if not step.messages:
            return written
        *others, last = written
        if not step.calls and last.role == "user":  # which asks to continue
            last = Message(role="user", content=said_by_user(step.messages[0]))
            further = step.messages[1:]
        else:
            further = step.messages
        for message in further:
            last = with_hint(last, said_by_user(message))
        return [*others, last]

    def _rendered_head(self, view: HistoryView, examples: bool) -> tuple[Message, ...]:
        key = (examples, view.instructions, view.question, view.tools, view.earlier, view.images, view.messages)
        if self._head is None or self._head[0] != key:
            system = self.system_text(view, examples)
            earlier, question = conversation(view.earlier), view.question
            last = earlier[-1] if earlier else None
            if last is not None and last.role == "user" and isinstance(last["content"], str):  # roles must alternate
                earlier, question = earlier[:-1], f"{last.text}\n{question}"
            question = "\n\n".join((question, *map(said_by_user, view.messages)))
            self._head = key, head_messages(system, earlier, question, view.images)
        return self._head[1]

    def _examples(self, tools: Sequence[ToolSpec], template: str) -> str:
        slots = examples_slots(tools)
        return self._prompts.render(template, **slots) if slots else ""


def with_hint(last: Message, hint: str) -> Message:
    """Add a hint to the last user message: the chat templates of many models demand that roles alternate."""
    content = last["content"]
    if isinstance(content, str):
        return Message(role=last.role, content=f"{content}\n\n{hint}")
    return Message(role=last.role, content=[*content, {"type": "text", "text": hint}])


# ------------------------------------------------------------------------------------------------ history


NOTICE_ROLES = ("system", "developer")


def said_by_user(message: str) -> str:
    """A message of the user's to the running agent, for a prompt in which results have the user's role, too."""
    return f"Message from the user: {message}"


def observation_text(result: str) -> str:
    """A result as an observation. One that begins so was written by the user's own function: a tool's is escaped."""
    return result if result.startswith("Observation: ") else f"Observation: {result}"


def notice_text(notice: str) -> str:
    return f"System notice: {notice}"


def conversation(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Earlier messages for a text dialect: tool calls, results and system notices become text.

    A notice is the user's, because many chat templates refuse a system message after the first message.
    """
    result: list[Message] = []
    for message in map(Message.of, messages):
        if message.role == "assistant":
            _add(result, "assistant", message, _assistant_text(message))
        elif message.role == "tool":
            _add(result, "user", message, observation_text(message.text))
        else:
            _add(result, "user", message, notice_text(message.text) if message.role in NOTICE_ROLES else None)
    return tuple(result)


def _add(result: list[Message], role: str, message: Message, text: str | None) -> None:
    """Add a message. Texts of one role in a row become one message, as roles must alternate for many models."""
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
    """An assistant's text with its calls written as actions; None if the message needs no change."""
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
    """Earlier messages as text for one prompt, with the labels that the prompt teaches.

    A user's message is `Question: …`, an assistant's answer `Final Answer: …`, a system message `System notice: …`.
    Each is followed by a blank line. List contents contribute their text parts; images and files are left out.
    """
    parts = []
    for message in map(Message.of, messages):
        if message.role == "user":
            parts.append(f"Question: {message.text}\n\n")
        elif message.role == "tool":
            parts.append(f"{observation_text(message.text)}\n\n")
        elif message.role == "assistant":
            text = _assistant_text(message) if message.get("tool_calls") else _answer_text(message.text)
            parts.append(f"{message.text if text is None else text}\n\n")
        else:
            parts.append(f"{notice_text(message.text)}\n\n")
    return "".join(parts)


def _answer_text(text: str) -> str:
    """Return an earlier answer with its label, which it may have already."""
    return text if "final answer:" in text.casefold() else f"Final Answer: {text}"


def history_turns(messages: Sequence[Mapping[str, Any]]) -> list[list[Message]]:
    """Group messages into turns: each begins with a user's message, or a notice before it, and ends before the next."""
    turns: list[list[Message]] = []
    for message in map(Message.of, messages):
        opens = message.role in ("user", *NOTICE_ROLES)
        if not turns or (opens and turns[-1][-1].role not in ("user", *NOTICE_ROLES)):
            turns.append([])
        turns[-1].append(message)
    return turns


def fit_history(
    messages: Sequence[Mapping[str, Any]], budget: int | None, count: Callable[[str], int]
) -> tuple[Message, ...]:
    """Keep the newest whole turns that fit into a budget of tokens; None is no limit.

    The newest turn and all system notices are kept. `count` returns the tokens of a text.
    """
    turns = history_turns(messages)
    if budget is not None and turns:
        left, first = budget, len(turns)
        notices = [message for turn in turns for message in turn if message.role in NOTICE_ROLES]
        left -= count(historic_prompt(notices)) if notices else 0
        for index in range(len(turns) - 1, -1, -1):
            left -= count(historic_prompt([each for each in turns[index] if each.role not in NOTICE_ROLES]))
            if left < 0 and first < len(turns):
                break
            first = index
        older = [[message for message in turn if message.role in NOTICE_ROLES] for turn in turns[:first]]
        turns = [*older, *turns[first:]]
    return tuple(message for turn in turns for message in turn)
