"""Sub-agents in the background: the call returns at once, a message says when its agent has ended, and `wait` waits.

The journal has such a call like any other, from its start to the end of its agent. So a resumed run executes it again
on what is recorded, and repeats nothing. The agent that made the call does not end before it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from closeout.errors import Suspended, ToolError
from closeout.messages import ToolPolicy
from closeout.results.artifacts import Artifact
from closeout.results.tool_output import ToolOutput, ToolTelemetry
from closeout.run.agent_tool import SubAgentTool
from closeout.run.middleware.chain import AgentPlace, Calling, Middleware, found_in
from closeout.run.plan import Scope, current_scope
from closeout.tools.tool import tool

__all__ = ["BackgroundMiddleware", "has_background", "wait_tool"]

STARTED = 'Started as {handle}. A message says when it has ended; wait(handles=["{handle}"]) returns its report then.'
ENDED = '{handle} ({name}) has ended. wait(handles=["{handle}"]) returns its report.'
LOOK_SECONDS = 0.25  # between two looks for messages to an agent that waits at its end


class BackgroundMiddleware(Middleware):
    """Has one agent's calls of some tools made in the background.

    Args:
        scope: The agent.
        names: The tools.
    """

    records_itself = True

    def __init__(self, scope: Scope, names: frozenset[str]) -> None:
        self._scope = scope
        self._names = names
        self._calls: dict[str, asyncio.Task[ToolOutput]] = {}  # by handle
        self._awaited: set[str] = set()  # of which no message needs to tell

    @classmethod
    def at(cls, place: AgentPlace) -> BackgroundMiddleware | None:
        tools = () if place.plan is None else place.plan.manager.local_tools
        names = frozenset(each.spec.name for each in tools if has_background(each))
        return cls(place.scope, names) if names else None

    def below(self, place: AgentPlace) -> BackgroundMiddleware | None:
        made = self.at(place)
        if not place.handed_over:
            return made
        self._scope, self._names = place.scope, self._names | (made._names if made is not None else frozenset())
        return self

    def start(self) -> None:
        self._scope.journal.inbox.promise(self._scope.path, self._next_end)

    async def decide(self, calling: Calling) -> None:
        """Make the call in a task of its own. What the model is shown now is no result of the tool."""
        if calling.name not in self._names:
            return
        self._calls[calling.handle] = asyncio.create_task(self._make(replace(calling)))
        text = STARTED.format(handle=calling.handle)
        calling.output = ToolOutput(result=text, telemetry=ToolTelemetry(tool_name=calling.name, success=True))

    def approved(self, calling: Calling) -> None:
        if calling.name == wait_tool.name:
            handles = self._named(calling.arguments.get("handles"))
            self._awaited.update(handles)
            self._scope.journal.inbox.withdraw(self._message(each) for each in handles)

    def begin(self, turn: int) -> None:
        """Let `read_result` show the reports."""
        for handle, task in self._calls.items():
            if task.done() and not task.cancelled() and task.exception() is None:
                self._scope.artifacts.put(handle, Artifact(task.result().result))

    async def wait(self, handles: list[str]) -> str:
        """Return the reports of calls when all of them have ended.

        Raises:
            ToolError: There is no such call.
            Suspended: One of them waits for a decision, and all the others have ended.
        """
        wanted = self._named(handles)
        if unknown := [each for each in wanted if each not in self._calls]:
            known = f"These work or have worked: {', '.join(self._calls)}." if self._calls else "Nothing was started."
            raise ToolError(f"{', '.join(unknown)[:200]} does not work in the background. {known}")
        if wanted:
            await asyncio.wait([self._calls[each] for each in wanted])
        await self._suspend_if([self._calls[each] for each in wanted])
        reports = {handle: self._calls[handle].result() for handle in wanted}
        return "\n\n".join(f"{handle}: {each.result or each.summary}" for handle, each in reports.items())

    async def end(self) -> None:
        """Cancel what still works. If the run waits for somebody, let it end: the run continues later."""
        working = [each for each in self._calls.values() if not each.done()]
        if not isinstance(sys.exc_info()[1], Suspended):
            for each in working:
                each.cancel()
        if working:
            await asyncio.wait(working)

    async def _make(self, calling: Calling) -> ToolOutput:
        _, output = await calling.perform(calling)
        if calling.handle not in self._awaited:
            text = ENDED.format(handle=calling.handle, name=calling.name)
            self._scope.journal.inbox.post(self._message(calling.handle), text, self._scope.path)
        return output

    async def _next_end(self) -> bool:
        """Wait until a call has ended, for a moment at most. Returns False if none is under way."""
        working = [each for each in self._calls.values() if not each.done()]
        if not working:
            await self._suspend_if([*self._calls.values()])
            return False
        await asyncio.wait(working, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return True

    async def _suspend_if(self, calls: list[asyncio.Task[ToolOutput]]) -> None:
        """Raise what a call waits for, once all calls have ended or wait."""
        failures = [each.exception() for each in calls if not each.cancelled()]
        requests = [request for each in failures if isinstance(each, Suspended) for request in each.requests]
        if requests:
            await asyncio.wait(self._calls.values())
            raise Suspended(requests)

    def _message(self, handle: str) -> str:
        return f"{self._scope.path}/{handle}.ended"

    def _named(self, handles: object) -> list[str]:
        """Return the handles that a call of `wait` names: all if it names none."""
        if isinstance(handles, list) and handles:
            return [str(each) for each in dict.fromkeys(handles)]
        return [*self._calls]


def has_background(tool: object) -> bool:
    """Return whether a tool is an agent whose calls return at once."""
    return isinstance(tool, SubAgentTool) and tool.background


@tool(name="wait", policy=ToolPolicy(read_only=True, repeatable=True, returns="read", timeout=None))
async def wait_tool(handles: list[str]) -> str:
    """Wait for agents that work in the background, and return their reports.

    Args:
        handles: what their calls returned, such as ["r4", "r5"]
    """
    scope = current_scope()
    background = None if scope is None else found_in(scope, BackgroundMiddleware)
    if background is None:
        raise ToolError("No agent works in the background.")
    return await background.wait(handles)
