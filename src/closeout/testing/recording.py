"""A recorded run as a test fixture: play back its model, compare an agent with it, export it as a file."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from closeout.config import home_folder
from closeout.context.keeper import message_size
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
from closeout.journal.readonly import open_to_read
from closeout.journal.recorded import CANCELLED
from closeout.journal.store import Row
from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.models.base import OnDelta, OnRetry
from closeout.shared_files import write_whole
from closeout.testing.client import ALL_CAPABILITIES, ScriptedClient

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.answers.reading import Value
    from closeout.run.result import RunResult

__all__ = ["RecordedClient", "Recording", "export_run", "recorded"]

FORMAT = "closeout-run"
VERSION = 1


def recorded(run: str | Path, home: str | Path | None = None) -> Recording:
    """Return a recorded run.

    Args:
        run: A run id, or the path of a file that `export_run` wrote.
        home: The folder that holds the run; by default the usual one.

    Raises:
        RunNotFound: No run has this id.
        UsageError: The file does not exist.
        JournalDamaged: The file does not hold an exported run.
    """
    path = Path(run)
    if path.is_file():
        return _load(path)
    if isinstance(run, Path) or path.suffix == ".jsonl" or path.name != str(run):
        raise UsageError(f"No such file: {path}. Write it with closeout.testing.export_run(run_id, path).")
    return Recording(str(run), _rows(str(run), home))


def export_run(run_id: str, path: str | Path, home: str | Path | None = None) -> Path:
    """Write a run to one self-contained JSON-lines file, completely or not at all. Return its path.

    The file holds the task, all texts and all tool results. The command-line options that started the run, which
    contain paths of one machine, are left out.

    Raises:
        RunNotFound: No run has this id.
        OSError: The file cannot be written.
    """
    target = Path(path)
    rows = _rows(run_id, home)
    target.parent.mkdir(parents=True, exist_ok=True)
    head = _line({"format": FORMAT, "version": VERSION, "run_id": run_id})
    write_whole(target, b"".join([head, *(_line(_record(row)) for row in rows)]))
    return target


@dataclass(frozen=True, slots=True)
class Recording:
    """The events of a run. `rows` are the rows of its journal."""

    run_id: str
    rows: tuple[Row, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(row.event for row in self.rows)

    @property
    def started(self) -> RunStarted:
        """The first event.

        Raises:
            JournalDamaged: It cannot be read.
        """
        first = self.rows[0].event if self.rows else None
        if not isinstance(first, RunStarted):
            raise JournalDamaged(f"Cannot read the first event of run {self.run_id}.")
        return first

    @property
    def ended(self) -> RunEnded | None:
        """The last event, or None if the run was interrupted."""
        last = self.rows[-1].event if self.rows else None
        return last if isinstance(last, RunEnded) else None

    @property
    def task(self) -> str:
        return self.started.task

    @property
    def answer(self) -> str | None:
        return self.ended.answer if self.ended is not None else None

    def client(self, *, strict: bool = False, capabilities: Capabilities | None = None) -> RecordedClient:
        """Return a new model client that repeats the recorded replies; see RecordedClient."""
        return RecordedClient(self, strict=strict, capabilities=capabilities)

    async def follow(self, agent: Agent[Any, Value]) -> RunResult[Value]:
        """Replay the record with the agent, without model, tools and network. Return the result.

        Raises:
            AssertionError: The agent departs from the record. The message names the first event that differs, and what
                has changed in the agent.
        """
        from closeout.run.lifecycle import replay_run
        from closeout.run.plan import differences

        plan = replace(agent.plan(), remember_dialect=None, remember_rules=None)
        result, departure = await replay_run(plan, self.run_id, self.rows)
        departure = departure or self._end_departs(result)
        if departure:
            changed = differences(self.started.fingerprint, plan.fingerprint(plan.offered_tools()))
            text = f"The agent departs from run {self.run_id} at {departure}"
            raise AssertionError(f"{text}\nWhat differs: {'; '.join(changed)}" if changed else text)
        return result

    def follow_sync(self, agent: Agent[Any, Value]) -> RunResult[Value]:
        """Like `follow`, for tests that are not async."""
        return asyncio.run(self.follow(agent))

    def _end_departs(self, result: RunResult) -> str:
        """Return how the end of the replay differs from the record; an interrupted run ends with its record."""
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
    return f"its end: the run was interrupted there, but the agent ended ({result.stop_reason}) without continuing"


# ------------------------------------------------------------------------------------------------ the model


_Exchange: TypeAlias = tuple[ModelRequested, ModelReplied | ModelFailed]


class RecordedClient(ScriptedClient):
    """A model client that repeats the replies and failures of a record in their order.

    Sub-agents may share it: it recognises a request by the number and size of its messages. A request that matches no
    recorded one gets the next reply, because a test with real tools needs that; with `strict` it raises an
    AssertionError that says how it differs. A request after the last reply always does.

    Attributes:
        requests: Every request that it received.
    """

    def __init__(self, recording: Recording, *, strict: bool = False, capabilities: Capabilities | None = None) -> None:
        fingerprint = recording.started.fingerprint
        known = capabilities or replace(ALL_CAPABILITIES, preferred_dialect=fingerprint.get("dialect"))
        super().__init__((), name=str(fingerprint.get("model", "recorded")), capabilities=known)
        self._run_id = recording.run_id
        self._strict = strict
        self._left: dict[str, deque[_Exchange]] = {}
        for exchange in _exchanges(recording.events):
            self._left.setdefault(exchange[0].agent, deque()).append(exchange)

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        self.requests.append(request)
        await asyncio.sleep(0)
        outcome = self._next(request)
        usage = Usage(**outcome.usage)
        self.charge(usage)
        if isinstance(outcome, ModelFailed):
            raise outcome.failure().to_exception(usage)
        reply = outcome.reply()
        return reply if on_delta is None else self._stream(reply, on_delta)

    def _next(self, request: ModelRequest) -> ModelReplied | ModelFailed:
        due = [queue for queue in self._left.values() if queue]
        if not due:
            number = len(self.requests)
            raise AssertionError(f"Run {self._run_id} has no recorded reply to request {number}.")
        shape = _shape(request)
        fitting = [queue for queue in due if (queue[0][0].messages, queue[0][0].size) == shape]
        if not fitting and self._strict:
            asked, _ = due[0][0]
            raise AssertionError(
                f"The agent departs from run {self._run_id} at {asked.agent}: ModelRequested {asked.call}: "
                f"{asked.messages} messages of {asked.size:,} characters then, {shape[0]} of {shape[1]:,} now."
            )
        _, outcome = (fitting or due)[0].popleft()
        return outcome


def _exchanges(events: Sequence[Event]) -> Iterator[_Exchange]:
    """Yield the requests that had an outcome, in their order."""
    finished = [e for e in events if isinstance(e, (ModelReplied, ModelFailed))]
    outcomes = {(e.agent, e.call): e for e in finished if not (isinstance(e, ModelFailed) and e.kind == CANCELLED)}
    for event in events:
        if isinstance(event, ModelRequested) and (outcome := outcomes.pop((event.agent, event.call), None)) is not None:
            yield event, outcome


def _shape(request: ModelRequest) -> tuple[int, int]:
    """Return the number and characters of the messages, as `ModelRequested` counts them."""
    if request.prompt is not None:
        return 0, len(request.prompt)
    return len(request.messages), sum(map(message_size, request.messages))


# ------------------------------------------------------------------------------------------------ files


def _rows(run_id: str, home: str | Path | None) -> tuple[Row, ...]:
    with open_to_read(home_folder(home)) as store:
        return tuple(store.rows(run_id))


def _record(row: Row) -> dict[str, Any]:
    event = replace(row.event, origin={}) if isinstance(row.event, RunStarted) else row.event
    body = {name: getattr(event, name) for name in event.names}
    return {"seq": row.seq, "time": row.time, "event": type(event).__name__, "body": body}


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"  # JSON has the same escapes for lone surrogates


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
                    raise JournalDamaged(f"{path} is not an exported run. Write one with closeout.testing.export_run.")
                elif record["version"] > VERSION:
                    raise JournalError(f"{path} was written by a newer Closeout. Install that to read it.")
                else:
                    run_id = str(record["run_id"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JournalDamaged(f"{path} is not an exported run, or it is damaged: cannot read line {number}.") from None
    if not rows:
        raise JournalDamaged(f"{path} contains no events.")
    return Recording(run_id, tuple(rows))
