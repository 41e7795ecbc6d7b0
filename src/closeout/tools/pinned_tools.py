"""Offer the tools that a run began with, executed by the agent's current tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from closeout.errors import ToolError
from closeout.messages import ToolSpec
from closeout.tools.executor import renamed
from closeout.tools.manager import AnyTool, ToolManager
from closeout.tools.tool import Tool

__all__ = ["PinnedTool", "RemovedTool", "pin_tools"]

_ANNOTATIONS = ("title", "description", "default", "examples", "deprecated")


class PinnedTool:
    """A tool under the name and definition that it had when the run began.

    Args:
        tool: The agent's current tool.
        spec: The definition that the model was shown.
    """

    def __init__(self, tool: AnyTool, spec: ToolSpec) -> None:
        self.name = spec.name
        self.spec = spec
        self._tool = tool
        then, now = (each.parameters.get("properties") or {} for each in (spec, tool.spec))
        self._defaults = {name: each["default"] for name, each in then.items() if name in now and "default" in each}

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the current tool, with its names for the parameters and its defaults for new ones."""
        return await self._tool.call(renamed({**self._defaults, **arguments}, self._tool.spec.policy))


class RemovedTool:
    """A tool that the agent no longer has. Its calls fail with the reason.

    Args:
        spec: The definition that the model was shown.
    """

    def __init__(self, spec: ToolSpec) -> None:
        self.name = spec.name
        self.spec = spec

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Raise ToolError."""
        raise ToolError(f"The tool {self.name} no longer exists. Continue without it.")


def pin_tools(manager: ToolManager, recorded: str, used: Iterable[str]) -> tuple[ToolManager, dict[str, str]]:
    """Return a manager that offers the agent's own tools as a run began with them.

    Args:
        manager: The agent's current tools. Those of servers are not changed.
        recorded: The definitions at the beginning, as `dump_definitions` writes them.
        used: The names of tools that the run has called.

    Returns:
        The manager, and the tools whose recorded calls do not fit the current tool, each with the reason. Such a tool
        is offered with its current definition, unless the run has called it.
    """
    now = {tool.spec.name: tool for tool in manager.local_tools}
    successors = {former: tool for tool in now.values() for former in tool.spec.policy.replaces if former not in now}
    called = set(used)
    offered: list[AnyTool] = []
    misfits: dict[str, str] = {}
    for name, description, parameters in json.loads(recorded):
        tool = now.get(name) or successors.get(name)
        then = ToolSpec(name, description, parameters)
        if tool is None:
            offered.append(RemovedTool(then))
            continue
        spec = tool.spec
        if (spec.name, spec.description, spec.parameters) == (name, description, parameters) or type(tool) is not Tool:
            offered.append(tool)  # a sub-agent, or a tool of another kind, is more than its definition
            continue
        problem = _misfit(then, spec)
        if problem:
            misfits[name] = problem
            if name not in called and name == spec.name:
                offered.append(tool)
                continue
        aliases = {
            old: names for old, names in spec.policy.aliases.items() if old in (parameters.get("properties") or {})
        }
        offered.append(PinnedTool(tool, replace(then, policy=replace(spec.policy, aliases=aliases))))
    return manager.with_local(offered), {name: why for name, why in misfits.items() if name in called}


def _misfit(then: ToolSpec, now: ToolSpec) -> str:
    """Return why arguments for an older definition of a tool may not fit it now; empty if they do."""
    old, new = (spec.parameters.get("properties") or {} for spec in (then, now))
    policy = now.policy
    former = {each: name for name, others in policy.aliases.items() for each in others if each not in new}
    renames = {name: former.get(name, name) for name in old}
    demanded = set(then.parameters.get("required") or ())
    supplied = {renames[name] for name in demanded if name in renames} | policy.defaults.keys()
    for name in now.parameters.get("required") or ():
        if name not in supplied:
            return (
                f"it needs the parameter {name!r}, which calls so far may lack. Declare a value for them, "
                f"@tool(defaults={{{name!r}: …}}), or the parameter's former name, @tool(aliases={{{name!r}: …}})."
            )
    for name, target in renames.items():
        if target not in new:
            if now.parameters.get("additionalProperties") is not True:
                return f"it no longer has the parameter {name!r}. If it was renamed: @tool(aliases={{NEW: {name!r}}})."
        elif not _accepts(new[target], old[name]):
            return f"its parameter {target!r} takes other values than before. Let it take both."
    return ""


def _accepts(now: Any, then: Any) -> bool:
    """True if a schema plainly allows all that another one does: the same, or more types or options of it."""
    now, then = _bare(now), _bare(then)
    if now == then or now == {}:
        return True
    alternatives = _alternatives(now)
    if alternatives is None:
        return False
    return all(any(_is_within(each, other) for other in alternatives) for each in _alternatives(then) or [then])


def _is_within(then: Any, now: Any) -> bool:
    if now == then:
        return True
    if not isinstance(now, Mapping) or not isinstance(then, Mapping):
        return False
    if "enum" in now and "enum" in then:
        rest = [{key: value for key, value in each.items() if key != "enum"} for each in (now, then)]
        return rest[0] == rest[1] and all(value in now["enum"] for value in then["enum"])
    if now == {"type": then.get("type")}:
        return True  # the same type without its limits
    return now == {"type": "number"} and then.get("type") == "integer"


def _bare(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS}


def _alternatives(schema: Any) -> list[Any] | None:
    """The alternatives of a schema: of `anyOf`, of a list of types, or the schema itself."""
    if not isinstance(schema, Mapping):
        return None
    if schema.keys() == {"anyOf"}:
        return [_bare(each) for each in schema["anyOf"]]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": each} for each in schema["type"]]
    return [schema]
