"""OutputFormatter: tool results as the model gets them, final answers as a person and a log get them.

What counts as an answer is the contract's business; how results are encoded and cut to tokens is `outputs`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from closeout.answers.boxed import extract_boxed
from closeout.answers.contracts import AnswerContract, Boxed, ContractReading
from closeout.outputs.budgets import TOOL_RESULT_MAX_LENGTH, TRUNCATED
from closeout.outputs.normal import compact_json, normalise

__all__ = ["FORMAT_ERROR_MESSAGE", "TOOL_RESULT_MAX_LENGTH", "FinalSummary", "FormattedAnswer", "OutputFormatter"]

FORMAT_ERROR_MESSAGE = "No \\boxed{} content found in the final answer."
"""Stands in place of an answer that does not satisfy its contract, whichever contract that is."""

NO_USAGE = "Token usage information not available."


class FormattedAnswer(NamedTuple):
    """What `format_final_summary_and_log` returns: the summary for a person, the answer, the bill in one line."""

    summary_text: str
    boxed_result: str
    log_string: str


@dataclass(frozen=True, slots=True)
class FinalSummary:
    """The same for machines. `answer` is None when `reading` says why there is none; `value` is typed."""

    final_answer: str
    answer: str | None
    value: Any
    reading: ContractReading
    usage_lines: tuple[str, ...]
    usage_log: str

    @property
    def boxed_result(self) -> str:
        """The answer; FORMAT_ERROR_MESSAGE for a text without one; "" for no text."""
        if self.answer is not None:
            return self.answer
        return FORMAT_ERROR_MESSAGE if self.final_answer else ""

    @property
    def text(self) -> str:
        """The summary with its three sections."""
        extracted = self.answer if self.answer is not None else self.reading.problem
        return "\n".join(
            (
                "\n" + " Final Answer ".center(74, "="),
                self.final_answer,
                "\n" + " Extracted Result ".center(74, "-"),
                *([extracted] if extracted and self.final_answer else ()),
                "\n" + " Token Usage & Cost ".center(74, "-"),
                *self.usage_lines,
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "final_answer": self.final_answer,
            "answer": self.answer,
            "value": normalise(self.value),
            "problem": self.reading.problem,
            "candidates": [asdict(candidate) for candidate in self.reading.candidates],
            "usage_log": self.usage_log,
        }


class OutputFormatter:
    """Holds nothing but the form that answers must have (None: Boxed()); one serves any number of runs."""

    def __init__(self, contract: AnswerContract | None = None) -> None:
        self.contract: AnswerContract = Boxed() if contract is None else contract

    def _extract_boxed_content(self, text: str) -> str:
        """The content of the last box of a text, whatever the contract; "" when there is none."""
        return extract_boxed(text)

    def format_tool_result_for_user(self, tool_call_execution_result: Mapping[str, Any] | Any) -> dict[str, str]:
        """The outcome of a tool call as a message part, `{"type": "text", "text": …}`.

        Takes `server_name`, `tool_name` (a text stands in for one that is missing) and `error` or `result`. A result
        that is no text is written as JSON; one longer than TOOL_RESULT_MAX_LENGTH characters is cut and says so.
        What is no such record is a result itself.
        """
        outcome = tool_call_execution_result
        if not isinstance(outcome, Mapping):
            outcome = {"result": outcome}
        called = f"Tool call to {outcome.get('tool_name') or 'an unnamed tool'}"
        if outcome.get("server_name"):
            called += f" on {outcome['server_name']}"
        if outcome.get("error") is not None:
            text = f"{called} failed. Error: {outcome['error']}"
        elif outcome.get("result") is not None:
            result = outcome["result"]
            text = result if isinstance(result, str) else compact_json(normalise(result))
        else:
            text = f"{called} completed, but produced no specific output or result."
        if len(text) > TOOL_RESULT_MAX_LENGTH:
            text = f"{text[:TOOL_RESULT_MAX_LENGTH]}\n{TRUNCATED}"
        return {"type": "text", "text": text}

    def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> FormattedAnswer:
        """The closing text of a run as (summary for a person, the answer, the bill in one line).

        The answer is FORMAT_ERROR_MESSAGE when the text does not satisfy the contract. `client` needs
        `format_token_usage_summary()` → (lines, log string); without it, or if it fails, the bill is not known.
        """
        summary = self.final_summary(final_answer_text, client)
        return FormattedAnswer(summary.text, summary.boxed_result, summary.usage_log)

    def final_summary(self, final_answer_text: str, client: Any = None) -> FinalSummary:
        """The closing text of a run as a record: what `format_final_summary_and_log` is a view of."""
        final_answer = final_answer_text or ""
        reading = self.contract.read(final_answer)
        lines, log = _usage_of(client)
        answer = reading.text if reading.ok else None
        return FinalSummary(final_answer, answer, reading.value, reading, lines, log)


def _usage_of(client: Any) -> tuple[tuple[str, ...], str]:
    summarise = getattr(client, "format_token_usage_summary", None)
    if summarise is None:
        return (NO_USAGE,), NO_USAGE
    try:
        lines, log = summarise()
        return tuple(str(line) for line in lines), str(log)
    except Exception as error:  # an answer is not lost for its bill
        unknown = f"{NO_USAGE} ({type(error).__name__}: {error})"
        return (unknown,), unknown
