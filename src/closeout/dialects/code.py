"""The dialect in which a model acts by writing short Python programs; the tools are functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeout.dialects.function_call import NOT_RUN
from closeout.dialects.functions import FINAL_ANSWER, RUN_PROGRAM, call_source, functions_of, programs_of, stubs
from closeout.dialects.prompts import program_slots
from closeout.dialects.protocol import HistoryView
from closeout.dialects.text_chat import TextChat, historic_prompt
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolCall, ToolSpec
from closeout.parsing.program import ProgramReader
from closeout.parsing.questions import rates_in

__all__ = [
    "DOUBT",
    "NO_RESULT",
    "READ_AGAIN",
    "Code",
    "answers_from_facts",
    "facts_in",
    "failed_twice",
    "searched_twice",
    "searches_in",
    "was_asked_again",
]

CONTINUE = "Continue: write a program, or give the answer."
DOUBT = "Check the answer. "  # begins an error that only questions an answer
READ_AGAIN = "Make the answer again, from the facts that were found."  # in a result: what the next program is for
NO_RESULT = "{'results': []"  # begins what a search returns that finds nothing; its note names other documents
_RESULT = "Result:\n"
_PART = re.compile(r"^(?=Question:|Facts:|Result:|```)", re.MULTILINE)


def answers_from_facts(view: HistoryView) -> bool:
    """Whether a small model's next program makes the answer from the facts alone.

    It is asked to, two have failed since something was found, or one has searched for several things.
    """
    steps = view.steps
    if view.note or view.closing:
        return False
    if failed_twice(steps):
        return True
    if not (searched_twice(steps, view.tools) or any(map(was_asked_again, steps))):
        return False
    return was_asked_again(steps[-1]) or steps[-1].succeeded


def facts_in(steps: Sequence[Step], question: str) -> str:
    """What the programs have found, each line once, without what looks like another part of the prompt."""
    lines = (line for step in steps for each in step.returns if each.ok for line in each.text.splitlines())
    facts = "\n".join(dict.fromkeys(line for line in lines if line and not line.startswith(NO_RESULT)))
    return _inert("\n".join([facts, *rates_in(facts, question)]))


def failed_twice(steps: Sequence[Step]) -> bool:
    """Whether the last two programs failed, after one that found something."""
    return [_outcome(step) for step in steps[-3:]] == ["found", "failed", "failed"]


def searched_twice(steps: Sequence[Step], tools: Sequence[ToolSpec]) -> bool:
    """Whether a program that succeeded has searched for two things."""
    programs = programs_of(step for step in steps if step.succeeded)
    return any(searches_in(program, tools) > 1 for program in programs)


def searches_in(program: str, tools: Sequence[ToolSpec]) -> int:
    """Count the searches that a program makes."""
    look_up = program_slots(tools).get("look_up")
    return program.count(f"{look_up['name']}(") if look_up is not None else 0


def was_asked_again(step: Step) -> bool:
    """Whether a step gave an answer that is to be made again, from the facts."""
    return any(READ_AGAIN in each.text for each in step.returns if not each.ok)


class Code(TextChat):
    """Programs in fenced blocks: one program in a reply, then its output.

    A conversation is a chat. A weak model that completes texts gets one growing text instead, which looks like the
    worked examples. To make the answer from facts, it gets a text without its programs.
    """

    name = "code"
    stop = ("\nResult:",)

    def reader(self, tools: Sequence[ToolSpec]) -> ProgramReader:
        functions = functions_of(tools)
        destructive = [name for name, tool in functions.items() if tool.policy.destructive]
        return ProgramReader(RUN_PROGRAM, {*functions, FINAL_ANSWER}, destructive)

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        if capabilities.weak and capabilities.completions and program_slots(view.tools):
            return self._as_text(view, capabilities)
        return super().render(view, capabilities)

    def system_text(self, view: HistoryView, weak: bool) -> str:
        return self._prompts.render(
            "code",
            instruction=view.instructions,
            functions=stubs(view.tools),
            examples=self._program_examples(view.tools) if weak else "",
        )

    def step_messages(self, step: Step) -> Iterator[Message]:
        results = [result.text for result in step.returns]
        for index, call in enumerate(step.calls):
            thought = f"{step.text}\n" if index == 0 and step.text else ""
            yield Message(role="assistant", content=thought + _fenced(call))
            yield Message(role="user", content=f"{_RESULT}{results[index] if index < len(results) else NOT_RUN}")
        if not step.calls:
            yield Message(role="assistant", content=step.text)
            yield Message(role="user", content=CONTINUE)

    def _as_text(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        head = self._prompts.render(
            "code_completion",
            instruction=view.instructions,
            functions=stubs(view.tools, documented=False).replace("\n\n", "\n"),
            examples=self._program_examples(view.tools),
        )
        head = f"{head.rstrip()}\n\n"
        if capabilities.grammar and answers_from_facts(view):
            facts = facts_in(view.steps, view.question)
            prompt = f"{head}{historic_prompt(view.earlier)}Facts:\n{facts}\n\nQuestion: {view.question}\n"
            return ModelRequest(prompt=prompt, stop=self._stops(capabilities), shared=len(head))
        hints = "".join(f"{hint}\n" for hint in (view.note, view.closing) if hint)
        steps = "".join(self._step_text(step) for step in _without_failed_readings(view.steps))
        prompt = f"{head}{historic_prompt(view.earlier)}Question: {view.question}\n{steps}{hints}"
        return ModelRequest(prompt=prompt, stop=self._stops(capabilities), shared=len(head))

    def _stops(self, capabilities: Capabilities) -> tuple[str, ...]:
        return (*self.stop, "\nQuestion:") if capabilities.stop else ()

    def _program_examples(self, tools: Sequence[ToolSpec]) -> str:
        slots = program_slots(tools)
        return self._prompts.render("weak_examples_code", **slots) if slots else ""

    def _step_text(self, step: Step) -> str:
        form = f"{self.name}/text"
        if form not in step.rendered:
            texts = (_in_one_text(message).rstrip("\n") for message in self.step_messages(step))
            text = "".join(f"{text}\n" for text in texts if text)
            step.rendered[form] = (Message(role="user", content=text),)
        return step.rendered[form][0].text


def _outcome(step: Step) -> str:
    """Whether a step's program has found something, failed, or given an answer that was doubted."""
    if step.succeeded:
        return "found"
    return "doubted" if any(DOUBT in result.text for result in step.returns) else "failed"


def _without_failed_readings(steps: Sequence[Step]) -> Sequence[Step]:
    """Leave out the answer that was to be made again, and the attempts at it, if these have only failed.

    The model then gives the first answer once more. After its failed programs, it would repeat those.
    """
    asked = next((index for index, step in enumerate(steps) if was_asked_again(step)), len(steps))
    later = [result for step in steps[asked + 1 :] for result in step.returns]
    failed = later and not any(result.ok or DOUBT in result.text for result in later)
    return steps[:asked] if failed else steps


def _in_one_text(message: Message) -> str:
    if not message.text.startswith(_RESULT):
        return message.text
    return f"{_RESULT}{_inert(message.text.removeprefix(_RESULT))}"


def _inert(text: str) -> str:
    """Move what looks like a part of the prompt away from the beginnings of lines: a result cannot add a question."""
    return _PART.sub(" ", text)


def _fenced(call: ToolCall) -> str:
    code = call.arguments.get("code") if not isinstance(call.arguments, str) else None
    source = code if isinstance(code, str) else call_source(call.name, call.arguments)
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}python\n{source}\n{fence}"
