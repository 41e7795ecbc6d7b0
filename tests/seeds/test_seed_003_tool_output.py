"""Seed 003: the unified tool output, in the order of its sections."""

from __future__ import annotations

from typing import Any

from closeout import Agent, TelemetryCollector, ToolOutput, UnifiedToolWrapper, tool
from closeout.testing import ScriptedClient, answer, call


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"{key} is unknown"


async def test_a_collector_may_set_metrics_and_sums_of_its_own() -> None:
    class Own(TelemetryCollector):
        def __init__(self) -> None:
            self.metrics = []
            self.aggregated: dict[str, Any] = {"total_calls": 0}

        def record(self, telemetry: Any) -> None:
            self.metrics.append(telemetry)
            self.aggregated["total_calls"] = len(self.metrics)

    own = Own()
    model = ScriptedClient([call("look", key="a"), answer("1")])
    await Agent(model, [look], telemetry=own, home=False).run("?")
    assert own.aggregated == {"total_calls": 1}
    assert [each.tool_name for each in own.metrics] == ["look"]


def test_the_telemetry_of_a_wrapped_tool_is_there_after_validating_its_json() -> None:
    @UnifiedToolWrapper.wrap_tool(tool_name="file_reader")
    def read(path: str) -> dict[str, int]:
        return {"rows": 1000}

    written = read("data/sales.csv")
    assert "execution_id" not in written
    assert ToolOutput.model_validate_json(written).telemetry.tool_name == "file_reader"
    assert ToolOutput.model_validate_json(str(written)).summary == ToolOutput.model_validate_json(written).summary


class SalesOutput(ToolOutput):
    chart: str = ""


async def test_a_run_keeps_what_a_tool_returned_and_shows_its_summary() -> None:
    outputs = {
        "whole": SalesOutput(result={"rows": 1000}, summary="Read the sales.", chart="bars", metadata={"src": "disk"}),
        "short": ToolOutput(summary="Done."),
        "plain": ToolOutput(result={"rows": 1}),
    }

    @tool(read_only=True)
    def read(name: str) -> ToolOutput:
        """Read."""
        return outputs[name]

    model = ScriptedClient([*(call("read", name=name) for name in outputs), answer("1")])
    result = await Agent(model, [read], home=False).run("?")
    shown = [message.text for message in model.requests[-1].messages if message.role == "tool"]
    assert shown == ['Read the sales.\nThe whole result: read_result("r1")', "Done.", '{"rows":1}']
    first, second, _ = result.tool_outputs
    assert (first.chart, first.result, second.result) == ("bars", {"rows": 1000}, None)
    kept = result.to_dict()["tool_outputs"]
    assert (kept[0]["metadata"], kept[0]["own_fields"]) == ({"src": "disk"}, {"chart": "bars"})
    assert kept[0]["result"] is None, "results may be large: they are in the journal"
