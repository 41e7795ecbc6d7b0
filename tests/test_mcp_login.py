"""The login to an MCP server over HTTP: a real authorization server, a browser that only follows, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener, urlopen

import pytest
from aiohttp import CookieJar
from aiohttp.test_utils import TestClient, TestServer

from cli_process import Done, closeout, here, start
from closeout import Agent
from closeout.errors import ConfigError
from closeout.run.lifecycle import replay_run
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.manager import ToolManager
from closeout.tools.mcp.mcp_callback import callback_on
from closeout.tools.mcp.mcp_config import read_servers
from journal_file import as_if_killed, store_events, stored_events
from viewer_pages import texts, watched_viewer
from viewer_server import viewer_app

SERVER = Path(__file__).parent / "mcp_servers" / "guarded.py"
SECRET = "known-secret-value"


@dataclass
class Guarded:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def log(self, at: str, more_than: int = -1) -> list[dict[str, Any]]:
        while len(found := [each for each in self._got("log") if each["at"] == at]) <= more_than:
            time.sleep(0.02)
        return found

    def set(self, **values: Any) -> None:
        self._got("set?" + "&".join(f"{name}={each}" for name, each in values.items()))

    def _got(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}/{path}") as response:
            return json.load(response)


@pytest.fixture(scope="module")
def process() -> Iterator[Guarded]:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield Guarded(int(server.stdout.readline()))
        server.kill()


@pytest.fixture
def guarded(process: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    monkeypatch.setenv("CLOSEOUT_HOME", str(tmp_path / "home"))
    process.set(seconds=3600, says=1, refuse="", slow=0, fails="", calls="")
    return process


class Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def follow(page: str) -> str:
    """The address that a browser is sent to."""
    with pytest.raises(HTTPError) as sent:
        build_opener(Stay).open(page)
    sent.value.close()
    return str(sent.value.headers["Location"])


async def sign_in(page: str) -> str:
    return await asyncio.to_thread(follow, page)


def by_hand(guarded: Guarded, **more: Any) -> dict[str, Any]:
    return {"name": "files", "url": guarded.url, "auth": {"sign_in": sign_in, **more}}


async def sign_in_once(guarded: Guarded, *scopes: str) -> None:
    """Keep a login."""
    async with ToolManager(mcp_servers=[by_hand(guarded, scopes=scopes)]) as manager:
        assert not manager.problems


def type_in(guarded: Guarded) -> Done:
    """`closeout mcp login`, with the address typed by the person."""
    command = start("mcp", "login", guarded.url, "--port", "0", "--no-browser", stdin=subprocess.PIPE)
    assert command.stderr is not None
    assert command.stdin is not None
    command.stderr.readline()
    left = follow(command.stderr.readline().strip())
    command.stdin.write(left + "\n")
    command.stdin.flush()
    code = command.wait(100)
    out, err = command.communicate()
    return Done(code, out, err)


def login_files() -> list[Path]:
    return list(Path(os.environ["CLOSEOUT_HOME"]).rglob("mcp_logins/*"))


def recorded_bytes() -> bytes:
    return b"".join(file.read_bytes() for file in Path(os.environ["CLOSEOUT_HOME"]).glob("journal*"))


async def tool_result(server: Any, name: str) -> dict[str, Any]:
    async with ToolManager(mcp_servers=[server]) as manager:
        assert not manager.problems
        return await manager.execute_tool_call("", name, {"name": "a"})


# ------------------------------------------------------------------------------------------------ the command


async def test_login_in_the_browser_is_kept_for_its_owner_only_and_refreshed_by_other_processes(
    guarded: Guarded,
) -> None:
    follower = f"{sys.executable} -c 'import sys,urllib.request as r;r.urlopen(sys.argv[1])' %s"
    done = await asyncio.to_thread(
        closeout, "mcp", "login", guarded.url, "--port", "0", "--json", env={"BROWSER": follower}
    )
    assert done.json == {"server": f"127.0.0.1-{guarded.port}", "signed_in": True, "tools": ["read", "write", "append"]}
    (file,) = login_files()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    asked = guarded.log("authorize")[-1]
    assert asked["code_challenge_method"] == "S256"
    assert asked["resource"] == guarded.url
    assert (await tool_result(guarded.url, "read"))["result"] == "text of a"

    guarded.set(revoke=1)  # before its end: only the refresh token is left, and it is valid once
    assert (await tool_result(guarded.url, "read"))["result"] == "text of a"
    tokens = json.loads(file.read_text())["tokens"]
    assert (await tool_result(guarded.url, "read"))["result"] == "text of a"
    assert json.loads(file.read_text())["tokens"] == tokens
    assert guarded.log("token")[-1]["grant_type"] == "refresh_token"
    assert len(login_files()) == 1

    assert here("mcp", "list").out.split() == [f"127.0.0.1-{guarded.port}", "http", guarded.url, "signed", "in"]
    assert (
        await asyncio.to_thread(here, "mcp", "tools", guarded.url)
    ).out == "read  Read a file.\nwrite  Write a file.\nappend  Append to a file.\n"
    tokens = json.loads(file.read_text())["tokens"]
    out = await asyncio.to_thread(here, "mcp", "logout", guarded.url)
    assert (out.code, out.err) == (0, f"Signed out of 127.0.0.1-{guarded.port}.\n")
    assert login_files() == []
    revoked = [each["token"] for each in guarded.log("revoke")]
    assert revoked[-2:] == [tokens["refresh_token"], tokens["access_token"]]
    assert here("mcp", "logout", guarded.url).code == 3


async def test_the_address_can_be_typed_and_a_refusal_keeps_the_old_login(guarded: Guarded) -> None:
    await sign_in_once(guarded)
    before = login_files()[0].read_text()
    guarded.set(refuse=1)
    refused = await asyncio.to_thread(type_in, guarded)
    assert refused.code == 2
    assert "was refused: The person said no." in refused.err
    assert login_files()[0].read_text() == before


async def test_a_code_alone_can_be_typed_and_only_this_login_may_come_back() -> None:
    shown: list[str] = []
    read, write = os.pipe()
    with os.fdopen(read) as typed, os.fdopen(write, "w", buffering=1) as person:
        async with callback_on(0, shown.append, typed) as (callback, port):
            page = "https://a.org/authorize?state=s1"
            left = asyncio.create_task(callback.sign_in(page))
            await asyncio.sleep(0)
            with pytest.raises(HTTPError) as refused:  # another page of this computer
                await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/callback?code=c&state=other")
            refused.value.close()
            person.write("code-7\n")
            assert await left == "?code=code-7&state=s1"
            left = asyncio.create_task(callback.sign_in(page))
            await asyncio.sleep(0)
            (await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/callback?code=c8&state=s1")).close()
            assert await left == "/callback?code=c8&state=s1"
    assert shown == [page, page]


async def test_a_login_that_is_killed_leaves_the_old_one(guarded: Guarded) -> None:
    await sign_in_once(guarded)
    before = login_files()[0].read_text()
    guarded.set(slow=600)  # the token is on its way when the process dies
    known = len(guarded.log("token"))
    command = start("mcp", "login", guarded.url, "--port", "0", "--no-browser", stdin=subprocess.PIPE)
    assert command.stderr is not None
    assert command.stdin is not None
    command.stderr.readline()
    command.stdin.write(follow(command.stderr.readline().strip()) + "\n")
    command.stdin.flush()
    assert len(guarded.log("token", more_than=known)) == known + 1
    command.send_signal(signal.SIGKILL)
    command.communicate()
    assert [file.read_text() for file in login_files()] == [before]


def test_login_says_what_it_cannot_do(guarded: Guarded, tmp_path: Path) -> None:
    settings = tmp_path / "agent.yaml"
    servers = {"files": {"url": guarded.url, "headers": {"Authorization": "Bearer k"}}, "local": "python x.py"}
    settings.write_text(json.dumps({"tools": {"mcp_servers": servers}}))
    assert "needs no login" in here("mcp", "login", "local", "-C", str(settings)).sentence
    assert "has a key in its headers" in here("mcp", "login", "files", "-C", str(settings)).sentence
    assert "There are: files, local." in here("mcp", "login", "file", "-C", str(settings)).sentence
    rows = here("mcp", "list", "-C", str(settings), "--json").out
    assert [(row["name"], row["login"]) for row in json.loads(rows)] == [("files", "key"), ("local", "")]


# ------------------------------------------------------------------------------------------------ runs


async def test_a_run_without_a_login_names_the_command_and_can_be_resumed_after_it(guarded: Guarded) -> None:
    script = [call("read", name="a"), answer("text of a")]
    agent = Agent(ScriptedClient(script), mcp_servers=[guarded.url])
    run = await agent.run("What is in a?")
    assert run.status == "waiting"
    (pending,) = run.waiting
    assert (pending.id, pending.kind, pending.by_person) == ("login1", "login", False)
    assert pending.arguments == {"server": f"127.0.0.1-{guarded.port}", "url": guarded.url}
    assert pending.reason.endswith(f" wants a login. Sign in with: closeout mcp login {guarded.url}")
    assert (await agent.resume(run.run_id)).waiting == run.waiting
    assert await agent.resume_due() == []
    listed = await asyncio.to_thread(here, "approve")
    assert f"login1 waits for a login to the MCP server '127.0.0.1-{guarded.port}'\n  closeout mcp login " in listed.out
    refused = await asyncio.to_thread(here, "approve", run.run_id)
    assert f"which nobody decides. {pending.reason}" in refused.sentence
    await sign_in_once(guarded)
    (resumed,) = await agent.resume_due()
    assert resumed.answer == "text of a"
    assert await replayed(agent, run.run_id) == ("text of a", "")
    kept = json.loads(login_files()[0].read_text())["tokens"]
    assert kept["access_token"].encode() not in recorded_bytes()


async def replayed(agent: Agent[Any], run_id: str) -> tuple[str | None, str]:
    """The answer of a replay, and where it departs from the record."""
    store = agent.store()
    assert store is not None
    result, departure = await replay_run(agent.plan(), run_id, list(store.rows(run_id)))
    return result.answer, departure


async def test_a_call_whose_login_has_gone_is_made_once_after_a_kill_at_any_event(
    guarded: Guarded, tmp_path: Path
) -> None:
    def script(view: RequestView) -> Turn:
        return [call("read", name="a"), call("append", name="b"), answer("done")][len(view.messages) // 2]

    def agent(home: Path) -> Agent[Any]:
        return Agent(ScriptedClient(script), mcp_servers=[guarded.url], home=home)

    def killed(cut: int) -> Agent[Any]:
        home = tmp_path / f"{cut}"
        shutil.copytree(tmp_path / "whole", home)
        store_events(home, {place: event for place, event in events.items() if place <= cut})
        as_if_killed(home)
        return agent(home)

    def sent() -> list[str]:
        return [each["name"] for each in guarded.log("call")]

    await sign_in_once(guarded)
    guarded.set(calls=1)  # the login goes after the first call
    run = await agent(tmp_path / "whole").run("Go", run_id="r")
    assert [each.id for each in run.waiting] == ["r2.login1"]
    assert "does not accept its login any more" in run.waiting[0].reason
    before = len(sent())
    events = stored_events(tmp_path / "whole")
    started = min(place for place, event in events.items() if event[1] == "ToolStarted" and event[2]["handle"] == "r2")
    for cut in range(started, max(events) + 1):
        assert [each.id for each in (await killed(cut).resume("r")).waiting][:1] in (["r2.login1"], ["login1"]), cut
    assert len(sent()) == before, "no call passes without a login"

    await sign_in_once(guarded)
    result = await agent(tmp_path / "whole").resume("r")
    assert result.answer == "done"
    assert sent()[before:] == ["append"]
    done = stored_events(tmp_path / "whole")
    assert await replayed(agent(tmp_path / "whole"), "r") == ("done", "")
    for cut in range(max(events) + 1, max(done) + 1):
        shutil.rmtree(tmp_path / f"{cut}", ignore_errors=True)
        events, known = done, len(sent())
        assert (await killed(cut).resume("r")).answer == "done"
        given = any(event[1] == "AnswerGiven" for place, event in done.items() if place <= cut)
        finished = any(
            event[1] == "ToolFinished" and event[2]["handle"] == "r2" for place, event in done.items() if place <= cut
        )
        assert sent()[known:] == ["append"] * (not finished and not given), cut


async def test_clients_at_the_same_time_refresh_a_token_once(guarded: Guarded) -> None:
    await sign_in_once(guarded)
    guarded.set(revoke=1, slow=0.5)
    known = len(guarded.log("token"))
    found = await asyncio.gather(*(tool_result(guarded.url, "read") for _ in range(3)))  # each with a client of its own
    assert [each["result"] for each in found] == ["text of a"] * 3
    assert [each["grant_type"] for each in guarded.log("token")[known:]] == ["refresh_token"]
    assert len(list(login_files())) == 1, "neither a lock nor a draft is left"


async def test_an_authorization_server_that_is_down_costs_no_login(guarded: Guarded) -> None:
    await sign_in_once(guarded)
    before = login_files()[0].read_text()
    guarded.set(revoke=1, fails=1)
    run = await Agent(ScriptedClient([]), mcp_servers=[guarded.url]).run("Go")
    assert run.status == "failed"
    assert "the authorization server answered HTTP 503, try again later" in str(run.error)
    assert login_files()[0].read_text() == before
    out = await asyncio.to_thread(here, "mcp", "logout", guarded.url)
    assert "did not revoke the tokens (HTTP 503). They may be valid until they end." in out.err
    assert login_files() == []


async def test_a_call_that_needs_more_rights_fails_alone_and_names_them(guarded: Guarded) -> None:
    await sign_in_once(guarded)
    async with ToolManager(mcp_servers=[guarded.url]) as manager:
        write, read = await asyncio.gather(
            manager.execute_tool_call("", "write", {"name": "a"}), manager.execute_tool_call("", "read", {"name": "a"})
        )
        assert f'closeout mcp login {guarded.url} --scope "read write"' in write["error"]
        assert read["result"] == "text of a"
    await asyncio.to_thread(here, "mcp", "logout", guarded.url)
    await sign_in_once(guarded, "write")
    assert (await tool_result(guarded.url, "write"))["result"] == "wrote a"


async def test_a_run_waits_for_a_login_with_the_rights_that_a_call_needs(guarded: Guarded) -> None:
    await sign_in_once(guarded)
    known = len(guarded.log("call"))
    agent = Agent(ScriptedClient([call("write", name="a"), answer("done")]), mcp_servers=[guarded.url])
    run = await agent.run("Go")
    (pending,) = run.waiting
    assert (pending.id, pending.arguments["scope"]) == ("r1.login1", "read write")
    shown = await asyncio.to_thread(here, "approve")
    assert f"  closeout mcp login {guarded.url} --scope 'read write'\n" in shown.out
    await asyncio.to_thread(here, "mcp", "logout", guarded.url)
    await sign_in_once(guarded)
    (run,) = await agent.resume_due()
    assert [each.id for each in run.waiting] == ["r1.login2"], "the login has no more rights than before"
    async with TestClient(TestServer(viewer_app(Path(os.environ["CLOSEOUT_HOME"])))) as client:
        page = await (await client.get("/viewer/")).text()
        token = page.partition('name="closeout-token" content="')[2].partition('"')[0]
        path, sent = f"/viewer/api/runs/{run.run_id}/login", {"X-Closeout-Token": token}
        async with client.post(path, json={"id": "r1.login2"}, headers=sent) as response:
            asked = urlsplit((await response.json())["page"]).query
    assert set(parse_qs(asked)["scope"][0].split()) == {"read", "write"}
    assert len(guarded.log("call")) == known
    await asyncio.to_thread(here, "mcp", "logout", guarded.url)
    await sign_in_once(guarded, "write")
    (run,) = await agent.resume_due()
    assert run.answer == "done"
    assert [each["name"] for each in guarded.log("call")[known:]] == ["write"]
    assert await replayed(agent, run.run_id) == ("done", "")


# ------------------------------------------------------------------------------------------------ the viewer


NAME = "files <img src=x onerror=alert(1)> \u202e"


async def test_only_the_browser_that_began_a_login_in_the_viewer_can_end_it(guarded: Guarded) -> None:
    agent = Agent(ScriptedClient([]), mcp_servers=[{"name": NAME, "url": guarded.url}])
    run = await agent.run("Go")
    store = agent.store()
    assert store is not None

    async def begin(client: TestClient, **headers: str) -> tuple[int, Any]:
        page = await (await client.get("/viewer/")).text()
        token = page.partition('name="closeout-token" content="')[2].partition('"')[0]
        sent = {"X-Closeout-Token": token, **headers}
        response = await client.post(f"/viewer/api/runs/{run.run_id}/login", json={"id": "login1"}, headers=sent)
        return response.status, await response.json()

    async def left(client: TestClient, address: str) -> tuple[int, str]:
        parts = urlsplit(address)
        assert parts.path == "/viewer/login/callback"
        response = await client.get(f"{parts.path}?{parts.query}")
        return response.status, response.headers["Content-Type"] + (await response.text())

    server = TestServer(viewer_app(Path(os.environ["CLOSEOUT_HOME"])))
    async with TestClient(server) as mine, TestClient(server, cookie_jar=CookieJar(unsafe=True)) as other:
        assert (await begin(mine, Origin="https://evil.example"))[0] == 403
        assert (await begin(mine, **{"X-Closeout-Token": "guessed"}))[0] == 403
        assert (await mine.get("/viewer/login/callback?code=c&state=s")).status == 404
        first = (await begin(mine))[1]["page"]
        status, found = await begin(mine)  # again: only the last one counts
        assert (status, urlsplit(found["page"]).netloc) == (200, f"127.0.0.1:{guarded.port}")
        good = follow(found["page"])
        assert good.startswith(f"http://127.0.0.1:{server.port}/viewer/login/callback?")
        forged = good.replace("state=", "state=x")
        for client, address in (
            (other, good),
            (mine, forged),
            (mine, follow(first)),
            (mine, "/viewer/login/callback?"),
        ):
            assert (await left(client, address))[0] == 400
        assert login_files() == []
        status, text = await left(mine, good)
        assert (status, text.startswith("text/plain")) == (200, True)
        assert (await left(mine, good))[0] == 400, "once"
        async with asyncio.timeout(60):
            while not login_files():  # noqa: ASYNC110  the token is on its way
                await asyncio.sleep(0.02)
        waiting = (await (await mine.get(f"/viewer/api/runs/{run.run_id}/waiting")).json())["waiting"]
        assert [(each["id"], each["signed_in"]) for each in waiting] == [("login1", True)]
    assert json.loads(login_files()[0].read_text())["tokens"]["access_token"].encode() not in recorded_bytes()


# ------------------------------------------------------------------------------------------------ programs


async def test_a_program_signs_in_and_asks_for_more_rights_when_a_call_needs_them(guarded: Guarded) -> None:
    assert (await tool_result(by_hand(guarded), "write"))["result"] == "wrote a"
    assert guarded.log("authorize")[-1]["scope"] == "read write"
    known = len(guarded.log("authorize"))
    assert (await tool_result(by_hand(guarded), "write"))["result"] == "wrote a"
    assert len(guarded.log("authorize")) == known  # nobody is asked again


async def test_a_client_signs_in_by_itself_and_nothing_is_kept(guarded: Guarded) -> None:
    issuer = f"http://127.0.0.1:{guarded.port}"
    auth = {"grant": "client_credentials", "client_id": "known", "client_secret": SECRET, "issuer": issuer}
    assert (await tool_result({"url": guarded.url, "auth": auth}, "read"))["result"] == "text of a"
    assert login_files() == []
    for change, said in (
        ({"client_secret": f"{SECRET}-wrong"}, "invalid_client"),
        ({"issuer": "http://x.org"}, "issuer"),
    ):
        async with ToolManager(mcp_servers=[{"url": guarded.url, "auth": {**auth, **change}}]) as manager:
            assert said in manager.problems[0].message
            assert SECRET not in manager.problems[0].message


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("token", "auth must be a mapping"),
        ({"client_ids": "x"}, "Did you mean 'client_id'?"),
        ({"grant": "password"}, "authorization_code or client_credentials"),
        ({"grant": "client_credentials", "client_id": "a", "client_secret": "b"}, "needs issuer"),
        ({"callback_port": 70_000}, "callback_port"),
        ({"client_metadata_url": "http://a.org/x"}, "https URL"),
        ({"client_secret": "${NO_SUCH_VARIABLE}"}, "NO_SUCH_VARIABLE"),
    ],
)
def test_settings_of_the_login_are_checked(auth: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_servers([{"name": "files", "url": "https://a.org/mcp", "auth": auth}])


def test_secrets_of_the_login_are_masked_and_other_clients_settings_are_read(tmp_path: Path) -> None:
    cursor = {
        "mcpServers": {"files": {"url": "https://a.org/mcp", "auth": {"CLIENT_ID": "a", "CLIENT_SECRET": SECRET}}}
    }
    (config,) = read_servers(cursor)
    assert config.auth is not None
    assert config.auth.client_secret == SECRET
    assert SECRET not in repr(config)
    settings = tmp_path / "a.yaml"
    settings.write_text(json.dumps({"tools": {"mcp_servers": cursor["mcpServers"]}}))
    shown = here("config", "-C", str(settings)).out
    assert "CLIENT_ID" in shown
    assert SECRET not in shown


def test_a_person_signs_in_on_the_runs_page_and_the_served_run_continues(guarded: Guarded, browser: Any) -> None:
    agent = Agent(
        ScriptedClient([call("read", name="a"), answer("done")]), mcp_servers=[{"name": NAME, "url": guarded.url}]
    )
    home = Path(os.environ["CLOSEOUT_HOME"])
    with watched_viewer(home, browser, lambda _: agent_app(AgentHost(agent, drain_seconds=0))) as viewer:
        page = viewer.begin("Go.")
        request = page.locator(".request[data-id=login1]")
        assert request.locator(".tool-name").inner_text() == "files-img-src-x-onerror-alert-1"
        assert f"closeout mcp login {guarded.url}" in request.inner_text()
        request.get_by_role("button", name="Sign in").click()
        link = request.get_by_role("link", name=f"Sign in at 127.0.0.1:{guarded.port}")
        with page.context.expect_page() as opened:
            link.click()
        opened.value.get_by_text("Done. You can close this page").wait_for()
        page.wait_for_selector(".item.answer")
        assert texts(page, ".item.decision .item-name") == ["Waits for a login"]
        assert page.locator("main img").count() == 0
