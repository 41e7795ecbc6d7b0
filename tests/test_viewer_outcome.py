"""A run without an answer in the viewer: the reason and what to do come first. Lists name whose a run is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from closeout import Agent, RunContext, tool
from closeout.errors import AuthenticationFailed, ServerFailed
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from many_trials import write_evaluation
from test_viewer_decisions import decide, waiting_of
from viewer_pages import Viewer, check_accessible, run_apart, texts, watched_viewer
from viewer_server import get

HOUR = 3600.0


def failing_once(error: Exception) -> Callable[[RequestView], Turn]:
    """A model whose first request fails, for each client anew."""
    asked = []

    def script(view: RequestView) -> Turn:
        asked.append(view)
        if len(asked) == 1:
            raise error
        return answer("42")

    return script


def served(home: Path, agent: Agent[Any]) -> Callable[[Path], web.Application]:
    return lambda _: agent_app(AgentHost(agent, drain_seconds=0))


@tool(approval="always", destructive=True)
def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


@tool(read_only=True)
def read_page() -> str:
    """Read a page."""
    return "The bridge opened in 1932."


async def test_a_wait_that_a_tool_began_keeps_its_time(client: TestClient, home: Path) -> None:
    @tool(read_only=True)
    async def nap(ctx: RunContext) -> str:
        """Sleep."""
        await ctx.sleep(HOUR)
        return "awake"

    run = await Agent(ScriptedClient([call("nap")]), [nap], home=home).run("Sleep.")
    (waits,) = await waiting_of(client, run.run_id)
    assert (waits["kind"], waits["may_end_early"]) == ("timer", False)
    status, found = await decide(client, run.run_id, {"id": waits["id"]}, path="resume")
    assert (status, "that can be ended early" in found["error"]["message"]) == (409, True)


async def test_runs_are_listed_and_found_by_agent_user_and_age(client: TestClient, home: Path) -> None:
    config = {"llm": {"prices": {"*": [1.0, 1.0]}, "max_tokens": 100}}
    for name, user in (("desk", "ann"), ("desk", "bob"), ("shop", "ann")):
        agent = Agent(ScriptedClient([answer("1")]), home=home, name=name, version="2.1", config=config)
        await agent.run("One?", user=user, budget={"team": "5 USD/day"}, run_id=f"{name}-{user}")
    found = (await get(client, "runs"))["runs"]
    shown = [(each["agent"], each["version"], each["users"], each["budgets"]) for each in found]
    assert shown[0] == ("shop", "2.1", ["ann"], ["team"])
    for query, names in {
        "user=ann": ["shop-ann", "desk-ann"],
        "agent=desk": ["desk-bob", "desk-ann"],
        "agent=desk&user=ann": ["desk-ann"],
        "user=ann&before=shop-ann": ["desk-ann"],
        "user=ann&text=one": ["shop-ann", "desk-ann"],
        "user=ann&since=9999999999": [],
    }.items():
        assert [each["run_id"] for each in (await get(client, f"runs?{query}"))["runs"]] == names, query


def test_a_run_without_an_answer_opens_with_what_happened_and_what_to_do(viewer: Viewer, home: Path) -> None:
    script = failing_once(AuthenticationFailed("Incorrect API key", status=401))
    run_id = run_apart(Agent(ScriptedClient(script), home=home, name="desk"), "How many?")
    page = viewer.open(f"#/run/{run_id}")
    shown = page.locator(".run-outcome")
    shown.wait_for()
    command = f"closeout resume {run_id} --agent PACKAGE.MODULE:AGENT"
    says = "PACKAGE.MODULE:AGENT stands for your agent"
    for part in (
        "This run failed",
        "Incorrect API key",
        "Kind of failure: AuthenticationFailed",
        "With the right key:",
        command,
        says,
    ):
        assert part in shown.inner_text()
    tops = [page.locator(each).first.bounding_box()["y"] for each in (".run-outcome", ".item")]
    assert tops[0] < tops[1]
    assert page.locator(".bars").count() == 0  # nothing was used
    assert page.evaluate("getComputedStyle(document.querySelector('.item.answer')).borderInlineStartColor") == (
        "rgb(192, 52, 43)"
    )
    shown.get_by_role("button", name="Show where it failed").click()
    page.wait_for_selector(".item.turn.selected")

    @tool(destructive=True)
    async def pay(key: str) -> str:
        """Pay."""
        paying.cancel()
        return await asyncio.sleep(60, key)

    clerk = Agent(ScriptedClient([call("pay", key="a"), answer("paid")]), [pay], home=home)

    async def cancelled() -> None:
        nonlocal paying
        paying = asyncio.current_task()
        await clerk.run("Pay.", run_id="cancelled")

    paying: Any = None
    with ThreadPoolExecutor(1) as pool, pytest.raises(asyncio.CancelledError):
        pool.submit(asyncio.run, cancelled()).result()
    page.goto(page.url.split("#")[0] + "#/run/cancelled")
    page.wait_for_selector("text=This run was cancelled")
    assert texts(page, ".call .state") == ["no result"]
    page.click("text=1 call has no result, so it may have been done or not: pay")
    page.wait_for_selector(".item.turn.selected")


def test_a_server_with_the_agent_resumes_a_failed_run_at_a_click(browser: Any, home: Path) -> None:
    script = failing_once(AuthenticationFailed("Incorrect API key", status=401))
    agent = Agent(ScriptedClient(script), home=home)
    with watched_viewer(home, browser, served(home, agent)) as viewer:
        page = viewer.begin("How many?")
        page.get_by_role("button", name="Resume the run").click()
        page.wait_for_selector(".item.answer .final")
        assert texts(page, ".item.answer .final") == ["42"]
        assert page.locator(".run-outcome").is_hidden()


def test_a_wait_of_hours_is_shown_with_its_time_and_can_be_ended(browser: Any, home: Path) -> None:
    script = failing_once(ServerFailed("Daily quota reached", status=429, retry_after=3 * HOUR))
    agent = Agent(ScriptedClient(script), home=home)
    with watched_viewer(home, browser, served(home, agent)) as viewer:
        page = viewer.begin("How many?")
        page.wait_for_selector(".request >> text=Daily quota reached")
        assert "(in 3 h 0 min)" in page.locator(".request").inner_text()
        assert page.locator(".run-outcome").is_hidden()  # it has not failed
        page.get_by_role("button", name="Try now").click()
        page.wait_for_selector(".item.answer .final")
        (ended,) = (row.event for row in open_store(home).rows(page.url.rpartition("/")[2]) if _is_decided(row.event))
        assert (ended.verdict, ended.by) == ("time", "viewer")


def _is_decided(event: ev.Event) -> bool:
    return isinstance(event, ev.DecisionMade)


def test_no_button_stands_out_where_a_destructive_call_is_decided(viewer: Viewer, home: Path) -> None:
    agent = Agent(ScriptedClient([call("refund", order="4711")]), [refund], home=home, name="desk")
    run_id = run_apart(agent, "Refund order 4711.", user="ann")
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector(".request >> text=desk asks, for ann")
    assert texts(page, ".request .button") == ["Approve", "Edit arguments", "Deny"]
    assert page.locator(".request .button.primary").count() == 0


def test_a_run_that_waits_for_a_worker_is_not_called_interrupted(viewer: Viewer, home: Path) -> None:
    agent = Agent(ScriptedClient([answer("42")]), home=home)
    with ThreadPoolExecutor(1) as pool:  # Playwright's event loop runs in this thread
        run_id = pool.submit(asyncio.run, agent.submit("How many?")).result()
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector(".run-outcome >> text=No worker has begun it.")
    assert texts(page, ".run-outcome h2") == ["This run has not begun"]


def test_no_page_has_a_serious_problem_for_people_who_use_a_screen_reader(viewer: Viewer, home: Path) -> None:
    failed = run_apart(Agent(ScriptedClient(failing_once(AuthenticationFailed("No key"))), home=home), "How many?")
    waits = run_apart(Agent(ScriptedClient([call("refund", order="1")]), [refund], home=home), "Refund.", user="ann")
    quotes = answer('It opened in 1932 [r1: "opened in 1932"].')
    cites = run_apart(Agent(ScriptedClient([call("read_page"), quotes]), [read_page], home=home), "When?")
    for name in ("first", "second"):
        write_evaluation(home, name, tasks=4, epochs=2)
    page = viewer.open()
    for number, (path, seen) in enumerate(
        {
            "#/": ".run-row",
            "#/evaluation/second": ".matrix-row",
            f"#/compare/{failed}/{waits}": "h1",
            f"#/run/{cites}/sources": "mark.current",
            f"#/run/{failed}": ".run-outcome",
            f"#/run/{waits}": ".request",
            f"#/run/{waits}/prompts": ".message",
            "#/evaluations": ".foot",
            "#/usage": "table.usage",
            "#/play": "h1",
        }.items()
    ):
        page.goto(f"{viewer.address}?{number}{path}")
        page.wait_for_selector(seen)
        for colours, width in (("light", 390), ("dark", 1280)):
            page.emulate_media(color_scheme=colours)
            page.set_viewport_size({"width": width, "height": 844})
            check_accessible(page)
