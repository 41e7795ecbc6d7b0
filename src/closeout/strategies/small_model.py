"""A strategy for models of one or two billion parameters that write programs.

Such a model searches with too few words, and what it only reads it reads better in words than in a program. So the
task's own words are searched for as well, and an answer that needs no calculation is made again in words.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace

from closeout.answers.boxed import find_boxes
from closeout.dialects.functions import FINAL_ANSWER, RUN_PROGRAM, programs_in
from closeout.dialects.prompts import program_slots
from closeout.errors import LimitReached, ModelError
from closeout.messages import Constraint, Message, ModelReply, ModelRequest, Reading, Repair, Step, ToolCall
from closeout.parsing.program import parse_python
from closeout.run.strategy import ModelTurn

__all__ = ["SmallModel"]

LONGEST = 300  # tokens of a chain of thought
IN_WORDS = """{facts}

Question: {question}

Answer from these facts only. Think step by step, briefly, and put the final answer, a bare number or name, \
within \\boxed{{}}."""

ONE_LINE = r"""
root ::= "```python\n" "final_answer(" [^`\\\n]{1,200} "\n" "```" ("\n" "\n"?)?
"""


class SmallModel:
    """Search for the task's own words too, and make answers that need no calculation in words.

    It looks at the form of programs only, so it works the same in every language. Use it with the dialect `code`; in
    any other it asks once.
    """

    name = "small-model"
    version = "1"

    async def ask(self, turn: ModelTurn) -> Reading:
        reading = turn.read(await turn.send())
        programs = programs_in(reading.calls)
        if not programs:
            return reading
        tree = parse_python(programs[-1])
        if tree is None:
            return reading
        steps = turn.view.steps
        if not _answers(tree):
            return reading if steps else _with_search(reading, programs[-1], turn)
        if _calculates(tree) or not (facts := facts_in(steps)):
            return reading
        return await _from_facts(reading, facts, turn)


def _with_search(reading: Reading, program: str, turn: ModelTurn) -> Reading:
    """The first program, preceded by a search for the task's own words."""
    tool = program_slots(turn.view.tools).get("look_up")
    if not tool or f"{tool['name']}(" not in program:
        return reading
    search = f"print({tool['name']}({json.dumps(turn.task, ensure_ascii=False)}))"
    return _instead(reading, f"{search}\n{program}", Repair("task_searched", "reply", after=search))


async def _from_facts(reading: Reading, facts: str, turn: ModelTurn) -> Reading:
    """The reading with an answer made from the facts alone: in words, or if those lead to none, in one line."""
    text = IN_WORDS.format(facts=facts, question=turn.task)
    in_words = ModelRequest(messages=[Message(role="user", content=text)], max_tokens=LONGEST)
    try:
        answer = _boxed(await turn.send(in_words, purpose="in words"))
        if answer:
            written = f"{FINAL_ANSWER}({json.dumps(answer, ensure_ascii=False)})"
            return _instead(
                reading, written, Repair("answer_in_words", "reply", programs_in(reading.calls)[-1], after=written)
            )
        prompt, can = turn.request.prompt, turn.capabilities
        if prompt is None or not can.grammar:
            return reading
        prompt = f"{prompt[: turn.request.shared]}Facts:\n{facts}\n\nQuestion: {turn.task}\n"
        one_line = ModelRequest(prompt=prompt, constraint=Constraint("grammar", ONE_LINE, "answer"))
        found = turn.read(await turn.send(one_line, purpose="in one line"))
    except (ModelError, LimitReached):
        return reading
    return found if found.calls else reading


def _instead(reading: Reading, program: str, change: Repair) -> Reading:
    call = ToolCall(RUN_PROGRAM, {"code": program})
    return replace(reading, calls=(call,), repairs=(*reading.repairs, change))


def facts_in(steps: Sequence[Step]) -> str:
    """Return what the programs have printed, each line once."""
    lines = (line for step in steps for each in step.returns if each.ok for line in each.text.splitlines())
    return "\n".join(dict.fromkeys(line for line in lines if line))


def _boxed(reply: ModelReply) -> str:
    """The content of a reply's last box."""
    boxes = [box.content for box in find_boxes(reply.text) if box.complete]
    return boxes[-1].replace("\\text{", "").strip(" .{}$\\") if boxes else ""


def _answers(tree: ast.Module) -> bool:
    return any(isinstance(each, ast.Call) and _name(each) == FINAL_ANSWER for each in ast.walk(tree))


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _calculates(tree: ast.Module) -> bool:
    """True if a program works with several numbers. One number is only read."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return sum(type(value) in (int, float) for value in constants) > 1
