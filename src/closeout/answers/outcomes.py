"""What the AnswerGenerator's methods return: tuples of the documented shapes, readable by name.

How they come about is in `generator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from closeout.errors import ModelError

__all__ = [
    "Call",
    "FallbackAnswer",
    "FinalAnswer",
    "FinalizedAnswer",
    "History",
    "LLMCallResult",
    "Request",
    "error_of",
]

History = list[dict[str, Any]]


class LLMCallResult(NamedTuple):
    """What `handle_llm_call` returns. On failure: "", False, None and the very history that was handed in."""

    response_text: str | None
    should_break: bool
    tool_calls_info: Any | None
    message_history: History


class FinalAnswer(NamedTuple):
    """What `generate_final_answer_with_retries` returns; without an answer `final_boxed_answer` is the format error."""

    final_answer_text: str | None
    final_summary: str
    final_boxed_answer: str | None
    usage_log: str
    message_history: History


class FallbackAnswer(NamedTuple):
    """What the two fallback methods return."""

    final_answer_text: str
    final_summary: str
    final_boxed_answer: str


class FinalizedAnswer(NamedTuple):
    """What `generate_and_finalize_answer` returns; the third is there only when another attempt is to learn from it."""

    final_summary: str
    final_boxed_answer: str
    failure_experience_summary: str | None
    usage_log: str
    message_history: History


class Call(LLMCallResult):
    """A call's result that also knows what failed, or that the reply was cut off: at a limit, or by us."""

    error: Exception | None = None
    cut: bool = False

    @classmethod
    def failed(cls, history: History, error: Exception | None) -> Call:
        """A request that brought nothing; one that does not even say why is a failure of the model."""
        call = cls("", False, None, history)
        call.error = error or ModelError("The model sent no reply.")
        return call


@dataclass(frozen=True, slots=True)
class Request:
    """What a closing request adds to the conversation, and the reply that it only finishes, if it does."""

    added: tuple[dict[str, Any], ...]
    essay: str = ""

    def whole(self, text: str) -> str:
        """A reply to it, with the essay that it finishes."""
        return f"{self.essay}\n\n{text}" if self.essay and text else text


def error_of(call: Sequence[Any]) -> Exception | None:
    """What failed in a call; None for one that brought a reply, or that does not know."""
    return call.error if isinstance(call, Call) else None
