"""Settings files of MiroFlow: they load as they are, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, ConfigError, File, load_config
from closeout.evaluate.tasks import load_tasks
from closeout.messages import ToolCall
from closeout.testing import ScriptedClient, answer, call, say
from closeout.tools.toolbox import Toolbox

FILES = {
    "config.yaml": "defaults: [{llm: default}, {agent: default}, {benchmark: default}, _self_]\nproject_name: x\n",
    "llm/default.yaml": "provider: anthropic\nmodel_name: claude\nasync_client: false\ntop_k: -1\nmin_p: 0.0\n"
    "temperature: 0.3\nmax_tokens: 4096\napi_key: ''\nrepetition_penalty: 1.0\n",
    "llm/ours.yaml": "defaults: [default, _self_]\nprovider: qwen\nmodel_name: small\nbase_url: http://127.0.0.1:9/v1\n"
    "repetition_penalty: 1.05\n",
    "agent/default.yaml": "main_agent:\n  tools: [tool-vqa, tool-transcribe-os, tool-reasoning, tool-reader]\n"
    "  max_turns: 20\nsub_agents:\n  agent-browsing:\n    tools: [tool-google-search, tool-vqa]\n    max_turns: 9\n"
    "keep_tool_result: -1\ncontext_compress_limit: 0\n",
    "agent/single.yaml": "defaults: [default, _self_]\nmain_agent:\n"
    "  tools: [search_and_scrape_webpage, jina_scrape_llm_summary, tool-python]\n"
    "  tool_blacklist: [[search_and_scrape_webpage, sogou_search], [tool-python, run_python_code],\n"
    "    [tool-python, run_command]]\n"
    "  max_turns: 200\nsub_agents:\nkeep_tool_result: 5\nretry_with_summary: False\n",
    "benchmark/default.yaml": "name: default\ndata:\n  metadata_file: tasks.jsonl\n  field_mapping:\n"
    "    task_id_field: task_id\n    task_question_field: task_question\n    ground_truth_field: ground_truth\n"
    "execution: {max_tasks: null, max_concurrent: 5, pass_at_k: 1}\n",
    "benchmark/sums.yaml": "defaults: [default, _self_]\nname: sums\ndata: {data_dir: data/sums}\n"
    "execution: {max_tasks: 1}\n",
}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    folder = tmp_path / "app" / "conf"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(agent: Agent[Any]) -> set[str]:
    return {spec.name for spec in agent.plan().manager.specs()} - {"read_result"}


async def test_every_kind_of_file_loads_alone_and_together(conf: Path) -> None:
    config = load_config(conf / "llm/ours.yaml")
    assert (config.llm.provider, config.llm.temperature, config.llm.max_tokens) == ("openai", 0.3, 4096)
    assert config.llm.extra_body == {"repetition_penalty": 1.05}, "values that say nothing are left out"
    several = Agent(ScriptedClient([answer("1")]), config=str(conf / "agent/default.yaml"), home=False)
    assert names(several) == {"ask_about_image", "transcribe", "reasoning", "scrape_website", "agent-browsing"}
    single = Agent(ScriptedClient([answer("1")]), config=conf / "agent/single.yaml", home=False)
    assert names(single) == {"web_search", "scrape_and_extract_info"}
    assert single.plan().settings.keep_tool_result == 5
    both = load_config([conf / "config.yaml", conf / "agent/single.yaml"])
    assert (both.llm.model_name, both.agent.main_agent.max_turns, both.agent.sub_agents) == ("claude", 200, {})
    assert (await single.run("?")).answer == "1"


async def test_their_tools_are_called_by_their_names_and_parameters(conf: Path) -> None:
    asked: list[Any] = []

    def script(request: Any) -> Any:
        asked.append(request)
        if not request.tools:
            return answer("It is." if request.messages[0].text == "Is it?" else "a red square")
        done = sum(message.role == "tool" for message in request.messages)
        theirs = (
            call("visual_question_answering", image_path_or_url="a.png", question="What is it?"),
            call("reasoning", question="Is it?"),
            answer("yes"),
        )
        return theirs[done]

    model = ScriptedClient(script)
    agent = Agent(model, config=conf / "agent/default.yaml", home=False)
    picture = File("a.png", b"\x89PNG\r\n\x1a\n" + b"0" * 8)
    result = await agent.run("?", files=[picture])
    assert result.answer == "yes", result.error
    assert [each["tool_name"] for each in result.task_log.tool_calls] == ["ask_about_image", "reasoning"]
    assert any("image_url" in str(request.messages[0].content) for request in asked if not request.tools)
    assert "red square" in str(result.tool_outputs[0].result)
    assert result.usage.requests == 5, "what the tools ask is the run's usage"


def test_every_tool_takes_the_names_and_parameters_that_their_servers_have() -> None:
    servers = ["search_and_scrape_webpage", "jina_scrape_llm_summary", "tool-python", "tool-vqa", "tool-transcribe"]
    config = {"agent": {"main_agent": {"tools": [*servers, "tool-reader", "tool-reasoning"]}}}
    toolbox = Toolbox(Agent(ScriptedClient([]), config=config, home=False).plan().manager)
    calls: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "google_search": ({"q": "a", "gl": "us", "hl": "en", "num": 10, "page": 2}, {"query": "a", "page": 2}),
        "sogou_search": ({"Query": "a", "Cnt": 10}, {"query": "a"}),
        "convert_to_markdown": ({"uri": "http://a"}, {"url": "http://a"}),
        "scrape_and_extract_info": ({"url": "a", "info_to_extract": "b"}, {"url": "a", "info_to_extract": "b"}),
        "run_python_code": ({"code_block": "1", "sandbox_id": "default"}, {"code": "1"}),
        "run_command": ({"command": "ls", "sandbox_id": "default"}, {"command": "ls"}),
        "visual_question_answering": ({"media_path_or_url": "a", "question": "b"}, {"image": "a", "question": "b"}),
        "audio_transcription": ({"audio_path_or_url": "a"}, {"audio": "a"}),
        "reasoning": ({"question": "a"}, {"question": "a"}),
    }
    for name, (theirs, ours) in calls.items():
        spec, _, problem = toolbox.resolve(ToolCall(name, theirs))
        assert spec is not None, problem
        assert toolbox.repair(spec, theirs).arguments == ours, name
    python = toolbox.resolve(ToolCall("run_python_code", {}))[0]
    assert python is not None
    assert not toolbox.repair(python, {"code": "1", "network": False}).ok, "only what means nothing is left out"


def test_a_tool_may_ask_a_model_of_its_own(conf: Path) -> None:
    theirs = {"tools": {"models": {"reasoning": {"model": "openai:big", "base_url": "http://127.0.0.1:9/v1"}}}}
    agent = Agent(ScriptedClient([]), config=[conf / "agent/default.yaml", theirs], home=False)
    asks = {each.name: each.ask.client.name for each in agent.plan().manager.local_tools if hasattr(each, "ask")}
    assert asks["reasoning"] == "openai:big"


def test_a_key_without_a_counterpart_says_where_it_belongs(conf: Path) -> None:
    (conf / "agent/mine.yaml").write_text("main_agent:\n  tools: [task_planner]\n")
    with pytest.raises(ConfigError, match=r"'task_planner'.* agent\.tools.* tools\.mcp_servers"):
        load_config(conf / "agent/mine.yaml")
    (conf / "agent/mine.yaml").write_text("defaults: [missing]\nmain_agent:\n  max_turns: 3\n")
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        load_config(conf / "agent/mine.yaml")
    with pytest.raises(ConfigError, match="'benchmark' has name, data, execution, got 'speed'"):
        load_config({"benchmark": {"speed": 1}})
    with pytest.raises(ConfigError, match="'temperature'"):
        load_config_of(conf, "temperature: 0.3\n")


def test_a_value_of_a_wrong_type_is_an_error_and_no_traceback(conf: Path) -> None:
    for wrong in (
        {"agent": {"sub_agents": ["a"]}},
        {"agent": {"main_agent": {"tools": "nothing"}}},
        {"agent": {"main_agent": {"tools": 5, "tool_blacklist": "a"}}},
        {"llm": {"top_k": 5, "extra_body": "a"}},
        {"benchmark": 5},
        {"tools": ["a"], "agent": {"main_agent": {"tools": ["tool-python"]}}},
    ):
        with pytest.raises(ConfigError):
            load_config(wrong)
    for text in ("defaults: 5\nmain_agent: {}\n", "defaults: [[1]]\nmain_agent: {}\n", "defaults: {a: b}\ndata: 1\n"):
        with pytest.raises(ConfigError):
            load_config_of(conf / "agent", text)


def load_config_of(folder: Path, text: str) -> Any:
    (folder / "own.yaml").write_text(text)
    return load_config(folder / "own.yaml")


def test_a_server_of_the_users_own_keeps_its_name(conf: Path) -> None:
    own = {"tools": {"mcp_servers": {"tool-python": {"command": "python server.py"}}}}
    config = load_config([conf / "agent/single.yaml", own])
    assert config.agent.tools == ["web_search", "scrape_and_extract_info"]


def test_a_benchmark_file_names_the_tasks_of_an_evaluation(conf: Path) -> None:
    data = conf.parent / "data/sums"
    data.mkdir(parents=True)
    lines = [f'{{"task_id": "{n}", "task_question": "{n} + 1?", "ground_truth": "{n + 1}"}}\n' for n in (1, 2)]
    (data / "tasks.jsonl").write_text("".join(lines))
    assert [(each.id, each.question, each.answer) for each in load_tasks(conf / "benchmark/sums.yaml")] == [
        ("1", "1 + 1?", "2")
    ]
    assert len(load_tasks(conf / "benchmark/sums.yaml", limit=5)) == 2
    assert load_config(conf / "benchmark/sums.yaml") == load_config()
    with pytest.raises(ConfigError, match="must be a benchmark file"):
        load_tasks(conf / "llm/ours.yaml")


async def test_a_sub_agent_is_called_as_their_models_were_trained_to(conf: Path) -> None:
    theirs = "\n".join(
        (
            "I delegate.\n\n<use_mcp_tool>\n<server_name>agent-browsing</server_name>",
            "<tool_name>search_and_browse</tool_name>\n<arguments>",
            '{"subtask": "Find it."}\n</arguments>\n</use_mcp_tool>',
        )
    )
    model = ScriptedClient([say(theirs), say(r"It is \boxed{7}."), answer("7")])
    agent = Agent(model, dialect="mcp_xml", answer=Boxed(), config=conf / "agent/default.yaml", home=False)
    result = await agent.run("?")
    assert (result.answer, result.rollbacks, result.warnings) == ("7", 0, ())
    assert [each["arguments"] for each in result.task_log.tool_calls] == [{"task": "Find it."}]
