"""The dialect in which a model acts by writing short Python programs; the tools are functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from closeout.dialects.constrain import PROGRAM_GRAMMAR
from closeout.dialects.function_call import NOT_RUN
from closeout.dialects.functions import (
    FINAL_ANSWER,
    MODULES,
    RUN_PROGRAM,
    answer_function,
    answer_stub,
    call_form,
    call_source,
    functions_of,
    stubs,
    takes_any,
)
from closeout.dialects.prompts import program_slots
from closeout.dialects.protocol import HistoryView
from closeout.dialects.text_chat import TextChat, historic_prompt, said_by_user
from closeout.messages import Capabilities, Constraint, Message, ModelRequest, Step, ToolCall, ToolSpec
from closeout.parsing.program import ProgramReader

__all__ = ["Code"]

CONTINUE = "Continue: write a program, or give the answer."
_RESULT = "Result:\n"
_PART = re.compile(r"^(?=Question:|Result:|```)", re.MULTILINE)


class Code(TextChat):
    """Programs in fenced blocks: one program in a reply, then its output.

    A conversation is a chat. A weak model that completes texts gets one growing text instead, which looks like the
    worked examples.
    """

    name = "code"
    stop = ("\nResult:",)

    def reader(self, tools: Sequence[ToolSpec]) -> ProgramReader:
        functions = functions_of(tools)
        destructive = [
            each
            for name, tool in functions.items()
            if tool.policy.destructive
            for each in (name, *tool.policy.all_other_names)
        ]
        return ProgramReader(RUN_PROGRAM, {*functions, FINAL_ANSWER}, destructive)

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        if self._writes_text(view, capabilities):
            return self._as_text(view, capabilities)
        return super().render(view, capabilities)

    def _writes_text(self, view: HistoryView, capabilities: Capabilities) -> bool:
        return capabilities.weak and capabilities.completions and bool(program_slots(view.tools))

    def constraint(
        self, view: HistoryView, capabilities: Capabilities, answer: Constraint | None = None
    ) -> Constraint | None:
        """Hold the programs of a weak model to one fenced block. In a chat, a reply without a program is the answer."""
        if not capabilities.grammar or not self._writes_text(view, capabilities):
            return None
        return Constraint("grammar", PROGRAM_GRAMMAR, "program")

    def system_text(self, view: HistoryView, examples: bool) -> str:
        return self._prompts.render(
            "code",
            instruction=view.instructions,
            functions=stubs(view.tools),
            modules=MODULES,
            final_answer=_answer_form(view),
            examples=self._program_examples(view.tools) if examples else "",
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
            final_answer=answer_stub(answer_function(view.answer)),
            examples=self._program_examples(view.tools),
        )
        head = f"{head.rstrip()}\n\n"
        hints = "".join(f"{hint}\n" for hint in (view.note, view.closing) if hint)
        steps = "".join(f"{said_by_user(message)}\n" for message in view.messages)
        steps += "".join(self._step_text(step) for step in view.steps)
        prompt = f"{head}{historic_prompt(view.earlier)}Question: {view.question}\n{steps}{hints}"
        stop = (*self.stop, "\nQuestion:") if capabilities.stop else ()
        return ModelRequest(prompt=prompt, stop=stop, shared=len(head))

    def _program_examples(self, tools: Sequence[ToolSpec]) -> str:
        slots = program_slots(tools)
        return self._prompts.render("weak_examples_code", **slots) if slots else ""

    def _step_text(self, step: Step) -> str:
        form = f"{self.name}/text"
        if form not in step.rendered:
            written = [_in_one_text(message).rstrip("\n") for message in self.step_messages(step)]
            if step.messages and not step.calls:
                written.pop()  # which asks to continue
            texts = (*written, *map(said_by_user, step.messages))
            text = "".join(f"{text}\n" for text in texts if text)
            step.rendered[form] = (Message(role="user", content=text),)
        return step.rendered[form][0].text


def _answer_form(view: HistoryView) -> str:
    function = answer_function(view.answer)
    return f"{FINAL_ANSWER}(answer)" if takes_any(function) else call_form(function)


def _in_one_text(message: Message) -> str:
    if not message.text.startswith(_RESULT):
        return message.text
    # A result cannot add a question: none of its lines may begin like a part of the prompt.
    return f"{_RESULT}{_PART.sub(' ', message.text.removeprefix(_RESULT))}"


def _fenced(call: ToolCall) -> str:
    code = call.arguments.get("code") if not isinstance(call.arguments, str) else None
    source = code if isinstance(code, str) else call_source(call.name, call.arguments)
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}python\n{source}\n{fence}"
