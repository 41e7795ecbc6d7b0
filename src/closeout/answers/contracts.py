r"""Answer contracts for text: `Text`, `Boxed`, `Tagged`, and `OneOf` several.

`Choice` and `Number` are in `values`, `Json` and `Yaml` in `structured`. All can be imported from here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic

from closeout.answers.boxed import PLACEHOLDERS, Box, extract_boxed, find_boxes, reasoning_regions
from closeout.answers.reading import AnswerContract, Candidate, ContractReading, Value, box_candidates, failed
from closeout.answers.structured import Json, Yaml
from closeout.answers.values import Choice, Number
from closeout.errors import UsageError
from closeout.messages import Constraint
from closeout.parsing.forms import Form, read_tool_calls

__all__ = [
    "AnswerContract",
    "Boxed",
    "Candidate",
    "Choice",
    "ContractReading",
    "Json",
    "Number",
    "OneOf",
    "Tagged",
    "Text",
    "Yaml",
]

BOXED_GRAMMAR = r"""root ::= "\\boxed{" content "}"
content ::= ([^{}\n] | "{" content "}")+
"""

_CLOSING = " \t\n\r.$*_)]\\。"  # Characters that may follow a box at the end of a reply.
_NO_BOX = r"There is no \boxed{} in the reply."


@dataclass(frozen=True, slots=True)
class Text:
    r"""Any text: the content of a `\boxed{…}` that the reply ends with, otherwise the whole reply.

    The prompt does not mention a form. A box that more text follows is part of the text, and so is one in a code block.
    If the box at the end has no content, there is no answer, as for a reply that is only a tool call.

    Attributes:
        forms: Forms in which the model writes tool calls, beside the built-in ones.
    """

    forms: tuple[Form, ...] = field(default=(), repr=False)

    @property
    def finish_prefix(self) -> str:
        return ""

    def instruction(self) -> str:
        return ""

    def finishing(self) -> str:
        return "Now write only the final answer."

    def constraint(self) -> Constraint | None:
        return None

    def read(self, text: str) -> ContractReading[str]:
        visible = "".join(text[part.start : part.end] for part in reasoning_regions(text) if not part.in_reasoning)
        whole = visible.strip()
        if not whole:
            return failed("empty", "The reply is empty.")
        boxes = find_boxes(visible) if "boxed" in visible or "fbox" in visible else ()
        if any(not box.in_fence for box in boxes) and not visible[max(box.end for box in boxes) :].strip(_CLOSING):
            return _read_boxes(boxes, visible, PLACEHOLDERS)
        written = read_tool_calls(whole, forms=self.forms)
        if written.calls and not written.content.strip():
            return failed("missing", "The reply is a tool call and not an answer.")
        return ContractReading(whole, whole, True, marked=False)


@dataclass(frozen=True, slots=True)
class Boxed:
    r"""The answer in `\boxed{…}`, the last one of the reply. `blacklist`: contents that do not count as answers."""

    blacklist: Collection[str] = field(default=PLACEHOLDERS, repr=False)

    @property
    def finish_prefix(self) -> str:
        return "\\boxed{"

    def instruction(self) -> str:
        return r"End with the final answer, and nothing else, in \boxed{...}."

    def finishing(self) -> str:
        return r"Now write only the final answer, in the form \boxed{...}."

    def constraint(self) -> Constraint | None:
        return Constraint("grammar", BOXED_GRAMMAR, "boxed_answer")

    def read(self, text: str) -> ContractReading[str]:
        return _read_boxes(find_boxes(text), text, self.blacklist)


def _read_boxes(boxes: Sequence[Box], text: str, blacklist: Collection[str]) -> ContractReading[str]:
    if not boxes:
        return failed("missing", _NO_BOX)
    candidates = box_candidates(boxes, text)
    content = extract_boxed(text, blacklist=())
    if content and content not in blacklist:
        closed = any(candidate.complete and content in candidate.text for candidate in candidates)
        return ContractReading(content, content, True, candidates=candidates, complete=closed)
    if content:
        return failed("placeholder", f"The box holds only a placeholder ({content}).", candidates)
    return failed("empty", "The box is empty.", candidates) if candidates else failed("missing", _NO_BOX)


@dataclass(frozen=True)
class Tagged:
    """The answer between `<answer>` and `</answer>`, the last such tag of the reply. `tag` is a plain XML name."""

    tag: str = "answer"
    blacklist: Collection[str] = field(default=PLACEHOLDERS, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", self.tag):
            raise UsageError(f"'{self.tag}' is not an XML name. Write Tagged('answer').")

    @property
    def finish_prefix(self) -> str:
        return f"<{self.tag}>"

    def instruction(self) -> str:
        return f"End with the final answer, and nothing else, in the form <{self.tag}>...</{self.tag}>."

    def finishing(self) -> str:
        return f"Now write only the final answer, in the form <{self.tag}>...</{self.tag}>."

    def constraint(self) -> Constraint | None:
        grammar = f'root ::= "<{self.tag}>" [^<>]+ "</{self.tag}>"\n'
        return Constraint("grammar", grammar, "tagged_answer")

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        return re.compile(rf"<(/?){re.escape(self.tag)}(?:\s[^<>]{{0,200}})?>", re.IGNORECASE)

    def read(self, text: str) -> ContractReading[str]:
        inside: list[Candidate] = []
        outside: list[Candidate] = []
        for region in reasoning_regions(text):
            (inside if region.in_reasoning else outside).extend(self._between(text, region.start, region.end))
        candidates = tuple(sorted(inside + outside, key=lambda candidate: candidate.start))
        if not candidates:
            return failed("missing", f"There is no <{self.tag}> in the reply.")
        last = (outside or inside)[-1]
        if not last.text:
            return failed("empty", f"<{self.tag}> is empty.", candidates)
        if last.text in self.blacklist:
            return failed("placeholder", f"<{self.tag}> holds only a placeholder ({last.text}).", candidates)
        return ContractReading(last.text, last.text, True, candidates=candidates, complete=last.complete)

    def _between(self, text: str, start: int, end: int) -> list[Candidate]:
        """From each opening tag to the next closing one; the last opening tag before it is the one that counts."""
        found: list[Candidate] = []
        opened: re.Match[str] | None = None
        for tag in self._tags.finditer(text, start, end):
            if not tag[1]:
                opened = tag
            elif opened is not None:
                content = text[opened.end() : tag.start()].strip()
                found.append(Candidate(content, opened.start(), tag.end()))
                opened = None
        if opened is not None:
            found.append(Candidate(text[opened.end() : end].strip(), opened.start(), end, complete=False))
        return found


class OneOf(Generic[Value]):
    """Any of several contracts; the first that a reply satisfies is the one that reads it."""

    def __init__(self, *contracts: AnswerContract[Value]) -> None:
        if not contracts:
            raise UsageError("OneOf needs at least one contract, for example OneOf(Number(), Boxed()).")
        self.contracts = contracts

    def __repr__(self) -> str:
        return f"OneOf({', '.join(map(repr, self.contracts))})"

    @property
    def finish_prefix(self) -> str:
        return self.contracts[0].finish_prefix

    def instruction(self) -> str:
        return "\nOr: ".join(filter(None, (contract.instruction() for contract in self.contracts)))

    def finishing(self) -> str:
        return self.contracts[0].finishing()

    def constraint(self) -> Constraint | None:
        return self.contracts[0].constraint() if len(self.contracts) == 1 else None

    def read(self, text: str) -> ContractReading[Value]:
        readings = [contract.read(text) for contract in self.contracts]
        for reading in readings:
            if reading.ok:
                return reading
        # The problem of a form that is there is more useful than that of one that is missing.
        return next((reading for reading in readings if reading.kind != "missing"), readings[0])
