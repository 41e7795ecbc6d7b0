"""Hold an agent's tools, local ones and those of MCP servers, in one registry, and call any of them."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard, runtime_checkable
from weakref import WeakKeyDictionary

from closeout.errors import Suspended, ToolDefinitionError, ToolError, UsageError
from closeout.messages import ToolSpec
from closeout.overrides import is_overridden, returned
from closeout.tools.call_records import Progress
from closeout.tools.mcp.mcp_client import LoginNeeded, McpServer, McpServerFailed, ServerOffer, require_mcp, wait_out
from closeout.tools.mcp.mcp_config import McpEntry, McpServerConfig, read_servers
from closeout.tools.mcp.mcp_lock import PinnedTools
from closeout.tools.run_context import RunContext, reporting_to
from closeout.tools.search_tools import make_search_tools
from closeout.tools.shipped_policies import governed
from closeout.tools.tool import Tool

__all__ = ["LOCAL", "AnyTool", "ServerProblem", "ToolManager", "is_tool", "wire_name"]

LOCAL = "local"  # the server name of local tools where one is asked for
_NAME_LENGTH = 64  # Characters that every vendor's API accepts in a tool name.


@runtime_checkable
class AnyTool(Protocol):
    """The interface of a local tool in the registry; `Tool` is one."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, Any], /) -> Any: ...


def is_tool(something: Any) -> TypeGuard[AnyTool]:
    return isinstance(something, Tool) or isinstance(something, AnyTool)  # noqa: SIM101  protocols are slow to ask


@dataclass(frozen=True, slots=True)
class ServerProblem:
    """Why a tool is not offered, or why no tool of a server is.

    `fatal` is true for a server that did not start although it is required.
    """

    server_name: str
    message: str
    fatal: bool = False

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class _Route:
    """A tool on offer: its own name, and the local tool or the server that runs it."""

    spec: ToolSpec
    name: str
    home: AnyTool | McpServer


@dataclass(slots=True)
class _MadeCall:
    """A call of `execute_tool_call` for a run, with what its dict leaves out."""

    manager: ToolManager
    progress: Progress | None = None
    value: Any = None
    result: Any = None
    failure: BaseException | None = None
    error: str = ""
    passed_on: bool = False  # `super().execute_tool_call` was called: the next call is the tool's own


_made_call: ContextVar[_MadeCall | None] = ContextVar("closeout_made_call", default=None)


class ToolManager:
    """A registry of tools under names that are unique in it.

    Servers are started by `open`, all at once, and run until `aclose`; `async with` does both. Several runs, in
    several threads too, may share a manager: the last one that leaves an event loop closes what that loop opened.

    A local tool keeps its name; two local tools with one name are a `ToolDefinitionError`. A server's tool keeps its
    name if no other tool has it; otherwise it is offered as `server-tool`, for every server that has it, so that names
    do not depend on the order in which servers answer.

    Args:
        tools: Local tools.
        mcp_servers: Servers, as `read_servers` takes them.
        blacklist: Tools that are not offered: "tool", "server/tool" or ("server", "tool").
        approval: Which tools of servers need the approval of a person: "destructive" ones (those that say so),
            "always" or "never"; or a mapping from "server" or "server/tool" to one of these.
        mcp_lock: The lock file of `closeout mcp pin`. A server with a tool whose definition is not in it is not used.
        shares_policies: The names may be of other managers' tools; otherwise each must match something.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool | Tool[..., Any]] = (),
        mcp_servers: McpEntry | Mapping[str, McpEntry] | Iterable[McpEntry] = (),
        blacklist: Iterable[str | tuple[str, str]] = (),
        approval: str | Mapping[str, str] = "destructive",
        *,
        mcp_lock: str | Path | None = None,
        shares_policies: bool = False,
    ) -> None:
        self._shares_policies = shares_policies
        self._blacklist = {entry if isinstance(entry, str) else "/".join(entry) for entry in blacklist}
        self._approval = {"": approval} if isinstance(approval, str) else dict(approval)
        self._servers = tuple(
            McpServer(config, partial(self._tools_changed, config)) for config in read_servers(mcp_servers)
        )
        self._pinned = PinnedTools(mcp_lock) if mcp_lock and self._servers else None
        self._offers: dict[str, tuple[ToolSpec, ...]] = {}  # server name → its tools, once it was reached
        self._problems: dict[str, tuple[str, ...]] = {}  # server name → what is not offered, and why
        self._missing: set[str] = set()  # names of required servers that did not start
        self._unaccepted: set[str] = set()  # names of servers with tools that nobody has accepted
        self._logins: dict[str, LoginNeeded] = {}  # required servers that a person must sign in to first
        self._collisions: dict[str, tuple[str, ...]] = {}  # the same, for names that another tool has
        self._users: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self._only: frozenset[str] | None = None  # names of the tools on offer, None: all
        self._local: dict[str, _Route] = {}
        self._own_names: set[str] = set()  # names of local tools, those on the blacklist included
        self._listed_names: dict[str, set[str]] = {}  # server name → its tools, those on the blacklist included
        for tool in tools:
            self._add(tool)
        self._check_policies()
        self._routes: dict[str, _Route] = {}
        self._specs: tuple[ToolSpec, ...] = ()
        self._name_all()

    # -------------------------------------------------------------------------------------------- what there is

    takes_progress = True  # `call` has the parameter `progress`

    @property
    def problems(self) -> tuple[ServerProblem, ...]:
        """Servers that could not be used, and tools that are not offered."""
        return tuple(
            ServerProblem(server.name, message, fatal=server.name in self._missing or server.name in self._unaccepted)
            for server in self._servers
            for message in (*self._problems.get(server.name, ()), *self._collisions.get(server.name, ()))
        )

    @property
    def servers(self) -> tuple[McpServerConfig, ...]:
        """The MCP servers as they are written in the settings."""
        return tuple(server.config for server in self._servers)

    @property
    def mcp_lock(self) -> Path | None:
        """The lock file of the servers' tools, None if they are not pinned."""
        return None if self._pinned is None else self._pinned.path

    @property
    def missing_logins(self) -> Mapping[str, LoginNeeded]:
        """The required servers that did not start because a person must sign in to them first, by name."""
        return self._logins

    @property
    def unaccepted(self) -> Set[str]:
        """The servers that are not used because of tools that differ from those of the lock file."""
        return self._unaccepted

    @property
    def has_servers(self) -> bool:
        """True if tools of MCP servers are known only after `open`."""
        return bool(self._servers)

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """The servers, which `open` starts."""
        return self._servers

    @property
    def shares_policies(self) -> bool:
        """True if names in policies may be of other managers' tools."""
        return self._shares_policies

    @property
    def local_tools(self) -> tuple[Any, ...]:
        """The tools that were passed in code, not those of servers."""
        return tuple(route.home for route in self._local.values())

    @cached_property
    def _search(self) -> dict[str, _Route]:
        """The tools that find and call the others. Made when they are needed: their schemas have to be compiled."""
        return {tool.spec.name: _Route(tool.spec, tool.name, tool) for tool in make_search_tools(self.specs)}

    @property
    def search_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that find and call the others; empty if one of the others has such a name."""
        if self._search.keys() & self._routes.keys():
            return ()
        return tuple(route.spec for route in self._search.values())

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools on offer, sorted by name: the local ones and, after `open`, those of the servers.

        It is the same object until a server's tools change.
        """
        return self._specs

    async def get_all_tool_definitions(self) -> list[dict[str, Any]]:
        """Return `[{"name": server, "tools": [{"name", "description", "schema"}, …]}, …]`, local tools under "local".

        Opens the servers if they are not open. A server with problems has an "error".
        """
        await self.open()
        listed = [_definition(LOCAL, [route.spec for route in self._local.values()])] if self._local else []
        for server in self._servers:
            listed.append(_definition(server.name, self._offers.get(server.name, ())))
            problems = (*self._problems.get(server.name, ()), *self._collisions.get(server.name, ()))
            if problems:
                listed[-1]["error"] = " ".join(problems)
        return listed

    # -------------------------------------------------------------------------------------------- opening and closing

    async def open(self) -> None:
        """Start every server that does not run, all at once. One that fails is listed in `problems`."""
        if not self._servers:
            return
        require_mcp()
        found = await asyncio.gather(*(self._reach(server) for server in self._servers))
        self._check_policies()
        offers = {server.name: specs for server, specs in zip(self._servers, found, strict=True) if specs is not None}
        if offers != self._offers:  # unchanged specs stay the same objects: what was compiled from them stays valid
            self._offers = offers
            self._name_all()

    async def aclose(self) -> None:
        """Close the sessions that this event loop opened, and end their processes, even if cancelled."""
        if not self._servers:
            return
        closing = [asyncio.create_task(server.aclose()) for server in self._servers]
        try:
            await wait_out(closing)
        finally:
            for task in closing:
                task.result()

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

    async def __aexit__(self, *_: object) -> None:
        if self._servers:
            await self._leave(asyncio.get_running_loop())

    async def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self._users[loop] -= 1
        if not self._users[loop]:
            await self.aclose()

    async def _reach(self, server: McpServer) -> tuple[ToolSpec, ...] | None:
        try:
            offer = await server.open()
        except McpServerFailed as error:
            self._problems[server.name] = (str(error),)
            self._logins.pop(server.name, None)
            if server.config.required:
                self._missing.add(server.name)
                if isinstance(error, LoginNeeded):
                    self._logins[server.name] = error
            return None
        self._missing.discard(server.name)
        self._logins.pop(server.name, None)
        changes = self._changed_since_pinned(server.config, offer)
        if changes:
            self._problems[server.name] = tuple(changes.values())
            self._unaccepted.add(server.name)  # even if it is not required: a person must look at it
            return None
        self._unaccepted.discard(server.name)
        self._listed_names.setdefault(server.name, {spec.name for spec in offer.tools})
        self._problems[server.name] = offer.problems
        return self._allowed(server.config, offer)

    def _allowed(self, config: McpServerConfig, offer: ServerOffer) -> tuple[ToolSpec, ...]:
        offered = {spec.name for spec in offer.tools if not config.only or spec.name in config.only}
        offered -= {*config.exclude}
        return tuple(
            spec for spec in offer.tools if spec.name in offered and not self._is_blacklisted(config.name, spec.name)
        )

    def _changed_since_pinned(self, config: McpServerConfig, offer: ServerOffer) -> dict[str, str]:
        """The tools whose definitions nobody has accepted, and why."""
        if self._pinned is None:
            return {}
        found = {spec.name: self._pinned.problem(config.name, spec) for spec in self._allowed(config, offer)}
        return {name: problem for name, problem in found.items() if problem}

    def _tools_changed(self, config: McpServerConfig, offer: ServerOffer) -> None:
        """Take over a server's new list of tools: `specs` returns it then."""
        changes = self._changed_since_pinned(config, offer)
        self._problems[config.name] = (*offer.problems, *changes.values())
        allowed = tuple(spec for spec in self._allowed(config, offer) if spec.name not in changes)
        if allowed != self._offers.get(config.name):
            self._offers = {**self._offers, config.name: allowed}
            self._name_all()

    # -------------------------------------------------------------------------------------------- calling

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any], progress: Progress | None = None) -> Any:
        """Call a tool with arguments that fit its schema.

        Args:
            spec: The tool.
            arguments: Its arguments.
            progress: Receives the progress that the tool reports.

        Returns:
            A local tool's value. A server's result is its text or its structured content; with images, audio or
            resources it is a `ToolOutput` whose `metadata` has every part.

        Raises:
            ToolError: The tool is unknown, the server's tool failed, or its server did. A local tool's exceptions are
                raised as they are.
        """
        route = self._routes.get(spec.name) or self._search.get(spec.name)
        if route is None:
            raise ToolError(f"Unknown tool: {spec.name}.")
        if is_overridden(self, ToolManager, "execute_tool_call"):
            asked = _made_call.get()
            if asked is None or not asked.passed_on:
                return await self._call_by_override(route, arguments, progress)
            asked.passed_on = False  # only this call was passed on: the tool may make others
            progress = asked.progress
        if not isinstance(route.home, McpServer):
            with reporting_to(progress):
                return await route.home.call(arguments)
        try:
            result = await route.home.call(route.name, arguments, route.spec.policy, progress)
        except LoginNeeded as needed:
            if route.home.config.required and (waits := RunContext.current().waits) is not None:
                await waits.login(needed.server, needed.url, str(needed), needed.scope)
            raise
        return result.value if result.is_plain else result.output(RunContext.current().files)

    async def _call_by_override(self, route: _Route, arguments: Mapping[str, Any], progress: Progress | None) -> Any:
        """Let a subclass's `execute_tool_call` make a call. A result that it returns from `super()` stays whole."""
        made = _MadeCall(self, progress)
        token = _made_call.set(made)
        try:
            answer = await returned(self.execute_tool_call(route.spec.server_name or LOCAL, route.name, arguments))
        finally:
            _made_call.reset(token)
        if not isinstance(answer, Mapping) or not ("error" in answer or "result" in answer):
            raise ToolError(f"{type(self).__name__}.execute_tool_call must return a dict with 'result' or 'error'.")
        if answer.get("error"):
            if made.failure is not None and answer["error"] == made.error:
                raise made.failure
            raise ToolError(str(answer["error"]))
        result = answer.get("result")
        return made.value if made.value is not None and result is made.result else result

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return `{"server_name", "tool_name", "result"}`, or "error" instead of "result". Raises only cancellation.

        The server name of a local tool is "local" or empty. Opens the servers if they are not open. A run calls the
        method of a subclass that overrides it, for each call.
        """
        named: dict[str, Any] = {"server_name": server_name, "tool_name": tool_name}
        asked = _made_call.get()
        made = asked if asked is not None and asked.manager is self else _MadeCall(self)
        token = _made_call.set(made)
        try:
            route = self._find(server_name, tool_name)
            if route is None and self._servers:
                await self.open()
                route = self._find(server_name, tool_name)
            if route is None:
                return {**named, "error": f"Unknown tool: {tool_name} on server {server_name}. {self._listed()}"}
            made.passed_on = True
            made.value = await self.call(route.spec, arguments)
            made.result = _result(made.value)
            return {**named, "result": made.result}
        except Suspended:
            raise
        except (Exception, SystemExit) as error:
            message = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
            prefix = f"Error executing tool {tool_name}"  # servers on the reference classes write it themselves
            made.failure, made.error = error, message if message.startswith(prefix) else f"{prefix}: {message}"
            return {**named, "error": made.error}
        finally:
            _made_call.reset(token)

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

    def add(self, tool: AnyTool) -> None:
        """Add a local tool.

        Raises:
            ToolDefinitionError: It is not a tool, or another tool has its name.
        """
        self._add(tool)
        self._name_all()

    def only(self, names: Iterable[str]) -> ToolManager:
        """Return a manager that offers only these of the tools. The two share their servers.

        Raises:
            UsageError: There is no such tool. The tools of servers are known after `open`.
        """
        chosen = copy(self)
        chosen.__dict__.pop("_search", None)
        chosen._local = dict(self._local)
        chosen._only = frozenset(names)
        unknown = sorted(chosen._only - self._routes.keys())
        if unknown and len(self._offers) == len(self._servers):
            raise UsageError(f"No tool {unknown[0]!r}. There are: {', '.join(sorted(self._routes)) or 'none'}.")
        chosen._name_all()
        return chosen

    def with_local(self, tools: Iterable[AnyTool]) -> ToolManager:
        """Return a manager that offers these in place of the local tools. The two share their servers."""
        chosen = copy(self)
        chosen.__dict__.pop("_search", None)
        chosen._local = {tool.spec.name: _Route(governed(tool.spec), tool.spec.name, tool) for tool in tools}
        chosen._name_all()
        return chosen

    def replace(self, tool: AnyTool) -> None:
        """Replace the local tool of the same name."""
        if self._local.pop(tool.spec.name, None) is not None:
            self.add(tool)

    def _add(self, tool: AnyTool) -> None:
        if not is_tool(tool):
            raise ToolDefinitionError(f"{tool!r} is not a tool. Put @tool on the function.")
        spec = governed(tool.spec)
        if spec.name in self._local:
            raise ToolDefinitionError(
                f"Two tools are named {spec.name!r}: {_place(self._local[spec.name].home)} and {_place(tool)}. "
                "Give one another name: @tool(name='…'), agent.as_tool('…'), or Handoff(agent, tool_name='…')."
            )
        self._own_names.add(spec.name)
        if not self._is_blacklisted(LOCAL, spec.name):
            self._local[spec.name] = _Route(spec, spec.name, tool)

    def _check_policies(self) -> None:
        """Refuse unknown names in blacklist and approval rules: the calls that they should stop would be made."""
        known = {LOCAL: self._own_names, **self._listed_names}
        for config in self.servers:
            for key, names in ("rename", config.rename), ("only", config.only), ("exclude", config.exclude):
                for name in names:
                    if name not in known.get(config.name, names):
                        raise _no_tool(f"{key} of the MCP server {config.name!r}", name, known[config.name])
        if self._shares_policies:
            return
        servers = {server.name for server in self._servers}
        is_complete = servers <= known.keys()
        for entry in sorted(self._blacklist):
            server, _, tool = entry.partition("/")
            if any(entry in names for names in known.values()) or tool in known.get(server, ()):
                continue
            if tool and server in known and tool not in known[server]:
                raise _no_tool("tools.blacklist", entry, known[server])
            if (tool and server not in servers) or (not tool and is_complete):
                raise _no_tool("tools.blacklist", entry, (*servers, *(n for names in known.values() for n in names)))
        for entry in sorted(filter(None, self._approval)):
            server, _, tool = entry.partition("/")
            if server not in servers:
                raise UsageError(
                    f'tools.approval names {entry!r}, but there is no MCP server {server!r}. Write "server" or '
                    f'"server/tool"; the servers are: {", ".join(sorted(servers)) or "none"}. A local tool has its '
                    "own rule: @tool(approval=…)."
                )
            if tool and server in known and tool not in known[server]:
                raise _no_tool("tools.approval", entry, known[server])

    def _is_blacklisted(self, server: str, tool: str) -> bool:
        return tool in self._blacklist or f"{server}/{tool}" in self._blacklist

    def _name_all(self) -> None:
        routes = dict(self._local)
        offered = [
            (server, spec, wire_name(server.config.rename.get(spec.name, spec.name)))
            for server in self._servers
            for spec in self._offers.get(server.name, ())
        ]
        counts = Counter(name for *_, name in offered)
        collisions: dict[str, list[str]] = {}
        for server, spec, name in offered:
            if counts[name] > 1 or name in self._local:
                name = wire_name(f"{server.name}-{name}")
            if name in routes and routes[name].name != spec.name:  # two names that differ in what no API accepts
                name = f"{name[: _NAME_LENGTH - 9]}-{hashlib.sha256(spec.name.encode()).hexdigest()[:8]}"
            if name in routes:
                other = routes[name].spec.server_name or LOCAL
                collisions.setdefault(server.name, []).append(
                    f"The tool {spec.name!r} of MCP server {server.name!r} is not offered: {other!r} already has a "
                    f"tool named {name!r}. Give the server another name, or blacklist one of the two."
                )
                continue
            routes[name] = _Route(self._approved(replace(governed(spec), name=name), spec.name), spec.name, server)
        self._collisions = {name: tuple(messages) for name, messages in collisions.items()}
        self._routes = {name: routes[name] for name in routes if self._only is None or name in self._only}
        self._specs = tuple(self._routes[name].spec for name in sorted(self._routes))

    def _approved(self, spec: ToolSpec, name: str) -> ToolSpec:
        """The tool of a server with the rule for the approval of its calls."""
        rules = self._approval
        places = (f"{spec.server_name}/{name}", spec.server_name or "", "")
        rule = next((rules[place] for place in places if place in rules), "destructive")
        if rule == "never" or (rule == "destructive" and not spec.policy.destructive):
            return spec
        return replace(spec, policy=replace(spec.policy, approval="always"))


def _no_tool(setting: str, entry: str, names: Iterable[str]) -> UsageError:
    return UsageError(
        f"{setting} names {entry!r}, which does not exist. There are: {', '.join(sorted({*names})) or 'none'}."
    )


def wire_name(name: str) -> str:
    """Return a name that every vendor's API accepts: letters, digits, _ and -, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_NAME_LENGTH]


def _place(tool: Any) -> str:
    if hasattr(tool, "plan_of"):  # an agent, whose function is ours
        return f"the agent {tool.spec.description!r:.80}"
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
    from closeout.results.tool_output import ToolOutput

    return value.result if isinstance(value, ToolOutput) else value
