"""News of a database, by LISTEN and NOTIFY: which runs something has happened to that others may wait for.

A run that can be executed wakes one worker: one with free places, which listens to a channel of its own.

While the connection is cut, news is lost. Once it is back, every run has news. Behind a pooler there is no news.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from closeout.errors import JournalError
from closeout.homes import DatabaseHome
from closeout.journal.postgres_link import PostgresLink, explained_postgres

__all__ = ["TELL", "PostgresNews", "channel_of"]

# Reports that a run has news to those who wait for it, and to a worker of its agent if it has no end. The values: the
# number of the run, the channel, the number and the channel again.
TELL = """
WITH chosen AS (
  SELECT w.id FROM workers w JOIN runs r ON r.agent = w.agent
  WHERE r.id = ? AND r.status IN ('running', 'waiting', 'cancelled') AND w.places > 0 AND w.until > clock_timestamp()
  ORDER BY w.places DESC, random() LIMIT 1 FOR UPDATE OF w SKIP LOCKED),
woken AS (
  UPDATE workers SET places = places - 1 FROM chosen WHERE workers.id = chosen.id
  RETURNING pg_notify(? || '_' || workers.id, '0'))
SELECT pg_notify(?, ?) FROM (SELECT count(*) FROM woken) AS told
"""
logger = logging.getLogger("closeout")

_LOOK_SECONDS = 1.0  # seconds between two looks whether the journal is being closed


def channel_of(home: DatabaseHome) -> str:
    """Return the channel of a journal. A schema may have a name that is too long for one."""
    return f"closeout_{hashlib.sha256(home.schema.encode()).hexdigest()[:16]}"


class PostgresNews:
    """Calls functions for the news of a journal, in a thread with a connection, which begin with the first function.

    Args:
        home: The database.
        channel: The channel of the news.
    """

    def __init__(self, home: DatabaseHome, channel: str) -> None:
        self._home = home
        self._channel = channel
        self._link = PostgresLink(home, synced=False)
        self._guard = threading.Lock()
        self._acts: list[Callable[[int], object]] = []
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def subscribe(self, act: Callable[[int], object]) -> Callable[[], None]:
        """Call a function, in the thread, with the number of each run that has news, 0 for all. Returns its end."""
        with self._guard:
            self._acts = [*self._acts, act]
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="closeout-news", daemon=True)
                self._thread.start()

        def leave() -> None:
            with self._guard:
                self._acts = [each for each in self._acts if each is not act]

        return leave

    def _listen(self) -> None:
        try:
            while not self._closing.is_set():
                with suppress(JournalError), self._link.lock, explained_postgres(self._home):
                    raw = self._link.raw
                    if self._link.pooled:  # news would reach the next user of the connection
                        logger.warning(
                            "%s is behind a connection pooler, which passes no notifications on: other processes are "
                            "noticed when this one looks, after a second or later. For immediate notifications use the "
                            "address of PostgreSQL itself.",
                            self._home,
                        )
                        return
                    raw.execute(f'LISTEN "{self._channel}"'.encode())
                    self._tell(0)  # what happened before
                    while not self._closing.is_set():
                        for notice in raw.notifies(timeout=_LOOK_SECONDS):
                            self._tell(int(notice.payload))
                self._closing.wait(_LOOK_SECONDS)  # the database is away
        finally:
            self._link.close()

    def _tell(self, number: int) -> None:
        for act in self._acts:
            act(number)

    def forget(self) -> None:
        """Begin without a thread in a forked process: the connection is the parent's."""
        self._link.forget()
        self.__init__(self._home, self._channel)  # type: ignore[misc]

    def close(self) -> None:
        """End the thread soon."""
        self._closing.set()
