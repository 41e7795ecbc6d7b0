"""Score trials: by the answer, by the record, with your own function, or with a model that judges."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, get_args

from closeout.answers.boxed import extract_boxed
from closeout.answers.contracts import Choice, Json
from closeout.answers.grading import Grade, GradeMethod, grade
from closeout.answers.normal_form import parse_number, plain_text, same_unit
from closeout.answers.reading import shorten
from closeout.assembly.named import named_object
from closeout.codec import value_or_text
from closeout.errors import RunNotFound, UsageError
from closeout.evaluate.scores import Attempted, Score
from closeout.overrides import returned

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.models.base import BaseClient

__all__ = ["Judge", "Panel", "Scorer", "ScorerSource", "make_scorer"]


class Scorer(Protocol):
    """Scores trials. `name` is stored with each score; scorers with different settings need different names."""

    name: str

    async def score(self, attempt: Attempted) -> Score:
        """Return how right a trial is. It may be called again for the same trial."""


ScoringFunction: TypeAlias = "Callable[[Attempted], Score | Grade | bool | float | Awaitable[Any]]"
ScorerSource: TypeAlias = "str | Scorer | ScoringFunction"
"""A scorer's name, a Scorer, or a function of an `Attempted`."""


def make_scorer(source: ScorerSource, *, home: Any = None) -> Scorer:
    """Return the scorer for a name or a function.

    Names: exact, normalized, math, choice (as `closeout.answers.grading.grade` knows them), numeric and
    numeric:TOLERANCE (relative), includes, em, f1, json, judge:MODEL, and `module:function`.

    Args:
        source: The name, the function, or a Scorer.
        home: Where a judge keeps its runs.

    Raises:
        UsageError: There is no such scorer.
    """
    if not isinstance(source, str):
        if hasattr(source, "score"):
            return cast(Scorer, source)
        if callable(source):
            return FunctionScorer(source)
        raise UsageError(f"A scorer must be a name, a function or a Scorer, got {source!r:.60}.")
    name, _, setting = source.partition(":")
    if source in _GRADED:
        return _Graded(source, _GRADED[source])
    if name == "numeric":
        return _numeric(source, setting)
    if name == "judge":
        if not setting:
            raise UsageError("judge needs the model that judges: judge:openai:gpt-5, judge:local.")
        return Judge(setting, home=home)
    if setting:
        return FunctionScorer(named_object(source), source)
    raise UsageError(f"'{source}' is not a scorer. Use {', '.join(_GRADED)}, numeric, judge:MODEL or module:function.")


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FunctionScorer:
    """Scores with a function of an `Attempted`, or of an answer and a right answer. The function may be async.

    Parameters with a default are settings of the function.
    """

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        required = [each for each in parameters if each.default is each.empty and each.kind in _POSITIONAL]
        self._takes_golds = len(required) == 2

    async def score(self, attempt: Attempted) -> Score:
        if self._takes_golds:
            if attempt.answer is None:
                return NO_ANSWER
            scores = [await self._called(attempt.answer, gold) for gold in attempt.task.golds]
            return max(scores, key=lambda score: score.value, default=NO_GOLD)
        return await self._called(attempt)

    async def _called(self, *arguments: Any) -> Score:
        return Score.of(await returned(self._function(*arguments)))


# ------------------------------------------------------------------------------------------------ by the answer's text

NO_ANSWER = Score(0.0, False, "There is no answer.")
NO_GOLD = Score(0.0, False, "The task has no right answer to compare with.", judged=False)


class _Graded:
    """Compares the answer with each right one; the best score counts."""

    def __init__(self, name: str, compare: Callable[[str, str], Score]) -> None:
        self.name = name
        self._compare = compare
        self._in_thread = name == "math"  # It waits for another process.

    async def score(self, attempt: Attempted) -> Score:
        if attempt.answer is None or not attempt.answer.strip():
            return NO_ANSWER
        if self._in_thread:
            return await asyncio.to_thread(self._best, attempt.answer, attempt.task.golds)
        return self._best(attempt.answer, attempt.task.golds)

    def _best(self, answer: str, golds: Sequence[str]) -> Score:
        answer = extract_boxed(answer, blacklist=()) or answer.strip()
        return max((self._compare(answer, gold) for gold in golds), key=lambda score: score.value, default=NO_GOLD)


def _by_grade(method: GradeMethod) -> Callable[[str, str], Score]:
    return lambda answer, gold: Score.of(grade(answer, gold, method))


def _numeric(name: str, setting: str) -> Scorer:
    try:
        tolerance = float(setting or 1e-6)
    except ValueError:
        tolerance = math.nan
    if not 0 <= tolerance < 1:
        raise UsageError(f"'{name}': the tolerance must be a number from 0 to 1, such as numeric:0.01.")

    def compare(answer: str, gold: str) -> Score:
        right = parse_number(plain_text(gold), any_unit=True)
        if right is None:
            return Score(0.0, False, f"The right answer '{shorten(gold)}' is not a number.", judged=False)
        ours = parse_number(plain_text(answer), unit=right.unit or None)
        if ours is None or (right.unit and ours.unit and not same_unit(ours.unit, right.unit)):
            return Score(0.0, False, f"'{shorten(answer)}' is not a number{right.unit and ' in ' + right.unit}.")
        same = math.isclose(ours.value, right.value, rel_tol=tolerance, abs_tol=1e-12)
        return Score(float(same), same, f"{ours.value:g} {'is' if same else 'is not'} {right.value:g}.")

    return _Graded(name, compare)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Scripts without spaces between words: each character counts as a word, as in MLQA (Lewis et al. 2020).
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")
_CLOSED = frozenset({"yes", "no", "noanswer"})


def _words(text: str) -> list[str]:
    """Return the words that extractive question answering compares: no case, punctuation and articles.

    The rules are those of SQuAD 1.1; Unicode punctuation and unspaced scripts are read as in MLQA.
    """
    kept = "".join(c for c in text.lower() if c not in string.punctuation and unicodedata.category(c)[0] != "P")
    return _ARTICLES.sub(" ", _UNSPACED.sub(r" \1 ", kept)).split()


def _em(answer: str, gold: str) -> Score:
    same = _words(answer) == _words(gold)
    return Score(float(same), same, f"'{shorten(answer)}' {'is' if same else 'is not'} '{shorten(gold)}'.")


def _f1(answer: str, gold: str) -> Score:
    """F1 of the words; correct is the exact match. Yes and no match only themselves, as in HotpotQA."""
    ours, right = _words(answer), _words(gold)
    same = ours == right
    common = sum((Counter(ours) & Counter(right)).values())
    closed = not same and (" ".join(ours) in _CLOSED or " ".join(right) in _CLOSED)
    value = 1.0 if same else 0.0 if closed or not common else 2 * common / (len(ours) + len(right))
    return Score(value, same, f"{common} words in common of {len(ours)} in the answer and {len(right)} right ones.")


def _includes(answer: str, gold: str) -> Score:
    ours, right = _words(answer), _words(gold)
    found = bool(right) and any(ours[i : i + len(right)] == right for i in range(len(ours) - len(right) + 1))
    return Score(float(found), found, f"'{shorten(gold)}' is {'' if found else 'not '}in the answer.")


def _json(answer: str, gold: str) -> Score:
    right = value_or_text(gold)
    reading = Json().read(answer)
    value = reading.value if reading.ok else None
    if not reading.ok:
        try:
            value = json.loads(answer)
        except ValueError:
            return Score(0.0, False, "The answer is not JSON.")
    same = _same_json(value, right)
    return Score(float(same), same, "The same JSON value." if same else f"Another JSON value than {shorten(gold)}.")


def _same_json(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_json, one, other))
    return bool(one == other)


_GRADED: dict[str, Callable[[str, str], Score]] = {
    **{method: _by_grade(method) for method in get_args(GradeMethod)},
    "includes": _includes,
    "em": _em,
    "f1": _f1,
    "json": _json,
}


# ------------------------------------------------------------------------------------------------ a model that judges

JUDGE_INSTRUCTIONS = """\
You grade answers. You get a question, its right answer, and an answer to grade. Do not solve the question yourself.
The answer is right if it says the same as the right answer; other wording, units written differently and rounding that
does not matter are fine. It is wrong if it says something else, names several answers, or leaves it open.
Give one sentence of reasoning, then the verdict."""


class Judge:
    """A model that decides whether an answer is right. Its verdict has a contract: it must be "right" or "wrong".

    A verdict is a run in the journal, so an interrupted evaluation does not ask again. If a judge gave no
    verdict, the next call of `score` asks again.

    Args:
        model: A model's name or a client.
        instructions: How to judge.
        name: The scorer's name, `judge:MODEL` by default.
        home: Where its runs are kept; as for `Agent`.
        options: Further arguments of its `Agent`.
    """

    def __init__(
        self,
        model: str | BaseClient,
        *,
        instructions: str = JUDGE_INSTRUCTIONS,
        name: str = "",
        home: Any = None,
        **options: Any,
    ) -> None:
        from closeout.agent import Agent

        self._instructions = instructions
        self.agent: Agent[None, str] = Agent(
            model, instructions=instructions, answer=Choice(["right", "wrong"]), home=home, **options
        )
        self.agent.plan().with_deps(None)  # refuses a model whose key is missing
        self.name = name or f"judge:{model if isinstance(model, str) else model.name}"

    async def score(self, attempt: Attempted) -> Score:
        if attempt.answer is None or not attempt.answer.strip():
            return NO_ANSWER
        if not attempt.task.golds:
            return NO_GOLD
        parts = {
            "question": attempt.task.question,
            "right_answer": " | ".join(attempt.task.golds),
            "answer_to_grade": shorten(attempt.answer, 4_000),
        }
        task = json.dumps(parts, ensure_ascii=False, indent=0)  # JSON, so that an answer cannot pose as another part
        digest = hashlib.sha256(f"{self.name}\0{self._instructions}\0{task}".encode()).hexdigest()[:12]
        judge = self.agent.with_gate(attempt.gate)
        run_id = self._run_id(f"{attempt.run_id or 'judge'}.judge-{digest}")
        outcome = await judge.run_once(task, run_id=run_id, origin={"judge_of": attempt.run_id})
        if outcome.answer is None:
            return Score(0.0, False, f"The judge gave no verdict: {outcome.error or outcome.stop_reason}", judged=False)
        right = outcome.answer == "right"
        return Score(float(right), right, f"{self.name} says {outcome.answer}; see run {run_id}.")

    def _run_id(self, first: str) -> str:
        """Return the name of the run that asks: a new one after each that ended without a verdict."""
        store, run_id = self.agent.store(), first
        for number in count(2):
            try:
                if store is None or store.run(run_id).status != "unanswered":
                    break
            except RunNotFound:
                break
            run_id = f"{first}.{number}"
        return run_id


class Panel:
    """Several judges: an answer is right if more than half of them say so. The value is their share.

    A judge without a verdict counts against the answer. A judge's verdict is a run in the journal, so the judges may be
    scorers of their own beside the panel: they are asked once, and the report shows how well each agrees with it.

    Args:
        judges: The judges, or names of models. Each must have a name of its own.
        name: The scorer's name.
        home: Where judges that are made of names keep their runs.
    """

    def __init__(self, judges: Sequence[Scorer | str], *, name: str = "panel", home: Any = None) -> None:
        self.judges = [Judge(each, home=home) if isinstance(each, str) else each for each in judges]
        names = [judge.name for judge in self.judges]
        if len(names) < 2 or len({*names}) < len(names):
            raise UsageError(f"A panel needs two or more judges, each with a name of its own, got {', '.join(names)}.")
        self.name = name

    async def score(self, attempt: Attempted) -> Score:
        scores = await asyncio.gather(*(judge.score(attempt) for judge in self.judges))
        right = sum(score.judged and score.correct for score in scores)
        votes = [
            f"{judge.name} {'right' if score.correct else 'wrong' if score.judged else 'no verdict'}"
            for judge, score in zip(self.judges, scores, strict=True)
        ]
        reason = f"{right} of {len(scores)} say right: {', '.join(votes)}."
        return Score(right / len(scores), 2 * right > len(scores), reason, any(score.judged for score in scores))
