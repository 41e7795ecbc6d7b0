"""A strategy for models of one or two billion parameters that write programs.

What one search finds, such a model reads best in words: one request, without an agent. What it cannot read there is the
agent's, whose programs search and calculate.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace

from closeout.answers.sources import Evidence
from closeout.dialects.functions import FINAL_ANSWER, RUN_PROGRAM, programs_in
from closeout.dialects.prompts import only_text
from closeout.errors import LimitReached, ModelError
from closeout.messages import Message, ModelRequest, Reading, Repair, Step, ToolCall
from closeout.parsing.python_source import parse_python
from closeout.run.strategy import ModelTurn

__all__ = ["SmallModel"]

LONGEST = 60  # tokens of an answer in words
IN_WORDS = """{facts}

Question: {question}

Answer from these facts only, with a bare number or name and nothing else."""


class SmallModel:
    """Search for the task, and answer from what was found, in words; let the agent work if the answer is not there.

    The search is the first tool that says that it looks things up (`example="look_up"`), as `search_documents` does.
    The answer counts if it has the form that is asked for and was read: the results have it literally, and the task
    does not. One that was not, such as a calculated number or one of two names, is the agent's. If the program that
    makes it has nothing to calculate, the answer is made in words again, from all that was found.

    It looks at forms only, so it works the same in every language. The programs need the dialect `code`.
    """

    name = "small-model"
    version = "3"

    async def ask(self, turn: ModelTurn) -> Reading:
        steps, facts, read = turn.view.steps, facts_in(turn.view.steps), None
        first = _search_for(turn)
        if first is not None and not steps:
            return Reading(calls=(first,))
        if facts and len(steps) == 1 and first in steps[0].calls and not steps[0].messages:
            read = await _in_words(turn, facts)
            if turn.read_answer(read).ok and Evidence("", "", json.dumps(turn.task), 0, facts).contains(read):
                return Reading(answer=read)
        reading = turn.read(await turn.send())
        programs = programs_in(reading.calls)
        tree = parse_python(programs[-1]) if programs else None
        if tree is None or turn.view.note or not facts or not _answers(tree) or _calculates(tree):
            return reading  # after a hint, the same request would end as before
        if read is None:
            read = await _in_words(turn, facts)
        if not read:
            return reading
        written = f"{FINAL_ANSWER}({json.dumps(read, ensure_ascii=False)})"
        change = Repair("answer_in_words", "reply", programs[-1], after=written)
        call = ToolCall(RUN_PROGRAM, {"code": written})
        return replace(reading, calls=(call,), repairs=(*reading.repairs, change))


def _search_for(turn: ModelTurn) -> ToolCall | None:
    """The call that searches for the task itself; None if the task is not all that the model is told."""
    view = turn.view
    for tool in () if view.note or view.earlier or view.messages else view.tools:
        if tool.policy.example == "look_up" and (parameter := only_text(tool)) is not None:
            return ToolCall(tool.name, {parameter: turn.task})
    return None


async def _in_words(turn: ModelTurn, facts: str) -> str:
    """Return the model's answer from the facts; empty if the reply was cut or failed."""
    text = IN_WORDS.format(facts=facts, question=turn.task)
    request = ModelRequest(messages=[Message(role="user", content=text)], max_tokens=LONGEST)
    try:
        reply = await turn.send(request, purpose="in words")
    except (ModelError, LimitReached):
        return ""
    return reply.text.strip() if reply.finished else ""


def facts_in(steps: Sequence[Step]) -> str:
    """Return what the programs have printed, each line once."""
    lines = (line for step in steps for each in step.returns if each.ok for line in each.text.splitlines())
    return "\n".join(dict.fromkeys(line for line in lines if line))


def _answers(tree: ast.Module) -> bool:
    names = (each.func for each in ast.walk(tree) if isinstance(each, ast.Call))
    return any(isinstance(name, ast.Name) and name.id == FINAL_ANSWER for name in names)


def _calculates(tree: ast.Module) -> bool:
    """True if a program works with several numbers. One number is only read."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return sum(type(value) in (int, float) for value in constants) > 1
