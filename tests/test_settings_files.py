"""A whole agent in YAML: its parts, layers, profiles and paths, where each value comes from, in every command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from cli_process import closeout, here
from closeout import Agent, Number, load_config
from closeout.errors import ConfigError, UsageError
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.settings_schema import settings_schema
from closeout.testing import RequestView, ScriptedClient, always, answer, call, serve_script
from serving import serving
from test_observe_otel import Backend
from test_serve_api import fetch

SERVER = Path(__file__).parent / "mcp_servers" / "everything.py"
NONE: dict[str, str] = {}

TOOLS = '''
from closeout import AnswerGenerator, OutputFormatter, ToolExecutor, tool

heard = []


def length(word: str) -> int:
    """Count the letters of a word."""
    return len(word)


@tool(read_only=True)
def colour(of: str) -> str:
    """Look up a colour."""
    return f"{of} is green"


def is_small(answer, run):
    return None if float(answer) < 100 else "It must be less than 100."


class Recorder:
    def __call__(self, event):
        heard.append(type(event).__name__)


class Formatter(OutputFormatter):
    pass


class Executor(ToolExecutor):
    pass


class Generator(AnswerGenerator):
    pass
'''

AGENT = """
agent:
  name: counter
  instructions: {file: texts/role.md}
  tools: [calculate, "my_parts:length"]
  documents: shelf
  answer: number
  check: ["my_parts:is_small"]
  strategy: majority:1
  listeners: my_parts:Recorder
  output_formatter: my_parts:Formatter
  tool_executor: my_parts:Executor
  answer_generator: my_parts:Generator
  max_turns: 9
  sub_agents:
    painter:
      description: Knows colours.
      instructions: {file: texts/painter.md}
      tools: ["my_parts:colour", calculate]
      answer: {type: object, properties: {colour: {type: string}}, required: [colour]}
llm:
  provider: openai
  model_name: scripted
  base_url: ${SERVER:-http://localhost:1/v1}
"""


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """A folder with an agent in YAML and all that it names, which is not the working folder."""
    folder = tmp_path / "team"
    (folder / "texts").mkdir(parents=True)
    (folder / "shelf").mkdir()
    (folder / "shelf" / "moon.txt").write_text("The Moon is 384,400 km away.")
    (folder / "texts" / "role.md").write_text("Count letters. 你好。")
    (folder / "texts" / "painter.md").write_text("Name a colour.")
    (folder / "my_parts.py").write_text(TOOLS)
    (folder / "agent.yaml").write_text(AGENT)
    return folder


@pytest.fixture(autouse=True)
def no_module_stays() -> Any:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in ("my_parts", "whole"):
        sys.modules.pop(name, None)


def counting(view: RequestView) -> Any:
    return answer("5") if "5" in view.text.rpartition("How many")[2] else call("length", word="hello")


async def test_a_file_is_the_whole_agent(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with serve_script(counting) as server:
        monkeypatch.setenv("SERVER", server.base_url)
        agent = Agent.from_yaml(team / "agent.yaml", dialect="function_call")
        result = await agent.run("How many letters has hello?")
        asked = json.loads(server.requests[0].body)
    assert (result.answer, result.value) == ("5", 5)
    assert asked["model"] == "scripted"
    assert "Count letters. 你好。" in asked["messages"][0]["content"]
    names = {each["function"]["name"] for each in asked["tools"]}
    assert names == {"calculate", "length", "search_documents", "read_document", "painter", "read_result"}
    plan = agent.plan()
    assert (agent.name, plan.name, plan.limits.max_turns) == ("counter", "counter", 9)
    assert [check.name for check in plan.spec.check] == ["is_small"]
    assert isinstance(plan.contract, Number)
    assert plan.strategy is not None
    assert plan.strategy.name == "majority"
    assert type(plan.output_formatter).__name__ == "Formatter"
    assert [plan.make_executor.__name__, plan.spec.answer_generator.__name__] == ["Executor", "Generator"]  # type: ignore[attr-defined]
    heard = sys.modules["my_parts"].heard
    assert (heard[0], heard[-1]) == ("RunStarted", "RunEnded")
    (painter,) = [each for each in plan.manager.local_tools if each.spec.name == "painter"]
    below = painter.plan_of(False)  # type: ignore[attr-defined]
    assert [each.name for each in below.manager.specs()] == ["calculate", "colour", "read_result"]
    assert (below.instructions, below.strategy) == ("Name a colour.", None)
    assert (below.spec.check, below.spec.listeners) == ((), ())
    assert "colour" in below.contract.instruction()


def test_arguments_come_first_and_tools_are_added(team: Path) -> None:
    agent = Agent.from_yaml(
        team / "agent.yaml", overrides=["agent.max_turns=3"], api_key="k", instructions="Mine.", answer=int,
        tools=[spell], name="mine",
    )  # fmt: skip
    plan = agent.plan()
    assert (plan.name, plan.instructions, plan.limits.max_turns) == ("mine", "Mine.", 3)
    assert {"spell", "length", "calculate"} <= {each.name for each in plan.manager.specs()}


def spell(word: str) -> str:
    """Say a word."""
    return word


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent:\n  max_rolbacks: 3\n", r"a\.yaml:2: Unknown setting 'agent.max_rolbacks'. Did you mean 'agent.max_ro"),
        ("llm: {}\nagent.high_water: 2\n", r"a\.yaml:2: Invalid value for 'agent.high_water': 2"),
        ("agent:\n  max_turns: no\n", r"a\.yaml:2: Invalid value for 'agent.main_agent.max_turns'"),
        ("agent:\n  tools: [1]\n", r"a\.yaml:2: Invalid value for 'agent.tools.0': 1"),
        ("agent:\n  instructions: {fil: x}\n", r"a\.yaml:2: Invalid value for 'agent.instructions'.*\{file: instruc"),
        ("agent:\n  check:\n    - {functon: x}\n", r"a\.yaml:2: Invalid value for 'agent.check'.*\{function: …"),
        ("profiles:\n  prod:\n    agent: {max_rolbacks: 1}\n", r"a\.yaml:3 \(profile prod\): Unknown setting 'agent.m"),
        ("profiles: [prod]\n", r"a\.yaml:1: 'profiles' must be a mapping of names to settings"),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_config(tmp_path / "a.yaml", environment=NONE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": ["my_parts:lenght"]}, "'agent.tools': The module my_parts has no lenght"),
        ({"tools": ["nowhere:length"]}, "'agent.tools': There is no module nowhere"),
        ({"instructions": {"file": "gone.md"}}, "'agent.instructions': .*gone.md cannot be read: No such file"),
        ({"answer": "json:gone.json"}, "'agent.answer': .*gone.json' cannot be read: No such file"),
        ({"answer": "nubmer"}, "'agent.answer': Unknown answer 'nubmer'. Use text, boxed, number"),
        ({"strategy": "majorty:3"}, "'agent.strategy': 'majorty:3' is not of the form .* Or use once, majority:5"),
        ({"strategy": "twice"}, "'agent.strategy': No strategy is named twice. Use once, majority:5"),
        ({"listeners": ["my_parts:nothing"]}, "'agent.listeners': The module my_parts has no nothing"),
        ({"documents": "gone"}, "'agent.documents': .*gone"),
        ({"check": ["my_parts:heard"]}, "'agent.check': A check must be a function"),
    ],
)
def test_a_part_that_does_not_exist_is_named_with_its_key(team: Path, change: dict[str, Any], said: str) -> None:
    (team / "wrong.yaml").write_text(yaml.safe_dump({"agent": change}))
    with pytest.raises(ConfigError, match=said):
        Agent.from_yaml(team / "agent.yaml", team / "wrong.yaml", api_key="k")


def test_a_profile_overrides_its_file_and_a_later_file_overrides_both(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "agent: {max_turns: 1, max_cost: 1}\nprofiles:\n  prod: {agent: {max_turns: 2, max_rollbacks: 2}}\n"
        "  test: {llm: {api_key: '${NOT_SET}'}}\n"
    )
    (tmp_path / "mine.yaml").write_text("agent: {max_rollbacks: 3}\n")
    files = [tmp_path / "base.yaml", tmp_path / "mine.yaml"]

    def read(profile: str | None, environment: dict[str, str] = NONE) -> tuple[int, int, float | None]:
        agent = load_config(files, environment=environment, profile=profile).agent
        return agent.main_agent.max_turns, agent.max_rollbacks, agent.max_cost

    assert read(None) == (1, 3, 1)
    assert read("prod") == read(None, {"CLOSEOUT_PROFILE": "prod"}) == (2, 3, 1)
    with pytest.raises(ConfigError, match=r"There is no profile 'prd'\. Did you mean 'prod'"):
        read("prd")
    with pytest.raises(ConfigError, match="no variable NOT_SET"):
        read("test")
    with pytest.raises(ConfigError, match="There is no profile 'prod': the settings have no profiles"):
        load_config(tmp_path / "mine.yaml", environment=NONE, profile="prod")
    assert load_config({"agent": {"max_turns": 4}}, environment={"CLOSEOUT_PROFILE": "prod"}).agent  # of another file


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a"
    (folder / "sub").mkdir(parents=True)
    (folder / "own.py").write_text("x = 1\n")
    (folder / "m.gguf").write_bytes(b"")
    (folder / "s.yaml").write_text(
        "agent: {documents: sub, answer: 'json:s.json', tools: ['own:x', 'sub/other:y', 'json:loads', calculate],\n"
        "        strategy: 'majority:3', instructions: {file: ../i.md}}\n"
        "llm: {model_name: m.gguf}\n"
        "tools:\n  mcp_servers:\n    one: python s.py\n    two: {command: node, args: [s.js], cwd: sub}\n"
        "    three: http://x.example/mcp\n"
    )
    monkeypatch.chdir(tmp_path)
    found = load_config("a/s.yaml", environment=NONE)
    at = folder.as_posix()
    assert found.agent.documents == f"{at}/sub"
    assert found.agent.answer == f"json:{at}/s.json"
    assert found.agent.tools == [f"{at}/own:x", f"{at}/sub/other:y", "json:loads", "calculate"]
    assert found.agent.strategy == "majority:3"
    assert found.agent.instructions.file == f"{at}/../i.md"  # type: ignore[union-attr]
    assert found.llm.model_name == f"{at}/m.gguf"
    assert found.tools.mcp_servers == {
        "one": {"command": "python s.py", "cwd": at},
        "two": {"command": "node", "args": ["s.js"], "cwd": f"{at}/sub"},
        "three": "http://x.example/mcp",
    }
    overridden = load_config("a/s.yaml", ["agent.documents=other"], NONE)  # relative to the working folder, as it was
    assert overridden.agent.documents == "other"


def test_config_show_says_where_each_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOSEOUT_LLM__TOP_P", "0.5")
    Path("base.yaml").write_text(
        "agent:\n  max_turns: 5\n  tools:\n    - calculate\n    - fetch_url\nllm:\n  api_key: very-secret-1\n"
        "  prices:\n    a: [1, 2]\n  fallback: ['openai:b', {model: 'openai:c', api_key: very-secret-2}]\n"
        "tools.secrets:\n  crm: {value: very-secret-3, tools: [look]}\n"
        "profiles: {prod: {llm: {prices: {b: [1, 2]}}}}\n"
    )
    Path("mine.yaml").write_text("agent:\n  tools: [run_python]\n")
    options = ("-a", "base.yaml", "-C", "mine.yaml", "-C", "agent.max_rollbacks=3", "--profile", "prod")
    plain, as_json = here("config", "show", *options), here("config", *options, "--json").json
    lines = plain.out.splitlines()
    assert "agent.main_agent.max_turns = 5  # base.yaml:2" in lines
    assert 'agent.tools = ["run_python"]  # mine.yaml:2' in lines
    assert "llm.top_p = 0.5  # CLOSEOUT_LLM__TOP_P" in lines
    assert "agent.max_rollbacks = 3  # override agent.max_rollbacks" in lines
    assert 'llm.prices = {"a": [1.0, 2.0], "b": [1.0, 2.0]}  # base.yaml:9, base.yaml:13 (profile prod)' in lines
    assert "llm.api_key = (set)  # base.yaml:7" in lines
    assert as_json["origins"]["agent.main_agent.max_turns"] == ["base.yaml:2"]
    assert "agent.max_cost" not in as_json["origins"]
    assert as_json["tools"]["secrets"]["crm"]["value"] == "set"
    assert as_json["llm"]["fallback"]["models"][1] == {"model": "openai:c", "api_key": "***"}
    assert "very-secret" not in plain.out + str(as_json)
    assert here("config", "shwo").sentence.startswith("closeout config takes show or schema, got shwo.")


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not(team: Path) -> None:
    schema = here("config", "schema").json
    assert schema == json.loads(json.dumps(settings_schema()))
    check = jsonschema_rs.validator_for(schema)
    accepted: list[Any] = [
        yaml.safe_load(AGENT),
        {"agent.max_turns": 7, "profiles": {"prod": {"agent": {"max_turns": 8, "max_cost": "${COST}"}}, "dev": None}},
        {"llm": {"prices": {"m": [1, 2], "n": {"input": 1, "output": 2}}, "fallback": ["openai:b"]}},
        {"tools": {"mcp_servers": ["python s.py"]}, "agent": {"check": {"function": "a:b", "then": "unanswered"}}},
    ]
    for each in accepted:
        check.validate(each)
        load_config(each, environment={"COST": "1"})
    for each in (
        {"agent": {"max_rolbacks": 1}}, {"agent": {"max_turns": 0}}, {"profiles": {"x": {"lmm": {}}}},
        {"llm": {"prices": {"m": [1]}}}, {"tools": {"approval": "sometimes"}},
    ):  # fmt: skip
        assert not check.is_valid(each), each
        with pytest.raises(ConfigError):
            load_config(each, environment=NONE)


async def test_models_to_fall_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    async with serve_script([answer("3")], misbehave=always("server_error")) as down, serve_script([answer("4")]) as up:
        (tmp_path / "a.yaml").write_text(
            f"llm:\n  model_name: first\n  base_url: {down.base_url}\n  max_retries: 0\n"
            f"  fallback:\n    models: [{{model: 'openai:second', base_url: '{up.base_url}'}}]\n"
            "    conditions: [overload]\n"
        )
        result = await Agent.from_yaml(tmp_path / "a.yaml").run("What is 2+2?")
        assert result.answer == "4"
        assert json.loads(up.requests[0].body)["model"] == "second"
    with pytest.raises(ConfigError, match=r"'llm\.fallback': Fallback has no condition 'overlaod'"):
        Agent.from_yaml(tmp_path / "a.yaml", overrides=["llm.fallback.conditions=[overlaod]"])


# ------------------------------------------------------------------------------------------------ commands


WHOLE = """
import os
from closeout import Agent
from my_parts import length

agent = Agent(
    "openai:scripted", [length], base_url=os.environ["SERVER"], api_key="k", dialect="function_call", name="whole"
)
not_one = 7

def fails():
    raise RuntimeError("the vault is sealed")
"""


def test_an_agent_in_python_or_in_yaml_for_every_command(
    team: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (team / "whole.py").write_text(WHOLE)
    monkeypatch.chdir(team)
    monkeypatch.setenv("CLOSEOUT_DIALECT", "function_call")
    (team / "tasks.jsonl").write_text('{"id": "1", "question": "How many letters?", "answer": "5"}\n')
    with serve_script(counting) as server:
        monkeypatch.setenv("SERVER", server.base_url)
        for source in ("whole:agent", "agent.yaml"):
            done = here("run", "How many letters has hello?", "--agent", source, "--json", "-q")
            assert (done.json["answer"], done.code) == ("5", 0), done.err
            run_id = done.json["run_id"]
            resumed = here("resume", run_id, "-q")
            assert (resumed.out, "The run names its agent: " in resumed.err) == ("5\n", ":" in source)
            assert here("runs", "replay", run_id).code == 0
            assert here("runs", "fork", run_id, "--at", "1", "-q").out == "5\n"
            assert here("chat", "-a", source, "-q", stdin=b"How many letters?\n").out.count("5") == 1
            tools = here("agent", "tools", "-a", source)
            assert "length(word)" in tools.out
            found = here(
                "eval", "tasks.jsonl", "-a", source, "--name", source[:5], "--scorer", "numeric", "--json", "-q"
            )
            assert found.json.get("totals", {}).get("correct") == 1, found
        started = next(iter(open_store(home).rows(run_id))).event
        assert isinstance(started, ev.RunStarted)
        assert started.origin["config"] == [str(team / "agent.yaml")]

        # A run that was begun in Python is continued on the command line if its agent is named.
        agent = Agent("openai:scripted", [spell], base_url=server.base_url, api_key="k", dialect="function_call")
        result = agent.run_sync("How many? 5")
        assert "Name it with --agent" in here("resume", result.run_id).sentence
        refused = here("resume", result.run_id, "-a", "whole:agent", "--on-change", "refuse")
        assert "tool length: new" in refused.err
    wrong = {
        "whole:nothing": "has no nothing", "whole:not_one": "must be an Agent",
        "whole:fails": "whole:fails raised RuntimeError: the vault is sealed", "whole": "is neither a settings file",
        "none.yaml": "No such file", "whole:agnet": "Did you mean 'agent'?", "whole.py:agent": "without the suffix",
    }  # fmt: skip
    for source, said in wrong.items():
        assert said in here("run", "Q", "-a", source).sentence
    assert "defined in Python" in here("run", "Q", "-a", "whole:agent", "-m", "local").sentence


def test_an_agent_of_another_folder_is_found_again(team: Path, tmp_path: Path) -> None:
    """The command starts elsewhere; what the record names is found from a third place."""
    done = closeout(
        "agent", "tools", "-a", str(team / "agent.yaml"), "--json", cwd=tmp_path, env={"OPENAI_API_KEY": "k"}
    )
    assert "length" in [each["name"] for each in done.json["tools"]]


# ------------------------------------------------------------------------------------------------ listeners


async def test_listeners_of_an_agent_receive_every_run_also_of_a_server(home: Path) -> None:
    backend = Backend()
    agent = Agent(
        ScriptedClient(lambda view: answer("4")), dialect="function_call", name="sums", listeners=[backend.listener()]
    )
    await agent.run("What is 2+2?")
    await agent.session("ann").run("And 1+3?")
    assert [result.answer async for result in agent.map(["1+3?", "3+1?"], key="sums")] == ["4", "4"]
    async with serving(agent) as served:
        await fetch(served, "POST", "/v1/runs", json={"task": "What is 2+2?"})
        run_id = (await fetch(served, "POST", "/v1/runs", json={"task": "What is 3+1?"}))[1]["run_id"]
        await served.host.wait(run_id, 10)
    assert len(backend.named("invoke_agent sums")) == 6
    with pytest.raises(UsageError, match="A listener must be callable, got 5"):
        Agent(ScriptedClient([]), listeners=[5])  # type: ignore[list-item]


def test_the_files_of_the_docs_are_read_and_fit_the_schema() -> None:
    check = jsonschema_rs.validator_for(settings_schema())
    page = Path(__file__).parent.parent / "docs" / "configuration.md"
    texts = re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(texts) >= 3
    for text in texts:
        check.validate(yaml.safe_load(text))
        load_config(yaml.safe_load(text), environment=NONE)
