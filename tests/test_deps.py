"""Dependencies of a run and instructions written by a function: given to each run, again on resume, never recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest

from cli_process import here
from closeout import Agent, ClientRequest, RunContext, ToolOutput, tool
from closeout.cli.servers import deps_maker
from closeout.errors import ToolDefinitionError, UsageError
from closeout.journal.store import close_stores, open_store
from closeout.run.lifecycle import replay_run
from closeout.server.serve.host import AgentHost
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, serve_script
from journal_file import cut_after, cuts, stored_events
from serving import serving


@dataclass
class Shop:
    tenant: str
    orders: list[str] = field(default_factory=list)


class Till:
    pass


@tool
def order(item: str, context: RunContext[Shop]) -> str:
    """Order an item."""
    context.deps.orders.append(item)
    return f"[{item}] ordered at {context.deps.tenant}"


def greeting(context: RunContext[Shop]) -> str:
    return f"You serve {context.deps.tenant}, desk {len(context.deps.orders)}."


def orders(view: RequestView) -> Any:
    return answer("done") if "[tea] ordered" in view.text else call("order", item="tea")


def shop_agent(script: Any = orders, tools: Any = (order,), **options: Any) -> tuple[Agent[Shop, Any], ScriptedClient]:
    client = ScriptedClient(script)
    return Agent(client, tools, deps_type=Shop, **options), client


def files_in(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())


def system(client: ScriptedClient, number: int = 0) -> str:
    return str(client.requests[number].messages[0]["content"])


# ------------------------------------------------------------------------------------------------ a run


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_tools_and_instructions_get_what_the_run_was_given(home: Path, dialect: str) -> None:
    agent, client = shop_agent(instructions=greeting, dialect=dialect)
    bern, rome = Shop("Bern"), Shop("Rome")
    results = await asyncio.gather(agent.run("Order tea.", deps=bern), agent.run("Order tea.", deps=rome))
    assert [each.answer for each in results] == ["done", "done"]
    assert (bern.orders, rome.orders) == (["tea"], ["tea"])
    asked = list(map(str, client.requests))
    assert sum("You serve Bern, desk 0." in text for text in asked) == 2
    assert sum("You serve Rome, desk 0." in text for text in asked) == 2
    assert not any("desk 1" in text for text in asked)  # written once in a run, so the prompt keeps its beginning


async def test_programs_call_tools_with_the_dependencies(home: Path) -> None:
    def program(view: RequestView) -> Any:
        return "```python\nfinal_answer(order(item='tea'))\n```"

    agent, _ = shop_agent(program, dialect="code")
    shop = Shop("Bern")
    assert (await agent.run("Order tea.", deps=shop)).answer == "[tea] ordered at Bern"
    assert shop.orders == ["tea"]


def test_nothing_of_the_dependencies_is_recorded(home: Path) -> None:
    agent, _ = shop_agent(lambda view: answer("done"))
    agent.run_sync("Nothing.", deps=Shop("secret tenant"))
    close_stores()
    assert b"secret tenant" not in files_in(home)


async def test_an_async_function_may_write_the_instructions(home: Path) -> None:
    async def write(context: RunContext[None]) -> str:
        await asyncio.sleep(0)
        return f"Run {context.run_id}."

    client = ScriptedClient(lambda view: answer("done"))
    await Agent(client, instructions=write).run("What?", run_id="my-run")
    assert system(client).startswith("Run my-run.")


@pytest.mark.parametrize("wrong", [None, 5, ["a"]])
async def test_a_function_that_writes_no_text_fails_the_run_by_name(home: Path, wrong: Any) -> None:
    result = await Agent(ScriptedClient([]), instructions=lambda context: wrong).run("What?")
    assert result.status == "failed"
    assert "must return a text" in str(result.failure)


async def test_a_function_of_the_instructions_that_fails_is_named() -> None:
    def broken(context: RunContext[None]) -> str:
        raise KeyError("user")

    result = await Agent(ScriptedClient([]), instructions=broken).run("What?")
    assert (result.status, "KeyError: 'user'" in result.error) == ("failed", True)
    assert "broken, raised it" in result.error
    with pytest.raises(UsageError, match="called with the RunContext: too many positional arguments"):
        Agent(ScriptedClient([]), instructions=lambda: "Be brief.")  # type: ignore[misc,arg-type]


# ------------------------------------------------------------------------------------------------ kept and given again


async def test_killed_at_every_event_a_run_keeps_its_instructions_and_gets_its_dependencies_again(home: Path) -> None:
    agent, client = shop_agent(instructions=greeting)
    await agent.run("Order tea.", run_id="whole", deps=Shop("Bern"))
    first = system(client)
    whole = [event[1] for event in stored_events(home).values()]
    for kept in cuts(home):
        agent, client = shop_agent(instructions=greeting)
        result = await agent.resume("whole", deps=Shop("Bern", ["earlier"]))
        assert result.status == "answered", kept
        # Until the function's text is on disk the run has not shown it to anybody.
        written = "InstructionsWritten" in whole[:kept]
        assert not written or all(system(client, number) == first for number in range(len(client.requests))), kept


async def test_a_replay_needs_no_dependencies(home: Path) -> None:
    agent, _ = shop_agent(instructions=greeting)
    shop = Shop("Bern")
    await agent.run("Order tea.", run_id="r", deps=shop)
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure, shop.orders) == ("done", "", ["tea"])


async def test_forks_sessions_maps_and_streams_take_dependencies(home: Path) -> None:
    agent, client = shop_agent(instructions=greeting)
    shop = Shop("Bern")
    await agent.run("Order tea.", run_id="r", deps=shop)
    forked = await agent.fork("r", at=1, deps=shop)
    assert (forked.answer, shop.orders) == ("done", ["tea", "tea"])
    assert system(client, -1).startswith("You serve Bern, desk 0.")  # the fork's record begins with the same text

    chat = agent.session("ann")
    assert (await chat.run("Order tea.", deps=shop)).answer == "done"
    tasks = [{"task": task, "deps": shop, "task_id": task} for task in ("Order tea.", "Tea!")]
    assert [each.answer for each in await agent.run_many(tasks, key="k")] == ["done"] * 2
    stream = agent.stream("Order tea.", deps=shop)
    async for _ in stream:
        pass
    assert stream.result.answer == "done"
    assert len(shop.orders) == 6


async def test_a_bound_agent_needs_no_more_and_can_be_served(home: Path) -> None:
    agent, _ = shop_agent()
    shop = Shop("Bern")
    bound = agent.with_deps(shop)
    assert (await bound.run("Order tea.")).answer == "done"
    async with serving(bound) as served:
        body = {"model": "agent", "messages": [{"role": "user", "content": "Order tea."}]}
        async with served.http.post(f"{served.base_url}/chat/completions", json=body) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "done"
    assert shop.orders == ["tea", "tea"]
    with pytest.raises(UsageError, match="Pass deps="):
        await agent.run("Order tea.")


# ------------------------------------------------------------------------------------------------ for each request


SHOPS = {"bern": Shop("Bern"), "rome": Shop("Rome")}
LEFT: list[str] = []


async def shop_of(request: ClientRequest) -> AsyncIterator[Shop]:
    """Raises if no shop is named. Notes when the run is over."""
    if request.headers["x-tenant"] == "closed":
        raise PermissionError("closed")
    yield SHOPS[request.headers["x-tenant"]]
    LEFT.append(f"{request.user} {request.client[:4]}")


async def test_each_request_gets_dependencies_of_its_own_also_after_a_restart(home: Path) -> None:
    LEFT.clear()
    for shop in SHOPS.values():
        shop.orders.clear()
    agent, _ = shop_agent()
    host: dict[str, Any] = {"deps": shop_of, "deps_headers": ["X-Tenant"], "keys": ["a-key-of-ann"]}
    body = {"model": "agent", "messages": [{"role": "user", "content": "Order tea."}], "user": "ann"}

    def sent_by(tenant: str) -> dict[str, str]:
        return {"X-Tenant": tenant, "X-Other": "not kept", "Authorization": "Bearer a-key-of-ann"}

    async with serving(agent, **host) as served:

        async def ask(path: str, tenant: str, body: Any) -> Any:
            async with served.http.post(f"{served.base_url}{path}", json=body, headers=sent_by(tenant)) as response:
                return await response.json()

        asked = [ask("/chat/completions", tenant, body) for tenant in ("bern", "rome")]
        assert [each["choices"][0]["message"]["content"] for each in await asyncio.gather(*asked)] == ["done"] * 2
        assert [shop.orders for shop in SHOPS.values()] == [["tea"], ["tea"]]
        assert LEFT == ["ann key-"] * 2
        refused = await ask("/chat/completions", "paris", body)
        assert refused["error"]["type"] == "server_error"
        assert (await ask("/chat/completions", "closed", body))["error"]["type"] == "permission_error"
        assert "Its dependencies cannot be made: 'paris'" in refused["error"]["message"]
        started = await ask("/runs", "rome", {"task": "Order tea."})
        await served.host.wait(started["run_id"])
    kept = files_in(home)
    assert b"x-tenant" in kept
    assert b"not kept" not in kept
    assert b"a-key-of-ann" not in kept

    cut_after(home, "RunStarted", -1)
    async with serving(shop_agent()[0], **host) as served:
        await served.host.wait(started["run_id"])
    assert SHOPS["rome"].orders == ["tea"] * 3  # once before the kill, and the resumed run orders in its shop too


async def test_a_worker_makes_the_dependencies_of_each_run_by_its_user(home: Path) -> None:
    shops = {"bern": Shop("Bern"), "rome": Shop("Rome")}

    def made(request: ClientRequest) -> Shop:
        return shops[request.user]

    agent, _ = shop_agent()
    ids = [await agent.submit("Order tea.", user=user) for user in ("bern", "rome", "paris")]
    with pytest.raises(UsageError, match="needs dependencies"):
        await agent.work(until_idle=True)
    await agent.work(until_idle=True, make_deps=made)
    assert [shop.orders for shop in shops.values()] == [["tea"], ["tea"]]
    statuses = {record.run_id: record.status for record in open_store(home).runs()}
    assert [statuses[each] for each in ids] == ["answered", "answered", "interrupted"], "paris can be tried again"


def test_a_settings_file_names_what_makes_the_dependencies(tmp_path: Path, home: Path) -> None:
    (tmp_path / "desk.py").write_text(
        "from closeout import ClientRequest, RunContext\n"
        "class Desk:\n    pass\n"
        "def sit(context: RunContext[Desk]) -> str:\n    'Sit.'\n    return 'sat'\n"
        "def desk_of(request: ClientRequest) -> Desk:\n    return Desk()\n"
    )
    parts = {"tools": ["desk:sit"], "deps_type": "desk:Desk", "deps": "desk:desk_of", "deps_headers": "X-Desk"}
    (tmp_path / "agent.yaml").write_text(
        json.dumps({"agent": parts, "llm": {"model_name": "openai:x", "api_key": "k"}})
    )
    agent = Agent.from_yaml(tmp_path / "agent.yaml")
    with pytest.raises(UsageError, match="closeout work with --deps"):
        AgentHost(agent)
    make = deps_maker(None, agent.config)
    assert AgentHost(agent, deps=make, deps_headers=agent.config.agent.deps_headers).deps
    with pytest.raises(UsageError, match="Name it with --deps"):
        AgentHost(agent.with_deps(make(None)), deps_headers=["X-Desk"])


def test_commands_make_the_dependencies_that_a_settings_file_names(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stall.py").write_text(
        "from collections.abc import Iterator\n"
        "from closeout import ClientRequest, RunContext, tool\n"
        "class Stall:\n    def __init__(self, name: str) -> None:\n        self.name = name\n"
        "@tool(approval='always')\n"
        "def sell(context: RunContext[Stall]) -> str:\n    'Sell.'\n    return f'sold by {context.deps.name}'\n"
        "def stall_of(request: ClientRequest) -> Iterator[Stall]:\n"
        "    with open('made', 'a') as made:\n        made.write(f'{request.run_id} ')\n"
        "    yield Stall('Anna 安娜')\n"
        "    with open('made', 'a') as made:\n        made.write('closed ')\n"
    )
    monkeypatch.chdir(tmp_path)
    parts = {"tools": ["stall:sell"], "deps_type": "stall:Stall", "deps": "stall:stall_of"}

    def turn(view: RequestView) -> Any:
        return answer(view.last) if "sold by" in view.last else call("sell")

    with serve_script(turn) as server:
        llm = {"model_name": "openai:x", "api_key": "k", "base_url": server.base_url}
        (tmp_path / "agent.yaml").write_text(json.dumps({"agent": parts, "llm": llm}))
        waiting = here("run", "Sell.", "-a", "agent.yaml", "--json")
        run_id = waiting.json["run_id"]
        assert (waiting.code, (tmp_path / "made").read_text()) == (4, f"{run_id} closed ")
        done = here("approve", run_id)
        later = here("run", "Sell.", "-a", "agent.yaml", "--json").json["run_id"]
    assert (done.code, done.out.strip()) == (0, "sold by Anna 安娜")
    assert (tmp_path / "made").read_text() == f"{run_id} closed " * 2 + f"{later} closed "
    broken = {**parts, "deps": "stall:gone"}
    (tmp_path / "agent.yaml").write_text(json.dumps({"agent": broken, "llm": llm}))
    refused = here("run", "Sell.", "-a", "agent.yaml")
    assert refused.code == 2
    assert "gone" in refused.sentence
    approved = here("approve", later)
    assert approved.code == 2, "the run cannot continue, and nothing was decided"
    assert "gone" in approved.err


# ------------------------------------------------------------------------------------------------ sub-agents


async def test_sub_agents_get_the_callers_dependencies_or_their_own(home: Path) -> None:
    clerk, clerks = shop_agent(name="clerk", instructions=greeting)
    own, _ = shop_agent(name="own")
    away = Shop("Rome")

    def lead(view: RequestView) -> Any:
        if "[tea] ordered" in view.text or "done" in view.text:
            return answer("done")
        return Turn("", calls=[call("ask_clerk", task="Order tea."), call("ask_own", task="Order tea.")])

    tools = [clerk.as_tool("ask_clerk", "Orders."), own.with_deps(away).as_tool("ask_own", "Orders elsewhere.")]
    agent, _ = shop_agent(lead, tools)
    shop = Shop("Bern")
    assert (await agent.run("Order tea twice.", deps=shop)).answer == "done"
    assert (shop.orders, away.orders) == (["tea"], ["tea"])
    assert system(clerks).startswith("You serve Bern, desk 0.")
    with pytest.raises(ToolDefinitionError, match="'ask_clerk' needs dependencies of the type Shop"):
        Agent(ScriptedClient([]), tools)


# ------------------------------------------------------------------------------------------------ mistakes


async def test_missing_and_wrong_dependencies_are_found_before_anything_runs(home: Path) -> None:
    agent, client = shop_agent()
    for start in (
        lambda: agent.run("What?"),
        lambda: agent.resume("r"),
        lambda: agent.fork("r"),
    ):
        with pytest.raises(UsageError, match="Pass deps= with an object of the type Shop"):
            await start()
    with pytest.raises(UsageError, match="deps must be of the type Shop, got one of the type Till"):
        await agent.run("What?", deps=Till())  # type: ignore[arg-type]
    (failed,) = await agent.run_many(["What?"], key="k")  # a task may bring its own
    assert "The agent needs dependencies" in str(failed.failure)
    assert (client.requests, open_store(home).runs()) == ([], [])


def test_tools_must_fit_the_agents_dependencies() -> None:
    with pytest.raises(ToolDefinitionError, match="'order' needs dependencies of the type Shop, and the agent has no"):
        Agent(ScriptedClient([]), [order])
    with pytest.raises(ToolDefinitionError, match="has deps_type=Till"):
        Agent(ScriptedClient([]), [order], deps_type=Till)

    class Branch(Shop):
        pass

    Agent(ScriptedClient([]), [order], deps_type=Branch)


def test_the_agents_type_may_leave_that_of_its_value_open() -> None:
    assert get_args(Agent[Shop]) == (Shop, Any)
    assert get_args(Agent[Shop, int]) == (Shop, int)


def test_every_way_to_annotate_the_context_is_found() -> None:
    def plain(key: str, context: RunContext) -> str:  # type: ignore[type-arg]
        """Look up."""
        return key

    def optional(key: str, context: RunContext[Shop] | None = None) -> str:
        """Look up."""
        return key

    def either(key: str, context: RunContext[Shop | Till]) -> str:
        """Look up."""
        return key

    for function, wanted in ((plain, None), (optional, Shop), (either, Shop | Till)):
        made = tool(function)
        assert list(made.spec.parameters["properties"]) == ["key"]
        assert made.deps_type == wanted


# ------------------------------------------------------------------------------------------------ state


@tool
def remember(fact: str, context: RunContext) -> ToolOutput:
    """Remember a fact about the user."""
    return ToolOutput(result="noted", state_update={"facts": [*context.state.get("facts", ()), fact]})


def with_memory(context: RunContext) -> str:
    return "You know: " + "; ".join(context.state.get("facts", ["nothing yet"]))


def memorising(fact: str) -> list[Any]:
    return [call("remember", fact=fact), answer("noted")]


async def test_a_session_keeps_the_state_of_its_messages_across_processes(home: Path) -> None:
    def talk(*script: Any) -> tuple[Any, ScriptedClient]:
        client = ScriptedClient(list(script))
        return Agent(client, [remember], instructions=with_memory).session("ann"), client

    session, client = talk(*memorising("vegan"), *memorising("has a dog"), answer("Tofu."))
    for message in ("I am vegan.", "I have a dog.", "What shall I cook?"):
        await session.run(message)
    assert session.state == {"facts": ["vegan", "has a dog"]}
    assert [system(client, n).partition("\n")[0] for n in (0, 2, 4)] == [
        "You know: nothing yet",
        "You know: vegan",
        "You know: vegan; has a dog",
    ]
    close_stores()
    later, client = talk(answer("Yes."))
    assert (await later.run("Do I have a pet?")).state == {"facts": ["vegan", "has a dog"]}
    assert system(client).startswith("You know: vegan; has a dog")
    assert (await Agent(ScriptedClient([])).result("ann.4")).state == {"facts": ["vegan", "has a dog"]}


async def test_a_run_begins_with_the_state_that_it_was_given_also_after_a_crash(home: Path) -> None:
    def stop(event: Any) -> None:
        if type(event).__name__ == "ModelReplied":
            raise KeyboardInterrupt

    agent = Agent(ScriptedClient(memorising("new") * 2), [remember])
    with pytest.raises(KeyboardInterrupt):
        await agent.run("Note.", run_id="r", state={"facts": ["old"]}, listeners=[stop])
    assert (await agent.resume("r")).state == {"facts": ["old", "new"]}
    for wrong in (["old"], {"facts": object()}):
        with pytest.raises(UsageError, match="state must be"):
            await agent.run("Note.", state=wrong)  # type: ignore[arg-type]
