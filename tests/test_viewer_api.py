"""What the viewer's pages receive from the server, and how `closeout view` starts."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from cli_process import here, start
from closeout.journal import events as ev
from closeout.journal.run_journal import Journal
from closeout.journal.store import open_store
from closeout.server.app import create_app
from closeout.server.viewer.page_export import export_run, joined_modules
from closeout.server.viewer.routes import add_viewer
from closeout.server.viewer.shapes import LONGEST_TEXT
from many_runs import short_run, write_runs
from viewer_server import get


async def test_the_pages_are_served_with_a_policy_that_runs_only_their_own_scripts(client: TestClient) -> None:
    assert str((await client.get("/")).url).endswith("/viewer/")
    for name in ("", "main.js", "style.css", "icon.svg"):
        response = await client.get(f"/viewer/{name}")
        assert response.status == 200
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy


@pytest.mark.parametrize("name", ["..%2fshapes.py", "%2e%2e/shapes.py", "shapes.py", "nothing.js", "__init__.py"])
async def test_only_the_pages_files_are_served(client: TestClient, name: str) -> None:
    assert (await client.get(f"/viewer/{name}")).status == 404


async def test_runs_come_in_pages_with_their_totals(client: TestClient, home: Path) -> None:
    write_runs(home, ((f"run{n}", short_run(n)) for n in range(5)))
    first = await get(client, "runs?limit=3")
    assert [run["run_id"] for run in first["runs"]] == ["run4", "run3", "run2"]
    assert first["more"] is True
    assert first["runs"][0]["totals"]["turns"] == 5
    assert first["runs"][0]["totals"]["usage"]["cache_read_tokens"] == 3500
    rest = await get(client, "runs?limit=3&before=run2")
    assert ([run["run_id"] for run in rest["runs"]], rest["more"]) == (["run1", "run0"], False)


async def test_runs_are_filtered_and_searched(client: TestClient, home: Path) -> None:
    write_runs(home, ((f"run{n}", short_run(n)) for n in range(5)))
    for query, expected in {
        "status=answered&model=OPENAI": 5,
        "status=failed": 0,
        "model=other": 0,
        "text=task+3": 1,
        "text=task&status=failed": 0,
        "since=1760000130": 2,
    }.items():
        assert len((await get(client, f"runs?{query}"))["runs"]) == expected, query
    (run,) = (await get(client, "runs?text=task+3"))["runs"]
    assert (run["hit"]["seq"], run["hit"]["kind"]) == (0, "task")


async def test_the_list_says_why_a_run_has_no_answer(client: TestClient, home: Path) -> None:
    ends = {
        "failed": ev.RunEnded("main", "failed", "error", error="HTTP 401: no such key", error_kind="ModelError"),
        "unanswered": ev.RunEnded("main", "unanswered", "max_turns"),
        "answered": ev.RunEnded("main", "answered", "answered", answer="4"),
    }
    write_runs(home, ((name, [ev.RunStarted("main", "Add."), end]) for name, end in ends.items()))
    runs = (await get(client, "runs"))["runs"]
    assert {run["run_id"]: run["reason"] for run in runs} == {
        "failed": "HTTP 401: no such key",
        "unanswered": "max_turns",
        "answered": "",
    }


async def test_an_empty_home_has_no_runs_and_a_run_made_later_is_listed(client: TestClient, home: Path) -> None:
    assert (await get(client, "runs"))["runs"] == []
    write_runs(home, [("one", short_run(1))])
    assert [run["run_id"] for run in (await get(client, "runs"))["runs"]] == ["one"]


async def test_long_texts_are_cut_in_lists_and_whole_in_single_events(client: TestClient, home: Path) -> None:
    long = "x" * (LONGEST_TEXT + 1)
    call = {"id": "1", "name": "f", "arguments": {"text": long}, "server_name": None, "text": ""}
    events = [ev.RunStarted("main", long), ev.TurnAccepted("main", 0, 0, calls=(call,))]
    write_runs(home, [("one", events)])
    cut = {"$cut": long[:-1], "length": LONGEST_TEXT + 1}
    found = (await get(client, "runs/one/events"))["events"]
    assert found[0]["task"] == cut
    assert found[1]["calls"][0]["arguments"] == {"text": cut}
    assert (await get(client, "runs/one/events/0"))["task"] == long


async def test_events_are_read_from_a_number_on(client: TestClient, home: Path) -> None:
    write_runs(home, [("one", short_run(1))])
    found = await get(client, "runs/one/events?start=3&limit=4")
    assert [event["seq"] for event in found["events"]] == [3, 4, 5, 6]
    assert found["run"]["status"] == "answered"


async def test_a_story_is_the_items_that_changed_from_a_number_on(client: TestClient, home: Path) -> None:
    write_runs(home, [("one", short_run(1))])
    whole = await get(client, "runs/one/story")
    assert [item["kind"] or item["event"]["type"] for item in whole["items"]] == [
        "RunStarted",
        *["turn"] * 5,
        "RunEnded",
    ]
    assert (whole["count"], whole["run"]["status"]) == (len(short_run(1)), "answered")
    first, rest = await get(client, "runs/one/story?limit=4"), await get(client, "runs/one/story?start=4")
    assert [item["seq"] for item in first["items"]] == [0, 2]
    items = {item["seq"]: item for item in first["items"]} | {item["seq"]: item for item in rest["items"]}
    assert list(items.values()) == whole["items"]


async def test_the_items_of_a_sub_agent_follow_the_turn_whose_call_started_it(client: TestClient, home: Path) -> None:
    call = {"id": "c", "name": "clerk", "arguments": "{}", "server_name": None}
    paths = ["main/r1:clerk", "main/r2:clerk"]
    events = [
        ev.RunStarted("main", "Find it"),
        ev.ModelRequested("main", 0),
        ev.ModelReplied("main", 0, tool_calls=(call, call)),
        *(ev.ToolStarted("main", f"r{n + 1}", "clerk", arguments="{}", index=n) for n in range(2)),
        *(ev.AgentStarted(path, "clerk", "task") for path in reversed(paths)),
        *(ev.ModelRequested(path, 0) for path in paths),
        ev.ModelRequested("main", 1, turn=1),
        ev.RunEnded("main", "cancelled", "cancelled"),
        ev.AgentEnded("main/r1:clerk", "cancelled"),
    ]
    write_runs(home, [("one", events)])
    items = (await get(client, "runs/one/story"))["items"]
    ordered = sorted(items, key=lambda item: item["place"])
    below = [["main/r1:clerk"] * 3, ["main/r2:clerk"] * 2]
    assert [item["agent"] for item in ordered] == ["main", "main", *below[0], *below[1], "main", "main"]
    assert ordered[-1]["event"]["type"] == "RunEnded"


async def test_the_requests_of_a_run_come_in_pages(client: TestClient, home: Path) -> None:
    write_runs(home, [("one", short_run(1, turns=6))])
    calls, start = [], 0
    while start is not None:
        found = await get(client, f"runs/one/requests?start={start}&limit=3")
        calls += [request["call"] for request in found["requests"]]
        start = found["next"]
    assert calls == list(range(7))


@pytest.mark.parametrize(
    "path",
    ["runs/none", "runs/none/events", "runs/none/story", "runs/none/follow", "runs/none/requests", "runs/none/export"],
)
async def test_an_unknown_run_is_not_found(client: TestClient, home: Path, path: str) -> None:
    write_runs(home, [("one", short_run(1))])
    response = await client.get(f"/viewer/api/{path}")
    assert response.status == 404
    assert "No run none" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    "query", ["start=-1", "start=x", "limit=1e3", "start=99999999999999999999", "start=%F0%9D%9F%8F"]
)
async def test_a_number_that_is_none_is_refused(client: TestClient, home: Path, query: str) -> None:
    write_runs(home, [("one", short_run(1))])
    response = await client.get(f"/viewer/api/runs/one/events?{query}")
    assert response.status == 400
    assert "must be a number" in (await response.json())["error"]["message"]


async def test_a_run_is_followed_to_its_end_and_from_the_last_event_seen(client: TestClient, home: Path) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "A task"), "m", run_id="live")
    response = await client.get("/viewer/api/runs/live/follow")
    assert response.headers["Content-Type"] == "text/event-stream"
    assert (await response.content.readline()) == b"id: 0\n"
    journal.append(ev.ModelReplied("main", 0, "hello"))
    await journal.end(ev.RunEnded("main", "answered", "answered", answer="42"))
    text = (await response.content.read()).decode()
    assert re.findall(r"^id: (\d+)$", text, re.MULTILINE) == ["1", "2"]
    end = json.loads(text.rpartition("event: end\ndata: ")[2])
    assert (end["status"], end["answer"]) == ("answered", "42")
    again = await client.get("/viewer/api/runs/live/follow", headers={"Last-Event-ID": "1"})
    assert (await again.content.readline()) == b"id: 2\n"


async def test_the_server_stops_while_a_page_follows_a_run(home: Path) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "A task"), "m", run_id="live")
    app = create_app(home)
    add_viewer(app)
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/viewer/api/runs/live/follow")
        await response.content.readline()
        async with asyncio.timeout(60):
            await client.server.close()
    journal.abandon()


def test_an_export_cannot_be_left_by_a_text_in_it(home: Path) -> None:
    write_runs(home, [("one", [ev.RunStarted("main", "</script><script>alert(1)</script><!--")])])
    page = export_run(open_store(home), "one")
    assert page.count("</script>") == 2
    assert "alert(1)</" not in page
    (data,) = re.findall(r'<script type="application/json" id="run-data">(.*?)</script>', page, re.DOTALL)
    (task,) = json.loads(data)["story"]["items"]
    assert task["event"]["task"] == "</script><script>alert(1)</script><!--"


def test_the_modules_of_an_export_are_one() -> None:
    joined = joined_modules("main")
    assert not re.search(r"^(import|export) ", joined, re.MULTILINE)


def test_a_run_is_exported_from_the_command_line(home: Path, tmp_path: Path) -> None:
    write_runs(home, [("one", short_run(1))])
    file = tmp_path / "one.html"
    done = here("view", "one", "--html", str(file))
    assert (done.code, done.out) == (0, "")
    assert re.fullmatch(r"Wrote .*one\.html \([\d,]+ bytes\)\.\n", done.err)
    assert here("view", "one", "--html", "-").out == file.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("view", "none"), 2, "No run none"),
        (("view", "--html", "x.html"), 2, "Name it: closeout view RUN_ID"),
        (("view", "none", "--html", "x.html"), 2, "No run none"),
        (("view", "one", "--html", "/no/such/folder/x.html"), 2, "Cannot write"),
        (("view", "--port", "99999"), 2, "65535"),
    ],
)
def test_wrong_use_is_explained(home: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    write_runs(home, [("one", short_run(1))])
    done = here(*arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_viewer_says_its_address_and_stops_on_a_signal(home: Path, number: signal.Signals) -> None:
    write_runs(home, [("one", short_run(1))])
    process = start("view", "one", "--no-browser")
    try:
        assert process.stderr is not None
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/viewer/#/run/one\n", process.stderr.readline())
        process.send_signal(number)
        _, err = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in err
