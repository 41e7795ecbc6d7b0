"""A small Temporal server for tests: what workers and clients of the SDK need, in memory, with Temporal's rules.

It starts workflows, with a signal too, hands out workflow and activity tasks, retries activities whose worker fails or
sends no heartbeats, and fires timers. It is not Temporal: set TEMPORAL_ADDRESS to test against a real server.

    python temporal_server.py    # prints its address
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import CommandType, EventType, HistoryEventFilterType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import request_response_pb2 as messages
from temporalio.api.workflowservice.v1 import service_pb2_grpc as service

POLL_SECONDS = 20.0  # a poll without a task is answered empty
TASK_SECONDS = 10.0  # until a workflow task that nobody completes is handed out again
CONTINUE_EVENTS = 1000  # the length of a history from which the server suggests to continue as new


@dataclass(eq=False)
class Activity:
    scheduled: int  # the number of the event
    wanted: Any  # the attributes of the command
    attempt: int = 1
    begun: float = 0.0
    beat: float | None = None  # None: no worker has it
    failure: Any = None


@dataclass(eq=False)
class Execution:
    """One run of a workflow."""

    start: Any
    run_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    events: list[Any] = field(default_factory=list)
    buffered: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # they came during a workflow task
    activities: dict[int, Activity] = field(default_factory=dict)
    timers: dict[str, tuple[float, int]] = field(default_factory=dict)
    task: tuple[int, int, float] | None = None  # the events of a started workflow task, and when it ends
    is_queued: bool = False
    last_started: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, kind: str, **attributes: Any) -> int:
        event = HistoryEvent(
            event_id=len(self.events) + 1, event_type=EventType.Value(f"EVENT_TYPE_{kind.upper()}"), task_id=1
        )
        event.event_time.GetCurrentTime()
        target = getattr(event, f"{kind}_event_attributes")
        target.SetInParent()
        for name, value in attributes.items():
            if value is None:
                continue
            if isinstance(value, (int, str)):
                setattr(target, name, value)
            else:
                getattr(target, name).CopyFrom(value)
        self.events.append(event)
        return int(event.event_id)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


class TemporalServer(service.WorkflowServiceServicer):
    """Everything in one namespace."""

    def __init__(self) -> None:
        self.executions: dict[str, Execution] = {}  # by run id
        self.current: dict[str, Execution] = {}  # by workflow id
        self.workflow_tasks: dict[str, deque[Execution]] = defaultdict(deque)
        self.activity_tasks: dict[str, deque[tuple[float, Execution, Activity]]] = defaultdict(deque)
        self.tokens = itertools.count(1)
        self.started: dict[bytes, tuple[Execution, Activity, int]] = {}
        self.news = asyncio.Condition()

    # ---------------------------------------------------------------------------------------- what clients ask

    async def GetSystemInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = messages.GetSystemInfoResponse(server_version="1.29.0")
        found.capabilities.signal_and_query_header = True
        found.capabilities.internal_error_differentiation = True
        found.capabilities.activity_failure_include_heartbeat = True
        found.capabilities.encoded_failure_attributes = True
        found.capabilities.sdk_metadata = True
        return found

    async def DescribeNamespace(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = messages.DescribeNamespaceResponse()
        found.namespace_info.name = request.namespace
        return found

    async def StartWorkflowExecution(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.StartWorkflowExecutionResponse(run_id=self._start(request).run_id, started=True)

    async def SignalWithStartWorkflowExecution(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution = self.current.get(request.workflow_id)
        if execution is None or execution.closed.is_set():
            execution = self._start(request)
        self._signal(execution, request)
        return messages.SignalWithStartWorkflowExecutionResponse(run_id=execution.run_id, started=True)

    async def SignalWorkflowExecution(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution = self.current.get(request.workflow_execution.workflow_id)
        if execution is None or execution.closed.is_set():
            await context.abort(grpc.StatusCode.NOT_FOUND, "workflow execution already completed")
        self._signal(execution, request)
        return messages.SignalWorkflowExecutionResponse()

    async def GetWorkflowExecutionHistory(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution = self.executions.get(request.execution.run_id) or self.current.get(request.execution.workflow_id)
        if execution is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such workflow")
            raise AssertionError
        found = messages.GetWorkflowExecutionHistoryResponse()
        if request.wait_new_event:
            try:
                await asyncio.wait_for(execution.closed.wait(), POLL_SECONDS)
            except TimeoutError:
                found.next_page_token = b"more"
                return found
        only_close = request.history_event_filter_type == HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
        found.history.events.extend(execution.events[-1:] if only_close else execution.events)
        return found

    # ---------------------------------------------------------------------------------------- what workers ask

    async def PollWorkflowTaskQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution = await self._polled(self.workflow_tasks[request.task_queue.name], lambda each: each)
        if execution is None:
            return messages.PollWorkflowTaskQueueResponse()
        execution.is_queued = False
        scheduled = execution.add("workflow_task_scheduled", task_queue=execution.start.task_queue, attempt=1)
        started = execution.add("workflow_task_started", scheduled_event_id=scheduled, identity=request.identity)
        attributes = execution.events[-1].workflow_task_started_event_attributes
        attributes.suggest_continue_as_new = len(execution.events) > CONTINUE_EVENTS
        execution.task = scheduled, started, time.monotonic() + TASK_SECONDS
        found = messages.PollWorkflowTaskQueueResponse(
            task_token=f"{execution.run_id} {started}".encode(),
            previous_started_event_id=execution.last_started,
            started_event_id=started,
            attempt=1,
        )
        found.workflow_execution.workflow_id = execution.start.workflow_id
        found.workflow_execution.run_id = execution.run_id
        found.workflow_type.CopyFrom(execution.start.workflow_type)
        found.workflow_execution_task_queue.CopyFrom(execution.start.task_queue)
        found.scheduled_time.GetCurrentTime()
        found.started_time.GetCurrentTime()
        found.history.events.extend(execution.events)
        return found

    async def RespondWorkflowTaskCompleted(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution, scheduled, started = await self._task_of(request, context)
        execution.task, execution.last_started = None, started
        closes = any(each.command_type in _CLOSING for each in request.commands)
        if closes and execution.buffered:  # a signal came meanwhile: the workflow has to see it first
            cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
            execution.add("workflow_task_failed", scheduled_event_id=scheduled, started_event_id=started, cause=cause)
            self._flush(execution)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "UnhandledCommand")
        done = execution.add("workflow_task_completed", scheduled_event_id=scheduled, started_event_id=started)
        for command in request.commands:
            self._obey(execution, command, done)
        self._flush(execution)
        return messages.RespondWorkflowTaskCompletedResponse()

    async def RespondWorkflowTaskFailed(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution, scheduled, started = await self._task_of(request, context)
        print("workflow task failed:", request.failure.message, flush=True)
        execution.task = None
        execution.add(
            "workflow_task_failed", scheduled_event_id=scheduled, started_event_id=started, failure=request.failure
        )
        asyncio.get_running_loop().call_later(1, self._queue, execution)
        self._flush(execution)
        return messages.RespondWorkflowTaskFailedResponse()

    async def PollActivityTaskQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        now = time.monotonic
        found = await self._polled(
            self.activity_tasks[request.task_queue.name], lambda each: each if each[0] <= now() else None
        )
        if found is None:
            return messages.PollActivityTaskQueueResponse()
        _, execution, activity = found
        wanted, token = activity.wanted, str(next(self.tokens)).encode()
        activity.beat = activity.begun = now()
        self.started[token] = execution, activity, activity.attempt
        task = messages.PollActivityTaskQueueResponse(
            task_token=token,
            workflow_namespace=request.namespace,
            activity_id=wanted.activity_id,
            attempt=activity.attempt,
            workflow_type=execution.start.workflow_type,
            activity_type=wanted.activity_type,
            input=wanted.input,
            header=wanted.header,
            heartbeat_timeout=wanted.heartbeat_timeout,
            start_to_close_timeout=wanted.start_to_close_timeout,
            schedule_to_close_timeout=wanted.schedule_to_close_timeout,
            retry_policy=wanted.retry_policy,
        )
        task.workflow_execution.workflow_id = execution.start.workflow_id
        task.workflow_execution.run_id = execution.run_id
        for each in (task.scheduled_time, task.current_attempt_scheduled_time, task.started_time):
            each.GetCurrentTime()
        return task

    async def RecordActivityTaskHeartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802
        _, activity = await self._activity_of(request, context)
        activity.beat = time.monotonic()
        return messages.RecordActivityTaskHeartbeatResponse()

    async def RespondActivityTaskCompleted(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution, activity = await self._activity_of(request, context)
        self._end(execution, activity, "activity_task_completed", result=request.result)
        return messages.RespondActivityTaskCompletedResponse()

    async def RespondActivityTaskFailed(self, request: Any, context: Any) -> Any:  # noqa: N802
        execution, activity = await self._activity_of(request, context)
        info = request.failure.application_failure_info
        if info.non_retryable or info.type in activity.wanted.retry_policy.non_retryable_error_types:
            self._end(execution, activity, "activity_task_failed", failure=request.failure)
        else:
            self._retry(execution, activity)
        return messages.RespondActivityTaskFailedResponse()

    async def RespondActivityTaskCanceled(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._retry(*await self._activity_of(request, context))  # nobody asked for it: its worker stops
        return messages.RespondActivityTaskCanceledResponse()

    async def ShutdownWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.ShutdownWorkerResponse()

    # ---------------------------------------------------------------------------------------- rules

    async def tick(self) -> None:
        """Fire timers, and take tasks back from workers that are gone."""
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            for execution in list(self.executions.values()):
                if execution.task is not None and execution.task[2] < now:
                    scheduled, started, _ = execution.task
                    execution.task = None
                    execution.add("workflow_task_timed_out", scheduled_event_id=scheduled, started_event_id=started)
                    self._flush(execution)
                    self._queue(execution)
                for timer, (at, started) in list(execution.timers.items()):
                    if at <= now:
                        del execution.timers[timer]
                        self._happens(execution, "timer_fired", timer_id=timer, started_event_id=started)
                for activity in list(execution.activities.values()):
                    timeout = _seconds(activity.wanted.heartbeat_timeout)
                    if activity.beat is not None and timeout and activity.beat + timeout < now:
                        self._retry(execution, activity)
            await self._tell()

    def _start(self, request: Any) -> Execution:
        execution = Execution(request)
        self.executions[execution.run_id] = self.current[request.workflow_id] = execution
        execution.add(
            "workflow_execution_started",
            workflow_type=request.workflow_type,
            task_queue=request.task_queue,
            input=request.input,
            original_execution_run_id=execution.run_id,
            first_execution_run_id=execution.run_id,
            workflow_id=request.workflow_id,
            workflow_task_timeout=Duration(seconds=10),
            attempt=1,
        )
        self._queue(execution)
        return execution

    def _signal(self, execution: Execution, request: Any) -> None:
        values = {"input": request.signal_input if hasattr(request, "signal_input") else request.input}
        self._happens(execution, "workflow_execution_signaled", signal_name=request.signal_name, **values)

    def _happens(self, execution: Execution, kind: str, **attributes: Any) -> None:
        """Add an event, and let the workflow see it: after its current task, if it has one."""
        execution.buffered.append((kind, attributes))
        if execution.task is None:
            self._flush(execution)

    def _flush(self, execution: Execution) -> None:
        events, execution.buffered = execution.buffered, []
        if events and not execution.closed.is_set():
            for kind, attributes in events:
                if "activity" in kind:  # its start is recorded with its end
                    attributes["started_event_id"] = execution.add(
                        "activity_task_started",
                        scheduled_event_id=attributes["scheduled_event_id"],
                        attempt=attributes.pop("attempt"),
                    )
                execution.add(kind, **attributes)
            self._queue(execution)

    def _queue(self, execution: Execution) -> None:
        if not execution.is_queued and not execution.closed.is_set():
            execution.is_queued = True
            self.workflow_tasks[execution.start.task_queue.name].append(execution)

    def _obey(self, execution: Execution, command: Any, done: int) -> None:
        kind = CommandType.Name(command.command_type).removeprefix("COMMAND_TYPE_").lower()
        wanted = getattr(command, f"{kind}_command_attributes")
        if kind == "schedule_activity_task":
            scheduled = execution.add(
                "activity_task_scheduled",
                activity_id=wanted.activity_id,
                activity_type=wanted.activity_type,
                task_queue=wanted.task_queue,
                input=wanted.input,
                heartbeat_timeout=wanted.heartbeat_timeout,
                start_to_close_timeout=wanted.start_to_close_timeout,
                workflow_task_completed_event_id=done,
            )
            activity = execution.activities[scheduled] = Activity(scheduled, wanted)
            self.activity_tasks[wanted.task_queue.name].append((0.0, execution, activity))
        elif kind == "start_timer":
            number = execution.add(
                "timer_started",
                timer_id=wanted.timer_id,
                start_to_fire_timeout=wanted.start_to_fire_timeout,
                workflow_task_completed_event_id=done,
            )
            execution.timers[wanted.timer_id] = time.monotonic() + _seconds(wanted.start_to_fire_timeout), number
        elif kind == "cancel_timer":
            fired = [
                each
                for each in execution.buffered
                if each[0] == "timer_fired" and each[1]["timer_id"] == wanted.timer_id
            ]
            if fired:  # during this task: the workflow has cancelled it, and never sees it
                execution.buffered.remove(fired[0])
                number = fired[0][1]["started_event_id"]
            else:
                _, number = execution.timers.pop(wanted.timer_id)
            execution.add(
                "timer_canceled",
                timer_id=wanted.timer_id,
                started_event_id=number,
                workflow_task_completed_event_id=done,
            )
        elif kind == "complete_workflow_execution":
            execution.add("workflow_execution_completed", result=wanted.result, workflow_task_completed_event_id=done)
            execution.closed.set()
        elif kind == "fail_workflow_execution":
            execution.add("workflow_execution_failed", failure=wanted.failure, workflow_task_completed_event_id=done)
            execution.closed.set()
        elif kind == "continue_as_new_workflow_execution":
            execution.closed.set()
            following = self._start(execution.start)
            execution.add(
                "workflow_execution_continued_as_new",
                new_execution_run_id=following.run_id,
                workflow_task_completed_event_id=done,
            )
        else:
            raise NotImplementedError(kind)

    def _end(self, execution: Execution, activity: Activity, kind: str, **attributes: Any) -> None:
        execution.activities.pop(activity.scheduled, None)
        self._happens(execution, kind, scheduled_event_id=activity.scheduled, attempt=activity.attempt, **attributes)

    def _retry(self, execution: Execution, activity: Activity) -> None:
        policy = activity.wanted.retry_policy
        wait = _seconds(policy.initial_interval) * policy.backoff_coefficient ** (activity.attempt - 1)
        activity.attempt += 1
        activity.beat = None
        at = time.monotonic() + min(wait, _seconds(policy.maximum_interval))
        self.activity_tasks[activity.wanted.task_queue.name].append((at, execution, activity))

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def _polled(self, queue: deque[Any], pick: Any) -> Any:
        give_up = time.monotonic() + POLL_SECONDS
        while time.monotonic() < give_up:
            for each in queue:
                if pick(each) is not None:
                    queue.remove(each)
                    return each
            async with self.news:
                await self.news.wait()
        return None

    async def _task_of(self, request: Any, context: Any) -> tuple[Execution, int, int]:
        run_id, started = request.task_token.decode().split()
        execution = self.executions[run_id]
        if execution.task is None or execution.task[1] != int(started):
            await context.abort(grpc.StatusCode.NOT_FOUND, "workflow task not found")
            raise AssertionError
        return execution, *execution.task[:2]

    async def _activity_of(self, request: Any, context: Any) -> tuple[Execution, Activity]:
        execution, activity, attempt = self.started[request.task_token]
        if activity.attempt != attempt or activity.scheduled not in execution.activities:
            await context.abort(grpc.StatusCode.NOT_FOUND, "activity task not found")
        return execution, activity


_CLOSING = {
    CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
    CommandType.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
    CommandType.COMMAND_TYPE_CONTINUE_AS_NEW_WORKFLOW_EXECUTION,
}


async def main() -> None:
    served = TemporalServer()
    server = grpc.aio.server()
    service.add_WorkflowServiceServicer_to_server(served, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await served.tick()


if __name__ == "__main__":
    asyncio.run(main())
