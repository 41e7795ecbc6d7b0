"""One response of the Responses API: its output items, and the events of its stream, made from a run's events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from closeout.codec import encode_json
from closeout.journal.events import (
    AttemptEnded,
    DecisionMade,
    DecisionRequested,
    Event,
    ModelReplied,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
    has_conversation,
)
from closeout.journal.store import Row
from closeout.journal.story import Change, Story
from closeout.journal.totals import RunTotals
from closeout.run.waits.decisions import PendingDecision, awaited, pending_of
from closeout.server.formats.openai_responses import responses_usage
from closeout.server.formats.shared_fields import output_text
from closeout.server.serve.answer_sources import url_citations
from closeout.server.serve.reply_text import ReplyText

__all__ = ["Outcome", "ResponseId", "ResponseState"]

PREFIX = "resp_"
LIMITS = ("max_turns", "max_tokens", "max_cost", "max_seconds")


class ResponseId(NamedTuple):
    """The id of a response: its run, and which of the run's responses it is.

    `resp_RUN` is the first response of a run, `resp_RUN.1` the one after the first decision that the run waited for.
    """

    run_id: str
    part: int = 0

    @classmethod
    def read(cls, text: str) -> ResponseId:
        """Read the id of a response, which need not exist."""
        return cls.of_place(text.removeprefix(PREFIX))

    @classmethod
    def of_item(cls, item: str) -> ResponseId:
        """Return the response that an item belongs to."""
        return cls.of_place(item.split("_", 2)[-1])

    @classmethod
    def of_place(cls, place: str) -> ResponseId:
        """Read a place as `place` writes it."""
        run_id, dot, part = place.rpartition(".")
        return cls(run_id, int(part)) if dot and part.isdecimal() and len(part) < 9 else cls(place)

    @property
    def place(self) -> str:
        """The run and the part, as ids contain them."""
        return f"{self.run_id}.{self.part}" if self.part else self.run_id

    def __str__(self) -> str:
        return PREFIX + self.place


class Outcome:
    """The end of a run, in the terms of OpenAI's APIs.

    Attributes:
        status: "completed", "incomplete", "failed" or "cancelled".
        reason: Why it is incomplete: "max_output_tokens" for a limit of the run, "content_filter" for a refusal.
        code: The run's stop reason.
        error_code: The code of the error, if it failed.
        message: What went wrong, for people; empty if nothing did.
    """

    def __init__(self, ended: RunEnded) -> None:
        self.code = ended.stop_reason
        self.reason = ""
        self.error_code = "rate_limit_exceeded" if ended.stop_reason == "budget" else "server_error"
        self.message = ended.error
        if ended.status == "answered":
            self.status = "completed"
            self.message = ""
        elif ended.status == "cancelled":
            self.status = "cancelled"
        elif ended.status == "waiting":
            self.status = "completed"  # its output says what it waits for
            self.message = "The run waits for a decision, a time or a signal, and continues when that is there."
        elif ended.stop_reason in LIMITS or ended.stop_reason == "refused":
            self.status = "incomplete"
            self.reason = "content_filter" if ended.stop_reason == "refused" else "max_output_tokens"
            self.message = ended.error or f"The run stopped without an answer ({ended.stop_reason})."
        else:
            self.status = "failed"
            self.message = ended.error or f"No answer was found ({ended.stop_reason})."


class ResponseState:
    """The current state of a response. Read the run's events one after the other.

    Args:
        response: The response.
        model: The name under which clients know the agent.
        after: The run's response before this one, if there is one.

    Attributes:
        notes: What the server noted about the request.
        created_at: When the response began, in seconds since the epoch.
        outcome: How it ended, None while it is under way.
        pending: What the run waits for at its end, by the ids of the items that show it.
    """

    def __init__(self, response: ResponseId, model: str, after: ResponseState | None = None) -> None:
        self.id = response
        self.model = model
        self.notes: Mapping[str, Any] = {} if after is None else {**after.notes, "previous_response_id": str(after.id)}
        self.created_at = 0.0
        self.outcome: Outcome | None = None
        self.pending: dict[str, PendingDecision] = {}
        # The times and signals that the run waits for.
        self._awaited: dict[tuple[str, str], PendingDecision] = {} if after is None else dict(after._awaited)
        # The items that asked for the approval of calls, keyed by the calls' handles.
        self._approvals: dict[str, str] = {} if after is None else after._approvals
        self._completed_at: float | None = None
        self._totals = RunTotals()
        self._story = Story()
        self._output: list[dict[str, Any]] = []
        self._calls: dict[str, int] = {}  # open calls of the turn: handle → output index
        self._thought: int | None = None  # the output index of the turn's reasoning item
        self._reply = ReplyText()
        self._message: int | None = None  # the output index of the message that is being written
        self._written: list[str] = []  # its text, in pieces
        self._announced = False
        self._made: list[dict[str, Any]] = []  # events of the stream that have not been returned
        # The rows that the answer may cite.
        self._rows: list[Row] = [] if after is None else after._rows

    def read(self, row: Row) -> list[dict[str, Any]]:
        """Read the next event of the run. Returns the events of the stream that follow from it, without numbers."""
        event, at = row.event, row.time
        if isinstance(event, ToolStarted | ToolFinished | ModelReplied):
            self._rows.append(row)
        self._totals(event)
        place = self._story.feed(event)
        if has_conversation(event.agent):
            self._read_main(event, place, at)
        if isinstance(event, DecisionRequested):
            pending = pending_of(event)
            if pending.by_person:
                self._ask(pending)
            else:
                self._awaited[event.agent, event.request] = pending
        elif isinstance(event, DecisionMade):
            self._awaited.pop((event.agent, event.request), None)
        made, self._made = self._made, []
        return made

    def _read_main(self, event: Event, place: Change, at: float) -> None:
        if not isinstance(event, RunEnded):
            self._show_text(event, place)
        match event:
            case RunStarted():
                self._announce()
            case RunResumed():
                self.outcome = self._completed_at = None
                self._announce()
            case ToolStarted():
                reply = None if place.turn is None else place.turn.reply
                if reply is not None and (reply.text or reply.reasoning):
                    self._open_thought()  # the thought precedes the calls, although its text is known after them
                self._start_call(event.handle, event.name, event.arguments, event.server_name)
            case ToolFinished() if event.handle in self._calls:
                self._end_call(self._calls[event.handle], ok=event.ok)
            case TurnAccepted():
                self._accept_turn(event)
            case TurnRolledBack() | AttemptEnded():
                self._close_turn("")
            case RunEnded():
                self._end(event, place, at)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._made.append({"type": kind, **fields})

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            self._emit("response.created", response=self.response())
            self._emit("response.in_progress", response=self.response())

    def _end(self, event: RunEnded, place: Change, at: float) -> None:
        self.outcome = Outcome(event)
        if event.status == "cancelled":
            return  # the API has no event for this; a run that was interrupted continues
        self._close_turn("")
        if event.status == "waiting" and self._awaited:
            self._write_message("\n".join(f"Waiting for {awaited(each)}." for each in self._awaited.values()))
            self._end_message()
        self._completed_at = at
        self._show_text(event, place)
        self._emit(f"response.{self.outcome.status}", response=self.response())

    # ------------------------------------------------------------------------------------------ items

    def _add(self, item: dict[str, Any]) -> int:
        index = len(self._output)
        item = {"id": f"{_PREFIXES[item['type']]}_{index}_{self.id.place}", **item}
        self._output.append(item)
        self._emit("response.output_item.added", output_index=index, item=dict(item))
        return index

    def _done(self, index: int, **changes: Any) -> None:
        item = self._output[index] = {**self._output[index], **changes}
        self._emit("response.output_item.done", output_index=index, item=dict(item))

    def _about(self, index: int) -> dict[str, Any]:
        return {"item_id": self._output[index]["id"], "output_index": index}

    # ------------------------------------------------------------------------------------------ a turn

    def _start_call(self, handle: str, name: str, arguments: str, server: str | None) -> int:
        item = {
            "type": "mcp_call",
            "name": name,
            "arguments": arguments,
            "server_label": server or self.model,
            "approval_request_id": self._approvals.get(handle),
            "status": "in_progress",
            "output": None,
            "error": None,
        }
        index = self._calls[handle] = self._add(item)
        self._emit("response.mcp_call.in_progress", **self._about(index))
        self._emit("response.mcp_call_arguments.done", **self._about(index), arguments=arguments)
        return index

    def _end_call(self, index: int, *, ok: bool) -> None:
        """Show that a call has ended. Its item follows with the result that the model is shown."""
        self._output[index]["status"] = status = "completed" if ok else "failed"
        self._emit(f"response.mcp_call.{status}", **self._about(index))

    def _accept_turn(self, event: TurnAccepted) -> None:
        if event.text or event.reasoning:
            self._open_thought()
        for returned in event.returns:
            text, ok, handle = str(returned["text"]), bool(returned["ok"]), str(returned["handle"])
            if handle not in self._calls:  # it was answered without running: refused, or a repetition
                call = event.calls[returned["call"]]
                arguments = encode_json(dict(call["arguments"])).decode()
                self._end_call(self._start_call(handle, str(call["name"]), arguments, call["server_name"]), ok=ok)
            error = None if ok else {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
            status = "completed" if ok else "failed"
            self._done(self._calls.pop(handle), status=status, output=text if ok else None, error=error)
        self._close_turn("\n\n".join(filter(None, (event.reasoning, event.text))))

    def _open_thought(self) -> None:
        if self._thought is None:
            self._thought = self._add({"type": "reasoning", "summary": [], "status": "in_progress"})

    def _close_turn(self, thought: str) -> None:
        """Complete the items of the turn that are still open."""
        for index in self._calls.values():
            self._done(index, status="incomplete")
        self._calls.clear()
        if self._thought is None:
            return
        index, self._thought = self._thought, None
        part = {"type": "summary_text", "text": thought}
        if thought:
            about = {**self._about(index), "summary_index": 0}
            self._emit("response.reasoning_summary_part.added", **about, part={**part, "text": ""})
            self._emit("response.reasoning_summary_text.delta", **about, delta=thought)
            self._emit("response.reasoning_summary_text.done", **about, text=thought)
            self._emit("response.reasoning_summary_part.done", **about, part=part)
        self._done(index, summary=[part] if thought else [], status="completed")

    # ------------------------------------------------------------------------------------------ the message

    def _show_text(self, event: Event, place: Change) -> None:
        for change in self._reply.feed(event, place):
            if change.withdrawn:
                self._end_message(withdrawn=True)
                continue
            self._write_message(change.text)
            if change.ends:
                self._end_message(is_answer=True)

    def _write_message(self, text: str) -> None:
        if self._message is None:
            item = {"type": "message", "role": "assistant", "phase": "final_answer", "content": []}
            self._message = self._add({**item, "status": "in_progress"})
            self._written = []
            self._emit("response.content_part.added", **self._place(), part=output_text(""))
        if text:
            self._emit("response.output_text.delta", **self._place(), delta=text, logprobs=[])
            self._written.append(text)

    def _place(self) -> dict[str, Any]:
        assert self._message is not None
        return {**self._about(self._message), "content_index": 0}

    def _end_message(self, *, withdrawn: bool = False, is_answer: bool = False) -> None:
        """Complete the message. One that is withdrawn is left without content."""
        place, text = self._place(), "".join(self._written)
        annotations = url_citations(self._rows, self.id.run_id, text) if is_answer else []
        for number, each in enumerate(annotations):
            about = {**place, "annotation_index": number}
            self._emit("response.output_text.annotation.added", **about, annotation=each)
        self._emit("response.output_text.done", **place, text=text, logprobs=[])
        self._emit("response.content_part.done", **place, part=output_text(text, annotations))
        content = [] if withdrawn else [output_text(text, annotations)]
        self._done(place["output_index"], content=content, status="incomplete" if withdrawn else "completed")
        self._message = None

    # ------------------------------------------------------------------------------------------ decisions

    def _ask(self, pending: PendingDecision) -> None:
        """Show what the run waits for: a call to approve, or a question as a message."""
        if pending.kind == "approval":
            arguments = encode_json(dict(pending.arguments)).decode()
            item = {"type": "mcp_approval_request", "name": pending.tool, "arguments": arguments}
            index = self._add({**item, "server_label": self.model})
            self._done(index)
            self._approvals[pending.id] = self._output[index]["id"]
        else:
            index = len(self._output)
            self._write_message(_question_text(pending.arguments))
            self._end_message()
        self.pending[self._output[index]["id"]] = pending

    # ------------------------------------------------------------------------------------------ the object

    def response(self, *, state: str = "", failure: str = "") -> dict[str, Any]:
        """Return the response object.

        Args:
            state: "running" or "queued" if the server is going to continue the run.
            failure: Why it will not, if the run has not ended.
        """
        # A host that was stopped has cancelled a run that another one continues.
        is_left = self.outcome is not None and self.outcome.status == "cancelled" and state == "queued"
        outcome = None if is_left else self.outcome
        error: dict[str, Any] | None = None
        if outcome is None and (failure or state not in ("", "running", "queued")):
            status, error = "failed", {"code": "server_error", "message": failure}
        elif outcome is None:
            status = "queued" if state == "queued" else "in_progress"
        else:
            status = outcome.status
            error = {"code": outcome.error_code, "message": outcome.message} if status == "failed" else None
        return {
            "id": str(self.id),
            "object": "response",
            "created_at": int(self.created_at),
            "completed_at": None if self._completed_at is None else int(self._completed_at),
            "status": status,
            "background": bool(self.notes.get("background")),
            "error": error,
            "incomplete_details": {"reason": outcome.reason} if outcome is not None and outcome.reason else None,
            "instructions": self.notes.get("instructions"),
            "metadata": {
                **self.notes.get("metadata", {}),
                "run_id": self.id.run_id,
                **({"stop_reason": outcome.code} if outcome is not None else {}),
            },
            "model": self.model,
            "output": [dict(item) for item in self._output],
            "parallel_tool_calls": True,
            "previous_response_id": self.notes.get("previous_response_id"),
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": responses_usage(self._totals.usage) if outcome is not None else None,
        }


def _question_text(arguments: Mapping[str, Any]) -> str:
    options = arguments.get("options") or ()
    return "\n".join((str(arguments.get("question", "")), *(f"- {option}" for option in options)))


_PREFIXES = {"reasoning": "rs", "mcp_call": "mcp", "message": "msg", "mcp_approval_request": "mcpr"}
