"""Subscribers: callbacks that receive the events of a run and the pieces of its replies while they are written."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Literal, Protocol, TypeAlias, cast

from closeout.journal.events import Event, RunStarted
from closeout.journal.inbox import Mailbox
from closeout.overrides import method_of

__all__ = ["Callback", "Listener", "Progress", "RunInfo", "RunListener", "Subscribers"]

logger = logging.getLogger("closeout")


@dataclass(frozen=True, slots=True)
class Progress:
    """A piece of a reply while the model writes it, or the progress of a tool. Published to subscribers, never stored.

    `discard` withdraws everything published for this turn: the reply failed, or it is not accepted as the answer.
    For `tool_progress`, `handle` names the call, `done` of `total` (None: unknown) is done, and `text` says what.
    """

    agent: str
    turn: int
    kind: Literal["thought", "reasoning", "text", "tool_name", "tool_arguments", "answer", "discard", "tool_progress"]
    text: str = ""
    index: int = 0
    _: KW_ONLY
    handle: str = ""
    done: float = 0.0
    total: float | None = None


def _ignore(_: Event) -> None:
    pass


@dataclass(slots=True)
class RunInfo:
    """The run that a callback receives events of.

    Attributes:
        run_id: the name of the run.
        started: its first event, with the task and the agent's fingerprint.
        resumed: whether the run continues from a record.
        from_record: True while callbacks receive an event that was read from the record. The effect it describes took
            place earlier and is not repeated.
        add: adds an event to the record. Only for momentary events: a resumed run does not repeat it.
        mailbox: takes messages to the run; None for a replay.
    """

    run_id: str
    started: RunStarted | None = None
    resumed: bool = False
    from_record: bool = False
    add: Callable[[Event], object] = _ignore
    mailbox: Mailbox | None = None


Callback: TypeAlias = Callable[[Event | Progress], Any]


class RunListener(Protocol):
    """A listener that keeps state for each run: `for_run` returns the callback for one.

    If that callback has a `close` method, it is called when the run is over, however it ended, and what it returns is
    awaited if it can be.
    """

    def for_run(self, run: RunInfo, /) -> Callback: ...


Listener: TypeAlias = Callback | RunListener


class Subscribers:
    """The callbacks of one run.

    Args:
        run: what listeners may know of the run.
        report: called with a sentence when a listener raises and is unsubscribed.
    """

    def __init__(self, run: RunInfo, report: Callable[[str], object]) -> None:
        self.run = run
        self._report = report
        self._callbacks: tuple[Callback, ...] = ()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call `callback` with every event and every piece of progress from now on.

        Returns:
            A function that ends the subscription.
        """
        self._callbacks += (callback,)

        def unsubscribe() -> None:
            self._callbacks = tuple(each for each in self._callbacks if each is not callback)

        return unsubscribe

    def subscribe_listener(self, listener: Listener) -> Callable[[], Awaitable[object] | None]:
        """Subscribe a listener that the user passed. If it raises, it is reported and unsubscribed; the run continues.

        Returns:
            A function that ends the subscription and closes the listener's callback. Await what it returns, if that is
            not None.
        """
        guarded = _Guarded(listener, self)
        unsubscribe = self.subscribe(guarded)

        def leave() -> Awaitable[object] | None:
            unsubscribe()
            return guarded.close()

        return leave

    def publish(self, event: Event | Progress, *, from_record: bool = False) -> None:
        """Pass an event to every callback, in the order in which they subscribed."""
        run = self.run
        outer, run.from_record = run.from_record, from_record
        for callback in self._callbacks:
            callback(event)
        run.from_record = outer

    def report(self, listener: object, error: Exception) -> None:
        """Record that a listener failed."""
        name = getattr(listener, "__qualname__", "") or method_of(listener, "__call__", error)
        self._report(f"{name} raised {type(error).__name__}: {error}. It receives no more events of this run.")


class _Guarded:
    """A listener's callback; the first exception silences it."""

    def __init__(self, listener: Listener, subscribers: Subscribers) -> None:
        self._listener = listener
        self._subscribers = subscribers
        self._callback: Callback | None = None
        self._close: Callable[[], object] | None = None
        try:
            for_run = getattr(listener, "for_run", None)
            callback = cast(Callback, listener) if for_run is None else for_run(subscribers.run)
            if iscoroutinefunction(callback) or iscoroutinefunction(type(callback).__call__):
                raise TypeError("a callback must be a plain function, and this one is async")
            self._callback = callback
            self._close = None if for_run is None else getattr(callback, "close", None)
        except Exception as error:
            subscribers.report(listener, error)

    def __call__(self, event: Event | Progress) -> None:
        if self._callback is None:
            return
        try:
            self._callback(event)
        except Exception as error:  # a failing listener must not end the run
            self._callback = None
            self._subscribers.report(self._listener, error)

    def close(self) -> Awaitable[object] | None:
        if self._close is not None:
            try:
                closed = self._close()
                return closed if isawaitable(closed) else None
            except Exception:  # the run is over: there is no record to note the failure in
                logger.warning("%.120r raised an exception when it was closed.", self._listener, exc_info=True)
        return None
