"""Settings of the servers that the command line starts: keys, addresses, names; an agent as an MCP tool."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from closeout.cli.exits import OK
from closeout.cli.options import RunOptions, is_settings_file, make_agent
from closeout.errors import ConfigError, ToolError, UsageError
from closeout.stray_output import stray_output_to_stderr

if TYPE_CHECKING:
    from closeout.config import Config
    from closeout.tools.flow import Flow

__all__ = [
    "PROXY_DIALECTS",
    "UPSTREAM_KEY",
    "deps_maker",
    "flow_rules",
    "kind_of",
    "log_warnings",
    "name_of",
    "one_of",
    "say",
    "serve_mcp",
    "usable_keys",
]

KEY_VARIABLE = "CLOSEOUT_SERVER_KEY"
UPSTREAM_KEY = "CLOSEOUT_UPSTREAM_KEY"
APIS = ("auto", "openai", "anthropic")
PROXY_DIALECTS = ("auto", "text")


def usable_keys(file: str | None, address: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of a file, one on each line, and the operator's key from the environment.

    Raises:
        ConfigError: The file cannot be read or has no keys, or other computers could use the server without a key.
    """
    from closeout.server.serving import check_address

    keys = () if file is None else _read_keys(file)
    operator_key = os.environ.get(KEY_VARIABLE, "").strip()
    operator_keys = (operator_key,) if operator_key else ()
    if any(len(key) < 8 for key in (*keys, *operator_keys)):
        raise UsageError("A server key must have at least 8 characters.")
    check_address(address, (*keys, *operator_keys))
    return keys, operator_keys


def one_of(option: str, value: str, known: tuple[str, ...]) -> Any:
    """Return the value of an option.

    Raises:
        UsageError: It is unknown.
    """
    if value not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)}, got {value:.80}.")
    return value


def kind_of(upstream: str, api: str) -> Any:
    """Return the kind of API that `--api` names; "auto" tells it by the address of the model server."""
    if not upstream.strip():
        raise UsageError("--upstream is empty. Give the address of the model server, such as http://localhost:8000/v1.")
    if one_of("--api", api, APIS) != "auto":
        return api
    host = urlsplit(upstream).hostname or ""
    return "anthropic" if host == "anthropic.com" or host.endswith(".anthropic.com") else "openai"


@stray_output_to_stderr()
def deps_maker(option: str | None, config: Config) -> Any:
    """Return the function that makes the dependencies of runs, None if neither --deps nor the settings name one."""
    from closeout.assembly.named import named_object

    name = config.agent.deps if option is None else option
    return None if name is None else named_object(name)


def flow_rules(file: str) -> Flow:
    """Return the flow rules in the section `flow` of a settings file.

    Raises:
        ConfigError: The file cannot be read, or has no such section.
        UsageError: The rules are not valid.
    """
    from closeout.assembly.checks import check_flow
    from closeout.config import load_config

    settings = load_config(file).flow
    rules = check_flow(settings and settings.model_dump())
    if rules is None:
        raise ConfigError(f"{file} has no section 'flow'. Write the rules into it, such as 'flow: {{guard: ask}}'.")
    return rules


def say(text: str) -> None:
    """Print a line on stderr at once."""
    print(text, file=sys.stderr, flush=True)


def log_warnings() -> None:
    """Print the warnings of libraries on stderr."""
    logging.basicConfig(level=logging.WARNING, format="closeout: %(message)s", stream=sys.stderr)


def serve_mcp(options: RunOptions, *, name: str | None, description: str | None) -> int:
    """Offer an agent as an MCP tool on stdin and stdout. Return the exit code."""
    from closeout.assembly.task_templates import task_templates
    from closeout.journal.events import Event, ToolStarted
    from closeout.journal.subscribers import Progress
    from closeout.run.subagents import may_destroy
    from closeout.server.serve.mcp_runs import TOOL_DESCRIPTION, tool_name
    from closeout.tools.mcp.mcp_server import serve_tools
    from closeout.tools.run_context import RunContext
    from closeout.tools.tool import tool

    agent = make_agent(options)
    agent.plan().with_deps(None)  # refuses an agent without the dependencies that it needs
    offered_name = tool_name(name or name_of(agent, options.agent))
    templates = task_templates(agent.config.agent)

    async def ask(task: str) -> dict[str, Any]:
        """Run the agent.

        Args:
            task: What it should find out or do, with everything that it needs to know.
        """
        calls, context = count(1), RunContext.current()

        def report(event: Event | Progress) -> None:
            if isinstance(event, ToolStarted):
                context.progress(next(calls), message=event.name)

        result = await agent.run(task, listeners=[report])
        if result.answer is None:
            reason = result.error or f"No answer was found ({result.stop_reason})."
            raise ToolError(f"{reason} Its run is {result.run_id}.")
        return {"answer": result.answer, "run_id": result.run_id}

    async def serve() -> None:
        async with agent:
            destructive = may_destroy(agent.plan())
            as_tool = tool(
                name=offered_name, description=description or TOOL_DESCRIPTION, timeout=None, destructive=destructive
            )
            await serve_tools([as_tool(ask)], name=offered_name, prompts=templates)

    asyncio.run(serve())
    return OK


def name_of(agent: Any, source: str | None) -> str:
    """Return the name that clients use: the agent's own, or that of its file."""
    if agent.name != "agent" or source is None:
        return str(agent.name)
    return Path(source).stem if is_settings_file(source) else source.rpartition(":")[2].rpartition(".")[2]


def _read_keys(file: str) -> tuple[str, ...]:
    """Return the keys of a file, one on each line. Raises ConfigError if it cannot be read, or has no keys."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The keys in {file} cannot be read: {error}.") from None
    found = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not found:
        raise ConfigError(f"{file} has no keys. Write one on each line.")
    return found
