"""Messages to a run from another process, over HTTP, from the viewer's page, and typed in `closeout chat`."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from cli_process import COMMAND, environment, here
from closeout import Agent, tool
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.server.viewer.decision_requests import TOKEN_HEADER
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say, serve_script
from serving import serving
from test_chat import Terminal
from viewer_pages import Viewer, check_looks, texts


def answers_when_told(view: RequestView) -> Turn:
    """A model that looks things up until somebody says alpha."""
    looked = view.text.count("known")
    return answer("alpha") if "alpha" in view.text else Turn(calls=[call("look", key=f"k{looked}")])


class Desk:
    """An agent whose look-ups wait until they may go on."""

    def __init__(self, home: Path) -> None:
        self.asked, self.may_go_on = threading.Event(), threading.Event()

        @tool(read_only=True)
        def look(key: str) -> str:
            """Look up a key."""
            self.asked.set()
            assert self.may_go_on.wait(60)
            return f"[{key}] known"

        self.agent = Agent(ScriptedClient(answers_when_told), [look], home=home)


def received(home: Path, run_id: str) -> list[tuple[str, str, bool]]:
    found = [row.event for row in open_store(home).rows(run_id)]
    return [(each.text, each.by, each.interrupts) for each in found if isinstance(each, ev.MessageReceived)]


async def test_another_process_sends_to_a_run(home: Path) -> None:
    desk = Desk(home)
    running = asyncio.create_task(desk.agent.run("Go", run_id="run-1"))
    await asyncio.to_thread(desk.asked.wait)
    sent = await asyncio.create_subprocess_exec(
        *COMMAND, "send", "run", "-", "--interrupt", "--json", env=environment({}),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await sent.communicate("say alpha, 你好".encode())
    assert sent.returncode == 0
    desk.may_go_on.set()
    result = await running
    assert result.answer == "alpha"
    assert received(home, "run-1") == [("say alpha, 你好", "terminal", True)]
    found = json.loads(out)
    assert (found["run_id"], found["to"], found["status"]) == ("run-1", "main", "running")
    late = here("runs", "send", "run-1", "more")
    assert late.code == 2
    assert "Run run-1 has ended (answered)" in late.sentence
    assert "closeout runs fork run-1" in late.sentence
    nobody = here("runs", "send", "nothing", "more")
    assert nobody.code != 0
    assert "No run nothing" in nobody.sentence


async def test_a_waiting_run_is_told_on_the_command_line(home: Path) -> None:
    await Desk(home).agent.submit("Go", run_id="run-1")
    done = here("runs", "send", "run-1", "say alpha")
    assert (done.code, done.out) == (0, "")
    assert "The run is interrupted: it reads the message when it continues." in done.err


async def test_a_served_run_takes_messages_of_those_with_a_key(home: Path) -> None:
    desk = Desk(home)
    async with serving(desk.agent, keys=["k" * 20]) as served:
        own = {"Authorization": f"Bearer {'k' * 20}"}
        run_id = (await (await served.http.post(f"{served.base_url}/runs", json={"task": "Go"}, headers=own)).json())[
            "run_id"
        ]
        await asyncio.to_thread(desk.asked.wait)
        address = f"{served.base_url}/runs/{run_id}/messages"

        async def post(body: Any, headers: Any = own) -> tuple[int, Any]:
            async with served.http.post(address, json=body, headers=headers) as response:
                return response.status, await response.json()

        assert (await post({"text": "say alpha"}, {}))[0] == 401
        for wrong in ({}, {"text": 5}, {"text": "x", "interrupt": "yes"}, {"text": "x", "who": "me"}):
            assert (await post(wrong))[0] == 400
        status, found = await post({"text": ""})
        assert (status, found["error"]["code"]) == (409, "message_refused")
        status, found = await post({"text": "say alpha", "user": "ann"})
        assert (status, found["run_id"], found["to"]) == (202, run_id, "main")
        desk.may_go_on.set()
        await served.host.wait(run_id)
        status, found = await post({"text": "more"})
        assert (status, found["error"]["code"]) == (409, "message_refused")
        assert "has ended" in found["error"]["message"]
    assert received(home, run_id) == [("say alpha", "ann", False)]


async def test_only_the_viewers_own_page_sends(client: TestClient, home: Path) -> None:
    await Desk(home).agent.submit("Go", run_id="run-1")
    page = await (await client.get("/viewer/")).text()
    token = page.partition('name="closeout-token" content="')[2].partition('"')[0]

    async def post(body: Any, **headers: str) -> int:
        sent = {TOKEN_HEADER: token, "Content-Type": "application/json", **headers}
        response = await client.post("/viewer/api/runs/run-1/messages", data=json.dumps(body), headers=sent)
        return response.status

    assert await post({"text": "x"}, **{TOKEN_HEADER: "wrong"}) == 403
    assert await post({"text": "x"}, Origin="https://evil.example") == 403
    assert await post({"text": "x"}, **{"Content-Type": "text/plain"}) == 415
    assert await post({"text": 5}) == 400
    assert await post({"text": " "}) == 409
    assert open_store(home).messages(open_store(home).number_of("run-1")) == []
    assert await post({"text": "say alpha"}) == 200


def test_the_page_of_a_run_has_a_box_for_messages(viewer: Viewer, home: Path) -> None:
    desk = Desk(home)
    thread = threading.Thread(target=lambda: desk.agent.run_sync("Go", run_id="run-1"))
    thread.start()
    assert desk.asked.wait(60)
    page = viewer.open("#/run/run-1")
    page.get_by_role("textbox", name="Message to the agent").fill("say alpha <b>now</b>")
    page.get_by_label("Interrupt the reply").check()
    page.get_by_role("button", name="Send").click()
    page.wait_for_selector("text=Sent. The agent reads it before its next request.")
    check_looks(page)
    desk.may_go_on.set()
    page.wait_for_selector(".item.message")
    assert texts(page, ".item.message .says") == ["say alpha <b>now</b>"]
    page.wait_for_selector(".message-box", state="hidden")
    thread.join()
    assert received(home, "run-1") == [("say alpha <b>now</b>", "viewer", True)]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_what_is_typed_during_a_reply_reaches_the_agent(home: Path) -> None:
    def talk(view: RequestView) -> Any:
        said = [message["content"] for message in view.messages if message.get("role") == "user"]
        return say(f"{' / '.join(said)}. {'I go on. ' * 20 * (len(said) == 1)}Done.")

    with (
        serve_script(talk, by=lambda view: "", pieces=(9,), pause=0.1, record=False) as server,
        Terminal("chat", "-m", "openai:scripted", "--base-url", server.base_url) as screen,
    ):
        screen.wait_for("> ")
        screen.send("Hello\n")
        screen.wait_for("I go on")
        screen.send("/now Wayte\x7f\x7f\x7fit \x1b[Anow\n")
        screen.wait_for("» Wait now")
        screen.wait_for("Hello / Wait now. Done.")
        screen.wait_for("> ", after="Hello / Wait now. Done.")
        screen.send("\x04")
        screen.finish()
    (run,) = open_store(home).runs()
    assert received(home, run.run_id) == [("Wait now", "terminal", True)]
