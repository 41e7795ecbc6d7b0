"""Comparisons of evaluations task by task, and the power of one that is planned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from closeout.errors import UsageError
from closeout.evaluate.estimates import PairedEstimate, holm, paired_estimate, tasks_needed
from closeout.evaluate.report import EvalReport
from closeout.evaluate.wording import amount, finite, markdown_table, percent

__all__ = ["Comparison", "compare", "compare_all", "power_of_plan", "task_means"]

NAMED = 5  # tasks whose scores differ that a comparison names
SEEN = 0.03  # The difference of scores for which comparisons say how many tasks it needs.


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of the same tasks, the second against the first.

    Attributes:
        first: The evaluation to compare with.
        second: The other evaluation.
        estimate: The difference, over the tasks whose trials have all ended in both.
        cluster: The metadata field by which tasks are clustered; empty if each task is its own cluster.
        holm_p: The p value of the paired test, adjusted by Holm's method for the comparisons made together.
        together: The number of comparisons made together.
        warnings: What makes the comparison doubtful, one sentence each.
    """

    first: EvalReport
    second: EvalReport
    estimate: PairedEstimate
    cluster: str
    holm_p: float
    together: int = 1
    warnings: Sequence[str] = ()

    @cached_property
    def changed(self) -> list[tuple[str, float, float]]:
        """The tasks whose mean scores differ, the worst losses first: id, first score, second score."""
        first, second = task_means(self.first), task_means(self.second)
        found = [(task, first[task], second[task]) for task in first if task in second]
        return sorted((each for each in found if each[1] != each[2]), key=lambda each: each[2] - each[1])

    def lines(self) -> list[tuple[str, ...]]:
        """Return what a table of the comparison shows: label, first, second, difference."""
        one, two, estimate = self.first, self.second, self.estimate
        firsts, seconds = task_means(one), task_means(two)
        shared = firsts.keys() & seconds.keys()
        found: list[tuple[str, ...]] = [
            (
                f"score ({estimate.tasks:,} shared tasks)",
                percent(fmean(firsts[task] for task in shared)),
                percent(fmean(seconds[task] for task in shared)),
                (
                    f"{100 * estimate.difference:+.1f} points, 95 % interval {100 * estimate.low:+.1f} to "
                    f"{100 * estimate.high:+.1f}"
                ),
            ),
            ("paired test", "", "", self._paired_test()),
            (
                "tasks that only it solves",
                f"{estimate.only_first:,}",
                f"{estimate.only_second:,}",
                f"McNemar p = {estimate.mcnemar_p:.3g}",
            ),
        ]
        if changed := self.changed:
            named = [f"{task} ({first:.3g} → {second:.3g})" for task, first, second in changed[:NAMED]]
            rest = f", and {len(changed) - NAMED:,} more (--json)" if len(changed) > NAMED else ""
            found.append(("tasks that changed, losses first", "", "", f"{', '.join(named)}{rest}"))
        if not math.isnan(estimate.detectable):
            found.append(("power", "", "", _power(estimate.detectable, estimate.tasks_to_see(SEEN))))
        for label, name in (("turns", "turns"), ("input tokens", "input_tokens"), ("output tokens", "output_tokens")):
            found.append(_ratio_line(f"{label} a trial", name, one, two))
        if one.totals.cost is not None and two.totals.cost is not None:
            found.append(_ratio_line("cost a trial", "cost", one, two, "$"))
        found.append(_ratio_line("seconds a trial", "seconds", one, two))
        return found

    def _paired_test(self) -> str:
        found = f"p = {self.estimate.p_value:.3g}"
        if self.together > 1:
            found += f", {self.holm_p:.3g} by Holm's method for {self.together} comparisons"
        if self.cluster:
            found += f" ({amount(self.estimate.clusters, 'cluster')} by {self.cluster})"
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        detectable, needed = self.estimate.detectable, self.estimate.tasks_to_see(SEEN)
        return {
            "first": self.first.to_dict(),
            "second": self.second.to_dict(),
            "difference": finite(asdict(self.estimate)),
            "cluster": self.cluster,
            "holm_p": self.holm_p,
            "comparisons": self.together,
            "power": finite({"detectable": detectable, "difference": SEEN, "tasks_needed": needed}),
            "warnings": list(self.warnings),
            "changed": [{"task": task, "first": first, "second": second} for task, first, second in self.changed],
        }

    def markdown(self) -> str:
        """Return the comparison as a Markdown table."""
        table = markdown_table(("", self.first.name, self.second.name, "difference"), self.lines())
        warnings = "".join(f"\n- Warning: {' '.join(warning.split())}\n" for warning in self.warnings)
        return f"# {self.second.name} against {self.first.name}\n\n{table}\n{warnings}"

    def __str__(self) -> str:
        lines = [("", self.first.name, self.second.name, "difference"), *self.lines()]
        widths = [max(len(line[i]) for line in lines) for i in range(4)]
        rows = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([*(row.rstrip() for row in rows), *(f"Warning: {warning}" for warning in self.warnings)])


def compare(first: EvalReport, second: EvalReport, *, cluster: str = "") -> Comparison:
    """Compare two evaluations task by task.

    Args:
        first: The evaluation to compare with.
        second: The other one.
        cluster: A metadata field of the tasks. Tasks with the same value, such as questions about one document, are not
            independent; the error is then computed over the values.

    Raises:
        UsageError: They share no finished task, ask different questions under the same ids, or show different scorers;
            or a task lacks the field.
    """
    if first.scorer != second.scorer:
        raise UsageError(
            f"{first.name} is scored by {first.scorer}, {second.name} by {second.scorer}. Choose one scorer for both "
            "(--scorer, in Python load_report(scorer=…)); `closeout eval score` adds its scores."
        )
    asked = {task.id: task for task in first.tasks}
    pairs = [(asked[task.id], task) for task in second.tasks if task.id in asked]
    if other := [one.id for one, two in pairs if (one.question, one.files) != (two.question, two.files)]:
        raise UsageError(
            f"{first.name} and {second.name} ask different questions under {len(other):,} of {len(pairs):,} shared "
            f"ids: {', '.join(other[:3])}. Compare evaluations of the same tasks."
        )
    firsts, seconds = task_means(first), task_means(second)
    shared = [asked[task] for task in firsts if task in seconds]
    if not shared:
        raise UsageError(f"{first.name} and {second.name} share no finished task, so they cannot be compared.")
    if cluster and (without := [task.id for task in shared if cluster not in task.metadata]):
        known = sorted({str(key) for task in shared for key in task.metadata})
        raise UsageError(
            f"{len(without):,} of {len(shared):,} shared tasks have no metadata field '{cluster}': "
            f"{', '.join(without[:3])}. Cluster by a field that every task has. Fields: {', '.join(known) or 'none'}."
        )
    clusters = {task.id: str(task.metadata[cluster]) for task in shared} if cluster else None
    estimate = paired_estimate(firsts, seconds, clusters)
    warnings = [
        f"{report.totals.planned - report.totals.finished:,} of {report.totals.planned:,} trials of {report.name} are "
        "unfinished; their tasks are left out."
        for report in (first, second)
        if report.totals.finished < report.totals.planned
    ]
    if golds := [one.id for one, two in pairs if one.answer != two.answer]:
        warnings.append(f"The right answers of {len(golds):,} shared tasks differ: {', '.join(golds[:3])}.")
    if first.epochs != second.epochs:
        warnings.append(f"{first.name} has {first.epochs} epochs, {second.name} {second.epochs}.")
    then, now = first.spec.get("settings", {}), second.spec.get("settings", {})
    if keys := [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]:
        found = (f"{key} {then.get(key, 'default')} and {now.get(key, 'default')}" for key in keys)
        warnings.append(f"The settings differ: {'; '.join(found)}.")
    return Comparison(first, second, estimate, cluster, holm_p=estimate.p_value, warnings=warnings)


def compare_all(first: EvalReport, others: Sequence[EvalReport], *, cluster: str = "") -> list[Comparison]:
    """Compare several evaluations with one, and adjust the p values for their number by Holm's method.

    Args:
        first: The evaluation to compare with.
        others: The other ones.
        cluster: As for `compare`.

    Raises:
        UsageError: As for `compare`.
    """
    found = [compare(first, other, cluster=cluster) for other in others]
    adjusted = holm([each.estimate.p_value for each in found])
    return [replace(each, holm_p=p, together=len(found)) for each, p in zip(found, adjusted, strict=True)]


def power_of_plan(tasks: int) -> str:
    """Return a text that says which differences a comparison of this many tasks could see.

    Before a run, the number of tasks that will end differently is unknown, so the text states two cases. The variance
    of the paired differences of right and wrong is at most the share of tasks that differ.
    """
    cases = [
        f"{_power(math.sqrt(tasks_needed(math.sqrt(share), 1.0) / tasks), tasks_needed(math.sqrt(share), SEEN))} "
        f"if 1 task in {round(1 / share)} ends differently"
        for share in (1 / 8, 1 / 2)
    ]
    return f"A comparison of {amount(tasks, 'task')} has {'; '.join(cases)}."


def _power(detectable: float, needed: float) -> str:
    """Return the text for a smallest visible difference, and for the tasks that `SEEN` takes, in two digits."""
    scale = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    power = f"80 % power for {100 * detectable:.1f} points" if detectable <= 1 else "no power to see any difference"
    return f"{power}; to see {100 * SEEN:g} points you need about {amount(round(needed / scale) * scale, 'task')}"


def task_means(report: EvalReport) -> dict[str, float]:
    """Return the mean score of each task whose trials have all ended."""
    return {
        task: fmean(map(report.value_of, trials))
        for task, trials in report.by_task.items()
        if all(trial.state == "finished" for trial in trials)
    }


def _mean_of(report: EvalReport, name: str) -> float:
    values = [getattr(trial.outcome, name) or 0 for trial in report.trials if trial.outcome is not None]
    return fmean(values) if values else math.nan


def _ratio_line(label: str, name: str, one: EvalReport, two: EvalReport, unit: str = "") -> tuple[str, ...]:
    """Return the line of a table that compares the means of a field of the outcomes."""
    first, second = _mean_of(one, name), _mean_of(two, name)
    change = f"{100 * (second / first - 1):+.0f} %" if first and second == second else ""
    form = "{:,.4f}" if unit else "{:,.1f}"
    return label, unit + form.format(first), unit + form.format(second), change
