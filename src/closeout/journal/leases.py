"""Leases: who executes which run, in a database that several machines share.

A lease is a row with a token that grows each time it is taken. A process renews its leases while it lives; when it has
been silent for longer than a lease, others may take its runs. What it writes then is refused, because every append
compares the token within its transaction, however long the process was stopped in between. Only the clock of the
database decides.
"""

from __future__ import annotations

import math
import os
import platform
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from closeout.errors import JournalError, JournalLocked
from closeout.homes import DatabaseHome
from closeout.journal.journal_database import MESSAGE_LOCK, SEQ_BITS, SqlConnection
from closeout.journal.postgres_link import PostgresLink
from closeout.journal.postgres_news import TELL, channel_of

__all__ = ["SERVER_TIME", "RunLeases", "SentCounts"]

LOOK_SECONDS = 1.0  # Seconds between two counts of the messages to the runs of this process.
RENEWALS = 6  # Renewals within the length of a lease.
SERVER_TIME = "extract(epoch FROM clock_timestamp())::float8"

_TAKE = f"""
INSERT INTO leases AS known VALUES (?, 1, ?, clock_timestamp() + ? * interval '1 second')
ON CONFLICT (run) DO UPDATE SET
  token = known.token + 1, owner = excluded.owner, until = clock_timestamp() + ? * interval '1 second'
WHERE known.until < clock_timestamp() OR known.owner = excluded.owner RETURNING token, {SERVER_TIME}
"""  # noqa: S608 - constant
_DROP = "UPDATE leases SET until = 'epoch' WHERE run = ? AND token = ? AND owner = ?"
_DROP_AND_TELL = TELL.replace("WITH", f"WITH dropped AS ({_DROP}),", 1)
_HELD = "SELECT run FROM leases WHERE run = ANY(?::bigint[]) AND until > clock_timestamp()"
# The rows are locked in the order in which an append locks them, so that the two never wait for each other. A lease
# that was given back since it was listed stays free.
_RENEW = f"""
WITH mine AS MATERIALIZED (
  SELECT run FROM leases WHERE run = ANY(?::bigint[]) AND owner = ? AND until > 'epoch'
  ORDER BY run FOR NO KEY UPDATE)
UPDATE leases SET until = clock_timestamp() + ? * interval '1 second' FROM mine WHERE leases.run = mine.run
RETURNING {SERVER_TIME}
"""  # noqa: S608 - constant
_CHECK = "SELECT run, token FROM leases WHERE run = ANY(?::bigint[]) ORDER BY run FOR SHARE"
_COUNT = f"""
SELECT asked.run, (SELECT max(place) - (asked.run << {SEQ_BITS}) + 1 FROM messages
  WHERE place >= asked.run << {SEQ_BITS} AND place < (asked.run + 1) << {SEQ_BITS})
FROM unnest(?::bigint[]) AS asked(run)
"""  # noqa: S608 - constants


class RunLeases:
    """The leases of a process, by run number. They are renewed in a thread of their own.

    Args:
        home: The database.
    """

    def __init__(self, home: DatabaseHome) -> None:
        self._home = home
        # A lease that a crash of the server takes back takes back with it all that was written under it.
        self._link = PostgresLink(home, synced=False)
        self.owner = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(8)}"
        self._guard = threading.Lock()  # guards the next two
        self._tokens: dict[int, int] = {}  # of the leases that this process has
        self._sent: dict[int, int] = {}  # how many messages were sent to some of these runs
        self._time = (-math.inf, 0.0)  # a time of the server, and when it was
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def take(self, run_id: str, number: int, db: SqlConnection | None = None) -> None:
        """Take a run, within a transaction if one is given. Raises JournalLocked while any process has its lease."""
        if not self.try_take(number, db):
            raise JournalLocked(
                f"Run {run_id} is being executed right now, or its process died less than {self._home.lease:g} seconds "
                "ago. Wait for it to end, or stop it first."
            )

    def try_take(self, number: int, db: SqlConnection | None = None) -> bool:
        """Take a lease if nobody has it, and return whether it was free."""
        # In a transaction, without the lock: its owner may wait for the connection that a pooler gave to this thread.
        with self._link.lock if db is None else nullcontext():
            if number in self._tokens:
                return False
            values = (number, self.owner, self._home.lease, self._home.lease)
            # Repeated if the connection is cut. It may have been taken then: the row has this owner.
            found = self._link.changed(_TAKE, values) if db is None else db.execute(_TAKE, values).fetchall()
            if not found:
                return False
            self.note_time(found[0][1], time.monotonic())
            self.note_taken({number: found[0][0]})
        return True

    def note_taken(self, tokens: Mapping[int, int]) -> None:
        """Keep the leases of some runs, which a statement has taken, by their tokens."""
        with self._guard:
            self._tokens.update(tokens)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="closeout-leases", daemon=True)
            self._thread.start()

    def drop(self, number: int, db: SqlConnection | None = None) -> None:
        """Give a lease back, if this process has it. If the database cannot be reached, it ends by itself."""
        with self._guard:
            token = self._tokens.pop(number, None)
            self._sent.pop(number, None)
        if token is not None:
            values = (number, token, self.owner)
            if db is not None:
                db.execute(_DROP, values)
                return
            with suppress(JournalError):
                if number < MESSAGE_LOCK:  # a run was submitted, decided or has ended
                    self._link.changed(_DROP_AND_TELL, (*values, *self._told(number)))
                else:
                    self._link.changed(f"{_DROP} RETURNING run", values)

    def tell(self, number: int) -> None:
        """Report that a run has news. If the database cannot be reached, others see it when they look."""
        with suppress(JournalError):
            self._link.changed(TELL, self._told(number))

    def _told(self, number: int) -> tuple[Any, ...]:
        channel = channel_of(self._home)
        return number, channel, channel, str(number)

    def held_of(self, numbers: Sequence[int]) -> set[int]:
        """Return those of some runs whose lease any process has."""
        others = [number for number in numbers if number not in self._tokens]
        found = {run for (run,) in self._link.repeated(_HELD, (others,))} if others else set()
        return found | set(numbers) - set(others)

    def lost_of(self, link: PostgresLink, numbers: Collection[int]) -> set[int]:
        """Return those of some runs whose lease this process does not have any more.

        Call it within a transaction. Until that ends, no process can take the other runs.
        """
        found = dict(link.execute(_CHECK, (sorted(numbers),)).fetchall())
        return {number for number in numbers if found.get(number, 0) != self._tokens.get(number, -1)}

    def sent_to(self, number: int) -> int:
        """Return how many messages were sent to a run. For runs of this process it is read once in a second."""
        found = self._sent.get(number)
        if found is None:
            found = self._link.repeated(_COUNT, ([number],))[0][1] or 0
            with self._guard:
                if number in self._tokens:
                    self._sent.setdefault(number, found)
        return found

    def note_sent(self, number: int, count: int) -> None:
        """Note how many messages were sent to a run, which this process knows because it sent the last one."""
        with self._guard:
            if number in self._tokens:
                self._sent[number] = max(count, self._sent.get(number, 0))

    # -------------------------------------------------------------------------------------------- in the thread

    def _keep(self) -> None:
        between = self._home.lease / RENEWALS
        due = time.monotonic() + between
        while not self._closing.wait(min(LOOK_SECONDS, between)):
            with suppress(JournalError):  # the database restarts: the next round tries again
                if time.monotonic() >= due:
                    self._renew()
                    due = time.monotonic() + between
                self._count()

    def _renew(self) -> None:
        with self._guard:
            numbers = sorted(self._tokens)
        if numbers:
            found = self._link.changed(_RENEW, (numbers, self.owner, self._home.lease))
            for (now,) in found[-1:]:
                self.note_time(now, time.monotonic())

    def _count(self) -> None:
        with self._guard:
            numbers = sorted(self._sent)
        if not numbers:
            return
        for number, count in self._link.repeated(_COUNT, (numbers,)):
            self.note_sent(number, count or 0)

    # -------------------------------------------------------------------------------------------- time

    @property
    def knows_time(self) -> bool:
        """True once the time of the server has been noted."""
        return self._time[0] > 0

    def note_time(self, now: float, at: float) -> None:
        """Note the time of the server at a time of this machine's monotonic clock, which nobody sets."""
        self._time = now, at

    def time(self) -> float:
        """Return the time of the server, as far as this machine can tell from when it was noted."""
        noted, at = self._time
        return noted + time.monotonic() - at

    # -------------------------------------------------------------------------------------------- lifetime

    def rest(self) -> None:
        """Close the connection if it was not used for some seconds."""
        self._link.rest()

    def pause(self) -> None:
        """Let nobody use the connection until `proceed`."""
        self._link.lock.acquire()
        self._guard.acquire()

    def proceed(self, *, in_parent: bool) -> None:
        """Continue after a fork. The leases are the parent's."""
        if not in_parent:
            self._link.forget()
            self._tokens.clear()
        self._guard.release()
        self._link.lock.release()

    def close(self) -> None:
        """Give all leases back."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for number in list(self._tokens):
            self.drop(number)
        self._link.close()


class SentCounts:
    """The number of messages that were sent to each run: a `NumberOfEach`, counted in the database."""

    def __init__(self, leases: RunLeases) -> None:
        self._leases = leases

    def of(self, run: int) -> int:
        return self._leases.sent_to(run)

    def set(self, run: int, count: int) -> None:
        self._leases.note_sent(run, count)

    def clear(self, run: int) -> None:
        """Nothing: the number of a run is never given again."""
