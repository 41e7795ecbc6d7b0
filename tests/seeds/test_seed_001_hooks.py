"""Runners, the ReAct parser, telemetry and observations as the design documents' readers use them, inside a run.

Each test subclasses or passes something, runs an agent, and sees the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from closeout import (
    Agent,
    AssistantPromptMessage,
    Boxed,
    CacheOptimizedOutput,
    CotAgentOutputParser,
    CotChatAgentRunner,
    CotCompletionAgentRunner,
    FunctionCallAgentRunner,
    TelemetryCollector,
    ToolOutput,
    ToolTelemetry,
    UserPromptMessage,
    format_observation,
    tool,
)
from closeout.errors import BadRequest, ConfigError, ResumeRefused, UsageError
from closeout.testing import ScriptedClient, Turn, answer, call

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


# ------------------------------------------------------------------------------------------------ runners

FIRST_PROMPT = (
    "Respond in this form. {{instruction}}\nTools: {{tools}}\nUse one of [{{tool_names}}] with its action_input.\n"
    "{{historic_messages}}{{query}}\n{{agent_scratchpad}}\nThought:"
)


class PortedRunner(CotCompletionAgentRunner):
    """The three prompt builders as the design document prints them."""

    def _organize_instruction_prompt(self):
        assert self.app_config.agent.prompt
        first_prompt = self.app_config.agent.prompt.first_prompt
        tools = [{"name": each.name, "description": each.description} for each in self._prompt_messages_tools]
        system_prompt = first_prompt.replace("{{instruction}}", self._instruction)
        system_prompt = system_prompt.replace("{{tools}}", json.dumps(tools))
        return system_prompt.replace("{{tool_names}}", ", ".join(each.name for each in self._prompt_messages_tools))

    def _organize_historic_prompt(self, current_session_messages=None):
        historic_prompt = ""
        for message in self._organize_historic_prompt_messages(current_session_messages):
            if isinstance(message, UserPromptMessage):
                historic_prompt += f"Question: {message.content}\n\n"
            elif isinstance(message, AssistantPromptMessage) and isinstance(message.content, str):
                historic_prompt += f"Answer: {message.content}\n\n"
        return historic_prompt

    def _organize_prompt_messages(self):
        assistant_prompt = ""
        for unit in self._agent_scratchpad or []:
            if unit.is_final():
                assistant_prompt += f"Final Answer: {unit.agent_response}"
            else:
                assistant_prompt += f"Thought: {unit.thought}\n\n"
                if unit.action_str:
                    assistant_prompt += f"Action: {unit.action_str}\n\n"
                if unit.observation:
                    assistant_prompt += f"Observation: {unit.observation}\n\n"
        prompt = self._organize_instruction_prompt().replace("{{historic_messages}}", self._organize_historic_prompt())
        prompt = prompt.replace("{{agent_scratchpad}}", assistant_prompt)
        return [UserPromptMessage(content=prompt.replace("{{query}}", f"Question: {self._query}"))]


def ported(script, **options):
    prompts = {"first_prompt": FIRST_PROMPT}
    return PortedRunner(ScriptedClient(script), [lookup], "Be brief.", prompts=prompts, **options)


STEPS = [call("lookup", q="a"), answer("1")]


async def test_ported_prompt_builders_see_files_all_tools_and_the_form_of_the_answer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Only the file knows.\n")
    model = ScriptedClient(STEPS)
    history = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]
    runner = PortedRunner(
        model, [lookup], "Be brief.", prompts={"first_prompt": FIRST_PROMPT}, history=history, answer=Boxed()
    )
    events = [event async for event in runner.run("How many?", files=[tmp_path / "a.txt"])]
    assert events
    assert runner.result.answer == "1"
    first, second = (request.prompt for request in model.requests)
    assert first.startswith("Respond in this form. Be brief.")
    for piece in ("\\boxed", "read_result", "Only the file knows.", "Question: Who?\n\nAnswer: Ada.\n\nQuestion: "):
        assert piece in first
    assert second.endswith("Observation: a is 1\n\n\nThought:")
    assert [message.content for message in runner.history if message.role == "user"] == ["Who?", "How many?"]


async def test_the_agent_of_a_runner_resumes_maps_talks_and_is_a_tool(tmp_path: Path) -> None:
    def model_of(runner):
        return runner.agent.plan().client

    def is_ported(model):
        return all(request.prompt.startswith("Respond in this form.") for request in model.requests)

    waits = ported([], home=tmp_path)
    run_id = await waits.agent.submit("How many?")
    resumed = ported(STEPS, home=tmp_path)
    assert (await resumed.agent.resume(run_id)).answer == "1"
    mapped = ported(STEPS * 2)
    assert [result.answer for result in await mapped.agent.run_many(["A?", "B?"], limit=1)] == ["1", "1"]
    talks = ported([answer("1"), answer("2")])
    session = talks.agent.session()
    await session.run("One?")
    await session.run("Two?")
    assert "Question: One?\n\nAnswer: " in model_of(talks).requests[-1].prompt
    helper = ported(STEPS)
    outer = Agent(ScriptedClient([call("helper", task="How many?"), answer("1")]), [helper.agent.as_tool("helper", "")])
    assert (await outer.run("How many?")).answer == "1"
    for runner in (resumed, mapped, talks, helper):
        assert is_ported(model_of(runner))


def test_the_agent_of_a_runner_runs_from_code_that_is_not_async() -> None:
    assert ported(STEPS).agent.run_sync("How many?").answer == "1"


async def test_an_agent_without_the_runner_does_not_continue_its_run(tmp_path: Path) -> None:
    run_id = await ported([], home=tmp_path).agent.submit("How many?")
    prompts = {"cot_completion": FIRST_PROMPT}
    for dialect in ("cot_completion", "auto"):
        stock = Agent(
            ScriptedClient(STEPS),
            [lookup],
            dialect=dialect,
            instructions="Be brief.",
            config={"prompts": prompts},
            home=tmp_path,
        )
        with pytest.raises(ResumeRefused, match="dialect_class: PortedRunner then, None now"):
            await stock.resume(run_id)


async def test_the_methods_of_a_runner_are_called_with_an_agent_of_ones_own() -> None:
    model = ScriptedClient(STEPS)
    agent = Agent(model, [lookup], instructions="Be brief.", max_turns=7)
    runner = PortedRunner(agent=agent, prompts={"first_prompt": FIRST_PROMPT})
    assert [event async for event in runner.run("How many?")]
    assert runner.result.answer == "1"
    assert model.requests[0].prompt.startswith("Respond in this form. Be brief.")
    assert runner.agent.plan().limits.max_turns == 7


async def test_a_runner_is_a_dialect_for_another_agent() -> None:
    model = ScriptedClient(STEPS)
    agent = Agent(model, [lookup], dialect=PortedRunner(prompts={"first_prompt": FIRST_PROMPT}))
    assert (await agent.run("How many?")).answer == "1"
    assert "read_result" in model.requests[0].prompt


async def test_a_chat_runner_sends_the_historic_prompt_that_a_subclass_writes() -> None:
    class Short(CotChatAgentRunner):
        def _organize_historic_prompt(self, current_session_messages=None):
            return f"(There were {len(self._organize_historic_prompt_messages(current_session_messages))} messages.)"

    history = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]
    model = ScriptedClient([answer("1")])
    assert [event async for event in Short(model, history=history).run("How many?")]
    assert [message.text for message in model.requests[0].messages[1:]] == ["(There were 2 messages.)\nHow many?"]


@pytest.mark.parametrize("kind", [CotChatAgentRunner, CotCompletionAgentRunner, FunctionCallAgentRunner])
async def test_the_historic_messages_that_a_subclass_chooses_are_sent(kind) -> None:
    class Forgetful(kind):
        def _organize_historic_prompt_messages(self, current_session_messages=None):
            return super()._organize_historic_prompt_messages(current_session_messages)[2:]

    history = [{"role": role, "content": f"{role} {n}"} for n in (1, 2) for role in ("user", "assistant")]
    model = ScriptedClient([answer("1")])
    await Forgetful(model).agent.run("How many?", history=history)
    (request,) = model.requests
    text = request.prompt or str(request.messages)
    assert "assistant 2" in text
    assert "assistant 1" not in text


async def test_a_runner_reads_translated_markers_with_its_own_methods_and_without() -> None:
    class Own(CotChatAgentRunner):
        def _organize_prompt_messages(self):
            return super()._organize_prompt_messages()

    for kind in (CotChatAgentRunner, Own):
        runner = kind(ScriptedClient([LOOKS_UP, ANSWERS]), [lookup], markers=CHINESE)
        assert [event async for event in runner.run("多少？")]
        assert (runner.result.answer, len(runner.result.telemetry.metrics)) == ("1", 1)
    loud = Own(
        ScriptedClient(['CALL {"action": "lookup", "action_input": {"q": "a"}', "Final Answer: 1"]),
        [lookup],
        output_parser=LoudParser,
    )
    assert (await loud.agent.run("How many?")).messages[2]["content"] == "A is 1"


@pytest.mark.parametrize("kind", [CotChatAgentRunner, CotCompletionAgentRunner, FunctionCallAgentRunner])
async def test_each_step_is_a_record_of_thought_action_input_observation_and_usage(kind) -> None:
    script = [Turn("I look.", calls=[call("lookup", q="a")]), "", Turn("I know.", answer="1")]
    runner = kind(ScriptedClient(script), [lookup], answer=Boxed())
    assert [event async for event in runner.run("How many?")]
    first, last = runner.result.agent_thoughts
    assert (first.position, first.thought, first.action) == (1, "I look.", "lookup")
    assert (first.input, first.observation, first.answer) == ({"q": "a"}, "a is 1", None)
    assert (last.position, last.action, last.answer) == (2, "", "1")
    used = runner.result.usage_log
    assert [first.usage, last.usage] == [used[0].usage, used[2].usage], "the empty reply was rolled back"


# ------------------------------------------------------------------------------------------------ telemetry


class SlowestTools(TelemetryCollector):
    """Adds the names of the tools to the sums."""

    def _update_aggregated(self):
        super()._update_aggregated()
        self.aggregated["tools"] = [each.tool_name for each in self.metrics]


def test_an_overridden_sum_of_a_collector_is_made_at_every_record() -> None:
    collector = SlowestTools()
    collector.record(ToolTelemetry(tool_name="a", output_tokens=3))
    assert collector.aggregated["tools"] == ["a"]
    assert collector.aggregated["total_tokens"] == 3
    assert "调用次数: 1" in collector.get_report("zh")


async def test_a_collector_receives_the_calls_of_all_runs_and_of_sub_agents() -> None:
    collector, own = SlowestTools(), TelemetryCollector()
    helper = Agent(ScriptedClient(STEPS), [lookup], telemetry=own).as_tool("helper", "Helps.")
    script = {"A?": [call("helper", task="How many?"), answer("1")], "B?": STEPS}
    agent = Agent(ScriptedClient(script), [lookup, helper], telemetry=collector)
    first, second = await agent.run_many(["A?", "B?"], limit=1)
    assert collector.aggregated["tools"] == ["lookup", "helper", "lookup"]
    assert [each.tool_name for each in own.metrics] == ["lookup"]
    assert (first.telemetry.aggregated["total_calls"], second.telemetry.aggregated["total_calls"]) == (2, 1)


async def test_a_resumed_run_reports_each_call_once(tmp_path: Path) -> None:
    collector = SlowestTools()
    lookups = [call("lookup", q="a"), Turn(calls=[call("lookup", q="b"), call("pay", amount=1)])]
    ends = [BadRequest("no"), answer("1")]

    @tool(approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    model = ScriptedClient([*lookups, lambda request: ends.pop(0)])
    agent = Agent(model, [lookup, pay], telemetry=collector, home=tmp_path)
    result = await agent.run("Pay one.")
    assert collector.aggregated["tools"] == ["lookup"]
    (waiting,) = result.waiting
    result = await agent.resume(result.run_id, decisions={waiting.id: True})
    assert (result.status, collector.aggregated["tools"]) == ("failed", ["lookup", "lookup", "pay"])
    result = await agent.resume(result.run_id)
    assert (result.answer, collector.aggregated["total_calls"]) == ("1", 3)
    assert result.telemetry.aggregated["total_calls"] == 3


# ------------------------------------------------------------------------------------------------ observations


@tool(read_only=True)
def sales(path: str) -> list[dict[str, int]]:
    """Read sales."""
    return [{"year": 2024, "sold": 7}, {"year": 2025, "sold": 9}]


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_observations_are_written_by_the_function_that_is_passed(dialect: str) -> None:
    def counted(output: ToolOutput) -> str:
        return f"Observation: {output.telemetry.tool_name} has {len(output.result)} rows, {output.handle} has them"

    for write, shown in (
        (counted, "Observation: sales has 2 rows, r1 has them"),
        (format_observation, 'read_result("r1")'),
        (CacheOptimizedOutput.format_with_stable_prefix, '<tool_result name="sales">\n  <summary>'),
    ):
        model = ScriptedClient([call("sales", path="a.csv"), answer("9")])
        agent = Agent(model, [sales], dialect=dialect, format_observation=write)
        assert (await agent.run("How many?")).answer == "9"
        text = model.requests[1].prompt or model.requests[1].messages[-1].text
        assert shown in text
        assert text.count("Observation: Observation:") == 0
        assert "2025" not in text


@pytest.mark.parametrize("wrong", [lambda output: None, lambda output: 1 / 0])
async def test_a_function_that_writes_no_observation_leaves_the_result_as_it_is(wrong) -> None:
    model = ScriptedClient(STEPS)
    result = await Agent(model, [lookup], format_observation=wrong).run("How many?")
    assert model.requests[1].messages[-1].text == "a is 1"
    assert "format_observation" in result.warnings[0]
