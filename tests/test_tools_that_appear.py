"""Tools that appear in the middle of a run, when its state has the name that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, ToolOutput, tool
from closeout.journal.store import open_store
from closeout.run.lifecycle import replay_run
from closeout.testing import RequestView, ScriptedClient, answer, call
from journal_file import cuts


@tool(read_only=True)
def log_in(name: str) -> ToolOutput:
    """Log in."""
    return ToolOutput(result=f"[{name}] is in", state_update={"account": name})


@tool(read_only=True, needs_state="account")
def orders() -> str:
    """List the orders."""
    return "[A1, A2]"


def customer(view: RequestView) -> Any:
    """Tries the tool too early once, then logs in."""
    if "[A1, A2]" in view.text:
        return answer("A1, A2")
    if "is in" in view.text:
        return call("orders")
    return call("log_in", name="ann") if "No tool is named" in view.text else call("orders")


def shop(home: Path, **options: Any) -> tuple[Agent, ScriptedClient]:
    client = ScriptedClient(customer)
    return Agent(client, [log_in, orders], home=home, **options), client


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
async def test_a_tool_is_offered_when_the_state_has_what_it_needs(home: Path, dialect: str) -> None:
    agent, client = shop(home, dialect=dialect)
    result = await agent.run("Which orders?", run_id="r")
    assert (result.answer, result.state) == ("A1, A2", {"account": "ann"})
    offered = ["List the orders." in str((each.messages, each.tools, each.prompt)) for each in client.requests]
    assert offered == sorted(offered)
    assert (offered[0], offered[-1]) == (False, True)
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure) == ("A1, A2", "")


async def test_killed_after_any_event_the_tool_is_there_where_it_was(home: Path) -> None:
    await shop(home)[0].run("Which orders?", run_id="r")
    for kept in cuts(home):
        result = await shop(home)[0].resume("r")
        assert (result.answer, result.state) == ("A1, A2", {"account": "ann"}), kept


async def test_a_message_of_a_session_and_programs_have_the_tool_from_the_beginning(home: Path) -> None:
    agent, client = shop(home)
    session = agent.session("ann")
    await session.run("Which orders?")
    await session.run("Which orders?")
    assert [tool.name for tool in client.requests[-1].tools if tool.name == "orders"]
    script = ["```python\nprint(log_in(name='ann'))\n```", "```python\nfinal_answer(orders())\n```"]
    agent = Agent(ScriptedClient(script), [log_in, orders], dialect="code", home=home)
    assert (await agent.run("Which orders?")).answer == "[A1, A2]"
