"""Is an answer right? For people who measure: exact, GAIA's rules, choice, mathematical equivalence, a model as judge.

The loop never grades. Which of several answers is given is decided in `selection`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from closeout.answers.boxed import extract_boxed
from closeout.answers.contracts import Choice
from closeout.answers.normal_form import as_number, folded, list_items
from closeout.answers.reading import said, shorten
from closeout.answers.values import plain_text
from closeout.errors import CloseoutError, UsageError
from closeout.messages import Message, ModelRequest

__all__ = ["Grade", "GradeMethod", "grade", "judge"]

GradeMethod = Literal["exact", "normalized", "math", "choice"]

_WORDS = re.compile(r"[^\W\d_]{3,}(?:[\s'-]+[^\W\d_]+)*")
_GROUPED = re.compile(r"[-+$ ]*\d{1,3}(?:,\d{3})+(?:\.\d+)?[% ]*")  # "1,000" is a number, "3,4" a list
_LETTERS = "ABCDEFGHIJ"

JUDGE_PROMPT = """\
Decide whether an answer to a question is right. You are given the right answer; do not solve the question yourself.

Question: {question}

Right answer: {gold}

Answer to judge: {prediction}

It is right if it says the same as the right answer; other wording, units written differently and rounding that does not
matter are fine. It is wrong if it says something else, names several answers, or leaves it open.
Write one sentence of reasoning, then on a line of its own exactly "Verdict: right" or "Verdict: wrong"."""

_VERDICT = re.compile(r"verdict\W{0,6}(right|wrong|correct|incorrect)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether an answer is right, by which method, and why. `judged` is False when there was no verdict at all."""

    correct: bool
    method: str
    reason: str = ""
    judged: bool = True

    def __bool__(self) -> bool:
        return self.correct


def grade(
    prediction: str | None, gold: str | Sequence[str], method: GradeMethod = "normalized", *, timeout: float = 10.0
) -> Grade:
    r"""Compares an answer with the right one, or with several of which any will do.

    A prediction that holds a `\boxed{…}` stands for its content. Methods:
    `exact`: the same text but for white space around it.
    `normalized`: the rules of the GAIA leaderboard; a gold answer that is a number ("1,000" is one) is compared as a
    number, one with commas or semicolons item by item, any other without case, white space and punctuation.
    `choice`: the letter or the option.
    `math`: mathematical equivalence, at most `timeout` seconds; needs `closeout[math]`.
    Never raises over what the answers hold; an unknown method is a UsageError.
    """
    compare = _METHODS.get(method)
    if compare is None:
        raise UsageError(f"There is no grading method '{method}'. There are: {', '.join(_METHODS)}.")
    if prediction is None or not prediction.strip():
        return Grade(False, method, "There is no answer.")
    answer = extract_boxed(prediction, blacklist=()) or prediction.strip()
    golds = [gold] if isinstance(gold, str) else list(gold)
    grades = [compare(answer, one.strip(), timeout) for one in golds]
    for one in grades:
        if one.correct:
            return one
    return grades[0] if grades else Grade(False, method, "There is no right answer to compare with.", judged=False)


async def judge(
    prediction: str | None,
    gold: str,
    question: str,
    client: Any,
    *,
    prompt: str = JUDGE_PROMPT,
) -> Grade:
    """A model's verdict. `client`: a model client, or an async function from prompt to reply.

    Not judged (and not correct) when the model fails or gives no verdict; never raises but for cancellation.
    """
    if prediction is None or not prediction.strip():
        return Grade(False, "judge", "There is no answer.")
    slots = {"question": question, "gold": gold, "prediction": shorten(prediction, 4_000)}
    # One pass, so that nothing in an answer can fill a slot.
    text = re.sub(r"\{(question|gold|prediction)\}", lambda slot: slots[slot[1]], prompt)
    try:
        reply = await _asker(client)(text)
    except (CloseoutError, OSError) as error:
        return Grade(False, "judge", f"The judge failed: {error}", judged=False)
    visible = said(reply)
    verdicts = _VERDICT.findall(visible)
    if not verdicts:
        return Grade(False, "judge", f"The judge gave no verdict: {shorten(visible, 200)}", judged=False)
    reason = _VERDICT.split(visible)[0].strip() or visible.strip()
    return Grade(verdicts[-1].lower() in ("right", "correct"), "judge", shorten(reason, 300))


def _asker(client: Any) -> Callable[[str], Awaitable[str]]:
    if not hasattr(client, "complete"):
        ask: Callable[[str], Awaitable[str]] = client
        return ask

    async def complete(text: str) -> str:
        request = ModelRequest(messages=(Message(role="user", content=text),), temperature=0.0)
        return str((await client.complete(request)).text)

    return complete


# ------------------------------------------------------------------------------------------------ the methods


def _exact(prediction: str, gold: str, timeout: float) -> Grade:
    return _grade("exact", prediction == gold, prediction, gold)


def _normalized(prediction: str, gold: str, timeout: float) -> Grade:
    number = as_number(gold)
    if number is not None and ("," not in gold or _GROUPED.fullmatch(gold)):
        return _grade("normalized", as_number(plain_text(prediction)) == number, prediction, gold, "as numbers")
    if not re.search("[,;，；、]", gold):
        same = folded(plain_text(prediction), punctuation=False) == folded(plain_text(gold), punctuation=False)
        return _grade("normalized", same, prediction, gold, "as texts")
    ours, theirs = list_items(plain_text(prediction)), list_items(plain_text(gold))
    if len(ours) != len(theirs):
        return Grade(False, "normalized", f"{len(ours)} item(s) instead of {len(theirs)}.")
    for position, (one, wanted) in enumerate(zip(ours, theirs, strict=True), 1):
        number = as_number(wanted)
        same = as_number(one) == number if number is not None else folded(one) == folded(wanted)
        if not same:
            return Grade(False, "normalized", f"Item {position}: '{shorten(one)}' is not '{shorten(wanted)}'.")
    return Grade(True, "normalized", f"The same {len(ours)} items.")


def _choice(prediction: str, gold: str, timeout: float) -> Grade:
    letter = plain_text(gold).strip("().:").upper()
    if len(letter) == 1 and letter in _LETTERS:
        options = Choice(list(_LETTERS))
        chosen = options.read(prediction).text or options.read(f"\\boxed{{{prediction}}}").text
        return _grade("choice", chosen == letter, chosen or prediction, gold, "as options")
    same = folded(plain_text(prediction), punctuation=False) == folded(plain_text(gold), punctuation=False)
    return _grade("choice", same, prediction, gold, "as options")


def _math(prediction: str, gold: str, timeout: float) -> Grade:
    from closeout.answers.math_worker import MathWorkerFailed, equivalent

    first = _normalized(prediction, gold, timeout)
    # A computer algebra system takes a word for a product of its letters, whose order does not matter.
    if first.correct or _WORDS.fullmatch(plain_text(gold)):
        return Grade(first.correct, "math", first.reason)
    try:
        same = equivalent(prediction, gold, timeout=timeout)
    except MathWorkerFailed as error:
        return Grade(False, "math", f"Not compared: {error}.", judged=False)
    return _grade("math", same, prediction, gold, "as mathematics")


def _grade(method: str, correct: bool, prediction: str, gold: str, how: str = "") -> Grade:
    said_how = f" {how}" if how else ""
    relation = "is" if correct else "is not"
    return Grade(correct, method, f"'{shorten(prediction)}' {relation} '{shorten(gold)}'{said_how}.")


_METHODS: dict[str, Callable[[str, str, float], Grade]] = {
    "exact": _exact,
    "normalized": _normalized,
    "math": _math,
    "choice": _choice,
}
