"""Files of runs in the viewer and from `closeout serve`: listed, saved, and never a page of the server's origin."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient

from closeout import Agent, File, tool
from closeout.testing import ScriptedClient, Turn, answer, call
from serving import serving
from test_run_files import CREW
from viewer_pages import wait_until

PAGE = "<script>alert(1)</script>"
PICTURE = (  # one red pixel
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)


@tool
def draw() -> list[File]:
    """Draw."""
    page = File('报告 "1".html'.replace('"', "'"), PAGE, media_type="text/html")
    return [File("chart.png", bytes.fromhex(PICTURE)), page, File("out/a.svg", "<svg/>")]


def artist(home: Path | None = None) -> Agent:
    return Agent(ScriptedClient([Turn("", calls=[call("draw")]), answer("drawn")]), [draw], home=home, name="artist")


async def check_downloads(get: Any, path: str) -> None:
    """Check what a server answers for the files of a run below a path."""
    listed = await get(path)
    names = [file["name"] for file in (await listed.json())["files"]]
    assert names[:3] == ["chart.png", "报告 '1'.html", "out/a.svg"]
    for name, media, data in (
        ("chart.png", "image/png", bytes.fromhex(PICTURE)),
        ("报告 '1'.html", "application/octet-stream", PAGE.encode()),
        ("out/a.svg", "application/octet-stream", b"<svg/>"),
    ):
        found = await get(f"{path}/{name}")
        assert (found.status, found.content_type, await found.read()) == (200, media, data)
        assert found.headers["X-Content-Type-Options"] == "nosniff"
        assert found.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
        assert found.headers["Content-Disposition"].startswith("attachment; filename=")
    assert "filename*=UTF-8''%E6%8A%A5" in (await get(f"{path}/报告 '1'.html")).headers["Content-Disposition"]
    assert (await get(f"{path}/../../../etc/passwd")).status in (400, 404)
    assert (await get(f"{path}/..%2F..%2Fjournal.sqlite3")).status == 404
    assert (await get(f"{path}/no.txt")).status == 404


async def test_the_viewer_lists_files_and_lets_them_be_saved(client: TestClient, home: Path, tmp_path: Path) -> None:
    (tmp_path / "crew.csv").write_text(CREW)
    result = await artist(home).run("Draw.", files=[tmp_path / "crew.csv"])
    path = f"/viewer/api/runs/{result.run_id}/files"
    await check_downloads(client.get, path)
    crew = (await (await client.get(path)).json())["files"][3]
    assert (crew["name"], crew["left"], crew["size"]) == ("crew.csv", False, len(CREW))
    exported = await (await client.get(f"/viewer/api/runs/{result.run_id}/export")).text()
    assert "chart.png" in exported
    assert PAGE not in exported


async def test_a_served_agent_gives_files_to_those_who_have_its_key() -> None:
    async with serving(artist(), keys=["key"]) as served:
        headers = {"Authorization": "Bearer key"}

        async def get(path: str) -> Any:
            return await served.http.get(served.url + path, headers=headers)

        posted = await served.http.post(f"{served.url}/v1/runs", json={"task": "Draw."}, headers=headers)
        run_id = (await posted.json())["run_id"]
        await get(f"/v1/runs/{run_id}?wait=30")
        await check_downloads(get, f"/v1/runs/{run_id}/files")
        refused = await served.http.get(f"{served.url}/v1/runs/{run_id}/files/chart.png")
        assert refused.status == 401


def test_the_page_of_a_run_shows_its_files_and_saves_them(viewer: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "crew.csv").write_text(CREW)
    with ThreadPoolExecutor(1) as beside:  # this thread has the event loop of Playwright
        run = beside.submit(artist(home).run_sync, "Draw the crew.", files=[tmp_path / "crew.csv"])
        run_id = run.result().run_id
    page = viewer.open(f"#/run/{run_id}")
    page.wait_for_selector(".files img")
    wait_until(page, "document.querySelector('.files img').naturalWidth === 1")
    assert page.locator(".files h2").all_inner_texts() == ["Files", "Files of the task"]
    with page.expect_download() as saved:
        page.click(".files a >> nth=1")
    assert saved.value.suggested_filename == "报告 '1'.html"
    assert Path(saved.value.path()).read_text() == PAGE
    assert viewer.problems == []
