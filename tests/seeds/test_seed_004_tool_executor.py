"""Seed 004: the tool executor and the tool manager, in the order of its sections."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import Agent, ToolDefinitionError, ToolManager, tool
from closeout.testing import ScriptedClient, answer, call


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"{key} is unknown"


class Manager:
    """A manager of another system."""

    async def get_all_tool_definitions(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"key": {"type": "string"}}}
        return [{"name": "srv", "tools": [{"name": "look", "description": "Look.", "schema": schema}]}]

    async def execute_tool_call(self, server_name: str, tool_name: str, arguments: Any) -> dict[str, Any]:
        return {"result": f"{server_name} knows {arguments['key']}"}


async def test_a_manager_is_an_agents_tools_with_and_without_a_list_around_it() -> None:
    for manager, shown in ((Manager(), "srv knows a"), (ToolManager([look]), "a is unknown")):
        for tools in (manager, [manager]):
            model = ScriptedClient([call("look", key="a"), answer("1")])
            await Agent(model, tools, home=False).run("?")  # type: ignore[arg-type]
            assert model.requests[-1].messages[-1].text == shown
        with pytest.raises(ToolDefinitionError, match="Pass it alone"):
            Agent(ScriptedClient([]), [look, manager], home=False)  # type: ignore[list-item]
