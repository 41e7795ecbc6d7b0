"""Runners, the ReAct parser, telemetry and observations as the design documents' readers use them, inside a run.

Each test subclasses or passes something, runs an agent, and sees the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from closeout import Agent, CotAgentOutputParser, tool
from closeout.errors import ConfigError, ResumeRefused, UsageError
from closeout.testing import ScriptedClient

CHINESE = {
    "thought": ["思考"],
    "action": ["行动"],
    "action_input": ["行动输入"],
    "observation": ["观察"],
    "final_answer": ["最终答案"],
}
LOOKS_UP = '思考：我查一下。\n行动：{"action": "lookup", "action_input": {"q": "a"}}'
ANSWERS = "思考：我知道了。\n最终答案：1"


@tool(read_only=True)
def lookup(q: str) -> str:
    """Look something up."""
    return f"{q} is 1"


# ------------------------------------------------------------------------------------------------ the parser


@pytest.mark.parametrize("dialect", ["cot_chat", "cot_completion"])
async def test_translated_markers_of_the_settings_reach_a_run(dialect: str) -> None:
    model = ScriptedClient([LOOKS_UP, ANSWERS])
    agent = Agent(model, [lookup], dialect=dialect, config={"markers": CHINESE})
    result = await agent.run("多少？")
    assert result.answer == "1"
    assert "Observation: a is 1" in (model.requests[1].prompt or model.requests[1].messages[-1].text)
    assert "\n观察：" in model.requests[0].stop
    assert len(model.requests[0].stop) <= 4


async def test_translated_markers_reach_streams_maps_sessions_and_sub_agents() -> None:
    def agent(*script: str) -> Agent[str]:
        return Agent(ScriptedClient([*script]), [lookup], dialect="cot_chat", config={"markers": CHINESE})

    stream = agent(LOOKS_UP, ANSWERS).stream("多少？")
    kinds = [getattr(event, "kind", "") async for event in stream]
    assert "tool_name" in kinds
    assert stream.result.answer == "1"
    assert [result.answer for result in await agent(LOOKS_UP, ANSWERS).run_many(["多少？"])] == ["1"]
    assert (await agent(LOOKS_UP, ANSWERS).session().run("多少？")).answer == "1"
    asks = '行动：{"action": "helper", "action_input": {"task": "多少？"}}'
    outer = Agent(
        ScriptedClient([asks, ANSWERS]),
        [agent(LOOKS_UP, ANSWERS).as_tool("helper", "Helps.")],
        dialect="cot_chat",
        config={"markers": CHINESE},
    )
    result = await outer.run("多少？")
    assert [row.tool_name for row in result.telemetry.metrics] == ["lookup", "helper"]


async def test_a_resumed_run_reads_by_the_recorded_markers(tmp_path: Path) -> None:
    translated = {"markers": CHINESE}
    begun = Agent(ScriptedClient([]), [lookup], dialect="cot_chat", config=translated, home=tmp_path)
    run_id = await begun.submit("多少？")
    other = Agent(
        ScriptedClient([]), [lookup], dialect="cot_chat", config={"markers": {"action": ["做"]}}, home=tmp_path
    )
    with pytest.raises(ResumeRefused, match="markers"):
        await other.resume(run_id)
    plain = Agent(ScriptedClient([LOOKS_UP, ANSWERS]), [lookup], dialect="cot_chat", home=tmp_path)
    result = await plain.resume(run_id)
    assert (result.answer, len(result.telemetry.metrics)) == ("1", 1)


def test_a_marker_that_does_not_exist_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"markers.*'think'"):
        Agent(ScriptedClient([]), config={"markers": {"think": ["思考"]}})


class LoudParser(CotAgentOutputParser):
    """Reads `CALL` as `Action:`, and the input in capitals."""

    def feed(self, text):
        return super().feed(text.replace("CALL", "Action:"))

    def close(self, finish_reason="stop"):
        return [
            event._replace(input={"q": event.input["q"].upper()}) if event.kind == "action" else event
            for event in super().close(finish_reason)
        ]


async def test_the_parser_that_is_passed_reads_the_replies() -> None:
    script = ['CALL {"action": "lookup", "action_input": {"q": "a"}', "Final Answer: 1"]
    model = ScriptedClient(script)
    result = await Agent(model, [lookup], dialect="cot_chat", output_parser=LoudParser).run("How many?")
    assert result.answer == "1"
    assert model.requests[1].messages[-1].text == "Observation: A is 1"


def test_a_parser_is_refused_where_no_dialect_uses_it() -> None:
    with pytest.raises(UsageError, match="cot_chat"):
        Agent(ScriptedClient([]), dialect="function_call", output_parser=LoudParser)
