"""Sub-agents that the settings define: model, instructions, tools, servers, limits; in Python and as a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_process import closeout, here
from closeout import Agent, AnswerGenerator, OutputFormatter, Text, ToolExecutor, ToolManager, load_config, tool
from closeout.errors import ConfigError
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.testing import RequestView, ScriptedClient, answer, call, say, serve_script

SERVER = Path(__file__).parent / "mcp_servers" / "everything.py"


@tool(read_only=True)
async def look(key: str) -> str:
    """Look up a key."""
    return f"the value of {key} is {len(key)}"


def clerk(view: RequestView) -> Any:
    return answer("4") if "value of abcd" in view.text.partition("Find it.")[2] else call("look", key="abcd")


def chief(view: RequestView) -> Any:
    return answer("4") if "The answer is" in view.text or "boxed{4}" in view.text else call("clerk", task="Find it.")


def definition(**changes: Any) -> dict[str, Any]:
    return {"description": "Finds values.", "tools": ["look"], **changes}


def team(entries: dict[str, Any], tools: Any = (look,), **options: Any) -> Agent[Any]:
    return Agent(ScriptedClient([]), tools, config={"agent": {"sub_agents": entries}}, home=False, **options)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_a_section_of_the_settings_is_a_sub_agent(home: Path, stream: bool) -> None:
    async with serve_script(clerk) as clerks, serve_script(chief) as chiefs:
        entry = definition(
            model="openai:small", base_url=clerks.base_url, instructions="Be exact.", dialect="cot_chat", max_turns=7,
            mcp_servers={"shelf": {"command": sys.executable, "args": [str(SERVER)], "env": {"KEY": "very-secret-1"}}},
        )  # fmt: skip
        agent = Agent(
            "openai:big", [look], base_url=chiefs.base_url, api_key="k", dialect="function_call", stream=stream,
            config={"agent": {"sub_agents": {"clerk": entry}}},
        )  # fmt: skip
        result = await agent.run("What is the value of abcd?")
        asked = clerks.requests[0]
    assert result.answer == "4"
    assert result.telemetry.by_tool["look"]["calls"] == 1
    assert {each.agent for each in result.usage_log} == {"main", "main/r1:clerk"}
    text = str(asked.body)
    assert "Be exact." in text
    assert "add" in text
    assert "Action" in text
    assert json.loads(asked.body)["model"] == "small"
    rows = list(open_store(home).rows(result.run_id))
    assert "very-secret-1" not in str(rows)
    assert [row.event.model for row in rows if isinstance(row.event, ev.AgentStarted)] == ["openai:small"]


async def test_what_a_section_leaves_open_is_as_for_the_main_agent() -> None:
    agent = team({"clerk": definition(max_turns=3)}, max_turns=9)
    (made,) = [each for each in agent.plan().manager.local_tools if each.name == "clerk"]
    plan = made.plan_of(False)
    assert plan.client is agent.plan().client
    assert (plan.limits.max_turns, agent.plan().limits.max_turns) == (3, 9)
    assert [spec.name for spec in plan.manager.specs()] == ["look", "read_result"]


def test_flow_rules_of_the_settings_may_name_a_tool_of_any_agent() -> None:
    entries = {"clerk": definition(), "counter": definition(tools=["calculate"])}
    config = {"agent": {"sub_agents": entries}, "flow": {"allow": {"calculate": "untrusted"}}}
    assert Agent(ScriptedClient([]), [look], config=config, home=False).plan().spec.flow is not None


def test_a_sub_agent_may_have_built_in_tools_and_other_sub_agents() -> None:
    entries = {"lead": definition(tools=["clerk", "calculate"]), "clerk": definition()}
    agent = team(entries, ToolManager([look]))
    made = {each.name: each for each in agent.plan().manager.local_tools}
    assert sorted(made) == ["clerk", "lead", "look", "read_result"]
    assert [spec.name for spec in made["lead"].plan_of(False).manager.specs()] == ["calculate", "clerk", "read_result"]


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"clerk": definition(), "clrk": {"max_turns": 3}}, "Unknown sub-agent 'clrk' .* Did you mean 'clerk'"),
        ({"clerk": definition(instruction="x")}, "Did you mean 'agent.sub_agents.clerk.instructions'"),
        ({"clerk": definition(tools=["lok"])}, "Unknown tool 'lok' in .*clerk.tools'. Did you mean 'look'"),
        ({"clerk": definition(tools=["calculat"])}, "Did you mean 'calculate'"),
        ({"clerk": {"tools": ["look"]}}, "'agent.sub_agents.clerk.description' is missing"),
        ({"look": definition()}, "the agent has a tool 'look'"),
        ({"a": definition(tools=["b"]), "b": definition(tools=["a"])}, "contain each other: a → b → a"),
        ({"clerk": {"max_turns": 3}}, "This agent has none: set its description"),
        ({"clerk": definition(model="gpt-5")}, "'gpt-5' is not a model name"),
        ({"clerk": definition(mcp_servers=[7])}, "Give a list of commands"),
    ],
)
def test_a_wrong_section_is_an_error_that_says_how_to_fix_it(entries: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        team(entries)


def test_the_environment_does_not_override_settings_that_were_loaded_with_overrides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOSEOUT_AGENT__MAIN_AGENT__MAX_TURNS", "9")
    config = load_config(overrides=["agent.main_agent.max_turns=3"])
    assert Agent(ScriptedClient([]), config=config, home=False).plan().limits.max_turns == 3


def test_the_command_line_runs_a_sub_agent_of_a_yaml_file(tmp_path: Path) -> None:
    settings = tmp_path / "team.yaml"

    def script(view: RequestView) -> Any:
        if "You count." in view.text:
            return answer("398") if "397.8" in view.text else call("calculate", expression="2340*0.17")
        return answer("398") if "398" in view.text else call("counter", task="What is 17 % of 2340, rounded?")

    with serve_script(script) as server:
        settings.write_text(
            f"llm: {{provider: openai, model_name: scripted, base_url: {server.base_url}, api_key: k}}\n"
            "dialect: function_call\n"
            "agent:\n  sub_agents:\n    counter:\n      description: Counts.\n      instructions: You count.\n"
            "      tools: [calculate]\n      max_turns: 4\n"
        )
        done = closeout("run", "What is 17 % of 2,340, rounded?", "-C", str(settings))
        assert (done.code, done.out) == (0, "398\n"), done.err
        assert "Unclosed" not in done.err
    shown = here("config", "-C", str(settings)).out
    assert 'agent.sub_agents.counter.tools = ["calculate"]' in shown
    wrong = here("run", "Q", "-C", str(settings), "-C", "agent.sub_agents.conter.max_turns=3")
    assert wrong.code == 2
    assert "Did you mean 'counter'?" in wrong.sentence


async def test_a_sub_agent_of_the_settings_has_the_formatter_executor_and_generator_of_the_main_agent() -> None:
    seen: list[str] = []

    class Formatter(OutputFormatter):
        def format_tool_result_for_user(self, tool_call_execution_result: Any) -> Any:
            seen.append("formatter")
            return super().format_tool_result_for_user(tool_call_execution_result)

    class Executor(ToolExecutor):
        pass

    class Generator(AnswerGenerator):
        pass

    agent = team(
        {"clerk": definition()}, output_formatter=Formatter(), tool_executor=Executor, answer_generator=Generator
    )
    (made,) = [each for each in agent.plan().manager.local_tools if each.name == "clerk"]
    plan, main = made.plan_of(False), agent.plan()
    assert plan.output_formatter is main.output_formatter
    assert (plan.make_executor, plan.spec.answer_generator) == (Executor, Generator)

    assert isinstance(plan.contract, Text)  # its report is a text, whatever the main agent's answer is
    client = ScriptedClient([call("clerk", task="Find it."), call("look", key="abcd"), say("It is 4."), answer("4")])
    config = {"agent": {"sub_agents": {"clerk": definition()}}}
    result = await Agent(client, [look], config=config, output_formatter=Formatter(), home=False).run("What?")
    assert (result.answer, seen) == ("4", ["formatter", "formatter"])


async def test_a_sub_agent_of_the_settings_may_have_a_formatter_executor_and_generator_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "clerks_own.py").write_text(OWN)
    names = ("output_formatter", "tool_executor", "answer_generator")
    entry = definition(**dict(zip(names, ("clerks_own:Own", "clerks_own:Strict", "clerks_own:Asking"), strict=True)))
    client = ScriptedClient([call("clerk", task="Find it."), call("look", key="abcd"), say("It is 4."), answer("4")])
    agent = Agent(client, [look], config={"agent": {"sub_agents": {"clerk": entry}}}, home=False)
    (made,) = [each for each in agent.plan().manager.local_tools if each.name == "clerk"]
    plan = made.plan_of(False)
    kinds = [type(plan.output_formatter).__name__, plan.make_executor.__name__, plan.spec.answer_generator.__name__]
    assert kinds == ["Own", "Strict", "Asking"]
    assert type(agent.plan().output_formatter).__name__ == "OutputFormatter"
    assert (await agent.run("What?")).answer == "4"
    assert "formatted by the clerk's own" in str(client.requests[2].messages[-1].content)
    for wrong, said in (("clerks_own:Nothing", "has no Nothing"), ("no_such:X", "no module no_such"), ("x", "form")):
        with pytest.raises(ConfigError, match=rf"agent.sub_agents.clerk.tool_executor.*{said}"):
            team({"clerk": definition(tool_executor=wrong)})


OWN = """
from closeout import AnswerGenerator, OutputFormatter, ToolExecutor

class Own(OutputFormatter):
    def format_tool_result_for_user(self, tool_call_execution_result):
        return {"type": "text", "text": "formatted by the clerk's own"}

class Strict(ToolExecutor):
    pass

class Asking(AnswerGenerator):
    pass
"""
