"""A served agent under load: streamed responses at the same time, half of them cut off and continued. Is anything lost?

The model writes its answer of 1,500 characters in pieces of 30, one each 20 ms.

    python bench/server.py [--clients 200] [--calls 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from closeout import Agent, tool
from closeout.messages import Delta, ModelReply, ModelRequest
from closeout.models.base import OnDelta, OnRetry
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app
from closeout.testing import RequestView, ScriptedClient, Turn, call, say

LENGTH, PIECE, PAUSE = 1500, 30, 0.02


class Writer(ScriptedClient):
    """A scripted model that takes its time to write an answer."""

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        reply = await super().complete(request)
        for start in range(0, len(reply.text) if on_delta is not None else 0, PIECE):
            assert on_delta is not None
            on_delta(Delta("text", reply.text[start : start + PIECE]))
            await asyncio.sleep(PAUSE)
        return reply


def answer_of(name: str) -> str:
    return " ".join(f"{name} has {number * number}." for number in range(LENGTH))[:LENGTH].strip()


@tool(read_only=True)
async def lookup(key: str) -> str:
    """Look up a key."""
    await asyncio.sleep(0.05)
    return f"[{key}] is known"


@dataclass
class Tally:
    right: int = 0
    cut: int = 0
    events: int = 0
    pieces: int = 0  # of answers
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # seconds until the first event
    whole: list[float] = field(default_factory=list)


def agent(calls: int, home: Path) -> Agent[Any]:
    def play(view: RequestView) -> Turn:
        done = view.text.count("is known")
        name = view.question.split()[-1]
        return say(answer_of(name)) if done >= calls else call("lookup", key=f"{name}-{done}")

    return Agent(Writer(play), [lookup], home=home, name="agent")


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def one(http: aiohttp.ClientSession, url: str, number: int, tally: Tally) -> None:
    """Follow one response; every second client is cut off in the middle of its answer and continues."""
    began = time.perf_counter()
    seen: list[dict[str, Any]] = []
    body = {"model": "agent", "input": f"Look up client{number}", "stream": True}
    async with http.post(f"{url}/v1/responses", json=body) as response:
        async for event in events_of(response):
            if not seen:
                tally.first.append(time.perf_counter() - began)
            seen.append(event)
            if number % 2 and event["type"] == "response.output_text.delta":
                tally.cut += 1
                break
    if number % 2:
        where = f"{url}/v1/responses/{seen[0]['response']['id']}"
        query = {"stream": "true", "starting_after": str(seen[-1]["sequence_number"])}
        async with http.get(where, params=query) as response:
            seen += [event async for event in events_of(response)]
    tally.whole.append(time.perf_counter() - began)
    tally.events += len(seen)
    numbers = [event["sequence_number"] for event in seen]
    texts = [event["delta"] for event in seen if event["type"] == "response.output_text.delta"]
    tally.pieces += len(texts)
    if numbers == list(range(len(seen))) and "".join(texts) == answer_of(f"client{number}"):
        tally.right += 1
    else:
        tally.wrong.append(f"client {number}: {len(numbers)} events, {''.join(texts)[-100:]!r}")


def median(values: list[float], share: float = 0.5) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def measure(clients: int, calls: int, home: Path) -> Tally:
    tally = Tally()
    host = AgentHost(agent(calls, home), max_runs=clients, max_queue=clients)
    runner = web.AppRunner(agent_app(host), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    connector = aiohttp.TCPConnector(limit=0)
    began, cpu = time.perf_counter(), time.process_time()
    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(one(http, url, number, tally) for number in range(clients)))
    seconds, busy = time.perf_counter() - began, time.process_time() - cpu
    await runner.cleanup()
    print(
        f"{clients} streamed responses at once, {calls} calls each: {tally.right} complete and right, "
        f"{tally.cut} cut off and continued, {len(tally.wrong)} wrong {tally.wrong[:2]}"
    )
    print(
        f"{tally.events:,} events, {tally.pieces:,} of them pieces of answers, in {seconds:.1f} s "
        f"({busy:.1f} s CPU, model, server and clients in one process); "
        f"first event after {median(tally.first):.2f} s, p95 {median(tally.first, 0.95):.2f} s; "
        f"whole response {median(tally.whole):.1f} s, p95 {median(tally.whole, 0.95):.1f} s; "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB"
    )
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--calls", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(measure(options.clients, options.calls, Path(folder)))
    sys.exit(tally.right != options.clients)


if __name__ == "__main__":
    main()
