"""A run as the Responses API shows it: the events of its stream, with their sequence numbers, and the response object.

Both are computed from the run's committed events alone. They are therefore the same after the server was killed, and a
client can continue a stream at any sequence number.

A run that waits for a decision has several responses. One ends with what the run waits for, the next begins with the
decision.
"""

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
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.store import Row
from closeout.journal.totals import RunTotals
from closeout.run.waiting import PendingDecision, pending_of
from closeout.server.reply_text import ReplyText

__all__ = ["RESPONSE_NOTE", "Outcome", "ResponseId", "ResponseView"]

RESPONSE_NOTE = "Response"
"""The name of the `Noted` event with the server's notes on a response that is not the first one of its run."""

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
        """Read the id of a response. Whether there is such a response is not checked."""
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
    """How a run ended, in the terms of OpenAI's APIs.

    Attributes:
        status: "completed", "incomplete", "failed" or "cancelled".
        reason: Why it is incomplete: "max_output_tokens" for a limit of the run, "content_filter" for a refusal.
        code: The run's stop reason.
        message: What went wrong, for people; empty if nothing did.
    """

    def __init__(self, ended: RunEnded) -> None:
        self.code = ended.stop_reason
        self.reason = ""
        self.message = ended.error
        if ended.status == "answered":
            self.status = "completed"
            self.message = ""
        elif ended.status == "cancelled":
            self.status = "cancelled"
        elif ended.status == "waiting":
            self.status = "completed"  # with what it waits for
            self.message = "The run waits for a decision, see /v1/runs/ID. It continues when that is made."
        elif ended.stop_reason in LIMITS or ended.stop_reason == "refused":
            self.status = "incomplete"
            self.reason = "content_filter" if ended.stop_reason == "refused" else "max_output_tokens"
            self.message = ended.error or f"The run stopped without an answer ({ended.stop_reason})."
        else:
            self.status = "failed"
            self.message = ended.error or f"No answer was found ({ended.stop_reason})."


class ResponseView:
    """Reads a run's events one after the other, and shows one of its responses.

    Args:
        response: The response.
        model: The name under which clients know the agent.

    Attributes:
        outcome: How the response ended, None while it is under way.
        awaits_decision: Whether the response is the run's last one, and has ended with what the run waits for.
        parts: How many of the run's responses came after the first one.
        pending: What the run waits for at the end of the response, by the ids of the items that show it.
    """

    def __init__(self, response: ResponseId, model: str) -> None:
        self.outcome: Outcome | None = None
        self.parts = 0
        self.pending: dict[str, PendingDecision] = {}
        self._id = response
        self._model = model
        self._notes: Mapping[str, Any] = {}
        self._waits = False  # the run has ended to wait for a decision
        self._next = 0  # the next sequence number
        self._approvals: dict[str, str] = {}  # of all responses: handle of a call → the item that asks for its approval
        self._begin(0.0)

    def _begin(self, at: float) -> None:
        """Begin the first response, or the next one."""
        self.outcome = None
        self.pending = {}
        self._waits = False
        self._created_at = at
        self._completed_at: float | None = None
        self._totals = RunTotals()
        self._output: list[dict[str, Any]] = []
        self._calls: dict[str, int] = {}  # open calls of the turn: handle → output index
        self._thought: int | None = None  # the output index of the turn's reasoning item
        self._thinks = False  # whether the last reply has a text or reasoning beside its calls
        self._reply = ReplyText()
        self._message: int | None = None  # the output index of the message that is being written
        self._written: list[str] = []  # its text, in pieces
        self._announced = False

    def feed(self, row: Row) -> list[dict[str, Any]]:
        """Read the next event. Returns the events of the response's stream that follow from it."""
        event = row.event
        if self._waits and isinstance(event, (RunResumed, DecisionMade)):
            self.parts += 1
            self._waits = False
            if self.parts <= self._id.part:
                self._begin(row.time)
        if isinstance(event, RunEnded) and event.agent == "main":
            self._waits = event.status == "waiting"
        if self.parts > self._id.part:
            return []
        self._totals(event)
        made: list[dict[str, Any]] = []
        if event.agent == "main":
            self._read(event, row.time, made)
        if isinstance(event, DecisionRequested):
            self._ask(pending_of(event), made)
        if self.parts < self._id.part:
            return []
        for each in made:
            each["sequence_number"] = self._next
            self._next += 1
        return made

    @property
    def awaits_decision(self) -> bool:
        return self._waits and self.parts == self._id.part

    def _announce(self, made: list[dict[str, Any]]) -> None:
        if not self._announced:
            self._announced = True
            made.append({"type": "response.created", "response": self.response()})
            made.append({"type": "response.in_progress", "response": self.response()})

    def _read(self, event: Event, at: float, made: list[dict[str, Any]]) -> None:
        if not isinstance(event, RunEnded):
            self._show_text(event, made)
        match event:
            case RunStarted():
                self._created_at = at
                self._notes = event.origin.get("serve", {})
                self._announce(made)
            case Noted() if event.name == RESPONSE_NOTE:
                self._notes = event.metadata
            case RunResumed():
                self.outcome = self._completed_at = None
                self._announce(made)
            case ModelReplied():
                self._thinks = bool(event.text or event.reasoning)
            case ToolStarted():
                self._start_call(event.handle, event.name, event.arguments, event.server_name, made)
            case ToolFinished():
                self._finish_call(event, made)
            case TurnAccepted():
                self._accept_turn(event, made)
            case TurnRolledBack() | AttemptEnded():
                self._close_turn("", made)
            case RunEnded():
                self._end(event, at, made)

    # ------------------------------------------------------------------------------------------ items

    def _add(self, item: dict[str, Any], made: list[dict[str, Any]]) -> int:
        index, response = len(self._output), ResponseId(self._id.run_id, self.parts)
        item = {"id": f"{_PREFIXES[item['type']]}_{index}_{response.place}", **item}
        self._output.append(item)
        made.append({"type": "response.output_item.added", "output_index": index, "item": dict(item)})
        return index

    def _done(self, index: int, made: list[dict[str, Any]], **changes: Any) -> None:
        item = self._output[index] = {**self._output[index], **changes}
        made.append({"type": "response.output_item.done", "output_index": index, "item": dict(item)})

    def _about(self, index: int) -> dict[str, Any]:
        return {"item_id": self._output[index]["id"], "output_index": index}

    # ------------------------------------------------------------------------------------------ a turn

    def _start_call(
        self, handle: str, name: str, arguments: str, server: str | None, made: list[dict[str, Any]]
    ) -> int:
        if self._thought is None and self._thinks:  # it comes before the calls, although its text is known after them
            self._thought = self._add({"type": "reasoning", "summary": [], "status": "in_progress"}, made)
        item = {
            "type": "mcp_call",
            "name": name,
            "arguments": arguments,
            "server_label": server or self._model,
            "approval_request_id": self._approvals.get(handle),
            "status": "in_progress",
            "output": None,
            "error": None,
        }
        index = self._calls[handle] = self._add(item, made)
        made.append({"type": "response.mcp_call.in_progress", **self._about(index)})
        made.append({"type": "response.mcp_call_arguments.done", **self._about(index), "arguments": arguments})
        return index

    def _finish_call(self, event: ToolFinished, made: list[dict[str, Any]]) -> None:
        index = self._calls.get(event.handle)
        if index is not None:
            self._output[index]["status"] = "completed" if event.ok else "failed"
            kind = "completed" if event.ok else "failed"
            made.append({"type": f"response.mcp_call.{kind}", **self._about(index)})

    def _accept_turn(self, event: TurnAccepted, made: list[dict[str, Any]]) -> None:
        if self._thought is None and (event.text or event.reasoning):
            self._thought = self._add({"type": "reasoning", "summary": [], "status": "in_progress"}, made)
        for returned in event.returns:
            text, ok = str(returned["text"]), bool(returned["ok"])
            call = event.calls[returned["call"]]
            index = self._calls.pop(str(returned["handle"]), None)
            if index is None:  # it was answered without running: refused, or a repetition
                arguments = encode_json(dict(call["arguments"])).decode()
                self._start_call("", str(call["name"]), arguments, call["server_name"], made)
                index = self._calls.pop("")
                made.append({"type": f"response.mcp_call.{'completed' if ok else 'failed'}", **self._about(index)})
            error = None if ok else {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}
            changes = {"status": "completed" if ok else "failed", "output": text if ok else None, "error": error}
            self._done(index, made, **changes)
        self._close_turn("\n\n".join(filter(None, (event.reasoning, event.text))), made)

    def _close_turn(self, thought: str, made: list[dict[str, Any]]) -> None:
        """Complete the items of the turn that are still open."""
        for index in self._calls.values():
            self._done(index, made, status="incomplete")
        self._calls.clear()
        if self._thought is None:
            return
        index, self._thought = self._thought, None
        part = {"type": "summary_text", "text": thought}
        if thought:
            about = {**self._about(index), "summary_index": 0}
            made += [
                {"type": "response.reasoning_summary_part.added", **about, "part": {**part, "text": ""}},
                {"type": "response.reasoning_summary_text.delta", **about, "delta": thought},
                {"type": "response.reasoning_summary_text.done", **about, "text": thought},
                {"type": "response.reasoning_summary_part.done", **about, "part": part},
            ]
        self._done(index, made, summary=[part] if thought else [], status="completed")

    # ------------------------------------------------------------------------------------------ the end

    def _end(self, event: RunEnded, at: float, made: list[dict[str, Any]]) -> None:
        self.outcome = Outcome(event)
        if event.status == "cancelled":
            return  # the API has no event for this; a run that was interrupted continues
        self._close_turn("", made)
        self._completed_at = at
        self._show_text(event, made)
        made.append({"type": f"response.{self.outcome.status}", "response": self.response()})

    # ------------------------------------------------------------------------------------------ the message

    def _show_text(self, event: Event, made: list[dict[str, Any]]) -> None:
        for change in self._reply.feed(event):
            if change.withdrawn:
                self._end_message(made, withdrawn=True)
                continue
            self._write_message(change.text, made)
            if change.ends:
                self._end_message(made)

    def _write_message(self, text: str, made: list[dict[str, Any]]) -> None:
        if self._message is None:
            item = {"type": "message", "role": "assistant", "phase": "final_answer", "content": []}
            self._message = self._add({**item, "status": "in_progress"}, made)
            self._written = []
            made.append({"type": "response.content_part.added", **self._place(), "part": _text_part("")})
        if text:
            made.append({"type": "response.output_text.delta", **self._place(), "delta": text, "logprobs": []})
            self._written.append(text)

    def _place(self) -> dict[str, Any]:
        assert self._message is not None
        return {**self._about(self._message), "content_index": 0}

    def _end_message(self, made: list[dict[str, Any]], *, withdrawn: bool = False) -> None:
        """Complete the message. One that is withdrawn is left without content."""
        place, text = self._place(), "".join(self._written)
        made.append({"type": "response.output_text.done", **place, "text": text, "logprobs": []})
        made.append({"type": "response.content_part.done", **place, "part": _text_part(text)})
        content = [] if withdrawn else [_text_part(text)]
        self._done(place["output_index"], made, content=content, status="incomplete" if withdrawn else "completed")
        self._message = None

    # ------------------------------------------------------------------------------------------ decisions

    def _ask(self, pending: PendingDecision, made: list[dict[str, Any]]) -> None:
        """Show what the run waits for: a call to approve, or a question as a message."""
        if pending.kind == "approval":
            arguments = encode_json(dict(pending.arguments)).decode()
            item = {"type": "mcp_approval_request", "name": pending.tool, "arguments": arguments}
            index = self._add({**item, "server_label": self._model}, made)
            self._done(index, made)
            self._approvals[pending.id] = self._output[index]["id"]
        else:
            index = len(self._output)
            self._write_message(_question_text(pending.arguments), made)
            self._end_message(made)
        self.pending[self._output[index]["id"]] = pending

    # ------------------------------------------------------------------------------------------ the object

    def response(self, *, state: str = "", failure: str = "") -> dict[str, Any]:
        """Return the response object.

        Args:
            state: "running" or "queued" if the server is going to continue the run.
            failure: Why it will not, if the run has not ended.
        """
        outcome = self.outcome
        error: dict[str, Any] | None = None
        if outcome is None and (failure or state not in ("", "running", "queued")):
            status, error = "failed", {"code": "server_error", "message": failure}
        elif outcome is None:
            status = "queued" if state == "queued" else "in_progress"
        else:
            status = outcome.status
            error = {"code": "server_error", "message": outcome.message} if status == "failed" else None
        return {
            "id": str(self._id),
            "object": "response",
            "created_at": int(self._created_at),
            "completed_at": None if self._completed_at is None else int(self._completed_at),
            "status": status,
            "background": bool(self._notes.get("background")),
            "error": error,
            "incomplete_details": {"reason": outcome.reason} if outcome is not None and outcome.reason else None,
            "instructions": self._notes.get("instructions"),
            "metadata": {
                **self._notes.get("metadata", {}),
                "run_id": self._id.run_id,
                **({"stop_reason": outcome.code} if outcome is not None else {}),
            },
            "model": self._model,
            "output": [dict(item) for item in self._output],
            "parallel_tool_calls": True,
            "previous_response_id": self._notes.get("previous_response_id"),
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": self._usage() if outcome is not None else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self._totals.usage
        return {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }


def _question_text(arguments: Mapping[str, Any]) -> str:
    options = arguments.get("options") or ()
    return "\n".join((str(arguments.get("question", "")), *(f"- {option}" for option in options)))


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_PREFIXES = {"reasoning": "rs", "mcp_call": "mcp", "message": "msg", "mcp_approval_request": "mcpr"}
