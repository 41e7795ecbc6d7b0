"""Doubt an answer that a small model's program gives: a number left out, a number made up, a wrong sign, an error.

Small models lose a factor of the question, or compute with a number of the worked examples. Such a program is well
formed, so nothing else finds it. A doubt may be mistaken, so each is raised once, and the same answer is accepted then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from closeout.messages import Step
from closeout.parsing.program import numbers_in, parse_python
from closeout.run.review import review_answer

__all__ = ["doubt", "must_look_up"]

DOUBT = "Check the answer. "
LOOK_UP = "is in no result. Look it up."
MOST_DOUBTS = 3  # in an attempt
MOST_NUMBERS = 6  # in a question: of more, some are usually not meant to be used
LONGEST = 60  # characters of a result that may be an answer
SMALL = 2  # larger numbers must come from somewhere
WORDS = ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")  # numbers from 3
UNITS = frozenset(map(Decimal, (7, 12, 24, 30, 31, 52, 60, 100, 360, 365, 366, 1_000, 3_600, 1_000_000)))

_WANTS_NAME = re.compile(
    r"(?:who|whose|where)\b|which\s+(?!year|number|day|date|month|century|page|hour|time|floor|room|platform|line|age|price)",
    re.IGNORECASE,
)
_ANY_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?", re.ASCII)


def doubt(program: str, answer: str, question: str, steps: Sequence[Step], *, weak: bool) -> str | None:
    """Return what is doubtful about the answer of a program, for the model.

    Args:
        program: The program that gave the answer.
        answer: The answer, without the form of its contract.
        question: The task.
        steps: What the attempt has done so far.
        weak: Whether the model is small. Of other models, only an answer that is a tool's error is doubted.

    Returns:
        None if nothing is doubtful that was not doubted before.
    """
    results = [result.text for step in steps for result in step.returns]
    if sum(DOUBT in text for text in results) >= MOST_DOUBTS:
        return None
    found = list(_doubts(program, answer, question, steps, results)) if weak else []
    if steps and review_answer(answer, steps[-1].returns) is not None:
        found = ["It is the error of a tool or program."]
    return next((f"{DOUBT}{each}" for each in found if not any(each in text for text in results)), None)


def must_look_up(steps: Sequence[Step]) -> bool:
    """Whether the next program has to search: the last answer had a number that nothing was found about."""
    failed = [result.text for result in steps[-1].returns if not result.ok] if steps else []
    return any(DOUBT in text and LOOK_UP in text for text in failed)


def _doubts(program: str, answer: str, question: str, steps: Sequence[Step], results: list[str]) -> Iterator[str]:
    asked = [_value(number) for number in numbers_in(question)]
    last_numbers, last_texts = _literals(program)
    numbers, texts = set(last_numbers), last_texts
    for step in steps:
        for call in step.calls:
            code = call.arguments.get("code") if not isinstance(call.arguments, str) else None
            if isinstance(code, str):
                more_numbers, more_texts = _literals(code)
                numbers |= more_numbers
                texts += more_texts
    used = numbers | {number * 100 for number in numbers} | set(_values(texts))  # 5 % may be written 0.05
    unused = [number for number in asked if number not in used]
    if unused and len(asked) <= MOST_NUMBERS:
        yield f"The question says {unused[0]:f}. The program must use it."
    words = set(re.findall(r"[a-z]+", " ".join([question, *results]).casefold()))
    known = {Decimal(3 + index) for index, word in enumerate(WORDS) if word in words}
    known |= {*asked, *_values([question, *results]), *UNITS}
    for number in sorted(last_numbers):
        if number > SMALL and number not in known and number * 100 not in known:
            yield f"{number:f} {LOOK_UP}"
    if not numbers and re.search(r"\b(min|max|sorted)\(", program):
        yield "It compares names. State the number that was found for each name, and compare the numbers."
    if _WANTS_NAME.match(question) and re.fullmatch(r"-?[\d.,]+|yes|no", answer.strip()):
        yield "The question asks for a name."
    if len(answer) > LONGEST and any(" ".join(answer.split()) in " ".join(text.split()) for text in results):
        yield "It is a whole passage. Give only the name or number that is asked for."
    if re.match(r"-\d", answer.strip()):
        yield "It is negative. Turn the difference around."


def _literals(program: str) -> tuple[set[Decimal], list[str]]:
    """The numbers and the texts that a program states. Comments do not count."""
    tree = parse_python(program)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)] if tree is not None else []
    numbers = {Decimal(repr(each)) for each in constants if type(each) in (int, float)}
    return {each for each in numbers if each.is_finite()}, [each for each in constants if isinstance(each, str)]


def _values(texts: Iterable[str]) -> Iterator[Decimal]:
    return (_value(match) for text in texts for match in _ANY_NUMBER.findall(text))


def _value(written: str) -> Decimal:
    return Decimal(written.replace(",", ""))
