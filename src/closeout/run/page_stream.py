"""A run as a web page shows it: the chunks of the AI SDK's UI message stream, and the messages that they add up to.

The protocol: https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol (AI SDK 5 to 7). A chunk cannot be withdrawn, so the end
of a text that does not count has `providerMetadata: {closeout: {withdrawn: true}}`, and a page leaves it out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from closeout.journal.events import (
    REPLIED,
    DecisionMade,
    DecisionRequested,
    Event,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ReplyStreamed,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
    has_conversation,
)
from closeout.journal.run_names import call_id
from closeout.journal.subscribers import Progress
from closeout.run.waits.decisions import PendingDecision, awaited, pending_of, utc_time

__all__ = ["Chunk", "PageStream", "page_messages", "rest_of"]

Chunk: TypeAlias = dict[str, Any]

MAX_RESULT = 32_000  # Characters of a tool's result that a page gets.
WITHDRAWN = {"closeout": {"withdrawn": True}}


def rest_of(text: str, shown: str) -> str | None:
    """Return what is missing of a text of which a part was shown. None if what was shown is something else."""
    return text[len(shown) :] if text.startswith(shown) else None


class PageStream:
    """Reads the events of a run, live or from its record, and returns the chunks that follow from each.

    The text of a turn is streamed as it is written, and corrected when the record says what the turn's text is. So a
    page that watched and one that is loaded later show the same.

    Args:
        run_id: The run. It is the id of its message; after the first answer to a question, `RUN.1`.
        file_url: Returns the address of a file of the run by its name. Without it, files are not shown.

    Attributes:
        messages: The messages so far: those of the agent, and the user's task and answers.
        pending: What the run waits for, by the id of the decision.
        ended: The end of the run, unless it was resumed since.
    """

    def __init__(self, run_id: str, file_url: Callable[[str], str] | None = None) -> None:
        self.run_id = run_id
        self.messages: list[dict[str, Any]] = []
        self.pending: dict[str, PendingDecision] = {}
        self.ended: RunEnded | None = None
        self._file_url = file_url
        self._chunks: list[Chunk] = []
        self._written: list[dict[str, Any]] = []  # the texts of the current turn
        self._calls: dict[str, dict[str, Any]] = {}  # the parts of calls, keyed by their ids
        self._answers = 0  # to questions
        self._parts = 0  # of text
        self._in_step = False

    def feed(self, event: Event | Progress) -> list[Chunk]:
        """Read the next event, and return the new chunks."""
        if isinstance(event, (DecisionRequested, DecisionMade)):
            self._decision(event)
        elif has_conversation(event.agent):
            self._main(event)
        elif isinstance(event, ToolFinished) and self._call_id(event) in self._calls:
            self._finished(event)
        chunks, self._chunks = self._chunks, []
        return chunks

    def finish(self) -> list[Chunk]:
        """Return the last chunks, once no more events come. A run that was broken off ends as "interrupted"."""
        self._begin()
        ended = self.ended
        status = "interrupted" if ended is None else ended.status
        replied = ended is not None and status in REPLIED
        self._settle((ended.closing_text or ended.answer or "") if ended and replied else None)
        for place in list(self._calls) if ended and status != "waiting" else ():
            self._close(place, ok=False, output=None, error="The run ended before this call.")
        self._end_step()
        about: dict[str, Any] = {"runId": self.run_id, "status": status}
        if ended is not None:
            about |= {"stopReason": ended.stop_reason, "error": ended.error, "answer": ended.answer}
        about = {name: value for name, value in about.items() if value}
        if replied or status == "waiting":
            self._emit("finish", messageMetadata=about)
        else:
            self._emit("message-metadata", messageMetadata=about)
            if status == "cancelled":
                self._emit("abort")
            else:
                self._emit("error", errorText=about.get("error") or "The run was interrupted.")
        self.messages[-1]["metadata"] = about
        chunks, self._chunks = self._chunks, []
        return chunks

    # ------------------------------------------------------------------------------------------ events

    def _main(self, event: Event | Progress) -> None:
        match event:
            case RunStarted():
                names = [each.rpartition("/")[2] for each in event.files]
                self._user(event.task, self._files(each for each in event.kept_files if each.get("name") in names))
                self._begin()
            case RunResumed():
                self.ended = None
            case RunEnded():
                self.ended = event
            case MessageReceived():
                self._add("data-message", id=event.id, data={"text": event.text, "by": event.by})
            case ToolStarted():
                self._call(self._call_id(event), event.name, _value(event.arguments))
            case ToolFinished():
                self._finished(event)
            case TurnAccepted():
                self._settle(event.text)
                self._not_run(event)
            case _:
                self._reply(event)

    def _reply(self, event: Event | Progress) -> None:
        """Show what the model writes."""
        match event:
            case Progress(kind="text" | "thought" | "answer" | "reasoning") if event.text:
                self._write("reasoning" if event.kind == "reasoning" else "text", event.text)
            case Progress(kind="discard") | ModelFailed() | TurnRolledBack():
                self._withdraw()
            case ReplyStreamed():
                if event.offset == 0:
                    self._withdraw("text")
                self._write("text", event.text)
            case ModelRequested(purpose="act" | "close"):
                self._withdraw()
                self._start_step()
            case ModelReplied():
                if event.reasoning and not self._text("reasoning"):
                    self._write("reasoning", event.reasoning)
                if event.tool_calls:  # what the record says of a turn comes after its calls
                    self._correct(event.text.strip())

    def _finished(self, event: ToolFinished) -> None:
        result = _value(event.record)
        output = result.get("result") if isinstance(result, dict) else result
        if len(event.record) > MAX_RESULT:
            output = (output if isinstance(output, str) else json.dumps(output, ensure_ascii=False))[:MAX_RESULT] + "…"
        self._close(self._call_id(event), ok=event.ok, output=output, error=event.note)
        for file in self._files(event.files):
            about = {"closeout": {"filename": file["filename"]}}  # a chunk has no place for it
            self._add("file", url=file["url"], mediaType=file["mediaType"], providerMetadata=about)

    def _not_run(self, event: TurnAccepted) -> None:
        """Show the calls that were answered without running: refused, or a repetition."""
        for shown in event.returns:
            call = event.calls[shown["call"]]
            place = self._place(event.agent, str(shown["handle"]))
            if place not in self._calls:
                self._call(place, str(call["name"]), call["arguments"])
            self._close(place, ok=bool(shown["ok"]), output=shown["text"], error=str(shown["text"]))

    def _decision(self, event: DecisionRequested | DecisionMade) -> None:
        place = self._place(event.agent, event.request)
        if isinstance(event, DecisionMade):
            self._decided(event, place, self.pending.pop(place.removeprefix(f"{self.run_id}:"), None))
            return
        pending = pending_of(event)
        self.pending[pending.id] = pending
        about: dict[str, Any] = {"reason": pending.reason}
        if pending.expires is not None:
            about["expires"] = utc_time(pending.expires)
        if pending.kind == "approval":
            if not has_conversation(event.agent):  # clients continue when all calls of the last step are decided
                self._start_step()
            self._call(place, pending.tool, dict(pending.arguments))
            self._calls[place] |= {"state": "approval-requested", "approval": {"id": pending.id, "descriptor": about}}
            self._emit("tool-approval-request", approvalId=pending.id, toolCallId=place, approvalDescriptor=about)
        elif pending.kind == "question":
            about |= {"question": pending.arguments.get("question"), "options": pending.arguments.get("options") or []}
            self._close(place, ok=True, output=None, error="")  # the answer is the user's next message
            self._add("data-question", id=pending.id, data=about)
        else:
            self._add("data-wait", id=pending.id, data={**about, "kind": pending.kind, "for": awaited(pending)})

    def _decided(self, event: DecisionMade, place: str, asked: PendingDecision | None) -> None:
        call = self._calls.get(place)
        if call is not None and event.verdict in ("approve", "deny"):
            call["approval"] = {**call.get("approval", {}), "approved": event.verdict == "approve"}
            call["state"] = "approval-responded" if event.verdict == "approve" else "output-denied"
            if event.verdict == "deny":
                self._emit("tool-output-denied", toolCallId=place)
        elif event.verdict == "answer" and asked is not None:  # the user's words begin a new message
            self._settle(None)
            self._end_step()
            self._answers += 1
            self._user(event.text, ())
            self._begin()

    # ------------------------------------------------------------------------------------------ parts

    def _place(self, agent: str, handle: str) -> str:
        return f"{self.run_id}:{call_id(agent, handle)}"

    def _call_id(self, event: ToolStarted | ToolFinished) -> str:
        return self._place(event.agent, event.handle)

    def _call(self, place: str, name: str, arguments: Any) -> None:
        self._begin()
        if place not in self._calls:
            self._calls[place] = {"type": f"tool-{name}", "toolCallId": place}
            self.messages[-1]["parts"].append(self._calls[place])
        self._calls[place] |= {"state": "input-available", "input": arguments}
        self._emit("tool-input-available", toolCallId=place, toolName=name, input=arguments)

    def _close(self, place: str, *, ok: bool, output: Any, error: str) -> None:
        call = self._calls.get(place, {"state": "output-denied"})
        if call["state"] == "input-available" and call not in self.messages[-1]["parts"]:  # a question came between
            self._calls.pop(place)
            name = call["type"].removeprefix("tool-")
            self._call(place, name, call["input"])
            call = self._calls[place]
        if call["state"] in ("output-available", "output-error", "output-denied"):
            return
        if ok:
            call |= {"state": "output-available", "output": output}
            self._emit("tool-output-available", toolCallId=place, output=output)
        else:
            call |= {"state": "output-error", "errorText": error or "The call failed."}
            self._emit("tool-output-error", toolCallId=place, errorText=call["errorText"])

    def _files(self, files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if self._file_url is None:
            return []
        shown = [each for each in files if not (each.get("removed") or each.get("hidden"))]
        about = ((self._file_url(str(each["name"])), each["media_type"], str(each["name"])) for each in shown)
        return [{"type": "file", "url": url, "mediaType": kind, "filename": name} for url, kind, name in about]

    def _text(self, kind: str) -> str:
        return "".join(each["text"] for each in self._written if each["type"] == kind)

    def _write(self, kind: str, text: str) -> None:
        self._begin()
        last = self._written[-1] if self._written else None
        if last is None or last["type"] != kind:
            self._parts += 1
            last = {"type": kind, "id": f"{self.run_id}:p{self._parts}", "text": "", "state": "streaming"}
            self._written.append(last)
            self.messages[-1]["parts"].append(last)
            self._emit(f"{kind}-start", id=last["id"])
        last["text"] += text
        self._emit(f"{kind}-delta", id=last["id"], delta=text)

    def _withdraw(self, *kinds: str) -> None:
        """Take back what was written of the current turn."""
        for part in [each for each in self._written if not kinds or each["type"] in kinds]:
            self._written.remove(part)
            self.messages[-1]["parts"].remove(part)
            self._emit(f"{part['type']}-end", id=part["id"], providerMetadata=WITHDRAWN)

    def _settle(self, text: str | None) -> None:
        """End the parts of the turn, whose text is this one. Without a text, they stay as they are."""
        if text is not None:
            self._correct(text.strip())
        for part in self._written:
            part["state"] = "done"
            self._emit(f"{part['type']}-end", id=part["id"])
        self._written = []

    def _correct(self, text: str) -> None:
        """Write what is missing of the text of the turn, or all of it if something else was written."""
        rest = rest_of(text, self._text("text").strip())
        if rest is None:
            self._withdraw("text")
        if missing := text if rest is None else rest:
            self._write("text", missing)

    # ------------------------------------------------------------------------------------------ messages

    def _emit(self, kind: str, **fields: Any) -> None:
        self._chunks.append({"type": kind, **fields})

    def _add(self, kind: str, **fields: Any) -> None:
        """Send a part that is whole."""
        self._begin()
        self.messages[-1]["parts"].append({"type": kind, **fields})
        self._emit(kind, **fields)

    def _user(self, text: str, files: Iterable[dict[str, Any]]) -> None:
        parts = [{"type": "text", "text": text}, *files]
        self.messages.append({"id": f"{self.run_id}.{self._answers}.user", "role": "user", "parts": parts})

    def _begin(self) -> None:
        """Begin the agent's message, unless it has begun."""
        if not self.messages or self.messages[-1]["role"] == "user":
            name = f"{self.run_id}.{self._answers}" if self._answers else self.run_id
            about = {"runId": self.run_id}
            self.messages.append({"id": name, "role": "assistant", "metadata": about, "parts": []})
            self._emit("start", messageId=name, messageMetadata=about)

    def _start_step(self) -> None:
        self._begin()
        self._end_step()
        self._in_step = True
        self.messages[-1]["parts"].append({"type": "step-start"})
        self._emit("start-step")

    def _end_step(self) -> None:
        if self._in_step:
            self._in_step = False
            self._emit("finish-step")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def page_messages(
    run_id: str, events: Iterable[Event], file_url: Callable[[str], str] | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Return the messages of a recorded run up to where it is, and the number of the event that began the last one."""
    stream, begun, latest = PageStream(run_id, file_url), 0, 0
    for number, event in enumerate(events):
        stream.feed(event)
        if len(stream.messages) > begun:
            begun, latest = len(stream.messages), number
    stream.finish()
    return stream.messages, latest
