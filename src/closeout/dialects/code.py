"""The dialect in which a model acts by writing short Python programs; the tools are functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from closeout.dialects.function_call import NOT_RUN
from closeout.dialects.functions import FINAL_ANSWER, RUN_PROGRAM, call_source, functions_of, stubs
from closeout.dialects.protocol import HistoryView
from closeout.dialects.text_chat import TextChat
from closeout.messages import Message, Step, ToolCall, ToolSpec
from closeout.parsing.program import ProgramReader

__all__ = ["Code"]

CONTINUE = "Continue: write a program, or give the answer."


class Code(TextChat):
    """Programs in fenced blocks over a chat endpoint: one program in a reply, its output in the next user message."""

    name = "code"
    stop = ("\nResult:",)

    def reader(self, tools: Sequence[ToolSpec]) -> ProgramReader:
        functions = functions_of(tools)
        destructive = [name for name, tool in functions.items() if tool.policy.destructive]
        return ProgramReader(RUN_PROGRAM, {*functions, FINAL_ANSWER}, destructive)

    def system_text(self, view: HistoryView, weak: bool) -> str:
        return self._prompts.render(
            "code",
            instruction=view.instructions,
            functions=stubs(view.tools),
            examples=self._examples(view.tools, "weak_examples_code") if weak else "",
        )

    def step_messages(self, step: Step) -> Iterator[Message]:
        results = [result.text for result in step.returns]
        for index, call in enumerate(step.calls):
            thought = f"{step.text}\n" if index == 0 and step.text else ""
            yield Message(role="assistant", content=thought + _fenced(call))
            yield Message(role="user", content=f"Result:\n{results[index] if index < len(results) else NOT_RUN}")
        if not step.calls:
            yield Message(role="assistant", content=step.text)
            yield Message(role="user", content=CONTINUE)


def _fenced(call: ToolCall) -> str:
    code = call.arguments.get("code") if not isinstance(call.arguments, str) else None
    source = code if isinstance(code, str) else call_source(call.name, call.arguments)
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}python\n{source}\n{fence}"
