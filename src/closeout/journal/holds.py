"""Holds: runs, or all runs of a person, that nothing deletes until they are released. Each is a note of the home."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from urllib.parse import quote, unquote

from closeout.errors import UsageError
from closeout.journal.persons import runs_of_person
from closeout.journal.store import NEW_NOTE, Store
from closeout.records import record

__all__ = ["Hold", "check_not_held", "held_runs", "list_holds", "set_hold"]

_NAME = "hold:"  # Begins the names of the notes: "hold:run:ID", "hold:user:NAME".
_RELEASE = "DELETE FROM notes WHERE name=?"


@record
class Hold:
    """A hold on a run or on all runs of a person.

    Attributes:
        kind: "run" or "user".
        name: The id of the run, or the person.
    """

    kind: str
    name: str

    @property
    def release(self) -> str:
        """The command that ends it."""
        words = ["--user", self.name] if self.kind == "user" else [self.name]
        return f"closeout data hold {shlex.join(words)} --release"


def set_hold(store: Store, hold: Hold, *, release: bool = False) -> None:
    """Put a run or a person on hold, or release it, synced. Raises JournalError."""
    # A name without spaces is not taken for a note on a run, which is deleted with the run.
    name = f"{_NAME}{hold.kind}:{quote(hold.name, safe='', errors='surrogatepass')}"
    statement, values = (_RELEASE, [name]) if release else (NEW_NOTE, [name, f"{time.time():.0f}"])
    store.transact(lambda db: db.execute(statement, values))


def list_holds(store: Store) -> list[Hold]:
    """Return the holds of a home, those on runs first."""
    found = (name.partition(":") for name in store.notes_that_begin_with(_NAME))
    return [Hold(kind, unquote(name, errors="surrogatepass")) for kind, _, name in found]


def held_runs(store: Store) -> dict[str, Hold]:
    """Return the runs that are on hold with the reason; what-if comparisons of them, too."""
    found: dict[str, Hold] = {}
    for hold in list_holds(store):
        runs = runs_of_person(store, hold.name)[0] if hold.kind == "user" else (hold.name, *store.lanes_of([hold.name]))
        found |= dict.fromkeys(runs, hold)
    return found


def check_not_held(store: Store, run_ids: Iterable[str]) -> None:
    """Raise UsageError if one of the runs is on hold."""
    held = held_runs(store)
    for run_id in run_ids:
        if hold := held.get(run_id):
            why = f" with the data of {hold.name!r}" if hold.kind == "user" else ""
            raise UsageError(f"Run {run_id} is on hold{why}, so nothing was deleted. Release it: {hold.release}")
