"""Announce the ends and waits of runs: signed webhooks by the Standard Webhooks, at least once, from the outbox."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from closeout.errors import ConfigError, JournalError, RunNotFound, UsageError
from closeout.journal.events import RunEnded
from closeout.journal.journal_database import SEQ_BITS
from closeout.journal.store import Store
from closeout.redaction import redact
from closeout.visible import visible

__all__ = ["Webhook", "announce_ends", "unsent_ends"]

log = logging.getLogger("closeout")

# Seconds from each try to the next, as the Standard Webhooks recommend: five days in all. Then an end is given up.
DELAYS = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0, 172_800.0)
SECONDS = 15.0  # Seconds that a receiver has to answer.
AT_ONCE = 20  # announcements that are sent at the same time
SHORTEST_KEY = 24  # bytes
GONE = 410  # the status with which a receiver asks for no further try
LONGEST_ERROR = 300  # characters
# Of two processes that claim a row at once, the second finds that it is not due any more.
_CLAIM = (
    "UPDATE outbox SET due=?, tries=tries+1 WHERE due<=? AND place IN "
    "(SELECT place FROM outbox WHERE agent=? AND due<=? ORDER BY due, place LIMIT ?) RETURNING place, tries"
)
_UNSENT = (
    "SELECT r.run_id, o.agent, o.tries, o.due, o.error FROM outbox o JOIN runs r ON r.id=o.place>>32 "
    "WHERE o.error<>'' AND ? IN ('', r.run_id) ORDER BY o.place DESC LIMIT 1000"
)


class Webhook:
    """Sends a signed POST when a run ends or waits, by the Standard Webhooks (https://www.standardwebhooks.com).

    Override `send` to notify others in another way.

    Args:
        url: The address of the receiver. Redirects are not followed, and proxies not used.
        secret: The key of the signature in Base64, 24 bytes or more, as `openssl rand -base64 32` prints one. It may
            begin with `whsec_`.
        events: What is announced: "ended", "waiting".
        allow_private: Which addresses outside the public internet the receiver may have: True for all, or networks such
            as "10.0.0.0/8".

    Raises:
        ConfigError: The address or the key is not valid.
        UsageError: Another argument is not valid.
    """

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        events: str | Iterable[str] = ("ended", "waiting"),
        allow_private: bool | str | Iterable[str] = False,
    ) -> None:
        from closeout.models.transport import Endpoint  # imports much, which a list of runs does not need
        from closeout.tools.builtin.web import AddressGuard

        self._endpoint = Endpoint(url)
        self.events = (events,) if isinstance(events, str) else tuple(events)
        if not self.events or not {*self.events} <= {"ended", "waiting"}:
            raise UsageError(f"The events of a webhook are 'ended', 'waiting' or both, got {events!r:.80}.")
        try:
            self._key = base64.b64decode(str(secret).removeprefix("whsec_"), validate=True)
        except ValueError:
            self._key = b""
        if len(self._key) < SHORTEST_KEY:
            text = f"The secret of a webhook must be {SHORTEST_KEY} bytes or more in Base64."
            raise ConfigError(f"{text} Make one with: openssl rand -base64 32")
        self._guard = AddressGuard(allow_private)

    def __repr__(self) -> str:
        return f"Webhook({self._endpoint.origin!r}, events={self.events!r})"  # a path may be a secret

    async def send(self, id: str, notice: Mapping[str, Any]) -> None:  # noqa: A002
        """Send a notice.

        Args:
            id: The same for each try, so that a receiver can leave out what it has.
            notice: JSON values: `type` ("run.ended", "run.waiting"), `timestamp`, and in `data` the run.

        Raises:
            Exception: It was not received, and is sent again later; after a UsageError, never.
        """
        import aiohttp

        refused: list[str] = []
        connector = aiohttp.TCPConnector(socket_factory=self._guard.socket_factory(refused), happy_eyeballs_delay=None)
        body, at = json.dumps(notice).encode(), int(time.time())
        signature = base64.b64encode(hmac.digest(self._key, f"{id}.{at}.".encode() + body, hashlib.sha256)).decode()
        headers = {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": f"v1,{signature}"}
        headers["Content-Type"] = "application/json"
        try:
            async with (
                asyncio.timeout(SECONDS),
                aiohttp.ClientSession(connector=connector, trust_env=False) as session,
                session.post(self._endpoint.url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                status = response.status
        except (TimeoutError, aiohttp.ClientError) as error:
            text = redact(str(error)) or f"no answer within {SECONDS:g} s"
            if refused:
                text = f"{refused[-1]} is not a public address. Set allow_private if you trust it"
            raise ConnectionError(text) from None
        if status == GONE:
            raise UsageError(f"HTTP {status}: the receiver asks for no further try")
        if not 200 <= status < 300:
            raise ConnectionError(f"HTTP {status}")


async def announce_ends(webhook: Webhook, store: Store, agent: str, now: float | None = None) -> float:
    """Announce the ends and waits of an agent's runs that are due. Returns when the next is. Raises JournalError."""
    while True:
        at = store.clock() if now is None else now
        ((due,),) = await asyncio.to_thread(store.query, "SELECT min(due) FROM outbox WHERE agent=?", (agent,))
        if due is None or due > at:
            return math.inf if due is None else float(due)
        claim = (_CLAIM, (at + 4 * SECONDS, at, agent, at, AT_ONCE))
        claimed = await store.off_loop(_executed, store, [claim])
        outcomes = await asyncio.gather(*(_announced(webhook, store, place, tries, at) for place, tries in claimed))
        await store.off_loop(_executed, store, outcomes)


def _executed(store: Store, changes: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Return the rows of statements that change the outbox, in one transaction."""
    return store.transact(lambda db: [row for change in changes for row in db.execute(*change).fetchall()])


async def _announced(webhook: Webhook, store: Store, place: int, tries: int, now: float) -> tuple[str, tuple[Any, ...]]:
    """Announce an event. Returns the change of the outbox that follows, as a statement and its values."""
    try:
        found = await asyncio.to_thread(_notice, store, place)
        if found is not None:
            await webhook.send(*found)
        return "DELETE FROM outbox WHERE place=? RETURNING place", (place,)
    except JournalError:
        raise
    except Exception as problem:
        error, due = visible(str(problem) or type(problem).__name__)[:LONGEST_ERROR], None
        if not isinstance(problem, UsageError) and tries <= len(DELAYS):
            due = now + DELAYS[tries - 1] * random.uniform(1.0, 1.1)  # noqa: S311 - no secret
        else:
            log.warning("A notice for %s failed %d times and is given up: %s", webhook, tries, error)
        return "UPDATE outbox SET due=?, error=? WHERE place=? RETURNING place", (due, error, place)


def unsent_ends(store: Store, run_id: str = "", *, retry: bool = False) -> list[dict[str, Any]]:
    """Return the latest ends that could not be announced so far: `run_id`, `agent`, `tries`, `due`, `error`.

    With `run_id` they are those of a run. Those with `due` None were given up. With `retry` they are tried again.
    """
    if retry:
        _executed(store, [("UPDATE outbox SET due=0, tries=0 WHERE due IS NULL RETURNING place", ())])
    is_there = store.database.has_table("outbox")  # unless an older version wrote it, and it is only read
    rows = store.query(_UNSENT, (run_id,)) if is_there else []
    return [dict(zip(("run_id", "agent", "tries", "due", "error"), row, strict=True)) for row in rows]


def _notice(store: Store, place: int) -> tuple[str, dict[str, Any]] | None:
    """Return the id and the content of what is sent of an event; None if its run was deleted."""
    from closeout.run.waits.decisions import pending_decisions

    seq = place & ((1 << SEQ_BITS) - 1)
    for (run_id,) in store.query("SELECT run_id FROM runs WHERE id=?", (place >> SEQ_BITS,)):
        with suppress(RunNotFound):
            started, rows = store.beginning(run_id), store.rows_from(run_id, seq, 1)
            ended = rows[0].event if rows else None
            if started is None or not isinstance(ended, RunEnded):
                return None
            data: dict[str, Any] = {"run_id": run_id, "agent": started.name, "user": started.user}
            data |= {name: getattr(ended, name) for name in ("status", "stop_reason", "answer", "error")}
            if ended.status == "waiting":
                names = ("id", "kind", "tool", "arguments", "hash", "reason", "expires")
                pending = pending_decisions(store.rows_from(run_id, 0, seq + 1))
                data["waiting"] = [{name: getattr(each, name) for name in names} for each in pending]
            kind = "run.waiting" if ended.status == "waiting" else "run.ended"
            at = datetime.fromtimestamp(rows[0].time, UTC).isoformat(timespec="milliseconds")
            return f"{run_id}.{seq}", {"type": kind, "timestamp": at, "data": data}
    return None
