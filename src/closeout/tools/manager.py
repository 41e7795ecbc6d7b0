"""Where an agent's tools come from: one registry of local tools and MCP servers, and one way to call any of them.

How a server is reached is mcp_client.py's business; how a call is repaired, judged and shown, executor.py's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeGuard, runtime_checkable
from weakref import WeakKeyDictionary

from closeout.errors import ToolDefinitionError, ToolError
from closeout.messages import ToolSpec
from closeout.tools.mcp_client import McpServer
from closeout.tools.mcp_config import McpEntry, read_servers
from closeout.tools.mcp_transport import ServerFailed, require_mcp
from closeout.tools.schema import is_json_schema
from closeout.tools.seed_policies import governed
from closeout.tools.tool import Tool

__all__ = ["LOCAL", "AnyTool", "ServerProblem", "ToolManager", "is_tool"]

LOCAL = "local"  # the server name of local tools where one is asked for
_NAME_LENGTH = 64  # characters that every vendor's API accepts in a tool name


@runtime_checkable
class AnyTool(Protocol):
    """What the registry needs of a local tool; `Tool` is one."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, Any], /) -> Any: ...


def is_tool(something: Any) -> TypeGuard[AnyTool]:
    return isinstance(something, Tool) or isinstance(something, AnyTool)  # noqa: SIM101  protocols are slow to ask


@dataclass(frozen=True, slots=True)
class ServerProblem:
    """A server whose tools are not on offer, or only in part, and why."""

    server_name: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class _Route:
    """Where a tool lives: its own name there, and the local tool or the server."""

    spec: ToolSpec
    name: str
    home: AnyTool | McpServer


class ToolManager:
    """A registry of tools under names that are unique in it.

    Servers are started at `open`, all at once, and live until `aclose`; `async with` does both. Several runs, in
    several threads too, may use one manager: the last one that leaves an event loop closes what that loop opened.

    Names: a local tool keeps its name; two local tools of one name are a `ToolDefinitionError`. A server's tool keeps
    its name if no other tool has it; otherwise it is offered as `server-tool`, for every server that has it, so that
    names do not depend on the order in which servers answer.

    `blacklist` holds tools that are not offered: "tool", "server/tool" or ("server", "tool").
    """

    def __init__(
        self,
        tools: Iterable[AnyTool | Tool[..., Any]] = (),
        mcp_servers: McpEntry | Mapping[str, McpEntry] | Iterable[McpEntry] = (),
        blacklist: Iterable[str | tuple[str, str]] = (),
    ) -> None:
        self._blacklist = {entry if isinstance(entry, str) else "/".join(entry) for entry in blacklist}
        self._servers = tuple(McpServer(config) for config in read_servers(mcp_servers))
        self._offers: dict[str, tuple[ToolSpec, ...]] = {}  # server name → its tools, once it was reached
        self._problems: dict[str, str] = {}
        self._users: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self._local: dict[str, _Route] = {}
        for tool in tools:
            self._add(tool)
        self._routes: dict[str, _Route] = {}
        self._specs: tuple[ToolSpec, ...] = ()
        self._name_all()

    # -------------------------------------------------------------------------------------------- what there is

    @property
    def problems(self) -> tuple[ServerProblem, ...]:
        """Servers that could not be used, as of the last `open`."""
        return tuple(ServerProblem(name, message) for name, message in self._problems.items())

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools on offer, sorted by name: the local ones, and after `open` those of the servers."""
        return self._specs

    async def get_all_tool_definitions(self) -> list[dict[str, Any]]:
        """`[{"name": server, "tools": [{"name", "description", "schema"}, …]}, …]`, local tools under "local".

        Opens the servers if they are not open. A server that could not be used has no tools and an "error".
        """
        await self.open()
        listed = [_definition(LOCAL, [route.spec for route in self._local.values()])] if self._local else []
        for server in self._servers:
            listed.append(_definition(server.name, self._offers.get(server.name, ())))
            if server.name in self._problems:
                listed[-1]["error"] = self._problems[server.name]
        return listed

    # -------------------------------------------------------------------------------------------- opening and closing

    async def open(self) -> None:
        """Start every server that does not run, all at once. One that fails is in `problems`; the others serve."""
        if not self._servers:
            return
        require_mcp()
        found = await asyncio.gather(*(self._reach(server) for server in self._servers))
        offers = {server.name: specs for server, specs in zip(self._servers, found, strict=True) if specs is not None}
        if offers != self._offers:  # unchanged specs stay the same objects: what was compiled from them stays valid
            self._offers = offers
            self._name_all()

    async def aclose(self) -> None:
        """Close the sessions that this event loop opened, and end their processes."""
        if self._servers:
            await asyncio.gather(*(server.aclose() for server in self._servers))

    async def __aenter__(self) -> Self:
        if self._servers:
            loop = asyncio.get_running_loop()
            self._users[loop] = self._users.get(loop, 0) + 1
            try:
                await self.open()
            except BaseException:
                await self._leave(loop)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._servers:
            await self._leave(asyncio.get_running_loop())

    async def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._users[loop] -= 1
        if not self._users[loop]:
            await self.aclose()

    async def _reach(self, server: McpServer) -> tuple[ToolSpec, ...] | None:
        try:
            specs = await server.open()
        except ServerFailed as error:
            self._problems[server.name] = str(error)
            return None
        self._problems.pop(server.name, None)
        offered = [spec for spec in specs if not self._is_listed_out(server.name, spec.name)]
        if not all(spec.name for spec in offered):  # an API would refuse the whole request for it
            self._problems[server.name] = f"MCP server {server.name!r} has a tool without a name; not offered."
            offered = [spec for spec in offered if spec.name]
        broken = [spec.name for spec in offered if not is_json_schema(spec.parameters)]
        if broken:
            self._problems[server.name] = (
                f"MCP server {server.name!r}: the parameters of {', '.join(broken)} are no JSON Schema that stands "
                "alone; not offered."
            )
        return tuple(spec for spec in offered if spec.name not in broken)

    # -------------------------------------------------------------------------------------------- calling

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        """What the tool returns for arguments that fit its schema.

        A local tool's value and exceptions come as they are. A server's result is its text or its structured content;
        with images, audio or resources it is a `ToolOutput` whose `metadata` holds every part whole. Raises `ToolError`
        if there is no such tool, if the server's tool failed, and if its server did.
        """
        route = self._routes.get(spec.name)
        if route is None:
            raise ToolError(f"Unknown tool: {spec.name}.")
        if not isinstance(route.home, McpServer):
            return await route.home.call(arguments)
        return await self._ask_server(route, route.home, arguments)

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`{"server_name", "tool_name", "result"}`, or "error" in place of "result". Raises nothing but cancellation.

        The server name of a local tool is "local" (an empty one will do). Opens the servers if they are not open.
        """
        named: dict[str, Any] = {"server_name": server_name, "tool_name": tool_name}
        try:
            route = self._find(server_name, tool_name)
            if route is None and self._servers:
                await self.open()
                route = self._find(server_name, tool_name)
            if route is None:
                return {**named, "error": f"Unknown tool: {tool_name} on server {server_name}. {self._listed()}"}
            return {**named, "result": _result(await self.call(route.spec, arguments))}
        except (Exception, SystemExit) as error:
            told = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
            prefix = f"Error executing tool {tool_name}"  # servers on the reference classes write it themselves
            return {**named, "error": told if told.startswith(prefix) else f"{prefix}: {told}"}

    async def _ask_server(self, route: _Route, server: McpServer, arguments: Mapping[str, Any]) -> Any:
        result = await server.call(route.name, arguments, route.spec.policy)
        return result.value if result.is_plain else result.output()

    def _find(self, server_name: str | None, tool_name: str) -> _Route | None:
        """A tool by its server's name for it, or by the name it is offered under."""
        asked = server_name if server_name and server_name != LOCAL else None
        for route in self._routes.values():
            if route.name == tool_name and route.spec.server_name == asked:
                return route
        found = self._routes.get(tool_name)
        return found if found is not None and (not server_name or found.spec.server_name == asked) else None

    def _listed(self) -> str:
        names = ", ".join(f"{spec.server_name or LOCAL}/{spec.name}" for spec in self._specs[:30])
        return f"There are: {names}." if names else "There are no tools."

    # -------------------------------------------------------------------------------------------- naming

    def _add(self, tool: AnyTool) -> None:
        if not is_tool(tool):
            raise ToolDefinitionError(f"{tool!r} is no tool. Put @tool on the function.")
        spec = governed(tool.spec)
        if spec.name in self._local:
            raise ToolDefinitionError(
                f"Two tools are named {spec.name!r}: {_place(self._local[spec.name].home)} and {_place(tool)}. "
                "Give one another name: @tool(name='…')."
            )
        if not self._is_listed_out(LOCAL, spec.name):
            self._local[spec.name] = _Route(spec, spec.name, tool)

    def _is_listed_out(self, server: str, tool: str) -> bool:
        return tool in self._blacklist or f"{server}/{tool}" in self._blacklist

    def _name_all(self) -> None:
        routes = dict(self._local)
        offered = [(server, spec) for server in self._servers for spec in self._offers.get(server.name, ())]
        counts: dict[str, int] = {}
        for _, spec in offered:
            counts[_wire_name(spec.name)] = counts.get(_wire_name(spec.name), 0) + 1
        for server, spec in offered:
            name = _wire_name(spec.name)
            if counts[name] > 1 or name in self._local:
                name = _wire_name(f"{server.name}-{spec.name}")
            if name in routes:
                other = routes[name].spec.server_name or LOCAL
                self._problems[server.name] = (
                    f"The tool {spec.name!r} of MCP server {server.name!r} is not offered: {name!r} is the name of a "
                    f"tool of {other!r} already. Give the server another name, or blacklist one of the two."
                )
                continue
            routes[name] = _Route(replace(governed(spec), name=name), spec.name, server)
        self._routes = routes
        self._specs = tuple(routes[name].spec for name in sorted(routes))


def _wire_name(name: str) -> str:
    """A name that every vendor's API accepts: letters, digits, _ and -, at most 64."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return clean if len(clean) <= _NAME_LENGTH else clean[:_NAME_LENGTH]


def _place(tool: object) -> str:
    function: Callable[..., Any] = getattr(tool, "function", type(tool))
    return f"{function.__module__}.{getattr(function, '__qualname__', type(tool).__qualname__)}"


def _definition(server: str, specs: Sequence[ToolSpec]) -> dict[str, Any]:
    return {
        "name": server,
        "tools": [
            {"name": spec.name, "description": spec.description, "schema": dict(spec.parameters)}
            for spec in sorted(specs, key=lambda spec: spec.name)
        ],
    }


def _result(value: Any) -> Any:
    from closeout.outputs.models import ToolOutput

    return value.result if isinstance(value, ToolOutput) else value
