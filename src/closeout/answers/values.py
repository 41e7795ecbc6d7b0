r"""Contracts for answers that are one value: one of given options, or a number. Both are written in `\boxed{…}`.

The forms of text are in `contracts`, those of data in `structured`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from closeout.answers.boxed import PLACEHOLDERS, extract_boxed, find_boxes
from closeout.answers.reading import Candidate, ContractReading, box_candidates, failed, said, shorten
from closeout.errors import UsageError
from closeout.messages import Constraint

__all__ = ["Choice", "Number", "parse_number", "plain_text"]

_ANSWER_LINE = re.compile(
    r"^[ \t>*_#]{0,20}(?:the\s)?(?:final\s|correct\s)?(?:answer|option|choice|答案)[ *_]{0,8}(?:is\b|[:：=是为]){1,2}"
    r"[ \t*_]{0,8}([^\s*_][^\n]{0,300}?)[ \t*_]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_DENIAL = re.compile(r"\b(?:not|neither|nor|never|none|except)\b|n['’]t\b|不|非|除了")
_SHORT = 200  # characters of a reply that may be the answer and nothing else
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|operatorname|boxed|mbox)\s*\{([^{}]*)\}")
_LATEX_BLANKS = re.compile(r"\\[,;:! ]|\\q?quad\b|~")


def plain_text(text: str) -> str:
    r"""A short answer without its dress: LaTeX text commands, `$`, Markdown stars, quotes, a full stop at the end."""
    text = _TEXT_COMMAND.sub(r"\1", text[:2000])
    text = _LATEX_BLANKS.sub(" ", text)
    text = re.sub(r"\\([%$#&_{}])", r"\1", text)
    previous = ""
    while previous != text:
        previous = text
        text = text.strip().strip("*`\"'“”‘’$").strip()
        text = re.sub(r"(?<=\w)[.。!]\Z", "", text)
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class _Given:
    """What a reply gives as its answer, and where: in a box, a line ("Answer: …"), as the whole reply, nowhere."""

    text: str = ""
    place: Literal["", "box", "line", "whole"] = ""
    candidates: tuple[Candidate, ...] = ()
    complete: bool = True


def _answer_in(text: str) -> _Given:
    """The box, else the line that says it is the answer, else all of a short reply."""
    boxes = box_candidates(find_boxes(text), text)
    if boxes:
        return _Given(extract_boxed(text, blacklist=()), "box", boxes, boxes[-1].complete)
    visible = said(text)
    lines = tuple(Candidate(found[1].strip(), found.start(1), found.end(1)) for found in _ANSWER_LINE.finditer(visible))
    if lines:
        return _Given(lines[-1].text, "line", lines)
    whole = visible.strip()
    if whole and len(whole) <= _SHORT:
        return _Given(whole, "whole", (Candidate(whole, 0, len(visible)),))
    return _Given()


class Choice:
    """One of the options, told apart by label or by meaning.

    `options`: the options as texts, or labels with what they mean: `{"A": "Paris", "B": "Rome"}`. The value and the
    text of an answer is the option (of a mapping: the label) as it is written here.
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
        given = _answer_in(text)
        option = self._option(plain_text(given.text), loose=given.place != "whole")
        if option is not None:
            return ContractReading(option, option, True, candidates=given.candidates, complete=given.complete)
        if given.place != "box":
            return failed("missing", "The reply does not say which option it chooses.")
        if not given.text or given.text in PLACEHOLDERS:
            return failed("empty", "The answer is empty.", given.candidates)
        problem = f"'{shorten(given.text)}' is not one of: {shorten(self._listed, 300)}."
        return failed("violation", problem, given.candidates)

    def _option(self, answer: str, *, loose: bool) -> str | None:
        """The option that an answer is, or whose label it starts with, or (loose) the only one that it names."""
        folded = _fold(answer)
        for label, meaning in self.meanings.items():
            if folded in (_fold(label), _fold(meaning) or None):
                return label
        by_length = sorted(self.meanings, key=len, reverse=True)
        for label in by_length:
            start = re.match(rf"(?:option|choice)?\s*[(\[（]?{re.escape(_fold(label))}[)\]）.:：,、](?!\d)", folded)
            if start:
                others = [_fold(other) for other in by_length if other != label]
                return None if _lists(folded[start.end() :], others) else label
        named = [label for label in by_length if _names(folded, label, self.meanings[label])]
        return named[0] if loose and len(named) == 1 and not _denies(folded, named[0]) else None


def _fold(text: str) -> str:
    return " ".join(text.casefold().split()).strip("()[]（）")


def _lists(rest: str, labels: Sequence[str]) -> bool:
    """Whether what follows a label goes on to another one: "a, b", "a. paris, b. rome". A word alone is no label."""
    joined = "|".join(map(re.escape, labels))
    ends = r"\s*(?:[)\]）.:：,、;]|(?:and|or|&|和|或)(?!\w)|\Z)"
    return re.search(rf"(?:\A|[,、;]|(?<!\w)(?:and|or|&|和|或))\s*[(\[（]?(?:{joined}){ends}", rest) is not None


def _denies(answer: str, label: str) -> bool:
    """Whether an answer that names one option names it as the wrong one."""
    return _DENIAL.search(answer.replace(_fold(label), " ")) is not None


def _names(answer: str, label: str, meaning: str) -> bool:
    # A single letter stands in too many sentences ("a", "I") to be found in one.
    texts = [_fold(text) for text in (label, meaning) if len(text) > 1]
    return any(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", answer) for text in texts)


@dataclass(frozen=True)
class Number:
    r"""A number, an int where it is whole and a float else; the text is plain digits ("1234.5").

    Reads thousand separators, percent and currency signs (dropped), LaTeX fractions and powers of ten, full-width
    digits, "million" and "万" (unless the unit says so itself). `unit`: the unit the number must be in; an answer may
    leave it out, another one is refused. `minimum` and `maximum` are inclusive. `integer` refuses fractions.
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
        given = _answer_in(text)
        parsed = parse_number(given.text, scaled=_MAGNITUDE.match(self.unit or "") is None)
        if given.place == "whole" and not _STARTS_WITH_NUMBER.match(given.text):
            parsed = None  # a sentence that mentions a number
        if parsed is None and given.place != "box":
            return failed("missing", "The reply does not give a number as its answer.")
        if not given.text or given.text in PLACEHOLDERS:
            return failed("empty", "The answer is empty.", given.candidates)
        if parsed is None:
            return failed("unreadable", f"'{shorten(given.text)}' is not {self._kind}.", given.candidates)
        value, rest = parsed
        problem = self._violation(value, rest, given.text)
        if problem:
            return failed("violation", problem, given.candidates)
        return ContractReading(value, _digits(value), True, candidates=given.candidates, complete=given.complete)

    def _violation(self, value: int | float, rest: str, answer: str) -> str:
        if self.unit and rest and _fold_unit(rest) != _fold_unit(self.unit):
            return f"'{shorten(answer)}' is not in {self.unit}."
        if self.integer and not isinstance(value, int):
            return f"'{shorten(answer)}' is not a whole number."
        if self.minimum is not None and value < self.minimum:
            return f"{_digits(value)} is less than {_digits(self.minimum)}."
        if self.maximum is not None and value > self.maximum:
            return f"{_digits(value)} is more than {_digits(self.maximum)}."
        return ""


_STARTS_WITH_NUMBER = re.compile(r"[\s*`$\\(~≈€£¥]*(?:[dt]?frac|[-+−]?[.\d０-９])")
_ABOUT = re.compile(r"\b(?:about|approximately|approx|roughly|around|nearly|exactly)\b|大约|约为?|[≈~]", re.IGNORECASE)
_PART = r"(?:\{\s*(-?\d+(?:\.\d+)?)\s*\}|(\d))"
_NUMBER = re.compile(
    r"(?<![\w.])(?:(?P<sign>[-+−–])\s*)?(?:[$€£¥￥]\s*)?"
    rf"(?:\\[dt]?frac\s*(?P<top>{_PART})\s*(?P<bottom>{_PART})"
    r"|(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:\s*/\s*(?P<over>\d+(?:\.\d+)?))?"
    r"(?:\s*(?:\\times|\\cdot|[x×*·])\s*10\s*\^\s*\{?\s*(?P<power>[-+−]?\d{1,3})\s*\}?|[eE](?P<exponent>[-+]?\d{1,3}))?)"
)
# Words that are part of the number. 千米, 千克 and the like are units.
_MAGNITUDE = re.compile(
    r"\s*(?:(?P<word>hundred|thousand|million|mln|mn|billion|bn|trillion)s?\b(?:\s+of\b)?"
    r"|(?P<times>[十百千]?)(?P<ten>万亿|亿|万)|(?P<bare>[百千])(?![分米克瓦卡焦帕赫伏安字]))",
    re.IGNORECASE,
)
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "mln": 6, "mn": 6, "billion": 9, "bn": 9, "trillion": 12}
_POWERS |= {"十": 1, "百": 2, "千": 3, "万": 4, "亿": 8, "万亿": 12}
_MOST_POWER = 300  # of ten; beyond it a number is a slip, and a float cannot hold it


def parse_number(text: str, *, scaled: bool = True) -> tuple[int | float, str] | None:
    """The number of a short text and what stands beside it (a unit); None when there is none or more than one.

    `scaled`: a word such as "million" behind it is part of the number, else of what stands beside it.
    """
    plain = plain_text(text.translate(_FULL_WIDTH).replace("{,}", ","))
    found = _NUMBER.search(plain)
    if found is None or len(plain) > 300:
        return None
    magnitude = _MAGNITUDE.match(plain, found.end()) if scaled else None
    rest = (plain[: found.start()] + " " + plain[(magnitude or found).end() :]).strip()
    if any(character.isdigit() for character in rest) or any(sign in rest for sign in "\\^="):
        rest = re.sub(r"\A.*=\s*\Z|\^?\s*\\?(?:circ|degree)\b|\^\{?\\?circ\}?", "", rest).strip()
        rest = re.sub(r"\A[A-Za-z]\w?\s*=\s*", "", rest).strip()
        if any(character in "0123456789\\=" for character in rest):
            return None
    value = _exact(found, magnitude)
    return None if value is None else (value, _ABOUT.sub("", rest).strip(" .%$€£¥￥()"))


def _exact(found: re.Match[str], magnitude: re.Match[str] | None) -> int | float | None:
    try:
        if found["top"]:
            exact = Fraction(found["top"].strip("{} ")) / Fraction(found["bottom"].strip("{} "))
        else:
            exact = Fraction(found["digits"].replace(",", ""))
            if found["over"]:
                exact /= Fraction(found["over"])
            power = int((found["power"] or found["exponent"] or "0").replace("−", "-"))
            if abs(power) > _MOST_POWER:
                return None
            exact *= Fraction(10) ** power
        if magnitude:
            words = [part for part in magnitude.groups() if part]
            exact *= 10 ** sum(_POWERS[word.lower()] for word in words)
        if found["sign"] and found["sign"] != "+":
            exact = -exact
        return int(exact) if exact.denominator == 1 else float(exact)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _digits(value: int | float) -> str:
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def _fold_unit(unit: str) -> str:
    return re.sub(r"[\s.]", "", unit.casefold()).rstrip("s")


_FULL_WIDTH = {ord("０") + digit: ord("0") + digit for digit in range(10)} | {
    ord("，"): ",",
    ord("．"): ".",
    ord("％"): "%",
}
