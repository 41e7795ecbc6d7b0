"""Print evaluations and their reports.

This imports nothing that runs an agent, so that a report is shown at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.cli.eval_display import EvalDisplay
from closeout.cli.terminal import Column, fit_table, make_console, print_json, say_error, width_of
from closeout.config import home_folder
from closeout.errors import JournalError, UsageError
from closeout.evaluate.matrix import MATRIX_COLUMNS, ScoreMatrix
from closeout.evaluate.report import EvalReport, load_report
from closeout.evaluate.report_html import write_html
from closeout.evaluate.trials import TrialStore, evaluation_file, evaluations_in
from closeout.evaluate.wording import SLICE_COLUMNS, percent

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["opened", "print_evaluations", "print_matrix", "print_report", "watch"]

SHOW_SECONDS = 1.0  # seconds between two looks at the progress


async def watch(path: Path, display: EvalDisplay) -> None:
    """Show the progress of an evaluation, which is read beside its workers, until it is done."""

    def look() -> bool:
        progress = store.progress(scorer)
        display(progress)
        return progress.finished + progress.control.suspended == progress.planned

    with TrialStore(path) as store:
        scorer = store.spec["scorers"][0]
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
        _print_table(console, SLICE_COLUMNS, report.slice_lines(name))


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
    _print_table(console, MATRIX_COLUMNS, found.lines())
    if by_task:
        console.print()
        _print_table(console, ("task", *names), found.task_lines())
    for warning in found.warnings():
        console.print(f"Warning: {warning}", markup=False)


def _print_table(console: Console, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    shown = [Column(columns[0], least=12), *(Column(name, right=True) for name in columns[1:])]
    for line in fit_table(shown, [[(cell, "") for cell in line] for line in lines], width_of(console)):
        console.print(line)


def opened(name: str) -> TrialStore:
    """Open an evaluation of the usual home."""
    return TrialStore(evaluation_file(home_folder(), name))


def print_evaluations(*, as_json: bool) -> None:
    """Print the evaluations of the home. One that cannot be read is named on stderr."""
    found = []
    for name in evaluations_in(home_folder()):
        try:
            with opened(name) as store:
                spec, progress = store.spec, store.progress(store.spec["scorers"][0])
                found.append((name, store.created, spec, progress))
        except (UsageError, JournalError) as error:
            say_error(str(error))
    if as_json:
        records = [
            {
                "name": name,
                "created": created,
                "model": spec["agent"]["model"],
                "scorer": spec["scorers"][0],
                "planned": progress.planned,
                "finished": progress.finished,
                "score": progress.score.mean if progress.score.trials else None,
                "cost": progress.control.cost,
                "workers": progress.workers,
            }
            for name, created, spec, progress in found
        ]
        print_json(records)
        return
    console = make_console()
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
            (name, ""),
            (time.strftime("%Y-%m-%d %H:%M", time.localtime(created)), ""),
            (str(spec["agent"]["model"]), ""),
            (f"{progress.finished:,} of {progress.planned:,}", ""),
            (percent(progress.score.mean), ""),
            (_state(progress), ""),
        ]
        for name, created, spec, progress in found
    ]
    if not rows:
        print("There are no evaluations yet. Start one: closeout eval TASKS.jsonl", file=sys.stderr)
        return
    for line in fit_table(columns, rows, width_of(console)):
        console.print(line)


def _state(progress: Any) -> str:
    if progress.finished == progress.planned:
        return "done"
    if progress.finished + progress.control.suspended == progress.planned:
        return "waiting for decisions"
    return str(progress.control.state) if progress.workers else "interrupted"
