"""The tools that settings and names stand for: built-in ones, and sub-agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

from closeout.assembly.named import named_object
from closeout.config import SubAgentSettings, ToolSettings
from closeout.errors import ConfigError, ToolDefinitionError, UsageError
from closeout.run.agent_tool import SubAgentTool
from closeout.run.handoff import Handoff
from closeout.run.plan import MAX_DEPTH, is_plain_class
from closeout.run.subagents import as_tool
from closeout.spelling import suggestion
from closeout.tools import builtin
from closeout.tools.builtin.python_isolation import find_isolation
from closeout.tools.manager import AnyTool, ToolManager

__all__ = [
    "BUILT_IN",
    "WEB",
    "built_in_tool",
    "check_deps_types",
    "check_sub_agents",
    "configured_sub_agents",
    "with_settings",
]

WEB = ("web_search", "scrape_website", "scrape_and_extract_info")
ASKING = ("ask_about_image", "reasoning", "transcribe")
BUILT_IN = ("ask_user", "calculate", "extract", "fetch_url", "run_command", "run_python", *ASKING, *WEB)


def built_in_tool(name: str, settings: ToolSettings) -> AnyTool:
    """Return a built-in tool by its name.

    Raises:
        ToolDefinitionError: No tool has this name.
        ConfigError: Nothing on this machine isolates scripts and commands.
    """
    if name not in BUILT_IN:
        raise ToolDefinitionError(
            f"No built-in tool is named {name!r}. There are: {', '.join(BUILT_IN)}. Pass your own as functions."
        )
    if name == "fetch_url" and settings.allow_private_addresses:
        return builtin.web_tool(allow_private=True)
    if name in ("run_command", "run_python"):
        python = settings.python
        find_isolation(python.isolation)  # before the run costs anything
        if name == "run_command":
            return builtin.command_tool(isolation=python.isolation)
        return builtin.python_tool(isolation=python.isolation, keep_variables=python.keep_variables)
    if name == "ask_user":
        return builtin.ask_tool(max_wait=settings.ask.max_wait, default=settings.ask.default)
    if name in WEB:
        return next(each for each in builtin.web_tools(settings) if each.name == name)
    found: AnyTool = getattr(builtin, name)
    return found


def with_settings(tool: Any, settings: ToolSettings) -> Any:
    """Return a web tool, or the name of a built-in tool, as the tool with these settings; any other as it is."""
    if isinstance(tool, str):
        return built_in_tool(tool, settings)
    name = getattr(tool, "name", "")
    return built_in_tool(name, settings) if name in WEB and tool is getattr(builtin, name) else tool


def configured_sub_agents(
    settings: Mapping[str, SubAgentSettings],
    own: Sequence[AnyTool],
    tool_settings: ToolSettings,
    make: Callable[[str, SubAgentSettings, list[AnyTool]], AnyTool],
) -> list[AnyTool]:
    """Make the sub-agents that the settings define.

    Args:
        settings: The section `agent.sub_agents`. Entries that only set limits are left out.
        own: The agent's tools. A sub-agent may name them.
        tool_settings: The settings of the built-in tools, which a sub-agent may name too.
        make: Makes a sub-agent of its name, its settings and its tools.

    Raises:
        ConfigError: A name or a tool is unknown, a description is missing, or sub-agents contain each other.
    """
    tools = {each.spec.name: each for each in own}
    defined = {name: each for name, each in settings.items() if each.is_definition}
    made: dict[str, AnyTool] = {}
    for name, each in defined.items():
        key = f"agent.sub_agents.{name}"
        if name in tools:
            raise ConfigError(f"'{key}' cannot define a sub-agent: the agent has a tool '{name}'. Choose another name.")
        if not each.description.strip():
            raise ConfigError(f"'{key}.description' is missing. Say when the agent should call '{name}'.")

    def find(tool_name: str, path: tuple[str, ...]) -> AnyTool:
        if tool_name in path:
            raise ConfigError(f"Sub-agents cannot contain each other: {' → '.join((*path, tool_name))}.")
        if tool_name in defined:
            if tool_name not in made:
                entry, below = defined[tool_name], (*path, tool_name)
                made[tool_name] = make(tool_name, entry, [find(each, below) for each in dict.fromkeys(entry.tools)])
            return made[tool_name]
        if tool_name in tools:
            return tools[tool_name]
        if tool_name in BUILT_IN:
            return built_in_tool(tool_name, tool_settings)
        if ":" in tool_name:
            return _imported_tool(tool_name, path[-1])
        known = sorted({*tools, *defined, *BUILT_IN} - {path[-1]})
        hint = suggestion(tool_name, known, f"Choose from: {', '.join(known)}.")
        raise ConfigError(f"Unknown tool '{tool_name}' in 'agent.sub_agents.{path[-1]}.tools'. {hint}")

    return [find(name, ()) for name in defined]


def _imported_tool(name: str, agent: str) -> AnyTool:
    try:
        return as_tool(named_object(name))
    except (UsageError, ToolDefinitionError) as error:
        raise ConfigError(f"'agent.sub_agents.{agent}.tools': {error}") from error


def check_sub_agents(configured: Collection[str], manager: ToolManager) -> None:
    """Raise ConfigError if a setting `agent.sub_agents.NAME` names no sub-agent among an agent's tools."""
    known = _sub_agent_names(manager) if configured else set()
    for name in configured:
        if name in known:
            continue
        hint = "This agent has none: set its description to define it, or pass tools=[other.as_tool(…)]."
        if known:
            hint = suggestion(name, known, f"Its sub-agents are: {', '.join(sorted(known))}.")
        raise ConfigError(f"Unknown sub-agent '{name}' in the setting 'agent.sub_agents.{name}'. {hint}")


def _sub_agent_names(manager: ToolManager, depth: int = MAX_DEPTH) -> set[str]:
    """Return the names of the sub-agents among an agent's tools, and of theirs, down to `depth`."""
    found: set[str] = set()
    for each in manager.local_tools if depth else ():
        if isinstance(each, Handoff):
            found.add(each.agent_name)
        elif isinstance(each, SubAgentTool):
            found |= {each.name, *_sub_agent_names(each.plan_of(False).manager, depth - 1)}
    return found


def check_deps_types(deps_type: Any, tools: Iterable[AnyTool]) -> None:
    """Raise ToolDefinitionError for a tool whose `RunContext[X]` the agent's dependencies would not fit."""
    if deps_type is not None and not is_plain_class(deps_type):
        return
    for each in tools:
        wanted: Any = getattr(each, "deps_type", None)
        if not is_plain_class(wanted) or wanted is NoneType:
            continue
        if deps_type is None or not issubclass(deps_type, wanted):
            has = "has no deps_type" if deps_type is None else f"has deps_type={deps_type.__name__}"
            raise ToolDefinitionError(
                f"Tool {each.spec.name!r} needs dependencies of the type {wanted.__name__}, and the agent {has}. "
                f"Pass Agent(…, deps_type={wanted.__name__}), and deps= to run(…)."
            )
