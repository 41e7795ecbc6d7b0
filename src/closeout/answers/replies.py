"""What is wrong with a closing reply, and whether the wrapper is all that it lacks. Pure decisions.

What is done about it is the AnswerGenerator's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from closeout.answers.contracts import ContractReading
from closeout.answers.reading import said

__all__ = ["ReplyProblem", "has_tool_calls", "invents_result", "is_refusal", "problem_of"]

Kind = Literal["empty", "tool_call", "invented", "cut", "refusal", "format_missing", "contract"]

_REFUSAL = re.compile(
    r"\W*(?:i'?m (?:really |very |so )?sorry|i am sorry|sorry\b|i apologi[sz]e|unfortunately"
    r"|i (?:can'?t|cannot|can not|could not|couldn'?t|won'?t|am unable to|am not able to|do not know|don'?t know)"
    r"|i'm (?:unable|not able) to|as an ai\b|(?:it is )?(?:not possible|impossible) to"
    r"|due to (?:the )?time constraints?|抱歉|对不起|很遗憾|我无法|我不能|我不知道|无法确定|作为一个?(?:ai|人工智能))",
    re.IGNORECASE,
)
_REFUSAL_LENGTH = 700  # characters: a longer text is an answer that begins politely
# Calls that a model writes out as text when tools are closed.
_WRITTEN_CALL = re.compile(
    r"<use_mcp_tool>|<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|^Action Input:|^Action:\s{0,4}(?:```(?:json)?\s{0,4})?\{",
    re.MULTILINE,
)
# A result that no tool gave, written out by the model: what stands behind it is not an answer, in any dialect.
_INVENTED = re.compile(
    r"^[ \t>*#]*(?:observation|tool[ _](?:result|response|output)|观察|观测)\s*\d*\s*[*]*[:：]"
    r"|^[ \t]*<(?:tool_response|tool_result|function_results?|observation)\b",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ReplyProblem:
    """Why a closing reply is no answer. `hint` tells the model; `finishable`: only the wrapper is lacking."""

    kind: Kind
    hint: str
    finishable: bool = False


def has_tool_calls(info: Any) -> bool:
    """Whether `extract_tool_calls_info` found calls: a list of them, or a tuple of such lists."""
    if isinstance(info, tuple):
        return any(has_tool_calls(part) if isinstance(part, tuple | list) else part is not None for part in info)
    return isinstance(info, list) and bool(info)


def invents_result(text: str) -> bool:
    """Whether a model wrote out, as a line of its own, a tool's result that no tool gave."""
    return _INVENTED.search(text) is not None


def is_refusal(text: str) -> bool:
    """Whether a text, without its reasoning, is short and declines the task rather than answers it."""
    visible = said(text).strip()
    return len(visible) <= _REFUSAL_LENGTH and _REFUSAL.match(visible) is not None


def problem_of(text: str, reading: ContractReading, *, called_tools: bool = False, cut: bool = False) -> ReplyProblem:
    """What is wrong with a reply that was not accepted; the most telling thing first.

    `called_tools`: it made native calls. `cut`: it ended at the token limit.
    """
    if called_tools or _WRITTEN_CALL.search(text):
        hint = "Your last reply called a tool. Tools are closed now, so nothing was run: answer from what you have."
        return ReplyProblem("tool_call", hint)
    if invents_result(text):
        hint = "You wrote a tool result yourself. No tool was run: answer from the results that you have."
        return ReplyProblem("invented", hint)
    if not text.strip():
        return ReplyProblem("empty", "Your last reply was empty.")
    if cut:
        return ReplyProblem("cut", "Your last reply was cut off before it came to its answer. Be much shorter.")
    if is_refusal(text):
        hint = "Your last reply declined to answer. An answer is needed, even if it is not certain."
        return ReplyProblem("refusal", hint)
    if reading.kind == "missing":
        hint = f"Your last reply was not in the form asked for: {_sentence(reading.problem)}"
        return ReplyProblem("format_missing", hint, finishable=True)
    return ReplyProblem("contract", f"Your last reply was not accepted: {_sentence(reading.problem)}")


def _sentence(problem: str) -> str:
    return problem[:1].lower() + problem[1:] if problem[:1].isupper() and problem[1:2].islower() else problem
