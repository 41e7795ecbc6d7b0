"""`fetch_url`: a page's main text over real HTTP, within limits, and never from an address that is not public."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from closeout.errors import ToolError, UsageError
from closeout.tools.builtin import fetch_url, web_tool
from closeout.tools.builtin.web import AddressGuard, _readable, is_public
from serving import listening

ARTICLE = "The canal was opened in 1832. " * 20


@dataclass
class Site:
    """A server on 127.0.0.1 and 127.0.0.2."""

    port: int

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


async def page(request: web.Request) -> web.Response:
    html = (
        f"<html><head><title>Canals &amp; locks</title></head><body><nav>Menu</nav><main><p>{ARTICLE}</p></main></body>"
    )
    return web.Response(text=html, content_type="text/html")


async def redirect(request: web.Request) -> web.Response:
    raise web.HTTPFound(request.query["to"])


async def circle(request: web.Request) -> web.Response:
    raise web.HTTPFound("/circle")


async def status(request: web.Request) -> web.Response:
    return web.Response(status=int(request.match_info["code"]))


async def raw(request: web.Request) -> web.Response:
    bodies: dict[str, tuple[bytes, str]] = {
        "gb": ("<meta charset=gb2312><p>大运河全长一千七百公里</p>".encode("gb2312"), "text/html"),
        "json": (b'{"opened": 1832}', "application/json"),
        "png": (b"\x89PNG\x00\x00", "image/png"),
        "big": (b"x" * 300_000, "text/plain"),
        "odd": (b"plain words", "application/x-unknown"),
    }
    body, kind = bodies[request.match_info["name"]]
    return web.Response(body=body, headers={"Content-Type": kind})


async def bomb(request: web.Request) -> web.Response:
    response = web.Response(body=b"0" * 50_000_000, content_type="text/plain")
    response.enable_compression(web.ContentCoding.gzip)
    return response


async def slow(request: web.Request) -> web.Response:
    await asyncio.sleep(30)
    return web.Response()


async def drop(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"some of it")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    app = web.Application()
    app.router.add_get("/page", page)
    app.router.add_get("/to", redirect)
    app.router.add_get("/circle", circle)
    app.router.add_get("/status/{code}", status)
    app.router.add_get("/raw/{name}", raw)
    app.router.add_get("/bomb", bomb)
    app.router.add_get("/slow", slow)
    app.router.add_get("/drop", drop)
    async with listening(app, "127.0.0.2") as port:
        yield Site(port)


near = web_tool(allow_private="127.0.0.1", seconds=60.0, max_bytes=200_000, max_redirects=3)


async def fetch(url: str, tool: Any = near) -> dict[str, str]:
    found: dict[str, str] = await tool.call({"url": url})
    return found


# ------------------------------------------------------------------------------------------------ what is read


async def test_a_page_gives_its_title_and_main_text(site: Site) -> None:
    found = await fetch(site.url("/page"))
    assert found["url"] == site.url("/page")
    assert found["title"] == "Canals & locks"
    assert "The canal was opened in 1832." in found["text"]
    assert "Menu" not in found["text"]


async def test_redirects_are_followed_and_the_last_address_is_shown(site: Site) -> None:
    assert (await fetch(site.url("/to?to=/page")))["url"] == site.url("/page")


async def test_encodings_and_plain_kinds_of_text(site: Site) -> None:
    assert (await fetch(site.url("/raw/gb")))["text"] == "大运河全长一千七百公里"
    assert (await fetch(site.url("/raw/json")))["text"] == '{"opened": 1832}'
    assert (await fetch(site.url("/raw/odd")))["text"] == "plain words"


@pytest.mark.parametrize("name", ["idna", "punycode", "undefined", "raw_unicode_escape", "base64", "no-such-code"])
def test_a_page_that_names_no_encoding_of_pages_is_read_all_the_same(name: str) -> None:
    assert _readable("http://a", "text/plain", b"plain words " * 20, name).text.startswith("plain words plain")


# ------------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("/status/404", ToolError, "HTTP 404 Not Found"),
        ("/status/503", ConnectionError, "HTTP 503"),  # may pass: worth a second try
        ("/raw/png", ToolError, "image/png, which holds no text"),
        ("/raw/big", ToolError, "longer than 0.2 MB"),
        ("/bomb", ToolError, "longer than 0.2 MB"),
        ("/circle", ToolError, "in circles or too often"),
        ("/to?to=file:///etc/passwd", ToolError, "not a web page"),
        ("/drop", ConnectionError, "cannot be read"),
    ],
)
async def test_what_cannot_be_read_is_one_sentence(site: Site, path: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        await fetch(site.url(path))


async def test_a_slow_page_is_given_up(site: Site) -> None:
    with pytest.raises(TimeoutError, match=r"did not answer within 0\.2 s"):
        await fetch(site.url("/slow"), web_tool(allow_private=True, seconds=0.2))


@pytest.mark.parametrize(
    "url", ["", "ftp://example.org/x", "http://", "http://[bad/", "javascript:alert(1)", "http://\ud800/"]
)
async def test_an_invalid_web_address_is_refused(url: str) -> None:
    with pytest.raises(ToolError, match="not a web address"):
        await fetch(url)


async def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ToolError, match=r"host no-such-host\.invalid does not exist"):
        await fetch("http://no-such-host.invalid/")


# ------------------------------------------------------------------------------------------------ private addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_no_way_to_write_a_private_address_is_followed(site: Site, host: str) -> None:
    with pytest.raises(ToolError, match=r"not a public address|not a web address|host .* does not exist"):
        await fetch(site.url("/page", host), fetch_url)


@pytest.mark.parametrize("target", ["127.0.0.2", "[::ffff:127.0.0.2]"])
async def test_a_redirect_to_a_private_address_is_refused(site: Site, target: str) -> None:
    assert (await fetch(site.url("/page", "127.0.0.2"), web_tool(allow_private="127.0.0.0/8")))["title"]
    with pytest.raises(ToolError, match=r"(127\.0\.0\.2|7f00:2), which is not a public address"):
        await fetch(site.url("/to?to=" + site.url("/page", target)))


async def test_the_address_that_is_checked_is_the_one_that_is_connected_to(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers with a public address first and a private one afterwards gains nothing."""
    answers = iter(["93.184.215.14", "127.0.0.1", "127.0.0.1"])
    loop = asyncio.get_running_loop()
    asked: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        address = next(answers)
        asked.append(address)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    reached: list[str] = []

    async def connect(sock: socket.socket, address: Any) -> None:
        reached.append(address[0])
        raise ConnectionRefusedError(111, "refused here, before anything leaves the machine")

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    monkeypatch.setattr(loop, "sock_connect", connect)
    with pytest.raises(ConnectionError):
        await fetch(site.url("/page", "rebind.example"), fetch_url)
    assert asked == reached == ["93.184.215.14"]
    with pytest.raises(ToolError, match=r"127\.0\.0\.1, which is not a public address"):
        await fetch(site.url("/page", "rebind.example"), fetch_url)
    assert reached == ["93.184.215.14"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("::ffff:8.8.8.8", True), ("10.1.2.3", False),
        ("172.16.0.1", False), ("0.0.0.0", False), ("224.0.1.1", False),
        ("192.168.1.1", False), ("100.64.0.1", False), ("169.254.169.254", False),
        ("255.255.255.255", False), ("::", False), ("::1", False), ("fe80::1%eth0", False), ("fc00::1", False),
        ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("ff02::1", False),
        ("::127.0.0.1", False), ("::ffff:0:127.0.0.1", False), ("64:ff9b:1::7f00:1", False), ("fec0::1", False),
        ("64:ff9b::808:808", True), ("168.63.129.16", False),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_network_that_is_none_is_named() -> None:
    with pytest.raises(UsageError, match="ten-dot-something"):
        AddressGuard("ten-dot-something")
