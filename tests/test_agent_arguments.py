"""What an Agent and a run accept: familiar names, settings of one run, other libraries' tools; and what is refused."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, ToolManager, tool
from closeout.answers.grading import judge
from closeout.dialects.protocol import get_dialect
from closeout.errors import ConfigError, ToolDefinitionError, UsageError
from closeout.journal.store import open_store
from closeout.models.connect import connect
from closeout.models.local.embedded import LocalClient
from closeout.run.lifecycle import replay_run
from closeout.testing import ScriptedClient, call, say, serve_script
from closeout.tools.builtin import web_search


@tool(read_only=True)
def look_up(key: str) -> str:
    """Look up a key."""
    return f"{key} is 7"


class Shop:
    def price(self, item: str) -> float:
        """The price of an item."""
        return 2.5

    @tool
    def stock(self, item: str) -> int:
        """How many there are."""
        return 3


def untyped(key) -> str:  # type: ignore[no-untyped-def]
    """Look up a key."""
    return str(key)


def agent(*script: Any, **options: Any) -> Agent[Any]:
    return Agent(ScriptedClient([*script]), **{"home": False, **options})


# ------------------------------------------------------------------------------------------------ names and values


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"system_prompt": "Be brief."}, "Agent has no parameter 'system_prompt'. Use instructions=."),
        ({"output_type": int}, "Use answer=."),
        ({"max_steps": 3}, "Use max_turns=."),
        ({"timeout": 3}, "Use max_seconds=."),
        ({"fallback_models": ["openai:b"]}, "Pass model=['openai:a', 'anthropic:b'] or Fallback(…)"),
        ({"hooks": []}, "Pass listeners= to run(…) to watch"),
        ({"instrctions": "Be brief."}, "Use instructions=."),
        ({"flow": {"gaurd": "ask"}}, "flow has no rule 'gaurd'. Did you mean 'guard'?"),
        ({"top_p": 0.5}, "Pass config={'llm': {'top_p': …}}."),
        ({"histroy": []}, "Pass history= to run(…)."),
        ({"tool_use_behavior": "stop_on_first_tool"}, "Declare the tool with @tool(gives_answer=True)"),
        ({"store": None}, "Runs are recorded in home="),
        ({"colour": "red"}, "It has: model, tools, mcp_servers"),
        ({"temperature": -1}, "Invalid value for 'llm.temperature': -1."),
        ({"max_tokens": 0}, "Invalid value for 'llm.max_tokens': 0."),
        ({"max_cost": 0}, "Invalid value for 'agent.max_cost': 0."),
        ({"tools": "calculate"}, "tools must be a list, got 'calculate'."),
        ({"tools": ["calcualte"]}, "No built-in tool is named 'calcualte'. There are: "),
        ({"tools": [Shop]}, "got the class Shop. Pass a method of an instance: tools=[Shop(…).method]."),
        ({"tools": [Shop.price]}, "Shop.price is a method without its object. Pass tools=[Shop(…).price]."),
        ({"tools": [Shop.stock]}, "Shop.stock is a method without its object."),
        ({"tools": [untyped]}, "the parameter 'key' has no type, so a model cannot know what to pass. Write key: str"),
        ({"tools": [look_up, look_up]}, "Two tools are named 'look_up'"),
        ({"dialect": "react"}, "No dialect is called 'react'. Choose one of"),
        ({"mcp_servers": "python server.py"}, "mcp_servers must be a list"),
        ({"name": ""}, "The name of an agent must be a printable text, got ''."),
    ],
    ids=range(26),
)
def test_what_an_agent_does_not_take_is_refused_with_the_fix(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        agent(**given)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"history": "Before."}, "history must be a list"),
        ({"history": [{"role": "user", "text": "Before."}]}, "has the unknown key 'text'"),
        ({"history": [{"role": "user", "contents": "Before."}]}, "Did you mean 'content'?"),
        ({"history": [{"role": "user"}]}, "has no content"),
        ({"history": [{"role": "user", "content": 3}]}, "must be a string or a list of parts"),
        ({"files": "report.pdf"}, "files"),
        ({"max_turn": 3}, "A run has no argument 'max_turn'. Did you mean 'max_turns'?"),
        ({"userr": "ann"}, "Did you mean 'user'?"),
        ({"dialect": "cot_chat"}, "Everything else is set on the Agent."),
        ({"model": "openai:gpt-5"}, "Use agent.with_model(model).run(…)."),
        ({"message_history": []}, "A run has no argument 'message_history'. Pass history=."),
        ({"max_turns": 0}, "Invalid value for 'agent.main_agent.max_turns': 0."),
        ({"temperature": "hot"}, "Invalid value for 'llm.temperature': 'hot'."),
        ({"run_id": "x\ny"}, "run_id must be a printable text, got 'x\\ny'."),
    ],
    ids=range(14),
)
def test_what_a_run_does_not_take_is_refused_before_it_begins(given: dict[str, Any], message: str) -> None:
    client = ScriptedClient([say("Hello.")])
    with pytest.raises(UsageError) as refused:
        Agent(client, [look_up], home=False).run_sync("What?", **given)
    assert message in str(refused.value)
    assert not client.requests


def test_the_messages_of_a_result_are_a_history() -> None:
    first = agent(call("look_up", key="a"), say("It is 7."), tools=[look_up]).run_sync("What is a?")
    second = agent(say("14."), tools=[look_up]).run_sync("Twice?", history=first.messages)
    assert second.answer == "14."


def test_an_agent_with_another_model_shares_everything_else() -> None:
    own = Agent("openai:gpt-5", [look_up], api_key="sk-1", base_url="https://a.example/v1", answer=int)
    model = ScriptedClient([call("look_up", key="a"), say("It is \\boxed{7}")])
    bound = own.with_dialect(get_dialect("cot_chat")).with_model(model)
    assert bound.run_sync("What is a?").value == 7
    assert not model.requests[0].tools, "the dialect is kept"

    def address(agent: Agent[Any, Any]) -> tuple[str, str]:
        client: Any = agent.plan().client
        return client.name, client.base_url

    assert address(own.with_model("openai:small")) == ("openai:small", "https://a.example/v1")
    other = own.with_model("anthropic:large", api_key="sk-2")
    assert address(other)[0] == "anthropic:large"
    assert "a.example" not in address(other)[1]
    with pytest.raises(ConfigError, match="No API key for anthropic:large"):
        own.with_model("anthropic:large").run_sync("Hello")  # the key of one vendor is never sent to another
    assert address(own) == ("openai:gpt-5", "https://a.example/v1")


def test_a_key_is_needed_to_run_an_agent_and_not_to_make_test_or_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = Agent(["openai:gpt-5", ScriptedClient([])], [look_up], home=False)
    assert "gpt-5" in made._repr_html_()
    assert made.with_model(ScriptedClient([say("Hello.")])).run_sync("Hello").answer == "Hello."
    with pytest.raises(ConfigError, match=r"No API key for openai:gpt-5\. Set OPENAI_API_KEY"):
        made.run_sync("Hello")
    caller = Agent(ScriptedClient([call("ask", task="Hello"), say("It has no key.")]), [made.as_tool("ask", "Asks.")])
    result = caller.run_sync("Hello")
    assert result.answer == "It has no key."
    assert "No API key for openai:gpt-5" in str(result.messages)


def test_names_of_other_frameworks_say_the_way_here() -> None:
    made: Any = Agent(ScriptedClient([say("Hello.")]), home=False)
    result: Any = made.run_sync("Hello")
    for owner, name, hint in (
        (made, "invoke", r"Use run\(…\) or run_sync\(…\)\."),
        (made, "tool", r"Pass tools=\[…\]"),
        (made, "run_snyc", r"Did you mean 'run_sync'\?"),
        (result, "output", r"Use \.value, which is typed, or \.answer"),
        (result, "anser", r"Did you mean 'answer'\?"),
    ):
        with pytest.raises(AttributeError, match=rf"object has no attribute '{name}'\. {hint}"):
            getattr(owner, name)
    assert pickle.loads(pickle.dumps(result)).answer == "Hello."


def test_familiar_parameters_reach_the_model_and_the_limits() -> None:
    client = ScriptedClient([say("Hello.")])
    polite = Agent(client, temperature=0.3, max_tokens=99, max_seconds=60, max_cost=2, home=False)
    polite.run_sync("Hello")
    assert (client.requests[0].temperature, client.requests[0].max_tokens) == (0.3, 99)
    limits = polite.plan().limits
    assert (limits.max_seconds, limits.max_cost, limits.max_tokens) == (60, 2, None)


# ------------------------------------------------------------------------------------------------ settings of a run


def test_a_run_may_have_settings_of_its_own(home: Path) -> None:
    busy = [call("look_up", key=f"k{number}") for number in range(3)]
    client = ScriptedClient([*busy, say("It is 7.")], by=lambda view: view.question)
    made = Agent(client, [look_up], temperature=0.9)
    short = made.run_sync("Short?", max_turns=1, temperature=0, max_tokens=50)
    assert (short.stop_reason, short.turns) == ("max_turns", 1)
    assert {(each.temperature, each.max_tokens) for each in client.requests[:1]} == {(0, 50)}
    long = made.run_sync("Long?")
    assert (long.answer, long.turns) == ("It is 7.", 4)
    assert client.requests[-1].temperature == 0.9

    rows = list(open_store(home).rows(short.run_id))
    replayed, departure = asyncio.run(replay_run(made.plan(), short.run_id, rows))
    assert (departure, replayed.stop_reason) == ("", "max_turns"), "the settings are in the record"


def test_a_submitted_run_keeps_its_settings_until_it_is_resumed() -> None:
    busy = [call("look_up", key=f"k{number}") for number in range(9)]
    made = Agent(ScriptedClient(busy), [look_up])
    run_id = asyncio.run(made.submit("What?", max_turns=2))
    result = made.resume_sync(run_id)
    assert (result.stop_reason, result.turns) == ("max_turns", 2)


async def test_what_runs_a_loop_of_its_own_is_refused_inside_one() -> None:
    with pytest.raises(UsageError, match="event loop is running here"):
        agent().resume_sync("any")


# ------------------------------------------------------------------------------------------------ tools


def test_tools_of_langchain_are_tools() -> None:
    langchain = pytest.importorskip("langchain_core.tools")

    @langchain.tool
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    @langchain.tool("search documents")
    async def search(query: str) -> dict[str, Any]:
        """Search."""
        raise ValueError(f"no index for {query}")

    made = agent(call("add", a=3), call("search_documents", query="x"), say("5"), tools=[add, search])
    specs = {spec.name: spec for spec in made.plan().offered_tools()}
    assert specs["add"].description == "Add two numbers."
    assert specs["add"].parameters["required"] == ["a"]
    result = made.run_sync("What?")
    assert result.answer == "5"
    shown = [message.text for message in result.messages if message.role == "tool"]
    assert shown[0] == "5"
    assert "no index for x" in shown[1]


def test_tool_objects_of_a_python_mcp_server_are_tools() -> None:
    base = pytest.importorskip("mcp.server.mcpserver.tools.base")

    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    made = agent(call("double", number=4), say("8"), tools=[base.Tool.from_function(double)])
    result = made.run_sync("What?")
    assert [message.text for message in result.messages if message.role == "tool"] == ["8"]


def test_what_only_describes_a_tool_of_a_server_is_refused() -> None:
    types = pytest.importorskip("mcp.types")
    described = types.Tool(name="look", input_schema={"type": "object"})
    with pytest.raises(ToolDefinitionError, match="Pass its server instead: mcp_servers="):
        agent(tools=[described])


@pytest.mark.parametrize("searching", ["web_search", web_search])
def test_built_in_tools_are_named_and_read_the_agents_settings(searching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARXNG_BASE_URL", "http://127.0.0.1:9")
    with serve_script([], record=False) as server:
        settings = {"tools": {"web": {"provider": "searxng", "base_url": server.base_url}}}
        made = agent(
            call("calculate", expression="6*7"), call("web_search", query="x"), say("42"),
            tools=["calculate", searching], config=settings,
        )  # fmt: skip
        result = made.run_sync("What?")
    shown = [message.text for message in result.messages if message.role == "tool"]
    assert shown[0] == "42"
    assert "SearXNG answered HTTP 405" in shown[1], "the server of the settings, not the address in the environment"


def test_a_tool_that_asks_a_model_gets_the_agents_in_a_manager_too() -> None:
    from closeout.tools.builtin import extract_tool
    from closeout.tools.tool import ModelTool

    manager = ToolManager([extract_tool(), look_up])
    made = agent(tools=manager)
    (asks,) = [each for each in made.plan().manager.local_tools if isinstance(each, ModelTool)]
    assert asks.ask is not None
    assert made.plan().manager is manager


# ------------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpt-5", "openai:gpt-5"),
        ("claude-sonnet-5", "anthropic:claude-sonnet-5"),
        ("openai/gpt-5", "openai:gpt-5"),
        ("opnai:gpt-5", "openai:gpt-5"),
        ("Qwen/Qwen3-8B", "openai:Qwen/Qwen3-8B"),
    ],
)
def test_a_model_without_its_provider_is_refused_with_what_is_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'?"):
        connect(name)


def test_an_agent_without_a_model_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ConfigError) as refused:
        Agent()
    message = str(refused.value)
    assert "openai:NAME (OPENAI_API_KEY is set)" in message
    assert "anthropic:NAME at http://127.0.0.1:9" in message
    assert "local (1,117 MB, downloaded on first use)" in message
    assert 'Agent("local")' in message
    assert "secret-key" not in message
    assert Agent(config={"llm": {"provider": "openai", "model_name": "mine"}}).plan().client.name == "openai:mine"


def test_a_download_reports_its_progress_where_nobody_else_does(capsys: pytest.CaptureFixture[str]) -> None:
    client = LocalClient("local")
    for status in ("Downloading M (9 MB): 0 %", "Downloading M (9 MB): 7 %", "Downloading M (9 MB): 20 %",
                   "Downloaded M", "Loading m.gguf"):  # fmt: skip
        client._tell(status)
    shown = ["Downloading M (9 MB): 0 %", "Downloading M (9 MB): 20 %", "Downloaded M"]
    assert capsys.readouterr().err.splitlines() == [f"closeout: {line}" for line in shown]
    heard: list[str] = []
    LocalClient("local", on_status=heard.append)._tell("Downloading M (9 MB): 0 %")
    assert heard == ["Downloading M (9 MB): 0 %"]
    assert not capsys.readouterr().err


async def test_a_judge_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serve_script([say("Both are seven. Verdict: right")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        grade = await judge("seven", "7", "How many?", "openai:gpt-5")
    assert grade.judged
    with pytest.raises(ConfigError, match="Did you mean 'openai:gpt-5'"):
        await judge("seven", "7", "How many?", "gpt-5")
