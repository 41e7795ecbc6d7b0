"""The report of an evaluation: as numbers, text, Markdown, JSON, and a table of trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from closeout.errors import UsageError
from closeout.evaluate.estimates import (
    BOOTSTRAP_ROUNDS,
    BOOTSTRAP_SEED,
    Estimate,
    bootstrap_interval,
    cohen_kappa,
    mean_estimate,
    pass_at_k,
    pass_hat_k,
)
from closeout.evaluate.tasks import EvalTask
from closeout.evaluate.trials import ORIGINAL, Trial, TrialStore, evaluation_file
from closeout.evaluate.wording import SLICE_COLUMNS, amount, finite, markdown_table, percent, span
from closeout.homes import Home
from closeout.notebook import html_table

__all__ = ["EvalReport", "Slice", "Totals", "load_report", "read_report"]

SHOWN_REASONS = 3  # Reasons that are shown for trials without a verdict.


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The usage of a report's trials, and the number of each way to end.

    Attributes:
        planned: All trials; the denominator of the score.
        finished: Trials that have ended.
        answered: Trials whose run answered.
        unanswered: Trials whose run ended without an answer.
        failed: Trials whose run failed.
        suspended: Trials whose run waits for a person's decision. They are not finished.
        not_judged: Finished trials that got no verdict; they count as wrong.
        correct: Trials that are right.
        tries: How often trials were tried again after transient failures.
        cost: US dollars; None if no price is known.
        seconds: Seconds of work of all runs together.
    """

    planned: int
    finished: int
    answered: int
    unanswered: int
    failed: int
    suspended: int
    not_judged: int
    correct: int
    tries: int
    turns: int
    rollbacks: int
    repairs: int
    tool_calls: int
    tool_failures: int
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Slice:
    """The trials of the tasks that have one value in a metadata field."""

    value: str
    score: Estimate
    totals: Totals


@dataclass(frozen=True)
class EvalReport:
    """The results of an evaluation. Trials that failed, or are not finished, count as wrong.

    Attributes:
        name: The evaluation.
        spec: Its description: agent, settings, scorers, versions, command.
        tasks: Its tasks.
        trials: Its trials, by task and epoch.
        scorer: The name of the scorer whose scores it shows.
        stopped: Why the sweep that made it ended early ("max_cost", "stopped"); empty if it did not.
    """

    name: str
    spec: Mapping[str, Any]
    tasks: Sequence[EvalTask]
    trials: Sequence[Trial]
    scorer: str
    stopped: str = ""

    # -------------------------------------------------------------------------------------------- numbers

    def value_of(self, trial: Trial) -> float:
        """Return a trial's score, 0 if it has none."""
        score = trial.scores.get(self.scorer)
        return score.value if score is not None else 0.0

    def is_correct(self, trial: Trial) -> bool:
        """Return whether a trial is right."""
        score = trial.scores.get(self.scorer)
        return score is not None and score.correct

    @cached_property
    def by_task(self) -> dict[str, list[Trial]]:
        """The trials of each task."""
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.task_id, []).append(trial)
        return found

    @property
    def clusters(self) -> list[list[float]]:
        """The scores of each task's trials."""
        return [[self.value_of(trial) for trial in trials] for trials in self.by_task.values()]

    @cached_property
    def score(self) -> Estimate:
        """The mean score over all trials, with its clustered standard error."""
        return mean_estimate(self.clusters)

    @cached_property
    def score_so_far(self) -> Estimate:
        """The mean score over the trials that have ended, for a running sweep."""
        return mean_estimate(
            [[self.value_of(t) for t in trials if t.state == "finished"] for trials in self.by_task.values()]
        )

    def bootstrap(self, *, rounds: int = BOOTSTRAP_ROUNDS, seed: int = BOOTSTRAP_SEED) -> tuple[float, float]:
        """Return the 95 % interval of the mean score when tasks are drawn again."""
        if (rounds, seed) not in self._bootstraps:
            self._bootstraps[rounds, seed] = bootstrap_interval(self.clusters, rounds=rounds, seed=seed)
        return self._bootstraps[rounds, seed]

    @cached_property
    def _bootstraps(self) -> dict[tuple[int, int], tuple[float, float]]:
        return {}

    @property
    def epochs(self) -> int:
        """The smallest number of trials that any task has."""
        return min(map(len, self.by_task.values()), default=0)

    def pass_at(self, k: int) -> Estimate:
        """Estimate the chance that at least one of k trials of a task is right.

        Raises:
            UsageError: A task has fewer than k trials.
        """
        return self._by_draws(k, pass_at_k)

    def pass_hat(self, k: int) -> Estimate:
        """Estimate the chance that all of k trials of a task are right (pass^k).

        Raises:
            UsageError: A task has fewer than k trials.
        """
        return self._by_draws(k, pass_hat_k)

    def _by_draws(self, k: int, share: Callable[[int, int, int], float]) -> Estimate:
        if not 1 <= k <= self.epochs:
            raise UsageError(f"k must be from 1 to {self.epochs}, the trials of each task, got {k}. Run more epochs.")
        shares = {counts: share(*counts, k) for counts in set(self._counts)}
        return mean_estimate([[shares[counts]] for counts in self._counts])

    @cached_property
    def _counts(self) -> list[tuple[int, int]]:
        """The numbers of trials, and of right ones, of each task."""
        return [(len(trials), sum(map(self.is_correct, trials))) for trials in self.by_task.values()]

    @cached_property
    def totals(self) -> Totals:
        """The usage of the trials, and the number of each way to end."""
        outcomes = [trial.outcome for trial in self.trials if trial.outcome is not None]
        statuses = Counter(outcome.status for outcome in outcomes)
        finished = [trial for trial in self.trials if trial.state == "finished"]
        judged = sum(trial.scores[self.scorer].judged for trial in finished if self.scorer in trial.scores)
        costs = [outcome.cost for outcome in outcomes if outcome.cost is not None]

        def total(name: str) -> Any:
            return sum(getattr(outcome, name) for outcome in outcomes)

        return Totals(
            planned=len(self.trials),
            finished=len(finished),
            answered=statuses["answered"],
            unanswered=statuses["unanswered"],
            failed=statuses["failed"],
            suspended=statuses["waiting"],
            not_judged=len(finished) - judged,
            correct=sum(map(self.is_correct, self.trials)),
            tries=sum(trial.tries for trial in self.trials),
            turns=total("turns"),
            rollbacks=total("rollbacks"),
            repairs=total("repairs"),
            tool_calls=total("tool_calls"),
            tool_failures=total("tool_failures"),
            requests=total("requests"),
            input_tokens=total("input_tokens"),
            output_tokens=total("output_tokens"),
            cached_tokens=total("cached_tokens"),
            cost=sum(costs) if costs else None,
            seconds=round(total("seconds"), 3),
        )

    @cached_property
    def failures(self) -> dict[str, int]:
        """The number of trials that ended without an answer, by the kind of failure or the stop reason."""
        kinds = Counter(
            trial.outcome.error_kind or trial.outcome.stop_reason
            for trial in self.trials
            if trial.outcome is not None and trial.state == "finished" and trial.outcome.status != "answered"
        )
        return dict(kinds.most_common())

    def slices(self, name: str) -> list[Slice]:
        """Return the score for each value of a metadata field, the most frequent value first.

        Raises:
            UsageError: No task has the field.
        """
        values = {task.id: str(task.metadata[name]) for task in self.tasks if task.metadata.get(name) is not None}
        if not values:
            known = sorted({str(key) for task in self.tasks for key in task.metadata})
            raise UsageError(f"No task has the metadata field '{name}'. Fields: {', '.join(known) or 'none'}.")
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(values.get(trial.task_id, "(none)"), []).append(trial)
        reports = [(value, replace(self, trials=trials)) for value, trials in groups.items()]
        found = [Slice(value, report.score, report.totals) for value, report in reports]
        return sorted(found, key=lambda each: (-each.score.trials, each.value))

    @property
    def not_judged_reasons(self) -> list[tuple[str, int]]:
        """Why trials got no verdict, the most frequent reasons first, and the number of trials of each."""
        scores = [trial.scores[self.scorer] for trial in self.trials if self.scorer in trial.scores]
        reasons = Counter(score.reason for score in scores if not score.judged and score.reason)
        return reasons.most_common(SHOWN_REASONS)

    @property
    def edited(self) -> int:
        """The number of trials whose score a person has edited."""
        original = f"{self.scorer}{ORIGINAL}"
        return sum(
            original in trial.scores and trial.scores[original] is not trial.scores[self.scorer]
            for trial in self.trials
            if self.scorer in trial.scores
        )

    def agreement(self, first: str, second: str) -> float:
        """Return Cohen's kappa of two scorers over the trials that both judged."""
        pairs = [
            (trial.scores[first].correct, trial.scores[second].correct)
            for trial in self.trials
            if first in trial.scores and second in trial.scores
            if trial.scores[first].judged and trial.scores[second].judged
        ]
        return cohen_kappa([a for a, _ in pairs], [b for _, b in pairs])

    @property
    def scorers(self) -> list[str]:
        """The names of all scorers that have scored its trials."""
        return sorted({name for trial in self.trials for name in trial.scores})

    def with_scorer(self, name: str) -> EvalReport:
        """Return the report with the scores of another scorer.

        Raises:
            UsageError: That scorer has not scored this evaluation.
        """
        if name not in self.scorers:
            known = ", ".join(self.scorers) or "none yet"
            raise UsageError(f"'{name}' has not scored {self.name} (scored by: {known}). `closeout eval score` does.")
        return replace(self, scorer=name)

    # -------------------------------------------------------------------------------------------- forms

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a flat record for each trial: task, epoch, run, outcome, score, and the task's metadata."""
        tasks = {task.id: task for task in self.tasks}
        for trial in self.trials:
            task, score = tasks[trial.task_id], trial.scores.get(self.scorer)
            yield {
                **{f"metadata.{key}": value for key, value in task.metadata.items()},
                "task_id": trial.task_id,
                "epoch": trial.epoch,
                "run_id": trial.run_id,
                "state": trial.state,
                "tries": trial.tries,
                "question": task.question,
                "gold": task.answer,
                **({} if trial.outcome is None else asdict(trial.outcome)),
                "score": self.value_of(trial),
                "correct": self.is_correct(trial),
                "reason": score.reason if score is not None else "",
            }

    def to_pandas(self) -> Any:
        """Return the trials as a pandas DataFrame, a row each."""
        try:
            import pandas
        except ImportError:
            raise UsageError("to_pandas needs pandas: pip install pandas. report.rows() needs nothing.") from None
        return pandas.DataFrame(list(self.rows()))

    def to_dict(self, *, trials: bool = False) -> dict[str, Any]:
        """Return the report as JSON values.

        Args:
            trials: Include a record for each trial.
        """
        found: dict[str, Any] = {
            "name": self.name,
            "spec": dict(self.spec),
            "scorer": self.scorer,
            "stopped": self.stopped,
            "score": finite(asdict(self.score)),
            "bootstrap": finite(dict(zip(("low", "high"), self.bootstrap(), strict=True))),
            "epochs": self.epochs,
            "pass_at": {str(k): finite(asdict(self.pass_at(k))) for k in self._ks()},
            "pass_hat": {str(k): finite(asdict(self.pass_hat(k))) for k in self._ks()},
            "totals": asdict(self.totals),
            "failures": self.failures,
        }
        return {**found, "trials": list(self.rows())} if trials else found

    def _ks(self) -> list[int]:
        """The k for which tables show pass@k: powers of two, and the number of epochs."""
        return sorted({*(2**i for i in range(10) if 2**i <= self.epochs), self.epochs} - {0}) if self.epochs > 1 else []

    def __repr__(self) -> str:
        score = f"{percent(self.score.mean)} ± {percent(self.score.error)}"
        return f"EvalReport({self.name!r}, {score} of {amount(self.score.trials, 'trial')})"

    def _repr_html_(self) -> str:
        return html_table(self.name, self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """Return the rows of the report's table: label and text."""
        return list(self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        score, totals = self.score, self.totals
        trials, tasks = amount(score.trials, "trial"), amount(score.clusters, "task")
        interval = f"95 % interval {span(score.low, score.high)}, bootstrap {span(*self.bootstrap())}"
        mean = f"{percent(score.mean)} ± {percent(score.error)} (standard error)"
        yield "score", f"{mean} of {trials}, {tasks}; {interval}"
        yield "right", f"{totals.correct:,} of {totals.planned:,} trials"
        if totals.finished < totals.planned:
            missing = f"{totals.planned - totals.finished:,} of {totals.planned:,} trials, counted as wrong"
            so_far = self.score_so_far
            yield "unfinished", f"{missing}; finished ones: {percent(so_far.mean)} of {so_far.trials:,}"
        if totals.suspended:
            then = "`closeout approve` lists them; after that the same command continues"
            yield "suspended", f"{totals.suspended:,} of {totals.planned:,} trials wait for a decision: {then}"
        for k in self._ks():
            yield f"pass@{k}", f"{percent(self.pass_at(k).mean)} of {tasks}"
            yield f"pass^{k}", f"{percent(self.pass_hat(k).mean)} of {tasks}"
        ends = f"{totals.answered:,} answered, {totals.unanswered:,} without an answer, {totals.failed:,} failed"
        yield "runs", f"{ends} (of {totals.planned:,}){f', {totals.tries:,} tried again' if totals.tries else ''}"
        if self.failures:
            yield "failures", ", ".join(f"{kind} {number:,}" for kind, number in self.failures.items())
        if totals.not_judged:
            yield "not judged", f"{totals.not_judged:,} of {totals.finished:,}, counted as wrong"
            for reason, number in self.not_judged_reasons:
                yield "  because", f"{reason} ({number:,})"
        if self.edited:
            yield "edited by hand", f"{self.edited:,}; without: --scorer '{self.scorer}{ORIGINAL}'"
        for name in self.scorers:
            if name != self.scorer:
                kappa = self.agreement(self.scorer, name)
                shown = "no trial has both verdicts" if math.isnan(kappa) else f"Cohen's kappa {kappa:.2f}"
                yield f"agreement with {name}", shown
        yield from self._cost_lines()
        if self.stopped:
            yield "stopped", f"early, by {self.stopped.rstrip('.')}; the same command continues"

    def _cost_lines(self) -> Iterator[tuple[str, str]]:
        totals, outcomes = self.totals, [trial.outcome for trial in self.trials if trial.outcome is not None]
        if not outcomes:
            return
        tokens = f"{totals.input_tokens:,} in ({totals.cached_tokens:,} cached), {totals.output_tokens:,} out"
        yield "tokens", f"{tokens}, {amount(totals.requests, 'request')}"
        yield (
            "cost",
            "unknown" if totals.cost is None else f"${totals.cost:.4f}, ${totals.cost / len(outcomes):.5f} a trial",
        )
        turns, calls = (fmean(getattr(each, name) for each in outcomes) for name in ("turns", "tool_calls"))
        seconds = [outcome.seconds for outcome in outcomes]
        work = f"{turns:.1f} turns, {calls:.1f} tool calls ({totals.tool_failures:,} failed in all)"
        yield "a trial", f"{work}, {median(seconds):.1f} s median, {max(seconds):.1f} s longest"
        yield "rollbacks, repairs", f"{totals.rollbacks:,}, {totals.repairs:,}"

    def provenance(self) -> list[tuple[str, str]]:
        """Return the facts needed to repeat the evaluation: label and text."""
        versions = ", ".join(f"{name} {version}" for name, version in self.spec.get("versions", {}).items())
        agent, settings = self.spec.get("agent", {}), self.spec.get("settings", {})
        tools = (", ".join(agent["tools"]) or "none") if "tools" in agent else "each task's own"
        found = [
            ("model", str(agent.get("model", ""))),
            ("agent", f"dialect {agent.get('dialect', '')}, tools: {tools}"),
            ("settings", ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"),
            ("tasks", f"{self.spec.get('tasks', '')} ({len(self.tasks):,}), {amount(self.epochs, 'epoch')}"),
            ("scorer", self.scorer),
            ("seeds", f"bootstrap {BOOTSTRAP_SEED}, model {settings.get('llm.extra_body.seed', 'not set')}"),
            ("versions", versions),
            ("command", str(self.spec.get("command", ""))),
        ]
        return [(label, text) for label, text in found if text]

    def __str__(self) -> str:
        lines = [*self.lines(), *self.provenance()]
        width = max(len(label) for label, _ in lines)
        return "\n".join([self.name, *(f"  {label:<{width}}  {text}" for label, text in lines)])

    def markdown(self, *, slices: Sequence[str] = ()) -> str:
        """Return the report as Markdown tables.

        Args:
            slices: Metadata fields by whose values the score is shown too.
        """
        parts = [f"# {self.name}", markdown_table(("", "result"), self.lines())]
        parts += [f"## By {name}\n\n{markdown_table(SLICE_COLUMNS, self.slice_lines(name))}" for name in slices]
        parts.append(f"## How to repeat it\n\n{markdown_table(('', 'value'), self.provenance())}")
        return "\n\n".join(parts) + "\n"

    def slice_lines(self, name: str) -> list[tuple[str, ...]]:
        """Return a row for each value of a metadata field, under SLICE_COLUMNS."""
        return [
            (
                each.value,
                percent(each.score.mean),
                span(each.score.low, each.score.high),
                f"{each.totals.correct:,} of {each.totals.planned:,}",
                f"{each.score.clusters:,}",
                "unknown" if each.totals.cost is None else f"${each.totals.cost:.4f}",
            )
            for each in self.slices(name)
        ]


def load_report(name: str, *, home: Home | str | None = None, scorer: str = "") -> EvalReport:
    """Return the current report of an evaluation, also while it runs.

    Args:
        name: The evaluation.
        home: The folder that keeps it. None means `CLOSEOUT_HOME` or the user's data folder.
        scorer: Whose scores to show; by default those of its first scorer.

    Raises:
        UsageError: There is no such evaluation, or the scorer has not scored it.
    """
    from closeout.config import home_folder

    with TrialStore(evaluation_file(home_folder(home), name)) as store:
        return read_report(store, scorer)


def read_report(store: TrialStore, scorer: str = "", stopped: str = "") -> EvalReport:
    """Return the report of an open evaluation."""
    spec = store.spec
    report = EvalReport(
        name=store.path.stem,
        spec=spec,
        tasks=store.tasks(),
        trials=store.trials(),
        scorer=spec["scorers"][0],
        stopped=stopped,
    )
    return report.with_scorer(scorer) if scorer and scorer != report.scorer else report
