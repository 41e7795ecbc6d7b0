"""What the commands of `closeout eval` that look at evaluations do, and those that control and merge them.

They import nothing that runs an agent, so that a report is shown at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.cli.eval_display import EvalDisplay
from closeout.cli.exits import OK
from closeout.cli.terminal import Column, fit_table, make_console, print_json, say_error, width_of
from closeout.config import home_folder
from closeout.errors import JournalError, UsageError
from closeout.evaluate.report import Report, compare, load_report
from closeout.evaluate.trials import TrialStore, evaluation_file, evaluations_in
from closeout.evaluate.wording import SLICE_COLUMNS, percent

__all__ = [
    "ReportOptions",
    "compare_command",
    "control_command",
    "export_command",
    "list_command",
    "merge_command",
    "opened",
    "print_report",
    "show_command",
    "watch",
]

SHOW_SECONDS = 1.0  # between two looks at the progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """How a command shows its report.

    Attributes:
        by: Metadata fields by whose values the score is shown too.
        html: A file for the report as HTML.
        markdown: A file for the report as Markdown.
        as_json: Print JSON instead of a table.
    """

    by: tuple[str, ...] = ()
    html: str | None = None
    markdown: str | None = None
    as_json: bool = False


async def watch(path: Path, display: EvalDisplay) -> None:
    """Show the progress of an evaluation, which is read beside its workers, until it is done."""

    def look() -> bool:
        progress = store.progress(scorer)
        display(progress)
        return progress.finished + progress.control.suspended == progress.planned

    store = TrialStore(path)
    try:
        scorer = store.spec["scorers"][0]
        while not await asyncio.to_thread(look):  # noqa: ASYNC110 - other processes work on it too
            await asyncio.sleep(SHOW_SECONDS)
    finally:
        store.close()


def print_report(report: Report, options: ReportOptions) -> None:
    """Write the files that are asked for, and print the report."""
    if options.html:
        report.html(options.html, slices=options.by)
    if options.markdown:
        Path(options.markdown).write_text(report.markdown(slices=options.by), "utf-8")
    if options.as_json:
        print_json(report.to_dict())
        return
    console = make_console()
    console.print(str(report), markup=False)
    columns = [Column(SLICE_COLUMNS[0], least=12), *(Column(name, right=True) for name in SLICE_COLUMNS[1:])]
    for name in options.by:
        console.print(f"\nby {name}", markup=False)
        rows = [[(cell, "") for cell in line] for line in report.slice_lines(name)]
        for line in fit_table(columns, rows, width_of(console)):
            console.print(line)


class opened:  # noqa: N801 - used like a function
    """Open an evaluation of the usual home for a while."""

    def __init__(self, name: str) -> None:
        self._store = TrialStore(evaluation_file(home_folder(), name))

    def __enter__(self) -> TrialStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def list_command(*, as_json: bool) -> int:
    """List the evaluations of the home. One that cannot be read is named on stderr."""
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
        return OK
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
        return OK
    for line in fit_table(columns, rows, width_of(console)):
        console.print(line)
    return OK


def _state(progress: Any) -> str:
    if progress.finished == progress.planned:
        return "done"
    if progress.finished + progress.control.suspended == progress.planned:
        return "waiting for decisions"
    return str(progress.control.state) if progress.workers else "interrupted"


def show_command(name: str, options: ReportOptions, *, scorer: str, live: bool, trials: bool) -> int:
    """Show a report."""
    if live:
        file = evaluation_file(home_folder(), name)
        TrialStore(file).close()  # raises UsageError if there is none
        with EvalDisplay() as display, suppress(KeyboardInterrupt):
            asyncio.run(watch(file, display))
    report = load_report(name, scorer=scorer)
    if trials and options.as_json:
        print_json(report.to_dict(trials=True))
        return OK
    print_report(report, options)
    return OK


def compare_command(first: str, others: Sequence[str], options: ReportOptions, *, scorer: str) -> int:
    """Compare evaluations with a first one. The JSON is a list if there are several."""
    report = load_report(first, scorer=scorer)
    against = [load_report(name, scorer=scorer) for name in others]
    found = [compare(report, other) for other in against]
    if options.html:
        report.html(options.html, against=against)
    if options.markdown:
        Path(options.markdown).write_text("\n".join(each.markdown() for each in found), "utf-8")
    if options.as_json:
        records = [each.to_dict() for each in found]
        print_json(records if len(records) > 1 else records[0])
    else:
        make_console().print("\n\n".join(map(str, found)), markup=False)
    return OK


def export_command(name: str, output: str, *, form: str, which: str, rolled_back: bool, scorer: str) -> int:
    """Export trials into a file."""
    from closeout.evaluate.export import export_trials, write_jsonl
    from closeout.journal.readonly import open_to_read

    report = load_report(name, scorer=scorer)
    with open_to_read(home_folder()) as store:
        choice: Any = {"form": form, "which": which}
        number = write_jsonl(export_trials(report, store, rolled_back=rolled_back, **choice), Path(output))
    print(f"{number:,} trials written to {output}.", file=sys.stderr)
    return OK


def control_command(name: str, *, pause: bool, resume: bool, stop: bool, concurrency: int | None) -> int:
    """Tell the workers of an evaluation what to do."""
    states = [state for state, wanted in (("paused", pause), ("running", resume), ("stopped", stop)) if wanted]
    if len(states) > 1 or (not states and concurrency is None):
        raise UsageError("Give one of --pause, --resume and --stop, or --concurrency N.")
    with opened(name) as store:
        store.set_control(state=states[0] if states else None, concurrency=concurrency)
    return OK


def merge_command(name: str, homes: Sequence[str], *, runs: bool, as_json: bool) -> int:
    """Merge shards."""
    from closeout.evaluate.merging import merge, shard_homes

    home = home_folder()
    report = merge(name, [Path(each) for each in homes] or shard_homes(home, name), home, runs=runs)
    print_report(report, ReportOptions(as_json=as_json))
    return OK
