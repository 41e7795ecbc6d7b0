"""OutputFormatter: tool results as message parts, and the final summary of a run.

Contracts decide what an answer is; `closeout.results` encodes results and cuts them to tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from closeout.answers.boxed import extract_boxed
from closeout.answers.contracts import AnswerContract, Boxed, ContractReading, Text
from closeout.answers.reading import ContractOver, failed
from closeout.overrides import failure_of, is_overridden, text_from
from closeout.results.budgets import TOOL_RESULT_MAX_LENGTH, TRUNCATED
from closeout.results.escape import escape_markers
from closeout.results.normal import compact_json, normalise
from closeout.results.present import shown_text

__all__ = [
    "FORMAT_ERROR_MESSAGE",
    "NO_ANSWER",
    "TOOL_RESULT_MAX_LENGTH",
    "FinalSummary",
    "FormattedAnswer",
    "OutputFormatter",
    "answer_of",
    "extracted_by",
    "using_contract",
]

logger = logging.getLogger(__name__)

FORMAT_ERROR_MESSAGE = "No \\boxed{} content found in the final answer."
"""Replaces an answer that does not satisfy its contract, whichever contract that is."""

NO_ANSWER = "No final answer generated."
NO_USAGE = "Token usage information not available."


def answer_of(boxed_result: str | None) -> str | None:
    """Return the answer that a `boxed_result` holds, or None for "" and for the format error."""
    return None if not boxed_result or boxed_result == FORMAT_ERROR_MESSAGE else boxed_result


class FormattedAnswer(NamedTuple):
    """The result of `format_final_summary_and_log`: the summary for people, the answer, the usage on one line."""

    summary_text: str
    boxed_result: str
    log_string: str

    @property
    def answer(self) -> str | None:
        """The answer, or None if `boxed_result` is empty or the format error."""
        return answer_of(self.boxed_result)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSummary:
    """The final summary as a record. Without an `answer`, `reading` says why; `value` is typed."""

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
                self.final_answer or NO_ANSWER,
                "\n" + " Extracted Result ".center(74, "-"),
                *([extracted] if extracted else ()),
                "\n" + " Token Usage & Cost ".center(74, "-"),
                *self.usage_lines,
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-serialisable data."""
        return {
            "final_answer": self.final_answer,
            "answer": self.answer,
            "value": normalise(self.value),
            "problem": self.reading.problem,
            "candidates": [asdict(candidate) for candidate in self.reading.candidates],
            "usage_log": self.usage_log,
        }


# The contract of the agent at work: a formatter serves agents with different contracts, and is not changed by any.
_contract_of_agent: ContextVar[AnswerContract | None] = ContextVar("closeout_contract_of_agent", default=None)


@contextmanager
def using_contract(contract: AnswerContract) -> Iterator[None]:
    """Have formatters read answers by the contract of an agent."""
    token = _contract_of_agent.set(contract)
    try:
        yield
    finally:
        _contract_of_agent.reset(token)


class OutputFormatter:
    """Format tool results and final summaries. `Agent(output_formatter=…)` uses an instance, also of a subclass.

    The class keeps nothing but the contract, so one instance serves any number of agents and runs.

    Args:
        contract: The form that answers must have. None means the agent's; a formatter without an agent reads `Boxed()`.
    """

    contract: AnswerContract | None = None  # also of a subclass whose __init__ does not call this one

    def __init__(self, contract: AnswerContract | None = None) -> None:
        self.contract = contract

    def _extract_boxed_content(self, text: str) -> str:
        """Return the content of the last box in a text; "" if it has none.

        An override decides which box is the answer, and with "" that none is. A contract that asks for more than a box
        reads what it returns.
        """
        return extract_boxed(text)

    def format_tool_result_for_user(self, tool_call_execution_result: Mapping[str, Any] | Any) -> dict[str, str]:
        """Return the outcome of a tool call as a message part, `{"type": "text", "text": …}`.

        Args:
            tool_call_execution_result: A mapping with `server_name`, `tool_name`, and `result` or `error`. Missing
                names get a fallback text. A result that is not a string is written as JSON; one longer than
                TOOL_RESULT_MAX_LENGTH characters is truncated and marked. Any other value is itself the result.
                In a run it also has `text`: the result as the model is shown it by default, inside its token budget
                and with markers escaped. It is then returned, unless `result` or `error` was replaced.
        """
        outcome = tool_call_execution_result
        if not isinstance(outcome, Mapping):
            outcome = {"result": outcome}
        called = f"Tool call to {outcome.get('tool_name') or 'an unnamed tool'}"
        if outcome.get("server_name"):
            called += f" on {outcome['server_name']}"
        if (shown := shown_text(outcome)) is not None:
            text = shown
        elif outcome.get("error") is not None:
            text = f"{called} failed. Error: {outcome['error']}"
        elif outcome.get("result") is not None:
            result = outcome["result"]
            text = result if isinstance(result, str) else compact_json(normalise(result))
        else:
            text = f"{called} completed, but produced no specific output or result."
        if shown is None and "handle" in outcome:  # what a subclass has put in the result's place
            text = escape_markers(text)
        if len(text) > TOOL_RESULT_MAX_LENGTH:
            text = f"{text[:TOOL_RESULT_MAX_LENGTH]}\n{TRUNCATED}"
        return {"type": "text", "text": text}

    def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> FormattedAnswer:
        """Return a run's closing text as (summary for people, answer, usage on one line).

        The summary is for people and logs. It holds usage and cost, so it must not enter a prompt.

        Args:
            final_answer_text: The closing text. The answer is FORMAT_ERROR_MESSAGE if the text does not satisfy the
                contract.
            client: An object with `format_token_usage_summary()`, which returns (lines, log string). Without it, or if
                it fails, the summary says that usage is not available.
        """
        summary = self.final_summary(final_answer_text, client)
        return FormattedAnswer(summary.text, summary.boxed_result, summary.usage_log)

    def final_summary(self, final_answer_text: str, client: Any = None) -> FinalSummary:
        """Return the final summary as a record; see `format_final_summary_and_log`."""
        final_answer = final_answer_text or ""
        contract = _contract_of_agent.get() or self.contract or Boxed()
        reading = extracted_by(self, contract).read(final_answer)
        lines, log = _usage_of(client)
        answer = reading.text if reading.ok else None
        return FinalSummary(
            final_answer=final_answer,
            answer=answer,
            value=reading.value,
            reading=reading,
            usage_lines=lines,
            usage_log=log,
        )


@dataclass(frozen=True)
class ExtractedAnswer(ContractOver[Any]):
    """A contract whose box a formatter finds in its own way."""

    extract: Callable[[str], str]

    def read(self, text: str) -> ContractReading[Any]:
        usual, owner, name = extract_boxed(text), getattr(self.extract, "__self__", self), "_extract_boxed_content"
        try:
            content = text_from(self.extract(text), owner, name)
        except Exception as error:
            problem = failure_of(owner, name, error)
            logger.error("%s", problem, exc_info=error)
            return replace(self.contract.read(text), warning=f"{problem}. The last box counts.")
        if content == usual:
            return self.contract.read(text)
        if not content:
            return failed("missing", "There is no \\boxed{} in the reply.")
        found = self.contract.read(rf"\boxed{{{content}}}")
        if found.ok or not isinstance(self.contract, Boxed | Text):
            return found
        return ContractReading(content, content, True)


def extracted_by(formatter: OutputFormatter, contract: AnswerContract) -> AnswerContract:
    """Return the contract, with the formatter's `_extract_boxed_content` if that is overridden."""
    is_own = is_overridden(formatter, OutputFormatter, "_extract_boxed_content")
    if not is_own or isinstance(contract, ExtractedAnswer):
        return contract
    return ExtractedAnswer(contract, formatter._extract_boxed_content)


def _usage_of(client: Any) -> tuple[tuple[str, ...], str]:
    summarise = getattr(client, "format_token_usage_summary", None)
    if summarise is None:
        return (NO_USAGE,), NO_USAGE
    try:
        lines, log = summarise()
        return tuple(str(line) for line in lines), str(log)
    except Exception as error:  # a usage summary that fails must not cost the answer
        unknown = f"{NO_USAGE} ({type(error).__name__}: {error})"
        return (unknown,), unknown
