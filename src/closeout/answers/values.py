r"""Contracts for answers that are one value: one of several options, or a number. Both are written in `\boxed{…}`.

The forms of text are in `contracts`, those of data in `structured`; how a number is read is in `normal_form`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from closeout.answers.boxed import PLACEHOLDERS, extract_boxed, find_boxes
from closeout.answers.normal_form import (
    NumberRead,
    begins_with_magnitude,
    compatible,
    parse_number,
    plain_text,
    same_unit,
)
from closeout.answers.reading import Candidate, ContractReading, box_candidates, failed, said, shorten
from closeout.errors import UsageError
from closeout.messages import Constraint

__all__ = ["Choice", "Number"]

_ANSWER_LINE = re.compile(
    r"(?:^[ \t>*_#]{0,20}|(?<=[.!?。！？])[ \t*_]{0,8})(?:the\s)?(?:final\s|correct\s)?"
    r"(?:answer|option|choice|答案)[ *_]{0,8}(?:is\b|[:：=是为]){1,2}"
    r"[ \t*_]{0,8}([^\s*_][^\n]{0,300}?)[ \t*_]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_SHORT = 200  # characters of a reply that may be the answer and nothing else


@dataclass(frozen=True, slots=True)
class _Stated:
    """The answer that a reply states, and where: in a box, a line ("Answer: …"), as the whole reply, nowhere."""

    text: str = ""
    place: Literal["", "box", "line", "whole"] = ""
    candidates: tuple[Candidate, ...] = ()
    complete: bool = True


def _answer_in(text: str) -> _Stated:
    """Return the box, else the line that says it is the answer, else all of a short reply."""
    boxes = box_candidates(find_boxes(text), text)
    if boxes:
        return _Stated(extract_boxed(text, blacklist=()), "box", boxes, boxes[-1].complete)
    visible = said(text)
    lines = tuple(Candidate(found[1].strip(), found.start(1), found.end(1)) for found in _ANSWER_LINE.finditer(visible))
    if lines:
        return _Stated(lines[-1].text, "line", lines)
    whole = visible.strip()
    if whole and len(whole) <= _SHORT:
        return _Stated(whole, "whole", (Candidate(whole, 0, len(visible)),))
    return _Stated()


class Choice:
    """An answer that is one of several options, named by its label or by its meaning.

    The value and the text of the answer are the option (of a mapping: the label) as it is written here.

    Args:
        options: The options as texts, or labels with what they mean: `{"A": "Paris", "B": "Rome"}`.

    Raises:
        UsageError: If there are fewer than two options, or one is empty.
    """

    def __init__(self, options: Sequence[str] | Mapping[str, str]) -> None:
        meanings = dict(options) if isinstance(options, Mapping) else dict.fromkeys(options, "")
        if (
            isinstance(options, str)
            or len(meanings) < 2
            or not all(isinstance(label, str) and label.strip() for label in meanings)
        ):
            raise UsageError("Choice needs two or more different options, each a text, for example Choice(['A', 'B']).")
        self.meanings = meanings

    def __repr__(self) -> str:
        return f"Choice({list(self.meanings)!r})"

    @property
    def finish_prefix(self) -> str:
        return "\\boxed{"

    @cached_property
    def _listed(self) -> str:
        return ", ".join(f"{label} ({text})" if text else label for label, text in self.meanings.items())

    def instruction(self) -> str:
        return rf"End with your choice in \boxed{{...}}. It must be exactly one of: {self._listed}."

    def finishing(self) -> str:
        return rf"Now write only your choice, in the form \boxed{{...}}. It must be exactly one of: {self._listed}."

    def constraint(self) -> Constraint | None:
        options = " | ".join(json.dumps(label, ensure_ascii=False) for label in self.meanings)
        return Constraint("grammar", f'root ::= "\\\\boxed{{" ({options}) "}}"\n', "choice")

    def read(self, text: str) -> ContractReading[str]:
        stated = _answer_in(text)
        option = self._option(stated.text)
        if option is not None:
            return ContractReading(option, option, True, candidates=stated.candidates, complete=stated.complete)
        if stated.place != "box":
            return failed("missing", "The reply does not say which option it chooses.")
        if not stated.text or stated.text in PLACEHOLDERS:
            return failed("empty", "The answer is empty.", stated.candidates)
        problem = f"'{shorten(stated.text)}' is not one of: {shorten(self._listed, 300)}."
        return failed("violation", problem, stated.candidates)

    def _option(self, answer: str) -> str | None:
        """Return the option that an answer is, by label or meaning, or that its first label says: "B. Rome"."""
        exact = [label for label, text in self.meanings.items() if answer.strip() in (label, text or label)]
        if len(exact) == 1:
            return exact[0]
        plain = plain_text(compatible(answer))
        folded = _fold(plain)
        same = [label for label, text in self.meanings.items() if _is_option(plain, label) or _is_option(plain, text)]
        if same:
            return same[0] if len(same) == 1 else None
        for label, meaning in self.meanings.items():
            start = re.match(rf"(?:option|choice)?\s*[(\[（]?{re.escape(_fold(label))}[)\]）.:：,、](?![\d*^])", folded)
            if start is None:
                continue
            rest = folded[start.end() :].strip()
            if rest in ("", _fold(meaning)):
                return label
            others = [other for other in self.meanings if other != label]
            return label if len(label) == 1 and not meaning and not _lists(rest, others) else None
        return None


def _is_option(plain: str, option: str) -> bool:
    """Tell whether a text is an option, in other case where that says nothing: one of them has no capitals."""
    one, other = (" ".join(_unbracketed(text).split()) for text in (plain, option))
    if not other or one == other:
        return bool(other)
    return one.casefold() == other.casefold() and (one == one.casefold() or other == other.casefold())


def _unbracketed(text: str) -> str:
    text = text.strip()
    return text[1:-1].strip() if text[:1] + text[-1:] in ("()", "[]", "（）") else text


def _fold(text: str) -> str:
    """An option or an answer without case, white space and brackets around the whole of it."""
    return _unbracketed(" ".join(text.casefold().split()))


def _lists(rest: str, labels: Sequence[str]) -> bool:
    """Tell whether what follows a label names another one: "a, b", "a. paris, b. rome"."""
    joined = "|".join(re.escape(_fold(label)) for label in labels)
    return re.search(rf"(?<!\w)(?:{joined})\s*(?:[)\]）.:：,、;]|\Z)", rest) is not None


# What touches a box and may change the number in it: an operator, a digit, an exponent, a command around or behind it.
_BEFORE_BOX = re.compile(r"(?:[-+−–±∓×·÷/^_<>≤≥≠√\d%!]|\\[A-Za-z]+\s*\{|\})[\s$({\[]*\Z")
_AFTER_BOX = re.compile(
    r"[\s$)}\]]*(?:[-+−±×·÷/_<>≤≥√\d!]|\^(?!\s*\{?\s*\\circ)|\\(?!text|mathrm|q?quad|end\b|%|\$)[A-Za-z]|[²³½¼¾])"
)
_BULLET = re.compile(r"(?:\A|\n)[ \t]*(?:[-*+]|\d+[.)])[ \t]+[$*]*\Z")


def _is_changed(text: str, box: Candidate) -> bool:
    """Tell whether something touches a box that may change its number: `$-\\boxed{5}$`."""
    before, after = text[max(0, box.start - 40) : box.start], text[box.end : box.end + 40]
    if _AFTER_BOX.match(after.split("\n")[0]) or begins_with_magnitude(after):
        return True
    return _BEFORE_BOX.search(before) is not None and _BULLET.search(before) is None


@dataclass(frozen=True)
class Number:
    r"""An answer that is a number: an int where it is whole, else a float. Its text is plain digits ("1234.5").

    Reads grouped thousands, LaTeX fractions, powers of ten, full-width digits, "million" and "万" (unless the unit says
    so itself). A percent sign, degrees or a currency without a `unit` are not part of the value: `50\%` is 50. Whatever
    else touches the number is refused, because it could change the value: relations (`<5`), operators, decimal commas
    (`0,500`), words ("minus", "млн"), and units where none was asked for.

    Args:
        unit: The unit of the number. An answer may leave it out; another unit is refused.
        minimum: The least number that is accepted.
        maximum: The greatest number that is accepted.
        integer: Refuse fractions.

    Raises:
        UsageError: If `minimum` is greater than `maximum`.
    """

    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    integer: bool = False

    def __post_init__(self) -> None:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise UsageError(f"No number is from {self.minimum:g} up to {self.maximum:g}. Swap minimum and maximum.")

    @property
    def finish_prefix(self) -> str:
        return "\\boxed{"

    @property
    def _kind(self) -> str:
        return ("a whole number" if self.integer else "a number") + (f" in {self.unit}" if self.unit else "")

    def instruction(self) -> str:
        return rf"End with the final answer in \boxed{{...}}. It must be {self._kind}: only the number."

    def finishing(self) -> str:
        return rf"Now write only the final answer, {self._kind}, in the form \boxed{{...}}."

    def constraint(self) -> Constraint | None:
        fraction = "" if self.integer else ' ("." [0-9]+)?'
        return Constraint("grammar", f'root ::= "\\\\boxed{{" "-"? [0-9]+{fraction} "}}"\n', "number")

    def read(self, text: str) -> ContractReading[int | float]:
        stated = _answer_in(text)
        parsed = parse_number(stated.text, unit=self.unit)
        if stated.place == "whole" and not _STARTS_WITH_NUMBER.match(stated.text):
            parsed = None  # a sentence that mentions a number
        if stated.place == "box" and _is_changed(text, stated.candidates[-1]):
            parsed = None  # something outside the box belongs to the number
        if parsed is None and stated.place != "box":
            return failed("missing", "The reply does not give a number as its answer.")
        if not stated.text or stated.text in PLACEHOLDERS:
            return failed("empty", "The answer is empty.", stated.candidates)
        if parsed is None:
            return failed("unreadable", f"'{shorten(stated.text)}' is not {self._kind}.", stated.candidates)
        if problem := self._violation(parsed, stated.text):
            return failed("violation", problem, stated.candidates)
        value = parsed.value
        return ContractReading(value, _digits(value), True, candidates=stated.candidates, complete=stated.complete)

    def _violation(self, number: NumberRead, answer: str) -> str:
        value = number.value
        if self.unit and number.unit and not same_unit(number.unit, self.unit):
            return f"'{shorten(answer)}' is not in {self.unit}."
        if self.integer and not isinstance(value, int):
            return f"'{shorten(answer)}' is not a whole number."
        if self.minimum is not None and value < self.minimum:
            return f"{_digits(value)} is less than {_digits(self.minimum)}."
        if self.maximum is not None and value > self.maximum:
            return f"{_digits(value)} is more than {_digits(self.maximum)}."
        return ""


_STARTS_WITH_NUMBER = re.compile(r"[\s*`$\\(~≈€£¥]*(?:[dt]?frac|[-+−]?[.\d０-９])")


def _digits(value: int | float) -> str:
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)
