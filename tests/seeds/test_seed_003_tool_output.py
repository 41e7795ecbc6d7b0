"""Seed 003: the unified tool output, in the order of its sections."""

from __future__ import annotations

from typing import Any

from closeout import Agent, CacheOptimizedOutput, TelemetryCollector, ToolOutput, UnifiedToolWrapper, tool
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


async def test_a_collector_may_keep_sums_by_tool_of_its_own() -> None:
    class ByTool(TelemetryCollector):
        def __init__(self) -> None:
            super().__init__()
            self.by_tool = {}

        def record(self, telemetry: Any) -> None:
            self.by_tool[telemetry.tool_name] = self.by_tool.get(telemetry.tool_name, 0) + 1
            super().record(telemetry)

    usual, own = TelemetryCollector(), ByTool()
    for collector in (usual, own):
        model = ScriptedClient([call("look", key="a"), call("look", key="b"), answer("1")])
        await Agent(model, [look], telemetry=collector, home=False).run("?")
    assert (own.by_tool, own.aggregated["total_calls"]) == ({"look": 2}, 2)
    assert usual.by_tool["look"]["calls"] == 2


async def test_a_stable_prefix_of_ones_own_is_that_of_the_whole_form() -> None:
    class Plain(CacheOptimizedOutput):
        @staticmethod
        def stable_prefix(tool_name: str) -> str:
            return f"[{tool_name}]"

    model = ScriptedClient([call("look", key="a"), answer("1")])
    await Agent(model, [look], format_observation=Plain.format_with_stable_prefix, home=False).run("?")
    assert model.requests[-1].messages[-1].text.startswith("[look]\n  <summary>a is unknown</summary>")
