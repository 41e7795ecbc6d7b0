"""Graders: exact, GAIA's rules, choice, mathematics, a model as judge."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from closeout.answers import math_worker
from closeout.answers.grading import Grade, grade, judge
from closeout.errors import ModelUnreachable, UsageError
from closeout.messages import ModelReply, ModelRequest


@pytest.mark.parametrize(
    ("method", "prediction", "gold", "correct"),
    [
        ("exact", " Paris ", "Paris", True),
        ("exact", "paris", "Paris", False),
        ("exact", r"so \boxed{4}", "4", True),
        ("normalized", "$1,000.0", "1000", True),
        ("normalized", "1000", "1,000", True),
        ("normalized", "17%", "17", True),
        ("normalized", "17 or 18", "17", False),
        ("normalized", "１７", "17", True),
        ("normalized", "The  Hague.", "the hague", True),
        ("normalized", "St. Petersburg", "St Petersburg", True),
        ("normalized", "Paris", "Rome", False),
        ("normalized", "b, A", "b,a", True),
        ("normalized", "a, b", "b, a", False),
        ("normalized", "34", "3,4", False),
        ("normalized", "3; 4.0", "3,4", True),
        ("normalized", "a", "a, b", False),
        ("normalized", "北京、上海", "北京，上海", True),
        ("choice", "B", "B", True),
        ("choice", "(b) Rome", "B", True),
        ("choice", "The answer is C.", "C", True),
        ("choice", "D", "C", False),
        ("choice", "A, B", "A", False),
        ("choice", "Not Rome", "Rome", False),
        ("choice", "Yes.", "yes", True),
        ("choice", "Option A is wrong. ANSWER: B", "B", True),
        ("choice", "Ｂ", "B", True),
        ("normalized", "\ufeffParis\u200b.\u200b", "Paris", True),
        ("math", "2^{", "2", False),
        ("math", r"\frac{1}{2}", "0.5", True),
        ("math", "(x+1)^2", "x^2+2x+1", True),
        ("math", r"\{1,2\}", r"\{2,1\}", True),
        ("math", "[1,2)", "[1,2]", False),
        ("math", "4", "5", False),
        ("math", "spira", "Paris", False),
        ("math", r"\frac12", r"-\frac12", False),
        ("math", "x-1", "x+1", False),
        ("math", "x>3", "x<3", False),
        ("math", "e^{1}", "e^{-1}", False),
        ("math", "$x<1$", "$x>-1$", False),
        ("math", r"\mp 2", r"\pm 2", False),
        ("math", r"\{1,2\}", "(1,2)", False),
        ("math", r"[-\infty,2)", r"(-\infty,2)", False),
        ("math", r"5\text{ m}", r"5\text{ cm}", False),
        ("math", "4130_3", "4130_5", False),
        ("math", r"-\$10", r"\$10", False),
        ("math", r"\$32,348", "32348", True),
        ("math", "f'(x)", "f(x)", False),
        ("math", "50%", "50", True),
        ("math", r"50\%", "0.5", False),
        ("math", "0.5", "50%", False),
        ("normalized", "50%", "0.5", False),
        ("math", "1, 2, 3", "3, 2, 1", False),
        ("math", "0.5, 2", r"\frac12, 2", True),
        ("math", "1, 2", "1, 2, 3", False),
        ("math", r"\{3,2,1\}", r"\{1,2,3\}", True),
        ("normalized", "C", "C++", False),
        ("normalized", "C#", "C++", False),
        ("normalized", "x+1", "x-1", False),
        ("normalized", "15", "1,5", False),
        ("normalized", "1,5", "15", False),
        ("normalized", "x2", "x²", False),
        ("normalized", "[1,2]", "(1,2)", False),
        ("normalized", "−7", "-7", True),
        ("normalized", "7", "−7", False),
        ("normalized", "5", "5!", False),
        ("normalized", "nonfiction", "Non-fiction!", True),
        ("normalized", "US", "U.S.", True),
        ("choice", "C", "C++", False),
    ],
)
def test_answers_are_compared_by_the_rules_of_the_method(
    method: Any, prediction: str, gold: str, correct: bool
) -> None:
    given = grade(prediction, gold, method)
    assert given.correct is bool(given) is correct
    assert given.method == method
    assert given.judged
    assert given.reason.endswith(".")


@pytest.mark.parametrize("prediction", [None, "", "  "])
def test_no_answer_is_wrong(prediction: str | None) -> None:
    assert not grade(prediction, "4", "exact")


def test_any_of_several_right_answers_will_do() -> None:
    assert grade("NYC", ["New York City", "NYC"], "normalized")
    assert not grade("LA", ["New York City", "NYC"], "normalized")


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(UsageError, match="'fuzzy'"):
        grade("1", "1", "fuzzy")


def within_one(prediction: str, gold: str) -> bool:
    return abs(int(prediction) - int(gold)) <= 1


def test_a_grader_of_your_own_is_passed() -> None:
    assert grade(r"\boxed{5}", ["4", "9"], within_one) == Grade(True, "within_one", "'5' is '4'.")
    assert not grade("5", "9", within_one)
    assert grade("5", "6", lambda prediction, gold: Grade(True, "near", "Close.")).reason == "Close."
    assert not grade("", "6", within_one)


def test_without_math_verify_answers_written_alike_are_right_and_others_are_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*args: Any, **keys: Any) -> bool:
        raise math_worker.MathVerifyMissing("math-verify is not installed: pip install 'closeout[math]'")

    monkeypatch.setattr(math_worker, "equivalent", missing)
    assert grade(r"\dfrac{1}{2}", r"\frac12", "math")
    assert grade("1,000", "1000.0", "math")
    assert grade(r"\left( 3, 4 \right)", "(3,4)", "math")
    unknown = grade("x+x", "2x", "math")
    assert (unknown.correct, unknown.judged) == (False, False)
    assert "closeout[math]" in unknown.reason
    different = grade("5", "-5", "math")
    assert (different.correct, different.judged) == (False, True)


def test_mathematics_works_from_any_thread() -> None:
    verdicts: list[bool] = []
    threads = [threading.Thread(target=lambda: verdicts.append(bool(grade("2/4", "0.5", "math")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 4


def test_a_comparison_without_end_is_ended_and_the_next_one_works() -> None:
    # Factoring this has no end in sight; the limit is what ends it.
    endless = grade(r"(x+1)^{9^{9}}", r"\sum_{k=0}^{9^{9}} \binom{9^{9}}{k} x^k", "math", timeout=1)
    assert not endless.correct
    assert grade("1/4", "0.25", "math").correct


def test_an_expression_too_long_to_compare_is_not_judged() -> None:
    given = grade("1+" * 5_000 + "1", "5001", "math")
    assert (given.correct, given.judged) == (False, False)


class Judge:
    """A client that replies as scripted."""

    def __init__(self, reply: str | Exception) -> None:
        self.reply = reply
        self.prompt = ""

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.prompt = request.messages[0].text
        if isinstance(self.reply, Exception):
            raise self.reply
        return ModelReply(self.reply)


@pytest.mark.parametrize(
    ("reply", "correct", "judged"),
    [
        ("Same city.\nVerdict: right", True, True),
        ("Other city.\nVerdict: wrong", False, True),
        ("**Verdict:** Correct", True, True),
        ("<think>Verdict: right?</think>No.\nVerdict: wrong", False, True),
        ("Hard to say.", False, False),
        (ModelUnreachable("no connection"), False, False),
    ],
)
async def test_a_model_may_judge(reply: Any, correct: bool, judged: bool) -> None:
    client = Judge(reply)
    given = await judge("Paris, France", "Paris", "Which city?", client)
    assert (given.correct, given.judged, given.method) == (correct, judged, "judge")
    assert all(part in client.prompt for part in ("Which city?", "Paris, France"))


async def test_a_judge_may_be_any_async_function() -> None:
    async def ask(prompt: str) -> str:
        return "Verdict: right"

    assert await judge("{gold} or {question}", "Paris", "Which city?", ask)
    assert not await judge(None, "Paris", "Which city?", ask)


async def test_nothing_in_an_answer_fills_a_slot_of_the_prompt() -> None:
    client = Judge("Verdict: wrong")
    await judge("{gold}", "secret", "q", client)
    assert client.prompt.count("secret") == 1
