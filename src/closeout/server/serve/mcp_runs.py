"""The runs of a served agent for MCP clients: the calls of a tool, tasks, and resources that are the runs' files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from closeout.errors import DecisionRefused, JournalLocked, RunNotFound, ToolError
from closeout.file_values import File
from closeout.journal.events import Event, RunEnded, RunResumed, RunStarted, ToolStarted
from closeout.results.normal import compact_json
from closeout.run.subagents import may_destroy
from closeout.run.waits.decisions import Decision, PendingDecision, awaited, pending_decisions
from closeout.server.admission import Busy
from closeout.server.api_errors import ApiError
from closeout.server.file_download import run_files
from closeout.server.safety import client_of
from closeout.server.serve.host import ORIGIN, AgentHost, ServedRun
from closeout.server.serve.mcp_asking import can_ask, decisions_by_client, decisions_of, requests_for, undecided
from closeout.server.serve.openai_chat import answer_of
from closeout.tools.mcp.mcp_offers import ShelvedResource, current_request, refuse
from closeout.tools.mcp.mcp_result import McpResult
from closeout.tools.mcp.mcp_served_tasks import ServedTask, TaskBegun, takes_tasks
from closeout.tools.run_context import RunContext
from closeout.tools.tool import tool

if TYPE_CHECKING:
    from aiohttp import web

    from closeout.tools.tool import Tool

__all__ = ["REQUEST", "TOOL_DESCRIPTION", "FileShelf", "RunTasks", "agent_as_tool", "tool_name"]

# The description of the tool that an agent is.
TOOL_DESCRIPTION = "An agent that works on a task with tools of its own until it has an answer."
REQUEST = "closeout.request"  # the application's request in the library's scope
LISTED_RUNS = 50  # the latest runs, whose files are listed
_ADDRESS = re.compile(r"run://([^/]+)/files/(.+)")


def tool_name(name: str) -> str:
    """Return the name of the tool that an agent is."""
    return re.sub(r"\W+", "_", name).strip("_") or "agent"


def agent_as_tool(host: AgentHost, description: str = "") -> Tool[[str], Any]:
    """Return the tool that an agent is for the clients of its server: a call is a run.

    Args:
        host: Executes the runs.
        description: What the agent is for.
    """

    async def ask(task: str) -> McpResult:
        """Run the agent.

        Args:
            task: What it should find out or do, with everything that it needs to know.
        """
        run = _CalledRun(host)
        decisions = await run.begin(task)
        if takes_tasks() and not decisions:
            raise TaskBegun(await _task_of(host, await host.find(run.id)))
        try:
            ended = await run.followed()
            while ended is not None and ended.status == "waiting":
                pending = await run.pending()
                decisions = decisions or await decisions_by_client(run.context, pending, run.id)
                left = await host.decide(run.id, decisions)
                decisions = {}
                if not any(each.by_person for each in left):
                    ended = await run.followed()
        except asyncio.CancelledError:  # the client does not want the answer any more
            if not host.stopping:
                await host.cancel(run.id)
            raise
        return await _result_of(host, run.id, ended)

    made = tool(
        name=tool_name(host.name),
        description=description or TOOL_DESCRIPTION,
        timeout=None,
        destructive=may_destroy(host.agent.plan()),
    )
    return made(ask)


class _CalledRun:
    """The run of one call, or of several of a stateless client, which answers what the run asks by calling again."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host
        self.context, self._parameters = current_request()
        self.id = ""
        self._seen = 0  # events
        self._calls = count(1)

    async def begin(self, task: str) -> dict[str, Decision]:
        """Start the run, or find the one that the client answers; returns its answers."""
        host, request, state = self._host, _web_request(), self._parameters.request_state
        if not state:
            notes = {"api": "mcp", "user": client_of(request), **host.deps.notes(request)}
            self.id = await host.submit(task, notes=notes)
            return {}
        if await _run_of_client(host, state) is None:
            refuse("The request state is not that of a call of this client. Make the call without it.")
        self.id = state
        return decisions_of(self._parameters.input_responses or {}, await self._undecided(), state)

    async def followed(self) -> RunEnded | None:
        """Follow the run until it ends or waits, and report its progress."""
        ended, progress = None, RunContext.current().progress
        async for row in self._host.follow(self.id, self._seen):
            self._seen = row.seq + 1
            if isinstance(row.event, ToolStarted):
                progress(next(self._calls), message=row.event.name)
            elif isinstance(row.event, RunEnded) and row.event.agent == "main":
                ended = row.event
        return ended

    async def pending(self) -> list[PendingDecision]:
        """Return what a person has to decide. Raises ToolError if the run waits for something else."""
        pending = await self._undecided()
        by_person = [each for each in pending if each.by_person]
        if not by_person:
            what = awaited(pending[0]) if pending else "another client's decision to take effect"
            raise ToolError(f"The run waits for {what}. Its answer then: closeout runs {self.id}")
        return by_person

    async def _undecided(self) -> tuple[PendingDecision, ...]:
        return pending_decisions(await self._host.rows(self.id))


# ------------------------------------------------------------------------------------------------ tasks


class RunTasks:
    """The runs that clients have begun, as tasks: `TaskShelf`. They are in the journal, so they survive the server.

    Args:
        host: Executes the runs.
    """

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def find(self, task: str) -> ServedTask | None:
        """Return the state of a run, None if it is not one of this client."""
        run = await _run_of_client(self._host, task)
        return None if run is None else await _task_of(self._host, run)

    async def answer(self, task: str, responses: Mapping[str, Any]) -> None:
        """Decide what the run waits for."""
        pending = pending_decisions(await self._host.rows(task))
        try:
            decisions = decisions_of(responses, pending, task)
            if decisions:
                await self._host.decide(task, decisions)
        except (ToolError, DecisionRefused, JournalLocked, Busy) as error:
            refuse(str(error))

    async def cancel(self, task: str) -> None:
        """Cancel the run."""
        await self._host.cancel(task)


async def _task_of(host: AgentHost, run: ServedRun) -> ServedTask:
    """Return a run as a task."""
    is_under_way = bool(await host.state(run.run_id))  # asked before the rows are read, so that an end is not missed
    rows = await host.rows(run.run_id)
    days = host.agent.config.journal.keep_days
    about: dict[str, Any] = {
        "id": run.run_id,
        "begun": run.created_at,
        "changed": rows[-1].time,
        "kept_ms": None if days is None else int(days * 86_400_000),
    }
    ended = next(row.event for row in reversed(rows) if _is_turning_point(row.event))
    if is_under_way or not isinstance(ended, RunEnded):
        failure = "" if is_under_way else host.failure(run.run_id)
        if failure:
            return ServedTask(status="failed", error={"code": -32603, "message": failure}, **about)
        tool = next((row.event.name for row in reversed(rows) if isinstance(row.event, ToolStarted)), "")
        return ServedTask(status="working", note=tool, **about)
    if ended.status == "waiting":
        pending = [each for each in pending_decisions(rows) if each.by_person]
        context, _ = current_request()
        if pending and can_ask(context):
            return ServedTask(status="input_required", requests=requests_for(pending), **about)
        return ServedTask(status="working", note=undecided(run.run_id) if pending else "The run waits.", **about)
    if ended.status == "cancelled":
        return ServedTask(status="working" if host.stopping else "cancelled", **about)
    from closeout.tools.mcp.mcp_server import call_failure, call_result

    try:
        result = call_result(await _result_of(host, run.run_id, ended))
    except ToolError as error:
        result = call_failure(str(error))
    return ServedTask(status="completed", result=result, **about)


def _is_turning_point(event: Event) -> bool:
    return isinstance(event, RunStarted | RunResumed) or (isinstance(event, RunEnded) and event.agent == "main")


# ------------------------------------------------------------------------------------------------ files


class FileShelf:
    """The files that the runs of a client have left, as resources: `ResourceShelf`.

    Args:
        host: Executes the runs.
    """

    templates: Mapping[str, str] = {"run://{run_id}/files/{name}": "A file that a run of the agent has left."}

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def listed(self) -> list[ShelvedResource]:
        """Return the files of the client's latest runs."""
        user = client_of(_web_request())
        return await asyncio.to_thread(self._files_of_runs, user)

    def _files_of_runs(self, user: str) -> list[ShelvedResource]:
        store, found = self._host.store, []
        for record in store.runs(LISTED_RUNS):
            started = store.beginning(record.run_id)
            notes = {} if started is None else started.origin.get(ORIGIN, {})
            if (notes.get("agent"), notes.get("api"), notes.get("user")) == (self._host.name, "mcp", user):
                left = run_files(store, store.rows_from(record.run_id, 0)).left()
                about = f"Of the run {record.run_id}"
                found += [
                    ShelvedResource(uri=_address(record.run_id, file), file=file, description=about) for file in left
                ]
        return found

    async def find(self, uri: str) -> File | None:
        """Return a file of a run of this client."""
        parts = _ADDRESS.fullmatch(uri)
        if parts is None or await _run_of_client(self._host, parts[1]) is None:
            return None
        left, name = run_files(self._host.store, await self._host.rows(parts[1])).left(), unquote(parts[2])
        return next((file for file in left if file.name == name), None)


def _address(run_id: str, file: File) -> str:
    return f"run://{run_id}/files/{quote(file.name)}"


# ------------------------------------------------------------------------------------------------ what they share


def _web_request() -> web.Request:
    """Return the application's request that the library's current request came with."""
    request: web.Request = current_request()[0].request.scope[REQUEST]
    return request


async def _run_of_client(host: AgentHost, run_id: str) -> ServedRun | None:
    """Return a run that the client of the current request has begun; None if it is not one."""
    try:
        run = await host.find(run_id)
    except RunNotFound:
        return None
    is_own = (run.notes.get("api"), run.notes.get("user")) == ("mcp", client_of(_web_request()))
    return run if is_own else None


async def _result_of(host: AgentHost, run_id: str, ended: RunEnded | None) -> McpResult:
    """Return the answer of a run, with links to the files that it left. Raises ToolError if it has no answer."""
    try:
        structured = {"answer": answer_of(host, run_id, ended), "run_id": run_id}
    except ApiError as error:
        raise ToolError(str(error)) from None
    files = run_files(host.store, await host.rows(run_id)).left()
    links = [
        {
            "type": "resource_link",
            "uri": _address(run_id, file),
            "name": file.name,
            "mimeType": file.media_type,
            "size": file.size,
        }
        for file in files
    ]
    return McpResult(content=({"type": "text", "text": compact_json(structured)}, *links), structured=structured)
