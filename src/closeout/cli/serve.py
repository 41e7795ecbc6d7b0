"""The command `serve`: offer an agent over HTTP, or as an MCP tool."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from closeout.cli.agents import is_settings_file, load_agent
from closeout.cli.exits import OK
from closeout.cli.options import RunOptions
from closeout.errors import ConfigError, ToolError, UsageError

__all__ = ["Listening", "serve_command", "serve_mcp_command"]

KEY_VARIABLE = "CLOSEOUT_SERVER_KEY"
DESCRIPTION = "An agent that works on a task with tools of its own until it has an answer."  # as an MCP tool


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and who may use it.

    Attributes:
        address: The address.
        port: The port; 0 chooses a free one.
        keys_file: A file with a key on each line, or None.
    """

    address: str
    port: int
    keys_file: str | None

    def keys(self) -> tuple[str, ...]:
        """Return the keys of which a client must send one.

        Raises:
            ConfigError: The file cannot be read, or other computers could use the server without a key.
        """
        from closeout.server.serving import check_address

        keys = _read_keys(self.keys_file)
        check_address(self.address, keys)
        return keys


def serve_command(
    source: str | None,
    options: RunOptions,
    listening: Listening,
    *,
    name: str | None,
    max_runs: int,
    max_queue: int,
    drain_seconds: float,
) -> int:
    """Serve an agent over HTTP until a signal stops it. Return the exit code."""
    keys = listening.keys()
    agent = load_agent(source, options)

    async def serve() -> None:
        from closeout.run.subagents import clients_of
        from closeout.server.host import AgentHost
        from closeout.server.serving import agent_app, serve_until_stopped

        host = AgentHost(
            agent,
            name=name or _name(agent, source),
            max_runs=max_runs,
            max_queue=max_queue,
            origin=_origin(source, options),
            drain_seconds=drain_seconds,
        )
        app = agent_app(host, address=listening.address, keys=keys)

        def ready(url: str) -> None:
            print(f"Serving {host.name} at {url}/v1 (Ctrl-C stops)", file=sys.stderr, flush=True)

        def stopping() -> None:
            print("Stopping. Runs that do not end in time are resumed at the next start.", file=sys.stderr, flush=True)

        try:
            await serve_until_stopped(app, listening.address, listening.port, on_ready=ready, before_stop=stopping)
        finally:
            for client in clients_of(agent.plan()):
                await client.aclose()

    logging.basicConfig(level=logging.WARNING, format="closeout: %(message)s", stream=sys.stderr)
    asyncio.run(serve())
    return OK


def serve_mcp_command(source: str | None, options: RunOptions, *, name: str | None, description: str | None) -> int:
    """Offer an agent as an MCP tool on stdin and stdout. Return the exit code."""
    from closeout.tools.mcp_server import serve_tools
    from closeout.tools.tool import tool

    agent = load_agent(source, options)
    tool_name = re.sub(r"\W+", "_", name or _name(agent, source)).strip("_") or "agent"

    @tool(name=tool_name, description=description or DESCRIPTION, timeout=None)
    async def ask(task: str) -> dict[str, Any]:
        """Run the agent.

        Args:
            task: What it should find out or do, with everything that it needs to know.
        """
        result = await agent.run(task)
        if result.answer is None:
            reason = result.error or f"No answer was found ({result.stop_reason})."
            raise ToolError(f"{reason} Its run is {result.run_id}.")
        return {"answer": result.answer, "run_id": result.run_id}

    async def serve() -> None:
        async with agent:
            await serve_tools([ask], name=tool_name)

    asyncio.run(serve())
    return OK


def _origin(source: str | None, options: RunOptions) -> dict[str, Any]:
    """What `closeout resume` needs to make the agent again."""
    if source is None:
        return options.as_origin()
    if is_settings_file(source):
        return replace(options, config=(source, *options.config)).as_origin()
    return {"agent": source}


def _name(agent: Any, source: str | None) -> str:
    """The name that clients use: the agent's own, or that of its file."""
    if agent.name != "agent" or source is None:
        return str(agent.name)
    return Path(source).stem if is_settings_file(source) else source.rpartition(":")[2].rpartition(".")[2]


def _read_keys(file: str | None) -> tuple[str, ...]:
    """Return the keys of a file, one on each line, and of the environment.

    Raises:
        ConfigError: The file cannot be read, or has no keys.
    """
    keys = [os.environ.get(KEY_VARIABLE, "").strip()]
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The keys in {file} cannot be read: {error}.") from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise ConfigError(f"{file} has no keys. Write one on each line.")
        keys += found
    return _usable(tuple(filter(None, keys)))


def _usable(keys: Sequence[str]) -> tuple[str, ...]:
    if any(len(key) < 8 for key in keys):
        raise UsageError("A server key must have at least 8 characters.")
    return tuple(keys)
