"""Doubt an answer that a small model's program gives: a number left out, a number made up, a wrong sign, an error.

Small models lose a factor of the question, or compute with a number of the worked examples. Such a program is well
formed, so nothing else finds it. A doubt may be mistaken, so each is raised once, and the same answer is accepted then.
"""

from __future__ import annotations

import ast
import builtins
import re
from calendar import day_name, month_name
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, combinations
from typing import Literal

from closeout.dialects.code import DOUBT, NO_RESULT, READ_AGAIN, failed_twice, searched_twice, was_asked_again
from closeout.dialects.functions import FINAL_ANSWER, programs_of
from closeout.messages import Step, ToolSpec
from closeout.parsing.program import numbers_in, parse_python
from closeout.parsing.questions import (
    ROLES,
    asks_for_name,
    asks_for_person,
    asks_for_year,
    asks_to_compare,
    described_things,
    rates_in,
)
from closeout.run.programs import NOTHING_PRINTED
from closeout.run.review import review_answer

__all__ = [
    "doubt",
    "has_doubtful_numbers",
    "must_correct",
    "must_look_up",
    "must_use",
    "not_looked_up",
    "numbers_found",
    "query_without_result",
    "read_again",
]

LOOK_UP = "is in no result. Look it up."
PLACE = "is a place. Look it up."
USE = "The program must use it."
NOTHING_FOUND = "It uses no number that was found."
NO_REMAINDER = f"0 {LOOK_UP}"
NEGATIVE = "It is negative. Turn the difference around."
OLDER = "What is older has the smaller year."
NEWER = "What is newer has the larger year."
SMALLER = "The question asks for the smallest number."
LARGER = "The question asks for the largest number."
MOST_DOUBTS = 3  # of an answer, before the facts are read again and after it
MOST_NUMBERS = 6  # in a question: of more, some are usually not meant to be used
LONGEST_CHAIN = 3  # turns; in a later one, what the question describes is no longer looked up
MOST_DESCRIBED = 3  # names of what the question describes that one program must search for
MOST_NAMES = 8  # that a query may begin with
LONGEST = 60  # characters of a result that may be an answer
MOST_EMPTY = 2  # searches that find nothing, before an answer may be given
SMALL = 2  # larger numbers must come from somewhere
WORDS = ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")  # numbers from 3
UNITS = frozenset(map(Decimal, (7, 12, 24, 30, 31, 52, 60, 100, 360, 365, 366, 1_000, 3_600, 1_000_000)))

_WANTS_NUMBER = re.compile(r"how (?:many|much|old|tall|long|high|deep|far|heavy)\b", re.IGNORECASE)
_OLD = re.compile(
    r"\b(?:old(?:er|est)|earl(?:ier|iest)|first|longe(?:r|st) history"
    r"|(?:been|exist|open|stood)\w* .{0,30}\blonge(?:r|st))\b",
    re.IGNORECASE,
)
_NEW = re.compile(r"\b(?:young(?:er|est)|new(?:er|est)|lat(?:er|est)|last|most recent(?:ly)?)\b", re.IGNORECASE)
_OF_TIME = re.compile(r"\b(?:age|long(?:er|est)?|old(?:er|est)?|when|years?|young(?:er|est)?)\b", re.IGNORECASE)
_DESCRIBING = re.compile(r"\bin (1\d{3}|20\d{2})\b", re.IGNORECASE)
_MORE = re.compile(
    r"\b(?:more|most|(?:bigg|dear|deep|great|heavi|high|larg|long|tall|wid)(?:er|est)|(?:far|fur)the(?:r|st))\b"
)
_LESS = re.compile(r"\b(?:less|least|few(?:er|est)|(?:cheap|light|low|narrow|short|small|thinn)(?:er|est))\b")
_FUTILE = (NOTHING_FOUND, NO_REMAINDER)  # of an answer made from the facts: the first answer is more likely right
_NO_TOOLS = frozenset({FINAL_ANSWER, *dir(builtins)})
_PLACES = frozenset(("birthplace", "city", "hometown", "island", "place", "town", "village"))
_SCHOOLS = frozenset(("academy", "college", "school", "university"))
_NATIVE = frozenset(("born", "native"))
_SENTENCE = re.compile(r"(?<=[.!?;])\s")
_DATES = frozenset((*month_name, *day_name))
_AT_PLACE = ("at", "from", "in", "near")
_SUBJECT = 4  # words of a passage: a name there is what it is about
_NEAR = 3  # words before or after a name that say what it is
_NEARBY = 60  # characters before or after it in which they are
_BORN = re.compile(r"\b(?:born|birthplace|hometown|(?:home|native) (?:city|island|town|village))\b")
_NAME = re.compile(r"\b[A-Z][\w-]+(?: [A-Z][\w-]+)*")
_MISSING = re.compile(rf"{DOUBT}(.+) (?:{re.escape(LOOK_UP)}|{re.escape(PLACE)})")
_NUMBER_MISSING = re.compile(rf"[\d.]+ {re.escape(LOOK_UP)}")
_NAME_AS_NUMBER = re.compile(
    r"TypeError: unsupported operand .*'str'|invalid literal for int\(\)|could not convert string to float"
)
_LEFT_OUT = re.compile(rf"{DOUBT}The question says ([\d.]+)\. {re.escape(USE)}")
_COUNTED = re.compile(r"\b(\d{1,9}) ([a-z]{2,30})\b", re.ASCII)  # a number and what it counts
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
    last = next((index for index, step in enumerate(steps) if was_asked_again(step)), -1) + 1
    doubted = [step for step in steps[max(last - 1, 0) :] if DOUBT in _text_of(step)]
    if program in programs_of(doubted):  # it is given again
        return None
    told = [_text_of(step) for step in steps[last:]]
    if sum(DOUBT in text for text in told) >= MOST_DOUBTS:
        return None
    found = list(_doubts(program, answer, question, steps, steps[last:])) if weak else []
    if steps and review_answer(answer, steps[-1].returns) is not None:
        found = ["It is the error of a tool or program."]
    problem = next((each for each in found if not any(each in text for text in told)), None)
    if problem and _NUMBER_MISSING.match(problem) and not last and _searches_with_success(steps) > 1:
        problem = READ_AGAIN  # all may have been found
    if problem is None or (last and problem in _FUTILE):  # an attempt to read the facts has failed
        return problem
    return f"{DOUBT}{problem}"


def has_doubtful_numbers(calculated: str, question: str, steps: Sequence[Step]) -> bool:
    """Whether a calculation lacks a number of the question that no query has either, or has one that was not found.

    A calculation that only repeats a number of the question counts as such a one.
    """
    asked = _numbers_of(question, steps)
    stated, _ = _literals(calculated)
    if _ANY_NUMBER.fullmatch(calculated) and _value(calculated) in _values([question]):
        return True
    doubtful = chain(_left_out(asked, set(stated), _texts_in(steps)), _made_up(stated, "", asked, question, steps))
    return next(doubtful, None) is not None


def read_again(answer: str, question: str, steps: Sequence[Step], tools: Sequence[ToolSpec]) -> str | None:
    """Return what asks a small model to make its answer once more, from what was found and the question alone.

    What it makes so is right more often: its plan is not between what was found and the answer.

    Returns:
        None if nothing was found, if the answer is one of the names that are compared, or if this answer or an earlier
        one was made so.
    """
    if asks_to_compare(question) and not _ANY_NUMBER.fullmatch(answer.strip()):
        return None
    made_from_facts = searched_twice(steps, tools) or failed_twice(steps) or any(map(was_asked_again, steps))
    if made_from_facts or not _searches_with_success(steps):
        return None
    return f"{DOUBT}{READ_AGAIN}"


def _searches_with_success(steps: Sequence[Step]) -> int:
    """How many steps have found something that was not found before."""
    known: set[str] = set()
    count = 0
    for step in steps:
        texts = (result.text for result in step.returns if result.ok and not result.text.startswith(NO_RESULT))
        lines = {line for text in texts for line in text.splitlines()}
        count += not lines <= known
        known |= lines
    return count


def must_correct(steps: Sequence[Step]) -> Literal["size", "least", "most"] | None:
    """Return what the next program makes if the last answer was doubted for a fault that it can mend at once."""
    failed = _last_errors(steps)
    forms: dict[str, Literal["size", "least", "most"]] = {
        NEGATIVE: "size",
        OLDER: "least",
        NEWER: "most",
        SMALLER: "least",
        LARGER: "most",
    }
    return next((form for fault, form in forms.items() if fault in failed), None)


def must_use(question: str, steps: Sequence[Step]) -> str | None:
    """Return the number that the next program must calculate with, because the last answer left it out."""
    failed = _last_errors(steps)
    number = _LEFT_OUT.search(failed)
    if number is None or asks_for_name(question) or _value(number[1]) in numbers_found(steps):  # it may only describe
        return None
    return number[1]


def must_look_up(question: str, steps: Sequence[Step]) -> tuple[str, ...] | None:
    """Return how the queries of the next program have to begin; empty if in any way.

    Returns:
        None if the next program need not search: nothing is missing in the results.
    """
    if steps and _text_of(steps[-1]).strip() == NOTHING_PRINTED:
        return ()
    if 0 < len(steps) <= MOST_EMPTY and all(_text_of(step).startswith(NO_RESULT) for step in steps):
        return ("",)  # other words may find something
    if steps and steps[-1].succeeded:
        if len(steps) > LONGEST_CHAIN:
            return None
        return (tuple(_unmentioned(question, steps)) or _described(question, steps))[:MOST_DESCRIBED] or None
    failed = _last_errors(steps)
    if NOTHING_FOUND in failed:
        return not_looked_up(question, steps) or None
    if _NAME_AS_NUMBER.search(failed):
        stated = [name for text in _texts_in(steps[-1:]) for name in _NAME.findall(text)]
        searched = " ".join(_texts_in(steps[:-1]))
        return tuple(name for name in dict.fromkeys(stated) if name not in searched)[:MOST_NAMES] or None
    missing = _MISSING.search(failed)
    if missing is None:
        return None
    if not _ANY_NUMBER.fullmatch(missing[1]):
        return (missing[1],)
    return not_looked_up(question, steps)


def query_without_result(steps: Sequence[Step]) -> str | None:
    """Return the query of the only search so far if it found nothing: other words may."""
    queries = _texts_in(steps)
    return queries[0] if len(steps) == len(queries) == 1 and _text_of(steps[0]).startswith(NO_RESULT) else None


def not_looked_up(question: str, steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the names in what was found that were not searched for: other documents may say more about them."""
    searched = " ".join([question, *_texts_in(steps)]).casefold()
    lines = (line for step in steps if step.succeeded for line in _lines_of(step))
    names = dict.fromkeys(name for line in lines for name in _names_in(line))
    return tuple(name for name in names if name.casefold() not in searched)[:MOST_NAMES]


def _last_errors(steps: Sequence[Step]) -> str:
    return "\n".join(result.text for result in steps[-1].returns if not result.ok) if steps else ""


def _text_of(step: Step) -> str:
    return "\n".join(result.text for result in step.returns)


def _lines_of(step: Step) -> list[str]:
    """The lines of a step's results, without those of a search that found nothing: they name other documents."""
    return [line for line in _text_of(step).splitlines() if not line.startswith(NO_RESULT)]


def _doubts(program: str, answer: str, question: str, steps: Sequence[Step], tried: Sequence[Step]) -> Iterator[str]:
    """Find what is doubtful. `tried` are the steps in which this answer was made."""
    results = [_text_of(step) for step in steps]
    asked = _numbers_of(question, steps)
    stated, texts = _literals(program)
    numbers = set(stated).union(*(_literals(earlier)[0] for earlier in programs_of(tried)))
    is_number = re.fullmatch(r"-?[\d.,]+", answer.strip()) is not None
    is_closed = not _calls_of_tools(program)  # what tools return is not known here
    # An answer at once may be that of a problem in words, but then it needs only the problem's numbers.
    if is_closed and (steps or not numbers <= {*asked, *_written_out([question])}):
        yield from (f"{name} {LOOK_UP}" for name in _unmentioned(question, steps))
    if is_number or not asks_for_name(question) or asks_to_compare(question):  # another name may be found by a number
        yield from _left_out(asked, numbers, [*texts, *_texts_in(steps)])
    yield from _made_up(stated, answer, asked, question, steps)
    if asks_for_name(question) and (is_number or answer.strip() in ("yes", "no")):
        yield "The question asks for a name."
    if is_closed and is_number and numbers <= {*asked, *range(SMALL + 1)} and numbers_found(steps):
        yield NOTHING_FOUND
    if not numbers and re.search(r"\b(min|max|sorted)\(", program):
        yield "It compares names. State the number that was found for each name, and compare the numbers."
    yield from _wrong_end(program, numbers, question)
    if is_closed and asks_for_person(question) and _is_place(answer.strip(), results):
        yield f"{answer.strip()} {PLACE}"
    if _WANTS_NUMBER.search(question) and not re.search(r"\d", answer) and not _written_out([answer]):
        yield "The question asks for a number."
    if asks_for_year(question) and not re.search(r"\d{3}", answer):
        yield "The question asks for a year."
    if len(answer) > LONGEST and any(" ".join(answer.split()) in " ".join(result.split()) for result in results):
        yield "It is a whole passage. Give only the name or number that is asked for."
    if re.match(r"-\d", answer.strip()):
        yield NEGATIVE


def _numbers_of(question: str, steps: Sequence[Step]) -> list[Decimal]:
    """The numbers of a question, without those that only describe.

    These are years, as in "the picture that was bought in 1988", and numbers of the same things in a result, as in "the
    machine that takes 14 seconds".
    """
    described = set() if _OF_TIME.search(question) else set(_DESCRIBING.findall(question))
    found = {each for step in steps if step.succeeded for line in _lines_of(step) for each in _COUNTED.findall(line)}
    described.update(number for number, thing in _COUNTED.findall(question) if (number, thing) in found)
    return [_value(number) for number in numbers_in(question) if number not in described]


def _left_out(asked: Sequence[Decimal], numbers: set[Decimal], texts: Sequence[str]) -> Iterator[str]:
    """A number of the question that neither a program nor a query uses."""
    shares = {share for number in numbers for share in (number * 100, 100 - number * 100)}  # 5 %: 0.05, 0.95
    used = numbers | shares | set(_values(texts))
    unused = [number for number in asked if number not in used]
    if unused and len(asked) <= MOST_NUMBERS:
        yield f"The question says {unused[0]:f}. {USE}"


def _made_up(
    stated: Sequence[Decimal], answer: str, asked: Sequence[Decimal], question: str, steps: Sequence[Step]
) -> Iterator[str]:
    """Numbers that were not found, or not as often as the program states them."""
    given = {*_values([question]), *_written_out([question, *map(_text_of, steps)]), *UNITS}
    found = Counter(numbers_found(steps))
    rates = _values(rates_in("\n".join(map(_text_of, steps)), question))
    known = {*given, *rates, *found, *map(sum, combinations(asked[:MOST_NUMBERS], 2))}
    yield from (
        f"{number:f} {LOOK_UP}"
        for number in sorted(set(stated))
        if number > SMALL and number not in known and number * 100 not in known
    )
    for number, count in Counter(stated).items():
        if number > SMALL and number not in given and 0 < found[number] < count:
            yield f"{number:f} is used more often than it was found."
    if answer.strip() == "0" and 0 not in known:
        yield NO_REMAINDER


def _wrong_end(program: str, numbers: set[Decimal], question: str) -> Iterator[str]:
    """The largest of several numbers is taken for the smallest, or the largest year for the oldest."""
    if not asks_to_compare(question):
        return
    old, new = _OLD.search(question), _NEW.search(question)
    if all(1_000 <= number < 2_100 for number in numbers):
        forms = ((old, new, "max(", OLDER), (new, old, "min(", NEWER))
    elif old or new:
        return
    else:
        more, less = _MORE.search(question), _LESS.search(question)
        forms = ((less, more, "max(", SMALLER), (more, less, "min(", LARGER))
    for asked, other, wrong, told in forms:
        if asked and not other and wrong in program:
            yield told


def _unmentioned(question: str, steps: Sequence[Step]) -> Iterator[str]:
    """Names in the question that no query and no result has."""
    said = " ".join([*chain.from_iterable(map(_lines_of, steps)), *_texts_in(steps)]).casefold()
    return (name for name in _names_in(question) if name.casefold() not in said)


def _described(question: str, steps: Sequence[Step]) -> tuple[str, ...]:
    """Names in the last results that nobody searched for, of what the question describes instead of naming it.

    "The hotel where the picture hangs" may be the Hotel Orm, and what is asked for is in a document about that. In "the
    town in which the founder was born", the founder comes first. If no name is known to be of such a kind, and only
    things that the question names have been found, all names count.
    """
    kinds = described_things(question)
    if not kinds:
        return ()
    lines = [line for step in steps if step.succeeded for line in _lines_of(step)]
    subjects = [" ".join(line.split()[:_SUBJECT]) for line in lines]
    known = " ".join([question, *_texts_in(steps), *subjects]).casefold()
    found = {}
    for line in _lines_of(steps[-1]):
        for name in _NAME.finditer(line):
            before = _SENTENCE.split(line[max(name.start() - _NEARBY, 0) : name.start()])[-1].split()[-_NEAR:]
            after = _SENTENCE.split(line[name.end() : name.end() + _NEARBY])[0].split()[:_NEAR]
            is_name = before or " " in name[0]  # no other word that begins a sentence
            if is_name and name[0].casefold() not in known and name[0] not in _DATES:
                found[name[0]] = [[word.strip(",.;") for word in words] for words in (before, after)]
    if named := next(filter(None, _of_kinds(kinds, found, question)), None):
        return tuple(named)
    text = " ".join(lines).casefold()
    if any(re.search(rf"\b{kind}", text) for kind in kinds) or not all(_is_about(question, each) for each in subjects):
        return ()
    return tuple(name for name in dict.fromkeys(chain.from_iterable(map(_names_in, lines))) if name in found)


def _of_kinds(kinds: set[str], found: Mapping[str, Sequence[Sequence[str]]], question: str) -> Iterator[list[str]]:
    """Names of these kinds, by the words before and after each: the surest first."""
    roles = kinds.intersection(ROLES)
    # "The owner is Ada Rehn", "Ada Rehn is the owner"; then "designed by Ada Rehn".
    yield [name for name, (before, after) in found.items() if not roles.isdisjoint([*before, *after])]
    if roles:
        yield [name for name, (before, _) in found.items() if "by" in before]
    if kinds & _PLACES and _BORN.search(question):
        yield [name for name, (before, _) in found.items() if not _NATIVE.isdisjoint(before)]
    yield [name for name, (before, _) in found.items() if any(_is_a(kind, name, before) for kind in kinds - roles)]


def _is_about(question: str, subject: str) -> bool:
    """Whether the beginning of a passage has a name of the question."""
    names = (name[0].removeprefix("The ") for name in _NAME.finditer(subject))
    return any(name != "The" and name in question for name in names)


def _is_a(kind: str, name: str, before: Sequence[str]) -> bool:
    """Whether a name is of this kind, by its own words and those before it: "Hotel Orm", "windmill Orm" for a mill."""
    if kind in _SCHOOLS and "at" in before:
        return True
    last = before[-1] if before else ""
    if last == "of" and before[-2:-1] == [kind]:  # "the tower of Orm"
        return True
    if kind in _PLACES and last in _AT_PLACE:
        return True
    if kind == "island" and last == "on":
        return True
    words = [last, *name.casefold().split()]
    return any(word.endswith(kind) or (len(word) > 4 and kind.startswith(word)) for word in words)


def _is_place(name: str, texts: Sequence[str]) -> bool:
    """Whether the texts have a name, and each time after "in", "at" or "on"."""
    found = [
        match[1]
        for text in texts
        for match in re.finditer(rf"(?:\b(in|at|on)\s+(?:the\s+)?)?\b{re.escape(name)}\b", text)
    ]
    return bool(name and found) and all(found)


def _written_out(texts: Iterable[str]) -> set[Decimal]:
    """The numbers from 3 to 12 that are written as words."""
    words = set(re.findall(r"[a-z]+", " ".join(texts).casefold()))
    return {Decimal(3 + index) for index, word in enumerate(WORDS) if word in words}


def numbers_found(steps: Sequence[Step]) -> list[Decimal]:
    """Return the numbers in what was found. A line that was found twice counts once."""
    texts = [result.text for step in steps for result in step.returns if result.ok]
    return list(_values(dict.fromkeys(line for text in texts for line in text.splitlines())))


def _calls_of_tools(program: str) -> int:
    tree = parse_python(program)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    return sum(isinstance(each, ast.Name) and each.id not in _NO_TOOLS for each in called)


def _texts_in(steps: Sequence[Step]) -> list[str]:
    """The texts that the programs state: queries, names."""
    return [text for program in programs_of(steps) for text in _literals(program)[1]]


def _names_in(text: str) -> Iterator[str]:
    """Names of people, places and things: words in capital letters that do not begin a sentence."""
    for name in _NAME.finditer(text):
        before = text[max(name.start() - 2, 0) : name.start()]
        begins = not before.strip() or before.strip()[-1] in ".?!:" or "\n" in before
        words = name[0].split()[1:] if begins else [name[0]]
        if words:
            yield " ".join(words)


def _literals(program: str) -> tuple[list[Decimal], list[str]]:
    """The numbers and the texts that a program states. Comments do not count."""
    tree = parse_python(program)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)] if tree is not None else []
    numbers = [Decimal(each if type(each) is int else repr(each)) for each in constants if type(each) in (int, float)]
    return [each for each in numbers if each.is_finite()], [each for each in constants if isinstance(each, str)]


def _values(texts: Iterable[str]) -> Iterator[Decimal]:
    return (_value(match) for text in texts for match in _ANY_NUMBER.findall(text))


def _value(written: str) -> Decimal:
    return Decimal(written.replace(",", ""))
