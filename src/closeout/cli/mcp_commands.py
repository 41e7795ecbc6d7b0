"""`closeout mcp list | tools | prompts | login | pin …`: the MCP servers of the settings; alone, serve tools."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeout.cli.exits import FAILED, OK, CommandGroup, guarded
from closeout.cli.option_types import AgentSource, BaseUrl, Json, Mcp, Model, Profile, Settings
from closeout.errors import UsageError
from closeout.visible import visible

if TYPE_CHECKING:
    from pathlib import Path

    from closeout.tools.mcp.mcp_client import McpServer, ServerOffer
    from closeout.tools.mcp.mcp_config import McpServerConfig

__all__ = ["mcp_app"]

LOGIN_SECONDS = 600.0

mcp_app = typer.Typer(
    cls=CommandGroup,
    help="Serve tools over MCP, or sign in to servers and list their tools.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

ServerName = Annotated[str, typer.Argument(metavar="NAME|URL", help="A server of the settings, or an address")]


@mcp_app.callback()
def serve_over_mcp(
    context: typer.Context,
    agent: AgentSource = None,
    model: Model = None,
    base_url: BaseUrl = None,
    config: Settings = None,
    profile: Profile = None,
) -> None:
    """Serve the web tools over MCP on stdin and stdout, for any MCP client; with --agent that agent, as one tool.

    With a command: sign in to the MCP servers of the settings, and list their tools.
    """
    if context.invoked_subcommand is None:
        _serve(agent=agent, model=model, base_url=base_url, config=config, profile=profile)


@guarded
def _serve(**options: Any) -> int:
    from closeout.cli.options import options_in, read_settings

    named = options_in(options)
    if named.agent is not None:
        from closeout.cli.servers import serve_mcp

        return serve_mcp(named, name=None, description=None)
    from closeout.cli.environment import serve_web_tools

    return serve_web_tools(named.model, named.base_url, read_settings(named.config, named.profile))


@mcp_app.command("list")
@guarded
def list_servers(
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """List the MCP servers of the settings, and who is signed in. Nothing is started."""
    from closeout.cli.terminal import print_json
    from closeout.tools.mcp.mcp_logins import same_address, saved_logins

    servers = _servers(locals())
    rows = [_row(server) for server in servers]
    known = {same_address(server.url) for server in servers if server.url}
    rows += [
        {"name": each.get("name"), "transport": "http", "address": each["url"], "login": _login_state(each)}
        for each in saved_logins()
        if each["url"] not in known
    ]
    if json:
        print_json(rows)
        return OK
    for row in rows:
        print(visible(f"{row['name']}  {row['transport']}  {row['address']}  {row['login']}".rstrip()))
    if not rows:
        print("No MCP servers. Add them in the settings under tools.mcp_servers.", file=sys.stderr)
    return OK


@mcp_app.command("tools")
@guarded
def list_tools(
    name: ServerName,
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Start a server and list its tools."""
    import asyncio

    from closeout.cli.terminal import one_line, print_json, say_error

    offer = asyncio.run(_offer_of(_chosen(name, _servers(locals()))))
    if json:
        listed = [
            {"name": each.name, "description": each.description, "schema": each.parameters} for each in offer.tools
        ]
        print_json({"tools": listed, "problems": list(offer.problems)})
        return OK
    for each in offer.tools:
        print(visible(f"{each.name}  {one_line(each.description, 100)}".rstrip()))
    for problem in offer.problems:
        say_error(problem)
    return OK


@mcp_app.command("prompts")
@guarded
def list_prompts(
    name: ServerName,
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Start a server and list its prompts with their arguments."""
    import asyncio

    from closeout.cli.chat_templates import prompt_line
    from closeout.cli.terminal import print_json
    from closeout.tools.mcp.mcp_prompts import listed_prompts

    found = asyncio.run(_used(_chosen(name, _servers(locals())), listed_prompts))
    if json:
        print_json(found)
        return OK
    for each in found:
        print(visible(prompt_line(each)))
    return OK


@mcp_app.command("prompt")
@guarded
def show_prompt(
    name: ServerName,
    prompt: Annotated[str, typer.Argument(help="One of the server's prompts")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]…", help="Its arguments")] = None,
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
) -> int:
    """Print a server's prompt, with its arguments filled in."""
    import asyncio
    from functools import partial

    from closeout.cli.chat_templates import named_values
    from closeout.tools.mcp.mcp_prompts import rendered_prompt

    act = partial(rendered_prompt, name=prompt, arguments=named_values(arguments or ()))
    print(asyncio.run(_used(_chosen(name, _servers(locals())), act)))
    return OK


@mcp_app.command("login")
@guarded
def login(
    name: ServerName,
    scope: Annotated[str, typer.Option(help="Scopes to ask for besides those that the server names")] = "",
    port: Annotated[int | None, typer.Option(help="The loopback port of the callback; 0 is a free one", min=0)] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser")] = True,
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Sign in to a server over HTTP, in the browser or with a code."""
    import asyncio

    from closeout.cli.terminal import amount, print_json
    from closeout.tools.mcp.mcp_logins import delete_login, read_login

    server = _chosen(name, _servers(locals()))
    if not server.url:
        raise UsageError(f"MCP server {server.name!r} is a process on this computer: it needs no login.")
    if any(header.lower() == "authorization" for header in server.headers):
        raise UsageError(f"MCP server {server.name!r} has a key in its headers. Remove it to sign in instead.")
    before = read_login(server.url)
    offer = asyncio.run(_sign_in(server, scope.split(), port, with_browser=browser))
    found = read_login(server.url)
    is_signed_in = found is not None and found != before
    if before is not None and not is_signed_in:  # the server did not ask for one
        delete_login(server.url)
    if json:
        print_json({"server": server.name, "signed_in": is_signed_in, "tools": [each.name for each in offer.tools]})
        return OK
    said = "Signed in to" if is_signed_in else "No login was asked for by"
    print(f"{said} {server.name}: {amount(len(offer.tools), 'tool')}.", file=sys.stderr)
    return OK


@mcp_app.command("logout")
@guarded
def logout(
    name: ServerName,
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
) -> int:
    """Forget the login to a server, and revoke it where possible."""
    import asyncio

    from closeout.tools.mcp.mcp_client import require_mcp
    from closeout.tools.mcp.mcp_logins import delete_login, read_login

    server = _chosen(name, _servers(locals()))
    if not server.url or read_login(server.url) is None:
        print(f"There was no login to {server.name}.", file=sys.stderr)
        return FAILED
    require_mcp()
    from closeout.tools.mcp.mcp_oauth import revoke_login

    try:
        problem = asyncio.run(revoke_login(server))
    finally:
        delete_login(server.url)
    print(f"Signed out of {server.name}. {problem}".rstrip(), file=sys.stderr)
    return OK


@mcp_app.command("pin")
@guarded
def pin_tools(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", help="Only these servers")] = None,
    lock: Annotated[str | None, typer.Option(help="The lock file; by default that of the settings")] = None,
    agent: AgentSource = None,
    mcp: Mcp = None,
    config: Settings = None,
    profile: Profile = None,
    json: Json = False,
) -> int:
    """Write the tools of the servers, as they are, into the lock file.

    With tools.mcp_lock in the settings, a server whose tools have changed since is not used.
    """
    import asyncio
    from pathlib import Path

    from closeout.cli.terminal import amount, print_json
    from closeout.tools.mcp.mcp_lock import LOCK_FILE, is_pinning, pin

    pinning = is_pinning.set(True)
    try:
        known_lock, found = _lock_and_servers(locals())
    finally:
        is_pinning.reset(pinning)
    servers = [_chosen(name, found) for name in names] if names else found
    if not servers:
        raise UsageError("There are no MCP servers to pin. Add them in the settings under tools.mcp_servers.")
    file = Path(lock or known_lock or LOCK_FILE).expanduser()

    async def offers() -> list[ServerOffer]:
        return await asyncio.gather(*map(_offer_of, servers))

    listed = {server.name: offer.tools for server, offer in zip(servers, asyncio.run(offers()), strict=True)}
    changes = pin(file, listed)
    if json:
        print_json({"file": str(file), "changes": changes})
        return OK
    for change in changes:
        print(change)
    print(f"{amount(sum(map(len, listed.values())), 'tool')} in {file}.", file=sys.stderr)
    if known_lock is None:
        print(f"To use it, put into the settings: tools: {{mcp_lock: {file}}}", file=sys.stderr)
    return OK


# ------------------------------------------------------------------------------------------------ what they share


def _servers(parameters: Mapping[str, Any]) -> tuple[McpServerConfig, ...]:
    return _lock_and_servers(parameters)[1]


def _lock_and_servers(parameters: Mapping[str, Any]) -> tuple[str | Path | None, tuple[McpServerConfig, ...]]:
    """Return the lock file and the servers of a command's agent: of its settings and sub-agents, and of `--mcp`."""
    from closeout.cli.options import make_agent, options_in, read_settings
    from closeout.tools.mcp.mcp_config import read_servers

    options = options_in(parameters)
    if options.is_python:
        from closeout.run.subagents import servers_of

        plan = make_agent(options).plan()
        return plan.manager.mcp_lock, tuple({server.name: server for server in servers_of(plan)}.values())
    settings = read_settings(options.settings, options.profile)
    below = (each for entry in settings.agent.sub_agents.values() for each in read_servers(entry.mcp_servers))
    servers = (*read_servers(settings.tools.mcp_servers), *read_servers(options.mcp), *below)
    return settings.tools.mcp_lock, servers


def _chosen(name: str, servers: Sequence[McpServerConfig]) -> McpServerConfig:
    from closeout.tools.mcp.mcp_config import read_servers
    from closeout.tools.mcp.mcp_logins import same_address

    is_url = name.lower().startswith(("http://", "https://"))
    for server in servers:
        if server.name == name or (is_url and server.url and same_address(server.url) == same_address(name)):
            return server
    if is_url:
        return read_servers(name)[0]
    known = ", ".join(server.name for server in servers) or "none"
    raise UsageError(f"No MCP server {name!r} in the settings. There are: {known}. A URL can be given instead.")


async def _offer_of(config: McpServerConfig) -> ServerOffer:
    async with _closing(config) as server:
        return await server.open()


async def _used(config: McpServerConfig, act: Callable[[Any], Awaitable[Any]]) -> Any:
    async with _closing(config) as server:
        return await server.use(act)


def _closing(config: McpServerConfig) -> aclosing[McpServer]:
    """Return a context manager that ends the server's process."""
    from closeout.tools.mcp.mcp_client import McpServer, require_mcp

    require_mcp()
    return aclosing(McpServer(config))


async def _sign_in(
    config: McpServerConfig, scopes: Sequence[str], port: int | None, *, with_browser: bool
) -> ServerOffer:
    import webbrowser

    from closeout.tools.mcp.mcp_auth import McpAuth
    from closeout.tools.mcp.mcp_callback import callback_on

    auth = config.auth or McpAuth()
    if auth.grant != "authorization_code":
        return await _offer_of(config)

    def show(page: str) -> None:
        print(f"Sign in here:\n{page}", file=sys.stderr)
        if sys.stdin.isatty():
            print("Or paste the address, or the code, that the browser ends at.", file=sys.stderr)
        sys.stderr.flush()
        if with_browser and _has_screen():
            # A browser in the terminal ends only when it is left.
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

    async with callback_on(auth.callback_port if port is None else port, show, sys.stdin) as (callback, used):
        mine = replace(auth, scopes=(*auth.scopes, *scopes), callback_port=used, sign_in=callback.sign_in, is_new=True)
        return await _offer_of(replace(config, auth=mine, start_timeout=LOGIN_SECONDS))


def _has_screen() -> bool:
    """True if a browser can be opened: on Linux one needs a display, or the name of a program."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def _row(server: McpServerConfig) -> dict[str, Any]:
    from closeout.tools.mcp.mcp_logins import read_login

    row: dict[str, Any] = {"name": server.name, "transport": server.transport, "address": server.address, "login": ""}
    if server.url:
        login = read_login(server.url)
        if any(name.lower() == "authorization" for name in server.headers):
            row["login"] = "key"
        elif server.auth is not None and server.auth.grant == "client_credentials":
            row["login"] = "client credentials"
        elif login is not None:
            row["login"] = _login_state(login)
        elif server.auth is not None:
            row["login"] = "not signed in"
    return row


def _login_state(login: dict[str, Any]) -> str:
    ends = login.get("expires_at")
    if not isinstance(ends, int | float) or ends > time.time() or login.get("tokens", {}).get("refresh_token"):
        return "signed in"
    return "expired"
