"""Whether a turn is kept: decisions over what was read in a reply, and over what its calls brought."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import Agent, tool
from closeout.answers.replies import is_refusal
from closeout.errors import ToolError
from closeout.messages import Defect, Reading, ToolCall, ToolReturn, ToolSpec
from closeout.orchestrator.review import RollBack, review_answer, review_outcomes, review_reply
from closeout.outputs.models import ToolOutput
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.executor import CallOutcome


def review(reading: Reading, **options: Any) -> str:
    asked = {"answer_fits": False, "tools_offered": True, "may_nudge": True, **options}
    back = review_reply(reading, **asked)
    return back.reason if back is not None else ""


def said(text: str) -> Reading:
    return Reading(text, answer=text)


def outcome(name: str = "look", *, rollback: bool = False, known: bool = True, reason: str = "why") -> CallOutcome:
    spec = ToolSpec(name) if known else None
    return CallOutcome(ToolCall(name), spec, ToolOutput(summary=""), "text", "error", reason, rollback=rollback)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I cannot do this.".replace("’", "'"),
        "Sorry, no.",
        "I cannot determine the answer.",
        "Unfortunately, the pages did not load.",
        "As an AI language model I have no access to the internet.",
        "I do not know.",
        "It is not possible to answer this.",
        "<think>They want the height.</think>I am unable to find it.",
        "抱歉，我无法完成这个任务。",
        "我无法确定答案。",
        "作为一个人工智能，我不能访问网络。",
    ],
)
def test_a_refusal_is_known_in_both_languages_whoever_asks(text: str) -> None:
    assert is_refusal(text)
    assert review(said(text)) == "refusal"


@pytest.mark.parametrize(
    "text", ["The book is called I Am Sorry, Mother.", "42", "", "I'm sorry to bother. " + "The canal is long. " * 60]
)
def test_an_answer_that_holds_such_words_or_is_long_is_none(text: str) -> None:
    assert not is_refusal(text)


def test_calls_are_never_taken_back_before_they_ran() -> None:
    reading = Reading("I'm sorry, let me search", calls=(ToolCall("look"),), defects=(Defect("x", "y"),))
    assert review(reading) == ""


def test_a_defect_says_its_own_reason_and_hint() -> None:
    back = review_reply(Reading("", defects=(Defect("truncated", "Write it shorter."),)), answer_fits=False,
                        tools_offered=True, may_nudge=True)  # fmt: skip
    assert back == RollBack("truncated", "Write it shorter.")


def test_what_is_not_missing_any_more_is_no_plan() -> None:
    assert review(said("Known: it is 4. Missing: nothing.")) == ""


def test_an_answer_that_fits_is_kept_whatever_its_words() -> None:
    for text in (
        "I'm sorry, it is 4.",
        "Let me search for that. It is 4.",
        "again and again " * 200,
    ):
        assert review(said(text), answer_fits=True) == ""


def test_an_empty_and_a_repeating_reply_are_taken_back() -> None:
    assert review(said(" \n")) == review(Reading("")) == "empty"
    assert review(said("I will look at it once more. " * 60)) == "repeating"


@pytest.mark.parametrize(
    "text",
    [
        "Let me search for that.",
        "Missing: the year the tower was built.",
        "I'll look up the population next.",
        "I need to check it.",
        "让我先搜索一下。",
        "接下来查询人口。",
    ],
)
def test_a_plan_without_a_call_is_nudged_while_that_is_allowed(text: str) -> None:
    assert review(said(text)) == "no_action"
    assert review(said(text), may_nudge=False) == ""
    assert review(said(text), tools_offered=False) == ""


def test_plain_text_that_only_lacks_its_form_is_for_closing() -> None:
    assert review(said("It is forty-two.")) == ""


def test_a_refusal_is_told_what_it_may_use() -> None:
    hints = [
        review_reply(said("I can't."), answer_fits=False, tools_offered=offered, may_nudge=False)
        for offered in (True, False)
    ]
    assert ["tools" in hint.hint for hint in hints if hint is not None] == [True, False]


def test_a_turn_is_taken_back_only_when_none_of_its_calls_is_worth_keeping() -> None:
    bad, good = outcome(rollback=True), outcome()
    assert review_outcomes([]) is None
    assert review_outcomes([bad, good]) is None
    assert review_outcomes([bad, bad]) == RollBack("error", "why", "look: why", "look")


def test_no_one_tool_is_to_blame_for_calls_of_several_or_of_an_unknown_one() -> None:
    several = review_outcomes([outcome("a", rollback=True), outcome("b", rollback=True)])
    unknown = review_outcomes([outcome("nope", rollback=True, known=False)])
    assert several is not None
    assert unknown is not None
    assert (several.tool, unknown.tool) == ("", "")


FAILED = "Error: There is no document 'Cedar Hill'. There are: a.md, b.md."


def returned(text: str, *, ok: bool) -> ToolReturn:
    return ToolReturn(ToolCall("look"), text, ok=ok)


def test_an_answer_that_is_only_the_error_of_the_last_call_is_asked_for_again() -> None:
    back = review_answer("There is no document  'Cedar Hill'.", [returned(FAILED, ok=False)])
    assert back is not None
    assert (back.reason, "not an answer" in back.hint) == ("error_as_answer", True)


@pytest.mark.parametrize(
    ("answer", "returns"),
    [
        ("a.md", [returned(FAILED, ok=False)]),  # short: it may stand in an error by chance
        ("Cedar Hill has no document of its own", [returned(FAILED, ok=False)]),
        (FAILED, [returned(FAILED, ok=True)]),  # what a log file says, for one
        (FAILED, [returned(FAILED, ok=False), returned(f"The log says: {FAILED}", ok=True)]),
        (FAILED, []),
        ("", [returned(FAILED, ok=False)]),
    ],
)
def test_an_answer_that_is_more_than_that_stands(answer: str, returns: list[ToolReturn]) -> None:
    assert review_answer(answer, returns) is None


async def test_it_is_asked_for_once_in_an_attempt() -> None:
    @tool(read_only=True)
    def look(name: str) -> str:
        """Look it up.

        Args:
            name: what
        """
        if name == "wrong":
            raise ToolError("There is no document of that name here.")
        return "It was founded by Ada Byron."

    quoted = answer("There is no document of that name here.")
    client = ScriptedClient([call("look", name="wrong"), quoted, call("look", name="right"), answer("Ada Byron")])
    result = await Agent(client, [look], home=False).run("Who founded it?")
    assert (result.answer, result.rollbacks) == ("Ada Byron", 1)

    stubborn = ScriptedClient([call("look", name="wrong"), quoted, quoted])
    result = await Agent(stubborn, [look], home=False).run("What does the tool say?")
    assert (result.answer, result.rollbacks) == ("There is no document of that name here.", 1)
