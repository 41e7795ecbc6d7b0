"""The protocol of answer contracts, and what a contract reads in a reply.

The contracts are in `contracts`, `values` and `structured`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from closeout.answers.boxed import Box, reasoning_regions
from closeout.messages import Constraint
from closeout.results.escape import escape_markers

if TYPE_CHECKING:  # a default, so that `AnswerContract`, `Agent` and `RunResult` may be written without their type
    from typing_extensions import TypeVar as TypeVarWithDefault

    Value = TypeVarWithDefault("Value", covariant=True, default=Any)
else:
    Value = TypeVar("Value", covariant=True)

__all__ = [
    "AnswerContract",
    "Candidate",
    "ContractOver",
    "ContractReading",
    "Problem",
    "Value",
    "box_candidates",
    "failed",
    "fenced_blocks",
    "said",
    "shorten",
    "stated",
]

Problem = Literal["", "missing", "empty", "placeholder", "unreadable", "violation"]
"""The defect of a reply, or "". With "missing" the form is absent, so the answer may only lack its wrapper."""

_LONGEST_PROBLEM = 2_000  # characters that a request repeats of a problem
_FENCED = re.compile(r"^[ \t]{0,3}(```|~~~)[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]{0,3}\1|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place in a reply that has the form of an answer. `start` and `end` are offsets in characters."""

    text: str
    start: int
    end: int
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ContractReading(Generic[Value]):
    """The reading of a reply by a contract.

    With `ok` there is an answer: `value` in the contract's own type, `text` the same as normalised text. Without it
    `kind` says what is wrong and `problem` says it in one line for the model, all that is wrong. `complete` is False
    for an answer whose wrapper was never closed. `candidates` are all places that have the form, in reading order.
    `marked` is False if nothing sets the answer apart: the whole reply is taken as the answer. A run then checks that
    the reply is not the announcement of a next step, and takes no text beside a tool call for an answer. `warning` is
    for people.
    """

    value: Value | None = None
    text: str = ""
    ok: bool = False
    problem: str = ""
    kind: Problem = ""
    candidates: tuple[Candidate, ...] = ()
    complete: bool = True
    marked: bool = True
    warning: str = ""


class AnswerContract(Protocol[Value]):
    """The form that the final answer must have. `Value` is the type of the answer.

    A contract of your own is any object with these members; `Agent(answer=…)` checks them. It holds no state, so that
    one contract serves any number of runs.
    """

    @property
    def finish_prefix(self) -> str:
        """The beginning of the answer in its wrapper, for a model whose reply can be begun."""

    def instruction(self) -> str:
        """Return one or two sentences for the prompt that say how to write the answer."""

    def finishing(self) -> str:
        """Return the request for a reply that only lacks the form: to write the answer alone, in the form."""

    def read(self, text: str) -> ContractReading[Value]:
        """Read a reply. Never raises, and takes time linear in the length of the text."""

    def constraint(self) -> Constraint | None:
        """Return what the answer in its wrapper must match, for servers that constrain decoding; None: anything."""


@dataclass(frozen=True)
class ContractOver(Generic[Value]):
    """The base of a contract that differs from another one only in how it reads a reply."""

    contract: AnswerContract[Any]

    @property
    def finish_prefix(self) -> str:
        return self.contract.finish_prefix

    def instruction(self) -> str:
        return self.contract.instruction()

    def finishing(self) -> str:
        return self.contract.finishing()

    def constraint(self) -> Constraint | None:
        return self.contract.constraint()


def failed(kind: Problem, problem: str, candidates: tuple[Candidate, ...] = ()) -> ContractReading[Any]:
    """Return the reading of a reply without an answer: what is wrong with it, and a sentence for the model."""
    return ContractReading(problem=problem, kind=kind, candidates=candidates)


def stated(problem: str) -> str:
    """Return what a contract found wrong, for a request to the model: on one line, bounded, no marker of a call.

    It may quote the reply, and a reply may quote a tool.
    """
    return escape_markers(shorten(problem, _LONGEST_PROBLEM))


def box_candidates(boxes: Sequence[Box], text: str) -> tuple[Candidate, ...]:
    """Return the boxes of a text that are not inside another.

    An unclosed box ends before the next one: thousands of them, each with all that follows, would be the text squared.
    """
    standing = [box for box in boxes if not box.enclosed]
    candidates = []
    for box, behind in zip_longest(standing, standing[1:]):
        if behind is not None and behind.start < box.end:
            content = text[box.content_start : behind.start].strip()
            candidates.append(Candidate(content, box.start, behind.start, box.complete))
        else:
            candidates.append(Candidate(box.content, box.start, box.end, box.complete))
    return tuple(candidates)


def said(text: str) -> str:
    """Return the text without the model's reasoning; the reasoning itself if there is nothing else."""
    regions = reasoning_regions(text)
    if not any(region.in_reasoning for region in regions):
        return text
    outside = "\n".join(text[r.start : r.end] for r in regions if not r.in_reasoning)
    return outside if outside.strip() else "\n".join(text[r.start : r.end] for r in regions)


def fenced_blocks(text: str) -> list[tuple[str, Candidate]]:
    """Return the code fences of a text: for each its language (lower case, may be "") and its content."""
    return [
        (found[2].lower(), Candidate(found[3].strip(), found.start(3), found.end(3), complete=not _open(found, text)))
        for found in _FENCED.finditer(text)
    ]


def _open(found: re.Match[str], text: str) -> bool:
    return found.end() == len(text) and found.end(3) == len(text)


def shorten(text: str, length: int = 80) -> str:
    """Return a text for a message: on one line, cut at the end."""
    line = " ".join(text[: 4 * length].split())
    return line if len(line) <= length else line[: length - 1] + "…"
