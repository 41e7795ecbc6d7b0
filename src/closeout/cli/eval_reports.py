"""Print evaluations and their reports.

This imports nothing that runs an agent, so that a report is shown at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closeout.cli.eval_display import EvalDisplay
from closeout.cli.terminal import Column, make_console, print_json, print_table, say_error
from closeout.config import home_folder
from closeout.evaluate.matrix import MATRIX_COLUMNS, ScoreMatrix
from closeout.evaluate.overview import list_evaluations
from closeout.evaluate.report import EvalReport, load_report
from closeout.evaluate.report_html import write_html
from closeout.evaluate.trials import TrialStore, evaluation_file
from closeout.evaluate.wording import SLICE_COLUMNS, percent

__all__ = ["opened", "print_evaluations", "print_matrix", "print_report", "print_trials", "watch"]

SHOW_SECONDS = 1.0  # seconds between two looks at the progress


async def watch(path: Path, display: EvalDisplay) -> None:
    """Show the progress of an evaluation until it is done. Other processes may work on it."""

    def look() -> bool:
        with TrialStore(path) as store:  # opened in this thread, so that no other one closes it
            progress = store.progress(store.spec["scorers"][0])
        display(progress)
        return progress.finished + progress.control.suspended == progress.planned

    while not await asyncio.to_thread(look):  # noqa: ASYNC110 - other processes work on it too
        await asyncio.sleep(SHOW_SECONDS)


def print_report(
    report: EvalReport,
    *,
    by: Sequence[str] = (),
    html: str | None = None,
    markdown: str | None = None,
    as_json: bool = False,
) -> None:
    """Print a report.

    Args:
        report: The report.
        by: Metadata fields by whose values the score is shown too.
        html: A file for the report as HTML.
        markdown: A file for the report as Markdown.
        as_json: Print JSON instead of a table.
    """
    if html:
        write_html(report, html, slices=by)
    if markdown:
        Path(markdown).write_text(report.markdown(slices=by), "utf-8")
    if as_json:
        print_json(report.to_dict())
        return
    console = make_console()
    console.print(str(report), markup=False)
    for name in by:
        console.print(f"\nby {name}", markup=False)
        _print_scores(SLICE_COLUMNS, report.slice_lines(name))


def print_trials(report: EvalReport) -> None:
    """Print a line for each trial, those that are not right first. `closeout runs RUN` shows its run."""
    columns = [
        Column("task", least=12),
        Column("score", right=True),
        Column("answer", least=10),
        Column("expected", least=10),
        Column("run"),
    ]
    lines = []
    for row in sorted(report.rows(), key=lambda row: row["correct"]):
        answer = row.get("answer") or row.get("status") or row["state"]
        lines.append((row["task_id"], percent(row["score"]), answer, str(row["gold"]), row["run_id"] or ""))
    print()
    print_table(columns, lines)


def print_matrix(
    names: Sequence[str], *, cluster: str, by_task: bool, html: str | None, markdown: str | None, as_json: bool
) -> None:
    """Print the table of evaluations of the same tasks; the parameters are those of `closeout eval matrix`.

    Raises:
        UsageError: They cannot be compared.
    """
    found = ScoreMatrix.of([load_report(name) for name in names], cluster=cluster)
    if html:
        write_html(found.reports[0], html, against=found.comparisons)
    if markdown:
        Path(markdown).write_text(found.markdown(), "utf-8")
    if as_json:
        print_json(found.to_dict())
        return
    console = make_console()
    _print_scores(MATRIX_COLUMNS, found.lines())
    if by_task:
        console.print()
        _print_scores(("task", *names), found.task_lines())
    for warning in found.warnings():
        console.print(f"Warning: {warning}", markup=False)


def _print_scores(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print_table([Column(columns[0], least=12), *(Column(name, right=True) for name in columns[1:])], lines)


def opened(name: str) -> TrialStore:
    """Open an evaluation of the current home."""
    return TrialStore(evaluation_file(home_folder(), name))


def print_evaluations(*, as_json: bool) -> None:
    """Print the evaluations of the home. One that cannot be read is named on stderr."""
    found = list_evaluations(home_folder(), on_error=lambda error: say_error(str(error)))
    if as_json:
        names = ("name", "created", "model", "scorer", "planned", "finished", "cost", "workers")
        print_json([{**{name: each[name] for name in names}, "score": each["score_so_far"]["mean"]} for each in found])
        return
    if not found:
        print("There are no evaluations yet. Start one: closeout eval TASKS.jsonl", file=sys.stderr)
        return
    columns = [
        Column("evaluation"),
        Column("when", rank=2),
        Column("model", least=12, rank=1),
        Column("done", right=True),
        Column("score so far", right=True),
        Column("state", rank=1),
    ]
    rows = [
        [
            each["name"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["created"])),
            str(each["model"]),
            f"{each['finished']:,} of {each['planned']:,}",
            "n/a" if (mean := each["score_so_far"]["mean"]) is None else percent(mean),
            _state(each),
        ]
        for each in found
    ]
    print_table(columns, rows)


def _state(evaluation: Mapping[str, Any]) -> str:
    if evaluation["finished"] == evaluation["planned"]:
        return "done"
    if evaluation["finished"] + evaluation["suspended"] == evaluation["planned"]:
        return "waiting for decisions"
    return str(evaluation["state"]) if evaluation["workers"] else "interrupted"
