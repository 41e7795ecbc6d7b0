"""The command upgrade: how open runs continue with a new version of their agent."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import asdict

from closeout.agent import Agent
from closeout.cli import exits
from closeout.cli.terminal import amount, one_line, print_json, printable
from closeout.lab.upgrade import RunCheck, UpgradeReport
from closeout.run.plan import check_on_change
from closeout.stray_output import stray_output_to_stderr

__all__ = ["upgrade_command"]

TITLES = {
    "unchanged": "continue unchanged",
    "changed": "continue with a difference",
    "stops": "would stop",
}
LISTED = 20  # runs of one verdict that are printed


def upgrade_command(agent: Agent, run_ids: list[str], on_change: str | None, *, as_json: bool) -> int:
    """Check the open runs of an agent. Return 0 if all continue, 1 if one would stop."""
    mode = None if on_change is None else check_on_change(on_change)
    shows = sys.stderr.isatty() and not as_json

    def progress(done: int) -> None:
        if shows:
            print(f"\r{done} runs checked", end="", file=sys.stderr, flush=True)

    with stray_output_to_stderr():
        report = asyncio.run(agent.check_runs(run_ids or None, on_change=mode, progress=progress))
    if shows:
        print("\r\033[K", end="", file=sys.stderr)
    if as_json:
        print_json({"ok": report.ok, "others": report.others, "runs": [asdict(each) for each in report.runs]})
    else:
        _print_report(report)
    return exits.OK if report.ok else exits.UNANSWERED


def _print_report(report: UpgradeReport) -> None:
    for verdict, title in TITLES.items():
        found = [each for each in report.runs if each.verdict == verdict]
        print(f"{len(found):>6}  {title}")
        if verdict == "changed":
            for difference, count in Counter(text for each in found for text in each.differences).most_common(LISTED):
                print(f"        {count:>6}  {printable(one_line(difference))}")
        elif verdict == "stops":
            for each in found[:LISTED]:
                print(_described(each))
            if len(found) > LISTED:
                print(f"        and {len(found) - LISTED} more (--json lists all)")
    if report.others:
        print(f"Not checked: {amount(report.others, 'open run')} of agents with other names.", file=sys.stderr)


def _described(check: RunCheck) -> str:
    at = "" if check.event is None else f" at event {check.event}"
    lines = (f"{check.run_id}{at}: {check.problem}", f"  {one_line(check.task, 60)}", f"  {check.remedy}")
    return "\n".join(f"        {printable(line)}" for line in lines)
