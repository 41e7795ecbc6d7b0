"""Grade an answer: exact, by GAIA's rules, as a choice, as mathematics, by a model, or by a grader of your own.

The loop never grades. Which of several answers a run gives is decided in `selection`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from closeout.answers.boxed import extract_boxed
from closeout.answers.normal_form import as_number, folded, list_items, math_form, normalised, plain_text, same_unit
from closeout.answers.reading import said, shorten
from closeout.answers.values import Choice
from closeout.errors import CloseoutError, UsageError
from closeout.messages import Message, ModelRequest

__all__ = ["Grade", "GradeMethod", "Grader", "grade", "judge"]

GradeMethod = Literal["exact", "normalized", "math", "choice"]

_WORDS = re.compile(r"[^\W\d_]{3,}(?:[\s'-]+[^\W\d_]+)*")
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
    """The verdict on an answer, the method that gave it, and the reason. `judged` is False if there was no verdict."""

    correct: bool
    method: str
    reason: str = ""
    judged: bool = True

    def __bool__(self) -> bool:
        return self.correct


Grader: TypeAlias = "Callable[[str, str], Grade | bool]"
"""A grader of your own: it compares an answer with one right answer."""


def grade(
    prediction: str | None,
    gold: str | Sequence[str],
    method: GradeMethod | str | Grader = "normalized",
    *,
    timeout: float = 10.0,
) -> Grade:
    r"""Compare an answer with the right one, or with several of which any will do.

    The methods:

    - `exact`: the same text but for white space around it.
    - `normalized`: the rules of the GAIA leaderboard, except that signs, operators, brackets and symbols count. A
      gold answer that is a number ("1,000" is one) is compared as a number, one with commas or semicolons item by
      item, any other as a text without case, white space and punctuation.
    - `choice`: the letter or the option.
    - `math`: math-verify's verdict where `closeout[math]` is installed; without it the same normal form.

    Args:
        prediction: The answer. The content of a `\boxed{…}` in it is taken instead of the whole.
        gold: The right answer, or several.
        method: One of the methods above, or a grader.
        timeout: Seconds for `math`.

    Raises:
        UsageError: If there is no such method. Never for what the answers hold.
    """
    name, compare = _grader_of(method, timeout)
    if prediction is None or not prediction.strip():
        return Grade(False, name, "There is no answer.")
    answer = extract_boxed(prediction, blacklist=()) or prediction.strip()
    golds = [gold] if isinstance(gold, str) else list(gold)
    verdicts = [(compare(answer, one.strip()), one.strip()) for one in golds]
    grades = [
        verdict if isinstance(verdict, Grade) else _grade(name, bool(verdict), answer, one) for verdict, one in verdicts
    ]
    if right := next(filter(None, grades), None):
        return right
    return grades[0] if grades else Grade(False, name, "There is no right answer to compare with.", judged=False)


def _grader_of(method: str | Grader, timeout: float) -> tuple[str, Grader]:
    if callable(method):
        return getattr(method, "__name__", type(method).__name__), method
    grader = partial(_math, timeout=timeout) if method == "math" else _METHODS.get(method)
    if grader is None:
        raise UsageError(f"'{method}' is not a grading method. Use one of {', '.join(_METHODS)}, or pass a function.")
    return method, grader


async def judge(
    prediction: str | None,
    gold: str,
    question: str,
    client: Any,
    *,
    prompt: str = JUDGE_PROMPT,
) -> Grade:
    """Let a model decide whether an answer is right.

    Args:
        prediction: The answer.
        gold: The right answer.
        question: The question, for context.
        client: A model by its name, such as "openai:gpt-5"; a model client; or an async function from prompt to reply.
        prompt: The prompt, with the slots `{question}`, `{gold}` and `{prediction}`.

    Returns:
        The model's verdict; one that is not judged (and not correct) if the model fails or gives none.

    Raises:
        ConfigError: The name is not that of a model, or its key is missing.
    """
    if isinstance(client, str):
        from closeout.models.connect import connect

        made = connect(client)
        try:
            return await judge(prediction, gold, question, made, prompt=prompt)
        finally:
            await made.aclose()
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


def _normalized(prediction: str, gold: str) -> Grade:
    number = as_number(gold)
    if number is not None:
        return _grade("normalized", as_number(plain_text(prediction)) == number, prediction, gold, "as numbers")
    if not re.search("[,;，；、]", gold) or _is_bracketed(gold):
        same = _text_form(prediction) == _text_form(gold)
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


def _is_bracketed(text: str) -> bool:
    """Return True if commas in a text belong to an interval, a pair or a set."""
    return plain_text(text)[:1] in ("(", "[", "{", "\\") and plain_text(text)[-1:] in (")", "]", "}")


def _text_form(text: str) -> str:
    form = math_form(text) if "\\" in text else plain_text(text)
    return folded(form) or form


def _choice(prediction: str, gold: str) -> Grade:
    letter = plain_text(gold).strip("().:").upper()
    if len(letter) == 1 and letter in _LETTERS:
        options = Choice(list(_LETTERS))
        chosen = options.read(prediction).text or options.read(f"\\boxed{{{prediction}}}").text
        return _grade("choice", chosen == letter, chosen or prediction, gold, "as options")
    return _grade("choice", _text_form(prediction) == _text_form(gold), prediction, gold, "as options")


def _math(prediction: str, gold: str, timeout: float = 10.0) -> Grade:
    from closeout.answers.math_worker import MathVerifyMissing, MathWorkerFailed, equivalent

    if normalised(prediction) == normalised(gold):
        return _grade("math", True, prediction, gold, "as written")
    if ("%" in prediction) != ("%" in gold):  # 50% is 50 here as in `normalized`, so that it is not 0.5, too
        prediction, gold = prediction.replace("\\%", "").replace("%", ""), gold.replace("\\%", "").replace("%", "")
    ours, theirs = list_items(plain_text(prediction)), list_items(plain_text(gold))
    if len(theirs) > 1 and as_number(gold) is None and not _is_bracketed(gold):  # a computer algebra system sees a set
        if len(ours) != len(theirs):
            return Grade(False, "math", f"{len(ours)} item(s) instead of {len(theirs)}.")
        each = [_math(one, wanted, timeout) for one, wanted in zip(ours, theirs, strict=True)]
        return next((item for item in each if not item), each[0])
    if _is_cut(prediction) or _is_cut(gold):  # a parser would leave the unfinished part out
        return _grade("math", _text_form(prediction) == _text_form(gold), prediction, gold, "as texts")
    # A computer algebra system takes a word for a product of its letters, whose order does not matter.
    if _WORDS.fullmatch(plain_text(gold)):
        return _grade("math", _text_form(prediction) == _text_form(gold), prediction, gold, "as texts")
    try:
        same = equivalent(prediction, gold, timeout=timeout)
    except MathVerifyMissing as error:
        numbers = as_number(prediction) is not None and as_number(gold) is not None
        return Grade(False, "math", f"Not written alike, and {error}.", judged=numbers)
    except MathWorkerFailed as error:
        return Grade(False, "math", f"Not compared: {error}.", judged=False)
    same = same and not _contradict(math_form(prediction), math_form(gold))
    return _grade("math", same, prediction, gold, "as mathematics")


def _is_cut(text: str) -> bool:
    braces = re.sub(r"\\[{}]", "", text)
    return braces.count("{") != braces.count("}")


_TOKEN = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|[A-Za-z]+|[^\sA-Za-z\d]")
_BRACKETS = frozenset("()[]{}")


def _contradict(one: str, other: str) -> bool:
    r"""Return True if two forms are the same but for one number, word, sign or bracket.

    math-verify drops units and number bases, and takes `\mp` for `\pm` and `(1,2)` for `\{1,2\}`.
    """
    if one.replace("'", "") == other.replace("'", ""):
        return one != other
    ours, theirs = _TOKEN.findall(one), _TOKEN.findall(other)
    if len(ours) != len(theirs):
        return False
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    if all(a in _BRACKETS and b in _BRACKETS for a, b in different):
        return bool(different)
    return len(different) == 1 and not _same_token(*different[0])


def _same_token(one: str, other: str) -> bool:
    if one[0].isdigit() and other[0].isdigit():
        shorter, longer = sorted((one, other), key=len)
        return float(one) == float(other) or float(shorter) == round(float(longer), len(shorter.partition(".")[2]))
    if one.isalpha() and other.isalpha():
        return same_unit(one, other)
    return one[0].isalnum() != other[0].isalnum()


def _grade(method: str, correct: bool, prediction: str, gold: str, how: str = "") -> Grade:
    said_how = f" {how}" if how else ""
    relation = "is" if correct else "is not"
    return Grade(correct, method, f"'{shorten(prediction)}' {relation} '{shorten(gold)}'{said_how}.")


_METHODS: dict[str, Grader] = {
    "exact": lambda prediction, gold: _grade("exact", prediction == gold, prediction, gold),
    "normalized": _normalized,
    "math": _math,
    "choice": _choice,
}
