"""The record of one request through the proxy: a run of its own kind in the journal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from closeout.errors import Failure, JournalError, ModelError
from closeout.journal.events import (
    Event,
    FlowDecided,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    Noted,
    Repaired,
    RunEnded,
    RunStarted,
    TurnRolledBack,
)
from closeout.journal.run_journal import Journal, open_journal
from closeout.journal.run_names import new_run_id
from closeout.journal.store import Store
from closeout.messages import Message, ModelReply, Repair, ToolSpec, Usage
from closeout.server.governing import Verdict, arguments_text
from closeout.server.proxy.conversation_run import accepted, with_conversation

__all__ = ["KIND", "ProxyRecord"]

KIND = "proxy"
"""The key of a run's origin that says it is a request through the proxy."""

WRITE_SECONDS = 0.02  # seconds from the end of a request until its record is written
MAX_TASK = 20_000  # characters of the last message that are kept
# Characters that may wait to be written, if all records were as long as this one. Above it, its request waits.
MAX_UNWRITTEN = 2**22
log = logging.getLogger("closeout.server")


class ProxyRecord:
    """Collects the events of a request, and writes them when it is over, so that no client waits for a disk.

    Args:
        store: Where runs are kept.
        model: The model that the client asked for.
        messages: The conversation.
        notes: What else to keep: the format, the upstream server.
        tools: The tools of the request, to keep the whole conversation if the reply ends it; None to keep none.
        settings: The temperature and the options of the request, for that.

    Attributes:
        run_id: The name of the run.
        usage: The tokens of all replies.
        size: The characters of all replies, and of the conversation if it is kept.
    """

    def __init__(
        self,
        store: Store,
        model: str,
        messages: list[Message],
        notes: Mapping[str, Any],
        *,
        tools: Sequence[ToolSpec] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id = new_run_id()
        self.usage = Usage()
        self._events: list[Event] = []
        self._writing: asyncio.Task[None] | None = None
        self.size = 0
        self._calls = 0
        self._began = time.monotonic()
        self._over = False
        last = next((each for each in reversed(messages) if each.role == "user"), Message())
        started = RunStarted(
            "main", last.text[:MAX_TASK] or "(no text)", name=KIND, origin={KIND: {**notes, "messages": len(messages)}}
        )
        self._store, self._model, self._started = store, model, started
        self._settings = dict(settings or {})
        self._kept = None if tools is None else (tuple(messages), tools)
        self._ends_conversation = False
        if self._kept is not None:
            self.size += sum(len(message.text) for message in messages)

    def requested(self, *, messages: int, size: int) -> None:
        """Note that a request is sent upstream."""
        self._began = time.monotonic()
        self._events.append(ModelRequested("main", self._calls, messages=messages, size=size, **self._settings))
        self._calls += 1

    def replied(self, reply: ModelReply) -> None:
        """Note the reply to the last request."""
        self.usage += reply.usage
        self.size += len(reply.text) + len(reply.reasoning) + sum(len(call.text) for call in reply.tool_calls)
        self._events.append(ModelReplied.of("main", self._calls - 1, reply, self._ms()))

    def failed(self, error: ModelError) -> None:
        """Note that the last request failed."""
        failure = Failure.of(error)
        self._events.append(ModelFailed.of("main", self._calls - 1, failure, usage=error.usage, ms=self._ms()))

    def repaired(self, repairs: Iterable[Repair]) -> None:
        """Note repairs."""
        for repair in repairs:
            event = Repaired("main", 0, repair.kind, where=repair.where, before=repair.before, after=repair.after)
            self._events.append(event)

    def decided(self, decisions: Iterable[FlowDecided]) -> None:
        """Note the decisions of flow rules on the calls of a reply."""
        self._events += decisions

    def judged(self, verdict: Verdict, *, again: bool, applied: bool = True) -> None:
        """Note the verdict on a reply.

        Args:
            verdict: The verdict.
            again: The request is repeated.
            applied: The verdict changes what the client gets.
        """
        self.repaired(verdict.repairs)
        defect = verdict.defect
        if defect is not None and again:
            self._events.append(TurnRolledBack("main", 0, 0, reason=defect.code, detail=defect.hint, change="hint"))
        elif defect is not None:
            self._events.append(Noted("main", "warning", "Not repaired", message=f"{defect.code}: {defect.hint}"))
        if not applied and not verdict.is_untouched:
            text = "Record only: the client got the reply as the model wrote it."
            self._events.append(Noted("main", "info", "Record only", message=text))

    def ended(self, status: str, reason: str, reply: ModelReply | None = None, error: str = "") -> None:
        """Note the end, and write the record in the background."""
        if self._over:
            return
        self._over = True
        answer = None
        if reply is not None:
            calls = [f"{call.name}({arguments_text(call)})" for call in reply.tool_calls]
            answer = "\n".join(filter(None, (reply.text, *calls)))
            self._events.append(accepted(reply))
            self._ends_conversation = not reply.tool_calls
        self._events.append(RunEnded("main", status, reason, answer=answer, error=error, closing_text=answer or ""))
        self._writing = asyncio.create_task(self._write())
        _writing.add(self._writing)
        self._writing.add_done_callback(_writing.discard)

    async def written(self) -> None:
        """Wait until the record is written if unwritten records of its length would take too much memory."""
        if self._writing is not None and self.size * len(_writing) > MAX_UNWRITTEN:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        await asyncio.sleep(WRITE_SECONDS)  # the writing thread would delay the reply that is being sent
        if self._kept is not None and self._ends_conversation:
            kept = asyncio.to_thread(with_conversation, self._started, self._events, *self._kept, self._model)
            self._started, self._events = await kept or (self._started, self._events)
        try:
            journal = await open_journal(Journal.start, self._store, self._started, self._model, run_id=self.run_id)
            *events, last = self._events
            for event in events:
                journal.append(event)
            assert isinstance(last, RunEnded)
            await journal.end(last)
        except JournalError as error:
            log.warning("The record of a request cannot be written: %s", error)

    def _ms(self) -> float:
        return round((time.monotonic() - self._began) * 1000, 3)


_writing: set[asyncio.Task[None]] = set()  # records that are being written: the event loop alone would not keep them


async def records_written() -> None:
    """Wait until all records are written."""
    while _writing:
        await asyncio.wait(_writing)
