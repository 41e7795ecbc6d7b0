"""The application that all servers share: which hosts it answers for, its headers, its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from closeout.errors import JournalError, RunNotFound, UsageError
from closeout.server.app import create_app

ERRORS = {"missing": RunNotFound("no run x"), "locked": JournalError("locked"), "misused": UsageError("wrong")}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient]:
    app = create_app(tmp_path)

    async def answer(request: web.Request) -> web.Response:
        if error := ERRORS.get(request.match_info["name"]):
            raise error
        return web.Response(text="fine")

    app.router.add_get("/{name}", answer)
    async with TestClient(TestServer(app)) as found:
        yield found


async def test_a_response_has_the_security_headers(client: TestClient) -> None:
    for path in ("/anything", "/missing", "/no/such/route"):
        headers = (await client.get(path)).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]", "[::1]:8080"])
async def test_it_answers_for_this_computer(client: TestClient, host: str) -> None:
    assert (await client.get("/anything", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[evil", ":"]
)
async def test_it_answers_for_no_other_host(client: TestClient, host: str) -> None:
    response = await client.get("/anything", headers={"Host": host})
    assert response.status == 403
    assert "fine" not in await response.text()


@pytest.mark.parametrize(("name", "status"), [("missing", 404), ("locked", 503), ("misused", 400)])
async def test_errors_are_json_that_says_what_is_wrong(client: TestClient, name: str, status: int) -> None:
    response = await client.get(f"/{name}")
    assert response.status == status
    assert (await response.json())["error"]["message"] == str(ERRORS[name])
