"""The data of one person or of one session in a home: list it, write it into files, delete it so that it is gone."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from closeout.config import home_folder
from closeout.errors import JournalLocked, UsageError
from closeout.fleet.chores import Schedule, change_schedule, list_schedules
from closeout.journal.events import RunEnded, RunStarted, ToolFinished
from closeout.journal.holds import check_not_held
from closeout.journal.ledger import forget_key, spent_by_day
from closeout.journal.persons import (
    OtherRun,
    others_that_repeat,
    persons_of,
    runs_of_person,
    runs_of_session,
    runs_with_forks,
)
from closeout.journal.readonly import has_journal, open_to_read
from closeout.journal.retention import delete_runs
from closeout.journal.store import Row, RunRecord, Store, open_store, tombstone
from closeout.records import record

__all__ = ["PersonalData", "delete_data", "export_data", "find_data", "list_persons", "named_others"]

MOST_NAMED = 10  # runs in one sentence; to_dict() and --json have them all

_UNSAFE = re.compile(r"[^\w.-]")  # characters that are replaced in the name of a folder
_BUSY = {"running": "being executed", "waiting": "waiting"}


@record(kw_only=True)
class PersonalData:
    """The data of a person or of a session in a home.

    Attributes:
        user: The person; empty if a session was meant.
        session: The session; empty if a person was meant.
        runs: The runs, oldest first.
        sessions: The sessions that they belong to.
        budget_keys: The keys of budgets that hold the person's spending.
        others: The runs of other persons that repeat what this one said before them in the same session, each with
            its `run_id`, `session` and `users`. They are not among `runs`.
        schedules: The schedules of the person's recurring runs.
    """

    user: str
    session: str
    runs: tuple[RunRecord, ...]
    sessions: tuple[str, ...]
    budget_keys: tuple[str, ...]
    others: tuple[OtherRun, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dict(to_jsonable_python(self))


def list_persons(home: str | Path | None = None) -> dict[str, int]:
    """Return the persons of whom a home has data, sorted, each with the number of runs that name them."""
    folder, found = home_folder(home), Counter[str]()
    with open_to_read(folder) as store:
        for _, started in store.beginnings():
            found.update(persons_of(started))
        named = {user for each in list_schedules(store) if (user := each.task.get("user"))}
    named |= {spent.key.removeprefix("user:") for spent in spent_by_day(folder) if spent.key.startswith("user:")}
    return {user: found[user] for user in sorted(named | found.keys())}


def find_data(user: str = "", *, session: str = "", agent: str = "", home: str | Path | None = None) -> PersonalData:
    """List what a home has of a person or of a session.

    A run is a person's if it was started with `run(user=…)`, served for that user, or charged to the budget
    `user:NAME`. The other messages of the sessions of these runs belong to them, unless they name another person. Those
    are `others` if they came later: they repeat the conversation.

    Args:
        user: The person.
        session: The session, instead of a person.
        agent: Leave out the runs and schedules of agents with another name.
        home: The folder of the runs. Defaults to `CLOSEOUT_HOME` or the user's data folder.

    Raises:
        UsageError: Neither or both are named.
        JournalError: The runs cannot be read.
    """
    for name, value in (("user", user), ("session", session)):
        if not isinstance(value, str | None):
            raise UsageError(f"{name} must be a text, got {value!r:.80}.")
    if bool(user) == bool(session):
        raise UsageError("Name either a user or a session whose data is meant.")
    folder = home_folder(home)
    with open_to_read(folder) as store:
        if session:
            found = runs_with_forks(store, runs_of_session(store, session))
            sessions, others = [session] if found else [], []
        else:
            found, sessions = runs_of_person(store, user)
            others = others_that_repeat(store, found, sessions)
        if agent:
            begun = {run_id: store.beginning(run_id) for run_id in found}
            found = {each: run for each, run in found.items() if (first := begun[each]) and first.name == agent}
        schedules = [each for each in list_schedules(store, agent) if user and each.task.get("user") == user]
    keys = {spent.key for spent in spent_by_day(folder)} & {f"user:{user}"} if user else ()
    runs = sorted(found.values(), key=lambda run: run.started)
    return PersonalData(
        user=user,
        session=session,
        runs=tuple(runs),
        sessions=tuple(sessions),
        budget_keys=tuple(keys),
        others=tuple(others),
        schedules=tuple(schedules),
    )


def export_data(
    target: str | Path, user: str = "", *, session: str = "", home: str | Path | None = None
) -> PersonalData:
    """Write the data of a person or of a session into a new folder, as JSON and as text.

    The folder has `index.json` with the runs and schedules, and for each run a folder with `conversation.txt` (what was
    said and done), `events.jsonl` (the record, an event on each line), `run.json` (its answer and status) and `files`.

    Args:
        target: The folder. It must not exist, or be empty.
        user: The person.
        session: The session, instead of a person.
        home: As for `find_data`.

    Returns:
        What was written.

    Raises:
        UsageError: Nothing is named, or the folder has files.
        JournalError: The runs cannot be read.
        OSError: The files cannot be written.
    """
    folder = Path(target)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{target} exists already and is not an empty folder. Choose another name.")
    data = find_data(user, session=session, home=home)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names: list[str] = []
    with open_to_read(home_folder(home)) as store:
        for number, run in enumerate(data.runs, 1):
            names.append(f"{number:04}-{_UNSAFE.sub('_', run.run_id)[:80]}")
            rows = list(store.rows(run.run_id))
            _write_run(folder / names[-1], run, rows)
            _write_files(folder / names[-1] / "files", store, rows)
    spent = [asdict(each) for each in spent_by_day(home_folder(home)) if each.key in data.budget_keys]
    index = {"exported": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **data.to_dict(), "budgets": spent}
    for shown, name in zip(index["runs"], names, strict=True):
        shown["folder"] = name
    _write(folder / "index.json", json.dumps(index, ensure_ascii=False, indent=2))
    return data


def delete_data(
    user: str = "",
    *,
    session: str = "",
    home: str | Path | None = None,
    waiting: bool = False,
    leave_others: bool = False,
    dry_run: bool = False,
) -> PersonalData:
    """Delete the data of a person or of a session: runs, texts, signals, search words, schedules, budget counters.

    The bytes are overwritten in the home's files, not only marked as free, which takes as long as copying the files.

    Args:
        user: The person.
        session: The session, instead of a person.
        home: As for `find_data`.
        waiting: Delete also runs that wait for a decision, a time or a signal.
        leave_others: Leave the runs of other persons that repeat what this one said.
        dry_run: Delete nothing, and raise what a deletion would raise at once.

    Returns:
        What was deleted, or would be.

    Raises:
        UsageError: Nothing is named, runs wait and `waiting` is not set, there are runs of others that repeat the
            person's messages and `leave_others` is not set, or a run is on hold. Nothing is deleted.
        JournalLocked: A run is being executed; nothing is deleted. Or the runs are deleted, and the files could not be
            rewritten because another process reads them.
        JournalError: The files cannot be written.
    """
    data = find_data(user, session=session, home=home)
    busy = [run for run in data.runs if run.status in _BUSY and not (waiting and run.status == "waiting")]
    if busy:
        run = busy[0]
        text = f"Run {run.run_id} is {_BUSY[run.status]}, so nothing was deleted."
        if run.status == "running":
            raise JournalLocked(f"{text} Wait for its end, or stop it first.")
        raise UsageError(f"{text} Pass waiting=True (--waiting) to delete such runs too.")
    if data.others and not leave_others:
        sessions = " and ".join(f"--session {each}" for each in dict.fromkeys(other.session for other in data.others))
        raise UsageError(
            f"{named_others(data.others)} what {user} said, so nothing was deleted. Delete the whole conversation "
            f"first ({sessions}), or leave them as they are: leave_others=True (--leave-others)."
        )
    folder, found = home_folder(home), [run.run_id for run in data.runs]
    if dry_run:
        with open_to_read(folder) as read:
            check_not_held(read, found)
        return data
    if not has_journal(folder):
        return data
    store = open_store(folder)
    delete_runs(store, found)
    if not found:  # texts of runs that a client or an import removed
        store.database.delete_unused_bodies()
    for run_id in found:
        store.note(tombstone(run_id), time.strftime("%Y-%m-%d"))
    store.flush()
    for key in data.budget_keys:
        forget_key(folder, key)
    for each in data.schedules:
        change_schedule(store, each.name, paused=None)
    store.database.wipe()  # an earlier deletion may have been disturbed
    return data


# ------------------------------------------------------------------------------------------------ finding


def named_others(others: Sequence[OtherRun]) -> str:
    """Return runs of other persons with these, as the beginning of a sentence: "team.2 of eve repeats"."""
    names = [f"{each.run_id} of {', '.join(each.users)}" for each in others[:MOST_NAMED]]
    if len(others) > MOST_NAMED:
        names.append(f"{len(others) - MOST_NAMED:,} more")
    listed = ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
    return f"{listed} repeat{'s' if len(others) == 1 else ''}"


# ------------------------------------------------------------------------------------------------ writing


def _write_run(folder: Path, run: RunRecord, rows: Sequence[Row]) -> None:
    from closeout.run.result import conversation_of  # imports much of the package, which a list does not need

    folder.mkdir(mode=0o700)
    ended = next((row.event for row in reversed(rows) if isinstance(row.event, RunEnded)), None)
    closing = "" if ended is None else ended.closing_text or ended.answer or ""
    _write(folder / "run.json", json.dumps(asdict(run), ensure_ascii=False, indent=2))
    _write(folder / "conversation.txt", "\n\n".join(map(_as_text, conversation_of(rows, closing))))
    events = ({"time": row.time, "type": type(row.event).__name__, **row.event.values()} for row in rows)
    lines = (json.dumps(event, ensure_ascii=False, default=str) for event in events)
    _write(folder / "events.jsonl", "\n".join(lines))


def _write_files(folder: Path, store: Store, rows: Sequence[Row]) -> None:
    """Write the files that a run was given and that it left, each version of a name once."""
    found = [
        file
        for row in rows
        for file in getattr(row.event, "kept_files" if isinstance(row.event, RunStarted) else "files", ())
        if isinstance(row.event, RunStarted | ToolFinished) and "sha256" in file
    ]
    for number, (digest, name) in enumerate(dict.fromkeys((str(f["sha256"]), str(f["name"])) for f in found), 1):
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{number}-{_UNSAFE.sub('_', name)[-80:]}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(store.content(digest))


def _as_text(message: Any) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    calls = [
        f"calls {call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()
    ]
    return f"[{message.get('role')}]\n" + "\n".join(filter(None, (text, *calls)))


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace") + b"\n")
