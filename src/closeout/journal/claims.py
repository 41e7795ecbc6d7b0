"""The records of a look for the runs that a worker may execute, and its SQL for both databases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = [
    "CANCEL",
    "HANDED_OVER",
    "IMPORTED",
    "PROGRESS",
    "ClaimedRun",
    "Look",
    "SuspectsGo",
    "candidate_values",
    "candidates",
    "facts",
    "look_of",
]

# The prefixes of the notes that name a run: which somebody asked to cancel, which a process has handed over to others,
# which came from a file and nobody trusts yet.
CANCEL, HANDED_OVER, IMPORTED = "cancel ", "handed over ", "imported "

# Where runs that were interrupted repeatedly come among those of their priority, or that none is claimed.
SuspectsGo: TypeAlias = Literal["nowhere", "first", "last"]
# The types of the events with which a run makes progress: interruptions are counted from zero afterwards.
PROGRESS = ("ModelReplied", "ToolFinished", "DecisionMade")


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that this process holds in order to execute it.

    Attributes:
        run_id: The run.
        number: Its number.
        status: Its recorded status: "running" if it was submitted or interrupted, "waiting", or "cancelled" if it was
            handed over.
        interruptions: How often it was interrupted since it last made progress.
    """

    run_id: str
    number: int
    status: str
    interruptions: int

    @property
    def is_suspect(self) -> bool:
        """True if the run was interrupted repeatedly.

        The cause may be this run, or another one that was executed beside it. So a process executes one such run at a
        time.
        """
        return self.interruptions > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one look of a worker.

    Attributes:
        claims: The runs that it may execute now, in their order.
        cancelled: The runs that somebody asked to cancel.
        unsure: Waiting runs whose events say whether they can continue: the id, a number that changes with the record,
            and the name of a signal that was sent to the run, if that is why.
        unnamed: Runs whose record does not name their agent.
        next_due: When the next waiting run can continue, in seconds since the epoch; infinity if none can.
    """

    claims: list[ClaimedRun]
    cancelled: list[str]
    unsure: list[tuple[str, int, str]]
    unnamed: list[str]
    next_due: float


# Each part has the columns id, run_id, status, tries, due, priority, rank, at. `rank`: interrupted runs and those that
# can continue precede fresh ones. The values of a part: the agent, a JSON list of excluded ids, the limit. The age of
# fresh runs precedes theirs.
_OPEN = f"""
r.agent=? AND r.run_id NOT IN (SELECT value FROM {{values}}) AND NOT EXISTS
  (SELECT 1 FROM notes n WHERE n.name IN ('{IMPORTED}' || r.run_id, '{CANCEL}' || r.run_id)){{free}}
"""  # noqa: S608 - constants
_TRUSTED = f"NOT EXISTS (SELECT 1 FROM notes n WHERE n.name='{IMPORTED}' || r.run_id)"  # noqa: S608 - constants
_RUN_HANDED_OVER = f"substr(name, {len(HANDED_OVER) + 1})"
_HANDED_OVER_RUNS = f"name>='{HANDED_OVER}' AND name<'{HANDED_OVER.rstrip()}!'"
_SELECT = "SELECT r.id, r.run_id, r.status, r.tries, r.due, r.priority"
_CONTINUING = f"""
{_SELECT}, 0 AS rank, r.due AS at FROM runs r WHERE r.id IN (
  SELECT id FROM runs WHERE status='waiting' AND due>0 AND due<={{now}} UNION ALL
  SELECT id FROM runs JOIN notes ON run_id={_RUN_HANDED_OVER}
  WHERE {_HANDED_OVER_RUNS} AND status='cancelled')
AND {_OPEN} ORDER BY r.priority DESC, r.due, r.id LIMIT ?
"""  # noqa: S608 - constants
_FRESH = f"""
{_SELECT}, CASE WHEN r.tries=0 THEN 2 ELSE 0 END AS rank, 1.0*r.id AS at
FROM runs r WHERE r.status='running' AND r.tries<2 AND (r.tries>0 OR r.started<={{now}}-?) AND {_OPEN}
ORDER BY r.priority DESC, (r.tries=0), r.id LIMIT ?
"""
_SUSPECT = f"""
{_SELECT}, {{rank}} AS rank, 1.0*r.id AS at
FROM runs r WHERE r.status='running' AND r.tries>1 AND {_OPEN} ORDER BY r.priority DESC, r.id LIMIT ?
"""
_RANKS = {"first": 1, "last": 3, "nowhere": 3}


def candidates(suspects: SuspectsGo, *, values: str, now: str, free: str = "") -> list[str]:
    """Return the selects of the runs that may be claimed: those that can continue, other ones, repeatedly interrupted.

    Args:
        suspects: Where repeatedly interrupted runs come.
        values: SQL for the table of the values in a JSON list.
        now: SQL for the time.
        free: SQL that begins with AND and is true if nobody holds run `r`.
    """
    parts = (_CONTINUING, _FRESH, _SUSPECT)
    return [part.format(values=values, now=now, free=free, rank=_RANKS[suspects]) for part in parts]


def candidate_values(agent: str, excluded: str, limits: Sequence[int], fresh_age: float) -> list[Any]:
    """Return the values of the selects that `candidates` returns.

    Args:
        agent: What executes the runs.
        excluded: A JSON list of the ids of runs that are not to be claimed.
        limits: The most runs that each of the three finds.
        fresh_age: For how many seconds a fresh run must have been recorded.
    """
    continuing, fresh, suspect = ((agent, excluded, limit) for limit in limits)
    return [*continuing, fresh_age, *fresh, *suspect]


def facts(now: str) -> str:
    """Return the select of what else a look finds, as rows of kind, run, number and name. Its two values: the agent.

    `now` is SQL for the time.
    """
    place = "1.0*(SELECT max(place)-(r.id<<32) FROM events WHERE place>=r.id<<32 AND place<(r.id+1)<<32)"
    return f"""
    SELECT 'cancelled' AS kind, substr(name, {len(CANCEL) + 1}) AS run_id, 0.0 AS number, '' AS name
    FROM notes WHERE name>='{CANCEL}' AND name<'{CANCEL.rstrip()}!' UNION ALL
    SELECT 'unsure', r.run_id, {place}, '' FROM runs r
    WHERE r.status='waiting' AND r.due=0 AND r.agent=? AND {_TRUSTED} UNION ALL
    SELECT 'unsure', r.run_id, {place}, s.name FROM signals s JOIN runs r ON r.run_id=s.run_id
    WHERE s.received=0 AND r.status='waiting' AND r.agent=? AND {_TRUSTED} UNION ALL
    SELECT 'unnamed', run_id, 0.0, '' FROM runs r
    WHERE agent IS NULL AND status IN ('running', 'waiting') AND {_TRUSTED} UNION ALL
    SELECT 'unnamed', run_id, 0.0, '' FROM runs JOIN notes ON run_id={_RUN_HANDED_OVER}
    WHERE {_HANDED_OVER_RUNS} AND status='cancelled' AND agent IS NULL UNION ALL
    SELECT 'due', '', min(due), '' FROM runs WHERE status='waiting' AND due>{now}
    """  # noqa: S608 - constants


def look_of(found: Iterable[Sequence[Any]], claims: list[ClaimedRun]) -> Look:
    """Return the result of a look from the rows of `facts`."""
    rows: dict[str, list[Sequence[Any]]] = {}
    for row in found:
        rows.setdefault(row[0], []).append(row)
    due = [row[2] for row in rows.get("due", ()) if row[2] is not None]
    return Look(
        claims=claims,
        cancelled=[row[1] for row in rows.get("cancelled", ())],
        unsure=[(row[1], int(row[2] or 0), row[3]) for row in rows.get("unsure", ())],
        unnamed=[row[1] for row in rows.get("unnamed", ())],
        next_due=due[0] if due else math.inf,
    )
