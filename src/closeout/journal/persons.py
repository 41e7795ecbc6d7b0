"""The persons for whom runs are, and all the runs of a person or of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from closeout.errors import RunNotFound
from closeout.journal.events import RunStarted
from closeout.journal.run_names import session_of
from closeout.journal.store import RunRecord, Store
from closeout.records import record

__all__ = [
    "OtherRun",
    "belongs_to",
    "others_that_repeat",
    "persons_of",
    "runs_of_person",
    "runs_of_session",
    "runs_with_forks",
]


@record
class OtherRun:
    """A run of other persons in a session of somebody: a later message, which repeats what was said before it."""

    run_id: str
    session: str
    users: tuple[str, ...]


def persons_of(started: RunStarted | None) -> set[str]:
    """Return whom a run names: its user, and the users whose budgets it was charged to."""
    if started is None:
        return set()
    served = started.origin.get("serve")
    named = {started.user, str(served.get("user") or "") if isinstance(served, dict) else ""}
    keys = started.settings.get("budget") or ()
    named |= {str(key).removeprefix("user:") for key in keys if str(key).startswith("user:")}
    return named - {""}


def belongs_to(started: RunStarted | None, *, agent: str = "", user: str = "") -> bool:
    """Return whether a run is one of the agent and for the person. An empty name matches any."""
    is_agents = not agent or (started is not None and started.name == agent)
    return is_agents and (not user or user in persons_of(started))


def runs_of_person(store: Store, user: str) -> tuple[dict[str, RunRecord], list[str]]:
    """Return the runs of a person by id, with their what-if lanes, and the sessions that they belong to.

    The other messages of these sessions, and the forks of all these runs, belong to them unless they name another
    person.
    """
    named = [run_id for run_id, started in store.beginnings(user) if user in persons_of(started)]
    forks = _forks(store)
    found: dict[str, RunRecord] = {}
    sessions: dict[str, None] = {}
    unread = sorted(named, reverse=True)
    while unread:
        run_id = unread.pop()
        if run_id in found:
            continue
        with suppress(RunNotFound):  # deleted just now
            if run_id not in named and persons_of(store.beginning(run_id)) - {user}:
                continue
            found[run_id] = store.run(run_id)
        unread += forks.get(run_id, ())
        name = session_of(run_id)
        if name and name != run_id and name not in sessions:
            sessions[name] = None
            unread += [run.run_id for run in runs_of_session(store, name)]
    found |= {lane: store.run(lane) for lane in store.lanes_of(found)}
    return found, [*sessions]


def runs_with_forks(store: Store, runs: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """Return runs by id with their forks, the forks of these, and the what-if lanes of all."""
    forks, found = _forks(store), dict[str, RunRecord]()
    unread = [run.run_id for run in runs]
    while unread:
        run_id = unread.pop()
        if run_id not in found:
            with suppress(RunNotFound):  # deleted just now
                found[run_id] = store.run(run_id)
            unread += forks.get(run_id, ())
    return found | {lane: store.run(lane) for lane in store.lanes_of(found)}


def _forks(store: Store) -> dict[str, list[str]]:
    """Return the ids of the forks of each run."""
    found: dict[str, list[str]] = {}
    for run_id, started in store.beginnings("forked"):
        if started.forked:
            found.setdefault(str(started.forked.get("run_id")), []).append(run_id)
    return found


def others_that_repeat(store: Store, runs: Mapping[str, RunRecord], sessions: Sequence[str]) -> list[OtherRun]:
    """Return the messages of other persons that repeat what a person said in sessions, with their what-if lanes."""
    found: list[OtherRun] = []
    for session in sessions:
        members = runs_of_session(store, session)  # in the order in which they were created
        first = next((at for at, run in enumerate(members) if run.run_id in runs), len(members))
        for run in members[first:]:
            if run.run_id not in runs:
                users = tuple(sorted(persons_of(store.beginning(run.run_id))))
                names = (run.run_id, *store.lanes_of([run.run_id]))
                found += [OtherRun(name, session, users) for name in names]
    return found


def runs_of_session(store: Store, session: str) -> list[RunRecord]:
    """Return the runs of a session, and the run that it was begun with."""
    found = store.runs_under(session)
    return [run for run in found if run.run_id == session or session_of(run.run_id) == session]
