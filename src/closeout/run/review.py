"""Decide whether a turn is kept, and what changes in the next request if it is not. Pure decisions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from closeout.answers.contracts import AnswerContract, Boxed, Tagged, Text
from closeout.answers.reading import ContractReading, stated
from closeout.messages import Defect, ModelRequest, Reading, ToolSpec
from closeout.parsing.forms import Form
from closeout.parsing.forms.reader import read_tool_calls
from closeout.parsing.repetition import REPEATING, repeated_tail
from closeout.records import record

if TYPE_CHECKING:
    from closeout.tools.executor import CallOutcome

__all__ = [
    "Answers",
    "RollBack",
    "RollbackPolicy",
    "review_outcomes",
    "review_program",
    "review_reply",
    "review_text",
    "review_unrun_call",
]


class Answers:
    """Reads answers by an agent's contract and keeps those that its model gave on the way.

    `accept` returns the answer that a formatter finds in a reply which the contract does not accept. `warn` is called
    once with each warning of a reading.
    """

    def __init__(
        self,
        contract: AnswerContract,
        accept: Callable[[str], str | None] = lambda text: None,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.contract = contract
        self._accept = accept
        self._warn = cache(warn)
        self.seen: list[str] = []  # answers in the form of the contract, in the order in which they were given
        self._values: dict[str, Any] = {}
        self._texts: dict[str, str] = {}  # the text that held the answer, the last one if there are several
        self._last: tuple[str, ContractReading] | None = None  # a reply is read in several places

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the answer; None if its contract has none."""
        constraint = self.contract.constraint()
        if constraint is None or constraint.kind != "json_schema" or not isinstance(constraint.value, Mapping):
            return None
        return constraint.value

    def read(self, text: str) -> ContractReading:
        """Return what the contract reads in a text."""
        if self._last is None or self._last[0] != text:
            self._last = text, self.contract.read(text)
            if warning := self._last[1].warning:
                self._warn(warning)
        return self._last[1]

    def read_final(self, text: str) -> ContractReading:
        """Return the answer in a reply without calls; a formatter may find one where the contract does not."""
        found = self.read(text)
        if found.ok or not text.strip() or (answer := self._accept(text)) is None:
            return found
        found = ContractReading(self.value_of(answer), answer, True)
        self._last = text, found
        return found

    def form_of(self, value: Any) -> str | None:
        """Return a value in a form that the contract takes as an answer, None if it takes none."""
        text = self.written(value)
        texts = ("yes" if value else "no", text) if isinstance(value, bool) else (text,)  # a question is answered yes
        forms = (form for each in texts for form in _forms(each, self.contract.finish_prefix))
        return next((form for form in forms if self.read(form).ok), None)

    def written(self, value: Any) -> str:
        """Return a value as text: a text as it is, anything else as JSON."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 84 / 2 is 42.0 in Python, and 42 for people
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def note(self, text: str) -> ContractReading:
        """Read a text beside a tool call, and keep the answer if it marks one."""
        found = self.read(text)
        if found.ok and found.marked:
            self.seen.append(found.text)
            self._values[found.text] = found.value
            self._texts[found.text] = text
        return found

    def forget(self) -> None:
        """Keep none of the answers that were seen: the user has said more since."""
        self.seen.clear()

    def text_of(self, answer: str) -> str | None:
        """Return the text that held an answer, or None if it was not seen."""
        return self._texts.get(answer)

    def value_of(self, answer: str) -> Any:
        """Return the typed value of an answer, None if the contract cannot read it."""
        if answer in self._values:
            return self._values[answer]
        for text in (answer, self.contract.finish_prefix + answer):
            if (found := self.contract.read(text)).ok:
                return found.value
        # A contract for text may refuse it as a placeholder, and yet it was set as the answer.
        contract = getattr(self.contract, "contract", self.contract)
        return answer if isinstance(contract, Boxed | Tagged | Text) else None


def _forms(text: str, prefix: str) -> Iterator[str]:
    """An answer as it is, and as the contract wants it written."""
    yield text
    if prefix.endswith("{"):
        yield f"{prefix}{text}}}"
    elif prefix.startswith("<") and prefix.endswith(">"):
        yield f"{prefix}{text}</{prefix[1:]}"
    elif prefix:
        yield f"{prefix}{text}"


@record
class RollBack:
    """Roll a turn back, and ask again with a short hint.

    Attributes:
        reason: A word for the journal.
        hint: What the model is shown.
        detail: What a person is shown.
        tool: The tool that the turn failed with, if it was one.
        draft: The reply, if the hint answers it: the next request shows both.
    """

    reason: str
    hint: str
    detail: str = ""
    tool: str = ""
    draft: str = ""


_TWENTY_TIMES = re.compile(r"([^\n]{2,20}?)\1{19}")  # the same 2 to 20 characters


def review_reply(
    reading: Reading, contract: AnswerContract, found: ContractReading, *, tools_offered: bool
) -> RollBack | None:
    """Decide on a reply before any of its calls is run. None accepts it.

    A reply without a call and without a valid answer is not the end, whatever its words: the model is asked to act or
    to answer. Without tools it can only answer, and that is the contract's closing.
    """
    if reading.calls:
        return None
    if reading.defects:
        return _for_defect(reading.defects[0])
    text = reading.answer if reading.answer is not None else reading.text
    if not text.strip():
        return RollBack("empty", "Your last reply was empty. Call a tool or give the answer.")
    if found.ok:
        return None
    if repeated_tail(text) >= 0:
        return _for_defect(REPEATING)
    if not tools_offered:
        return None
    problem = stated(found.problem)
    hint = f"{problem} If anything is missing, call a tool. Otherwise: {contract.finishing()}".lstrip()
    return RollBack("no_action", hint, problem, draft=text)


def review_program(program: str) -> RollBack | None:
    """Decide on a program of a small model before it is run: such models fall into `3 * 3 * 3 * …`."""
    repeated = any(any(map(str.isalnum, match[1])) for match in _TWENTY_TIMES.finditer(program))  # not `# ------`
    return RollBack("repeating", "Your last program repeated itself. Write a short one.") if repeated else None


def review_text(text: str) -> RollBack | None:
    """Decide on a reply that is a valid answer because any text is: it counts unless its end only repeats itself."""
    return _for_defect(REPEATING) if repeated_tail(text) >= 0 else None


def review_unrun_call(text: str, tools: Sequence[ToolSpec], forms: Sequence[Form] = ()) -> RollBack | None:
    """Decide on an answer that contains a call of an offered tool, which was not run.

    Small models write a call, make its result up and answer from that. The answer may also show a call because the
    task asks for one, so ask again only once.
    """
    offered = {tool.name for tool in tools}
    calls = read_tool_calls(text, tools, forms=forms).calls
    written = next((call.name for call in calls if call.name in offered), None)
    if written is None:
        return None
    hint = (
        f"Your last reply contained a call of {written}, but it was not run, because other text followed it or showed "
        "it. If you need its result, make the call and write nothing after it."
    )
    return RollBack("unrun_call", hint, text[:200])


def _for_defect(defect: Defect) -> RollBack:
    return RollBack(defect.code, defect.hint)


def review_outcomes(outcomes: Sequence[CallOutcome]) -> RollBack | None:
    """Decide on the results of a turn's calls. The turn is rolled back only if none of them is worth keeping."""
    if not outcomes:
        return None
    for outcome in outcomes:
        if not outcome.rollback:
            return None
    first = outcomes[0]
    tool = first.spec.name if first.spec is not None and len({outcome.call.name for outcome in outcomes}) == 1 else ""
    hint = first.reason
    if first.status == "error":  # the reason is the tool's text, and the hint speaks for the user
        hint = f"The call of {first.call.name} failed: change its arguments, or make another call."
    return RollBack(first.status, hint, f"{first.call.name}: {first.reason}"[:300], tool)


# ------------------------------------------------------------------------------------------------ asking again

STEP = 0.2  # each further rollback in a row raises the temperature by it
HOTTEST = 1.0
UNSET = 0.6  # The value of a temperature that is left to the server; most servers take 0.7 to 1.
FAILURES = 3  # rollbacks in a row for the same tool after which it is not offered in the next try


@dataclass(slots=True)
class RollbackPolicy:
    """Counts an attempt's rollbacks, in a row and in total, and makes each next request differ from the last.

    The first in a row adds a hint after the stable prefix. Each further one also says how often it was and raises the
    temperature a step, if there is room; so does the first if the server could not read its own model's call. A tool
    that a row of turns failed with is not offered in the next try, if there are others in `tools`; only then, because
    leaving it out breaks the cached prefix. An accepted turn resets all of it.
    """

    max_consecutive: int = 5
    max_total: int = 30
    temperature: float | None = None
    tools: Collection[str] = ()
    consecutive: int = 0
    total: int = 0
    note: str = ""
    draft: str = ""
    withheld: frozenset[str] = frozenset()
    _row: list[str] = field(default_factory=list)  # the tool of each rollback in a row
    _rejected: bool = False  # whether the server could not read a reply of the row

    @property
    def exhausted(self) -> bool:
        """True if no further rollback is allowed for now."""
        return self.consecutive >= self.max_consecutive or self.total >= self.max_total

    def roll_back(self, verdict: RollBack) -> str:
        """Count a rollback. Returns what will be different, for the journal."""
        self.consecutive += 1
        self.total += 1
        self._row.append(verdict.tool)
        self._rejected = self._rejected or verdict.reason == "rejected_call"
        # The same words at the same temperature would get the same reply; the count makes them different.
        again = f" This was try {self.consecutive}: do it differently." if self.consecutive > 1 else ""
        self.note = f"{verdict.hint}{again}".lstrip()
        self.draft = verdict.draft
        self.withheld = self._withheld(verdict.tool)
        changes = ["hint"] if self.note else []
        if (heat := self._heat()) is not None:
            changes.append(f"temperature {heat:.1f}")
        changes += [f"without {name}" for name in sorted(self.withheld)]
        return ", ".join(changes)

    def succeed(self) -> None:
        """Reset the row: a turn was accepted."""
        self.consecutive = 0
        self.note = self.draft = ""
        self.withheld = frozenset()
        self._row.clear()
        self._rejected = False

    def _withheld(self, tool: str) -> frozenset[str]:
        failed = len(self._row) >= FAILURES and all(name == tool for name in self._row[-FAILURES:])
        return frozenset((tool,)) if tool and failed and set(self.tools) - {tool} else frozenset()

    def _heat(self) -> float | None:
        """The raised temperature, None if it stays as it is."""
        base = UNSET if self.temperature is None else self.temperature
        # The model wrote what it always writes for such a call, and a hint alone seldom changes that.
        steps = self.consecutive - 1 + self._rejected
        return min(base + steps * STEP, HOTTEST) if steps > 0 and base < HOTTEST else None

    def adjust(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the raised temperature."""
        heat = self._heat()
        return request if heat is None else replace(request, temperature=heat)
