"""Stream runs to a client: events as small dicts in a queue, ready for server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from closeout.compat import HOOKS
from closeout.journal.events import (
    REFUSED_CALL,
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Event,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    Noted,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.recorded import CANCELLED, REPLY_INTERRUPTED
from closeout.journal.story import AgentStory, CallStory, Change, Story, TurnStory
from closeout.journal.subscribers import Progress, RunInfo
from closeout.overrides import is_overridden, returned

__all__ = ["StreamHandler"]

_Put = Callable[[dict[str, Any]], Any]

logger = logging.getLogger("closeout")

LAST_SECONDS = 10.0  # Seconds that the overridden methods may take after the end of a run.

# The event of a run that an overridden method is called with, which the method itself sends.
_event: ContextVar[tuple[str, Mapping[str, Any]] | None] = ContextVar("closeout_stream_event", default=None)


class StreamHandler:
    """Sends the events of runs as `{"event": …, "data": {…}}`.

    `stream_queue` is anything with `put_nowait` (an `asyncio.Queue`), a function that takes the dict, or None to send
    nothing. A full queue or a failing function never disturbs the run: `dropped` counts the events that were lost.

    Events: start_of_workflow, end_of_workflow, start_of_agent, end_of_agent, start_of_llm, end_of_llm, message (a
    delta), tool_call (also as it is written, and with its result), tool_progress, show_error, discard (ignore a
    message). Call the methods yourself, or pass the handler as a listener (`agent.run(…, listeners=[handler])`): it
    then sends whole runs, several at once too, each with a workflow_id that all its events carry.

    A run calls every method that a subclass overrides, in the order of its events, instead of sending them: an override
    sends what it passes to `super()`. An override of `update` receives all events that have no overridden method. One
    that raises does not disturb the run, and its event is sent as it is.
    """

    dropped = 0
    _put: _Put | None = None  # also of a subclass whose __init__ does not call this one

    def __init__(self, stream_queue: Any = None) -> None:
        self._put = getattr(stream_queue, "put_nowait", stream_queue)

    def send(self, event_type: str, data: Mapping[str, Any]) -> None:
        """Put one event into the stream; never waits and never raises."""
        if self._put is None:
            return
        try:
            self._put({"event": event_type, "data": dict(data)})
        except Exception:  # a failing queue must not end the run
            self.dropped += 1

    def _send_own(self, event_type: str, data: Mapping[str, Any]) -> None:
        """Send a method's event. In a run, add the other data of the run's event."""
        about = _event.get()
        self.send(event_type, {**about[1], **data} if about is not None and about[0] == event_type else data)

    @staticmethod
    def sse(event: Mapping[str, Any]) -> str:
        """Return one event in the format of text/event-stream."""
        return f"event: {event['event']}\ndata: {json.dumps(event['data'], ensure_ascii=True, default=str)}\n\n"

    # ------------------------------------------------------------------------------------ methods for callers

    async def update(self, event_type: str, data: Mapping[str, Any]) -> None:
        self.send(event_type, data)

    async def start_workflow(self, user_input: str) -> str:
        """Returns the workflow's id."""
        about = _event.get()
        workflow_id = str(uuid.uuid4() if about is None else about[1]["workflow_id"])
        content = [{"role": "user", "content": user_input}]
        self._send_own("start_of_workflow", {"workflow_id": workflow_id, "input": content})
        return workflow_id

    async def end_workflow(self, workflow_id: str) -> None:
        self._send_own("end_of_workflow", {"workflow_id": workflow_id})

    async def start_agent(self, agent_name: str, display_name: str | None = None) -> str:
        """Returns the agent's id."""
        about = _event.get()
        agent_id = str(uuid.uuid4() if about is None else about[1].get("agent_id"))
        data = {"agent_name": agent_name, "display_name": display_name or agent_name, "agent_id": agent_id}
        self._send_own("start_of_agent", data)
        return agent_id

    async def end_agent(self, agent_name: str, agent_id: str) -> None:
        self._send_own("end_of_agent", {"agent_name": agent_name, "agent_id": agent_id})

    async def start_llm(self, agent_name: str, display_name: str | None = None) -> None:
        self._send_own("start_of_llm", {"agent_name": agent_name, "display_name": display_name or agent_name})

    async def end_llm(self, agent_name: str) -> None:
        self._send_own("end_of_llm", {"agent_name": agent_name})

    async def message(self, message_id: str, delta_content: str) -> None:
        self._send_own("message", {"message_id": message_id, "delta": {"content": delta_content}})

    async def tool_call(
        self, tool_name: str, payload: Mapping[str, Any], streaming: bool = False, tool_call_id: str | None = None
    ) -> str:
        """A call, whole, or field by field with `streaming`. Returns the call's id."""
        call_id = tool_call_id or str(uuid.uuid4())
        if streaming:
            for key, value in payload.items():
                self._send_own("tool_call", _call(call_id, tool_name, delta_input={key: value}))
        else:
            self._send_own("tool_call", _call(call_id, tool_name, tool_input=dict(payload)))
        return call_id

    async def show_error(self, error: str) -> None:
        """An error for people to see. The stream continues."""
        self._send_own("show_error", {"error": error})

    def for_run(self, run: RunInfo) -> _StreamedRun:
        """The callback that sends the events of one run."""
        return _StreamedRun(self, run)


def _tool_call_arguments(data: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the arguments of `tool_call` for a call that begins or has ended; None for a piece of a call."""
    if "ok" in data:
        payload = {"result" if data["ok"] else "error": data["result"]}
    elif "tool_input" in data:
        payload = json.loads(data["tool_input"])
    else:
        return None
    payload = payload if isinstance(payload, dict) else {"arguments": payload}
    return data["tool_name"], payload, False, data["tool_call_id"]


# The method of each event, and its arguments.
_METHODS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...] | None]]] = {
    "start_of_workflow": ("start_workflow", lambda data: (data["input"][0]["content"],)),
    "end_of_workflow": ("end_workflow", lambda data: (data["workflow_id"],)),
    "start_of_agent": ("start_agent", lambda data: (data["agent_name"], data["display_name"])),
    "end_of_agent": ("end_agent", lambda data: (data["agent_name"], data["agent_id"])),
    "start_of_llm": ("start_llm", lambda data: (data["agent_name"],)),
    "end_of_llm": ("end_llm", lambda data: (data["agent_name"],)),
    "message": ("message", lambda data: (data["message_id"], data["delta"]["content"])),
    "tool_call": ("tool_call", _tool_call_arguments),
    "show_error": ("show_error", lambda data: (data["error"],)),
}


class _Overrides:
    """Calls the overridden methods of a handler, one after the other, beside the run.

    Args:
        handler: The handler.
        names: The names of its overridden methods.
    """

    def __init__(self, handler: StreamHandler, names: frozenset[str]) -> None:
        self._handler = handler
        self._names = names
        self._waiting: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._ids: dict[str, str] = {}  # ids of workflows and agents that the methods replaced
        self._task: asyncio.Task[None] | None = None

    def add(self, event_type: str, data: Mapping[str, Any]) -> None:
        """Pass an event to its method, after all earlier ones."""
        self._waiting.append((event_type, data))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def finish(self) -> None:
        """Wait for the methods, but not long."""
        if self._task is None or (await asyncio.wait([self._task], timeout=LAST_SECONDS))[0]:
            return
        self._task.cancel()
        logger.warning("%.120r did not receive all events: its methods take too long.", self._handler)

    async def _work(self) -> None:
        while self._waiting:
            event_type, data = self._waiting.popleft()
            data = {key: self._ids.get(data[key], data[key]) if key.endswith("_id") else data[key] for key in data}
            token = _event.set((event_type, data))
            try:
                await self._call(event_type, data)
            except Exception:  # a failing method must not end the run
                logger.warning("%.120r raised an exception at %s.", self._handler, event_type, exc_info=True)
                self._handler.send(event_type, data)
            finally:
                _event.reset(token)

    async def _call(self, event_type: str, data: Mapping[str, Any]) -> None:
        handler = self._handler
        name, arguments_of = _METHODS.get(event_type, ("", lambda _: None))
        arguments = arguments_of(data) if name in self._names else None
        if arguments is not None:
            made = await returned(getattr(handler, name)(*arguments))
            id_of = {"start_workflow": "workflow_id", "start_agent": "agent_id"}.get(name)
            if id_of is not None and isinstance(made, str):
                self._ids[data[id_of]] = made
        elif "update" in self._names:
            await returned(handler.update(event_type, data))
        else:
            handler.send(event_type, data)


class _StreamedRun:
    """Sends the events of one run to its handler."""

    def __init__(self, handler: StreamHandler, run: RunInfo) -> None:
        self._handler = handler
        self._run = run
        self._workflow = str(uuid.uuid4())
        self._story = Story()
        self._agents: dict[str, str] = {}  # the ids of those that have started and not ended
        self._written: dict[str, list[int]] = {}  # keyed by agent: the indexes of its reply's calls, in order
        own = frozenset(name for name in HOOKS["StreamHandler"] if is_overridden(handler, StreamHandler, name))
        self._overrides = _Overrides(handler, own) if own else None
        self._send = handler.send if self._overrides is None else self._overrides.add

    def send(self, event_type: str, data: Mapping[str, Any]) -> None:
        self._send(event_type, {"workflow_id": self._workflow, **data})

    def close(self) -> Awaitable[None] | None:
        """Return an awaitable that waits for the overridden methods, None without any."""
        return None if self._overrides is None else self._overrides.finish()

    def __call__(self, event: Event | Progress) -> None:
        if isinstance(event, Progress):
            self._send_progress(event)
            return
        change = self._story.feed(event)
        if isinstance(event, (ModelRequested, ModelReplied, ModelFailed)):
            self._send_model(event)
        elif isinstance(event, ModelRetried):
            self.send("show_error", {"error": event.reason})
        elif change.call is not None:
            self._send_call(event, change.call)
        else:
            self._send_agents(event, change)

    def _send_progress(self, piece: Progress) -> None:
        agent = self._story.agents.get(piece.agent) or AgentStory(piece.agent)
        if piece.kind == "tool_progress":
            call = agent.running.get(piece.handle)
            call_id = f"{piece.agent}:{piece.handle}" if call is None else _call_id(agent.path, call.turn, call.index)
            about = {"done": piece.done, "total": piece.total, "message": piece.text}
            self.send("tool_progress", {"tool_call_id": call_id, "handle": piece.handle, **about})
            return
        message_id = _message_id(agent, piece.turn)
        if piece.kind in ("thought", "text", "answer", "reasoning"):
            data = {"message_id": message_id, "delta": {"content": piece.text}, "kind": piece.kind}
            self.send("message", data)
        elif piece.kind == "discard":
            self._written.pop(piece.agent, None)
            self.send("discard", {"message_id": message_id})
        else:
            written = self._written.setdefault(piece.agent, [])
            if piece.index not in written:
                written.append(piece.index)  # servers count text blocks in, or begin anywhere
            call_id = _call_id(agent.path, agent.turn, written.index(piece.index))
            if piece.kind == "tool_name":
                self.send("tool_call", _call(call_id, piece.text, message_id=message_id))
            else:
                self.send("tool_call", _call(call_id, "", message_id=message_id, delta_input=piece.text))

    def _send_model(self, event: ModelRequested | ModelReplied | ModelFailed) -> None:
        if isinstance(event, ModelRequested):
            self._written.pop(event.agent, None)
            self.send("start_of_llm", {"agent_name": event.agent, "purpose": event.purpose})
            return
        self.send("end_of_llm", {"agent_name": event.agent, "usage": dict(event.usage)})
        if isinstance(event, ModelFailed) and event.kind not in (CANCELLED, REPLY_INTERRUPTED):
            self.send("show_error", {"error": event.error})

    def _send_call(self, event: Event, call: CallStory) -> None:
        call_id = _call_id(event.agent, call.turn, call.index)
        if isinstance(event, ToolStarted):
            self.send("tool_call", _call(call_id, event.name, handle=event.handle, tool_input=event.arguments))
        elif isinstance(event, ToolFinished):
            ended = {"ok": event.ok, "result": event.result if event.ok else event.note, "ms": event.ms}
            if event.labels:
                ended["labels"] = list(event.labels)
            self.send("tool_call", _call(call_id, event.name, handle=event.handle, **ended))

    def _send_not_run(self, agent: AgentStory) -> None:
        """Send the end of calls that were answered without running: refused, or a repetition."""
        for call in () if agent.turn is None else agent.turn.calls:
            if call.started is None and call.shown is not None:
                ok = call.shown["ok"]
                about = {"handle": call.handle, "ok": ok, "result": "" if ok else call.shown["text"], "run": False}
                self.send("tool_call", _call(_call_id(agent.path, call.turn, call.index), call.name, **about))

    def _send_agents(self, event: Event, change: Change) -> None:
        match event:
            case RunStarted() | RunResumed():
                started = self._run.started
                content = [{"role": "user", "content": started.task if started is not None else ""}]
                resumed = {"resumed": True} if isinstance(event, RunResumed) else {}
                self.send("start_of_workflow", {"run_id": self._run.run_id, "input": content, **resumed})
            case AgentStarted() | AttemptStarted():
                if event.agent not in self._agents:
                    name = event.name if isinstance(event, AgentStarted) else event.agent
                    self._agents[event.agent] = agent_id = str(uuid.uuid4())
                    self.send("start_of_agent", {"agent_name": event.agent, "display_name": name, "agent_id": agent_id})
            case AgentEnded():
                self._end_agent(event.agent)
            case TurnAccepted():
                self._send_not_run(change.agent)
            case MessageReceived():
                self.send("user_message", {"agent_name": event.agent, "content": event.text, "by": event.by})
            case TurnRolledBack():
                message_id = _message_id(change.agent, event.turn)
                self.send("discard", {"message_id": message_id, "reason": event.reason})
            case Noted(level="error" | "warning") if event.name != REFUSED_CALL:
                self.send("show_error", {"error": event.message})
            case RunEnded():
                for agent in [*self._agents]:  # those below, too, where the run was broken off
                    self._end_agent(agent)
                self.send("end_of_workflow", {"status": event.status, "answer": event.answer})

    def _end_agent(self, agent: str) -> None:
        agent_id = self._agents.pop(agent, None)
        if agent_id is not None:
            self.send("end_of_agent", {"agent_name": agent, "agent_id": agent_id})


def _message_id(agent: AgentStory, turn: int) -> str:
    return f"{agent.path}:{agent.attempt}:{turn}"  # turns are counted from 0 in each attempt


def _call_id(agent: str, turn: TurnStory | None, index: int) -> str:
    """Return the id of a call, while it is written and while it runs: its request and its place in the reply."""
    return f"{agent}:{0 if turn is None else turn.request_number}.{index}"


def _call(call_id: str, name: str, **content: Any) -> dict[str, Any]:
    return {"tool_call_id": call_id, "tool_name": name, **content}
