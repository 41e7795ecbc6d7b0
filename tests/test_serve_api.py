"""A served agent's own API, its limits, keys and figures; and how it refuses what it must not serve."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
from aiohttp import ClientSession

from closeout import Agent, Number, tool
from closeout.errors import ConfigError, JournalError, UsageError
from closeout.fleet.interruptions import MAX_INTERRUPTIONS
from closeout.journal.run_journal import Journal
from closeout.server.safety import is_loopback
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.builtin import ask_tool
from serving import Served, serving
from test_serve_openai import Gate, lookup, turns


def helper() -> Agent[Any]:
    return Agent(ScriptedClient(turns), [lookup], name="helper")


async def fetch(served: Served, method: str, path: str, **options: Any) -> tuple[int, Any]:
    async with served.http.request(method, served.url + path, **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if "json" in response.content_type else text


async def events(served: Served, path: str, **options: Any) -> list[dict[str, Any]]:
    async with served.http.get(served.url + path, **options) as response:
        assert response.content_type == "text/event-stream"
        lines = (await response.text()).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_a_run_is_started_followed_and_answered() -> None:
    async with serving(helper()) as served:
        status, run = await fetch(served, "POST", "/v1/runs", json={"task": "What is k1?"})
        assert status == 202
        path = f"/v1/runs/{run['run_id']}"
        _, found = await fetch(served, "GET", f"{path}?wait=30")
        assert (found["status"], found["answer"], found["repairs"]) == ("answered", "42", 1)
        seen = await events(served, f"{path}/events")
        assert [event["seq"] for event in seen] == list(range(found["events"]))
        assert (seen[0]["type"], seen[-1]["type"]) == ("RunStarted", "RunEnded")
        assert await events(served, f"{path}/events?after=3") == seen[4:]
        assert await events(served, f"{path}/events", headers={"Last-Event-ID": "3"}) == seen[4:]


async def test_a_run_is_cancelled() -> None:
    gate = Gate()
    async with serving(gate.agent()) as served:
        _, run = await fetch(served, "POST", "/v1/runs", json={"task": "Go"})
        await gate.entered.wait()
        _, found = await fetch(served, "POST", f"/v1/runs/{run['run_id']}/cancel")
        assert (found["status"], found["answer"]) == ("cancelled", None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"task": 5}', "task must be a text"),
        (b'{"task": "  "}', "task must be a text"),
        (b'{"task": "x", "paths": ["/etc/passwd"]}', "Unknown keys: paths"),
        (b'{"task": "x", "files": ["/etc/passwd"]}', "files must be a list such as"),
        (b'{"task": "x", "files": [{"name": "a.txt", "data": "?"}]}', "not Base64"),
        (b'{"task": "x", "history": 5}', "history"),
        (b'{"task": "x", "history": [5]}', "must be an object"),
    ],
)
async def test_a_body_that_cannot_be_used_says_why(body: bytes, said: str) -> None:
    async with serving(helper()) as served:
        headers = {"Content-Type": "application/json"}
        status, found = await fetch(served, "POST", "/v1/runs", data=body, headers=headers)
        assert status == 400
        assert said in found["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/runs/none", "/v1/runs/none/events", "/v1/nothing"])
async def test_what_is_not_there_is_a_json_404(path: str) -> None:
    async with serving(helper()) as served:
        status, found = await fetch(served, "GET", path)
        assert status == 404
        assert found["error"]["message"]
        assert str(served.host.store.home) not in found["error"]["message"]


async def test_clients_are_not_told_which_journal_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Any:
        raise JournalError("/srv/secret/journal.sqlite3: disk I/O error")

    async with serving(helper()) as served:
        monkeypatch.setattr(served.host.store, "rows_from", fail)
        status, found = await fetch(served, "GET", "/v1/runs/one")
        assert (status, found["error"]["code"]) == (503, "journal_error")
        assert "secret" not in str(found)


async def test_web_pages_and_other_types_are_refused() -> None:
    async with serving(helper()) as served:
        for headers, status in (
            ({"Origin": "https://evil.example"}, 403),
            ({"Host": "evil.example"}, 403),
            ({"Content-Type": "text/plain"}, 415),  # what a page may send without asking
        ):
            headers = {"Content-Type": "application/json", **headers}
            found, _ = await fetch(served, "POST", "/v1/runs", data=b'{"task": "x"}', headers=headers)
            assert found == status
        async with served.http.options(f"{served.url}/v1/runs", headers={"Origin": "https://evil.example"}) as response:
            assert not any(name.lower().startswith("access-control") for name in response.headers)
        assert served.host.store.runs() == []


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with serving(helper()) as served:
        body = io.BytesIO(json.dumps({"task": "x" * (17 * 2**20)}).encode())
        headers = {"Content-Type": "application/json"}
        status, found = await fetch(served, "POST", "/v1/runs", data=body, headers=headers)
        assert status == 413
        assert "larger than 16,777,216 bytes" in found["error"]["message"]


async def test_keys_are_required_everywhere_but_for_the_health_check() -> None:
    async with serving(helper(), keys=["first key", "schlüssel"]) as served:
        for key, status in ((None, 401), ("first ke", 401), ("first key", 200), ("schlüssel", 200)):
            for name in ("Authorization", "x-api-key"):
                value = f"Bearer {key}" if name == "Authorization" else str(key)
                headers = {name: value} if key is not None else {}
                assert (await fetch(served, "GET", "/v1/models", headers=headers))[0] == status
                assert (await fetch(served, "GET", "/metrics", headers=headers))[0] == status
        assert (await fetch(served, "GET", "/healthz"))[0] == 200


def test_other_computers_need_a_key() -> None:
    host = AgentHost(helper())
    for address in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        assert not is_loopback(address)
        with pytest.raises(ConfigError, match="must have a key"):
            agent_app(host, address=address)
        agent_app(host, address=address, keys=["a long key"])
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))


def test_an_agent_that_keeps_no_runs_cannot_be_served() -> None:
    with pytest.raises(UsageError, match="home=False"):
        AgentHost(Agent(ScriptedClient(turns), home=False))


async def test_metrics_count_the_runs() -> None:
    async with serving(helper()) as served:
        _, run = await fetch(served, "POST", "/v1/runs", json={"task": "What is k1?"})
        await fetch(served, "GET", f"/v1/runs/{run['run_id']}?wait=30")
        _, text = await fetch(served, "GET", "/metrics")
    lines = text.splitlines()
    assert 'closeout_runs_ended_total{status="answered"} 1' in lines
    about = 'agent="helper",model="scripted",outcome="ok"'
    assert f"closeout_model_requests_total{{{about}}} 2" in lines
    assert "closeout_runs_active 0" in lines


# ------------------------------------------------------------------------------------------------ stopping


async def test_a_stopped_server_leaves_its_runs_to_the_next_one() -> None:
    gate = Gate()
    async with serving(gate.agent(), max_runs=1) as served:
        running = (await fetch(served, "POST", "/v1/runs", json={"task": "Go"}))[1]["run_id"]
        await gate.entered.wait()
        queued = (await fetch(served, "POST", "/v1/runs", json={"task": "Go"}))[1]["run_id"]
        cancelled = (await fetch(served, "POST", "/v1/runs", json={"task": "Go"}))[1]["run_id"]
        await fetch(served, "POST", f"/v1/runs/{cancelled}/cancel")
    gate.opened.set()
    async with serving(gate.agent()) as served:
        for run_id in (running, queued):
            _, found = await fetch(served, "GET", f"/v1/runs/{run_id}?wait=30")
            assert (found["status"], found["answer"]) == ("answered", "through")
        _, found = await fetch(served, "GET", f"/v1/runs/{cancelled}")
        assert found["status"] == "cancelled"


async def test_a_server_that_stops_waits_for_its_runs() -> None:
    gate = Gate()
    async with serving(gate.agent(), drain_seconds=30.0) as served:
        _, run = await fetch(served, "POST", "/v1/runs", json={"task": "Go"})
        await gate.entered.wait()
        stopping = asyncio.create_task(served.host.stop())
        await asyncio.sleep(0)
        assert (await fetch(served, "GET", "/healthz"))[0] == 503
        assert (await fetch(served, "POST", "/v1/runs", json={"task": "Go"}))[0] == 429
        gate.opened.set()
        await stopping
        assert served.host.store.run(run["run_id"]).status == "answered"


async def test_the_runs_of_another_agent_are_left_alone() -> None:
    gate = Gate()
    async with serving(gate.agent("one")) as served:
        _, run = await fetch(served, "POST", "/v1/runs", json={"task": "Go"})
        await gate.entered.wait()
    gate.opened.set()
    async with serving(gate.agent("two")) as served:
        assert served.host.active == served.host.queued == 0
        assert (await fetch(served, "GET", f"/v1/runs/{run['run_id']}"))[0] == 404


async def test_a_run_that_keeps_killing_the_server_is_not_resumed_for_ever() -> None:
    agent = helper()
    run_id = await agent.submit("What is k1?", origin={"serve": {"agent": "helper", "api": "runs"}})
    for _ in range(MAX_INTERRUPTIONS + 1):
        store = agent.store()
        assert store is not None
        Journal.reopen(store, run_id).abandon()
    async with serving(agent) as served:
        _, found = await fetch(served, "GET", f"/v1/runs/{run_id}?wait=30")
        assert found["status"] == "failed"
        assert "interrupted 4 times in a row, so it is not resumed" in found["error"]
        assert found["error"].endswith(f"closeout resume {run_id}")


async def test_a_run_whose_agent_has_changed_says_so() -> None:
    await helper().submit("What is k1?", run_id="one", origin={"serve": {"agent": "helper", "api": "runs"}})
    changed = Agent(ScriptedClient(turns), [lookup], name="helper", answer=Number())
    async with serving(changed) as served:
        _, found = await fetch(served, "GET", "/v1/runs/one?wait=30")
        assert found["status"] == "interrupted"
        assert "made by another agent" in found["error"]
        async with ClientSession() as http, http.get(f"{served.base_url}/responses/resp_one") as response:
            assert (await response.json())["status"] == "failed"


# ------------------------------------------------------------------------------------------------ decisions


async def test_a_run_that_waits_for_a_decision_continues_with_it() -> None:
    paid: list[str] = []

    @tool(approval="always")
    def pay(key: str) -> str:
        """Pay a bill."""
        paid.append(key)
        return f"[{key}] paid"

    def play(view: RequestView) -> Turn:
        return answer("done") if "paid" in view.text else call("pay", key="k1")

    async with serving(Agent(ScriptedClient(play), [pay], name="helper")) as served:
        _, run = await fetch(served, "POST", "/v1/runs", json={"task": "Pay k1."})
        path = f"/v1/runs/{run['run_id']}"
        _, found = await fetch(served, "GET", f"{path}?wait=30")
        (pending,) = found["waiting"]
        assert (found["status"], pending["tool"], pending["arguments"], paid) == ("waiting", "pay", {"key": "k1"}, [])
        wrong = {"decisions": {pending["id"]: {"verdict": "approve", "hash": "0" * 64}}}
        assert (await fetch(served, "POST", f"{path}/decisions", json=wrong))[0] == 400
        for useless in ({}, {"decisions": []}, {"decisions": {"r99": True}}):
            assert (await fetch(served, "POST", f"{path}/decisions", json=useless))[0] == 400
        right = {"decisions": {pending["id"]: {"verdict": "approve", "hash": pending["hash"]}}}
        assert (await fetch(served, "POST", f"{path}/decisions", json=right))[0] == 202
        _, found = await fetch(served, "GET", f"{path}?wait=30")
        assert (found["status"], found["answer"], found["waiting"], paid) == ("answered", "done", [], ["k1"])


async def test_a_question_is_answered() -> None:
    def play(view: RequestView) -> Turn:
        return answer("blue") if "the blue one" in view.text else call("ask_user", question="Which?")

    async with serving(Agent(ScriptedClient(play), [ask_tool()], name="helper")) as served:
        _, run = await fetch(served, "POST", "/v1/runs", json={"task": "Pay."})
        path = f"/v1/runs/{run['run_id']}"
        _, found = await fetch(served, "GET", f"{path}?wait=30")
        (pending,) = found["waiting"]
        assert (pending["kind"], pending["arguments"]["question"]) == ("question", "Which?")
        await fetch(served, "POST", f"{path}/decisions", json={"decisions": {pending["id"]: "the blue one"}})
        seen = await events(served, f"{path}/events")
        assert [event["type"] for event in seen if event["type"].startswith("Decision")] == [
            "DecisionRequested",
            "DecisionMade",
        ]
        assert seen[-1]["answer"] == "blue"


async def test_the_viewer_is_there_for_this_computer_alone() -> None:
    async with serving(helper()) as served:
        assert (await fetch(served, "GET", "/viewer/"))[0] == 200
    async with serving(helper(), keys=["a long key"]) as served:
        assert (await fetch(served, "GET", "/viewer/", headers={"x-api-key": "a long key"}))[0] == 404
