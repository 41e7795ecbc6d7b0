"""The playground of the viewer begins runs of the served agent, and a picture shows what the agent may do."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from cli_process import here
from closeout import Agent, Flow, tool
from closeout.assembly.agent_picture import as_mermaid, as_svg, picture_of
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.server.viewer.decision_requests import TOKEN_HEADER
from closeout.testing import ScriptedClient, answer, call
from viewer_pages import texts, wait_until, watched_viewer


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look up a key."""
    return "42"


@tool(approval="always", destructive=True)
def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


def team(home: Path | bool, *script: Any) -> Agent[Any]:
    helper = Agent(ScriptedClient([], name="small"), [lookup], name='re"searcher', home=home)
    billing = Agent(ScriptedClient([], name="small"), [refund], name="billing", home=home)
    return Agent(
        ScriptedClient(script, name="large"),
        [lookup, refund, helper.as_tool(name="research", description="Ask a researcher.")],
        handoffs=[billing],
        flow=Flow(trusted=["lookup"], guard="refuse"),
        name="desk",
        home=home,
    )


def test_a_picture_shows_tools_sub_agents_handoffs_and_flow_rules() -> None:
    boxes = picture_of(team(False).plan())
    assert [(box.name, box.model, box.column) for box in boxes] == [
        ("desk", "large", 0),
        ('re"searcher', "small", 1),
        ("billing", "small", 1),
    ]
    desk = boxes[0]
    tools = {name: (marks, target) for name, marks, target in desk.tools}
    assert tools["lookup"] == ("reads", None)
    assert tools["refund"] == ("destroys, asks first", None)
    assert (tools["research"][1], tools["transfer_to_billing"][1]) == (1, 2)
    assert desk.hands_over == {"transfer_to_billing"}
    assert desk.rules == ("after untrusted text: refuse", "trusted: lookup")
    mermaid = as_mermaid(boxes)
    assert 'a0 -->|"research"| a1' in mermaid
    assert 'a0 -.->|"transfer_to_billing"| a2' in mermaid
    assert "re#quot;searcher" in mermaid
    written = [each.text for each in ET.fromstring(as_svg(boxes)).iter() if each.text]
    assert {"desk", 're"searcher', "billing", "destroys, asks first", "trusted: lookup"} <= {*written}


def test_two_agents_that_hand_over_to_each_other_are_drawn_once_each() -> None:
    from closeout import Handoff

    agents: list[Agent[Any]] = []
    for name, other in (("first", 1), ("second", 0)):
        handoff = Handoff(lambda other=other: agents[other], name=("first", "second")[other])
        agents.append(Agent(ScriptedClient([]), name=name, handoffs=[handoff], home=False))
    assert [box.name for box in picture_of(agents[0].plan())] == ["first", "second"]


def test_the_command_prints_a_flowchart_or_writes_a_file(tmp_path: Path) -> None:
    settings = tmp_path / "agent.yaml"
    settings.write_text("llm:\n  model_name: openai:m\nagent:\n  name: desk\n")
    done = here("agent", "show", str(settings))
    assert (done.code, done.out.splitlines()[0]) == (0, "flowchart LR"), done.err
    assert here("agent", "show", str(settings), "--svg", str(tmp_path / "agent.svg")).code == 0
    assert (tmp_path / "agent.svg").read_text().startswith("<svg")


async def test_only_the_viewers_own_page_begins_a_run(home: Path) -> None:
    host = AgentHost(team(home, answer("42")), drain_seconds=0)
    async with TestClient(TestServer(agent_app(host))) as client:
        page = await (await client.get("/viewer/")).text()
        token = page.partition('name="closeout-token" content="')[2].partition('"')[0]
        own = {TOKEN_HEADER: token, "Content-Type": "application/json"}
        for headers, status in (
            ({**own, "Origin": "https://evil.example"}, 403),
            ({**own, "Sec-Fetch-Site": "cross-site"}, 403),
            ({**own, TOKEN_HEADER: "wrong"}, 403),
            ({**own, "Content-Type": "text/plain"}, 415),
            (own, 200),
        ):
            response = await client.post("/viewer/api/runs", data=json.dumps({"task": "How many?"}), headers=headers)
            assert response.status == status, headers
        run_id = (await response.json())["run_id"]
        await host.wait(run_id)
        assert (await host.rows(run_id))[-1].event.answer == "42"  # type: ignore[attr-defined]


async def test_a_viewer_without_an_agent_begins_no_run(client: TestClient) -> None:
    assert await (await client.get("/viewer/api/agent")).json() == {"agents": []}
    assert (await client.get("/viewer/api/agent.svg")).status == 404


def test_a_task_with_a_file_is_run_and_the_next_one_continues_the_conversation(browser: Any, home: Path) -> None:
    agent = team(home, call("lookup", key="a"), answer("It is on its way."), answer("Tomorrow."))

    def app(_: Path) -> web.Application:
        return agent_app(AgentHost(agent, drain_seconds=0))

    with watched_viewer(home, browser, app) as viewer:
        page = viewer.open("#/play")
        page.click("summary >> text=The agent and its tools")
        picture = page.locator(".agent-picture")
        assert "refund (destroys, asks first)" in picture.get_attribute("alt")
        wait_until(page, "document.querySelector('.agent-picture').naturalWidth > 0")
        page.fill(".play-form textarea", "Where is order 7?")
        csv = {"name": "orders.csv", "mimeType": "text/csv", "buffer": b"order,state\n7,sent\n"}
        page.set_input_files("input[type=file]", files=[csv])
        page.click(".play-form button[type=submit]")
        page.wait_for_selector(".item.answer .final")
        assert texts(page, ".item.answer .final") == ["It is on its way."]
        page.wait_for_selector(".files a")
        assert texts(page, ".files a") == ["orders.csv"]
        page.fill(".play-form textarea", "When?")
        page.click(".play-form button[type=submit]")
        page.wait_for_selector(".item.answer .final >> text=Tomorrow.")
        page.click("text=Earlier conversation")
        page.wait_for_selector(".item.task >> text=It is on its way.")  # shown after the event of the opened fold
