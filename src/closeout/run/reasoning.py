"""Have a small model reason in words: it makes an answer once more, step by step in a chat, from what was found.

Its programs leave out steps that the question does not name, and read a passage's other number. In words it does so
less often. Where the question states numbers or compares things, programs are better. See docs/design/local-model.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal

from closeout.answers.boxed import find_boxes
from closeout.dialects.code import facts_in
from closeout.dialects.prompts import Prompts
from closeout.messages import Message, ModelReply, ModelRequest, Step
from closeout.parsing.program import numbers_in
from closeout.parsing.questions import asks_for_name, asks_for_person, asks_for_year, asks_to_compare
from closeout.run.doubts import numbers_found
from closeout.run.weighing import is_number, same_value

__all__ = ["is_better_in_words", "reasoned_answer", "reasoning_request"]

LONGEST = 300  # tokens of a chain of thought; they have 170 on average
LONGEST_NAME = 60  # characters
SHORTEST_YEAR = 3  # digits
_TODAY = re.compile(r"\bcurrent (?:year|date)\b", re.IGNORECASE)
_LATEX = re.compile(r"\\(?:mathbf|mathrm|textbf)(?=\{)|\\[,;: !]|\\(?=[$%])|\$")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def is_better_in_words(question: str) -> bool:
    """Whether small models answer such a question more often rightly in words than by programs."""
    return not (asks_to_compare(question) if asks_for_name(question) else re.search(r"\d", question))


def reasoning_request(prompts: Prompts, question: str, steps: Sequence[Step]) -> ModelRequest:
    """Return the request for a chain of thought about what was found, which ends with the answer in a box."""
    text = prompts.render("reason", facts=facts_in(steps, question), question=question)
    return ModelRequest(messages=[Message(role="user", content=text)], max_tokens=LONGEST)


def reasoned_answer(reply: ModelReply, question: str, steps: Sequence[Step], instead_of: str) -> str | None:
    """Return the answer in which a chain of thought ends, as an expression: a number, or a name in quotes.

    Args:
        reply: The chain of thought.
        question: The question.
        steps: What was found.
        instead_of: What a program answered, as an expression; empty if it is not known.

    Returns:
        None if there is no answer of the kind that is asked for, or if the other one is more likely right.
    """
    if asks_for_name(question):
        name = _name_in(reply)
        is_other = _is_other(name, instead_of.strip('"'), question, facts_in(steps, question))
        return json.dumps(name, ensure_ascii=False) if is_other else None
    number = _number_in(reply)
    if number is None or (asks_for_year(question) and len(number) < SHORTEST_YEAR):
        return None
    if _TODAY.search(reply.text) and not _TODAY.search(question):
        return None  # it was not found
    is_calculated = instead_of != "" and not is_number(instead_of)
    if is_calculated and not same_value(number, instead_of) and Decimal(number) in numbers_found(steps):
        return None  # the calculation was left out
    return number


def _is_other(name: str, known: str, question: str, facts: str) -> bool:
    """Whether a name was found and says something else than a known one and than the question."""
    said, known = name.casefold(), known.casefold()
    if not 0 < len(name) <= LONGEST_NAME or said not in facts.casefold() or said in question.casefold():
        return False
    return known not in said and not (asks_for_person(question) and said in known)


def _number_in(reply: ModelReply) -> str | None:
    """The only number in the last box, which may have a unit, unless that is 0."""
    box = _box_of(reply).replace("{,}", ",")
    numbers = numbers_in(_TEXT.sub("", box)) or numbers_in(_TEXT.sub(r"\1", box))
    number = numbers[0].replace(",", "") if len(numbers) == 1 else "0"
    return number if Decimal(number) else None


def _name_in(reply: ModelReply) -> str:
    return " ".join(_TEXT.sub(r"\1", _box_of(reply)).split())


def _box_of(reply: ModelReply) -> str:
    """What is in the last box, empty if the reply ends before it is closed."""
    boxes = find_boxes(reply.text)
    if not boxes or not boxes[-1].complete:
        return ""
    return _LATEX.sub("", boxes[-1].content).strip(" .")
