"""Waits of tools for a time or for a signal.

A wait is an effect like an approval: the request is recorded with its deadline, the run is suspended, and what ended
the wait is recorded before the tool gets it. Which signals a run has received follows from its record alone.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from closeout.errors import SignalRefused, SignalTimeout, ToolError
from closeout.journal.events import DecisionMade, DecisionRequested
from closeout.journal.sent_signals import check_signal_name, mark_received, open_signals
from closeout.messages import ToolSpec
from closeout.run.plan import Scope
from closeout.run.waits.decisions import decide, ended_timer, must_rerun, pending_of, question_digest, utc_time
from closeout.run.waits.logins import login_request

__all__ = ["CallWaits", "Memo"]

Memo = dict[str, DecisionMade]
"""The decisions that ended an agent's waits in this process. A tool that is tried again must not wait a second time."""


class CallWaits:
    """The waits of one tool call. `logins` is how often it has waited for a login."""

    def __init__(self, scope: Scope, handle: str, spec: ToolSpec, memo: Memo, logins: int = 0) -> None:
        self._scope = scope
        self._handle = handle
        self._spec = spec
        self._memo = memo
        self._logins = logins
        self._begun: set[str] = set()

    async def until(self, when: datetime) -> None:
        """Wait until a time."""
        if not isinstance(when, datetime) or when.utcoffset() is None:
            raise ToolError(
                f"{self._spec.name} must wait for a datetime with a time zone, got {when!r:.80}. "
                "Write datetime.now(UTC) + timedelta(hours=1)."
            )
        await self._sleep(when.timestamp())

    async def seconds(self, seconds: float) -> None:
        """Wait so many seconds."""
        await self._sleep(self._after(seconds))

    async def signal(self, name: str | Sequence[str], timeout: float | None) -> Any:
        """Wait for a signal, or for the first of several. Raises SignalTimeout."""
        if not isinstance(name, str | list | tuple) or not name:
            raise SignalRefused(
                f'wait_for needs the name of a signal, or a list such as ["paid", "void"], got {name!r}.'
            )
        names = [name] if isinstance(name, str) else list(dict.fromkeys(name))
        for each in names:
            check_signal_name(each)
        awaited = {"signal": name} if isinstance(name, str) else {"signals": names}
        expires = None if timeout is None else self._after(timeout)
        made = await self._wait("signal", awaited, expires, self._received)
        if made.verdict == "signal":
            value = json.loads(made.text)
            return value if isinstance(name, str) else tuple(value)
        if isinstance(name, str):
            raise SignalTimeout(f"The signal {name!r} has not arrived in time.")
        raise SignalTimeout(f"None of the signals {', '.join(map(repr, names))} has arrived in time.")

    async def login(self, server: str, url: str, reason: str, scope: str) -> None:
        """Wait until a person has signed in to the server of the call, which has refused it. Raises Suspended."""
        key = f"{self._handle}.login{self._logins + 1}"

        async def nobody(request: DecisionRequested) -> None:
            return None

        request = login_request(self._scope.path, key, server=server, url=url, reason=reason, scope=scope)
        await decide(self._scope, request, nobody)

    def _after(self, seconds: float) -> float:
        if not isinstance(seconds, int | float) or not math.isfinite(seconds):
            raise ToolError(f"{self._spec.name} must wait a number of seconds, got {seconds!r:.80}.")
        return math.floor((self._scope.run.clock() + seconds) * 1000) / 1000  # a datetime can hold it

    async def _sleep(self, expires: float) -> None:
        await self._wait("timer", {}, expires, partial(ended_timer, self._scope))

    async def _wait(
        self,
        kind: str,
        arguments: dict[str, Any],
        expires: float | None,
        outcome_of: Callable[[DecisionRequested], Awaitable[DecisionMade | None]],
    ) -> DecisionMade:
        """Wait for the outcome of the call's next wait. A recorded one keeps the deadline that it began with."""
        spec = self._spec
        if spec.policy.crash_rule != "rerun":
            raise must_rerun(self._scope, spec, "waits")
        if expires is not None:
            with suppress(ValueError, OverflowError, OSError):
                arguments = {**arguments, "until": utc_time(expires)}
            if "until" not in arguments:
                raise ToolError(f"{spec.name} cannot wait for so long: {expires:g} is beyond the year 9999.")
        digest = question_digest(spec, [kind, arguments.get("signal", arguments.get("signals"))])
        key = self._key(digest)
        made = self._memo.get(key)
        if made is None:
            text = json.dumps(arguments)
            request = DecisionRequested(
                self._scope.path, key, kind, name=spec.name, arguments=text, digest=digest, expires=expires
            )
            made = self._memo[key] = await decide(self._scope, request, outcome_of)
            if made.signal:
                await self._mark(made.signal)
        await asyncio.sleep(0)  # so that concurrent waits of the call begin in the same order, over or not
        return made

    def _key(self, digest: str) -> str:
        """Return the name of the call's next wait.

        It is that of the first recorded wait for the same, if there is one: what waits concurrently may take its turn
        in another order when the tool is called again.
        """
        number = 1
        while True:
            key = f"{self._handle}.wait{number if number > 1 else ''}"
            known = self._memo.get(key) or self._scope.journal.recorded(DecisionRequested, self._scope.path, key)
            if key not in self._begun and (known is None or getattr(known, "digest", "") == digest):
                self._begun.add(key)
                return key
            number += 1

    async def _received(self, request: DecisionRequested) -> DecisionMade | None:
        """Return the first signal that nothing in the run has received, or the timeout; None while neither is there."""
        # Nothing is awaited here: when one of several waits of a call suspends the run, the others must not continue.
        journal, names = self._scope.journal, pending_of(request).signals
        store, is_single = journal.store, "signal" in json.loads(request.arguments)
        for each in open_signals(store, journal.run_id, *names) if store is not None else ():
            if each.id in journal.received:
                assert store is not None
                store.submit(mark_received, store, journal.run_id, [each.id])
            elif request.expires is None or each.sent <= request.expires:
                journal.received.add(each.id)
                return DecisionMade(
                    request.agent,
                    request.request,
                    "signal",
                    digest=request.digest,
                    text=each.payload if is_single else f"[{json.dumps(each.name)}, {each.payload}]",
                    by="signal",
                    signal=each.id,
                )
        if request.expires is None or self._scope.run.clock() < request.expires:
            return None
        return DecisionMade(request.agent, request.request, "timeout", digest=request.digest, by="clock")

    async def _mark(self, signal: str) -> None:
        """Note that the run has received a signal, once its record says so."""
        journal = self._scope.journal
        if journal.store is not None:
            await journal.committed()
            await journal.store.off_loop(mark_received, journal.store, journal.run_id, [signal])
