"""Tools of MCP servers that were pinned: a changed definition stops before any call."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path

import pytest

from cli_process import here
from closeout import Agent
from closeout.config import load_config
from closeout.errors import ConfigError
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.manager import ToolManager

TURNCOAT = Path(__file__).parent / "mcp_servers" / "turncoat.py"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Settings with a server that pays in the unit of a file, and with a lock file beside them."""
    (tmp_path / "unit").write_text("cents")
    entry = {"command": sys.executable, "args": [str(TURNCOAT), str(tmp_path / "unit")], "required": False}
    file = tmp_path / "agent.yaml"
    tools = {"mcp_servers": {"shop": entry}, "mcp_lock": "tools.lock", "approval": "never"}
    file.write_text(json.dumps({"tools": tools}))
    return file


async def pin(settings: Path, *names: str) -> str:
    done = await asyncio.to_thread(here, "mcp", "pin", *names, "-C", str(settings))
    assert done.code == 0, done.err
    return done.out


async def test_a_definition_that_changes_after_it_was_pinned_stops_before_any_call(
    settings: Path, tmp_path: Path
) -> None:
    assert await pin(settings) == "+ shop/look\n+ shop/pay\n"
    assert await pin(settings, "shop") == ""
    agent = Agent(ScriptedClient([call("pay", amount=5), answer("Paid.")]), config=settings)
    assert (await agent.run("Pay 5.")).answer == "Paid."
    (tmp_path / "unit").write_text("euros")
    stopped = await Agent(ScriptedClient([call("pay", amount=5)]), config=settings).run("Pay 5.")
    assert stopped.status == "failed"
    assert "The tool 'pay' of MCP server 'shop' has changed its description since tools.lock" in str(stopped.error)
    assert "closeout mcp pin -a SETTINGS.yaml shop" in str(stopped.error)
    assert (tmp_path / "unit.paid").read_text() == "5 cents\n"
    assert await pin(settings) == "~ shop/pay\n"
    again = Agent(ScriptedClient([call("pay", amount=6), answer("Paid.")]), config=settings)
    assert (await again.run("Pay 6.")).answer == "Paid."


async def test_a_tool_that_changes_during_a_run_is_not_offered_any_more(settings: Path, tmp_path: Path) -> None:
    await pin(settings)
    servers = load_config(settings).tools.mcp_servers
    async with ToolManager(mcp_servers=servers, mcp_lock=tmp_path / "tools.lock") as manager:
        assert [spec.name for spec in manager.specs()] == ["look", "pay"]
        (tmp_path / "unit").write_text("euros")
        await manager.execute_tool_call("shop", "look", {})
        async with asyncio.timeout(60):
            while len(manager.specs()) > 1:  # noqa: ASYNC110  the server's notification
                await asyncio.sleep(0.01)
        assert "Unknown tool" in (await manager.execute_tool_call("shop", "pay", {"amount": 1}))["error"]
        assert "has changed its description" in manager.problems[0].message
    assert not (tmp_path / "unit.paid").exists()


def test_the_servers_of_an_agent_in_python_are_pinned_into_its_own_lock_file(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pinned_shop.py").write_text(
        "from closeout import Agent\n"
        "from closeout.testing import ScriptedClient, answer, call\n"
        "def agent():\n"
        f"    return Agent(ScriptedClient([call('pay', amount=5), answer('Paid.')]), config={str(settings)!r})\n"
    )
    agent = ("-a", "pinned_shop:agent")
    refused = here("run", "Pay 5.", *agent)
    command = refused.err.partition("Write it with: closeout ")[2]
    assert command.split() == ["mcp", "pin", *agent]
    done = here(*shlex.split(command), "shop")
    assert (done.out, done.err) == ("+ shop/look\n+ shop/pay\n", f"2 tools in {tmp_path / 'tools.lock'}.\n")
    paid = here("run", "Pay 5.", "-q", *agent)
    assert (paid.out, paid.err) == ("Paid.\n", "")
    listed = here("mcp", "list", *agent)
    assert listed.out.startswith("shop  stdio")
    (tmp_path / "unit").write_text("euros")
    stopped = here("run", "Pay 5.", *agent)
    assert "closeout mcp pin -a pinned_shop:agent shop" in stopped.err


async def test_a_server_that_was_never_pinned_is_not_used(settings: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"closeout mcp pin -a SETTINGS\.yaml"):
        Agent(ScriptedClient([]), config=settings)
    done = await asyncio.to_thread(here, "run", "Pay 5.", "-C", str(settings), "-m", "openai:x")
    command = done.err.partition("Write it with: closeout ")[2]
    assert (await asyncio.to_thread(here, *shlex.split(command))).code == 0, "the command works as it is printed"
    (tmp_path / "tools.lock").write_text('{"version": 1, "servers": {}}')
    result = await Agent(ScriptedClient([]), config=settings).run("Pay 5.")
    assert "The tool 'pay' of MCP server 'shop' is new" in str(result.error)
    (tmp_path / "tools.lock").write_text("<<<<<<< HEAD")
    with pytest.raises(ConfigError, match="is not a lock file"):
        Agent(ScriptedClient([]), config=settings)
