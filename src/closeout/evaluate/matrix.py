"""A table of several evaluations of the same tasks: each against the first, and each task in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from closeout.evaluate.comparison import Comparison, compare_all, task_means
from closeout.evaluate.report import EvalReport
from closeout.evaluate.wording import finite, markdown_table, percent, span

__all__ = ["MATRIX_COLUMNS", "ScoreMatrix"]

MATRIX_COLUMNS = ("", "score", "95 % interval", "difference", "95 % interval", "p (Holm)", "tokens", "cost")


@dataclass(frozen=True)
class ScoreMatrix:
    """Evaluations of the same tasks, the later ones compared with the first.

    Attributes:
        reports: The evaluations.
        comparisons: Those of the later ones with the first.
    """

    reports: Sequence[EvalReport]
    comparisons: Sequence[Comparison]

    @classmethod
    def of(cls, reports: Sequence[EvalReport], *, cluster: str = "") -> ScoreMatrix:
        """Compare evaluations.

        Raises:
            UsageError: As for `compare`.
        """
        return cls(reports, compare_all(reports[0], reports[1:], cluster=cluster))

    def lines(self) -> list[tuple[str, ...]]:
        """Return a line for each evaluation."""
        found: list[tuple[str, ...]] = []
        for report, comparison in zip(self.reports, (None, *self.comparisons), strict=True):
            score, totals = report.score, report.totals
            paired = ("", "", "")
            if comparison is not None:
                estimate = comparison.estimate
                low, high = f"{100 * estimate.low:+.1f}", f"{100 * estimate.high:+.1f}"
                paired = (f"{100 * estimate.difference:+.1f}", f"{low} to {high}", f"{comparison.holm_p:.3g}")
            cost = "unknown" if totals.cost is None else f"${totals.cost:,.2f}"
            tokens = f"{totals.input_tokens + totals.output_tokens:,}"
            found.append((report.name, percent(score.mean), span(score.low, score.high), *paired, tokens, cost))
        return found

    def by_task(self) -> dict[str, list[float | None]]:
        """Return the mean score of each task in each evaluation, None where its trials have not all ended."""
        means = [task_means(report) for report in self.reports]
        tasks = dict.fromkeys(task.id for report in self.reports for task in report.tasks)
        return {task: [each.get(task) for each in means] for task in tasks}

    def task_lines(self) -> list[tuple[str, ...]]:
        """Return a line for each task."""
        return [
            (task, *("–" if score is None else f"{score:.2f}".removesuffix(".00") for score in scores))
            for task, scores in self.by_task().items()
        ]

    def warnings(self) -> list[str]:
        """Return what makes the comparisons doubtful, each once."""
        return list(dict.fromkeys(warning for each in self.comparisons for warning in each.warnings))

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "evaluations": [report.to_dict() for report in self.reports],
            "differences": [
                {"name": each.second.name, **finite(asdict(each.estimate)), "holm_p": each.holm_p}
                for each in self.comparisons
            ],
            "tasks": self.by_task(),
            "warnings": self.warnings(),
        }

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        tasks = markdown_table(("task", *(report.name for report in self.reports)), self.task_lines())
        warnings = "".join(f"\n- Warning: {' '.join(warning.split())}\n" for warning in self.warnings())
        return f"{markdown_table(MATRIX_COLUMNS, self.lines())}\n{warnings}\n{tasks}\n"
