"""The dialect of chat models that write `Thought / Action / Final Answer` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from closeout.dialects.prompts import tool_names, tools_json
from closeout.dialects.protocol import HistoryView
from closeout.dialects.react_reader import ReactReader
from closeout.dialects.scratchpad import observation_text, said_text, step_units
from closeout.dialects.text_chat import TextChat
from closeout.messages import Message, Step, ToolSpec

__all__ = ["CotChat"]

# Where an observation stands: True, in a user message of its own behind the assistant's action; False, in the
# assistant's message with a short user message to go on. Why the first is the default: docs/design/dialects.md.
OBSERVATION_FROM_USER = True


class CotChat(TextChat):
    """ReAct over a chat endpoint."""

    name = "cot_chat"
    stop = ("\nObservation:",)

    def reader(self, tools: Sequence[ToolSpec]) -> ReactReader:
        return ReactReader()

    def system_text(self, view: HistoryView, weak: bool) -> str:
        return self._prompts.render(
            "cot_chat",
            instruction=view.instructions,
            tools=tools_json(view.tools),
            tool_names=tool_names(view.tools),
            examples=self._examples(view.tools, "weak_examples") if weak else "",
        )

    def go_on(self) -> str:
        """The short user message behind a scratchpad."""
        return self._prompts.render("next_iteration")

    def step_messages(self, step: Step) -> Iterator[Message]:
        for unit in step_units(step):
            said = said_text(unit)
            if unit.observation is None:
                yield Message(role="assistant", content=said)
                yield Message(role="user", content=self.go_on())
            elif OBSERVATION_FROM_USER:
                yield Message(role="assistant", content=said)
                yield Message(role="user", content=observation_text(unit.observation))
            else:
                yield Message(role="assistant", content=f"{said}\n{observation_text(unit.observation)}")
                yield Message(role="user", content=self.go_on())
