"""The sources of a run in the viewer: each page as it was read, at the passage that the answer quotes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from aiohttp.test_utils import TestClient

from closeout import Agent, Check, Report, cited, delete_data, tool
from closeout.journal.readonly import open_to_read
from closeout.journal.store import open_store
from closeout.messages import ModelReply
from closeout.server.viewer.page_export import export_run
from closeout.testing import ScriptedClient, call
from viewer_pages import Viewer, check_looks, run_apart, texts
from viewer_server import get

PAGE = (
    "<h1>Canal</h1><script>alert('page')</script><img src=x onerror=alert(1)> 😀 \n"
    + "A line of the page.\n" * 200
    + "The <b>canal</b> was opened\n  on 30&nbsp;May 1832 by &lsquo;Colonel By&rsquo;.\n"
    + "The end </pre></script><script>alert(2)</script>"
)


@tool(read_only=True)
def fetch(url: str) -> str:
    """Fetch a page."""
    return PAGE


@tool(read_only=True)
def search(query: str) -> dict[str, object]:
    """Search the web."""
    return {"hits": [{"url": f"https://example.org/{n}", "text": f"Lock {n} has {n} gates."} for n in range(3)]}


def cited_run(home: Path) -> str:
    quotes = [
        ("r1", "canal was opened on 30 May 1832 by 'Colonel By'"),
        ("r2", "Lock 2 has 2 gates."),
        ("r1", "It was opened in 1833."),
    ]
    claims = [{"text": "It opened.", "quotes": [{"handle": handle, "text": text}]} for handle, text in quotes]
    report = ModelReply(
        json.dumps({"title": "Canal", "claims": claims}),
        attached={
            "citations": [{"text": "It opened.", "url": "https://example.com/found", "title": "Found <b>it</b>"}]
        },
    )
    script = [call("fetch", url="https://example.org/canal"), call("search", query="gates"), call("search", query="x")]
    accepts = Check(cited(), times=0)
    agent = Agent(ScriptedClient([*script, report]), [fetch, search], answer=Report, check=accepts, home=home)
    return run_apart(agent, "When did it open?")


async def test_a_page_is_sent_as_it_was_read_with_the_quoted_passages_marked(client: TestClient, home: Path) -> None:
    run_id = cited_run(home)
    found = await get(client, f"runs/{run_id}/sources")
    first, second, wrong, provider = found["citations"]
    assert (first["source"]["handle"], first["address"]) == ("r1", "https://example.org/canal")
    assert (second["source"]["handle"], second["address"]) == ("r2", "https://example.org/2")
    assert "word for word" in wrong["problem"]
    assert (provider["by_provider"], provider["address"]) == (True, "https://example.com/found")
    assert [(each["handle"], each["cited"]) for each in found["sources"]] == [("r1", True), ("r2", True), ("r3", False)]

    page = await get(client, f"runs/{run_id}/sources?handle=r1")
    (text,) = page["texts"]
    assert "".join(piece["text"] for piece in text["pieces"]) == PAGE
    (marked,) = [piece for piece in text["pieces"] if piece["cited"]]
    assert (marked["cited"], marked["text"]) == (
        [0],
        "canal</b> was opened\n  on 30&nbsp;May 1832 by &lsquo;Colonel By",
    )
    response = await client.get(f"/viewer/api/runs/{run_id}/sources?handle=r9")
    assert response.status == 400


async def test_a_page_of_a_deleted_person_is_said_to_be_deleted(client: TestClient, home: Path) -> None:
    agent = Agent(ScriptedClient([call("fetch", url="x"), "[r1: “30 May 1832”]"]), [fetch], home=home)
    run_id = (await agent.run("When?", user="ann")).run_id
    await get(client, f"runs/{run_id}/sources")
    await asyncio.to_thread(delete_data, "ann", home=home)
    refused = await client.get(f"/viewer/api/runs/{run_id}/sources")
    assert (refused.status, "was deleted on" in await refused.text()) == (404, True)
    assert run_id not in str(open_store(home).query("SELECT * FROM notes"))


def test_the_viewer_opens_each_source_at_its_passage(viewer: Viewer, home: Path) -> None:
    run_id = cited_run(home)
    for options in ({"viewport": {"width": 1280, "height": 800}}, {"viewport": {"width": 390, "height": 800}}):
        page = viewer.open(f"#/run/{run_id}", **options)
        page.click("a.button >> text=Sources")
        mark = page.locator("mark.current")
        mark.wait_for()
        assert mark.inner_text().startswith("canal</b> was opened")
        box = mark.bounding_box()
        assert 0 <= box["y"] <= 800 - box["height"]
        assert page.locator("main script, main img").count() == 0
        assert texts(page, ".source .outside") == ["Open example.org ↗"]
        check_looks(page)
    page.click(".citation >> nth=1")
    page.wait_for_selector("h3:text('hits[2].text')")
    assert texts(page, "mark.current") == ["Lock 2 has 2 gates"]
    page.keyboard.press("j")
    page.wait_for_selector(".source .error:has-text('word for word')")
    page.keyboard.press("j")
    page.wait_for_selector("h2:text('Found <b>it</b>')")
    page.click("a.citation >> text=r3")
    page.wait_for_selector("h2:text('r3')")


def test_an_exported_run_has_its_sources(viewer: Viewer, home: Path, tmp_path: Path) -> None:
    run_id = cited_run(home)
    with open_to_read(home) as store:
        written = export_run(store, run_id)
    assert "<script>alert" not in written
    file = tmp_path / "run.html"
    file.write_text(written, "utf-8")
    page = viewer.open(f"#/run/{run_id}/sources?c=2", address=file.as_uri())
    page.wait_for_selector("mark.current")
    assert texts(page, "mark.current") == ["Lock 2 has 2 gates"]
    page.click("a.citation >> text=r3")
    page.wait_for_selector("text=This file has the cited sources only.")
