"""Answer calls with tasks, the extension of MCP whose server side the `mcp` library does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from closeout.tools.mcp.mcp_offers import current_request, in_request, refuse

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

__all__ = ["TASKS", "ServedTask", "TaskBegun", "TaskShelf", "add_tasks", "require_tasks", "takes_tasks"]

TASKS = "io.modelcontextprotocol/tasks"
POLL_MS = 1_000  # milliseconds between two questions about a task


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTask:
    """A task as a client is shown it.

    Attributes:
        id: Its id.
        status: What has become of it. A task whose tool failed is completed; "failed" is an error of the server.
        begun: When it began, in seconds since the epoch.
        changed: When its status last changed.
        note: What it is at.
        result: The result of the call, if it is completed.
        error: The error, if it failed.
        requests: What it needs to know, as the library's requests by name.
        kept_ms: How long it is kept, in milliseconds; None if it is not deleted.
    """

    id: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    begun: float
    changed: float
    note: str = ""
    result: Any = None
    error: Mapping[str, Any] | None = None
    requests: Mapping[str, Any] = field(default_factory=dict)
    kept_ms: int | None = None

    def shown(self, *, is_new: bool = False) -> dict[str, Any]:
        """Return the task as the protocol writes it; a new one as the answer to its call."""
        shown: dict[str, Any] = {
            "resultType": "task" if is_new else "complete",
            "taskId": self.id,
            "status": self.status,
            "createdAt": _instant(self.begun),
            "lastUpdatedAt": _instant(self.changed),
            "ttlMs": self.kept_ms,
            "pollIntervalMs": POLL_MS,
        }
        if self.note:
            shown["statusMessage"] = self.note
        if self.status == "completed":
            shown["result"] = {"resultType": "complete", **_plain(self.result)}
        if self.status == "failed":
            shown["error"] = dict(self.error or {})
        if self.status == "input_required":
            shown["inputRequests"] = {name: _plain(each) for name, each in self.requests.items()}
        return shown


class TaskBegun(Exception):
    """A call has become a task."""

    def __init__(self, task: ServedTask) -> None:
        super().__init__("task begun")
        self.task = task


class TaskShelf(Protocol):
    """The tasks of a server. `current_request` says which client asks."""

    async def find(self, task: str) -> ServedTask | None:
        """Return a task, None if the client has no such task."""
        ...

    async def answer(self, task: str, responses: Mapping[str, Any]) -> None:
        """Give a task what it asked for, by name: one or several of its requests."""
        ...

    async def cancel(self, task: str) -> None:
        """Cancel a task that has not ended."""
        ...


def takes_tasks() -> bool:
    """Return whether the client of the current request takes a task as the answer to a call."""
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS

    context, _ = current_request()
    taken = getattr(context.session.client_capabilities, "extensions", None)
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (taken or {})


def require_tasks() -> None:
    """Refuse the current request if its client takes no tasks."""
    from mcp import MCPError
    from mcp.types import MISSING_REQUIRED_CLIENT_CAPABILITY

    if not takes_tasks():
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"This needs the extension {TASKS}.", needed)


def add_tasks(server: Server[Any], shelf: TaskShelf) -> None:
    """Let clients ask for tasks, answer and cancel them."""
    from mcp import types
    from pydantic import TypeAdapter, ValidationError

    class TaskParams(types.RequestParams):
        task_id: str

    class AnswerParams(TaskParams):
        input_responses: dict[str, Any]  # answers without a question may be anything

    response_of = TypeAdapter(types.InputResponse).validate_python

    async def found(parameters: TaskParams) -> ServedTask:
        require_tasks()
        _check_header(parameters.task_id)
        task = await shelf.find(parameters.task_id)
        if task is None:
            refuse(f"Unknown task: {parameters.task_id[:100]}.")
        return task

    async def get(parameters: TaskParams) -> dict[str, Any]:
        return (await found(parameters)).shown()

    async def update(parameters: AnswerParams) -> dict[str, Any]:
        task = await found(parameters)
        if task.status == "input_required":
            sent = {name: each for name, each in parameters.input_responses.items() if name in task.requests}
            try:
                wanted = {name: response_of(each, by_name=False) for name, each in sent.items()}
            except ValidationError:
                refuse(f"The answers to {', '.join(sent)} do not fit what was asked.")
            if wanted:
                await shelf.answer(task.id, wanted)
        return {"resultType": "complete"}

    async def cancel(parameters: TaskParams) -> dict[str, Any]:
        task = await found(parameters)
        if task.status in ("working", "input_required"):
            await shelf.cancel(task.id)
        return {"resultType": "complete"}

    server.extensions[TASKS] = {}
    server.add_request_handler("tasks/get", TaskParams, in_request(get))
    server.add_request_handler("tasks/update", AnswerParams, in_request(update))
    server.add_request_handler("tasks/cancel", TaskParams, in_request(cancel))


def _check_header(task: str) -> None:
    """Refuse a request over HTTP whose header names another task: the library checks its own methods only."""
    from mcp import MCPError
    from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
    from mcp.types import HEADER_MISMATCH

    context, _ = current_request()
    headers = getattr(context.request, "headers", None)
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != task:
        raise MCPError(HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId'")


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> dict[str, Any]:
    """Return one of the library's values as the protocol writes it."""
    if isinstance(value, Mapping):
        return dict(value)
    shown: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return shown
