"""Have a small model reason in words: it makes an answer once more, step by step in a chat, from what was found.

Its programs leave out steps that the question does not name, and read a passage's other number. In words it does so
less often. Where the question states numbers or compares things, programs are better. See docs/design/local-model.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from closeout.answers.boxed import find_boxes
from closeout.dialects.code import facts_in
from closeout.dialects.prompts import Prompts
from closeout.messages import Message, ModelReply, ModelRequest, Step
from closeout.parsing.program import numbers_in
from closeout.parsing.questions import asks_for_name, asks_for_person, asks_to_compare

__all__ = ["is_better_in_words", "reasoned_name", "reasoned_number", "reasoning_request"]

LONGEST = 300  # tokens of a chain of thought; they have 170 on average
LONGEST_NAME = 60  # characters
_LATEX = re.compile(r"\\(?:mathbf|mathrm|textbf)(?=\{)|\\[,;: !]|\\(?=[$%])|\$")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def is_better_in_words(question: str) -> bool:
    """Whether small models answer such a question more often rightly in words than by programs."""
    return not (asks_to_compare(question) if asks_for_name(question) else numbers_in(question))


def reasoning_request(prompts: Prompts, question: str, steps: Sequence[Step]) -> ModelRequest:
    """Return the request for a chain of thought about what was found, which ends with the answer in a box."""
    text = prompts.render("reason", facts=facts_in(steps, question), question=question)
    return ModelRequest(messages=[Message(role="user", content=text)], max_tokens=LONGEST)


def reasoned_number(reply: ModelReply) -> str | None:
    """Return the number in which a chain of thought ends, None if it ends in something else, in 0, or too early."""
    numbers = numbers_in(_TEXT.sub("", _answer_in(reply)).replace("{,}", ","))
    return numbers[0].replace(",", "") if len(numbers) == 1 and Decimal(numbers[0].replace(",", "")) else None


def reasoned_name(reply: ModelReply, question: str, steps: Sequence[Step], instead_of: str) -> str | None:
    """Return the name in which a chain of thought ends.

    Args:
        reply: The chain of thought.
        question: The question.
        steps: What was found.
        instead_of: The name that a program answered.

    Returns:
        None if it ends too early, if the name was not found or is in the question, or if it says the same or less.
    """
    name = " ".join(_TEXT.sub(r"\1", _answer_in(reply)).split())
    said, known = name.casefold(), instead_of.casefold()
    if not 0 < len(name) <= LONGEST_NAME or said not in facts_in(steps, question).casefold():
        return None
    if said in question.casefold() or known in said or (asks_for_person(question) and said in known):
        return None
    return name


def _answer_in(reply: ModelReply) -> str:
    boxes = find_boxes(reply.text)
    if not boxes or not boxes[-1].complete:
        return ""
    return _LATEX.sub("", boxes[-1].content).strip(" .")
