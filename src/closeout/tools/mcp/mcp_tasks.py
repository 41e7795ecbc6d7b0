"""The tasks extension of MCP: a server answers a call with a task, whose result is asked for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from mcp.client.extension import ClientExtension, ResultClaim
from mcp.types import EmptyResult, InputRequest, InputResponses, Request, RequestParams, Result
from pydantic import SerializeAsAny

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

__all__ = ["TaskHandle", "TaskRequests", "TaskState", "TasksExtension"]


class TaskHandle(Result):
    """A server's answer to a call: it works on it as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    poll_interval_ms: int | None = None


class TaskState(Result):
    """The answer to `tasks/get`."""

    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, InputRequest] | None = None


class _TaskParams(RequestParams):
    task_id: str


class _UpdateParams(_TaskParams):
    input_responses: InputResponses


class _TaskRequest(Request[SerializeAsAny[_TaskParams], str]):
    name_param = "taskId"


class TaskRequests:
    """The requests about one task.

    Args:
        session: The session with its server.
        task: The task's id.
    """

    def __init__(self, session: ClientSession, task: str) -> None:
        self._session = session
        self._task = task

    async def state(self) -> TaskState:
        """Return what has become of the task."""
        request = _TaskRequest(method="tasks/get", params=_TaskParams(task_id=self._task))
        return await self._session.send_request(request, TaskState)

    async def update(self, responses: Mapping[str, Any]) -> None:
        """Send what the task waits for."""
        params = _UpdateParams(task_id=self._task, input_responses=dict(responses))
        await self._session.send_request(_TaskRequest(method="tasks/update", params=params), EmptyResult)

    async def cancel(self) -> None:
        """Tell the server that nobody waits for the task."""
        request = _TaskRequest(method="tasks/cancel", params=_TaskParams(task_id=self._task))
        await self._session.send_request(request, EmptyResult)


class TasksExtension(ClientExtension):
    """Says that this client takes tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=TaskHandle, resolve=_unclaimed),)


async def _unclaimed(result: TaskHandle, context: Any) -> NoReturn:
    raise RuntimeError("A task is followed by the call that it answers.")
