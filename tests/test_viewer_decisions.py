"""Decisions in the viewer: what a run waits for is shown as it is, and only the viewer's own page decides it, once."""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from closeout import Agent, RunContext, tool
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.run.waits.decisions import pending_decisions
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.server.viewer.decision_requests import TOKEN_HEADER
from closeout.testing import ScriptedClient, Turn, answer, call
from closeout.tools.builtin import ask_user
from viewer_pages import Viewer, check_looks, run_apart, texts, watched_viewer

HIDDEN = "\u202egnp.exe <img src=x onerror=alert(1)>\u200b\u3164\u2800\U000e0101"


class Bank:
    """An agent that pays, and what it paid."""

    def __init__(self, home: Path, *calls: Any) -> None:
        self.paid: list[tuple[str, int]] = []

        @tool(approval="always")
        def pay(key: str, amount: int = 1, note: str = "") -> str:
            """Pay a bill."""
            self.paid.append((key, amount))
            return "paid"

        script = [Turn(calls=list(calls)), answer("done")] * 2
        self.agent = Agent(ScriptedClient(script), [pay, ask_user], home=home)


async def decide(
    client: TestClient, run_id: str, decision: Any, *, path: str = "decisions", **headers: str
) -> tuple[int, Any]:
    page = await (await client.get("/viewer/")).text()
    token = page.partition('name="closeout-token" content="')[2].partition('"')[0]
    assert len(token) > 20
    sent = {TOKEN_HEADER: token, "Content-Type": "application/json", **headers}
    body = decision if isinstance(decision, bytes) else json.dumps(decision).encode()
    response = await client.post(f"/viewer/api/runs/{run_id}/{path}", data=body, headers=sent)
    return response.status, await response.json()


async def waiting_of(client: TestClient, run_id: str) -> list[dict[str, Any]]:
    found = await (await client.get(f"/viewer/api/runs/{run_id}/waiting")).json()
    return list(found["waiting"])


# ------------------------------------------------------------------------------------------------ the server


async def test_a_decision_is_recorded_and_a_second_one_refused(client: TestClient, home: Path) -> None:
    bank = Bank(home, call("pay", key="a"), call("pay", key="b"))
    run = await bank.agent.run("Pay.")
    first, second = await waiting_of(client, run.run_id)
    status, found = await decide(client, run.run_id, {"id": "r1", "verdict": "approve", "hash": first["hash"]})
    assert (status, [each["id"] for each in found["waiting"]], found["continues"]) == (200, ["r2"], False)
    status, found = await decide(client, run.run_id, {"id": "r1", "verdict": "deny", "hash": first["hash"]})
    assert status == 409
    assert "was decided before: approve. A decision cannot be changed." in found["error"]["message"]
    await decide(client, run.run_id, {"id": "r2", "verdict": "deny", "hash": second["hash"], "text": "too much"})
    result = await bank.agent.resume(run.run_id)
    assert (result.answer, bank.paid) == ("done", [("a", 1)])
    made = [row.event for row in open_store(home).rows(run.run_id) if isinstance(row.event, ev.DecisionMade)]
    assert [(each.verdict, each.text, each.by) for each in made] == [
        ("approve", "", "viewer"),
        ("deny", "too much", "viewer"),
    ]


async def test_values_are_shown_and_executed_as_they_are(client: TestClient, home: Path) -> None:
    big = 12345678901234567890123
    bank = Bank(home, call("pay", key="5", amount=big, note="\u202e"))
    run = await bank.agent.run("Pay.")
    (shown,) = await waiting_of(client, run.run_id)
    assert shown["arguments"] == [["key", '"5"'], ["amount", str(big)], ["note", "\u202e"]]
    assert "\\u202e" in shown["json"]
    edited = shown["json"].replace(str(big), str(big + 1))
    decision = {"id": "r1", "verdict": "approve", "hash": shown["hash"], "arguments": edited}
    assert (await decide(client, run.run_id, decision))[0] == 200
    await bank.agent.resume(run.run_id)
    assert bank.paid == [("5", big + 1)]


async def test_a_served_run_continues_by_itself(home: Path) -> None:
    bank = Bank(home, call("pay", key="a"))
    host = AgentHost(bank.agent, drain_seconds=0)
    async with TestClient(TestServer(agent_app(host))) as client:
        run_id = await host.submit("Pay.")
        await host.wait(run_id)
        (shown,) = await waiting_of(client, run_id)
        _, found = await decide(client, run_id, {"id": "r1", "verdict": "approve", "hash": shown["hash"]})
        assert found == {"waiting": [], "continues": True}
        await host.wait(run_id)
        other = await bank.agent.run("Pay by yourself.")  # not a run of the server
        (shown,) = await waiting_of(client, other.run_id)
        _, found = await decide(client, other.run_id, {"id": "r1", "verdict": "approve", "hash": shown["hash"]})
        assert found == {"waiting": [], "continues": False}
    assert bank.paid == [("a", 1)]


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"Origin": "https://evil.example"}, 403, "viewer's own page"),
        ({"Origin": "null"}, 403, "viewer's own page"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "viewer's own page"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "viewer's own page"),
        ({TOKEN_HEADER: ""}, 403, "Reload it"),
        ({TOKEN_HEADER: "wrong"}, 403, "Reload it"),
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Host": "evil.example"}, 403, "evil.example"),
    ],
)
async def test_other_pages_cannot_decide(
    client: TestClient, home: Path, headers: dict[str, str], status: int, said: str
) -> None:
    bank = Bank(home, call("pay", key="a"))
    run = await bank.agent.run("Pay.")
    (shown,) = await waiting_of(client, run.run_id)
    decision = {"id": "r1", "verdict": "approve", "hash": shown["hash"]}
    found = await decide(client, run.run_id, decision, **headers)
    assert found[0] == status
    assert said in found[1]["error"]["message"]
    assert len(await waiting_of(client, run.run_id)) == 1


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 400, "must be a JSON object"),
        ({"verdict": "approve", "hash": "HASH"}, 400, "id, verdict and hash"),
        ({"id": "r1", "verdict": "approve"}, 400, "id, verdict and hash"),
        ({"id": "r1", "verdict": "approve", "hash": "HASH", "text": 5}, 400, "all are texts"),
        ({"id": "r1", "verdict": "approve", "hash": "HASH", "arguments": "[1]"}, 400, "must be a JSON object"),
        ({"id": "r1", "verdict": "approve", "hash": "HASH", "arguments": "{'a'}"}, 400, "not JSON"),
        ({"id": "r1", "verdict": "approve", "hash": "of another call"}, 409, "made on something else"),
        ({"id": "r1", "verdict": "answer", "hash": "HASH", "text": "x"}, 409, "approve or deny it"),
        ({"id": "r1", "verdict": "maybe", "hash": "HASH"}, 409, "must be True"),
        ({"id": "r9", "verdict": "approve", "hash": "HASH"}, 409, "does not wait for a decision on 'r9'"),
    ],
)
async def test_a_decision_that_does_not_fit_is_refused(
    client: TestClient, home: Path, body: Any, status: int, said: str
) -> None:
    bank = Bank(home, call("pay", key="a"))
    run = await bank.agent.run("Pay.")
    (shown,) = await waiting_of(client, run.run_id)
    sent = body if isinstance(body, bytes) else json.dumps(body).replace("HASH", shown["hash"]).encode()
    found = await decide(client, run.run_id, sent)
    assert found[0] == status, found
    assert said in found[1]["error"]["message"]
    assert len(await waiting_of(client, run.run_id)) == 1


async def test_a_run_that_is_not_there_waits_for_nothing(client: TestClient, home: Path) -> None:
    assert (await client.get("/viewer/api/runs/none/waiting")).status == 404
    status, found = await decide(client, "none", {"id": "r1", "verdict": "approve", "hash": "x"})
    assert (status, "No run none" in found["error"]["message"]) == (404, True)


# ------------------------------------------------------------------------------------------------ the pages


def made(home: Path, run_id: str) -> list[tuple[str, str, str | None, str]]:
    rows = open_store(home).rows(run_id)
    found = [row.event for row in rows if isinstance(row.event, ev.DecisionMade)]
    return [(each.request, each.verdict, each.arguments, each.text) for each in found]


def resume_apart(agent: Agent[Any], run_id: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, agent.resume(run_id)).result()


def test_calls_are_approved_edited_and_denied_and_a_question_is_answered(viewer: Viewer, home: Path) -> None:
    question = call("ask_user", question="Which account?", options=["giro", HIDDEN])
    bank = Bank(home, call("pay", key="a"), call("pay", key="b", amount=90), call("pay", key=HIDDEN), question)
    run_id = run_apart(bank.agent, "Pay.")
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector("text=This run waits for 4 decisions")
    assert texts(page, ".call .state") == ["waits for approval"] * 3 + ["waits for an answer"]
    assert texts(page, ".call .question .says") == ["Which account?"]
    assert texts(page, ".call .decision-note") == ["pay needs approval."] * 3
    assert page.locator(".item.decision").count() == 0
    of = lambda name: page.locator(f".request[data-id='{name}']")  # noqa: E731
    assert all(code in of("r3").inner_text() for code in ("U+202E", "U+3164", "U+2800", "U+E0101"))
    assert "\u202e" not in of("r3").inner_text()
    of("r1").get_by_role("button", name="Approve", exact=True).click()
    page.wait_for_selector("text=This run waits for 3 decisions")
    of("r2").get_by_role("button", name="Edit arguments").click()
    edit = of("r2").locator("textarea")
    assert json.loads(edit.input_value()) == {"key": "b", "amount": 90}
    edit.fill('{"key": "b", "amount": 9')
    of("r2").get_by_role("button", name="Approve with these arguments").click()
    of("r2").get_by_role("alert").get_by_text("The arguments must be a JSON object").wait_for()
    viewer.expect_status(400)
    edit.fill('{"key": "b", "amount": 9}')
    of("r2").get_by_role("button", name="Approve with these arguments").click()
    page.wait_for_selector("text=This run waits for 2 decisions")
    of("r3").get_by_role("button", name="Deny").click()
    of("r3").locator("input").fill("not that one")
    of("r3").get_by_role("button", name="Deny").click()
    page.wait_for_selector("text=This run waits for a decision")
    of("r4").locator(".option").first.click()
    page.wait_for_selector(f"text=closeout resume {run_id}")
    page.wait_for_selector(".call.waits", state="detached")
    assert texts(page, ".call .state")[2] == "denied"
    assert made(home, run_id) == [
        ("r1", "approve", None, ""),
        ("r2", "approve", '{"key": "b", "amount": 9}', ""),
        ("r3", "deny", None, "not that one"),
        ("r4", "answer", None, "giro"),
    ]
    assert page.locator("main img").count() == 0


def test_the_page_shows_how_a_decided_run_continues_elsewhere(viewer: Viewer, home: Path) -> None:
    bank = Bank(home, call("pay", key="a"), call("pay", key="b"))
    run_id = run_apart(bank.agent, "Pay.")
    page = viewer.open(f"#/run/{run_id}")
    page.locator(".request[data-id='r1']").get_by_role("button", name="Approve", exact=True).click()
    page.wait_for_selector("text=This run waits for a decision")
    denied = page.locator(".request[data-id='r2']").get_by_role("button", name="Deny")
    denied.click()
    denied.click()
    page.wait_for_selector("text=Everything is decided")
    resume_apart(bank.agent, run_id)
    page.wait_for_selector(".item.answer")
    assert texts(page, ".item.answer .final") == ["done"]
    assert page.locator(".decisions").is_hidden()
    assert texts(page, ".call.left-out .state") == ["denied"]
    assert texts(page, ".jump-notRun b") == ["1"]
    assert "1 not run" in page.locator(".tile:has-text('Calls')").inner_text()
    page.click("text=1 call was not run: pay")
    page.wait_for_selector(".item.selected:has(.call.left-out)")


def test_one_click_decides_on_all_calls_that_are_shown(viewer: Viewer, home: Path) -> None:
    for button, verdict in (("Approve all 2", "approve"), ("Deny all 2", "deny")):
        bank = Bank(home, call("pay", key="a"), call("pay", key="b"), call("ask_user", question="Which?"))
        run_id = run_apart(bank.agent, "Pay.")
        page = viewer.open(f"#/run/{run_id}")
        page.get_by_role("button", name=button).click()
        page.wait_for_selector("text=This run waits for a decision")
        assert [each[:2] for each in made(home, run_id)] == [("r1", verdict), ("r2", verdict)]
        assert page.get_by_role("button", name=button).count() == 0


def test_times_and_signals_are_shown_beside_what_people_decide(viewer: Viewer, home: Path) -> None:
    @tool(read_only=True)
    async def await_payment(context: RunContext) -> str:
        """Wait for a payment."""
        return str(await context.wait_for("付款 <b>", timeout=1e6))

    @tool(read_only=True)
    async def nap(context: RunContext) -> str:
        """Wait until a time."""
        await context.sleep_until(datetime(2199, 1, 1, 12, tzinfo=UTC))
        return "over"

    agent = Agent(
        ScriptedClient([Turn(calls=[call("await_payment"), call("nap"), call("ask_user", question="Which?")])]),
        [await_payment, nap, ask_user],
        home=home,
    )
    run_id = run_apart(agent, "Wait.")
    page = viewer.open()
    page.get_by_text("the signal '付款 <b>' until").wait_for()
    page.goto(f"{viewer.address}#/run/{run_id}")
    page.wait_for_selector("text=This run waits for a decision")
    assert sorted(texts(page, ".request header b")) == ["Question", "Signal", "Timer"]
    shown = sorted(texts(page, ".request > .awaited"))
    assert shown[0].startswith("Waits for the signal 付款 <b>. At the latest until ")
    assert shown[1].startswith("Waits until ")
    assert page.locator(".request[data-id='r1.wait'] button").count() == 0
    assert texts(page, ".call .state") == ["waits for a signal", "waits for a time", "waits for an answer"]
    page.locator(".request[data-id=r3] textarea").fill("this one")
    page.get_by_role("button", name="Send the answer").click()
    page.get_by_role("heading", name="This run waits", exact=True).wait_for()
    assert made(home, run_id) == [("r3", "answer", None, "this one")]


def test_a_served_run_is_decided_and_followed_to_its_answer(browser: Any, home: Path) -> None:
    bank = Bank(home, call("pay", key="a"))
    with watched_viewer(home, browser, lambda _: agent_app(AgentHost(bank.agent, drain_seconds=0))) as viewer:
        page = viewer.begin("Pay.")
        page.get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_selector(".item.answer")
        assert texts(page, ".item.answer .final") == ["done"]
        assert page.locator(".item.stopped").count() == 1
        page.wait_for_selector("text=closeout resume", state="hidden")
    assert bank.paid == [("a", 1)]


ASKING = Path(__file__).parent / "mcp_servers" / "asking.py"


def test_a_servers_form_is_filled_in_and_its_address_is_a_link_that_names_the_host(viewer: Viewer, home: Path) -> None:
    shop = {"name": "shop", "command": [sys.executable, str(ASKING), "new", str(home / "did")], "elicitation": "ask"}
    client = ScriptedClient([Turn(calls=[call("survey"), call("visit")]), answer("done")])
    agent = Agent(client, mcp_servers=[shop], home=home)
    run_id = run_apart(agent, "Ask.")
    page = viewer.open(f"#/run/{run_id}")
    form = page.locator(".request[data-id='r1.q1']")
    assert form.locator(".says").inner_text().splitlines() == [
        "The MCP server 'shop' asks:",
        "> About your order <img src=x onerror=alert(1)>",
    ]
    assert "U+202E" in form.get_by_text("As on the").inner_text()
    assert form.locator("textarea").count() == 0
    assert form.get_by_label("day").input_value() == "2026-12-01"
    form.get_by_label("姓名 <b>Name</b>").fill("Ada")
    form.get_by_role("button", name="Send the answer").click()
    assert form.get_by_label("count").evaluate("each => each.validity.valueMissing"), "the browser says what is missing"
    form.get_by_label("count").fill("98765432109876543210")
    form.get_by_label("weight").fill("")
    form.get_by_label("gift").check()
    form.get_by_label("colour").select_option(label="Sky")
    form.get_by_label("Ice").check()
    check_looks(page)
    form.get_by_role("button", name="Send the answer").click()
    form.wait_for(state="detached")
    visit = page.locator(".request[data-id='r2.q1']")
    link = visit.get_by_role("link", name="Open example.org")
    assert [link.get_attribute(name) for name in ("href", "target", "rel")] == [
        "https://example.org/in", "_blank", "noopener noreferrer",
    ]  # fmt: skip
    visit.get_by_role("button", name="Done").click()
    page.wait_for_selector("text=Everything is decided")
    assert page.locator("main img").count() == 0
    assert [(name, json.loads(text) if name == "r1.q1" else text) for name, _, _, text in made(home, run_id)] == [
        ("r1.q1", {"name": "Ada", "day": "2026-12-01", "count": 98765432109876543210, "weight": None, "gift": True,
                   "colour": "blue", "extras": ["ice", "mint"]}),
        ("r2.q1", "done"),
    ]  # fmt: skip
    resume_apart(agent, run_id)
    page.wait_for_selector(".item.answer")
    assert '"weight"' not in texts(page, ".call .result")[0]


def test_a_second_decision_from_another_page_is_refused_with_its_reason(viewer: Viewer, home: Path) -> None:
    bank = Bank(home, call("pay", key="a"), call("pay", key="b"))
    run_id = run_apart(bank.agent, "Pay.")
    first, second = viewer.open(f"#/run/{run_id}"), viewer.open(f"#/run/{run_id}")
    for page in (first, second):
        page.wait_for_selector(".request[data-id=r1]")
        page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")  # it does not look again
    first.locator(".request[data-id=r1]").get_by_role("button", name="Approve", exact=True).click()
    first.wait_for_selector("text=This run waits for a decision")
    late = second.locator(".request[data-id=r1]")
    late.get_by_role("button", name="Deny").click()
    late.get_by_role("button", name="Deny").click()
    late.get_by_text("r1 of run").wait_for()
    assert "was decided before: approve. A decision cannot be changed." in late.get_by_role("alert").inner_text()
    viewer.expect_status(409)
    assert [each[1] for each in made(home, run_id)] == ["approve"]
    assert len(pending_decisions(open_store(home).rows(run_id))) == 1
