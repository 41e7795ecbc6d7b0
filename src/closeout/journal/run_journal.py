"""One run's journal: events are recorded and published, and every effect passes through `effect`.

To resume a run is to execute the same code again on a journal with a record: `append` recognises what is written
already, and `effect` returns the recorded outcome instead of repeating the effect.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from closeout.errors import JournalDamaged, JournalError, Suspended
from closeout.file_values import File
from closeout.homes import DatabaseHome
from closeout.journal.events import (
    CallDecided,
    DecisionRequested,
    Event,
    FlowDecided,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from closeout.journal.inbox import Inbox, Mailbox
from closeout.journal.outbox import noted_end
from closeout.journal.recorded import RecordedRun
from closeout.journal.run_names import new_run_id
from closeout.journal.store import Row, RunRecord, Store
from closeout.journal.subscribers import RunInfo, Subscribers
from closeout.journal.usage_of_run import RunUsage, totals_kept
from closeout.visible import visible

__all__ = ["Journal", "cancel_again", "describe_damage", "open_journal"]

logger = logging.getLogger("closeout")

P = ParamSpec("P")
Decided = TypeVar("Decided", CallDecided, DecisionRequested, FlowDecided)

LOGGED_LENGTH = 1000  # characters of a message in the log; the journal has all of it


class Journal:
    """The journal of one run. Not for use from several threads: a run lives in one event loop.

    `start` and `reopen` make one, with `open_journal` in a running event loop. Without a store it is kept in memory.

    Attributes:
        run_id: the name of the run.
        started: the event that the run began with.
        store: the store that keeps the run, or None if it is in memory.
        subscribers: the callbacks that receive the run's events.
        inbox: the messages that the user sends to the run.
        received: the ids of the signals that the run has received. What it receives is added.
        replay_only: True if nothing may be done that is not in the record.
        is_over: True once this process records the end of the run, or has left it without an end.
    """

    def __init__(
        self,
        run_id: str,
        store: Store | None,
        number: int,
        *,
        recorded: Iterable[Row] = (),
        replay_only: bool = False,
        suspends: bool = False,
        model: str = "",
    ) -> None:
        rows = tuple(recorded)
        self.run_id = run_id
        self.started: RunStarted | None = None
        self._opening: Event | None = None
        if rows and isinstance(rows[0].event, RunStarted):
            self.started = self._opening = rows[0].event
        self.store = store
        self._number = number
        self.replay_only = replay_only
        self._suspends = suspends
        self._recorded = RecordedRun(rows)
        self.received = self._recorded.signals
        self._was_interrupted = bool(rows) and not isinstance(rows[-1].event, (RunStarted, RunEnded))
        self._worked_before = self._recorded.work  # seconds, in the processes before this one
        self._next = rows[-1].seq + 1 if rows else 0
        self._kept: list[Row] = []  # the events, if the run has no store
        self._usage = RunUsage(model)
        for row in rows if store is not None else ():
            self._usage.add(row.time, row.event)
        # The content of files by SHA-256: until the event that names it is written; without a store, to the end.
        self._contents: dict[str, bytes] = {}
        self._load: Callable[[str], bytes] | None = None if store is None else store.content
        # Within a process the monotonic clock counts, so that a change of the wall clock moves no deadline.
        self._opened, self._opened_at = time.monotonic(), time.time() if store is None else store.clock()
        self.started_at = rows[0].time if rows else self._opened_at  # seconds since the epoch
        self._failure: JournalError | None = None
        self.is_over = False
        self._is_closed = False  # the end is recorded: nothing follows it
        mailbox = None if replay_only else Mailbox(store, run_id, number)
        self.inbox = Inbox(mailbox, self._recorded)
        run = RunInfo(run_id, self.started, resumed=bool(rows) and not replay_only, add=self.append, mailbox=mailbox)
        self.subscribers = Subscribers(run, self._note_listener)

    # ------------------------------------------------------------------------------------------ making

    @classmethod
    def start(
        cls,
        store: Store | None,
        started: RunStarted,
        model: str = "",
        *,
        run_id: str = "",
        files: Sequence[File] = (),
        began: float = 0.0,
    ) -> Journal:
        """Create a run and its journal.

        Args:
            store: where the run is kept; None: in memory.
            started: its first event.
            model: the name of its model.
            run_id: the name of the run; a new one by default.
            files: the files that `started` names, whose content is kept with the run.
            began: when the run began, in seconds since the epoch, if it was elsewhere; now by default.

        Raises:
            JournalError: it cannot be recorded.
        """
        run_id = run_id or new_run_id()
        if store is None:
            journal = cls(run_id, None, 0)
            journal.append(started)
            journal._contents.update((file.sha256, file.data) for file in files)
        else:
            number = store.create_run(run_id, model, started, files=files, began=began)
            journal = cls(run_id, store, number, model=model)
            journal._opened_at = journal.started_at = began or journal._opened_at
            journal._usage.add(journal._opened_at, started)
            journal._next = 1
        journal.started = journal.subscribers.run.started = journal._opening = started
        return journal

    @classmethod
    def reopen(
        cls,
        store: Store,
        run_id: str,
        *,
        despite_damage: bool = False,
        resumed: RunResumed | None = None,
        seen: RunRecord | None = None,
    ) -> Journal:
        """Return the journal of a recorded run, to continue it from where it stopped.

        Args:
            store: where the run is kept.
            run_id: the name of the run.
            despite_damage: continue although parts of the record are missing or cannot be read.
            resumed: the event that says so; its `idle` is set here.
            seen: the run as the caller saw it.

        Raises:
            RunNotFound: no run has this name.
            JournalLocked: the run is being executed, or was executed since it was seen.
            JournalDamaged: the record is damaged.
        """
        number = store.reopen_run(run_id, seen)
        try:
            record = store.read(run_id)
            if record.problems and not despite_damage:
                raise JournalDamaged(describe_damage(run_id, record.problems))
            rows = record.rows
            journal = cls(run_id, store, number, recorded=rows, model=store.run(run_id).model)
            idle = journal._opened_at - rows[-1].time if rows else 0.0
            journal._recorded.idle += idle
            journal._opening = journal.append(replace(resumed or RunResumed("main"), idle=idle))
            journal.flush()  # it counts as an interruption if the process dies now
        except BaseException:
            store.release(number)
            raise
        return journal

    @classmethod
    def replay(
        cls,
        run_id: str,
        rows: Iterable[Row],
        *,
        suspends: bool = False,
        load: Callable[[str], bytes] | None = None,
    ) -> Journal:
        """Return a journal in memory that repeats a record.

        An effect that is not in the record raises JournalError; with `suspends` it raises Suspended, so that other
        effects that are under way are repeated first. `load` returns the content of a file by its SHA-256.
        """
        journal = cls(run_id, None, 0, recorded=rows, replay_only=True, suspends=suspends)
        journal._load = load
        return journal

    # ------------------------------------------------------------------------------------------ state

    @property
    def replaying(self) -> bool:
        """True if recorded outcomes are still to be taken."""
        return self._recorded.outcomes_left > 0

    def recorded(self, kind: type[Event], agent: str, key: str) -> Event | None:
        """Return a recorded event that the run has not reached yet, None if there is no such event."""
        return self._recorded.find(kind, agent, key)

    def decision_on(self, kind: type[Decided], started: ToolStarted, key: str) -> Decided | None:
        """Return the recorded decision on a call, None if there is none or it was on another call in this place."""
        found = self.recorded(kind, started.agent, key)
        if isinstance(found, kind) and (found.name, found.arguments) == (started.name, started.arguments):
            return found
        return None

    def outcome_of(self, kind: type[Event], agent: str, key: str) -> Event | None:
        """Return the recorded outcome of an intent of this kind that the run has not reached yet, None without one."""
        return self._recorded.outcome_of(kind, agent, key)

    def has_started(self, started: Event) -> bool:
        """True if the record holds this intent, and the run has not reached it yet."""
        return self._recorded.has_started(started)

    def has_decision(self, request: DecisionRequested) -> bool:
        """True if the record holds the decision of a request that the run has not reached yet."""
        return self._recorded.has_decision(request)

    @property
    def can_be_taken_over(self) -> bool:
        """True if another process may take the run over while this one is paused: the home has leases, not locks."""
        return self.store is not None and isinstance(self.store.home, DatabaseHome)

    @property
    def departure(self) -> str:
        """The first place where the run did something else than its record; empty if it did not."""
        return self._recorded.departure

    def broken(self, waiting: Collection[tuple[str, str]]) -> tuple[Event, str] | None:
        """Return the first recorded event that a replay did not follow, and how it differed or that it was missing.

        Args:
            waiting: the agent and key of each effect that has suspended the replay.
        """
        if self._recorded.broken is not None:
            return self._recorded.broken
        event = self._recorded.unreached(waiting)
        return None if event is None else (event, f"{event.agent}: {type(event).__name__} {event.key} is not reached")

    @property
    def elapsed(self) -> float:
        """Seconds that the run has been at work; time between a crash and its resume does not count.

        While recorded outcomes are taken this is the recorded time, so that what the clock decided is decided the same
        way again.
        """
        if self._recorded.outcomes_left:
            return self._recorded.elapsed
        return self._worked_before + (0.0 if self.replay_only else time.monotonic() - self._opened)

    def _now(self) -> float:
        """The wall clock as it was when the journal was opened, continued by the monotonic clock."""
        return self._opened_at + time.monotonic() - self._opened

    @property
    def failure(self) -> JournalError | None:
        """Why the record is incomplete, if it is."""
        return self._failure

    def announce(self) -> None:
        """Publish the event with which the run began, or was resumed, to those who subscribed after it."""
        if self._opening is not None:
            self.subscribers.publish(self._opening, from_record=self.replay_only)

    # ------------------------------------------------------------------------------------------ files

    def keep(self, data: bytes, sha256: str) -> None:
        """Keep the content of a file. It is written together with the next event that names it."""
        self._contents[sha256] = data

    def content(self, sha256: str) -> bytes:
        """Return the content of a file that an event of the run names. Raises JournalError if it is missing."""
        found = self._contents.get(sha256)
        if found is not None:
            return found
        if self._load is None:
            raise JournalError(f"The content of a file ({sha256[:12]}…) is not in this record of the run.")
        return self._load(sha256)

    def _note_listener(self, problem: str) -> None:
        if self._is_closed:
            logger.warning("%s (run %s)", visible(problem[:LOGGED_LENGTH]), self.run_id)
            return
        with suppress(JournalError):
            self.append(Noted("main", "warning", "Listener", message=problem))

    # ------------------------------------------------------------------------------------------ recording

    def append(self, event: Event, *, durable: bool = False) -> Event:
        """Record an event, or recognise it as the one that is recorded in this place, and publish it.

        Args:
            event: what happened.
            durable: sync the commit that writes it.

        Returns:
            The event as it is recorded.

        Raises:
            JournalError: the journal cannot be written. Subscribers still receive the event: it has happened.
        """
        recorded = self._recorded.match(event)
        if recorded is not None:
            self.subscribers.publish(recorded, from_record=True)
            return recorded
        if isinstance(event, Noted) and event.is_warning and not self.replay_only:
            # The message may quote a model or a tool: one line of bounded length, whatever it holds.
            logger.warning("%s (run %s)", visible(event.message[:LOGGED_LENGTH]), self.run_id)
        try:
            self._write(event, durable=durable)
        finally:
            self.subscribers.publish(event, from_record=self.replay_only)
        return event

    def _write(self, event: Event, *, durable: bool = False) -> None:
        self._raise_failure()
        if self.store is None:
            self._kept.append(Row(self._next, self._now(), event))
            self._next += 1
            return
        contents = None
        if self._contents and isinstance(event, ToolFinished):
            digests = {str(each["sha256"]) for each in event.files if "sha256" in each}
            contents = {digest: self._contents.pop(digest) for digest in digests & self._contents.keys()}
        at = self._now()
        self._usage.add(at, event)
        try:
            self.store.put(self._number, self._next, at, event, durable=durable, contents=contents)
        except Exception as error:
            self._fail(error)
            self._raise_failure()
        self._next += 1
        self.store.commit_soon()

    def _fail(self, error: BaseException) -> None:
        """Note why the record is incomplete. Every later write raises it: no tool and no sub-agent swallows it."""
        if isinstance(error, JournalError):
            self._failure = error
        else:
            self._failure = JournalError(f"The journal cannot be written: {type(error).__name__}: {error}")
            self._failure.__cause__ = error

    def _raise_failure(self) -> None:
        """Raise why an earlier commit failed, if one did."""
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Wait until all events so far are committed. Raises JournalError."""
        if self.store is not None:
            self.store.flush()

    async def committed(self, *, syncs_soon: bool = False) -> None:
        """Wait until all events so far are committed, without stopping the event loop. Raises JournalError.

        Args:
            syncs_soon: sync them with the next commit that is synced, or within `COMMIT_SECONDS`.
        """
        if self.store is None:
            return
        try:
            await self.store.committed(self._number, syncs_soon=syncs_soon)
        except Exception as error:
            self._fail(error)
            self._raise_failure()

    async def effect(
        self,
        started: Event,
        run: Callable[[], Awaitable[Event]],
        *,
        interrupted: Callable[[], Event] | None = None,
        below: Callable[[Event], object] | None = None,
        failed: Callable[[Event], object] | None = None,
        lost: Callable[[], Event] | None = None,
    ) -> Event:
        """Record the intent, do the effect, record the outcome, and return it.

        If the outcome is recorded already, it is returned and nothing is done.

        Args:
            started: the intent.
            run: does the effect and returns its outcome.
            interrupted: for an effect that must not be repeated. Its intent is synced to disk before it begins. Its
                outcome is written before anything follows from it, and synced with the next intent or soon after. If
                only the intent is recorded, because the process died in between, `interrupted()` is the outcome.
                Without it, the effect is done again.
            below: called with each recorded event of the sub-agents of a call whose outcome is recorded: they do not
                run again.
            failed: called with each recorded failure after which the effect was tried again.
            lost: returns the failure of an effect that was under way when the process died. It is recorded, and
                `failed` called with it, before the effect is done again.

        Raises:
            JournalError: the journal cannot be written, or a replay needs an effect that is not in its record.
        """
        record, publish = self._recorded, self.subscribers.publish
        started_before = record.has_started(started)
        outcome = record.take_outcome(started) if record.outcomes_left else None
        intent = record.match(started)
        if intent is None:
            self._write(started, durable=interrupted is not None and outcome is None)
            intent = started
        for failure in record.take_failures(started):
            publish(intent, from_record=True)
            publish(failure, from_record=True)
            if failed is not None:
                failed(failure)
        if lost is not None and outcome is None and started_before and self._was_interrupted and not self.replay_only:
            publish(intent, from_record=True)
            failure = self.append(lost())
            if failed is not None:
                failed(failure)
        # The intent of a call that was under way when the process died is recorded, but the call is made now.
        publish(intent, from_record=outcome is not None or self.replay_only)
        if outcome is not None:
            for event in record.take_below(started) if below is not None else ():
                publish(event, from_record=True)
                assert below is not None
                below(event)
            publish(outcome, from_record=True)
            return outcome
        if self.replay_only:
            if self._suspends:
                raise Suspended([started])
            place = f"{type(started).__name__} {started.key} of agent {started.agent}"
            raise JournalError(f"The record of run {self.run_id} ends here: it has no outcome for {place}.")
        run = self._doing(started, run)
        if interrupted is None:
            if self._was_interrupted:  # if the process dies of this effect again, the record names it
                await self.committed()
            return self.append(await run())
        if started_before:
            return self.append(interrupted())
        await self.committed()
        finished = self.append(await run())
        await self.committed(syncs_soon=True)
        return finished

    def _doing(self, started: Event, run: Callable[[], Awaitable[Event]]) -> Callable[[], Awaitable[Event]]:
        """Return what does an effect that is not in the record: `run`, unless a subclass supplies outcomes."""
        return run

    # ------------------------------------------------------------------------------------------ the end

    def clock(self) -> float:
        """Return the time in seconds since the epoch, by the clock that all processes of the home share."""
        return time.time() if self.store is None else self.store.clock()

    async def end(self, ended: RunEnded, *, due: float = 0.0) -> None:
        """Record the end of the run, synced, release it, and publish the end.

        Subscribers receive the end once it is committed. A cancellation meanwhile does not change it: the task is
        cancelled at its next await. A journal that cannot be written sets `failure` instead of raising, and the end is
        published as that failure.

        Args:
            ended: The end.
            due: When a run that waits can continue without a signal; 0 if its events say so.
        """
        self.is_over = True
        recorded = self._recorded.match(ended)
        try:
            if recorded is None or self.store is not None:
                await self._end(ended, due, is_new=recorded is None)
        finally:
            self._is_closed = True
            self.inbox.end()
        published = ended if recorded is None else recorded
        if self._failure is not None:
            kind, text = type(self._failure).__name__, str(self._failure)
            published = RunEnded("main", "failed", "journal_failed", error=text, error_kind=kind)
        self.subscribers.publish(published, from_record=recorded is not None or self.replay_only)

    async def _end(self, ended: RunEnded, due: float, *, is_new: bool) -> None:
        with suppress(JournalError):
            if is_new:
                self._write(ended, durable=True)
        if self.store is None:
            return
        if self._failure is not None:
            self.store.forget(self._number)
            await _settled(self.store.submit(self.store.release, self._number))
            return
        try:
            reason = ended.stop_reason
            also = totals_kept(self._number, self._usage.parts())
            if is_new:
                also += noted_end(self.started, ended, run_id=self.run_id, number=self._number, seq=self._next - 1)
            end = self.store.end_run(self._number, ended.status, ended.answer, stop_reason=reason, due=due, also=also)
            await _settled(end)
        except Exception as error:
            self._fail(error)

    def abandon(self) -> None:
        """Release the run without an end: what was recorded so far is kept, and it can be resumed."""
        self.is_over = True
        self.inbox.end()
        if self.store is not None:
            with suppress(JournalError):
                self.store.flush()
            self.store.forget(self._number)  # another process may write this run now
            self.store.release(self._number)

    def rows(self) -> list[Row]:
        """Return all events of the run so far, in order, with their times."""
        if self.store is None:
            return [*self._recorded.rows, *self._kept]
        return list(self.store.rows(self.run_id))


def describe_damage(run_id: str, problems: Iterable[str]) -> str:
    """Say what is wrong with a run's record, and what to do."""
    found = list(problems)
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"The record of run {run_id} is damaged: {'; '.join(found[:3])}{more}. What the run did there is not known, so "
        "resuming it could repeat calls that must not be repeated. `closeout doctor --check` examines the journal; "
        "`--force` (in Python despite_damage=True) resumes the run anyway."
    )


def cancel_again() -> None:
    """Deliver a cancellation that came too late to stop something at the next await of the current task."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()


async def _settled(future: Future[None]) -> None:
    """Wait for what cannot be taken back. A cancellation meanwhile is delivered at the task's next await."""
    settled, cancelled = asyncio.wrap_future(future), False
    while not settled.done():
        try:
            await asyncio.wait([settled])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        cancel_again()
    settled.result()


async def open_journal(
    opens: Callable[Concatenate[Store, P], Journal], store: Store, *args: P.args, **kwargs: P.kwargs
) -> Journal:
    """Call `Journal.start` or `Journal.reopen` without stopping the event loop."""
    opening = store.submit(opens, store, *args, **kwargs)
    try:
        return await asyncio.shield(asyncio.wrap_future(opening))
    except asyncio.CancelledError:
        opening.add_done_callback(lambda done: _let_go(store, done))  # the run will not be executed
        raise


def _let_go(store: Store, opened: Future[Journal]) -> None:
    if opened.exception() is None:
        store.release(opened.result()._number)
