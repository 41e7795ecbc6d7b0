"""Doubt an answer that a small model's program gives: a number left out, a number made up, a wrong sign, an error.

Small models lose a factor of the question, or compute with a number of the worked examples. Such a program is well
formed, so nothing else finds it. A doubt may be mistaken, so each is raised once, and the same answer is accepted then.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from closeout.dialects.code import DOUBT, READ_AGAIN, searched_twice
from closeout.dialects.functions import FINAL_ANSWER, programs_in
from closeout.messages import Step, ToolSpec
from closeout.parsing.program import numbers_in, parse_python
from closeout.run.review import review_answer

__all__ = ["asks_for_name", "asks_to_compare", "doubt", "must_look_up", "read_again"]

LOOK_UP = "is in no result. Look it up."
MOST_DOUBTS = 3  # of an answer, before the facts are read again and after it
MOST_NUMBERS = 6  # in a question: of more, some are usually not meant to be used
MOST_NAMES = 8  # that a query may begin with
LONGEST = 60  # characters of a result that may be an answer
SMALL = 2  # larger numbers must come from somewhere
WORDS = ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")  # numbers from 3
UNITS = frozenset(map(Decimal, (7, 12, 24, 30, 31, 52, 60, 100, 360, 365, 366, 1_000, 3_600, 1_000_000)))

_WANTS_NAME = re.compile(
    r"(?:who|whose|where)\b|which\s+(?!year|number|day|date|month|century|page|hour|time|floor|room|platform|line|age|price)",
    re.IGNORECASE,
)
_COMPARES = re.compile(r"\b(?:or|most|least|first|last|second|neither)\b|\w{2}est\b", re.IGNORECASE)
_NO_TOOLS = frozenset({FINAL_ANSWER, *dir(builtins)})
_NAME = re.compile(r"\b[A-Z][\w-]+(?: [A-Z][\w-]+)*")
_MISSING = re.compile(rf"{DOUBT}(.+) {re.escape(LOOK_UP)}")
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
    last = next((index for index, step in enumerate(steps) if READ_AGAIN in _text_of(step)), -1) + 1
    told = [_text_of(step) for step in steps[last:]]
    if sum(DOUBT in text for text in told) >= MOST_DOUBTS:
        return None
    found = list(_doubts(program, answer, question, steps, steps[last:])) if weak else []
    if steps and review_answer(answer, steps[-1].returns) is not None:
        found = ["It is the error of a tool or program."]
    return next((f"{DOUBT}{each}" for each in found if not any(each in text for text in told)), None)


def asks_for_name(question: str) -> bool:
    """Whether the answer is the name of a person, place or thing."""
    return _WANTS_NAME.match(question) is not None


def asks_to_compare(question: str) -> bool:
    """Whether the answer is one of several names, chosen by a number: "Which is older, …?", "Which is the oldest?"."""
    return asks_for_name(question) and _COMPARES.search(question) is not None


def read_again(steps: Sequence[Step], tools: Sequence[ToolSpec]) -> str | None:
    """Return what asks a small model to make its answer once more, from what was found and the question alone.

    What it makes so is right more often: its plan is not between what was found and the answer.

    Returns:
        None if nothing was found, if the last of several programs found it, or if an answer has been made so before.
    """
    found = [step for step in steps if step.returns and all(each.ok for each in step.returns)]
    if len(found) != 1 or searched_twice(steps, tools) or any(READ_AGAIN in _text_of(step) for step in steps):
        return None
    return f"{DOUBT}{READ_AGAIN}"


def must_look_up(question: str, steps: Sequence[Step]) -> tuple[str, ...] | None:
    """Return how the query of the next program has to begin; empty if in any way.

    Returns:
        None if the next program need not search: nothing is missing in the results.
    """
    failed = [result.text for result in steps[-1].returns if not result.ok] if steps else []
    missing = _MISSING.search("\n".join(failed))
    if missing is None:
        return None
    if not _ANY_NUMBER.fullmatch(missing[1]):
        return (missing[1],)
    # What is known about the number's subject is in another document: one that is named in what was found.
    searched = " ".join([question, *_texts_in(steps)]).casefold()
    found = [_text_of(step) for step in steps if all(result.ok for result in step.returns)]
    names = dict.fromkeys(name for text in found for name in _names_in(text))
    return tuple(name for name in names if name.casefold() not in searched)[:MOST_NAMES]


def _text_of(step: Step) -> str:
    return "\n".join(result.text for result in step.returns)


def _doubts(program: str, answer: str, question: str, steps: Sequence[Step], tried: Sequence[Step]) -> Iterator[str]:
    """Find what is doubtful. `tried` are the steps in which this answer was made."""
    results = [_text_of(step) for step in steps]
    if steps and not _calls_tools(program):  # what they return is not known here
        said = " ".join([*results, *_texts_in(steps)]).casefold()
        yield from (f"{name} {LOOK_UP}" for name in _names_in(question) if name.casefold() not in said)
    asked = [_value(number) for number in numbers_in(question)]
    last_numbers, texts = _literals(program)
    numbers = last_numbers.union(*(_literals(earlier)[0] for earlier in _programs_in(tried)))
    texts = [*texts, *_texts_in(steps)]
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
    if asks_for_name(question) and re.fullmatch(r"-?[\d.,]+|yes|no", answer.strip()):
        yield "The question asks for a name."
    if len(answer) > LONGEST and any(" ".join(answer.split()) in " ".join(text.split()) for text in results):
        yield "It is a whole passage. Give only the name or number that is asked for."
    if re.match(r"-\d", answer.strip()):
        yield "It is negative. Turn the difference around."


def _calls_tools(program: str) -> bool:
    tree = parse_python(program)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    return any(isinstance(each, ast.Name) and each.id not in _NO_TOOLS for each in called)


def _programs_in(steps: Sequence[Step]) -> list[str]:
    return [program for step in steps for program in programs_in(step.calls)]


def _texts_in(steps: Sequence[Step]) -> list[str]:
    """The texts that the programs state: queries, names."""
    return [text for program in _programs_in(steps) for text in _literals(program)[1]]


def _names_in(text: str) -> Iterator[str]:
    """Names of people, places and things: words in capital letters that do not begin a sentence."""
    for name in _NAME.finditer(text):
        before = text[max(name.start() - 2, 0) : name.start()]
        begins = not before.strip() or before.strip()[-1] in ".?!:" or "\n" in before
        words = name[0].split()[1:] if begins else [name[0]]
        if words:
            yield " ".join(words)


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
