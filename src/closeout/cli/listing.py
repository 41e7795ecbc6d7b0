"""The commands that say what an agent would have: its tools, its settings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from closeout.cli import exits
from closeout.cli.console import one_line, print_json
from closeout.cli.guard import say_error
from closeout.cli.options import RunOptions, make_agent, read_settings
from closeout.config import Config, home_folder, known_keys

__all__ = ["list_tools", "show_config"]


def list_tools(options: RunOptions, *, as_json: bool) -> int:
    """The tools that an agent with these options would have. MISUSED if an MCP server does not start."""
    specs, problems = asyncio.run(_found(options))
    if as_json:
        tools = [
            {"name": s.name, "server": s.server_name, "description": s.description, "parameters": s.parameters}
            for s in specs
        ]
        print_json({"tools": tools, "problems": problems})
    else:
        for spec in specs:
            where = f"  [{spec.server_name}]" if spec.server_name else ""
            parameters = ", ".join(spec.parameters.get("properties", {}))
            print(f"{spec.name}({one_line(parameters)}){where}\n    {one_line(spec.description)}")
    for problem in problems:
        say_error(problem)
    return exits.MISUSED if problems else exits.OK


async def _found(options: RunOptions) -> tuple[list[Any], list[str]]:
    plan = make_agent(options, api_key="not needed").plan()
    try:
        async with plan.manager as manager:
            return list(manager.specs()), [str(problem) for problem in manager.problems]
    finally:
        await plan.client.aclose()


def show_config(settings: tuple[str, ...], *, as_json: bool) -> int:
    """Every setting with its value; of the key and of what servers are sent only whether it is set."""
    config = read_settings(settings)
    if as_json:
        tree = config.model_dump(mode="json")
        tree["llm"]["api_key"] = "set" if config.llm.api_key else None
        tree["tools"]["mcp_servers"] = _without_secrets(tree["tools"]["mcp_servers"])
        print_json({"home": str(home_folder()), **tree})
        return exits.OK
    print(f"# runs are kept in {home_folder()}")
    for key, value in _values(config):
        print(f"{key} = {'(set)' if key == 'llm.api_key' and value else json.dumps(value, ensure_ascii=False)}")
    return exits.OK


def _values(config: Config) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key in known_keys():
        if "NAME" in key:
            limits = config.agent.sub_agents.items()
            found += [(key.replace("NAME", name), getattr(limit, key.split(".")[-1])) for name, limit in limits]
            continue
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        found.append((key, _without_secrets(value) if key == "tools.mcp_servers" else value))
    return found


def _without_secrets(servers: Any) -> Any:
    """MCP servers as they are set, without the values of their environment and headers."""
    if isinstance(servers, dict):
        return {
            key: dict.fromkeys(value, "(set)")
            if key in ("env", "headers") and isinstance(value, dict)
            else _without_secrets(value)
            for key, value in servers.items()
        }
    return [_without_secrets(server) for server in servers] if isinstance(servers, list) else servers
