"""The command what-if: what a changed agent would have done on recorded runs."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from closeout.agent import Agent
from closeout.cli import exits
from closeout.cli.terminal import one_line, print_json, printable
from closeout.errors import UsageError
from closeout.evaluate.estimates import PairedEstimate
from closeout.evaluate.what_if_report import WhatIfReport, what_if
from closeout.lab.what_if import WhatIfCase
from closeout.stray_output import stray_output_to_stderr

__all__ = ["read_instructions", "what_if_command"]

LISTED = 20  # runs that are printed


def read_instructions(path: str) -> str:
    """Return the text of a file. Raises UsageError if it cannot be read."""
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--instructions {path} cannot be read: {reason}. Pass a text file.") from None


def what_if_command(agent: Agent, runs: int | list[str], *, as_json: bool, **options: Any) -> int:
    """Run recorded runs again with an agent, and print what differs. `options` are those of `what_if`.

    Returns:
        0 if nothing differs, else 1.
    """
    shows = sys.stderr.isatty() and not as_json

    def progress(done: int, number: int) -> None:
        if shows:
            print(f"\r{done} of {number} runs", end="", file=sys.stderr, flush=True)

    try:
        with stray_output_to_stderr():
            report = asyncio.run(what_if(agent, runs, progress=progress, **options))
    except KeyboardInterrupt:
        print("The comparison is stopped.", file=sys.stderr)
        raise
    finally:
        if shows:
            print("\r\033[K", end="", file=sys.stderr)
    if as_json:
        print_json(_data(report))
    else:
        _print_report(report)
    return exits.OK if report.cases and not (report.changed or report.skipped) else exits.UNANSWERED


def _data(report: WhatIfReport) -> dict[str, Any]:
    estimates = {
        name: None if (found := getattr(report, name)) is None else asdict(found)
        for name in ("grade", "tokens", "turns", "calls", "run_cost", "baseline_grade")
    }
    names = ("changed", "added", "lost", "page")
    cases = [{**asdict(case), **{name: getattr(case, name) for name in names}} for case in report.cases]
    return {"paid": report.paid, "cost": report.cost, **estimates, "cases": cases}


def _print_report(report: WhatIfReport) -> None:
    if not report.cases:
        print("No ended run of an agent of this name was found. `closeout runs` lists the runs.", file=sys.stderr)
        return
    changed, left, skipped = report.changed, report.left, report.skipped
    print(f"{len(report.cases) - len({c.run_id for c in (*changed, *skipped)}):>6}  as recorded")
    print(f"{len(changed):>6}  changed, of which {len(left)} left the record")
    if any(case.baseline for case in report.cases):
        print(f"{len(report.baseline_changed):>6}  changed with the baseline")
    if skipped:
        print(f"{len(skipped):>6}  not run to the end")
    named = Counter(each for case in report.cases for each in case.differences)
    for difference, number in named.most_common(LISTED):
        print(f"{number:>14}  {printable(one_line(difference, 120))}")
    for case in [*changed, *(each for each in skipped if not each.changed)][:LISTED]:
        print(_described(case))
    if len(changed) + len(skipped) > LISTED:
        print(f"        at most {LISTED} are listed (--json has all)")
    units = {"tokens": " per run", "turns": " per run", "calls": " per run", "run_cost": " USD per run"}
    for name in ("grade", *units, "baseline_grade"):
        found: PairedEstimate | None = getattr(report, name)
        if found is not None:
            value = f"{found.difference:+.3g}{units.get(name, '')}"
            interval = f" ({found.low:.3g} to {found.high:.3g})" if found.low < found.high else ""
            print(f"{name.replace('_', ' ')}: {value}{interval}")
    cost = "cost unknown" if report.cost is None else f"{report.cost:.4f} USD"
    print(f"{report.paid} requests paid, {cost}")
    if any(lane.run_id for case in report.cases for lane in case.lanes):
        print("`closeout view` shows the lanes of a run side by side: open what is printed under it after the address.")


def _described(case: WhatIfCase) -> str:
    lines: list[str] = []
    if case.problem:
        lines.append(case.problem)
    if case.then is not None and case.now is not None:
        if case.divergence:
            lines.append(f"first difference: {case.divergence}")
        if case.now.problem:
            lines.append(case.now.problem)
        elif case.then.answer != case.now.answer:
            lines.append(f"answer: {_short(case.then.answer)} → {_short(case.now.answer)}")
        if sorted(case.then.calls) == sorted(case.now.calls) and case.then.calls != case.now.calls:
            lines.append("the same calls in another order")
        lines += [f"+ {_short(call)}" for call in case.added[:5]]
        lines += [f"- {_short(call)}" for call in case.lost[:5]]
    head = f"{case.run_id}  {one_line(case.task, 60)}"
    found = [
        f"        {printable(one_line(head, 160))}",
        *(f"          {printable(one_line(line, 160))}" for line in lines),
    ]
    return "\n".join([*found, f"          {case.page}"] if case.page else found)


def _short(text: str | None) -> str:
    return "none" if text is None else one_line(text, 60)
