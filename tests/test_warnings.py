"""Nothing goes wrong in silence: warnings are in the result and the log, a missing server ends the run."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import ConfigError, McpServerUnavailable
from closeout.journal.events import ToolFinished
from closeout.journal.store import open_store
from closeout.testing import RequestView, ScriptedClient, answer, call

MISSING = {"name": "shop", "command": sys.executable, "args": ["-c", "raise SystemExit('no stock')"]}


async def test_a_server_that_does_not_start_ends_the_run() -> None:
    client = ScriptedClient([answer("42")])
    result = await Agent(client, mcp_servers=[MISSING]).run("What?", run_id="mine")
    assert (result.status, result.error_kind) == ("failed", "McpServerUnavailable")
    assert "shop" in result.error
    assert "no stock" in result.error
    assert "required=False" in result.error
    assert client.requests == []
    again = await Agent(ScriptedClient([answer("42")]), mcp_servers=[{**MISSING, "args": ["-c", "1"]}]).resume("mine")
    assert again.status == "failed", "it is tried again"


@pytest.mark.parametrize(
    ("of_sub_agent", "how"),
    [(False, {}), (False, {"on_change": "take"}), (True, {"despite_changes": True})],
    ids=["own", "taking changes", "of a sub-agent"],
)
async def test_a_run_that_waits_stays_as_it_is_without_its_server(
    home: Path, tmp_path: Path, of_sub_agent: bool, how: dict[str, Any]
) -> None:
    def turn(view: RequestView) -> Any:
        return answer("done") if "receipt" in view.last else call("pay", amount=5)

    def agent(server: dict[str, Any]) -> Agent[Any, Any]:
        clerk = Agent(ScriptedClient(turn), mcp_servers=[server], home=home)
        if not of_sub_agent:
            return clerk
        script = [call("clerk", task="Pay."), answer("done")]
        return Agent(ScriptedClient(script), [clerk.as_tool("clerk", "Pays.")], home=home)

    unit = tmp_path / "unit"
    unit.write_text("EUR")
    server = {**MISSING, "args": [str(Path(__file__).parent / "mcp_servers" / "turncoat.py"), str(unit)]}
    (pending,) = (await agent(server).run("Pay.", run_id="mine")).waiting
    with pytest.raises(McpServerUnavailable, match=r"'shop' .* no stock\. Run mine stays as it is"):
        await agent(MISSING).resume("mine", decisions={pending.id: True}, **how)
    assert open_store(home).run("mine").status == "waiting"
    assert (await agent(server).resume("mine", decisions={pending.id: True})).answer == "done"
    assert unit.with_suffix(".paid").read_text() == "5 EUR\n"


async def test_a_server_that_is_not_required_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(ScriptedClient([answer("42")]), mcp_servers=[{**MISSING, "required": False}])
    with caplog.at_level(logging.WARNING, "closeout"):
        result = await agent.run_once("What?", run_id="mine")
    assert result.answer == "42"
    (warning,) = result.warnings
    assert "shop" in warning
    assert [record.getMessage() for record in caplog.records] == [f"{warning} (run mine)"]
    assert (await agent.run_once("What?", run_id="mine")).warnings == result.warnings


def test_required_must_be_true_or_false() -> None:
    with pytest.raises(ConfigError, match="required must be true or false, got 'no'"):
        Agent(ScriptedClient([]), mcp_servers=[{**MISSING, "required": "no"}])


async def test_a_sub_agents_server_ends_the_sub_agent() -> None:
    clerk = Agent(ScriptedClient([answer("42")]), mcp_servers=[MISSING])
    chief = Agent(ScriptedClient([call("clerk", task="Ask."), answer("no clerk")]), [clerk.as_tool("clerk", "Asks.")])
    result = await chief.run("What?")
    assert result.answer == "no clerk"
    assert "no stock" in str(result.messages)


async def test_a_listener_that_raises_and_an_unknown_price_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    class Closing:
        def for_run(self, run: Any) -> Any:
            return self

        def __call__(self, event: Any) -> None:
            raise RuntimeError("no room")

        def close(self) -> None:
            raise RuntimeError("cannot close")

    agent = Agent(ScriptedClient([answer("42")]), config={"agent": {"max_cost": 1.0}}, home=False)
    with caplog.at_level(logging.WARNING, "closeout"):
        result = await agent.run("What?", listeners=[Closing()])
    assert result.answer == "42"
    assert len(result.warnings) == 2
    assert any("RuntimeError: no room" in warning for warning in result.warnings)
    assert any("price" in warning for warning in result.warnings)
    assert result.to_dict()["warnings"] == result.warnings
    assert "raised an exception when it was closed" in caplog.text


async def test_a_run_without_problems_has_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    result = await Agent(ScriptedClient([answer("42")])).run("What?")
    assert result.warnings == ()
    assert caplog.records == []


async def test_a_tools_exception_keeps_its_traceback_in_the_record_and_the_debug_log(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @tool(read_only=True, retries=0)
    def broken(key: str) -> str:
        """Divide."""
        return str(1 / len(key.strip("k")))

    client = ScriptedClient([call("broken", key="k"), answer("42")])
    with caplog.at_level(logging.DEBUG, "closeout.tools"):
        result = await Agent(client, [broken]).run("What?")
    (finished,) = [row.event for row in result.read_rows() if isinstance(row.event, ToolFinished)]
    trace = json.loads(finished.record)["metadata"]["traceback"]
    assert 'return str(1 / len(key.strip("k")))' in trace
    assert "ZeroDivisionError" in trace
    assert "Traceback" not in str(client.requests[1].messages), "it is not for the model"
    assert "ZeroDivisionError" in caplog.text
