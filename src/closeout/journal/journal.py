"""One run's journal: events go in, everybody who wants hears of them, and every effect passes its one door.

To resume is to run the same code again on a journal that remembers: `append` recognises what is written already, and
`effect` hands back the recorded outcome instead of repeating the effect.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol, TypeAlias, cast

from closeout.errors import JournalError
from closeout.journal.events import Event, Noted, RunEnded, RunResumed, RunStarted
from closeout.journal.past import Past
from closeout.journal.store import Row, Store

__all__ = ["Follower", "Journal", "Listener", "Progress", "RunListener", "new_run_id"]

# How long an event may wait for others to be committed with. A kill within that time costs at most what was just heard
# from the model, which is then asked again; calls that may not be made again do not wait.
COMMIT_SECONDS = 0.025


@dataclass(frozen=True, slots=True)
class Progress:
    """A piece of a reply while the model writes it. Heard by listeners, never stored.

    `discard` says that what was heard of this turn does not count: the reply failed, or is not taken as the answer.
    """

    agent: str
    turn: int
    kind: Literal["thought", "reasoning", "text", "tool_name", "tool_arguments", "answer", "discard"]
    text: str = ""
    index: int = 0


class Follower(Protocol):
    """A listener of one run. `close` is called when the run is over, however it ended."""

    def __call__(self, event: Event | Progress, /) -> Any: ...

    def close(self) -> None: ...


class RunListener(Protocol):
    """A listener for many runs, also at the same time: for each it is asked for one that follows that run."""

    def follow(self, journal: Journal, /) -> Follower: ...


_Hears: TypeAlias = Callable[[Event | Progress], Any]
Listener: TypeAlias = _Hears | RunListener


def _hearer(listener: _Hears, kind: type) -> Callable[[Any], Any] | None:
    """What of a listener takes in things of a type; one to which not all of them matter says so with `hears`."""
    choose: Callable[[type], Callable[[Any], Any] | None] | None = getattr(listener, "hears", None)
    return listener if choose is None else choose(kind)


def _follower(listener: Listener, journal: Journal) -> Follower | None:
    """Who follows the run for a listener of many; None for one that listens itself."""
    follow = getattr(listener, "follow", None)  # a tenth of what it costs to ask whether it fits the protocol
    return None if follow is None else follow(journal)


def new_run_id() -> str:
    """Sorts by time and is short enough to type: 20261121-114503-k3v9q."""
    letters = "abcdefghjkmnpqrstvwxyz23456789"
    return time.strftime("%Y%m%d-%H%M%S-") + "".join(secrets.choice(letters) for _ in range(5))


class Journal:
    """The journal of one run.

    `Journal.start` makes a new one, `Journal.reopen` one that remembers what is recorded. Without a store it lives in
    memory only. Not for use from several threads: a run lives in one event loop.
    """

    def __init__(self, run_id: str, store: Store | None, number: int, recorded: Iterable[Row] = ()) -> None:
        rows = tuple(recorded)
        self.run_id = run_id
        self.started_at = rows[0].time if rows else time.time()  # seconds since the epoch
        self.replay_only = False
        self.handed_back = False  # what listeners hear at this moment is from the record, nothing is done for it
        self.started: RunStarted | None = None
        self._opening: Event | None = None
        if rows and isinstance(rows[0].event, RunStarted):
            self.started = self._opening = rows[0].event
        self._store = store
        self._number = number
        self._past = Past(rows)
        self._next = rows[-1].seq + 1 if rows else 0
        self._kept: list[Row] = []  # of a run without a store
        self._listeners: list[_Hears] = []
        self._hearers: dict[type, tuple[Callable[[Any], Any], ...]] = {}  # of each type: found once
        self._commit: asyncio.TimerHandle | None = None  # the next one, where one is due
        self._failure: JournalError | None = None

    @classmethod
    def start(cls, store: Store | None, started: RunStarted, model: str = "", run_id: str = "") -> Journal:
        """A new run's journal. Raises JournalError where it cannot be kept."""
        run_id = run_id or new_run_id()
        if store is None:
            journal = cls(run_id, None, 0)
            journal.append(started)
        else:
            journal = cls(run_id, store, store.create_run(run_id, model, started))
            journal._next = 1
        journal.started = journal._opening = started
        return journal

    @classmethod
    def reopen(cls, store: Store, run_id: str) -> Journal:
        """The journal of a recorded run, to be led on from where it stopped. Raises RunNotFound, JournalLocked."""
        number = store.reopen_run(run_id)
        try:
            rows = tuple(store.rows(run_id))
        except BaseException:
            store.release(number)
            raise
        journal = cls(run_id, store, number, rows)
        idle = max(time.time() - rows[-1].time, 0.0) if rows else 0.0
        journal._past.idle += idle
        journal._opening = journal.append(RunResumed("main", idle))
        return journal

    @classmethod
    def replay(cls, run_id: str, rows: Iterable[Row]) -> Journal:
        """A journal in memory that hands back a record. An effect that is not in the record raises JournalError."""
        journal = cls(run_id, None, 0, rows)
        journal.replay_only = True
        return journal

    # ------------------------------------------------------------------------------------------ what is said

    @property
    def replaying(self) -> bool:
        """Recorded outcomes are still to come."""
        return self._past.outcomes_left > 0

    @property
    def resumed(self) -> bool:
        """Whether the run goes on from a record."""
        return bool(self._past.rows) and not self.replay_only

    @property
    def departure(self) -> str:
        """Where the run first did something else than its record; empty where it did not."""
        return self._past.departure

    @property
    def elapsed(self) -> float:
        """Seconds that the run has been at work; time between a crash and its resume does not count.

        While recorded outcomes are handed back this is the recorded time, so that what was decided by the clock is
        decided the same way again.
        """
        if self._past.outcomes_left:
            return self._past.elapsed
        return time.time() - self.started_at - self._past.idle

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Every event and piece of progress from now on goes to the listener; call what comes back to stop that."""
        follower = _follower(listener, self)
        if follower is None:
            return self._hear(cast(_Hears, listener))
        stop = self._hear(follower)

        def leave() -> None:
            stop()
            follower.close()

        return leave

    def _hear(self, listener: _Hears) -> Callable[[], None]:
        self._listeners.append(listener)
        self._hearers.clear()

        def leave() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self._hearers.clear()

        return leave

    def invite(self, listener: Listener) -> Callable[[], None]:
        """`listen`, for one whose failures are not the run's: it is then noted and heard no more."""
        guest = _Guest(self, listener)
        return guest.leaving(self._hear(guest))

    def announce(self) -> None:
        """Let listeners, who come after it, hear of the event with which the run began, or began again."""
        if self._opening is not None:
            self._say(self._opening, handed_back=False)

    def _say(self, event: Event, *, handed_back: bool) -> None:
        hearers = self._hearers.get(type(event))
        if hearers is None:
            hearers = self._find_hearers(type(event))
        if hearers:
            outer = self.handed_back
            self.handed_back = handed_back or self.replay_only
            for hear in hearers:
                hear(event)
            self.handed_back = outer

    def tell(self, progress: Progress) -> None:
        """Let listeners hear of something that is not kept."""
        hearers = self._hearers.get(Progress)
        for hear in self._find_hearers(Progress) if hearers is None else hearers:
            hear(progress)

    def _find_hearers(self, kind: type) -> tuple[Callable[[Any], Any], ...]:
        found = tuple(hear for each in self._listeners if (hear := _hearer(each, kind)) is not None)
        self._hearers[kind] = found
        return found

    # ------------------------------------------------------------------------------------------ what is kept

    def append(self, event: Event) -> Event:
        """Write an event, or recognise it as the one that is recorded at this place; what stands is returned."""
        recorded = self._past.recognise(event) if self._past.events else None
        if recorded is not None:
            self._say(recorded, handed_back=True)
            return recorded
        try:
            self._write(event)
        finally:  # what cannot be kept has happened all the same: it is on the bill
            self._say(event, handed_back=False)
        return event

    def _write(self, event: Event) -> None:
        if self._failure is not None:
            raise self._failure
        if self._store is None:
            self._kept.append(Row(self._next, time.time(), event))
            self._next += 1
            return
        self._store.put(self._number, self._next, time.time(), event)
        self._next += 1
        if self._commit is None:
            self._plan_commit()

    def _plan_commit(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        self._commit = loop.call_later(COMMIT_SECONDS, self._commit_now)

    def _commit_now(self) -> None:
        self._commit = None
        try:
            self.flush()
        except JournalError as error:
            self._failure = error  # raised where the run next writes

    def flush(self) -> None:
        """All events so far are safe once this returns. Raises JournalError."""
        if self._store is not None:
            self._store.flush()

    async def effect(
        self,
        started: Event,
        run: Callable[[], Awaitable[Event]],
        interrupted: Callable[[], Event] | None = None,
        below: Callable[[Event], object] | None = None,
        failed: Callable[[Event], object] | None = None,
    ) -> Event:
        """The one door: write the intent, do the effect, write the outcome, and return it.

        Of an effect whose outcome is recorded, that outcome is returned and nothing is done. Of one that was under way
        when the process died, `interrupted()` is the outcome if given; otherwise it is done again. An effect that may
        not be done again has its intent on disk before it begins and its outcome before anything follows from it.
        `below` is told what is recorded of agents that a handed-back call had started: they do not run again.
        `failed` is told of failures after which the effect was tried again.
        """
        past = self._past
        started_before = past.has_started(started) if past.events else False
        recorded = past.outcome_of(started) if past.outcomes_left else None
        stands = past.recognise(started) if past.events else None
        if stands is None:
            self._write(started)
        if failed is not None and past.rows:
            for failure in past.failures_of(started):
                self._say(stands or started, handed_back=True)
                self._say(failure, handed_back=True)
                failed(failure)
        # Of a call that was under way when the process died the intent is recorded; it is made now all the same.
        self._say(stands or started, handed_back=recorded is not None)
        if recorded is not None:
            if below is not None:
                for event in past.take_below(started):
                    self._say(event, handed_back=True)
                    below(event)
            self._say(recorded, handed_back=True)
            return recorded
        if self.replay_only:
            place = f"{type(started).__name__} {started.key} of agent {started.agent}"
            raise JournalError(f"The record of run {self.run_id} ends here: it does not hold what {place} brought.")
        if interrupted is not None:
            if started_before:
                return self.append(interrupted())
            self.flush()
        finished = self.append(await run())
        if interrupted is not None:
            self.flush()
        return finished

    def end(self, ended: RunEnded) -> None:
        """The run is over: written, listed, and free to be resumed by anybody. Never raises for a full disk."""
        try:
            self.append(ended)
            if self._store is not None:
                self._store.end_run(self._number, ended.status, ended.answer, ended.stop_reason)
        except JournalError as error:
            self._failure = error
            if self._store is not None:
                self._store.forget_pending(self._number)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the run without an end: what it has said so far is kept, and it can be resumed."""
        if self._commit is not None:
            self._commit.cancel()
            self._commit = None
        if self._store is not None:
            with suppress(JournalError):
                self._store.flush()
            self._store.forget_pending(self._number)  # from here on it is somebody else's to write
            self._store.release(self._number)

    @property
    def failure(self) -> JournalError | None:
        """Why the record is incomplete, if it is."""
        return self._failure

    def rows(self) -> list[Row]:
        """All events of the run so far, in order, with their times."""
        if self._store is None:
            return [*self._past.rows, *self._kept]
        self.flush()
        return list(self._store.rows(self.run_id))


class _Guest:
    """A listener from outside; a failure of its own ends its listening and nothing else."""

    def __init__(self, journal: Journal, listener: Listener) -> None:
        self._journal = journal
        self._name = f"{listener!r:.120}"
        self._listener: Callable[[Event | Progress], Any] | None = None
        self._close: Callable[[], None] | None = None
        self._guarded(self._begin, listener)

    def _begin(self, listener: Listener) -> None:
        follower = _follower(listener, self._journal)
        if follower is None:
            self._listener = cast(_Hears, listener)
        else:
            self._listener, self._close = follower, follower.close
        heard = self._listener
        if iscoroutinefunction(heard) or iscoroutinefunction(type(heard).__call__):
            self._listener = None
            raise TypeError("a listener is a plain function, and this one is async")

    def __call__(self, event: Event | Progress) -> None:
        if self._listener is not None:
            self._guarded(self._listener, event)

    def _guarded(self, act: Callable[..., Any], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:  # whoever listens, the run goes on
            self._listener = None
            text = f"{self._name} raised {type(error).__name__}: {error}. It is not told of this run any more."
            with suppress(JournalError):
                self._journal.append(Noted("main", "warning", "Listener", text))

    def leaving(self, stop: Callable[[], None]) -> Callable[[], None]:
        def leave() -> None:
            stop()
            if self._close is not None:
                with suppress(Exception):
                    self._close()

        return leave
