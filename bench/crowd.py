"""A proxy under clients that take much: is everybody else still served in about the usual time?

The usual time is that of a short streamed request when nothing else happens, taken before and after each crowd. The
model server, the proxy, the crowd and the measured client are processes of their own. The same crowd is let loose on
the model server itself, for comparison.

    python bench/crowd.py [--quick] [--requests 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import aiohttp
from aiohttp import web

PAUSE = 0.02  # seconds between two measured requests
SETTLE = 2.0  # seconds between the last member of a crowd and the first measured request


# ------------------------------------------------------------------------------------------------ the model server


def event(text: str, finish: str | None = None) -> bytes:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n"


# What each task streams: how many events, the event, and the pause after each in seconds.
TASKS = {
    "short": (20, event("x" * 20), 0.0),
    "slow": (150, event("x" * 20), 0.2),
    "long": (5_000, event("x" * 2_000), 0.0),
    "large": (1, event("x" * 10_000_000), 0.0),
    "huge": (1, event("x" * 20_000_000), 0.0),
}
PART = 2**16  # bytes that are written at once


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    count, written, pause = TASKS[body["messages"][-1]["content"]]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    with suppress(ConnectionError):
        for _ in range(count):
            for start in range(0, len(written), PART):
                await response.write(written[start : start + PART])
            await asyncio.sleep(pause)
        await response.write(event("", "stop") + b"data: [DONE]\n\n")
    return response


def serve_model(told: Connection) -> None:
    async def serve() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        told.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        await asyncio.Event().wait()

    asyncio.run(serve())


@contextmanager
def model_server() -> Iterator[str]:
    listening, told = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve_model, args=(told,), daemon=True)
    process.start()
    try:
        yield listening.recv()
    finally:
        process.terminate()
        process.join()


@contextmanager
def proxy(upstream: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "closeout", "models", "proxy", "--upstream", upstream, "--port", "0"]
        environment = {**os.environ, "CLOSEOUT_HOME": home}
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            assert process.stderr is not None
            said = b""
            while not (found := re.search(rb"http://[\d.]+:\d+/v1", said.replace(upstream.encode(), b""))):
                line = process.stderr.readline()
                if not line:
                    sys.exit(f"The proxy did not start: {said.decode()}")
                said += line
            yield found[0].decode()
        finally:
            process.terminate()
            process.communicate()


# ------------------------------------------------------------------------------------------------ the crowds


def body_of(task: str) -> dict[str, Any]:
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": task}]}


async def connect(url: str, sent: bytes) -> None:
    """Hold a connection on which no whole request comes; if the server closes it, open another one."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await reader.read()
            writer.close()
        await asyncio.sleep(0.5)


async def stream(url: str, task: str, *, read: bool = True) -> None:
    """Ask for a reply, again and again; without `read`, take nothing of what is sent."""
    async with aiohttp.ClientSession(read_bufsize=2**12) as http:
        while True:
            async with http.post(f"{url}/chat/completions", json=body_of(task)) as response:
                if not read:
                    await asyncio.Event().wait()
                async for _ in response.content.iter_any():
                    pass


CROWDS: dict[str, tuple[int, Callable[[str], Coroutine[Any, Any, None]]]] = {
    "silent connections": (5_000, partial(connect, sent=b"")),
    "unfinished headers": (5_000, partial(connect, sent=b"POST /v1/chat/completions HTTP/1.1\r\nHost: ")),
    "slow streams": (500, partial(stream, task="slow")),
    "clients that never read their 10 MB": (100, partial(stream, task="long", read=False)),
    "client of events of 10 MB": (1, partial(stream, task="large")),
    "client of events of 20 MB, which are refused": (1, partial(stream, task="huge")),
}


def be_a_crowd(url: str, name: str, count: int, told: Connection) -> None:
    async def gather() -> None:
        each = CROWDS[name][1]
        members = []
        for number in range(count):
            members.append(asyncio.create_task(each(url)))
            if number % 100 == 99:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE)
        told.send(True)
        await asyncio.gather(*members)

    asyncio.run(gather())


@contextmanager
def crowd(url: str, name: str, count: int) -> Iterator[None]:
    there, told = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=be_a_crowd, args=(url, name, count, told), daemon=True)
    process.start()
    try:
        there.recv()
        yield
        if not process.is_alive():
            sys.exit(f"The {name} went away.")
    finally:
        process.terminate()
        process.join()


# ------------------------------------------------------------------------------------------------ the measurement


async def seconds(url: str, requests: int) -> list[float]:
    """Return how long each of some short streamed requests takes, one after another."""
    taken = []
    async with aiohttp.ClientSession() as http:
        for _ in range(requests):
            began = time.perf_counter()
            async with http.post(f"{url}/chat/completions", json=body_of("short")) as response:
                said = await response.read()
            taken.append(time.perf_counter() - began)
            assert said.count(b"data:") > TASKS["short"][0], said[:500]
            await asyncio.sleep(PAUSE)
    return taken


def measure(url: str, requests: int, name: str, count: int) -> tuple[float, float, float]:
    """Return the usual time, that beside a crowd, and the longest beside it, in milliseconds."""
    usual = asyncio.run(seconds(url, requests))
    with crowd(url, name, count):
        crowded = asyncio.run(seconds(url, requests))
    usual += asyncio.run(seconds(url, requests))
    return median(usual) * 1000, median(crowded) * 1000, max(crowded) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=60, help="measured in each state")
    parser.add_argument("--quick", action="store_true", help="a tenth of each crowd")
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ratios = {}
    with model_server() as upstream, proxy(upstream) as url:
        asyncio.run(seconds(url, 10))
        for name, (count, _) in CROWDS.items():
            count = max(1, count // 10) if args.quick else count
            bare, bare_crowded, _ = measure(upstream, args.requests, name, count)
            usual, crowded, longest = measure(url, args.requests, name, count)
            ratios[name] = crowded / usual
            print(
                f"{count:5,} {name:46} {usual:5.1f} ms → {crowded:5.1f} ms, {ratios[name]:.2f} times, longest "
                f"{longest:,.0f} ms; without the proxy {bare_crowded / bare:.2f} times"
            )
    worst = max(ratios, key=lambda name: ratios[name])
    print(f"bench crowd: others take at most {ratios[worst]:.2f} times as long ({worst})")


if __name__ == "__main__":
    main()
