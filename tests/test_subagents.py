"""Agents as tools: a report with its sources within a budget, servers only while needed, recursion with an end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from closeout import Agent, RunContext, ToolManager, tool
from closeout.errors import ConfigError, ToolDefinitionError
from closeout.journal import events as ev
from closeout.journal.store import Row, open_store
from closeout.journal.subscribers import Progress
from closeout.run.plan import MAX_DEPTH
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say
from journal_file import cut_after


@tool(read_only=True)
async def fetch(url: str) -> str:
    """Fetch a page."""
    return f"the text of {url}"


@tool(read_only=True)
async def search(query: str) -> str:
    """Search."""
    return f"results for {query}"


def chief(clerk: Agent, then: Any = None, **options: Any) -> tuple[Agent, ScriptedClient]:
    client = ScriptedClient([call("clerk", task="find out"), then or answer("done")])
    return Agent(client, [clerk.as_tool("clerk", "Finds things out.")], home=False, **options), client


def reported(client: ScriptedClient) -> str:
    return next(m.text for m in client.requests[-1].messages if m.role == "tool")


async def test_a_report_is_the_closing_text_with_the_pages_it_rests_on() -> None:
    script = [
        call("search", query="canals"), call("fetch", url="https://a.example/one"),
        call("fetch", url="https://b.example/two"), say("It is long, says https://a.example/one: \\boxed{long}"),
    ]  # fmt: skip
    agent, client = chief(Agent(ScriptedClient(script), [fetch, search]))
    assert (await agent.run("What?")).answer == "done"
    assert reported(client) == (
        "It is long, says https://a.example/one: \\boxed{long}\n\nPages read: https://b.example/two"
    )


async def test_without_pages_the_queries_are_named() -> None:
    agent, client = chief(Agent(ScriptedClient([call("search", query="canals"), answer("long")]), [search]))
    await agent.run("What?")
    assert reported(client).endswith("Queries made: search: canals")


async def test_a_report_is_cut_to_the_budget_and_the_rest_is_readable() -> None:
    long = "\n".join(f"finding {n}: the canal number {n} is {n * 7} kilometres long" for n in range(3000))
    clerk = Agent(ScriptedClient([say(f"{long}\n\\boxed{{3000 canals}}")]), [search])
    agent, client = chief(clerk, config={"agent": {"result_budget": 500}})
    await agent.run("What?")
    assert len(reported(client)) < 500 * 8
    assert "3000 canals" in reported(client), "the end, where the answer is, is shown"
    assert 'read_result("r1"' in reported(client)


async def test_without_an_answer_the_caller_gets_what_was_learned_as_a_failure(home: Path) -> None:
    def script(view: RequestView) -> Any:
        if "closing turn" in view.text or "attempt ends here" in view.text:
            return say("")
        return call("search", query=f"canals {view.number * 37}")

    agent, client = chief(Agent(ScriptedClient(script), [search], max_turns=2))
    result = await agent.run("What?")
    assert result.answer == "done"
    assert reported(client).startswith("Error: ")
    assert "search: canals 37" in reported(client)


async def test_recursion_ends_at_the_deepest_level() -> None:
    seen: list[Any] = []
    made: list[Agent] = []

    def script(view: RequestView) -> Any:
        failed = "Do this task yourself" in view.text
        done = any(m.get("role") == "tool" for m in view.messages)
        return answer("deep") if failed or done else call("again", task="deeper")

    # One client for all levels: a turn depends on nothing but its request.
    manager = ToolManager()
    agent = Agent(ScriptedClient(script), manager, home=False)
    manager.add(agent.as_tool("again", "Does it again."))
    made.append(agent)
    result = await agent.run("Go.", listeners=[seen.append])
    assert result.answer == "deep"
    assert sum(isinstance(event, ev.AgentStarted) for event in seen) == MAX_DEPTH


async def test_sub_agents_have_their_own_model_dialect_and_tools() -> None:
    clerks = ScriptedClient([call("search", query="x"), answer("found")], name="clerks model")
    agent, client = chief(Agent(clerks, [search], dialect="cot_chat"))
    await agent.run("What?")
    assert {spec.name for spec in client.requests[0].tools} == {"clerk", "read_result"}
    assert not clerks.requests[0].tools
    assert "search" in clerks.requests[0].messages[0].text


async def test_a_sub_agents_server_lives_only_while_it_works(tmp_path: Path) -> None:
    server, log = tmp_path / "server.py", tmp_path / "pid"
    server.write_text(f"""
import os
from pathlib import Path
from mcp.server.mcpserver import MCPServer
Path({str(log)!r}).write_text(str(os.getpid()))
server = MCPServer("own")
@server.tool()
def fetch_it(url: str) -> str:
    return "page " + url
server.run()
""")

    def is_up() -> bool:
        try:
            os.kill(int(log.read_text()), 0)
        except (OSError, ValueError):
            return False
        return True

    script = [call("fetch_it", url="https://x.example"), answer("long")]
    clerk = Agent(ScriptedClient(script), mcp_servers=[{"command": sys.executable, "args": [str(server)]}])
    up: list[bool] = []

    @tool(inline=True)
    def check(n: int) -> str:
        """Check."""
        up.append(is_up())
        return "checked"

    client = ScriptedClient([call("check", n=1), call("clerk", task="find out"), call("check", n=2), answer("done")])
    agent = Agent(client, [check, clerk.as_tool("clerk", "Finds things out.")], home=False)
    result = await agent.run("What?")
    assert result.answer == "done"
    assert "Pages read: https://x.example" in client.requests[2].messages[-1].text
    assert log.exists()
    assert up == [False, False], "not before it is called, and not after"


@pytest.mark.parametrize("calls", [2, 5])
async def test_concurrent_sub_agents_are_separate_in_the_journal(home: Path, calls: int) -> None:
    clerk = Agent(ScriptedClient(lambda view: answer(view.question[-1]), by="question"), [search])
    together = Turn(calls=[call("clerk", task=f"say {n}") for n in range(calls)])
    client = ScriptedClient([together, answer("done")])
    result = await Agent(client, [clerk.as_tool("clerk", "Says.")], home=home).run("What?")
    events = [row.event for row in open_store(home).rows(result.run_id)]
    ended = {event.agent: event.report for event in events if isinstance(event, ev.AgentEnded)}
    assert ended == {f"main/r{n + 1}:clerk": f"The answer is \\boxed{{{n}}}." for n in range(calls)}


@pytest.mark.parametrize("watched", [True, False])
async def test_who_watches_a_run_sees_what_its_sub_agents_write_while_they_write_it(watched: bool) -> None:
    clerk = Agent(ScriptedClient([answer("long", "I count the canals.")]))
    agent, _ = chief(clerk)
    heard: list[Progress] = []

    def listen(event: Any) -> None:
        if isinstance(event, Progress):
            heard.append(event)

    await agent.run("What?", listeners=[listen] if watched else [])
    said = "".join(piece.text for piece in heard if piece.agent == "main/r1:clerk")
    assert said == ("I count the canals.\n\nThe answer is \\boxed{long}." if watched else "")


def test_a_setting_for_an_unknown_sub_agent_is_refused_with_the_nearest_name() -> None:
    page = Agent(ScriptedClient([]), home=False)
    reader = Agent(ScriptedClient([]), [page.as_tool("page_reader", "Reads a page.")], home=False)
    tools = [reader.as_tool("librarian", "Finds books.")]

    def team(name: str) -> Agent[Any]:
        return Agent(ScriptedClient([]), tools, config={"agent": {"sub_agents": {name: {"max_turns": 5}}}}, home=False)

    for known in ("librarian", "page_reader"):
        assert team(known)
    with pytest.raises(ConfigError, match=r"Unknown sub-agent 'libarian' in .* Did you mean 'librarian'\?"):
        team("libarian")
    with pytest.raises(ConfigError, match=r"Its sub-agents are: librarian, page_reader\."):
        team("zzz")
    with pytest.raises(ConfigError, match=r"This agent has none"):
        Agent(ScriptedClient([]), config={"agent.sub_agents.clerk.max_turns": 5}, home=False)


async def test_a_sub_agent_without_money_tells_its_caller_the_limit_and_that_a_retry_is_useless(home: Path) -> None:
    prices = {"llm": {"prices": {"*": [10.0, 10.0]}}}
    script = [answer("long")]
    for options, named in (
        ({"budget": {"研究组": "0.0001 USD/day"}}, "研究组 (0.0001 USD/day)"),
        ({"max_cost": 0.0001}, "max_cost=0.0001"),
    ):
        clerk = Agent(ScriptedClient(script), [search], max_tokens=50, config=prices, **options)
        client = ScriptedClient([call("clerk", task="find out"), answer("done")])
        agent = Agent(client, [clerk.as_tool("clerk", "Finds things out.")], max_tokens=50, config=prices, home=home)
        assert (await agent.run("What?")).answer == "done"
        assert named in reported(client)
        assert "do not repeat it" in reported(client)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({"max_cost": 0.0001}, "the same"), ({"budget": {"研究组": "0.0001 USD/day"}}, "others")],
)
async def test_a_sub_agent_that_reached_its_limit_is_not_begun_again(
    home: Path, options: dict[str, Any], tasks: str
) -> None:
    def repeats(view: RequestView) -> Turn:
        if "closing turn" in view.text:
            return answer("done")
        return call("clerk", task="find out" if tasks == "the same" else f"find out {len(view.text)}")

    def made() -> Agent[Any]:
        prices = {"llm": {"prices": {"*": [10.0, 10.0]}}}
        clerk = Agent(ScriptedClient([answer("long")]), [search], max_tokens=50, config=prices, **options)
        tools = [clerk.as_tool("clerk", "Finds things out."), search]
        return Agent(ScriptedClient(repeats), tools, config=prices, home=home)

    def look(rows: list[Row]) -> None:
        events = [row.event for row in rows]
        assert sum(isinstance(event, ev.AgentStarted) for event in events) == 1
        assert {event.detail for event in events if isinstance(event, ev.TurnRolledBack)} == {
            "clerk: clerk has reached its limit and would again. Do without it, or give your answer."
        }
        logged = [event for event in events if isinstance(event, ev.Noted) and event.agent.endswith("clerk")]
        assert logged
        assert not [each for each in logged if each.level == "error" or "attempt" in each.name]  # no reply was wrong

    result = await made().run("What?", run_id="stubborn")
    assert (result.answer, result.stop_reason) == ("done", "rollbacks")
    look(result.read_rows())
    cut_after(home, "TurnRolledBack", 1)
    resumed = await made().resume("stubborn")
    assert (resumed.answer, resumed.stop_reason) == ("done", "rollbacks")
    look(resumed.read_rows())


# ------------------------------------------------------------------------------------------------ the task of a call


def translation(text: str, to: Literal["fr", "es"], context: RunContext[str]) -> str:
    """Write the task.

    Args:
        text: Text to translate.
    """
    return f"Translate for {context.deps}, into {to}: {text}"


async def test_a_function_writes_the_task_of_its_parameters_and_the_dependencies(home: Path) -> None:
    written = []

    def task(text: str, to: Literal["fr", "es"], context: RunContext[str]) -> str:
        written.append(text)
        return translation(text, to, context)

    def agents() -> tuple[Agent[Any, Any], ScriptedClient]:
        model = ScriptedClient(lambda view: answer("Bonjour"))
        chief = ScriptedClient(lambda view: answer("ok") if "Bonjour" in view.text else call("say", text="Hi", to="fr"))
        tool = Agent(model).as_tool("say", "Translates.", task=task)
        return Agent(chief, [tool], deps_type=str, home=home), model

    agent, model = agents()
    assert (await agent.run("Say hi.", run_id="r", deps="Ann")).answer == "ok"
    assert model.requests[0].question == "Translate for Ann, into fr: Hi"
    cut_after(home, "AgentStarted")
    agent, model = agents()
    assert (await agent.resume("r", deps="Bob")).answer == "ok"
    assert (written, model.requests[0].question) == (["Hi"], "Translate for Ann, into fr: Hi"), "it was recorded"


async def test_a_tool_of_an_agent_has_a_schema_and_a_policy_of_its_own() -> None:
    tool = Agent(ScriptedClient([])).as_tool("say", "Translates.", task=translation, approval="always")
    assert list(tool.spec.parameters["properties"]) == ["text", "to"]
    assert tool.spec.parameters["properties"]["text"]["description"] == "Text to translate."
    assert (tool.spec.policy.approval, tool.spec.policy.on_crash) == ("always", "rerun")
    with pytest.raises(ToolDefinitionError, match="'say' needs dependencies of the type str"):
        Agent(ScriptedClient([]), [tool])
    with pytest.raises(ToolDefinitionError, match="Pass task=function: its parameters are those of the tool"):
        Agent(ScriptedClient([])).as_tool("say", "Translates.", parameters={})  # type: ignore[call-arg]
    with pytest.raises(ToolDefinitionError, match="a policy has no field 'aproval'"):
        Agent(ScriptedClient([])).as_tool("say", "Translates.", aproval="always")  # type: ignore[call-arg]
