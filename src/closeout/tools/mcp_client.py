"""One MCP server over its whole life: started, connected, called, reconnected once when it died, closed.

A session must be entered and left in the same task (its cancel scopes say so), so each has a task of its own that does
only that; calls are made from whatever task they come from. Which tools exist in all is manager.py's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from closeout.errors import ToolError
from closeout.messages import ToolPolicy, ToolSpec
from closeout.outputs.escape import escape_markers
from closeout.tools.mcp_config import McpServerConfig
from closeout.tools.mcp_result import McpResult
from closeout.tools.mcp_transport import ErrorTail, ServerFailed, open_transport, overflowed, reason
from closeout.tools.schema import without_titles

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as McpTool

__all__ = ["McpServer"]

PROBE_SECONDS = 3.0  # for a server that let a call time out to show that it still answers
BROKEN_SECONDS = 0.5  # for a stream that broke to say why
MAX_PAGES = 200  # of a server's list of tools
MAX_DESCRIPTION = 10_000  # characters: it stands in every request
CLOSED = "Connection closed"  # how the library says so


class McpServer:
    """A server and its live session, one for each event loop that uses it."""

    def __init__(self, config: McpServerConfig) -> None:
        self.config = config
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slot] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self.config.name

    async def open(self) -> tuple[ToolSpec, ...]:
        """Start the server if it does not run, and read its tools, each under its own name. Raises `ServerFailed`."""
        session = await self._live()
        return tuple(_spec(self.config, tool) for tool in session.tools)

    async def call(self, name: str, arguments: Mapping[str, Any], policy: ToolPolicy) -> McpResult:
        """Call a tool. If the server dies meanwhile it is started once more, and the call is made again if the policy
        allows that. Raises `ToolError`: the tool failed, the server did, or there was no answer in time.
        """
        timeout = self.config.timeout or policy.timeout
        session = await self._live()
        try:
            return await session.call(name, arguments, timeout)
        except _Died as death:
            try:
                session = await self._live(dead=session)
            except ServerFailed as error:
                raise ToolError(f"MCP server {self.name!r} ended during the call of {name}. {error}") from None
            if policy.crash_rule != "rerun":
                raise ToolError(
                    f"MCP server {self.name!r} ended during the call of {name}.{death} It is connected again; whether "
                    "the call had its effect is not known."
                ) from None
        try:
            return await session.call(name, arguments, timeout)
        except _Died as death:
            raise ToolError(f"MCP server {self.name!r} ended twice during the call of {name}.{death}") from None

    async def aclose(self) -> None:
        """End this event loop's session and its server process. `open` and `call` start anew."""
        slot = self._slots.pop(asyncio.get_running_loop(), None)
        if slot is not None and slot.session is not None:
            await slot.session.close()

    async def _live(self, dead: _Session | None = None) -> _Session:
        """The live session; a new one if there is none, or if it is `dead` or does not answer."""
        slot = self._slots.setdefault(asyncio.get_running_loop(), _Slot())
        async with slot.lock:
            old = slot.session
            if old is not None and old is not dead and not old.ended and await old.answers():
                return old
            slot.session = None
            if old is not None:
                await old.close()
            session = _Session(self.config)
            await session.start()
            slot.session = session
            return session


@dataclass(slots=True)
class _Slot:
    session: _Session | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Died(Exception):
    """The session ended under a call. Its text is the end of the server's error output, ready for a message."""


class _Session:
    """One session and the task that owns it."""

    def __init__(self, config: McpServerConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.tools: list[McpTool] = []
        self._errors = ErrorTail()
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._stop = asyncio.Event()
        self._doubtful = False  # a call timed out: the server may hang
        self._overflowed = False  # it ended of a result that the library does not read
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self._task is None or self._task.done() or self._stop.is_set()

    async def start(self) -> None:
        """Connect and list the tools. Raises `ServerFailed`."""
        self._task = asyncio.create_task(self._own(), name=f"mcp:{self.config.name}")
        try:
            async with asyncio.timeout(self.config.start_timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise ServerFailed(
                f"MCP server {self.config.name!r} ({self.config.address}) was not ready within "
                f"{self.config.start_timeout:g} s.{self._errors.quoted()} A longer start_timeout can be given."
            ) from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def call(self, name: str, arguments: Mapping[str, Any], timeout: float | None) -> McpResult:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client = self._client
        if client is None or self.ended:
            raise _Died(self._errors.quoted())
        request = asyncio.ensure_future(client.call_tool(name, dict(arguments), read_timeout_seconds=timeout))
        try:
            result = await self._unless_ended(request)
        except _Died:
            raise await self._lost(name) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and error.message == CLOSED:  # servers use the code for errors of theirs
                raise await self._lost(name) from None
            if error.code == REQUEST_TIMEOUT:
                self._doubtful = True
                raise ToolError(
                    f"{name} did not answer within {timeout:g} s (MCP server {self.config.name!r})."
                ) from None
            raise ToolError(error.message) from None
        except (RuntimeError, ValueError, TimeoutError) as error:  # a result that breaks the protocol or its own schema
            raise ToolError(f"{name} gave a result that cannot be used: {_first(error)}") from None
        content = tuple(part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content)
        outcome = McpResult(content, result.structured_content)
        if result.is_error:
            raise ToolError(outcome.text or f"{name} failed and said nothing.")
        return outcome

    async def _unless_ended(self, request: asyncio.Future[Any]) -> Any:
        """The outcome of a request, or `_Died` if the session's own task ends before: a transport may just break."""
        assert self._task is not None
        try:
            await asyncio.wait((request, self._task), return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
        finally:
            if not request.done():
                self._doubtful = True  # the caller's deadline passed, as a rule: ask before the next call
                request.cancel()
                with suppress(Exception, asyncio.CancelledError):
                    await asyncio.wait((request,))
        raise _Died

    async def _lost(self, name: str) -> Exception:
        """What to raise of a call that was under way when the session ended."""
        if self.config.transport == "sse" and self._task is not None:
            await asyncio.wait((self._task,), timeout=BROKEN_SECONDS)  # it knows why
        if not self._overflowed:
            return _Died(await self._last_words())
        return ToolError(
            f"MCP server {self.config.name!r} sent a result of more than 1 MB over SSE, which the mcp library does not "
            f"read, and the call of {name} was lost with it. Ask for less at once, or connect over streamable HTTP (a "
            "URL that usually ends in /mcp)."
        )

    async def answers(self) -> bool:
        """Whether the server still speaks; asked only after a call that timed out."""
        if not self._doubtful or self._client is None:
            return True
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._client.list_tools()
        except Exception:  # whatever went wrong, it does not answer
            return False
        self._doubtful = False
        return True

    async def close(self) -> None:
        self._stop.set()
        task = self._task
        if task is None or task.done():
            return
        if not self._ready.done():
            task.cancel()
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the run is being cancelled: leave at once, the task cleans up behind itself
            task.cancel()
            raise

    async def _own(self) -> None:
        """Hold the session open until it is told to stop. Failures before it is ready are told to `start`."""
        try:
            async with AsyncExitStack() as stack:
                stack.callback(self._errors.release)
                transport = open_transport(self.config, self._errors, stack)
                from mcp import Client

                client = await stack.enter_async_context(Client(transport, cache=None))
                self._errors.release()
                self.tools = await _list_tools(client)
                self._client = client
                self._ready.set_result(None)
                await self._stop.wait()
        except asyncio.CancelledError:
            if not self._ready.done():
                self._ready.cancel()
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            self._overflowed = overflowed(error)
            if not self._ready.done():
                self._ready.set_exception(self._failure(error, await self._last_words()))
        finally:
            self._client = None

    def _failure(self, error: BaseException, last_words: str) -> ServerFailed:
        about = f"MCP server {self.config.name!r} ({self.config.address})"
        if isinstance(error, ServerFailed):
            return error
        verb = "started" if self.config.transport == "stdio" else "reached"
        return ServerFailed(f"{about} could not be {verb}: {reason(error, self._errors.status)}.{last_words}")

    async def _last_words(self) -> str:
        """The end of the error output, after a moment for the dying process to write it."""
        await asyncio.to_thread(self._errors.settle)
        return self._errors.quoted()


# ------------------------------------------------------------------------------------------------ reading


async def _list_tools(client: Client) -> list[McpTool]:
    tools: list[McpTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _spec(config: McpServerConfig, tool: McpTool) -> ToolSpec:
    schema = without_titles(dict(tool.input_schema or {}), describe=_harmless)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return ToolSpec(
        name=tool.name,
        description=_harmless((tool.description or tool.title or "").strip()),
        parameters=schema,
        server_name=config.name,
        policy=_policy(tool),
    )


def _harmless(description: str) -> str:
    """A description that a server wrote: it stands in the prompt, where it must not open a turn, a call or a result."""
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[:MAX_DESCRIPTION]} …"
    return escape_markers(description)


def _first(error: Exception) -> str:
    """The first complaint of a validation, which has a page for each; another error as it is."""
    complaints = error.errors(include_url=False) if isinstance(error, ValidationError) else []
    if not complaints:
        return str(error)
    return f"{'.'.join(map(str, complaints[0]['loc']))}: {complaints[0]['msg']}"


def _policy(tool: McpTool) -> ToolPolicy:
    """What the server hints at. A hint that is not given is not taken for granted either way."""
    hints = tool.annotations
    if hints is None:
        return ToolPolicy()
    read_only = bool(hints.read_only_hint)
    return replace(
        ToolPolicy(),
        read_only=read_only,
        idempotent=read_only or bool(hints.idempotent_hint),
        destructive=bool(hints.destructive_hint) and not read_only,
    )
