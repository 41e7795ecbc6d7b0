"""Is a turn to be kept? Pure decisions over what was read in a reply and over what its calls brought."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from closeout.answers.replies import is_refusal
from closeout.messages import Reading, ToolReturn
from closeout.orchestrator.loops import repeated_tail

if TYPE_CHECKING:
    from closeout.tools.executor import CallOutcome

__all__ = ["RollBack", "review_answer", "review_outcomes", "review_reply"]

_INTENT = re.compile(
    r"\b(?:let me|i(?:'ll| will| am going to|'m going to| need to| should| can now) (?:now |first |then |next )?"
    r"(?:search|look|check|find|use|call|calculate|compute|read|fetch|query|try|run|open|start|proceed|verify|get))\b"
    r"|\bMissing: (?!nothing\b)\w"  # what the worked examples say in front of a call
    r"|(?:让我|我将|我会|我先|我需要|接下来)[^。！？\n]{0,12}(?:搜索|查找|查询|查看|调用|计算|使用|阅读|打开|获取)",
    re.IGNORECASE,
)
LEAST_QUOTED = 20  # characters: shorter answers stand in many texts
SHORT = 700  # characters: a plan is short; a long text is an answer that contains such words


@dataclass(frozen=True, slots=True)
class RollBack:
    """Take the turn back: why, and the short hint that the model gets when it is asked again."""

    reason: str
    hint: str
    detail: str = ""
    tool: str = ""  # the tool that the turn came to nothing with


def review_reply(reading: Reading, *, answer_fits: bool, tools_offered: bool, may_nudge: bool) -> RollBack | None:
    """Whether a reply is to be taken back, before any of its calls is run.

    `answer_fits`: its text satisfies the answer contract. `may_nudge`: a reply that only announces what it is going to
    do may be asked once more to do it.
    """
    if reading.calls:
        return None
    if reading.defects:
        defect = reading.defects[0]
        return RollBack(defect.code, defect.hint)
    text = reading.answer if reading.answer is not None else reading.text
    if not text.strip():
        return RollBack("empty", "Your last reply was empty. Call a tool or give the answer.")
    if repeated_tail(text) >= 0 and not answer_fits:
        return RollBack("repeating", "Your last reply repeated itself. Be brief: call one tool or give the answer.")
    if answer_fits:
        return None
    if is_refusal(text):
        hint = "You can do this task with what you have. "
        hint += "Use the tools." if tools_offered else "Give the best answer that you can."
        return RollBack("refusal", hint, text[:200])
    if tools_offered and may_nudge and len(text) <= SHORT and _INTENT.search(text):
        return RollBack("no_action", "You said what you will do but called no tool. Make the call now.", text[-200:])
    return None


def review_answer(answer: str, returns: Sequence[ToolReturn]) -> RollBack | None:
    """Whether an answer is to be asked for again because it is only what the last failed calls were told.

    Small models answer with the last text that they saw. It may be what was asked for: the caller asks once.
    """
    words = _plain(answer)
    if len(words) < LEAST_QUOTED:
        return None
    quoted = [each.ok for each in returns if words in _plain(each.text)]
    if not quoted or any(quoted):
        return None
    return RollBack("error_as_answer", "That is an error of the tool, not an answer. Make another call.", answer[:200])


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def review_outcomes(outcomes: Sequence[CallOutcome]) -> RollBack | None:
    """Whether a turn is to be taken back for what its calls brought: only when none of them is worth keeping."""
    if not outcomes:
        return None
    for outcome in outcomes:
        if not outcome.rollback:
            return None
    first = outcomes[0]
    tool = first.spec.name if first.spec is not None and len({outcome.call.name for outcome in outcomes}) == 1 else ""
    return RollBack(first.status, first.reason, f"{first.call.name}: {first.reason}"[:300], tool)
