"""A recorded run as a test fixture: its model played back, an agent held against it, and runs as files to commit.

How a record is led again is the business of `orchestrator.run.replay`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.config import home_folder
from closeout.errors import JournalDamaged, JournalError, UsageError
from closeout.journal.events import (
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    RunEnded,
    RunStarted,
    event_from,
)
from closeout.journal.past import CANCELLED
from closeout.journal.readonly import open_to_read
from closeout.journal.store import Row
from closeout.llm.base import OnDelta, OnRetry
from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.orchestrator.model_door import error_of, message_size
from closeout.testing.client import EVERYTHING, ScriptedClient

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.answers.reading import Value
    from closeout.orchestrator.result import RunResult

__all__ = ["RecordedClient", "Recording", "export_run", "recorded"]

FORMAT = "closeout-run"
VERSION = 1


def recorded(run: str | Path, home: str | Path | None = None) -> Recording:
    """A recorded run: by its id in a home (by default the usual one), or from a file that `export_run` wrote.

    Raises RunNotFound, UsageError for a file that is not there, JournalDamaged for one that is no exported run.
    """
    path = Path(run)
    if path.is_file():
        return _load(path)
    if isinstance(run, Path) or path.suffix == ".jsonl" or path.name != str(run):
        raise UsageError(f"There is no file {path}. `closeout.testing.export_run(run_id, path)` writes one.")
    return Recording(str(run), _rows(str(run), home))


def export_run(run_id: str, path: str | Path, home: str | Path | None = None) -> Path:
    """Write a run as one JSON-lines file that stands for itself, whole or not at all. Returns the path.

    What started the run (options and paths of one machine) is left out; task, texts, tool results are not.
    Raises RunNotFound, OSError.
    """
    target = Path(path)
    rows = _rows(run_id, home)
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(_line({"format": FORMAT, "version": VERSION, "run_id": run_id}))
            file.writelines(_line(_record(row)) for row in rows)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


@dataclass(frozen=True, slots=True)
class Recording:
    """What a run did, event by event. `rows` as the journal has them."""

    run_id: str
    rows: tuple[Row, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(row.event for row in self.rows)

    @property
    def started(self) -> RunStarted:
        """How it began. Raises JournalDamaged where that cannot be read."""
        first = self.rows[0].event if self.rows else None
        if not isinstance(first, RunStarted):
            raise JournalDamaged(f"The record of run {self.run_id} has no readable beginning.")
        return first

    @property
    def ended(self) -> RunEnded | None:
        """How it ended at last; None for a run that was cut off."""
        last = self.rows[-1].event if self.rows else None
        return last if isinstance(last, RunEnded) else None

    @property
    def task(self) -> str:
        return self.started.task

    @property
    def answer(self) -> str | None:
        return self.ended.answer if self.ended is not None else None

    def client(self, *, strict: bool = False, capabilities: Capabilities | None = None) -> RecordedClient:
        """A model that says what the recorded one said; see RecordedClient. Each call gives a new one."""
        return RecordedClient(self, strict=strict, capabilities=capabilities)

    async def follow(self, agent: Agent[Value]) -> RunResult[Value]:
        """Lead the agent through the record: no model, no tools, no network. Returns the result.

        Raises AssertionError that names the first event at which the agent departs from what is recorded, and what of
        the agent has changed since.
        """
        from closeout.orchestrator.plan import differences
        from closeout.orchestrator.run import replay

        plan = replace(agent.plan(), remember_dialect=None)
        result, departure = await replay(plan, self.run_id, self.rows)
        departure = departure or self._end_departs(result)
        if departure:
            changed = differences(self.started.fingerprint, plan.fingerprint(plan.offered_tools()))
            text = f"The agent departs from run {self.run_id} at {departure}"
            raise AssertionError(f"{text}\nWhat differs: {'; '.join(changed)}" if changed else text)
        return result

    def follow_sync(self, agent: Agent[Value]) -> RunResult[Value]:
        """`follow` for tests that are not async."""
        return asyncio.run(self.follow(agent))

    def _end_departs(self, result: RunResult) -> str:
        """How the replay's end differs from the recorded one; that of a run that broke off is the end of its record."""
        ended = self.ended
        if ended is None or ended.status in ("cancelled", "failed"):
            return "" if result.stop_reason == "journal_failed" else _beyond(result)
        if result.stop_reason == "journal_failed":
            return result.error
        for name in ("status", "stop_reason", "answer"):
            was, now = getattr(ended, name), getattr(result, name)
            if was != now:
                return f"main: RunEnded: {name} was {was!r:.120}, now {now!r:.120}"
        return ""


def _beyond(result: RunResult) -> str:
    return f"its end: the record was cut off there, and the agent ended ({result.stop_reason}) without going on"


# ------------------------------------------------------------------------------------------------ the model


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A recorded request and what it brought."""

    asked: ModelRequested
    brought: ModelReplied | ModelFailed


class RecordedClient(ScriptedClient):
    """A model client that plays the replies of a record, failures too, to requests in their recorded order.

    Sub-agents may share it: a request is known by the number and size of its messages. One that fits no recorded
    request gets the next reply all the same, as a test with real tools needs it; with `strict` it raises an
    AssertionError that says where it differs. So does a request after the last reply. `requests` keeps all requests.
    """

    def __init__(self, recording: Recording, *, strict: bool = False, capabilities: Capabilities | None = None) -> None:
        fingerprint = recording.started.fingerprint
        known = capabilities or replace(EVERYTHING, preferred_dialect=fingerprint.get("dialect"))
        super().__init__((), name=str(fingerprint.get("model", "recorded")), capabilities=known)
        self._run_id = recording.run_id
        self._strict = strict
        self._left: dict[str, deque[_Exchange]] = {}
        for exchange in _exchanges(recording.events):
            self._left.setdefault(exchange.asked.agent, deque()).append(exchange)

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        self.requests.append(request)
        await asyncio.sleep(0)
        brought = self._next(request).brought
        usage = Usage(**brought.usage)
        self.charge(usage)
        if isinstance(brought, ModelFailed):
            raise error_of(brought, usage)
        reply = brought.reply()
        return reply if on_delta is None else self._stream(reply, on_delta)

    def _next(self, request: ModelRequest) -> _Exchange:
        due = [queue for queue in self._left.values() if queue]
        if not due:
            number = len(self.requests)
            raise AssertionError(f"The record of run {self._run_id} holds no reply to request {number}.")
        shape = _shape(request)
        fitting = [queue for queue in due if (queue[0].asked.messages, queue[0].asked.size) == shape]
        if not fitting and self._strict:
            asked = due[0][0].asked
            raise AssertionError(
                f"The agent departs from run {self._run_id} at {asked.agent}: ModelRequested {asked.call}: "
                f"{asked.messages} messages of {asked.size:,} characters then, {shape[0]} of {shape[1]:,} now."
            )
        return (fitting or due)[0].popleft()


def _exchanges(events: Sequence[Event]) -> Iterator[_Exchange]:
    """Requests that brought something, in the order in which they were made."""
    outcomes = [e for e in events if isinstance(e, (ModelReplied, ModelFailed))]
    brought = {(e.agent, e.call): e for e in outcomes if not (isinstance(e, ModelFailed) and e.kind == CANCELLED)}
    for event in events:
        if isinstance(event, ModelRequested) and (outcome := brought.pop((event.agent, event.call), None)) is not None:
            yield _Exchange(event, outcome)


def _shape(request: ModelRequest) -> tuple[int, int]:
    """Number and characters of the messages, as `ModelRequested` counts them."""
    if request.prompt is not None:
        return 0, len(request.prompt)
    return len(request.messages), sum(map(message_size, request.messages))


# ------------------------------------------------------------------------------------------------ files


def _rows(run_id: str, home: str | Path | None) -> tuple[Row, ...]:
    with open_to_read(home_folder() if home is None else Path(home)) as store:
        return tuple(store.rows(run_id))


def _record(row: Row) -> dict[str, Any]:
    event = replace(row.event, origin={}) if isinstance(row.event, RunStarted) else row.event
    body = {name: getattr(event, name) for name in event.names}
    return {"seq": row.seq, "time": row.time, "event": type(event).__name__, "body": body}


def _line(record: dict[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False, default=str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates can only be escaped
        text = json.dumps(record, default=str)
    return text + "\n"


def _load(path: Path) -> Recording:
    rows: list[Row] = []
    run_id = ""
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                record = json.loads(line)
                if number > 1:
                    rows.append(Row(record["seq"], record["time"], event_from(record["event"], record["body"])))
                elif record.get("format") != FORMAT:
                    raise JournalDamaged(f"{path} is no exported run. `closeout.testing.export_run` writes one.")
                elif record["version"] > VERSION:
                    raise JournalError(f"{path} was written by a newer Closeout. Install that to read it.")
                else:
                    run_id = str(record["run_id"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JournalDamaged(f"{path} is no exported run, or damaged: line {number} cannot be read.") from None
    if not rows:
        raise JournalDamaged(f"{path} holds no run.")
    return Recording(run_id, tuple(rows))
