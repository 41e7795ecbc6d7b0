"""Many tools: the model gets `find_tools` and `call_tool`, and a call through it is governed as the tool itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, ToolSpec, tool
from closeout.errors import ConfigError
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.messages import ToolCall
from closeout.run import offered_tools
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.search_tools import ToolIndex, as_written, definition_tokens, inner_call
from closeout.tools.tool import Tool

SUBJECTS = ("moon", "river", "stock", "recipe", "flight", "museum", "planet", "bridge", "island", "castle")
FACTS = ("distance", "price", "age", "height", "owner", "colour", "weight", "opening hours", "population", "depth")


def make(subject: str, fact: str) -> Tool[..., Any]:
    name = f"{subject}_{fact.replace(' ', '_')}"

    async def look(name_of_it: str, unit: str = "") -> str:
        return f"{name}({name_of_it}) is 7"

    return tool(name=name, description=f"Return the {fact} of a {subject}.", read_only=True)(look)


MANY = [make(subject, fact) for subject in SUBJECTS for fact in FACTS]


def searching(home: Path, script: Any, tools: Any = (), **settings: Any) -> Agent:
    return Agent(ScriptedClient(script), [*MANY, *tools], home=home, config={"tools.search_budget": 1000, **settings})


def results(view: RequestView) -> list[str]:
    return [str(m["content"]) for m in view.messages if m["role"] == "tool"]


def through(name: str, **arguments: Any) -> Any:
    return call("call_tool", name=name, arguments=arguments)


def find_and_call(view: RequestView) -> Turn:
    told = results(view)
    if not told:
        return Turn(calls=[call("find_tools", query="how far away is the moon: its distance")])
    if len(told) == 1:
        return Turn(calls=[through(json.loads(told[0].splitlines()[0])["name"], name_of_it="Luna")])
    return answer(told[1])


async def test_the_tools_of_an_agent_are_measured_once_for_all_of_its_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = list[object]()
    monkeypatch.setattr(offered_tools, "definition_tokens", lambda specs: measured.append(specs) or 1)
    agent = Agent(ScriptedClient([answer("1"), answer("1")]), MANY, home=home)
    for _ in range(2):
        assert (await agent.run("Count.")).answer == "1"
    assert len(measured) == 1


async def test_above_the_budget_the_model_finds_tools_and_calls_them(home: Path) -> None:
    requests: list[Any] = []

    def script(view: RequestView) -> Turn:
        requests.append(sorted(view.tools))
        return find_and_call(view)

    result = await searching(home, script).run("How far is the Moon?", run_id="r")
    assert result.answer == "moon_distance(Luna) is 7"
    assert requests == [["call_tool", "find_tools", "read_result"]] * 3, "the same in every request"
    started = [row.event for row in open_store(home).rows("r") if isinstance(row.event, ev.ToolStarted)]
    assert [event.name for event in started] == ["find_tools", "moon_distance"]
    shown = [m for m in result.messages if m.get("tool_calls")]
    assert shown[1]["tool_calls"][0]["function"]["name"] == "call_tool"
    assert definition_tokens([each.spec for each in MANY]) > 1000


@pytest.mark.parametrize(
    ("settings", "searches"),
    [
        ({"tools.search": "off"}, False),
        ({"tools.search_budget": 100_000}, False),
        ({"tools.search": "on", "tools.search_budget": 100_000}, True),
    ],
)
async def test_the_settings_decide_whether_to_search(home: Path, settings: dict[str, Any], searches: bool) -> None:
    names: list[str] = []

    def script(view: RequestView) -> Turn:
        names.extend(view.tools)
        return answer("done")

    await searching(home, script, **settings).run("Q")
    assert ("find_tools" in names) is searches
    assert ("moon_distance" in names) is not searches
    with pytest.raises(ConfigError, match=r"tools\.search"):
        searching(home, script, **{"tools.search": "sometimes"})


async def test_a_call_through_call_tool_is_repaired_and_shown_as_repaired(home: Path) -> None:
    def script(view: RequestView) -> Turn:
        told = results(view)
        return answer(told[0]) if told else Turn(calls=[through("moonDistance", nameOfIt="Luna")])

    result = await searching(home, script).run("Q")
    assert result.answer == "moon_distance(Luna) is 7"
    (written,) = [m["tool_calls"][0]["function"] for m in result.messages if m.get("tool_calls")]
    assert written["name"] == "call_tool"
    assert json.loads(written["arguments"]) == {"name": "moon_distance", "arguments": {"name_of_it": "Luna"}}
    assert result.repairs


async def test_a_call_through_call_tool_needs_the_tools_own_approval(home: Path) -> None:
    done: list[str] = []

    @tool(approval="always")
    def sell(what: str) -> str:
        """Sell something."""
        done.append(what)
        return f"sold {what}"

    def script(view: RequestView) -> Turn:
        told = results(view)
        return (
            answer(told[0]) if told else Turn(calls=[through("sell", what="all"), through("moon_age", name_of_it="x")])
        )

    agent = searching(home, script, [sell])
    waiting = await agent.run("Q", run_id="r")
    assert [(pending.tool, pending.arguments) for pending in waiting.waiting] == [("sell", {"what": "all"})]
    assert done == []
    result = await agent.resume("r", decisions={"r1": True})
    assert (result.answer, done) == ("sold all", ["all"])


async def test_a_repeated_call_is_recognised_through_call_tool(home: Path) -> None:
    def script(view: RequestView) -> Turn:
        told = results(view)
        return (
            answer("done")
            if "already called" in view.text or len(told) > 1
            else Turn(
                calls=[through("moon_age", name_of_it="Luna")] if not told else [call("moon_age", name_of_it="Luna")]
            )
        )

    result = await searching(home, script).run("Q", run_id="r")
    assert result.rollbacks == 1
    started = [row.event for row in open_store(home).rows("r") if isinstance(row.event, ev.ToolStarted)]
    assert len(started) == 1, "the same call, written directly, is made once"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "moon_colours_of_all"}, "No tool is named"),
        ({"arguments": {}}, "name"),
        ({"name": "call_tool"}, "name"),
    ],
)
async def test_a_call_that_names_no_tool_is_told_so(home: Path, arguments: dict[str, Any], says: str) -> None:
    def script(view: RequestView) -> Turn:
        return answer("done") if says in view.text.partition("Q")[2] else Turn(calls=[call("call_tool", **arguments)])

    assert (await searching(home, script, **{"agent.max_turns": 3}).run("Q")).answer == "done"


async def test_a_searching_run_is_resumed_and_replayed(home: Path) -> None:
    from closeout.run.lifecycle import replay_run

    agent = searching(home, find_and_call)
    await agent.run("How far is the Moon?", run_id="r")
    result, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (result.answer, departure) == ("moon_distance(Luna) is 7", "")


@pytest.mark.parametrize("dialect", ["cot_chat", "mcp_xml"])
async def test_text_dialects_search_too(home: Path, dialect: str) -> None:
    def script(view: RequestView) -> Turn:
        if "is 7" in view.text:
            return answer("7")
        found = '"name":"moon_distance"' in view.text
        return Turn(
            calls=[through("moon_distance", name_of_it="Luna") if found else call("find_tools", query="moon distance")]
        )

    agent = Agent(ScriptedClient(script), MANY, dialect=dialect, home=home, config={"tools.search_budget": 1000})
    result = await agent.run("How far is the Moon?")
    assert result.answer == "7"
    assert [each for each in result.telemetry.by_tool if each != "find_tools"] == ["moon_distance"]


# ------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("written", "name", "arguments"),
    [
        ({"name": "f", "arguments": {"a": 1}}, "f", {"a": 1}),
        ({"name": "f", "a": 1}, "f", {"a": 1}),
        ({"tool_name": "f", "args": {"a": 1}}, "f", {"a": 1}),
        ({"name": "f", "arguments": '{"a": 1}'}, "f", '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}', "f", {"a": 1}),
        ({"name": "f"}, "f", {}),
        ({"name": "f", "arguments": None}, "f", {}),
        ({"name": 5, "arguments": {}}, "call_tool", {"name": 5, "arguments": {}}),
        ([1], "call_tool", [1]),
    ],
)
def test_what_call_tool_calls_is_read_tolerantly(written: Any, name: str, arguments: Any) -> None:
    made = inner_call(ToolCall("call_tool", written, "id"))
    assert (made.name, made.arguments) == (name, arguments)


def test_a_call_is_shown_as_written_unless_it_was_repaired() -> None:
    outer = ToolCall("call_tool", {"name": "f", "arguments": {"a": 1}}, "id", text="as written")
    assert as_written(outer, inner_call(outer)) is outer
    assert as_written(outer, ToolCall("f", {"a": 2}, "id")).arguments == {"name": "f", "arguments": {"a": 2}}
    direct = ToolCall("f", {"a": 1}, "id")
    assert as_written(direct, direct) is direct


def spec(name: str, description: str, **parameters: str) -> ToolSpec:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    return ToolSpec(name, description, {"type": "object", "properties": properties})


def test_tools_are_found_by_name_description_parameters_and_in_any_script() -> None:
    index = ToolIndex(
        [
            spec("getWeather", "Forecast for a city.", city="where"),
            spec("convert", "Exchange money.", currency="three letters such as EUR"),
            spec("文献検索", "Search papers."),
            spec("send_mail", "Send a message."),
        ]
    )
    for query, name in (
        ("weather tomorrow", "getWeather"),
        ("in which city", "getWeather"),
        ("how much is it in EUR", "convert"),
        ("sending messages", "send_mail"),
        ("文献検索", "文献検索"),
    ):
        assert index.find(query)[0].name == name
    assert index.find("") == []
    assert index.find("zzz") == []
    assert ToolIndex([]).find("weather") == []


def test_hostile_definitions_and_queries_do_no_harm() -> None:
    odd = ToolSpec("odd", "x" * 100_000, {"properties": {"a": 5, "b": {"enum": 7, "description": ["not", "text"]}}})
    empty = ToolSpec("empty", "", {"properties": []})
    index = ToolIndex([odd, empty])
    assert [found.name for found in index.find("odd " * 20_000)] == ["odd"]
