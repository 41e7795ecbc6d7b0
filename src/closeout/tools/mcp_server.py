"""Serve `@tool` functions over MCP: on stdin and stdout, where `closeout mcp` serves the web tools, or over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolError
from closeout.messages import ToolPolicy, ToolSpec
from closeout.results.normal import compact_json, normalise
from closeout.results.tool_output import ToolOutput
from closeout.tools.manager import AnyTool
from closeout.tools.mcp_client import POLICY_KEY, STATED_FIELDS, require_mcp
from closeout.tools.run_context import reporting_to
from closeout.version import VERSION

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

__all__ = ["InputNeeded", "make_server", "serve_tools"]

_DEFAULT = ToolPolicy()
SIGN_OF_LIFE = 5.0  # seconds between two messages on a call; clients give up after 60 without one
LEAST_PAUSE = 0.1  # seconds between two messages


class InputNeeded(Exception):
    """A call needs answers of the client's person before it can continue: the client calls again with them.

    Args:
        requests: The library's requests, by name.
        state: What the client sends back with the answers.
    """

    def __init__(self, requests: Mapping[str, Any], state: str) -> None:
        super().__init__("input needed")
        self.requests, self.state = dict(requests), state


async def serve_tools(tools: Iterable[AnyTool], *, name: str = "closeout", instructions: str | None = None) -> None:
    """Serve tools until the client closes stdin.

    A client reads from each tool's annotations what a call does to the world. Closeout's own client also reads the
    tool's aliases, duplicate key and rules for empty results.

    Args:
        tools: The tools. Their results are sent as JSON text, and mappings as structured content too.
        name: The server's name.
        instructions: What a client's model should know about the tools.

    Raises:
        UsageError: The extra `mcp` is not installed.
    """
    require_mcp()
    from mcp.server.stdio import stdio_server

    server = make_server(tools, name=name, instructions=instructions)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def make_server(
    tools: Iterable[AnyTool],
    *,
    name: str = "closeout",
    instructions: str | None = None,
    around: Callable[[Any, Any], AbstractContextManager[object]] = lambda context, parameters: nullcontext(),
) -> Server[Any]:
    """Return a server of the `mcp` library that offers tools, for any transport.

    Args:
        tools: The tools.
        name: The server's name.
        instructions: What a client's model should know about the tools.
        around: Called with the library's context and parameters of each call; entered while the call runs.
    """
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolRequestParams, CallToolResult, InputRequiredResult, ListToolsResult, TextContent

    offered = {tool.spec.name: tool for tool in tools}

    async def list_tools(context: Any, parameters: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_definition(tool.spec) for tool in offered.values()])

    async def call_tool(context: Any, parameters: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        tool = offered.get(parameters.name)
        if tool is None:
            text = f"Unknown tool: {parameters.name}. Choose from: {', '.join(offered)}."
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        try:
            async with asyncio.timeout(tool.spec.policy.timeout), _sending_progress(context.session.report_progress):
                with around(context, parameters):
                    value = await tool.call(parameters.arguments or {})
        except InputNeeded as needed:
            return InputRequiredResult(input_requests=needed.requests, request_state=needed.state)
        except Exception as error:
            reason = str(error) if isinstance(error, (ToolError, OSError)) else f"{type(error).__name__}: {error}"
            text = f"Error executing tool {parameters.name}: {reason or type(error).__name__}"
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        plain = normalise(value.result if isinstance(value, ToolOutput) else value)
        text = plain if isinstance(plain, str) else compact_json(plain)
        return CallToolResult(
            content=[TextContent(text=text)], structured_content=plain if isinstance(plain, dict) else None
        )

    return Server(name, version=VERSION, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool)


@asynccontextmanager
async def _sending_progress(send: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """Send a call's progress to its client: what the tool reports, and a sign of life while it reports nothing.

    The progress that a client sees is the seconds since the call began, because it must always increase.
    """
    began, said, news = time.monotonic(), "", asyncio.Event()

    def note(done: float, total: float | None, message: str) -> None:
        nonlocal said
        share = f"{done:g}" if total is None else f"{done:g} of {total:g}"
        said = f"{share}: {message}" if message else share
        news.set()

    async def keep_sending() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SIGN_OF_LIFE):
                    await news.wait()
            news.clear()
            await send(time.monotonic() - began, message=said or None)
            await asyncio.sleep(LEAST_PAUSE)

    sending = asyncio.create_task(keep_sending())
    try:
        with reporting_to(note):
            yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)  # a client that is gone is noticed by the server


def _definition(spec: ToolSpec) -> Any:
    from mcp.types import Tool, ToolAnnotations

    policy = spec.policy
    hints = ToolAnnotations(
        read_only_hint=policy.read_only,
        idempotent_hint=policy.idempotent,
        destructive_hint=policy.destructive or policy.approval not in (None, "never"),  # the client asks its user
    )
    stated = {
        field.name: normalise(getattr(policy, field.name))
        for field in fields(policy)
        if field.name in STATED_FIELDS and getattr(policy, field.name) != getattr(_DEFAULT, field.name)
    }
    return Tool(
        name=spec.name,
        description=spec.description,
        input_schema=dict(spec.parameters),
        annotations=hints,
        _meta={POLICY_KEY: stated} if stated else None,
    )
