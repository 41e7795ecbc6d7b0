"""Serve `@tool` functions over MCP: on stdin and stdout, where `closeout mcp` serves the web tools, or over HTTP."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolError
from closeout.file_values import File
from closeout.messages import ToolPolicy, ToolSpec
from closeout.results.normal import compact_json, files_found, normalise
from closeout.results.tool_output import ToolOutput
from closeout.stray_output import stray_output_to_stderr
from closeout.tools.manager import AnyTool
from closeout.tools.mcp.mcp_client import POLICY_KEY, STATED_FIELDS, require_mcp
from closeout.tools.mcp.mcp_offers import (
    InputNeeded,
    PromptTemplate,
    ResourceShelf,
    add_prompts,
    add_resources,
    current_request,
    embedded,
    in_request,
)
from closeout.tools.mcp.mcp_result import McpResult
from closeout.tools.mcp.mcp_served_tasks import TaskBegun, TaskShelf, add_tasks
from closeout.tools.run_context import reporting_to
from closeout.version import VERSION

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolRequestParams, CallToolResult

__all__ = ["call_failure", "call_result", "make_server", "serve_tools"]

_DEFAULT = ToolPolicy()
SIGN_OF_LIFE = 5.0  # seconds between two messages on a call; clients give up after 60 without one
LEAST_PAUSE = 0.02  # seconds between two messages
_UNSAID: tuple[float, float | None, str] = (0.0, None, "")
MAX_NEWS = 100  # reports that wait to be sent; then the oldest are dropped


async def serve_tools(
    tools: Iterable[AnyTool],
    *,
    name: str = "closeout",
    instructions: str | None = None,
    prompts: Iterable[PromptTemplate] = (),
) -> None:
    """Serve tools until the client closes stdin.

    A client reads from each tool's annotations what a call does to the world. Closeout's own client also reads the
    tool's aliases, duplicate key and rules for empty results.

    Args:
        tools: The tools. Their results are sent as JSON text, and mappings as structured content too.
        name: The server's name.
        instructions: What a client's model should know about the tools.
        prompts: Templates of messages, which clients offer to their users.

    Raises:
        UsageError: The extra `mcp` is not installed.
    """
    require_mcp()
    from mcp.server.stdio import stdio_server

    server = make_server(tools, name=name, instructions=instructions, prompts=prompts)
    async with stdio_server() as (read, write):
        with stray_output_to_stderr():  # what is in Python's buffer at the end, too
            await server.run(read, write, server.create_initialization_options())


def make_server(
    tools: Iterable[AnyTool],
    *,
    name: str = "closeout",
    instructions: str | None = None,
    resources: ResourceShelf | None = None,
    prompts: Iterable[PromptTemplate] = (),
    tasks: TaskShelf | None = None,
) -> Server[Any]:
    """Return a server of the `mcp` library that offers tools, for any transport.

    A tool, a prompt and the resources may raise `InputNeeded`, a tool also `TaskBegun`; `current_request` says what
    the client sent.

    Args:
        tools: The tools. Files in their results become images, audio or embedded resources; an `McpResult` is sent
            as it is.
        name: The server's name.
        instructions: What a client's model should know about the tools.
        resources: The resources that clients can list and read.
        prompts: Templates of messages, which clients offer to their users.
        tasks: The tasks that calls become.
    """
    from mcp import MCPError
    from mcp.server.lowlevel import Server
    from mcp.types import ListToolsResult

    offered = {tool.spec.name: tool for tool in tools}

    async def list_tools(_: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_definition(tool.spec) for tool in offered.values()])

    async def call_tool(parameters: CallToolRequestParams) -> Any:
        context, _ = current_request()
        tool = offered.get(parameters.name)
        if tool is None:
            return call_failure(f"Unknown tool: {parameters.name}. Choose from: {', '.join(offered)}.")
        try:
            async with asyncio.timeout(tool.spec.policy.timeout), _sending_progress(context.session.report_progress):
                return call_result(await tool.call(parameters.arguments or {}))
        except TaskBegun as begun:
            return begun.task.shown(is_new=True)
        except (InputNeeded, MCPError):
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, (ToolError, OSError)) else f"{type(error).__name__}: {error}"
            return call_failure(f"Error executing tool {parameters.name}: {reason or type(error).__name__}")

    server = Server(
        name,
        version=VERSION,
        instructions=instructions,
        on_list_tools=in_request(list_tools),
        on_call_tool=in_request(call_tool),
    )
    if resources is not None:
        add_resources(server, resources)
    if prompts := tuple(prompts):
        add_prompts(server, prompts)
    if tasks is not None:
        add_tasks(server, tasks)
    return server


def call_failure(text: str) -> CallToolResult:
    """Return the result of a call that failed."""
    from mcp.types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def call_result(value: Any) -> CallToolResult:
    """Return what a tool returned as the result of its call."""
    from mcp.types import CallToolResult

    if isinstance(value, McpResult):
        whole = {"content": list(value.content), "structuredContent": value.structured}
        return CallToolResult.model_validate(whole)
    files: list[File] = list(value.files) if isinstance(value, ToolOutput) else []
    token = files_found.set(files)
    try:
        plain = normalise(value.result if isinstance(value, ToolOutput) else value)
    finally:
        files_found.reset(token)
    text = plain if isinstance(plain, str) else compact_json(plain)
    parts = [{"type": "text", "text": text}, *map(embedded, files)]
    return CallToolResult.model_validate(
        {"content": parts, "structuredContent": plain if isinstance(plain, dict) else None}
    )


@asynccontextmanager
async def _sending_progress(send: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """Send a call's progress to its client: what the tool reports, and a sign of life while it reports nothing.

    The progress of a call must always increase: what does not is sent as the least that does.
    """
    news: deque[tuple[float, float | None, str]] = deque(maxlen=MAX_NEWS)
    has_news, sent, said = asyncio.Event(), -math.inf, _UNSAID

    def note(done: float, total: float | None, message: str) -> None:
        news.append((done, total, message))
        has_news.set()

    async def send_next() -> None:
        nonlocal sent, said
        said = done, total, message = news.popleft() if news else said
        sent = done if done > sent else math.nextafter(sent, math.inf)
        await send(sent, total, message or None)

    async def keep_sending() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SIGN_OF_LIFE):
                    await has_news.wait()
            await send_next()
            if not news:
                has_news.clear()
            await asyncio.sleep(LEAST_PAUSE)

    sending = asyncio.create_task(keep_sending())
    try:
        with reporting_to(note):
            yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)  # a client that is gone is noticed by the server
    if news:  # the end of the work is news as well
        news = deque([news[-1]])
        await send_next()


def _definition(spec: ToolSpec) -> Any:
    from mcp.types import Tool, ToolAnnotations

    policy = spec.policy
    hints = ToolAnnotations(
        read_only_hint=policy.read_only,
        idempotent_hint=policy.idempotent,
        destructive_hint=policy.destructive or policy.approval not in (None, "never"),  # the client asks its user
        open_world_hint=False if policy.effects == "local" else None,
    )
    stated = {
        name: normalise(getattr(policy, name))
        for name in STATED_FIELDS
        if getattr(policy, name) != getattr(_DEFAULT, name)
    }
    return Tool(
        name=spec.name,
        description=spec.description,
        input_schema=dict(spec.parameters),
        annotations=hints,
        _meta={POLICY_KEY: stated} if stated else None,
    )
