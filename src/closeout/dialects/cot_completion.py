"""The dialect of bare completion endpoints: the whole conversation is one text that the model goes on with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.dialects.examples import examples_slots
from closeout.dialects.prompts import Prompts, tool_names, tools_json
from closeout.dialects.protocol import HistoryView
from closeout.dialects.react_reader import ReactReader
from closeout.dialects.scratchpad import historic_prompt, scratchpad_text, step_units
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolSpec

__all__ = ["CotCompletion"]

PRIMER = "Thought:"


class CotCompletion:
    """ReAct in one prompt that ends in `Thought:`."""

    name = "cot_completion"
    parallel_calls = False
    # A base model that has answered goes on with the next question of its own making.
    stop = ("\nObservation:", "\nQuestion:")

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self._prompts = Prompts(prompts)
        self._frame: tuple[tuple[Any, ...], tuple[str, str]] | None = None

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        parts = []
        for step in view.steps:
            done = step.rendered.get(self.name)
            if done is None:
                done = step.rendered[self.name] = (Message(role="user", content=_step_text(step)),)
            parts.append(done[0]["content"])
        parts += [f"{hint}\n" for hint in (view.note, view.closing) if hint]
        prompt = self.prompt(view, "".join(parts), weak=capabilities.weak)
        return ModelRequest(prompt=prompt, stop=self.stop if capabilities.stop else ())

    def prompt(self, view: HistoryView, scratchpad: str, *, weak: bool = False) -> str:
        """The whole text, with this scratchpad in it, up to the primer."""
        before, after = self._rendered_frame(view, weak)
        return f"{before}{scratchpad}{after}"

    def instruction_prompt(self, view: HistoryView, *, weak: bool = False) -> str:
        """The template with the instructions and tools in it; its later slots stand as they are written."""
        later = {slot: f"{{{{{slot}}}}}" for slot in ("historic_messages", "query", "agent_scratchpad")}
        return self._prompts.render(self.name, **self._first_slots(view, weak), **later)

    def reader(self, tools: Sequence[ToolSpec]) -> ReactReader:
        return ReactReader(primed=True)

    def _rendered_frame(self, view: HistoryView, weak: bool) -> tuple[str, str]:
        """The prompt before and behind the scratchpad. The primer is in the second, once, whoever wrote it."""
        key = (weak, view.instructions, view.question, view.tools, view.earlier)
        if self._frame is None or self._frame[0] != key:
            # Places are found by a mark that nobody can have written; it never reaches the model.
            mark = secrets.token_hex(16)
            text = self._prompts.render(
                self.name,
                **self._first_slots(view, weak),
                historic_messages=historic_prompt(view.earlier),
                query=f"{mark}?",
                agent_scratchpad=mark,
            )
            head, asked, tail = text.partition(f"{mark}?")
            if asked:
                # `Question:` stands before the question once, in the template or else here.
                label = "" if head.rstrip().endswith("Question:") else "Question: "
                text = f"{head}{label}{view.question}{tail}"
            before, _, after = text.partition(mark)
            if before.rstrip().endswith(f"\n{PRIMER}"):  # the scratchpad brings it
                before = before.rstrip().removesuffix(PRIMER)
            own = after.rstrip()
            after = (own if own.strip() != PRIMER else PRIMER) if own.endswith(PRIMER) else PRIMER + after
            self._frame = key, (before, after)
        return self._frame[1]

    def _first_slots(self, view: HistoryView, weak: bool) -> dict[str, Any]:
        slots = examples_slots(view.tools) if weak else {}
        return {
            "instruction": view.instructions,
            "tools": tools_json(view.tools),
            "tool_names": tool_names(view.tools),
            "examples": self._prompts.render("weak_examples_completion", **slots) if slots else "",
        }


def _step_text(step: Step) -> str:
    return scratchpad_text(unit for unit in step_units(step) if unit.action) or f"Thought: {step.text}\n"
