"""What chat dialects share whose calls are text: a system message that teaches the form, steps, a hint at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from closeout.dialects.examples import examples_slots
from closeout.dialects.function_call import head_messages
from closeout.dialects.prompts import Prompts
from closeout.dialects.protocol import HistoryView, Reader
from closeout.dialects.scratchpad import conversation
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolSpec

__all__ = ["TextChat"]


class TextChat(ABC):
    """A chat dialect in text, one call in a reply."""

    name = ""
    parallel_calls = False
    stop: tuple[str, ...] = ()

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self._prompts = Prompts(prompts)
        self._head: tuple[tuple[Any, ...], tuple[Message, ...]] | None = None

    @abstractmethod
    def reader(self, tools: Sequence[ToolSpec]) -> Reader: ...

    @abstractmethod
    def system_text(self, view: HistoryView, weak: bool) -> str:
        """The system message. `weak`: with worked examples, for a small model."""

    @abstractmethod
    def step_messages(self, step: Step) -> Iterable[Message]:
        """A step as it stands in every later request."""

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        messages = list(self._rendered_head(view, capabilities.weak))
        head = len(messages)
        marks = {head - 1}
        for index, step in enumerate(view.steps):
            if index in view.borders:
                marks.add(len(messages) - 1)
            done = step.rendered.get(self.name)
            if done is None:
                done = step.rendered[self.name] = tuple(self.step_messages(step))
            messages += done
        stable = len(messages) - 1
        hint = "\n\n".join(text for text in (view.note, view.closing) if text)
        if hint:
            stable -= 1
            messages[-1] = with_hint(messages[-1], hint)
        return ModelRequest(
            messages=messages,
            stop=self.stop if capabilities.stop else (),
            breakpoints=tuple(sorted({max(0, min(mark, stable)) for mark in (*marks, stable)})),
        )

    def _rendered_head(self, view: HistoryView, weak: bool) -> tuple[Message, ...]:
        key = (weak, view.instructions, view.question, view.tools, view.earlier, view.images)
        if self._head is None or self._head[0] != key:
            system = self.system_text(view, weak)
            self._head = key, head_messages(system, conversation(view.earlier), view.question, view.images)
        return self._head[1]

    def _examples(self, tools: Sequence[ToolSpec], template: str) -> str:
        slots = examples_slots(tools)
        return self._prompts.render(template, **slots) if slots else ""


def with_hint(last: Message, hint: str) -> Message:
    """The last user message with a hint in it: chat templates of many models demand that roles alternate."""
    content = last["content"]
    if isinstance(content, str):
        return Message(role=last.role, content=f"{content}\n\n{hint}")
    return Message(role=last.role, content=[*content, {"type": "text", "text": hint}])
