"""The page Usage of the viewer: tokens and cost in groups, and what the keys of budgets have spent."""

from __future__ import annotations

from pathlib import Path

from closeout import Agent, usage_totals
from closeout.testing import ScriptedClient, answer
from viewer_pages import Viewer, check_looks, run_apart, texts


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
    day, model, *numbers = texts(page, "table.usage >> nth=0 >> tbody td")
    assert model == "scripted"
    assert numbers[:2] == ["1", f"{total.usage.input_tokens:,}"]
    assert texts(page, "table.usage >> nth=0 >> tfoot td")[2:] == numbers
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
