"""The ReAct dialects: `cot_chat` in chat messages, `cot_completion` in one growing prompt; and the scratchpad of both.

A step is `Thought / Action / Observation`, an earlier question `Question: …`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from closeout.dialects.constrain import action_constraint
from closeout.dialects.function_call import NOT_RUN
from closeout.dialects.prompts import READ_RESULT, Prompts, examples_slots, tool_names, tools_brief, tools_json
from closeout.dialects.protocol import HistoryView
from closeout.dialects.text_chat import TextChat, historic_prompt, observation_text, said_by_user
from closeout.messages import Capabilities, Constraint, Message, ModelRequest, Step, ToolCall, ToolSpec
from closeout.parsing.action_keys import is_final_answer
from closeout.parsing.react import CotAgentOutputParser, Markers
from closeout.parsing.readers import ReactReader

__all__ = ["AgentScratchpadUnit", "CotChat", "CotCompletion", "scratchpad_text", "step_units"]

# Whether an observation is a user message of its own after the assistant's action. Otherwise it ends the assistant's
# message, and a short user message asks to continue. The reason for the default is in docs/design/dialects.md.
OBSERVATION_FROM_USER = True
PRIMER = "Thought:"  # The end of a text prompt.
MOST_STOP_WORDS = 4  # The limit of OpenAI's servers.
_EXAMPLES = "weak_examples_completion"


MakeParser: TypeAlias = Callable[..., CotAgentOutputParser]
"""A `CotAgentOutputParser` class, or a function that takes the same arguments."""


def _stop_words(own: tuple[str, ...], markers: Markers | None) -> tuple[str, ...]:
    """The stop words of a dialect, with as many translations of `Observation:` as a request may have."""
    added = () if markers is None else (f"\n{word}" for word in markers.added_stop_words)
    return (*own, *added)[:MOST_STOP_WORDS]


class _ActionForm:
    """The constraint on a ReAct reply, made once for the tools and the answer."""

    def __init__(self, *, primed: bool = False) -> None:
        self._primed = primed
        self._made: tuple[tuple[Any, ...], Constraint | None] | None = None

    def constraint(self, view: HistoryView, capabilities: Capabilities, answer: Constraint | None) -> Constraint | None:
        tools = view.tools
        if not view.steps and READ_RESULT not in view.question:  # there is no result to read yet
            tools = tuple(tool for tool in tools if tool.name != READ_RESULT)
        # A small model takes an error for the answer, so after the first one it acts again.
        key = (tools, capabilities, may_answer := not _just_failed(view.steps), answer)
        if self._made is None or self._made[0] != key:
            made = action_constraint(tools, capabilities, primed=self._primed, may_answer=may_answer, answer=answer)
            self._made = key, made
        return self._made[1]


def _just_failed(steps: Sequence[Step]) -> bool:
    """True if the last step's calls failed, after one that did not."""

    def failed(step: Step) -> bool:
        return bool(step.returns) and not any(returned.ok for returned in step.returns)

    return bool(steps) and failed(steps[-1]) and not (len(steps) > 1 and failed(steps[-2]))


class CotChat(TextChat):
    """ReAct over a chat endpoint.

    Args:
        prompts: Templates that replace the package's, name → Jinja text.
        markers: Words that are read as markers beside the English ones: `{"action": ["行动"]}`.
        parser: A subclass of `CotAgentOutputParser`, or a function that takes the same arguments.
    """

    name = "cot_chat"
    stop: tuple[str, ...] = ("\nObservation:",)

    def __init__(
        self,
        prompts: Mapping[str, str] | None = None,
        *,
        markers: Mapping[str, Sequence[str]] | None = None,
        parser: MakeParser | None = None,
    ) -> None:
        super().__init__(prompts)
        self._actions = _ActionForm()
        self._markers, self._parser = Markers(markers) if markers else None, parser
        self.stop = _stop_words(self.stop, self._markers)

    def reader(self, tools: Sequence[ToolSpec]) -> ReactReader:
        return ReactReader(tools, markers=self._markers, parser=self._parser)

    def system_text(self, view: HistoryView, examples: bool) -> str:
        return self._prompts.render(
            "cot_chat",
            instruction=view.instructions,
            tools=tools_json(view.tools),
            tool_names=tool_names(view.tools),
            examples=self._examples(view.tools, "weak_examples") if examples else "",
        )

    def constraint(
        self, view: HistoryView, capabilities: Capabilities, answer: Constraint | None = None
    ) -> Constraint | None:
        """Hold a reply to one action, or the final answer."""
        return self._actions.constraint(view, capabilities, answer)

    def continue_text(self) -> str:
        """The short user message after a scratchpad."""
        return self._prompts.render("next_iteration")

    def step_messages(self, step: Step) -> Iterator[Message]:
        for unit in step_units(step):
            said = said_text(unit) if unit.action or not step.messages else _without_call(step)
            if unit.observation is None:
                yield Message(role="assistant", content=said)
                yield Message(role="user", content=self.continue_text())
            elif OBSERVATION_FROM_USER:
                yield Message(role="assistant", content=said)
                yield Message(role="user", content=observation_text(unit.observation))
            else:
                yield Message(role="assistant", content=f"{said}\n{observation_text(unit.observation)}")
                yield Message(role="user", content=self.continue_text())


class CotCompletion:
    """ReAct in one prompt that ends in `Thought:`. The arguments are those of `CotChat`."""

    name = "cot_completion"
    parallel_calls = False
    writes_messages = True
    # A base model that has answered continues with a question of its own.
    stop: tuple[str, ...] = ("\nObservation:", "\nQuestion:")

    def __init__(
        self,
        prompts: Mapping[str, str] | None = None,
        *,
        markers: Mapping[str, Sequence[str]] | None = None,
        parser: MakeParser | None = None,
    ) -> None:
        self._prompts = Prompts(prompts)
        self._frame: tuple[tuple[Any, ...], tuple[str, str, int]] | None = None
        self._actions = _ActionForm(primed=True)
        self._markers, self._parser = Markers(markers) if markers else None, parser
        self.stop = _stop_words(self.stop, self._markers)

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        brief = capabilities.weak and bool(examples_slots(view.tools))  # the worked examples write actions so
        form = f"{self.name}/brief" if brief else self.name
        parts = [f"{said_by_user(message)}\n" for message in view.messages]
        for step in view.steps:
            done = step.rendered.get(form)
            if done is None:
                done = step.rendered[form] = (Message(role="user", content=_step_text(step, brief=brief)),)
            parts.append(done[0]["content"])
        parts += [f"{hint}\n" for hint in (view.note, view.closing) if hint]
        prompt = self.prompt(view, "".join(parts), examples=capabilities.weak)
        shared = self._rendered_frame(view, capabilities.weak)[2]
        return ModelRequest(prompt=prompt, stop=self.stop if capabilities.stop else (), shared=shared)

    def prompt(self, view: HistoryView, scratchpad: str, *, examples: bool = False) -> str:
        """The whole prompt with this scratchpad, up to the primer."""
        before, after, _ = self._rendered_frame(view, examples)
        return f"{before}{scratchpad}{after}"

    def constraint(
        self, view: HistoryView, capabilities: Capabilities, answer: Constraint | None = None
    ) -> Constraint | None:
        """Hold a reply to a thought and one action, or the final answer."""
        return self._actions.constraint(view, capabilities, answer)

    def instruction_prompt(self, view: HistoryView, *, examples: bool = False) -> str:
        """The template with its instruction and tool slots filled; the later slots are left as they are written."""
        later = {slot: f"{{{{{slot}}}}}" for slot in ("historic_messages", "query", "agent_scratchpad")}
        return self._prompts.render(self.name, **self._first_slots(view, examples), **later)

    def reader(self, tools: Sequence[ToolSpec]) -> ReactReader:
        return ReactReader(tools, primed=True, markers=self._markers, parser=self._parser)

    def _rendered_frame(self, view: HistoryView, examples: bool) -> tuple[str, str, int]:
        """The prompt before and after the scratchpad, and the length of what precedes the conversation.

        The text after the scratchpad begins or ends with the primer, exactly once.
        """
        key = (examples, view.instructions, view.question, view.tools, view.earlier)
        if self._frame is None or self._frame[0] != key:
            # Random marks find the slots' places; they never reach the model.
            mark, start = secrets.token_hex(16), secrets.token_hex(16)
            text = self._prompts.render(
                self.name,
                **self._first_slots(view, examples),
                historic_messages=f"{start}{historic_prompt(view.earlier)}",
                query=f"{mark}?",
                agent_scratchpad=mark,
            )
            shared = min(text.find(start), text.find(mark))
            text = text.replace(start, "")
            head, asked, tail = text.partition(f"{mark}?")
            if asked:
                # `Question:` precedes the question once: in the template, or else here.
                label = "" if head.rstrip().endswith("Question:") else "Question: "
                text = f"{head}{label}{view.question}{tail}"
            before, _, after = text.partition(mark)
            if before.rstrip().endswith(f"\n{PRIMER}"):  # the scratchpad has it
                before = before.rstrip().removesuffix(PRIMER)
            own = after.rstrip()
            after = (own if own.strip() != PRIMER else PRIMER) if own.endswith(PRIMER) else PRIMER + after
            self._frame = key, (before, after, max(shared, 0))
        return self._frame[1]

    def _first_slots(self, view: HistoryView, examples: bool) -> dict[str, Any]:
        slots = examples_slots(view.tools) if examples else {}
        return {
            "instruction": view.instructions,
            "tools": tools_brief(view.tools) if slots else tools_json(view.tools),
            "tool_names": tool_names(view.tools),
            "examples": self._prompts.render(_EXAMPLES, **slots) if slots else "",
        }


def _step_text(step: Step, *, brief: bool = False) -> str:
    units = (unit for unit in step_units(step, brief=brief) if unit.action)
    written = scratchpad_text(units) or f"{_without_call(step)}\n"
    return "".join((written, *(f"{said_by_user(message)}\n" for message in step.messages)))


def _without_call(step: Step) -> str:
    """A step without a call: an answer, if the user has said more since, otherwise a thought."""
    return f"Final Answer: {step.text}" if step.messages else f"Thought: {step.text}"


# ------------------------------------------------------------------------------------------------ scratchpad


@dataclass
class AgentScratchpadUnit:
    """One step of an agent: its thought, action and observation. A unit without an action is the final one."""

    @dataclass
    class Action:
        """A tool name and its input: an object, or text."""

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
        """True if the unit answers: it has no action, or its action is the final answer."""
        return self.action is None or is_final_answer(self.action.action_name)


def action_text(call: ToolCall, *, brief: bool = False) -> str:
    """A call as the JSON object that the prompts teach, or `brief` as its name and input. UTF-8 is not escaped."""
    if brief:
        return f"{call.name} {json.dumps(call.arguments, ensure_ascii=False, default=dict)}"
    return json.dumps({"action": call.name, "action_input": call.arguments}, ensure_ascii=False, default=dict)


def step_units(step: Step, *, brief: bool = False) -> Iterator[AgentScratchpadUnit]:
    """A step as scratchpad units, one for each of its calls; a step without calls is a thought."""
    results = [result.text for result in step.returns]
    for index, call in enumerate(step.calls):
        yield AgentScratchpadUnit(
            agent_response=step.raw,
            thought=step.text if index == 0 else None,
            action_str=action_text(call, brief=brief),
            observation=results[index] if index < len(results) else NOT_RUN,
            action=AgentScratchpadUnit.Action(call.name, _input(call)),
        )
    if not step.calls:
        yield AgentScratchpadUnit(agent_response=step.raw, thought=step.text)


def _input(call: ToolCall) -> dict[str, Any] | str:
    return call.arguments if isinstance(call.arguments, str) else dict(call.arguments)


def said_text(unit: AgentScratchpadUnit) -> str:
    """The model's part of a unit: thought and action, or its final answer."""
    if unit.is_final():
        return f"Final Answer: {unit.agent_response}" if not unit.thought else f"Thought: {unit.thought}"
    thought = f"Thought: {unit.thought}\n" if unit.thought else ""
    return f"{thought}Action: {unit.action_str}"


def scratchpad_text(units: Iterable[AgentScratchpadUnit]) -> str:
    """Units as one text, with a line end after each."""
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
