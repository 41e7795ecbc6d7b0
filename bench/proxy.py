"""A client loop against a misbehaving model: bare, through `the proxy`, and through proxies that only ask again.

The client is strict: it runs a call only if its name and arguments are valid and gives the model an error otherwise. It
takes a text without calls for the answer, unless it was cut off. Right is a task whose calls were all made and whose
answer is right. "ask again" is the least that a guardrail can do, written here: three inferences, with the error as a
hint. With `--forge`, the proxy of forge-guardrails takes part, run by the Python in whose environment it is installed.
With `--clients`, the agents of five libraries take the place of that client: 23 kinds of faults, each once in a task,
at a turn that the seed says, whole and streamed.

    python bench/proxy.py [--tasks 100] [--requests 300] [--seed 1] [--forge PYTHON]
    python bench/proxy.py --clients PYTHON [--seeds 10] [--only CLIENT …] [--forge PYTHON]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from closeout.journal.store import close_stores, open_store
from closeout.server.proxy.proxy_server import Proxy
from closeout.server.serving import proxy_app
from closeout.server.upstream import Upstream
from closeout.testing import Misbehaviour, RequestView, Turn, always, answer, call, once, serve_script, sometimes

REPAIRABLE = ("malformed", "wrong_parameter", "wrong_types", "wrong_dialect")
ASKED_AGAIN = (
    "misspelt_tool",
    "empty",
    "truncated",
    "hallucinated_observation",
    "repeated",
    "error_in_200",
    "garbage_body",
)
RETRIED_BY_CLIENTS = ("server_error", "overloaded", "html_error")
UNFINISHED = ("dropped", "filtered", "no_reason", "no_end", "unknown_reason")
ODD = ("rejected_llama_cpp", "rejected_llama_cpp_peg", "null_id", "object_arguments")
KINDS = (*REPAIRABLE, *ASKED_AGAIN, *RETRIED_BY_CLIENTS, *UNFINISHED, *ODD)
SHARE = 0.3
PAUSE = 0.05  # seconds between two requests whose time is taken: records are written after a request
ANSWER = "4711"
PARAMETERS = {
    "type": "object",
    "properties": {"search_term": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["search_term"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "Look up", "parameters": PARAMETERS}}]


def script(calls: int) -> list[Turn]:
    turns = [Turn("", calls=[call("lookup", search_term=f"key {n}", limit=5)]) for n in range(calls)]
    return [*turns, answer(ANSWER, "All keys are known now.")]


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


# ------------------------------------------------------------------------------------------------ the client


async def ask(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    """As SDKs do: two retries for 5xx and 429, none for a body that is not a reply."""
    for _ in range(3):
        async with http.post(f"{url}/chat/completions", json=body, headers={"Authorization": "Bearer x"}) as response:
            if response.status < 429:
                choice = json.loads(await response.read())["choices"][0]
                return {**choice["message"], "cut": choice["finish_reason"] == "length"}
    raise ValueError("three errors in a row")


def problem(called: dict[str, Any]) -> str:
    """Why a call is not valid; empty if it is."""
    try:
        arguments = json.loads(called["arguments"])
    except ValueError:
        return "not JSON"
    wrong = not isinstance(arguments, dict) or not isinstance(arguments.get("search_term"), str)
    wrong = (
        wrong or not isinstance(arguments.get("limit", 0), int) or not {"search_term", "limit"}.issuperset(arguments)
    )
    return "wrong arguments" if wrong else "" if called["name"] == "lookup" else "no such tool"


async def task(http: aiohttp.ClientSession, url: str, calls: int) -> bool:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Look up all keys."}]
    made: set[str] = set()
    for _ in range(2 * calls + 2):
        try:
            said = await ask(http, url, {"model": "m", "messages": messages, "tools": TOOLS})
        except (ValueError, KeyError, TypeError, aiohttp.ClientError):
            return False
        cut = said.pop("cut")
        messages.append({key: value for key, value in said.items() if value is not None})
        if cut and not said.get("tool_calls"):
            messages.append({"role": "user", "content": "Your last reply was cut off. Be brief."})
            continue
        if not said.get("tool_calls"):
            return len(made) == calls and ANSWER in (said.get("content") or "")
        for each in said["tool_calls"]:
            wrong = problem(each["function"])
            if not wrong:
                made.add(json.loads(each["function"]["arguments"])["search_term"])
            content = f"Error: {wrong}" if wrong else "The value is 5."
            messages.append({"role": "tool", "tool_call_id": each["id"], "content": content})
    return False


# ------------------------------------------------------------------------------------------------ the ways


INFERENCES = 3  # of the proxy that asks again


def asking_again(upstream: str, http: aiohttp.ClientSession) -> web.Application:
    """A proxy that repairs nothing: it asks again if a call is not valid, or the reply is empty or cut off."""

    async def serve(request: web.Request) -> web.Response:
        body = await request.json()
        for _ in range(INFERENCES):
            async with http.post(f"{upstream}/chat/completions", json=body) as response:
                data, status = await response.read(), response.status
            wrong = "" if status != 200 else reply_problem(data)
            if not wrong:
                break
            hint = {"role": "user", "content": f"Your last reply was not valid: {wrong}. Try again."}
            body = {**body, "messages": [*body["messages"], hint]}
        return web.Response(status=status, body=data, content_type="application/json")

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", serve)
    return app


def reply_problem(data: bytes) -> str:
    try:
        choice = json.loads(data)["choices"][0]
    except (ValueError, KeyError, TypeError, IndexError):
        return "not a reply"
    calls = choice["message"].get("tool_calls") or ()
    if not calls:
        text = str(choice["message"].get("content") or "")
        return "empty" if not text.strip() else "cut off" if choice["finish_reason"] == "length" else ""
    return next(filter(None, (problem(each["function"]) for each in calls)), "")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def forge(python: str, upstream: str) -> AsyncIterator[str]:
    """The proxy of forge-guardrails, as its documentation starts it."""
    port = free_port()
    command = ["-m", "forge.proxy", "--backend-url", upstream.removesuffix("/v1"), "--backend", "openai"]
    process = await asyncio.create_subprocess_exec(
        python, *command, "--model", "m", "--port", str(port), "--no-serialize", stdout=sys.stderr, stderr=sys.stderr
    )
    try:
        for _ in range(200):
            await asyncio.sleep(0.1)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            writer.close()
            break
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        await process.wait()


@dataclass
class Tally:
    right: int = 0
    tasks: int = 0
    extra: int = 0

    def __str__(self) -> str:
        return f"{self.right}/{self.tasks} right, {self.extra / max(self.tasks, 1):.2f} extra requests"


def one_conversation(_: RequestView) -> str:
    """All requests of a task belong together, whatever a proxy makes of its key and its messages."""
    return "task"


@dataclass(frozen=True)
class Field:
    """Where tasks are run: each way to the model, and the port where the model of a task listens."""

    ways: Mapping[str, str]
    port: int
    http: aiohttp.ClientSession
    seed: int

    async def run(self, plan: Sequence[Misbehaviour], calls: int, tasks: int) -> None:
        """Run the same tasks in each way, and print what became of them."""
        found = []
        for name, url in self.ways.items():
            tally = Tally()
            for number in range(tasks):
                faults = [replace(each, seed=self.seed * 100_003 + number * 131 + 7) for each in plan]
                async with serve_script(script(calls), misbehave=faults, by=one_conversation, port=self.port) as model:
                    tally.right += await task(self.http, url, calls)
                    tally.extra += max(len(model.requests) - calls - 1, 0)
                    tally.tasks += 1
            found.append(f"{name} {tally}")
        print(f"  {'; '.join(found)}", flush=True)


async def faults(tasks: int, home: Path, seed: int, forge_python: str | None) -> None:
    port = free_port()
    upstream = f"http://127.0.0.1:{port}/v1"
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        proxy = Proxy(Upstream(upstream), open_store(home), read_only_tools=["lookup"])
        ways = {
            "bare": upstream,
            "ask again": await stack.enter_async_context(served(asking_again(upstream, http))),
            "closeout": await stack.enter_async_context(served(proxy_app(proxy))),
        }
        if forge_python:
            ways["forge"] = await stack.enter_async_context(forge(forge_python, upstream))
        field = Field(ways, port, http, seed)
        for kind in REPAIRABLE:
            print(f"{kind} in every reply")
            await field.run([always(kind)], 5, 10)
        for kind in ASKED_AGAIN:
            print(f"{kind} once")
            await field.run([once(kind)], 5, 10)
        kinds = (*REPAIRABLE, *ASKED_AGAIN, *RETRIED_BY_CLIENTS)
        print(f"{SHARE:.0%} of the replies of 20-turn tasks, {len(kinds)} kinds")
        await field.run([sometimes(kind, SHARE / len(kinds)) for kind in kinds], 20, tasks)


# ------------------------------------------------------------------------------------------------ agents of libraries

KEYS = 3  # calls of a task


def library_turn(view: RequestView) -> Any:
    """The next turn for any of the clients: the first key whose value the conversation does not show, or the answer.

    A model that is told of an error makes the call again. smolagents gives its answer with a tool.
    """
    known = view.text.count("The value is 5.")
    if known < KEYS:
        return Turn("", calls=[call("lookup", search_term=f"key {known}", limit=5)])
    return call("final_answer", answer=ANSWER) if "final_answer" in view.tools else answer(ANSWER, "I know it now.")


@dataclass
class Clients:
    """The agents of the libraries, in a process of another Python."""

    process: asyncio.subprocess.Process

    @classmethod
    @asynccontextmanager
    async def started(cls, python: str) -> AsyncIterator[Clients]:
        program = str(Path(__file__).with_name("_proxy_clients.py"))
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(python, program, stdin=pipe, stdout=pipe, stderr=nowhere)
        try:
            yield cls(process)
        finally:
            process.kill()
            await process.wait()

    async def run(self, **task: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(task).encode() + b"\n")
        await self.process.stdin.drain()
        found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found


async def libraries(python: str, seeds: int, only: Sequence[str], home: Path, forge_python: str | None) -> None:
    from _proxy_clients import CLIENTS

    port = free_port()
    upstream = f"http://127.0.0.1:{port}/v1"
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(Clients.started(python))
        proxy = Proxy(Upstream(upstream), open_store(home), read_only_tools=["lookup"])
        ways = {"direct": upstream, "closeout": await stack.enter_async_context(served(proxy_app(proxy)))}
        if forge_python:
            ways["forge"] = await stack.enter_async_context(forge(forge_python, upstream))
        for name in only or CLIENTS:
            for stream in (False, True):
                for way, url in ways.items():
                    wanted = {f"key {n}" for n in range(KEYS)}
                    tally, clean, wrong = Tally(), Tally(), dict[str, int]()
                    for seed in range(seeds):
                        for kind in ("", *KINDS):
                            task = {"client": name, "url": url, "key": f"{seed}-{kind}", "stream": stream}
                            at = 1 + seed % KEYS
                            faults = [replace(once(kind, at), seed=seed)] if kind else []
                            made = serve_script(library_turn, misbehave=faults, by=one_conversation, port=port)
                            async with made as model:
                                found = await clients.run(**task)
                            right = ANSWER in found["answer"] and {*map(str, found["made"])} == wanted
                            counted = tally if kind else clean
                            counted.right += right
                            counted.tasks += 1
                            counted.extra += max(len(model.requests) - KEYS - 1, 0)
                            if kind and not right:
                                wrong[kind] = wrong.get(kind, 0) + 1
                    form = "streamed" if stream else "whole"
                    print(f"{name:<16} {form:<8} {way:<8} {tally}; without a fault {clean}; wrong: {wrong}", flush=True)


# ------------------------------------------------------------------------------------------------ the cost


def reverse_proxy(upstream: str, http: aiohttp.ClientSession) -> web.Application:
    """The least that a proxy can do with aiohttp."""

    async def forward(request: web.Request) -> web.StreamResponse:
        async with http.post(f"{upstream}/chat/completions", data=await request.read()) as response:
            out = web.StreamResponse(status=response.status, headers={"Content-Type": response.content_type})
            await out.prepare(request)
            async for chunk in response.content.iter_any():
                await out.write(chunk)
            await out.write_eof()
            return out

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/chat/completions", forward)
    return app


async def timed(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds until the first byte of the body, and until its end."""
    began = time.perf_counter()
    async with http.post(f"{url}/chat/completions", json=body) as response:
        first = 0.0
        async for _ in response.content.iter_any():
            first = first or time.perf_counter() - began
    return first * 1000, (time.perf_counter() - began) * 1000


async def cost(requests: int, home: Path) -> None:
    text = "This is the answer, which takes a few words to say. " * 4
    past = [{"role": "user", "content": f"Message {n}. " * 40} for n in range(40)]
    slow = serve_script(lambda _: Turn(text=text), record=False, pause=0.002)  # between two events of a stream
    async with slow as model, aiohttp.ClientSession() as http:
        proxy = Proxy(Upstream(model.base_url), open_store(home), read_only_tools=["lookup"])
        async with served(reverse_proxy(model.base_url, http)) as bare, served(proxy_app(proxy)) as governed:
            for stream in (False, True):
                body = {"model": "m", "messages": past, "tools": TOOLS, "stream": stream}
                ways = [("direct", model.base_url), ("reverse proxy", bare), ("closeout models proxy", governed)]
                found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in ways}
                for _ in range(requests):
                    random.shuffle(ways)
                    for name, url in ways:
                        found[name].append(await timed(http, url, body))
                        await asyncio.sleep(PAUSE)
                figures = [
                    f"{name} {median([first for first, _ in times]):.2f} / {median([whole for _, whole in times]):.2f}"
                    for name, times in found.items()
                ]
                kind = "streamed" if stream else "whole"
                print(f"{kind:<9} ms to the first byte / to the end, median of {requests}: {', '.join(figures)}")


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forge", metavar="PYTHON")
    parser.add_argument("--clients", metavar="PYTHON")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if options.clients:
            asyncio.run(libraries(options.clients, options.seeds, options.only, home, options.forge))
            close_stores()
            return
        if options.tasks:
            asyncio.run(faults(options.tasks, home, options.seed, options.forge))
        if options.requests:
            asyncio.run(cost(options.requests, home))
        close_stores()


if __name__ == "__main__":
    main()
