"""Whatever a tool returns, its result is normalised, judged, presented and journaled without an exception."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from closeout import ToolExecutor
from closeout.compat.wrapper import UnifiedToolWrapper
from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.results.normal import compact_json, normalise
from closeout.results.present import present
from closeout.results.summary import summarise
from closeout.results.tool_output import ResponseFormat, ToolOutput
from closeout.tools.judge import judge

sys.path.insert(0, str(Path(__file__).parent / "harness"))

from hostile_values import VALUES, Frame

np = pytest.importorskip("numpy")


POLICIES = [
    ToolPolicy(),
    ToolPolicy(check_content=True, empty_at=("organic", "a.b"), read_only=True, drop_nulls=True, html_to_text=True),
    ToolPolicy(response_format="concise"),
    ToolPolicy(response_format="detailed", format="compact"),
    ToolPolicy(response_format="raw"),
    ToolPolicy(response_format="standard", budget_tokens=30),
]


class One:
    def __init__(self, make: Callable[[], Any], policy: ToolPolicy) -> None:
        self.make = make
        self._specs = (ToolSpec("t", policy=policy),)

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        return self.make()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(make=VALUES)
def test_any_value_is_normalised_judged_summarised_and_presented(make: Callable[[], Any]) -> None:
    json.loads(compact_json(normalise(make())))
    assert len(summarise(make())) <= 240
    for policy in POLICIES:
        assert judge(make(), policy).quality
        present(make(), policy=policy).text.encode()
    UnifiedToolWrapper.wrap_tool(make, "t", ResponseFormat.DETAILED)().encode("utf-8")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(make=VALUES)
@pytest.mark.parametrize("policy", POLICIES)
async def test_any_value_is_the_result_of_a_call_and_survives_the_journal(
    make: Callable[[], Any], policy: ToolPolicy
) -> None:
    executor = ToolExecutor(One(make, policy))
    (outcome,) = await executor.execute_calls([ToolCall("t", {})], handles=lambda index: "r1")
    assert outcome.status in ("ok", "error", "low_quality")
    outcome.text.encode()
    record = json.loads(json.dumps(outcome.output.lean_record()))
    assert normalise(ToolOutput.from_record(record).result) == outcome.output.result


async def test_an_empty_table_is_an_empty_result() -> None:
    for make in (lambda: np.array([]), lambda: Frame([])):
        (outcome,) = await ToolExecutor(One(make, ToolPolicy())).execute_calls([ToolCall("t", {})])
        assert (outcome.status, outcome.reason) == ("low_quality", "t returned nothing.")
    (outcome,) = await ToolExecutor(One(lambda: np.array([1.5, 2.0]), ToolPolicy())).execute_calls([ToolCall("t", {})])
    assert (outcome.status, outcome.text) == ("ok", "[1.5,2.0]")


async def test_bytes_are_named_and_not_shown() -> None:
    picture = b"\x89PNG\r\n" + bytes(2_000)
    (outcome,) = await ToolExecutor(One(lambda: {"plot": picture}, ToolPolicy())).execute_calls([ToolCall("t", {})])
    assert outcome.text == '{"plot":"[2,006 bytes (PNG): not shown]"}'
    (outcome,) = await ToolExecutor(One(lambda: picture, ToolPolicy())).execute_calls([ToolCall("t", {})])
    assert outcome.text == "2,006 bytes (PNG)"
