"""The wire: one pool a loop that goes with it, deadlines, cancellation, proxies, TLS, and failures told clearly."""

from __future__ import annotations

import asyncio
import gc
import gzip
import ssl
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout.errors import (
    ConfigError,
    ModelTimeout,
    ModelUnreachable,
    PermanentModelError,
    ServerFailed,
    StreamDropped,
)
from closeout.messages import Message, ModelRequest
from closeout.models import transport
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.models.streaming import EventReader
from closeout.models.transport import Endpoint, get, post
from raw_server import END, chat, http, raw_server, sse

USER = Message(role="user", content="Hello")


async def test_a_body_goes_out_byte_for_byte_and_the_answer_comes_back():
    async with raw_server(http('{"a": "é"}')) as seen:
        response = await post(Endpoint(seen.url, {"X-Key": "1"}), '{"元": 1}'.encode(), timeout=60)
        assert (response.status, response.content_type, await response.read()) == (
            200,
            "application/json",
            '{"a": "é"}'.encode(),
        )
    assert seen.bodies == ['{"元": 1}'.encode()]
    assert "X-Key: 1" in seen.heads[0]


async def test_a_body_of_megabytes_goes_out_without_a_warning():
    async with raw_server(http("{}")) as seen:
        await (await post(Endpoint(seen.url), b"x" * (3 * 2**20), timeout=60)).read()
    assert len(seen.bodies[0]) == 3 * 2**20


async def test_requests_share_connections():
    async with raw_server(http("{}")) as seen:
        endpoint = Endpoint(seen.url)
        for _ in range(5):
            await (await post(endpoint, b"{}", timeout=60)).read()
        assert seen.connections == 1


async def test_a_stream_read_to_its_end_gives_its_connection_back():
    async with raw_server(sse({"a": 1}, "[DONE]", end=END)) as seen:
        endpoint = Endpoint(seen.url)
        for _ in range(3):
            response = await post(endpoint, b"{}", timeout=60)
            assert b"".join([piece async for piece in response.chunks()]).endswith(b"data: [DONE]\n\n")
        assert seen.connections == 1


async def test_closing_a_response_closes_the_connection():
    async with raw_server(sse({"a": 1}, end=b"10\r\n")) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=60)
        response.close()
        await asyncio.wait_for(_until(lambda: seen.connections == 1), 60)


async def test_cancelling_closes_the_connection():
    async with raw_server(None) as seen:
        task = asyncio.ensure_future(post(Endpoint(seen.url), b"{}", timeout=30))
        await asyncio.wait_for(_until(lambda: bool(seen.bodies)), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(seen.hung_up.wait(), 60)


# A body whose length is given piece by piece, after the first of them.
BEGUN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n'


@pytest.mark.parametrize("how", ["read", "read_start"])
async def test_cancelling_in_the_middle_of_a_body_of_unknown_length_closes_the_connection(how: str):
    async with raw_server(BEGUN) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=30)
        task = asyncio.ensure_future(getattr(response, how)())
        for _ in range(5):  # it has read what came, and waits for more
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(seen.hung_up.wait(), 60)


async def test_a_deadline_in_the_middle_of_a_body_closes_the_connection(skip_time: Callable[[float], None]):
    async with raw_server(BEGUN) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=300)
        asyncio.get_running_loop().call_soon(skip_time, 301)
        with pytest.raises(ModelTimeout):
            await response.read()
        await asyncio.wait_for(seen.hung_up.wait(), 60)


async def test_a_deadline_is_a_model_timeout(skip_time: Callable[[float], None]):
    async with raw_server(None) as seen:
        task = asyncio.ensure_future(post(Endpoint(seen.url), b"{}", timeout=300))
        await asyncio.wait_for(_until(lambda: bool(seen.bodies)), 60)
        skip_time(301)
        with pytest.raises(ModelTimeout, match=r"in time.*llm\.timeout"):
            await task
        await asyncio.wait_for(seen.hung_up.wait(), 60)


async def test_a_refused_connection_says_what_to_check():
    with pytest.raises(ModelUnreachable, match=r"http://127\.0\.0\.1:9: Connection refused.*running\?"):
        await post(Endpoint("http://127.0.0.1:9/v1"), b"{}", timeout=60)


async def test_a_name_that_does_not_resolve():
    with pytest.raises(ModelUnreachable, match=r"No such host: http://no-such-host\.invalid"):
        await post(Endpoint("http://no-such-host.invalid/v1"), b"{}", timeout=10)


async def test_a_connection_that_ends_without_an_answer():
    async with raw_server([]) as seen:
        with pytest.raises(StreamDropped, match="before it replied"):
            await post(Endpoint(seen.url), b"{}", timeout=60)


async def test_a_body_that_breaks_off():
    async with raw_server([http("{}" * 50)[:-20]]) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=60)
        with pytest.raises(StreamDropped, match="in the middle"):
            await response.read()


async def test_a_server_that_does_not_speak_http():
    async with raw_server([b"SSH-2.0-OpenSSH_9.7\r\n\r\n"]) as seen:
        with pytest.raises(ServerFailed, match="does not answer in HTTP"):
            await post(Endpoint(seen.url), b"{}", timeout=60)


async def test_a_body_without_end_is_bounded():
    endless = [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", *[b"x" * 65536] * 40]
    async with raw_server(endless) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=60)
        with pytest.raises(ServerFailed, match="more than 1 MiB"):
            await response.read(limit=2**20)


async def test_a_small_body_that_unpacks_to_a_large_one_is_bounded():
    packed = gzip.compress(bytes(2 * 2**20))
    async with raw_server(http(packed, Content_Encoding="gzip")) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=60)
        with pytest.raises(ServerFailed, match="more than 1 MiB"):
            await response.read(limit=2**20)


async def test_a_stream_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transport, "MAX_STREAM", 2**20)
    endless = [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", *[b": wait\n\n" * 8192] * 40]
    async with raw_server(endless) as seen:
        response = await post(Endpoint(seen.url), b"{}", timeout=60)
        with pytest.raises(ServerFailed, match="more than 1 MiB"):
            async for _ in response.chunks():
                pass


async def test_redirects_are_not_followed_with_the_key():
    async with raw_server(http("", status=307, Location="http://127.0.0.1:9/elsewhere")) as seen:
        response = await post(Endpoint(seen.url, {"Authorization": "Bearer k"}), b"{}", timeout=60)
        assert response.status == 307


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x/v1", "http://", "http://[::1", "http://a b/v1", "http://x:99999"]
)
def test_an_address_that_is_none_is_named(url: str):
    with pytest.raises(ConfigError, match=r"not the address of a server.*http://localhost:8000/v1"):
        Endpoint(url)


# ------------------------------------------------------------------------------------------------ proxies and TLS


async def test_the_environments_proxy_is_used_with_its_login(monkeypatch: pytest.MonkeyPatch):
    async with raw_server(http('{"by": "proxy"}')) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://user:p%40ss@"))
        monkeypatch.setenv("no_proxy", "")
        response = await post(Endpoint("http://model.example:8000/v1/x"), b"{}", timeout=60)
        assert await response.read() == b'{"by": "proxy"}'
    assert proxy.heads[0].startswith("POST http://model.example:8000/v1/x HTTP/1.1")
    assert "Proxy-Authorization: Basic dXNlcjpwQHNz" in proxy.heads[0]


async def test_no_proxy_is_obeyed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with raw_server(http("{}")) as seen:
        assert await (await post(Endpoint(seen.url), b"{}", timeout=60)).read() == b"{}"


async def test_an_unreachable_or_invalid_proxy_is_distinguished_from_the_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with pytest.raises(ModelUnreachable, match=r"No connection to the proxy 127\.0\.0\.1:1: .*NO_PROXY"):
        await post(Endpoint("http://model.example:8000/v1/x"), b"{}", timeout=60)
    monkeypatch.setenv("http_proxy", "::bad::")
    with pytest.raises(ConfigError, match=r"The proxy \S+ from the environment is not an HTTP proxy"):
        await post(Endpoint("http://model.example:8000/v1/x"), b"{}", timeout=60)


def test_a_trailing_line_break_in_a_key_is_dropped_and_one_within_is_refused() -> None:
    assert Endpoint("http://h/v1", {"Authorization": "Bearer k\n"}).headers == {"Authorization": "Bearer k"}
    with pytest.raises(ConfigError, match=r"The header Authorization .* Check the API key\."):
        Endpoint("http://h/v1", {"Authorization": "Bearer k\nk"})


async def test_a_proxy_of_another_kind_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigError, match=r"socks5://127\.0\.0\.1:1080 .*not an HTTP proxy.*NO_PROXY=model\.example"):
        await post(Endpoint("http://model.example/v1"), b"{}", timeout=60)


async def test_an_untrusted_certificate_is_permanent(tmp_path):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    made = await asyncio.to_thread(
        subprocess.run,
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-keyout", key, "-out", certificate], capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            PermanentModelError, match=r"certificate of https://localhost:\d+ is not trusted.*SSL_CERT_FILE"
        ):
            await post(Endpoint(f"https://localhost:{port}/v1"), b"{}", timeout=60)


async def test_https_to_a_plain_server_says_what_is_wrong():
    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ModelUnreachable, match=r"No TLS connection to https://127.*speak https\?"):
            await post(Endpoint(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"), b"{}", timeout=60)


# ------------------------------------------------------------------------------------------------ the pool's life


def test_every_asyncio_run_has_its_own_pool_and_leaves_nothing_open():
    async def once() -> int:
        async with raw_server(http(chat())) as seen:
            response = await get(Endpoint(seen.url), timeout=60)
            return len(await response.read())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [asyncio.run(once()) for _ in range(3)] == [len(http(chat()).partition(b"\r\n\r\n")[2])] * 3
        gc.collect()
    assert len(transport._pools) == 0 or all(pool.session.closed for pool in transport._pools.values())


def test_a_loop_that_is_never_shut_down_properly_ends_without_a_word(tmp_path):
    script = textwrap.dedent("""
        import asyncio, gc, warnings
        warnings.simplefilter("error")
        from closeout.errors import ModelUnreachable
        from closeout.models.transport import Endpoint, get

        async def once():
            try:
                await get(Endpoint("http://127.0.0.1:9/"), timeout=60)
            except ModelUnreachable:
                print("refused")

        for _ in range(2):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(once())
            loop.close()
        last = asyncio.new_event_loop()
        last.run_until_complete(once())
        gc.collect()
    """)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "refused\n" * 3
    assert "Unclosed" not in done.stderr


async def test_close_pool_closes_and_a_later_request_opens_a_new_one():
    async with raw_server(http("{}")) as seen:
        for _ in range(2):
            await (await get(Endpoint(seen.url), timeout=60)).read()
            await transport.close_pool()
        assert seen.connections == 2
    await transport.close_pool()


# ------------------------------------------------------------------------------------------------ server-sent events


def read_events(data: bytes, sizes: list[int]) -> list[bytes]:
    reader, events, position = EventReader(), [], 0
    for size in [*sizes, len(data)]:
        events += reader.feed(data[position : position + size])
        position += size
    return events + reader.close()


def test_events_with_every_line_end_comments_names_and_several_data_lines():
    data = b": hello\r\n\r\nevent: x\ndata: one\r\rid: 3\ndata:two\ndata: three\n\n\n\ndata:\n\nretry: 5\n\ndata: last"
    assert read_events(data, []) == [b"one", b"two\nthree", b"", b"last"]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([b"data: a", b"data:\xe5\x85\x83", b": c", b"", b"event: e"]), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 7), max_size=60),
)
def test_any_cut_of_the_bytes_gives_the_same_events(lines: list[bytes], end: bytes, sizes: list[int]):
    data = end.join(lines) + end
    assert read_events(data, sizes) == read_events(data, [])


def test_an_event_without_end_is_refused():
    reader = EventReader()
    for _ in range(16):
        assert reader.feed(b"x" * 2**20) == []
    with pytest.raises(ServerFailed, match="16 MiB"):
        reader.feed(b"x")


async def _until(condition) -> None:
    while not condition():  # noqa: ASYNC110  the condition is another connection's state
        await asyncio.sleep(0.005)


# ------------------------------------------------------------------------------------------------ stale connections

STREAM = sse({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}, "[DONE]", end=END)


@pytest.mark.parametrize("large", [False, True])
async def test_a_request_on_a_connection_that_the_server_has_closed_is_sent_again(large: bool):
    """The server closes each connection after its stream, as llama.cpp does, when the next request is on its way."""
    body = b"x" * (2 * 2**20 if large else 2)
    async with raw_server(STREAM, [], STREAM, [], STREAM) as seen:
        endpoint = Endpoint(seen.url)
        for _ in range(3):
            response = await post(endpoint, body, timeout=60)
            assert b"hi" in b"".join([piece async for piece in response.chunks()])
        assert (seen.connections, len(seen.bodies)) == (3, 5)
        assert set(map(len, seen.bodies)) == {len(body)}


async def test_a_server_that_closes_after_every_stream_costs_no_retry():
    """No warning, no retry, one request charged for each reply."""
    async with raw_server([*STREAM, b""]) as seen:
        client = OpenAIClient("m", f"{seen.url}/v1", retry=RetryPolicy(retries=0))
        for _ in range(20):
            reply = await client.complete(ModelRequest(messages=[USER]), on_delta=lambda _: None)
            assert (reply.text, reply.usage.requests) == ("hi", 1)
        assert client.usage.requests == 20


@pytest.mark.parametrize(
    "begun", [b"H", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_a_request_that_received_a_byte_is_not_sent_again(begun: bytes):
    async with raw_server(http("{}"), [begun], http("{}")) as seen:
        endpoint = Endpoint(seen.url)
        await (await post(endpoint, b"{}", timeout=60)).read()
        with pytest.raises((StreamDropped, ServerFailed)):
            await (await post(endpoint, b"{}", timeout=60)).read()
        assert len(seen.bodies) == 2


async def test_a_fresh_connection_that_is_closed_without_a_response_is_a_failure():
    async with raw_server(http("{}"), []) as seen:
        endpoint = Endpoint(seen.url)
        await (await post(endpoint, b"{}", timeout=60)).read()
        with pytest.raises(StreamDropped, match="before it replied"):
            await post(endpoint, b"{}", timeout=60)
        assert len(seen.bodies) == 3, "once on the pooled connection, once on a fresh one"
