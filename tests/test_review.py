"""Whether a turn is kept: decisions over what was read in a reply, and over what its calls brought."""

from __future__ import annotations

import pytest

from closeout import Boxed
from closeout.answers.reading import ContractReading
from closeout.messages import Defect, Reading, ToolCall, ToolSpec
from closeout.results.tool_output import ToolOutput
from closeout.run.review import RollBack, review_outcomes, review_program, review_reply
from closeout.tools.executor import CallOutcome


def review(reading: Reading, found: ContractReading | None = None, *, tools_offered: bool = True) -> str:
    back = review_reply(reading, Boxed(), found or ContractReading(), tools_offered=tools_offered)
    return back.reason if back is not None else ""


def said(text: str) -> Reading:
    return Reading(text, answer=text)


def outcome(name: str = "look", *, rollback: bool = False, known: bool = True, reason: str = "why") -> CallOutcome:
    spec = ToolSpec(name) if known else None
    return CallOutcome(
        call=ToolCall(name),
        spec=spec,
        output=ToolOutput(summary=""),
        text="text",
        status="error",
        reason=reason,
        rollback=rollback,
    )


NON_ANSWERS = [
    "I'm sorry, but I can't help with that.",
    "I don’t have access to the tools needed.",
    "Please consult a professional.",
    "Let me search for that.",
    "Missing: the year the tower was built.",
    "It is forty-two.",
    "抱歉，我无法完成这个任务。",
    "让我先搜索一下。",
    "<think>They want the height.</think>I am unable to find it.",
    "A long text about canals. " * 80 + "That is all.",
]


@pytest.mark.parametrize("text", NON_ANSWERS)
def test_a_reply_that_neither_acts_nor_answers_is_asked_to_whatever_its_words(text: str) -> None:
    back = review_reply(said(text), Boxed(), Boxed().read(text), tools_offered=True)
    assert back is not None
    assert (back.reason, back.draft, back.detail) == ("no_action", text, r"There is no \boxed{} in the reply.")
    assert back.hint.startswith(back.detail)
    assert "call a tool" in back.hint
    assert Boxed().finishing() in back.hint
    assert len(back.hint) < 160


@pytest.mark.parametrize("text", NON_ANSWERS)
def test_without_tools_such_a_reply_is_for_closing(text: str) -> None:
    assert review(said(text), tools_offered=False) == ""


def test_calls_are_never_rolled_back_before_they_ran() -> None:
    reading = Reading("I'm sorry, let me search", calls=(ToolCall("look"),), defects=(Defect("x", "y"),))
    assert review(reading) == ""


def test_a_defect_says_its_own_reason_and_hint() -> None:
    reading = Reading("", defects=(Defect("truncated", "Write it shorter."),))
    back = review_reply(reading, Boxed(), ContractReading(), tools_offered=True)
    assert back == RollBack("truncated", "Write it shorter.")


def test_an_answer_that_fits_is_kept_whatever_its_words() -> None:
    for text in (
        "I'm sorry, it is 4.",
        "Let me search for that. It is 4.",
        "again and again " * 200,
    ):
        assert review(said(text), ContractReading(text, text, ok=True)) == ""


def test_an_empty_and_a_repeating_reply_are_rolled_back() -> None:
    assert review(said(" \n")) == review(Reading("")) == "empty"
    assert review(said("I will look at it once more. " * 60)) == "repeating"


def test_a_turn_is_rolled_back_only_if_none_of_its_calls_is_worth_keeping() -> None:
    bad, good = outcome(rollback=True), outcome()
    assert review_outcomes([]) is None
    assert review_outcomes([bad, good]) is None
    assert review_outcomes([bad, bad]) == RollBack(
        "error", "The call of look failed: change its arguments, or make another call.", "look: why", "look"
    )


def test_no_one_tool_is_to_blame_for_calls_of_several_or_of_an_unknown_one() -> None:
    several = review_outcomes([outcome("a", rollback=True), outcome("b", rollback=True)])
    unknown = review_outcomes([outcome("nope", rollback=True, known=False)])
    assert several is not None
    assert unknown is not None
    assert (several.tool, unknown.tool) == ("", "")


@pytest.mark.parametrize(
    ("program", "repeats"),
    [
        (f"final_answer({' * '.join('3' * 30)})", True),
        (f"# answer = {'price + ' * 25}price", True),
        (f"# {'-' * 80}\nx = 1", False),
        ("rows = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]", False),
        ("print(search('a'))\n" * 40, False),
    ],
)
def test_a_program_that_repeats_itself_is_rolled_back(program: str, repeats: bool) -> None:
    assert (review_program(program) is not None) is repeats
