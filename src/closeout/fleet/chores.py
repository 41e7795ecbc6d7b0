"""Begin recurring runs and announce the ends of runs, beside the work of an agent's processes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from closeout.errors import CloseoutError, ConfigError, JournalError, RunExists, UsageError
from closeout.fleet.announcing import Webhook, announce_ends
from closeout.journal.claims import HANDED_OVER
from closeout.journal.following import waited
from closeout.journal.run_names import new_run_id
from closeout.journal.store import Store
from closeout.records import record

__all__ = ["Chores", "Schedule", "change_schedule", "list_schedules", "next_times", "save_schedule"]

log = logging.getLogger("closeout")

# Seconds between two looks for what other processes have changed. What this one does is seen at once.
LOOK_SECONDS = 5.0
COUNTED = 1000  # missed times that are counted
_COLUMNS = "name, agent, every, timezone, task, next, configured, paused, last, error"
_SELECT = f"""
SELECT {_COLUMNS}, EXISTS (SELECT 1 FROM runs r WHERE r.run_id=last AND (r.status IN ('running', 'waiting') OR
r.status='cancelled' AND EXISTS (SELECT 1 FROM notes n WHERE n.name='{HANDED_OVER}' || last)))
FROM schedules ORDER BY name
"""  # noqa: S608 - constants
# One with the same times stays paused, and keeps its next time.
_SAVE = f"""
INSERT INTO schedules ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,0,'','') ON CONFLICT (name) DO UPDATE SET
every=excluded.every, timezone=excluded.timezone, task=excluded.task, configured=excluded.configured, next=CASE
WHEN schedules.every=excluded.every AND schedules.timezone=excluded.timezone THEN schedules.next ELSE excluded.next END
WHERE schedules.agent=excluded.agent
"""  # noqa: S608 - constants
# Of two processes that have begun the same run, one changes it.
_ADVANCE = "UPDATE schedules SET next=?, last=?, error=? WHERE name=? AND next=?"


@record
class Schedule:
    """A recurring run.

    Attributes:
        name: Its name, with which the ids of its runs begin.
        agent: The agent whose processes begin them.
        every: When they begin, as a cron expression.
        timezone: The time zone in which that is meant.
        task: The arguments of `Agent.submit`.
        next: When the next one begins, in seconds since the epoch, or after the end of the last one.
        configured: Settings define it, rather than a program.
        paused: None begins until it is continued.
        last: The id of the run that began last; empty before the first.
        error: Why the last one could not begin.
        is_open: The last one has not ended.
    """

    name: str
    agent: str
    every: str
    timezone: str
    task: Mapping[str, Any]
    next: float
    configured: bool
    paused: bool
    last: str
    error: str
    is_open: bool


def list_schedules(store: Store, agent: str = "") -> list[Schedule]:
    """Return the schedules of a home, or of one of its agents, by name. Raises JournalError."""
    is_there = store.database.has_table("schedules")  # unless an older version wrote it, and it is only read
    found = [Schedule(*row) for row in (store.query(_SELECT) if is_there else ()) if agent in ("", row[1])]
    return [replace(each, task=json.loads(str(each.task))) for each in found]


def change_schedule(store: Store, name: str, *, paused: bool | None) -> None:
    """Pause or continue a schedule, or for None remove it. Raises UsageError for an unknown name."""
    change: tuple[str, tuple[Any, ...]] = "DELETE FROM schedules WHERE name=?", (name,)
    if paused is not None:
        change = "UPDATE schedules SET paused=? WHERE name=?", (int(paused), name)
    if not store.transact(lambda db: db.execute(*change).rowcount):
        raise UsageError(f"There is no schedule {name!r}. `closeout runs schedules` lists them.")


def next_times(every: str, timezone: str, after: float) -> Iterator[float]:
    """Iterate over the times of a cron expression after a time, in seconds since the epoch.

    A local time that a change of the clocks leaves out is the first instant after it; one that comes twice counts once.

    Raises:
        UsageError: The expression or the time zone is not valid, or no time ever comes.
    """
    from zoneinfo import ZoneInfo

    from cronsim import CronSim, CronSimError

    try:
        zone = ZoneInfo(timezone)
    except (ValueError, OSError, LookupError, TypeError):
        raise UsageError(f"There is no time zone {timezone!r:.80}. Write one like 'Europe/Berlin' or 'UTC'.") from None
    if not isinstance(every, str) or len(every.split()) != 5:
        form = "minute, hour, day, month and weekday, such as '0 7 * * 1-5'"
        raise UsageError(f"every must be a cron expression, got {every!r:.80}. Write {form}.")
    try:
        times = CronSim(every, datetime.fromtimestamp(after, UTC).astimezone(zone))
    except CronSimError as error:
        raise UsageError(f"every={every!r:.80} is not a cron expression: {error}.") from None
    last = after
    for each in times:
        if (at := each.timestamp()) > last:
            last = at
            yield at


def save_schedule(
    store: Store,
    agent: str,
    name: str,
    *,
    every: str,
    timezone: str,
    start: float | None = None,
    configured: bool = False,
    **task: Any,
) -> str:
    """Save a schedule in place of the one of its name. Returns the name, a new one for "". Raises UsageError.

    Args:
        store: Where it is kept.
        agent: The agent whose processes begin its runs.
        name: Its name.
        every: A cron expression.
        timezone: The time zone in which that is meant.
        start: Earlier times do not count, in seconds since the epoch.
        configured: Settings define it.
        task: The arguments of `Agent.submit`.
    """
    first = next(next_times(every, timezone, store.clock() if start is None else start), None)
    if first is None:
        raise UsageError(f"No time ever matches every={every!r:.80}.")
    try:
        task["files"] = [str(Path(each).absolute()) for each in task.get("files", ())]
        text = json.dumps({key: value for key, value in task.items() if value})
    except (TypeError, ValueError):
        raise UsageError("A recurring run keeps its arguments as JSON: pass files by their paths.") from None
    name = name or new_run_id()
    values = (name, agent, every, timezone, text, first, int(configured))
    if not store.transact(lambda db: db.execute(_SAVE, values).rowcount):
        raise UsageError(f"Another agent has a schedule {name!r}. Use another name.")
    return name


@dataclass(slots=True)
class Chores:
    """Begins the recurring runs of an agent and announces the ends of all its runs, in any number of processes.

    Attributes:
        store: Where the runs are kept.
        agent: The name of the agent.
        submit: Records a run: `Agent.submit`.
        webhook: Announces the ends; None: they are not.
        configured: The schedules of the settings by name: the arguments of `Agent.submit`.
    """

    store: Store
    agent: str
    submit: Callable[..., Awaitable[str]]
    webhook: Webhook | None
    configured: Mapping[str, Mapping[str, Any]]
    _news: list[asyncio.Event] = field(default_factory=list)

    async def begin(self) -> None:
        """Save the schedules of the settings in place of their earlier ones. Raises ConfigError."""
        for name, options in self.configured.items():
            try:
                await self.store.off_loop(save_schedule, self.store, self.agent, name, configured=True, **options)
            except UsageError as error:
                raise ConfigError(f"'schedules.{name}': {error}") from None
        for each in await self.store.off_loop(list_schedules, self.store, self.agent):
            if each.configured and each.name not in self.configured:
                await self.store.off_loop(partial(change_schedule, self.store, each.name, paused=None))

    async def keep(self) -> None:
        """Begin recurring runs and announce ends until cancelled."""
        await asyncio.gather(self._repeat(self.fire), self._repeat(self.announce))

    async def _repeat(self, act: Callable[[], Awaitable[float]]) -> None:
        news = asyncio.Event()
        self._news.append(news)
        while True:
            seconds = LOOK_SECONDS
            try:
                seconds = await act() - self.store.clock()
            except JournalError:  # a database that is away for a while, which the look for runs reports
                pass
            except Exception:
                log.exception("It is tried again in %g seconds.", LOOK_SECONDS)
            await waited(news, min(max(seconds, 0.0), LOOK_SECONDS))

    def tell(self) -> None:
        """Look at once: a run has ended here."""
        for each in self._news:
            each.set()

    async def announce(self, now: float | None = None) -> float:
        """Announce what is due. Returns when the next is, in seconds since the epoch."""
        return math.inf if self.webhook is None else await announce_ends(self.webhook, self.store, self.agent, now)

    async def fire(self, now: float | None = None) -> float:
        """Begin the runs whose time has come. Returns when the next begins, in seconds since the epoch."""
        at, following = self.store.clock() if now is None else now, math.inf
        for each in await asyncio.to_thread(list_schedules, self.store, self.agent):
            if each.next > at:
                following = following if each.paused else min(following, each.next)
            elif not each.paused and not each.is_open:
                following = min(following, await self._begin_run(each, at))
        return following

    async def _begin_run(self, schedule: Schedule, now: float) -> float:
        """Begin the run of a schedule for the first of its times that have passed. Returns when the next begins."""
        times = partial(next_times, schedule.every, schedule.timezone)
        missed = sum(1 for _ in takewhile(lambda each: each <= now, islice(times(schedule.next), COUNTED)))
        time, task = datetime.fromtimestamp(schedule.next, UTC), schedule.task
        note = {"name": schedule.name, "time": time.isoformat(), "missed": missed}
        run_id, error = f"{schedule.name}.{time:%Y%m%dT%H%M%SZ}", ""
        try:
            await self.submit(**{**task, "run_id": run_id, "origin": {**task.get("origin", {}), "schedule": note}})
        except RunExists:  # another process was faster
            pass
        except JournalError:
            raise
        except (UsageError, ConfigError) as problem:
            run_id, error = "", str(problem)
            log.warning("The schedule %s could not begin a run: %s", schedule.name, error)
        except CloseoutError as problem:  # a server that is busy
            log.warning("The schedule %s begins its run later: %s", schedule.name, problem)
            return now + LOOK_SECONDS
        following = next(times(now))
        values = (following, run_id or schedule.last, error, schedule.name, schedule.next)
        await self.store.off_loop(self.store.transact, lambda db: db.execute(_ADVANCE, values))
        return following
