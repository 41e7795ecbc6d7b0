"""Evaluations in the viewer: their list, and one as a matrix of tasks and epochs that leads to the trials' runs."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from closeout import Agent, Number, tool
from closeout.evaluate import evaluate
from closeout.evaluate.outcome import RunOutcome
from closeout.evaluate.scores import Score
from closeout.evaluate.trials import Finished, TrialStore
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say
from many_trials import write_evaluation
from test_viewer_browser import HOSTILE
from viewer_pages import Viewer, check_looks, held_back, texts
from viewer_server import get

SIGNS = {"right": "✓", "wrong": "✗", "unanswered": "–", "failed": "!", "running": "●", "unfinished": "·"}


def outcomes(found: Any) -> dict[str, int]:
    names = [trial["outcome"] for row in found["matrix"] for trial in row["trials"]]
    return {name: names.count(name) for name in sorted(set(names))}


# ------------------------------------------------------------------------------------------------ the server


async def test_the_list_says_how_far_each_evaluation_is(client: TestClient, home: Path) -> None:
    assert (await get(client, "evaluations"))["evaluations"] == []
    write_evaluation(home, "half", tasks=10, epochs=2, finished=0.5)
    (half,) = (await get(client, "evaluations"))["evaluations"]
    assert (half["name"], half["finished"], half["planned"], half["state"]) == ("half", 10, 20, "interrupted")


async def test_a_matrix_tells_the_outcome_of_each_trial(client: TestClient, home: Path) -> None:
    write_evaluation(home, "big", tasks=40, epochs=5, finished=0.9, running=3)
    found = await get(client, "evaluations/big")
    shown = outcomes(found)
    totals = found["totals"]
    assert sum(shown.values()) == totals["planned"] == 200
    assert (shown["right"], shown["failed"], shown["unanswered"]) == (
        totals["correct"],
        totals["failed"],
        totals["unanswered"],
    )
    assert shown["unfinished"] == 20  # nobody works on the three that were begun
    assert "running" not in shown
    begun = [trial["run_id"] for row in found["matrix"] for trial in row["trials"]]
    assert begun.count(None) == 17


async def test_only_a_changed_evaluation_is_sent_again(client: TestClient, home: Path) -> None:
    path = write_evaluation(home, "live", tasks=3, epochs=1, finished=0)
    found = await get(client, "evaluations/live")
    same = await get(client, f"evaluations/live?version={found['version']}")
    assert same == {"state": "interrupted", "version": found["version"]}
    worker = TrialStore(path)
    worker.register("a worker")
    worker.exchange([], 1, 0.0, 0)
    changed = await get(client, f"evaluations/live?version={found['version']}")
    assert (changed["state"], outcomes(changed)) == ("running", {"running": 1, "unfinished": 2})
    worker.close()


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("evaluations/none", 400, "No evaluation none"),
        ("evaluations/..%2f..%2fetc", 400, "The name of an evaluation"),
        ("evaluations/one?scorer=nobody", 400, "'nobody' has not scored one"),
    ],
)
async def test_what_is_not_there_is_refused(client: TestClient, home: Path, path: str, status: int, said: str) -> None:
    write_evaluation(home, "one", tasks=1, epochs=1)
    response = await client.get(f"/viewer/api/{path}")
    assert response.status == status
    assert said in (await response.json())["error"]["message"]


async def test_trials_are_in_the_list_of_runs_only_if_they_are_searched_for(client: TestClient, home: Path) -> None:
    agent = Agent(ScriptedClient([answer("4")]), answer=Number(), home=home)
    run = await agent.run("Two and two?")
    await evaluate(
        Agent(ScriptedClient([answer("5")]), answer=Number(), home=home),
        [{"id": "t", "question": "Three and two?", "answer": ["5", "five"]}],
        scorer="exact",
        name="sums",
    )
    found = await get(client, "runs")
    assert ([each["run_id"] for each in found["runs"]], found["evaluations"]) == ([run.run_id], ["sums"])
    (trial,) = (await get(client, "runs?text=three"))["runs"]
    verdicts = await get(client, f"runs/{trial['run_id']}/trial")
    assert verdicts["expected"] == '["5","five"]'
    assert [(each["scorer"], each["correct"]) for each in verdicts["scores"]] == [("exact", True)]
    assert await get(client, f"runs/{run.run_id}/trial") is None
    exported = await (await client.get(f"/viewer/api/runs/{trial['run_id']}/export")).text()
    assert '"trial":{"evaluation":"sums"' in exported


# ------------------------------------------------------------------------------------------------ the pages


def evaluated(home: Path) -> None:
    """An evaluation of three tasks, two epochs: always right, always wrong, never answered."""

    def script(view: RequestView) -> Turn:
        return {"easy": answer("4"), "odd": answer("5")}.get(view.question, say("I cannot say."))

    tasks = [{"id": f"t{n}", "question": question, "answer": "4"} for n, question in enumerate(("easy", "odd", "hard"))]
    agent = Agent(ScriptedClient(script, name="openai:m"), answer=Number(), home=home)
    with ThreadPoolExecutor(1) as pool:
        run = evaluate(agent, tasks, scorer="exact", epochs=2, name="sums")
        pool.submit(asyncio.run, run).result()


def test_the_matrix_leads_to_a_trial_s_run_and_back(viewer: Viewer, home: Path) -> None:
    evaluated(home)
    page = viewer.open()
    page.click("nav >> text=Evaluations")
    page.click(".evaluation-row >> text=sums")
    page.wait_for_selector(".matrix-row >> nth=2")
    rows = [texts(page, f".matrix-row >> nth={n} >> .cell") for n in range(3)]
    assert rows[0] == [SIGNS["wrong"]] * 2
    assert rows[1][0] in (SIGNS["unanswered"], SIGNS["wrong"])
    assert rows[2] == [SIGNS["right"]] * 2  # what is right comes last
    figures = page.locator(".figures").inner_text()
    assert "of 6 trials" in figures
    assert "pass@2" in figures
    page.get_by_role("button", name="wrong").click()
    page.wait_for_selector("text=of 3 tasks")
    assert page.locator(".cell.right:not(.dimmed)").count() == 1  # the one of the filter's button
    assert page.url.endswith("?show=wrong")
    page.locator("a.cell.wrong").nth(1).click()
    page.wait_for_selector(".item.answer")
    assert texts(page, ".item.answer .final") == ["5"]
    page.wait_for_selector(".verdict-wrong")
    verdict = page.locator(".verdict").inner_text()
    assert all(part in verdict for part in ("Expected answer", "4", "wrong", "Scorer: exact", "'5' is not '4'."))
    check_looks(page)
    page.click("text=Evaluation sums")
    page.wait_for_selector(".matrix-row >> nth=2")


def test_a_trial_that_waits_leads_to_its_decision(viewer: Viewer, home: Path) -> None:
    @tool(approval="always")
    def pay(key: str) -> str:
        """Pay a bill."""
        return "paid"

    agent = Agent(ScriptedClient([call("pay", key="a")]), [pay], home=home)
    with ThreadPoolExecutor(1) as pool:
        run = evaluate(agent, [{"id": "t0", "question": "Pay.", "answer": "done"}], scorer="exact", name="bills")
        pool.submit(asyncio.run, run).result()
    page = viewer.open("#/evaluation/bills")
    page.wait_for_selector(".run-head >> .status-waiting")
    page.click("a.cell.waiting")
    page.get_by_role("button", name="Approve", exact=True).wait_for()


def test_a_matrix_changes_while_the_evaluation_is_at_work(viewer: Viewer, home: Path) -> None:
    store = TrialStore(write_evaluation(home, "live", tasks=2, epochs=2, finished=0))
    store.register("a worker")
    (claim,) = store.exchange([], 1, 0.0, 0)
    page = viewer.open("#/evaluation/live")
    page.wait_for_selector(".matrix-row >> .cell.running")
    page.evaluate("document.querySelectorAll('.matrix-row')[1].dataset.kept = 'yes'")
    page.keyboard.press("j")
    outcome = RunOutcome(answer="1800", status="answered", stop_reason="answered")
    store.exchange([Finished(claim, outcome, {"exact": Score(1.0, True)})], 0, 0.0, 0)
    page.wait_for_selector(".matrix-row >> .cell.right")
    assert page.locator(".matrix-row[data-kept]").count() == 1
    assert page.evaluate("document.activeElement.textContent") == SIGNS["right"]
    page.goto(viewer.address + "#/evaluations")
    page.wait_for_selector("text=1 / 4")
    store.close()


def test_of_ten_thousand_trials_each_can_be_reached_though_few_are_in_the_page(viewer: Viewer, home: Path) -> None:
    write_evaluation(home, "large", tasks=2000, epochs=5)
    page = viewer.open("#/evaluation/large")
    page.wait_for_selector(".foot >> text=2,000 tasks")
    assert page.locator(".matrix-row").count() < 200
    for key in ("j", "ArrowDown", "ArrowRight", "l", "ArrowLeft"):
        page.keyboard.press(key)
    assert "canal-00001 · trial 2" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("G")
    assert "canal-01997 · trial 2" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.fill("input[type=search]", "canal 77")
    page.wait_for_selector(".foot >> text=11 of 2,000 tasks")
    address = page.locator("a.cell").first.get_attribute("href")
    assert address == "#/run/large.77-canal-00077.e1"
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_selector(".evaluation-row")


def test_keys_are_heard_while_the_comparison_still_loads(viewer: Viewer, home: Path) -> None:
    for name in ("before", "now"):
        write_evaluation(home, name, tasks=3, epochs=2)
    page = viewer.open()
    page.wait_for_selector(".foot")
    with held_back(page, re.compile(r"/api/evaluations\??$")):
        page.goto(viewer.address + "#/evaluation/now")
        page.wait_for_selector(".foot >> text=3 tasks")
        page.keyboard.press("j")
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert "trial 1" in focused
    page.wait_for_selector(".compared select")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == focused


def test_every_evaluation_fits_its_window_and_can_be_read(viewer: Viewer, home: Path) -> None:
    hostile = "\n".join(HOSTILE).replace("\0", "").replace("\ud83d", "").replace("{", "").replace("}", "")
    write_evaluation(home, "hostile", tasks=3, epochs=40, questions=hostile + "w" * 500 + " {}")
    page, numbers = viewer.open(), count()
    inside = "document.querySelectorAll('main script, main img, main svg, [onerror], [onload]').length"
    for width, colours in ((320, "light"), (320, "dark"), (2000, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=colours)
        for path in ("#/evaluations", "#/evaluation/hostile", "#/evaluation/hostile?show=wrong"):
            page.goto(f"{viewer.address}?{next(numbers)}{path}")  # another address, so that the page before is gone
            page.wait_for_selector(".matrix-row, .evaluation-row")
            check_looks(page)
            assert page.evaluate(inside) == 0


def test_an_evaluation_that_is_not_there_is_an_error_that_says_so(viewer: Viewer, home: Path) -> None:
    page = viewer.open("#/evaluation/none")
    page.wait_for_selector("text=No evaluation none in")
    viewer.expect_status(400)
