"""`closeout runs schedules` and `closeout runs webhooks`: recurring runs, and ends that could not be announced."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from closeout.cli.exits import OK
from closeout.cli.terminal import amount, one_line, print_json
from closeout.config import home_folder
from closeout.fleet.announcing import unsent_ends
from closeout.fleet.chores import Schedule, change_schedule, list_schedules
from closeout.journal.readonly import open_to_read
from closeout.journal.store import open_store
from closeout.visible import visible

__all__ = ["schedule_line", "schedules_command", "unsent_line", "webhooks_command"]


def schedules_command(name: str, *, changes: bool, paused: bool | None, as_json: bool) -> int:
    """List schedules. With `changes`, first pause or continue the named one, or remove it if `paused` is None."""
    if changes:
        change_schedule(open_store(home_folder()), name, paused=paused)
    with open_to_read(home_folder()) as store:
        found = [each for each in list_schedules(store) if changes or name in ("", each.name)]
    if as_json:
        print_json([asdict(each) for each in found])
        return OK
    for each in found:
        print(schedule_line(each))
    print(f"{amount(len(found), 'schedule')}.", file=sys.stderr)
    return OK


def schedule_line(schedule: Schedule) -> str:
    """Return a schedule in words: its times, its last run, and its task."""
    begins = "paused" if schedule.paused else f"next {_local(schedule.next, schedule.timezone)}"
    last = f", last {schedule.last}{' (not ended)' if schedule.is_open else ''}" if schedule.last else ""
    problem = f", left out a run: {schedule.error}" if schedule.error else ""
    text = f"{schedule.name}  {schedule.every} {schedule.timezone}, {begins}{last}{problem}"
    return visible(f"{text}  {schedule.agent}: {one_line(schedule.task['task'], 60)}")


def webhooks_command(*, retry: bool, as_json: bool) -> int:
    """List the failed announcements. With `retry`, first try those again that were given up. Return the exit code."""
    if retry:
        unsent_ends(open_store(home_folder()), retry=True)
    with open_to_read(home_folder()) as store:
        found = unsent_ends(store)
    if as_json:
        print_json(found)
        return OK
    for each in found:
        print(visible(f"{each['run_id']}  {unsent_line(each)}"))
    print(f"{amount(len(found), 'announcement')} failed so far.", file=sys.stderr)
    return OK


def unsent_line(unsent: Mapping[str, Any]) -> str:
    """Return in words how often an announcement failed, when it is tried again, and why it failed."""
    then = "given up" if unsent["due"] is None else f"next {_local(unsent['due'])}"
    return f"{unsent['tries']} tries, {then}: {unsent['error']}"


def _local(at: float, timezone: str = "") -> str:
    """Return a time in a zone; in this machine's if the zone is empty or unknown."""
    try:
        zone = ZoneInfo(timezone) if timezone else None
    except (ValueError, OSError, LookupError):
        zone = None
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"
