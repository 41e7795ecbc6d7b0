"""`closeout runs schedules` and `closeout runs webhooks`: recurring runs, and ends that could not be announced."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from closeout.cli.exits import OK
from closeout.cli.terminal import amount, one_line, print_json
from closeout.config import home_folder
from closeout.fleet.announcing import unsent_ends
from closeout.fleet.chores import change_schedule, list_schedules
from closeout.journal.readonly import open_to_read
from closeout.journal.store import open_store
from closeout.visible import visible

__all__ = ["schedules_command", "webhooks_command"]


def schedules_command(name: str, *, changes: bool, paused: bool | None, as_json: bool) -> int:
    """List schedules, after a change of the named one: its pause, or its removal if `paused` is None. Return OK."""
    if changes:
        change_schedule(open_store(home_folder()), name, paused=paused)
    with open_to_read(home_folder()) as store:
        found = [each for each in list_schedules(store) if changes or name in ("", each.name)]
    if as_json:
        print_json([{**asdict(each), "task": json.loads(each.task)} for each in found])
        return OK
    for each in found:
        begins = "paused" if each.paused else f"next {_local(each.next)}"
        last = f", last {each.last}{' (not ended)' if each.is_open else ''}" if each.last else ""
        problem = f", left out a run: {each.error}" if each.error else ""
        task = one_line(json.loads(each.task)["task"], 60)
        print(visible(f"{each.name}  {each.every} {each.timezone}, {begins}{last}{problem}  {each.agent}: {task}"))
    print(f"{amount(len(found), 'schedule')}.", file=sys.stderr)
    return OK


def webhooks_command(*, retry: bool, as_json: bool) -> int:
    """List the ends that could not be announced so far; try those that were given up again. Return the exit code."""
    if retry:
        unsent_ends(open_store(home_folder()), retry=True)
    with open_to_read(home_folder()) as store:
        found = unsent_ends(store)
    if as_json:
        print_json(found)
        return OK
    for each in found:
        then = "given up" if each["due"] is None else f"next {_local(each['due'])}"
        print(visible(f"{each['run_id']}  {each['tries']} tries, {then}: {each['error']}"))
    print(f"{amount(len(found), 'announcement')} failed so far.", file=sys.stderr)
    return OK


def _local(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
