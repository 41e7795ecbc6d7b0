"""A strategy for models of one or two billion parameters that write programs.

Such a model searches with too few words, and reads a number or a name wrongly about as often in a program as in
words, but seldom the same one. So the first search is made with the task's own words, and an answer is made twice.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from closeout.answers.boxed import find_boxes
from closeout.answers.normal_form import normalised
from closeout.dialects.functions import FINAL_ANSWER, RUN_PROGRAM, programs_of
from closeout.dialects.prompts import program_slots
from closeout.errors import LimitReached, ModelError, ToolError
from closeout.messages import Message, ModelReply, ModelRequest, Reading, Repair, Step, ToolCall
from closeout.parsing.program import parse_python
from closeout.run.strategy import ModelTurn
from closeout.tools.builtin.calculator import evaluate

__all__ = ["SmallModel"]

LONGEST = 300  # tokens of a chain of thought
IN_WORDS = """{facts}

Question: {question}

Answer from these facts only. Think step by step, briefly, and put the final answer, a bare number or name, \
within \\boxed{{}}."""
V = os.environ.get("SM", "first,words,third")


class SmallModel:
    """Search with the task first; make each answer as a program and in words; if they differ, ask a third time.

    It knows no language: it works with the texts that the task and the tools bring.
    """

    name = "small-model"
    version = "1"

    async def ask(self, turn: ModelTurn) -> Reading:
        view = turn.view
        if "first" in V and not view.steps and not view.note and (search := _search(turn)) is not None:
            return search
        reading = turn.read(await turn.send())
        facts = facts_in(view.steps)
        answer = answer_of(reading, view.steps)
        if answer is None or not facts or "words" not in V:
            return reading
        try:
            words = await _in_words(turn, facts)
            if words is None or _same(words, answer):
                return reading
            if "third" in V:
                third = await _in_words(turn, facts, temperature=0.7)
                if third is None or not _same(third, words):
                    return reading
        except (ModelError, LimitReached):
            return reading
        code = f"{FINAL_ANSWER}({_literal(words)})"
        repair = Repair("answer_in_words", "reply", answer, after=words)
        return replace(reading, calls=(ToolCall(RUN_PROGRAM, {"code": code}),), repairs=(*reading.repairs, repair))


def _search(turn: ModelTurn) -> Reading | None:
    """A program that searches with the task's own words, None without a tool to search with."""
    tool = program_slots(turn.view.tools).get("look_up")
    if not tool:
        return None
    code = f"print({tool['name']}({json.dumps(turn.task, ensure_ascii=False)}))"
    return Reading(calls=(ToolCall(RUN_PROGRAM, {"code": code}),))


def facts_in(steps: Sequence[Step]) -> str:
    """Return what the programs have printed, each line once."""
    lines = (line for step in steps for each in step.returns if each.ok for line in each.text.splitlines())
    return "\n".join(dict.fromkeys(line for line in lines if line))


async def _in_words(turn: ModelTurn, facts: str, temperature: float | None = None) -> str | None:
    """Have the model answer in words, from the facts alone. Returns what is in its last box."""
    text = IN_WORDS.format(facts=facts, question=turn.task)
    request = ModelRequest(messages=[Message(role="user", content=text)], max_tokens=LONGEST, temperature=temperature)
    return _boxed(await turn.send(request, purpose="in words"))


def _boxed(reply: ModelReply) -> str | None:
    boxes = [box for box in find_boxes(reply.text) if box.complete]
    text = boxes[-1].content.replace("\\text", "").strip(" .{}$") if boxes else ""
    return text or None


def _same(first: str, second: str) -> bool:
    return normalised(first) == normalised(second)


def _literal(words: str) -> str:
    """An answer as Python: a number if it is one, else a text."""
    try:
        return evaluate(words)
    except ToolError:
        return json.dumps(words, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------ reading programs


def answer_of(reading: Reading, steps: Sequence[Step]) -> str | None:
    """Return the answer of a program that only names values and calculates, None for any other."""
    if not programs_of([reading]):
        return None
    values: dict[str, ast.expr] = {}
    answer: str | None = None
    programs = programs_of([*steps, reading])
    for index, program in enumerate(programs, 1):
        tree = parse_python(program)
        for statement in tree.body if tree is not None else ():
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    values.pop(name, None)
                    if (known := _value(value, values)) is not None:
                        values[name] = _constant(known)
                case ast.Expr(value=ast.Call(func=ast.Name(id=called), args=[value])) if called == FINAL_ANSWER:
                    answer = _value(value, values)
                case _ if index == len(programs):
                    return None
    return answer


class _Known(ast.NodeTransformer):
    """Writes the values of names in their places."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)


def _value(written: ast.expr, values: Mapping[str, ast.expr]) -> str | None:
    """The value of an expression as text, None if it is more than a text or arithmetic."""
    known = _Known(values).visit(written)
    if isinstance(known, ast.Constant) and isinstance(known.value, str):
        return known.value
    try:
        return evaluate(ast.unparse(known))
    except (ToolError, ValueError, RecursionError):
        return None


def _constant(value: str) -> ast.expr:
    return ast.parse(_literal(value), mode="eval").body
