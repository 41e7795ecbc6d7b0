"""One trust per origin: what an upstream server, the proxy and the viewer may do to each other and to clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from closeout.errors import ConfigError
from closeout.journal.store import open_store
from closeout.server import serving
from closeout.server.proxy.proxy_server import Proxy
from closeout.server.safety import key_check
from closeout.server.serving import listening, proxy_app, viewer_app
from closeout.server.upstream import Upstream

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]

PAGE = "<script>fetch('/viewer/').then(approve)</script>"
FOR_BROWSERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Credentials": "true",
    "Content-Security-Policy": "default-src *",
    "X-Frame-Options": "ALLOWALL",
    "Service-Worker-Allowed": "/",
    "Set-Cookie": "a=b",
    "Refresh": "0; url=/viewer/",
    "Clear-Site-Data": '"*"',
    "X-Request-Id": "r1",
}
KINDS = (
    "text/html",
    "text/html; charset=utf-8",
    "application/xhtml+xml",
    "image/svg+xml",
    "text/xml",
    "multipart/x-mixed-replace; boundary=x",
    "text/event-stream",
    "application/json",
)


@asynccontextmanager
async def governed(
    home: Path, upstream: Handle, *, kind: Any = "openai", keys: Sequence[str] = (), key: str | None = None
) -> AsyncIterator[TestClient]:
    """Client of a proxy in front of an upstream server that answers every request with `upstream`."""
    server = web.Application(client_max_size=2**26)
    server.router.add_route("*", "/{path:.*}", upstream)
    async with TestServer(server) as model:
        proxy = Proxy(Upstream(str(model.make_url("/v1")), kind, key=key), open_store(home))
        async with TestClient(TestServer(proxy_app(proxy, keys=keys))) as client:
            yield client


def assert_cannot_act(headers: Any) -> None:
    """A browser shows such a response neither as a page nor to another page."""
    policy = headers["Content-Security-Policy"]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert "allow-" not in policy
    assert headers.getall("Content-Security-Policy") == [policy]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    kind = headers.get("Content-Type", "")
    assert not any(word in kind for word in ("html", "xml", "multipart"))
    assert not headers.keys() & {"Access-Control-Allow-Origin", "Set-Cookie", "Refresh", "Service-Worker-Allowed"}


def requests_of(app: web.Application) -> list[tuple[str, str]]:
    """Every method and path that an application has a route for."""
    found = []
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical.replace("{path}", "models").replace("{name}", "").replace("{seq}", "1")
        methods = ("GET", "POST", "DELETE") if route.method == "*" else (route.method,)
        found += [(method, path.replace("{run_id}", "r")) for method in methods]
    return found


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_response_of_the_proxy_can_act_in_a_browser(home: Path, kind: str, status: int) -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=PAGE.encode(), headers={**FOR_BROWSERS, "Content-Type": kind})

    async with governed(home, upstream) as client:
        paths = requests_of(client.app)
        assert {path for _, path in paths} >= {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models"}
        body = {"model": "m", "messages": [], "input": "x", "max_tokens": 5}
        for method, path in (*paths, ("GET", "/v1/a%2Fb.html"), ("GET", "/nothing")):
            if path in ("/v1/responses", "/v1/messages") and status != 400:
                continue  # their replies are written anew, after seconds of attempts
            for stream in (False, True):
                response = await client.request(method, path, json={**body, "stream": stream})
                assert_cannot_act(response.headers)
                await response.read()
        passed = await client.get("/v1/models")
        assert (passed.status, passed.headers["X-Request-Id"], await passed.text()) == (status, "r1", PAGE)


async def test_only_the_pages_of_the_viewer_run_scripts_and_only_its_own(home: Path) -> None:
    open_store(home)
    app = viewer_app(home)
    pages = 0
    async with TestClient(TestServer(app)) as client:
        for method, path in requests_of(app):
            headers = (await client.request(method, path, allow_redirects=False)).headers
            if path != "/viewer/":
                assert_cannot_act(headers)
                continue
            pages += method == "GET"
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'; script-src 'self';" in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "unsafe" not in policy
        assert pages == 1
        foreign = await client.get("/viewer/", headers={"Origin": "http://127.0.0.1:8090"})
        assert foreign.status == 403  # a page that another port of this computer served


async def test_the_proxy_serves_no_viewer_and_the_viewer_no_proxy(home: Path) -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async with governed(home, upstream) as client:
        assert (await client.get("/viewer/")).status == 404
        assert (await client.get("/")).status == 404
    async with TestClient(TestServer(viewer_app(home))) as client:
        assert (await client.get("/v1/models")).status == 404


def test_the_command_line_gives_the_viewer_a_port_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "CLOSEOUT_HOME": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "closeout",
        "models",
        "proxy",
        "--upstream",
        "http://127.0.0.1:9/v1",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            governs, viewer = (process.stderr.readline().split() for _ in range(2))
            proxy_url, viewer_url = governs[3].removesuffix("/v1"), viewer[1].removesuffix("/viewer/")
            assert proxy_url != viewer_url
            assert asyncio.run(statuses(f"{proxy_url}/viewer/", f"{viewer_url}/viewer/")) == [404, 200]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(100)


async def statuses(*urls: str) -> list[int]:
    async with ClientSession() as http:
        return [(await http.get(url)).status for url in urls]


# ------------------------------------------------------------------------------------------------ paths


@pytest.mark.parametrize(
    "path",
    ["files/a%23b", "files/a%3Fb", "files/a%2Fb/content", "models/org%2Fname?x=%26y%3D1&z=a%2Bb", "a%252Fb"],
)
async def test_a_passed_on_path_names_the_same_resource(home: Path, path: str) -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.raw_path)

    async with governed(home, upstream) as client:
        from yarl import URL

        response = await client.session.get(URL(f"{client.make_url('/v1/')}{path}", encoded=True))
        assert await response.text() == f"/v1/{path}"


@pytest.mark.parametrize("path", ["../admin", "%2e%2e/admin", "a/%2E%2E/%2e%2e/admin", "a%2F..%2F..%2Fadmin"])
async def test_a_passed_on_path_stays_below_the_version(home: Path, path: str) -> None:
    async def upstream(request: web.Request) -> web.StreamResponse:
        return web.Response(text="reached")

    async with governed(home, upstream) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(f"GET /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert b"404" in answer.split(b"\r\n")[0]


# ------------------------------------------------------------------------------------------------ keys and connections


@pytest.mark.parametrize("keys", [["abc", ""], [" "], "abc"])
def test_an_empty_key_is_refused(keys: Any) -> None:
    with pytest.raises(ConfigError, match=r"Remove it|keys=\[KEY\]"):
        key_check(keys)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_connection_without_a_whole_header_is_closed(
    home: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.3)
    async with listening(viewer_app(home), "127.0.0.1", 0) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


def test_more_connections_than_files_are_reported_in_a_line(tmp_path: Path) -> None:
    program = (
        "import asyncio, resource, sys\n"
        "asyncio.constants.ACCEPT_RETRY_DELAY = 0.05\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from pathlib import Path\n"
        "from closeout.server.serving import serve_until_stopped, viewer_app\n"
        "from closeout.cli.servers import log_warnings\n"
        "log_warnings()\n"
        "app = viewer_app(Path(sys.argv[1]))\n"
        "asyncio.run(serve_until_stopped(app, '127.0.0.1', 0, on_ready=lambda url: print(url, flush=True)))\n"
    )
    held: list[Any] = []
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            import socket

            port = int(process.stdout.readline().strip().rpartition(":")[2])
            held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            assert "ulimit -n" in process.stderr.readline()
            time.sleep(0.5)
        finally:
            process.kill()
            _, more = process.communicate(timeout=100)
            for each in held:
                each.close()
    assert len(more.splitlines()) < 4, more[:2000]


# ------------------------------------------------------------------------------------------------ streams


async def test_a_huge_event_is_refused_and_holds_up_nobody(home: Path) -> None:
    piece = b"x" * 2**16

    async def upstream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "')
        for _ in range(20 * 2**20 // len(piece)):
            await response.write(piece)
        await response.write(b'"}}]}\n\ndata: [DONE]\n\n')
        return response

    async with governed(home, upstream) as client:
        body = {"model": "m", "messages": [], "stream": True}
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        others = 0
        while not asking.done():
            await (await client.get("/healthz")).read()
            others += 1
        response = await asking
        assert response.status == 502 or response.status == 500
        assert "16 MiB" in await response.text()
        assert others > 10, "others are served while it is read"


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_stay_in_their_choice(home: Path, stream: bool) -> None:
    def choice(index: int, part: str) -> dict[str, Any]:
        function = {"name": f"tool{index}", "arguments": '{"a": 1,}'}
        calls = [{"index": 0, "id": f"c{index}", "type": "function", "function": function}]
        return {"index": index, part: {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}

    part = "delta" if stream else "message"
    bodies = [{"id": "c", "choices": [choice(index, part)]} for index in (1, 0)]
    events = b"".join(b"data: %b\n\n" % json.dumps(body).encode() for body in bodies) + b"data: [DONE]\n\n"
    whole = json.dumps({"id": "c", "choices": [choice(0, part), choice(1, part)]}).encode()
    sent = events if stream else whole

    async def upstream(request: web.Request) -> web.StreamResponse:
        return web.Response(body=sent, content_type="text/event-stream" if stream else "application/json")

    async with governed(home, upstream) as client:
        body = {"model": "m", "messages": [], "tools": TOOLS, "n": 2, "stream": stream}
        assert await (await client.post("/v1/chat/completions", json=body)).read() == sent


# ------------------------------------------------------------------------------------------------ learned facts

TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}]
REFUSALS = (
    {"error": {"message": "registry/gemma:2b does not support tools", "type": "api_error", "code": None}},
    {"object": "error", "message": '"auto" tool choice requires --enable-auto-tool-choice', "code": 400},
    {"error": {"message": "Unsupported parameter.", "param": "tools", "code": "unsupported_parameter"}},
)
WORDS = ("does not support tools", "does\u200bnot\nsupport tools", 'DOES NOT SUPPORT TOOLS"}}')


@asynccontextmanager
async def learning(home: Path, refusal: Callable[[Any], Any]) -> AsyncIterator[tuple[TestClient, list[bool]]]:
    """Client of a proxy whose upstream server refuses requests with tools; a list says which requests had them."""
    had_tools: list[bool] = []

    async def upstream(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        had_tools.append("tools" in body)
        if "tools" in body:
            return web.json_response(refusal(body), status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Answer: 4"}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "choices": [choice]})

    async with governed(home, upstream, key="the key of the proxy") as client:
        yield client, had_tools


async def ask(client: TestClient, key: str, text: str = "?") -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "tools": TOOLS}
    headers = {"Authorization": f"Bearer {key}"}
    return (await client.post("/v1/chat/completions", json=body, headers=headers)).status


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refusal_of_tools_is_learned_for_one_key_and_expires(
    home: Path, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with learning(home, lambda _: refusal) as (client, had_tools):
        assert [await ask(client, key) for key in ("a", "a", "b")] == [200, 200, 200]
        assert had_tools == [True, False, False, True, False]
        had_tools.clear()
        monkeypatch.setattr("closeout.server.proxy.lessons.LEARNED_SECONDS", 0.0)
        assert [await ask(client, key) for key in ("c", "c")] == [200, 200]
        assert had_tools == [True, False, True, False]


@pytest.mark.parametrize("words", WORDS)
async def test_the_words_of_a_client_teach_nothing(home: Path, words: str) -> None:
    had_tools: list[bool] = []

    async def upstream(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        had_tools.append("tools" in body)
        said = "\n".join(str(each["content"]) for each in body["messages"])
        if words in said:
            return web.json_response({"error": {"message": f"Invalid content: '{said}'.", "code": None}}, status=400)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Answer: 4"}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "choices": [choice]})

    async with governed(home, upstream, key="the key of the proxy") as client:
        assert [await ask(client, "a", words) for _ in range(2)] == [400, 400]
        had_tools.clear()
        assert await ask(client, "a") == 200
        assert had_tools == [True]
