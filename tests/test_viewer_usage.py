"""The page Usage of the viewer: tokens and cost in groups, and what the keys of budgets have spent."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from aiohttp.test_utils import TestClient

from closeout import Agent, tool, usage_totals
from closeout.testing import ScriptedClient, Turn, answer, call
from viewer_pages import Viewer, check_looks, run_apart, texts
from viewer_server import get


async def test_calls_are_summed_by_tool(client: TestClient, home: Path) -> None:
    @tool(read_only=True)
    def lookup(key: str) -> str:
        """Look up a key."""
        if key == "b":
            raise ValueError("no such key")
        return "42"

    script = [Turn(calls=[call("lookup", key="a"), call("lookup", key="b")]), answer("42")]
    await Agent(ScriptedClient(script), [lookup], home=home).run("How many?", user="ann")
    (total,) = usage_totals(by=["user", "tool"])
    assert (total.group, total.calls, total.failures) == ({"user": "ann", "tool": "lookup"}, 2, 1)
    assert total.result_tokens > 0
    (row,) = (await get(client, "usage?by=day,tool"))["usage"]
    assert (row["tool"], row["calls"], row["failures"]) == ("lookup", 2, 1)
    assert sum(each.usage.requests for each in usage_totals(by=["agent"])) == 2  # calls are no requests


def test_the_viewer_shows_usage_and_budgets(viewer: Viewer, home: Path) -> None:
    agent = Agent(
        ScriptedClient([answer("42")]),
        budget={"team": "1 USD/day", "客户:<b>x</b>": "5 USD/day"},
        config={"llm": {"prices": {"*": [1.0, 10.0]}, "max_tokens": 1000}},
        home=home,
        name="sums",
    )
    run_apart(agent, "How many?")
    (total,) = usage_totals(by=["model"])
    page = viewer.open("#/usage")
    page.wait_for_selector("table.usage")
    assert texts(page, "nav [aria-current=page]") == ["Usage"]
    model, *numbers = texts(page, "table.usage >> nth=0 >> tbody td")
    assert model == "scripted"
    day = datetime.now(UTC).date().isoformat()
    assert texts(page, ".axis span")[1] == day
    assert page.locator(f".day-bar[title^='{day}: $'] i.shade-0").count() == 1
    assert numbers[:2] == ["1", f"{total.usage.input_tokens:,}"]
    assert texts(page, "table.usage >> nth=0 >> tfoot td")[1:] == numbers
    assert [row.split("\t")[:2] for row in texts(page, "table.usage >> nth=1 >> tbody tr")] == [
        [day, "team"], [day, "客户:<b>x</b>"],
    ]  # fmt: skip
    page.click("nav.choice >> text=Agent")
    page.wait_for_selector("td:text('sums')")
    page.click("nav.choice >> text=Budget")
    page.wait_for_selector("table.usage >> nth=0 >> td:text('team')")
    for options in ({"viewport": {"width": 320, "height": 700}}, {"color_scheme": "dark"}, {"locale": "zh-CN"}):
        page = viewer.open("#/usage?by=key&days=7", **options)
        page.wait_for_selector("table.usage")
        check_looks(page)
    page = viewer.open("#/usage?by=nobody&days=x")
    page.wait_for_selector("table.usage >> nth=0 >> td:text('scripted')")
