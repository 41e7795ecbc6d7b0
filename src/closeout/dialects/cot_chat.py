"""The dialect of chat models that write `Thought / Action / Final Answer` as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closeout.dialects.function_call import head_messages
from closeout.dialects.prompts import Prompts, tool_names, tools_json
from closeout.dialects.protocol import HistoryView
from closeout.dialects.react_reader import ReactReader
from closeout.dialects.scratchpad import observation_text, step_texts
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolSpec

__all__ = ["CotChat"]

STOP = ("\nObservation:",)


class CotChat:
    """ReAct over a chat endpoint: each step is an assistant message and the user message that brings its result."""

    name = "cot_chat"
    parallel_calls = False

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self._prompts = Prompts(prompts)
        self._head: tuple[tuple[Any, ...], tuple[Message, ...]] | None = None

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        messages = list(self._rendered_head(view))
        head = len(messages)
        for step in view.steps:
            done = step.rendered.get(self.name)
            if done is None:
                done = step.rendered[self.name] = tuple(self._step_messages(step))
            messages += done
        stable = len(messages)
        hint = "\n\n".join(text for text in (view.note, view.closing) if text)
        if hint:
            # Chat templates of many models demand that roles alternate, so the hint joins the last user message.
            last = messages[-1]
            content = last["content"]
            if isinstance(content, str):
                messages[-1] = Message(role="user", content=f"{content}\n\n{hint}")
            else:
                messages[-1] = Message(role="user", content=[*content, {"type": "text", "text": hint}])
            stable -= 1
        return ModelRequest(
            messages=messages,
            stop=STOP if capabilities.stop else (),
            breakpoints=tuple(sorted({max(0, min(head, stable) - 1), max(0, stable - 1)})),
        )

    def reader(self, tools: Sequence[ToolSpec]) -> ReactReader:
        return ReactReader()

    def _rendered_head(self, view: HistoryView) -> tuple[Message, ...]:
        key = (view.instructions, view.question, view.tools, view.earlier, view.images)
        if self._head is None or self._head[0] != key:
            system = self._prompts.render(
                "cot_chat",
                instruction=view.instructions,
                tools=tools_json(view.tools),
                tool_names=tool_names(view.tools),
            )
            self._head = key, head_messages(system, view.earlier, view.question, view.images)
        return self._head[1]

    def _step_messages(self, step: Step) -> list[Message]:
        messages: list[Message] = []
        for said, result in step_texts(step):
            messages.append(Message(role="assistant", content=said))
            messages.append(Message(role="user", content=observation_text(result)))
        return messages
