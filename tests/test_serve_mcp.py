"""A served agent as an MCP tool over Streamable HTTP, for clients of the newest protocol and of older ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult, PromptReference

from closeout import Agent, ConfigError, File, tool
from closeout.assembly.task_templates import task_templates
from closeout.config import load_config
from closeout.journal.events import DecisionMade, TaskCreated, ToolFinished
from closeout.journal.store import Store
from closeout.testing import ScriptedClient, Turn, answer, call
from closeout.tools.manager import ToolManager
from serving import Served, serving

KEY = "key-of-a-client"
OTHER = "key-of-another"
moments: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
async def _fresh() -> None:
    moments.update(started=asyncio.Event(), progressed=asyncio.Event())


@tool(read_only=True)
async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.wait_for(moments["progressed"].wait(), 60)
    return f"about {word}"


@tool(read_only=True, timeout=None)
async def wait_long() -> str:
    """Wait."""
    moments["started"].set()
    await asyncio.sleep(600)
    return "too late"


@tool(destructive=True, approval="always")
async def erase(name: str) -> str:
    """Erase a file."""
    return f"erased {name}"


@asynccontextmanager
async def client_of(served: Served, mode: Any = "auto", key: str = KEY, **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{served.url}/mcp", http_client=http), mode=mode, **options) as client,
    ):
        yield client


def agent(*script: Any, tools: list[Any] | None = None) -> Agent[Any]:
    return Agent(ScriptedClient(list(script)), tools=tools or [look_up], name="oracle")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_calls_the_agent_and_hears_of_its_progress(mode: str) -> None:
    heard: list[str | None] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        moments["progressed"].set()

    async with serving(agent(call("look_up", word="tea"), answer("42")), keys=[KEY]) as served:
        async with client_of(served, mode) as client:
            (offered,) = (await client.list_tools()).tools
            assert offered.name == "oracle"
            assert offered.annotations is not None
            assert (offered.annotations.read_only_hint, offered.annotations.destructive_hint) == (False, False)
            result = await client.call_tool("oracle", {"task": "How much?"}, progress_callback=hear)
        assert result.structured_content is not None
        assert result.structured_content["answer"] == "42"
        run = await served.http.get(
            f"{served.base_url}/runs/{result.structured_content['run_id']}", headers={"x-api-key": KEY}
        )
        assert (await run.json())["status"] == "answered"
    assert heard[0] == "look_up"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_its_client_gives_up_cancels_the_run(mode: str) -> None:
    async with serving(agent(call("wait_long"), tools=[wait_long])) as served, client_of(served, mode) as client:
        asked = asyncio.create_task(client.call_tool("oracle", {"task": "Wait."}))
        await asyncio.wait_for(moments["started"].wait(), 60)
        (record,) = served.host.store.runs(1)
        asked.cancel()
        await served.host.wait(record.run_id, 60)
        assert served.host.store.run(record.run_id).status == "cancelled"


async def test_closeouts_own_client_uses_a_served_agent_and_reads_what_it_may_do() -> None:
    async with serving(agent(call("erase", name="a"), tools=[erase])) as served:
        server = {"name": "helper", "url": f"{served.url}/mcp"}
        async with ToolManager(mcp_servers=[server], approval="never") as manager:
            (spec,) = manager.specs()
            assert spec.policy.destructive
            waits = await manager.execute_tool_call("helper", "oracle", {"task": "Erase a."})
            (record,) = served.host.store.runs(1)
            assert f"waits for a person. To decide: closeout approve {record.run_id}" in waits["error"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_person_at_the_client_approves_what_the_run_asks_for(mode: str) -> None:
    asked: list[str] = []
    answers = iter([ElicitResult(action="accept", content={"approve": True}), ElicitResult(action="decline")])

    async def decide(context: Any, form: Any) -> ElicitResult:
        asked.append(form.message)
        return next(answers)

    script = [call("erase", name="a"), call("erase", name="b"), answer("Erased a, not b.")]
    async with (
        serving(agent(*script, tools=[erase]), keys=[KEY]) as served,
        client_of(served, mode, elicitation_callback=decide) as client,
    ):
        result = await client.call_tool("oracle", {"task": "Erase a and b."})
        assert result.structured_content is not None
        assert result.structured_content["answer"] == "Erased a, not b."
        rows = await served.host.rows(result.structured_content["run_id"])
    assert [text.splitlines()[0] for text in asked] == [
        'The agent wants to call erase with {"name": "a"}',
        'The agent wants to call erase with {"name": "b"}',
    ]
    assert [row.event.verdict for row in rows if isinstance(row.event, DecisionMade)] == ["approve", "deny"]
    assert [row.event.ok for row in rows if isinstance(row.event, ToolFinished)] == [True]


async def test_a_stateless_client_may_answer_one_question_after_another() -> None:
    async def never(context: Any, form: Any) -> ElicitResult:
        return ElicitResult(action="cancel")

    script = [Turn("", calls=[call("erase", name="a"), call("erase", name="b")]), answer("Done.")]
    yes = ElicitResult(action="accept", content={"approve": True})
    async with (
        serving(agent(*script, tools=[erase])) as served,
        client_of(served, elicitation_callback=never) as client,
    ):

        async def ask(answers: dict[str, Any], state: str | None) -> Any:
            return await client.session.call_tool(
                "oracle",
                {"task": "Erase a and b."},
                input_responses=answers or None,
                request_state=state,
                allow_input_required=True,
            )

        first = await ask({}, None)
        assert list(first.input_requests) == ["r1", "r2"]
        second = await ask({"r1": yes}, first.request_state)
        assert list(second.input_requests) == ["r2"]
        done = await ask({"r2": yes}, second.request_state)
        assert done.structured_content["answer"] == "Done."
        assert len(served.host.store.runs(5)) == 1


async def test_a_client_cannot_answer_for_the_call_of_another() -> None:
    async def never(context: Any, form: Any) -> ElicitResult:
        return ElicitResult(action="cancel")

    async with serving(agent(call("erase", name="a"), tools=[erase]), keys=[KEY, OTHER]) as served:
        async with client_of(served, elicitation_callback=never) as client:
            left = await client.call_tool("oracle", {"task": "Erase a."})
            assert "waits for a person" in str(left.content)
        (record,) = served.host.store.runs(1)
        accept = {"r1": ElicitResult(action="accept", content={"approve": True})}
        async with client_of(served, key=OTHER) as client:
            with pytest.raises(MCPError, match="not that of a call of this client"):
                await client.session.call_tool(
                    "oracle", {"task": "Erase a."}, input_responses=accept, request_state=record.run_id
                )
        assert served.host.store.run(record.run_id).status == "waiting"


async def test_only_clients_with_a_key_and_no_foreign_pages_are_served() -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/list",
    }
    async with serving(agent(), keys=[KEY, OTHER]) as served:

        async def status(**more: str) -> int:
            sent = {**headers, **{name.replace("_", "-"): value for name, value in more.items()}}
            message = {**body, "params": {"_meta": meta}}
            async with served.http.post(f"{served.url}/mcp", json=message, headers=sent) as response:
                await response.read()
                return response.status

        assert await status(x_api_key=KEY) == 200
        assert await status() == 401
        assert await status(x_api_key=KEY, Origin="https://evil.example.org") == 403
        assert await status(x_api_key=KEY, Origin=served.url) == 200
        assert await status(x_api_key=KEY, Host="evil.example.org") == 403
        assert await status(x_api_key=KEY, Mcp_Method="tools/call") == 400


async def test_a_session_belongs_to_the_key_that_began_it() -> None:
    async with serving(agent(), keys=[KEY, OTHER]) as served:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
        headers = {"Accept": "application/json, text/event-stream", "x-api-key": KEY}
        async with served.http.post(f"{served.url}/mcp", json=begin, headers=headers) as response:
            assert "oracle" in await response.text()
            session = response.headers["mcp-session-id"]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        for key, expected in ((KEY, 200), (OTHER, 404)):
            sent = {**headers, "x-api-key": key, "mcp-session-id": session}
            async with served.http.post(f"{served.url}/mcp", json=ping, headers=sent) as response:
                assert response.status == expected
        async with served.http.post(
            f"{served.url}/mcp", data=json.dumps(ping), headers={**headers, "Content-Type": "text/plain"}
        ) as response:
            assert 400 <= response.status < 500


# ------------------------------------------------------------------------------------------------ runs as tasks


@tool(read_only=True)
def draw(name: str) -> File:
    """Draw a chart."""
    return File(f"{name}.csv", "a,b\n1,2\n")


async def ask_about(served: Served, task: str, *, method: str = "tasks/get", **more: Any) -> dict[str, Any]:
    """Send one request about a task, as a stateless client of `key` that has the extension."""
    extensions = more.pop("extensions", {"io.modelcontextprotocol/tasks": {}})
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "extensions": extensions},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": method,
        "Mcp-Name": more.pop("header", task),
        "x-api-key": more.pop("key", KEY),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": task, "_meta": meta, **more}}
    async with served.http.post(f"{served.url}/mcp", json=body, headers=headers) as response:
        told: dict[str, Any] = await response.json()
        return told.get("result") or told["error"]


async def test_closeouts_own_client_runs_a_served_agent_as_a_task(tmp_path: Path) -> None:
    def approve(question: Any) -> dict[str, Any]:
        assert 'wants to call erase with {"name": "a"}' in question.message
        return {"approve": True}

    inner = agent(call("erase", name="a"), answer("Erased."), tools=[erase])
    async with serving(inner) as served:
        helper = {"name": "helper", "url": f"{served.url}/mcp", "tasks": True, "elicitation": approve}
        outer = Agent(
            ScriptedClient([call("oracle", task="Erase a."), answer("done")]),
            mcp_servers=[helper],
            config={"tools": {"approval": "never"}},
            home=tmp_path,
        )
        result = await outer.run("Have a erased.")
        (record,) = served.host.store.runs(5)
        assert served.host.store.run(record.run_id).status == "answered"
    assert (result.answer, "Erased." in str(result.messages)) == ("done", True)
    rows = Store(tmp_path).rows_from(result.run_id, 0)
    created = [row.event.task for row in rows if isinstance(row.event, TaskCreated)]
    assert created == [record.run_id]


async def test_a_task_is_a_run_that_outlives_the_server_and_belongs_to_its_client(tmp_path: Path) -> None:
    script = [Turn("", calls=[call("erase", name="a"), call("erase", name="b")])]
    first = Agent(ScriptedClient(script), tools=[erase], name="oracle", home=tmp_path)
    async with serving(first, keys=[KEY, OTHER]) as served:
        begun = await ask_about(served, "oracle", method="tools/call", name="oracle", arguments={"task": "Erase."})
        assert (begun["resultType"], begun["ttlMs"]) == ("task", None)
        assert begun["status"] in ("working", "input_required")  # it may have come to its question
        task = begun["taskId"]
        assert (await ask_about(served, task))["taskId"] == task
        await served.host.wait(task, 60)
        waits = await ask_about(served, task)
        assert (waits["status"], sorted(waits["inputRequests"])) == ("input_required", ["r1", "r2"])
        assert waits["inputRequests"]["r1"]["method"] == "elicitation/create"
        yes = {"action": "accept", "content": {"approve": True}}
        answered = await ask_about(served, task, method="tasks/update", inputResponses={"r1": yes, "r9": 5})
        assert answered["resultType"] == "complete"
        assert list((await ask_about(served, task))["inputRequests"]) == ["r2"]
        for refused, code in (
            ({"key": OTHER}, -32602),
            ({"extensions": {}}, -32021),
            ({"header": "other"}, -32020),
            ({"method": "tasks/update", "inputResponses": {"r2": {"action": 5}}}, -32602),
            ({"method": "tasks/list"}, -32601),
        ):
            assert (await ask_about(served, task, **refused))["code"] == code
    second = Agent(ScriptedClient([answer("Erased a, not b.")]), tools=[erase], name="oracle", home=tmp_path)
    async with serving(second, keys=[KEY]) as served:
        no = {"r2": {"action": "decline"}}
        await ask_about(served, task, method="tasks/update", inputResponses=no)
        await served.host.wait(task, 60)
        done = await ask_about(served, task)
        assert (done["status"], done["result"]["structuredContent"]["answer"]) == ("completed", "Erased a, not b.")
        await ask_about(served, task, method="tasks/cancel")
        assert (await ask_about(served, task))["status"] == "completed"


async def test_a_task_that_is_cancelled_ends_its_run_and_one_without_an_answer_says_why() -> None:
    async with serving(agent(call("wait_long"), tools=[wait_long]), keys=[KEY]) as served:
        begun = await ask_about(served, "oracle", method="tools/call", name="oracle", arguments={"task": "Wait."})
        await asyncio.wait_for(moments["started"].wait(), 60)
        assert (await ask_about(served, begun["taskId"]))["statusMessage"] == "wait_long"
        await ask_about(served, begun["taskId"], method="tasks/cancel")
        assert (await ask_about(served, begun["taskId"]))["status"] == "cancelled"
        failing = await ask_about(served, "oracle", method="tools/call", name="oracle", arguments={"task": "More."})
        await served.host.wait(failing["taskId"], 60)
        failed = await ask_about(served, failing["taskId"])  # the script has ended
        assert (failed["status"], failed["result"]["isError"]) == ("completed", True)
        assert failing["taskId"] in failed["result"]["content"][0]["text"]


# ------------------------------------------------------------------------------------------------ resources, prompts


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_files_of_a_run_are_resources_of_its_client(mode: str) -> None:
    made = agent(call("draw", name="表 1"), answer("See the chart."), tools=[draw])
    async with serving(made, keys=[KEY, OTHER]) as served:
        async with client_of(served, mode) as client:
            result = await client.call_tool("oracle", {"task": "Draw."})
            (link,) = [part for part in result.content if part.type == "resource_link"]
            assert (link.name, link.mime_type) == ("表 1.csv", "text/csv")
            (read,) = (await client.read_resource(link.uri)).contents
            assert getattr(read, "text", "") == "a,b\n1,2\n"
            assert [each.uri for each in (await client.list_resources()).resources] == [link.uri]
            (template,) = (await client.list_resource_templates()).resource_templates
            assert template.uri_template == "run://{run_id}/files/{name}"
            for wrong in (f"{link.uri}x", "run://no/files/a", "file:///etc/passwd"):
                with pytest.raises(MCPError, match="Resource not found"):
                    await client.read_resource(wrong)
        async with client_of(served, mode, key=OTHER) as client:
            assert (await client.list_resources()).resources == []
            with pytest.raises(MCPError, match="Resource not found"):
                await client.read_resource(link.uri)


async def test_the_task_templates_of_an_agent_are_prompts_and_complete_their_arguments() -> None:
    templates = {
        "plan": {
            "text": "Plan {{ days | default('two') }} days in {{ city }}.",
            "description": "Plan a trip",
            "arguments": {"city": ["Rome", "Roma Nord", "Oslo"]},
        },
        "brief": "Sum up {{ text }} in {{ text | length }} characters.",
    }
    served_agent = Agent(ScriptedClient([]), name="oracle", config={"agent": {"task_templates": templates}})
    async with serving(served_agent) as served, client_of(served) as client:
        plan, brief = (await client.list_prompts()).prompts
        assert [(each.name, each.required) for each in plan.arguments or ()] == [("days", False), ("city", True)]
        assert [each.name for each in brief.arguments or ()] == ["text"]
        got = await client.get_prompt("plan", {"city": "罗马"})
        assert getattr(got.messages[0].content, "text", "") == "Plan two days in 罗马."
        with pytest.raises(MCPError, match="plan needs city=… as well"):
            await client.get_prompt("plan", {})
        with pytest.raises(MCPError, match="There are: plan, brief"):
            await client.get_prompt("no", {})
        found = await client.complete(PromptReference(name="plan"), {"name": "city", "value": "rom"})
        assert found.completion.values == ["Rome", "Roma Nord"]


@pytest.mark.parametrize(
    ("template", "says"),
    [("{{ city", "not valid Jinja"), ({"text": "Go.", "arguments": {"city": "where"}}, "has no argument 'city'")],
)
def test_a_wrong_task_template_is_named(template: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"'plan'.*{says}"):
        task_templates(load_config({"agent": {"task_templates": {"plan": template}}}).agent)
