"""Subscribers: every callback receives every event in order, and a failing listener harms nobody else."""

from __future__ import annotations

from typing import Any

from closeout.journal import events as ev
from closeout.journal.subscribers import Progress, RunInfo, Subscribers


def make() -> tuple[Subscribers, list[str]]:
    reports: list[str] = []
    return Subscribers(RunInfo("run"), reports.append), reports


def test_callbacks_receive_events_and_progress_in_the_order_of_subscription() -> None:
    subscribers, _ = make()
    received: list[tuple[str, Any]] = []
    subscribers.subscribe(lambda event: received.append(("first", event)))
    subscribers.subscribe(lambda event: received.append(("second", event)))
    started, piece = ev.AttemptStarted("main", 0), Progress("main", 0, "text", "a")
    subscribers.publish(started)
    subscribers.publish(piece)
    assert received == [("first", started), ("second", started), ("first", piece), ("second", piece)]


def test_an_unsubscribed_callback_receives_nothing_more() -> None:
    subscribers, _ = make()
    received: list[Any] = []
    unsubscribe = subscribers.subscribe(received.append)
    subscribers.publish(ev.AttemptStarted("main", 0))
    unsubscribe()
    unsubscribe()
    subscribers.publish(ev.AttemptStarted("main", 1))
    assert received == [ev.AttemptStarted("main", 0)]


def test_a_listener_that_raises_is_reported_once_and_called_no_more() -> None:
    subscribers, reports = make()
    calls: list[Any] = []
    received: list[Any] = []

    def broken(event: Any) -> None:
        calls.append(event)
        raise RuntimeError("my own bug")

    subscribers.subscribe_listener(broken)
    subscribers.subscribe(received.append)
    for attempt in range(3):
        subscribers.publish(ev.AttemptStarted("main", attempt))
    assert (len(calls), len(received)) == (1, 3)
    (report,) = reports
    assert "RuntimeError: my own bug" in report


def test_for_run_gives_each_run_its_own_callback_and_close_is_called_at_the_end() -> None:
    class PerRun:
        def __init__(self) -> None:
            self.log: list[str] = []

        def for_run(self, run: RunInfo) -> Any:
            log = self.log

            class Callback:
                def __call__(self, event: object) -> None:
                    log.append(f"{run.run_id}: {type(event).__name__}, from record: {run.from_record}")

                def close(self) -> None:
                    log.append(f"{run.run_id} closed")
                    raise RuntimeError("also when closing fails")

            return Callback()

    listener = PerRun()
    one, two = Subscribers(RunInfo("one"), print), Subscribers(RunInfo("two"), print)
    leave = one.subscribe_listener(listener)
    two.subscribe_listener(listener)
    one.publish(ev.AttemptStarted("main", 0), from_record=True)
    two.publish(ev.AttemptStarted("main", 0))
    leave()
    assert listener.log == [
        "one: AttemptStarted, from record: True",
        "two: AttemptStarted, from record: False",
        "one closed",
    ]
    assert not one.run.from_record
