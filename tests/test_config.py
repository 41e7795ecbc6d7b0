"""Settings: a file, then the environment, then overrides; what is wrong is named, with the nearest right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Config, load_config
from closeout.config import home_folder, known_keys
from closeout.errors import ConfigError
from closeout.messages import Usage
from closeout.models.catalog import Price, price

NONE: dict[str, str] = {}


def test_the_defaults_are_the_documented_ones() -> None:
    agent = load_config(environment=NONE).agent
    assert (agent.keep_tool_result, agent.context_compress_limit, agent.max_consecutive_rollbacks) == (-1, 0, 5)
    assert agent.main_agent.max_turns == 50
    assert agent.get("retry_with_summary") is True
    assert agent.get("no_such_thing", 7) == 7


def test_a_later_source_overrides_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("agent: {max_rollbacks: 1, keep_tool_result: 1, high_water: 0.9}\ndialect: cot_chat\n")
    environment = {"CLOSEOUT_AGENT__KEEP_TOOL_RESULT": "2", "CLOSEOUT_AGENT__HIGH_WATER": "0.8", "HOME": "/x"}
    found = load_config(file, ["agent.high_water=0.7", "llm.model_name=gpt-5"], environment)
    assert (found.agent.max_rollbacks, found.agent.keep_tool_result, found.agent.high_water) == (1, 2, 0.7)
    assert (found.dialect, found.llm.model_name) == ("cot_chat", "gpt-5")


def test_several_files_are_merged_and_a_later_one_overrides_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "agent: {max_turns: 3, max_rollbacks: 1}\nllm: {model_name: a, max_tokens: 9}\n"
    )
    (tmp_path / "mine.yaml").write_text("agent: {max_turns: 4}\nllm.model_name: b\n")
    found = load_config([tmp_path / "base.yaml", tmp_path / "mine.yaml", {"dialect": "cot_chat"}], environment=NONE)
    assert (found.agent.main_agent.max_turns, found.agent.max_rollbacks) == (4, 1)
    assert (found.llm.model_name, found.llm.max_tokens, found.dialect) == ("b", 9, "cot_chat")


def test_variables_are_replaced_wherever_a_setting_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "llm: {api_key: '${KEY}', base_url: 'http://${HOST:-localhost}:8000/v1'}\n"
        "agent: {sub_agents: {clerk: {model: '${MODEL}', instructions: 'Write ${NAME}.'}}}\n"
        "prompts: {first: 'Costs ${X}'}\n"
    )
    environment = {"KEY": "12345", "MODEL": "m", "COUNT": "7", "CLOSEOUT_AGENT__MAX_ROLLBACKS": "${COUNT}"}
    found = load_config(tmp_path / "a.yaml", ["llm.extra_body={user: '${MODEL}'}"], environment)
    assert (found.llm.api_key, found.llm.base_url) == ("12345", "http://localhost:8000/v1")
    assert (found.llm.extra_body, found.agent.max_rollbacks) == ({"user": "m"}, 7)
    clerk = found.agent.sub_agents["clerk"]
    assert (clerk.model, clerk.instructions, found.prompts["first"]) == ("m", "Write ${NAME}.", "Costs ${X}")
    with pytest.raises(ConfigError, match=r"The setting 'llm.api_key' uses \$\{KEY\}.*no variable KEY"):
        load_config(tmp_path / "a.yaml", environment=NONE)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ({"CLOSEOUT_FOO": "1"}, "Unknown setting 'CLOSEOUT_FOO'"),
        ({"CLOSEOUT_AGENT__MAX_ROLBACKS": "1"}, "Did you mean 'CLOSEOUT_AGENT__MAX_ROLLBACKS'"),
        ({"CLOSEOUT_AGENT__MAX_TURNS": "x"}, "Invalid value for 'CLOSEOUT_AGENT__MAX_TURNS': 'x'"),
    ],
)
def test_a_variable_is_named_as_it_was_written(variable: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(environment=variable)


def test_a_config_is_used_as_it_is_and_sources_are_not_modified() -> None:
    tree: dict[str, Any] = {"agent": {"max_rollbacks": 3}}
    first = load_config(tree, ["agent.max_tokens=500"], NONE)
    assert tree == {"agent": {"max_rollbacks": 3}}
    assert load_config(first, environment=NONE) == first


def test_max_turns_is_the_main_agents_and_sub_agents_have_their_own() -> None:
    found = load_config(overrides=["agent.max_turns=7", "agent.sub_agents.clerk.max_turns=3"], environment=NONE)
    assert (found.agent.main_agent.max_turns, found.agent.sub_agents["clerk"].max_turns) == (7, 3)


@pytest.mark.parametrize(
    "source",
    [
        {"agent": {"max_turns": 7, "max_rollbacks": 3}},
        {"agent.max_turns": 7, "agent.max_rollbacks": 3},
        {"agent": {"main_agent": {"max_turns": 7}, "max_turns": 9}, "agent.max_rollbacks": 3},
    ],
)
def test_a_mapping_takes_the_short_key_and_dotted_keys_too(source: dict[str, Any]) -> None:
    found = load_config(source, environment=NONE).agent
    assert (found.main_agent.max_turns, found.max_rollbacks) == (7, 3)
    assert load_config(source, ["agent.max_turns=8"], NONE).agent.main_agent.max_turns == 8


def test_a_section_whose_keys_are_commented_out_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("agent:\n  # max_turns: 7\nprompts:\ndialect: cot_chat\n")
    assert load_config(tmp_path / "a.yaml", environment=NONE) == Config(dialect="cot_chat")


@pytest.mark.parametrize(
    "text", ["agent: {max_rollbacks: 1}\nllm: {}\nagent: {max_tokens: 9}\n", "x: 1\nb: [{x: 1}]\nx: 2"]
)
def test_a_duplicate_key_in_a_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"a\.yaml has the key '(agent|x)' a second time at line 3"):
        load_config(tmp_path / "a.yaml", environment=NONE)


def test_one_name_in_several_places_of_a_file_and_anchors_are_fine(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("agent:\n  sub_agents: {a: &few {max_turns: 3}, b: *few}\n  max_turns: 5\n")
    found = load_config(tmp_path / "a.yaml", environment=NONE).agent
    assert [found.sub_agents["b"].max_turns, found.main_agent.max_turns] == [3, 5]
    (tmp_path / "a.yaml").write_text("agent: &all [*all]\n")
    with pytest.raises(ConfigError, match="its aliases expand to more than"):
        load_config(tmp_path / "a.yaml", environment=NONE)


@pytest.mark.parametrize(
    "servers",
    [
        "python server.py",
        ["python server.py", {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer x"}}],
        {"shop": {"command": "python", "args": ["server.py"], "env": {"KEY": "x"}}},
    ],
)
def test_mcp_servers_may_have_every_form_that_an_agent_takes(servers: Any) -> None:
    found = load_config({"tools": {"mcp_servers": servers}}, environment=NONE).tools.mcp_servers
    assert found == ([servers] if isinstance(servers, str) else servers)


@pytest.mark.parametrize("servers", [3, [3], {"shop": 3}])
def test_invalid_mcp_servers_are_refused_with_an_example(servers: Any) -> None:
    with pytest.raises(ConfigError, match="Give a list of commands, URLs or mappings"):
        load_config({"tools": {"mcp_servers": servers}}, environment=NONE)


PRICES = {"m-1.5/x": (0.5, 2.0)}


@pytest.mark.parametrize(
    "given",
    [
        {"source": {"llm": {"prices": {"m-1.5/x": [0.5, 2]}}}},
        {"source": {"llm.prices": PRICES}},
        {"source": {"llm.prices.m-1.5/x": (0.5, 2)}},
        {"overrides": ["llm.prices={m-1.5/x: [0.5, 2.0]}"]},
        {"overrides": ["llm.prices.m-1.5/x=[0.5, 2.0]"]},
        {"environment": {"CLOSEOUT_LLM__PRICES": "{m-1.5/x: [0.5, 2.0]}"}},
        {"values": {"llm.prices": PRICES}},
    ],
)
def test_prices_can_be_set_in_every_source(given: dict[str, Any]) -> None:
    config = load_config(**{"environment": NONE, **given})
    assert config.llm.prices == PRICES
    assert load_config(config, environment=NONE) == config


@pytest.mark.parametrize("cache_read", [None, 0.05])
def test_a_price_may_be_a_mapping_an_object_or_a_list(cache_read: float | None) -> None:
    named = {"input": 0.5, "output": 2, "cache_read": cache_read}
    given = {"a": named, "b": Price(0.5, 2, cache_read), "c": [0.5, 2, 0.5 if cache_read is None else cache_read]}
    prices = load_config({"llm": {"prices": given}}, environment=NONE).llm.prices
    usage = Usage(1000, 10, cache_read_tokens=600)
    assert {price(model, usage, prices) for model in given} == {Price(0.5, 2, cache_read).of(usage)}


@pytest.mark.parametrize(
    "wrong",
    [
        "0.5", [0.5, 2], {"m": 0.5}, {"m": [0.5]}, {"m": "05"}, {"m": [1, 2, 3, 4, 5]}, {"m": [1, -2]},
        {"m": [1, None]}, {"m": [1, True]}, {"m": [1, float("nan")]},
        {"m": {"input": 1}}, {"m": {"input": 1, "output": 2, "cached": 3}},
        {"m": {"input": 1, "output": "2"}}, {"m": None}, {"m": Price},
    ],
)  # fmt: skip
def test_an_invalid_price_is_refused_with_the_valid_forms(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"Invalid value for 'llm\.prices': .* Give US dollars.*\{my-model: \[0\.5, 2\.0"
    ):
        load_config({"llm": {"prices": wrong}}, environment=NONE)


def test_a_source_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="config must be a mapping, the path of a YAML file or a Config, got 7"):
        load_config(7, environment=NONE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("agent.max_rolbacks=3", "Did you mean 'agent.max_rollbacks'"),
        ("llm.modelname=x", "Did you mean 'llm.model_name'"),
        ("zzz.qqq=1", "`closeout config` lists the keys"),
        ("agent.max_rollbacks=many", "Invalid value for 'agent.max_rollbacks': 'many'"),
        ("agent.high_water=1.5", "Invalid value for 'agent.high_water': 1.5"),
        ("agent.main_agent.max_turns=0", "max_turns"),
        ("dialect.x=1", "Unknown setting|Invalid value|is a value"),
        ("nonsense", "must be key=value, such as .*, got 'nonsense'"),
        ("=3", "must be key=value, such as .*, got '=3'"),
        ("agent.sub_agents.clerk.max_turn=3", "Did you mean 'agent.sub_agents.clerk.max_turns'"),
    ],
)
def test_an_error_names_the_key_and_the_next_step(override: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_config(overrides=[override], environment=NONE)


def test_a_value_is_not_a_section() -> None:
    with pytest.raises(ConfigError, match="'dialect' is a value, not a section"):
        load_config({"dialect": "cot_chat"}, ["dialect.x=1"], NONE)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("agent: [", "is not valid YAML at line"),
        ("agent:\n\tmax_turns: 3", r"line 2, column 1: found character '\\t' that cannot start any token"),
        ("- a\n- b\n", "must contain keys and values"),
        ("a: \x00", "YAML"),
        ("agent: {max_rollbacks: 2026-13-01}", "is not valid YAML: month must be"),
        ("[" * 1_500, "is not valid YAML"),
        ("agent: &a {sub_agents: *a}", "aliases expand to more than 100,000 values"),
        ("a: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 60)), "aliases"),
        ("a: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [{f'*a{n - 1},' * 9}]}}" for n in range(1, 20)), "aliases"),
        ("x" * 1_000_001, "larger than 1,000,000 bytes"),
    ],
)
def test_an_unusable_file_is_named_with_the_reason(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named):
        load_config(file, environment=NONE)


def test_aliases_of_ordinary_size_are_expanded(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("llm:\n  extra_body: {a: &a {x: 1}, b: *a, c: {<<: *a, y: 2}}\n")
    assert load_config(file, environment=NONE).llm.extra_body == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_an_api_key_of_digits_is_a_string_and_an_invalid_one_is_not_shown(tmp_path: Path) -> None:
    assert load_config(None, ["llm.api_key=0123456789"], NONE).llm.api_key == "0123456789"
    assert load_config(None, environment={"CLOSEOUT_LLM__API_KEY": "12345"}).llm.api_key == "12345"
    (tmp_path / "a.yaml").write_text("llm: {api_key: 987654321}")
    with pytest.raises(ConfigError, match="put it in quotes") as refused:
        load_config(tmp_path / "a.yaml", environment=NONE)
    assert "987654321" not in str(refused.value)


def test_a_missing_an_empty_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the configuration file"):
        load_config(tmp_path / "none.yaml", environment=NONE)
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(tmp_path / "empty.yaml", environment=NONE) == Config()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_config(tmp_path / "binary.yaml", environment=NONE)


def test_the_api_key_is_not_printed() -> None:
    assert "very-secret" not in repr(load_config({"llm": {"api_key": "very-secret"}}, environment=NONE))


def test_every_known_key_can_be_set() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys)) > 30
    found = load_config(environment=NONE)
    for key in keys:
        if "NAME" in key:
            continue
        value: Any = found
        for part in key.split("."):
            value = getattr(value, part)


def test_the_environment_sets_the_home_folder(tmp_path: Path) -> None:
    assert home_folder(environment={"CLOSEOUT_HOME": str(tmp_path)}) == tmp_path
    assert home_folder(environment={}).name == "closeout"
