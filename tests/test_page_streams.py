"""A run in the streams that web pages read: what a page has at the end is what the record says."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from closeout import Agent, Boxed, File, UsageError, tool
from closeout.run import sse_stream
from closeout.run.page_stream import page_messages
from closeout.testing import ScriptedClient, Turn, answer, call, say
from closeout.tools.builtin import ask_user
from serving import listening

LONG = "The Moon is about 384,400 km away from the Earth. " * 8


@tool(read_only=True)
def lookup(key: str) -> dict[str, str]:
    """Look up a key."""
    if key == "broken":
        raise ValueError("no such key")
    return {"key": key}


@tool(approval="always")
def pay(order: str) -> str:
    """Pay an order."""
    return f"paid {order}"


@tool(read_only=True)
def draw() -> File:
    """Draw."""
    return File("chart.csv", "a,b\n1,2\n")


def agent_of(script: Any, home: Path, **options: Any) -> Agent[Any]:
    return Agent(ScriptedClient(script), [lookup, pay, draw, ask_user], home=home, **options)


def chunks_in(text: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def shown(chunks: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What a page shows after the chunks of one message, as the AI SDK adds them up."""
    parts: dict[str, list[Any]] = {}
    for chunk in chunks:
        kind, place = chunk["type"], chunk.get("id") or chunk.get("toolCallId") or chunk.get("url", "")
        if kind in ("text-start", "reasoning-start"):
            parts[place] = [kind.partition("-")[0], ""]
        elif kind in ("text-delta", "reasoning-delta"):
            parts[place][1] += chunk["delta"]
        elif kind in ("text-end", "reasoning-end") and "providerMetadata" in chunk:
            del parts[place]
        elif kind == "tool-input-available":
            parts[place] = [f"tool-{chunk['toolName']}", chunk["input"], "input-available", None]
        elif kind == "tool-approval-request":
            parts[place][2] = "approval-requested"
        elif kind.startswith("tool-output"):
            parts[place][2:] = [kind.removeprefix("tool-"), chunk.get("output", chunk.get("errorText"))]
        elif kind.startswith(("data-", "file")):
            parts[place] = [kind, chunk.get("data", place)]
    return [
        tuple([*each[:1], each[1].strip()] if each[0] in ("text", "reasoning") else each) for each in parts.values()
    ]


def recorded(agent: Agent[Any], run_id: str, file_url: Callable[[str], str] | None = None) -> list[tuple[Any, ...]]:
    store = agent.store()
    assert store is not None
    messages, _ = page_messages(run_id, (row.event for row in store.rows_from(run_id, 0)), file_url)
    found: list[tuple[Any, ...]] = []
    for part in messages[-1]["parts"]:
        if part["type"] in ("text", "reasoning"):
            found.append((part["type"], part["text"].strip()))
        elif part["type"].startswith("tool-"):
            result = part.get("output", part.get("errorText"))
            found.append((part["type"], part["input"], part["state"], result))
        elif part["type"] != "step-start":
            found.append((part["type"], part.get("data", part.get("url"))))
    return found


async def streamed(agent: Agent[Any], task: str = "What?", **options: Any) -> tuple[str, list[dict[str, Any]]]:
    stream = agent.stream(task)
    text = b"".join([piece async for piece in stream.sse("ai-sdk", **options)])
    return stream.run_id, chunks_in(text)


async def test_a_page_that_watches_and_one_that_is_loaded_later_show_the_same(tmp_path: Path) -> None:
    scripts: list[tuple[Any, dict[str, Any]]] = [
        ([Turn("I look.", calls=[call("lookup", key="a"), call("lookup", key="broken")]), say(LONG)], {}),
        ([say("")] * 9, {"max_turns": 3}),
        ([Turn("First.", calls=[call("nosuch", key="a")]), answer("42", "So it is.")], {"answer": Boxed()}),
        ([call("lookup", key="k"), say("I cannot say."), answer("42")], {"answer": Boxed(), "max_turns": 1}),
        ([Turn("Both.", calls=[call("draw"), call("pay", order="7")])], {}),
        ([call("ask_user", question="Which?", options=["a", "b"])], {}),
        ([Turn(LONG, calls=[call("lookup", key="a")]), call("lookup", key="a"), say("Done.")], {}),
    ]

    def url(name: str) -> str:
        return f"/files/{name}"

    for number, (script, options) in enumerate(scripts):
        agent = agent_of(script, tmp_path / str(number), **options)
        run_id, chunks = await streamed(agent, file_url=url)
        assert shown(chunks) == recorded(agent, run_id, url), number
        assert chunks[0] == {"type": "start", "messageId": run_id, "messageMetadata": {"runId": run_id}}
        assert chunks[-1]["messageMetadata"]["runId"] == run_id


async def test_text_that_does_not_count_is_withdrawn(tmp_path: Path) -> None:
    agent = agent_of(
        [call("lookup", key="k"), say("I cannot say."), answer("42")], tmp_path, answer=Boxed(), max_turns=1
    )
    _, chunks = await streamed(agent)
    withdrawn = {c["id"] for c in chunks if c["type"] == "text-end" and "providerMetadata" in c}
    said = {c["id"]: "" for c in chunks if c["type"] == "text-start"}
    for chunk in chunks:
        if chunk["type"] == "text-delta":
            said[chunk["id"]] += chunk["delta"]
    assert [text for place, text in said.items() if place in withdrawn] == ["I cannot say."]
    assert [text for place, text in said.items() if place not in withdrawn] == ["The answer is \\boxed{42}."]


async def test_a_sub_agents_call_is_decided_in_a_step_of_its_own(tmp_path: Path) -> None:
    """`useChat` continues when every call of the last step is decided, and the outer call is still open."""
    clerk = agent_of([call("pay", order="7"), answer("paid")], tmp_path, name="clerk")
    chief = Agent(ScriptedClient([call("clerk", task="Pay 7.")]), [clerk.as_tool("clerk", "pays")], home=tmp_path)
    _, chunks = await streamed(chief)
    last = chunks[[c["type"] for c in chunks].index("tool-approval-request") - 2 :]
    assert [c["type"] for c in last[:3]] == ["start-step", "tool-input-available", "tool-approval-request"]
    assert (last[1]["toolName"], last[2]["approvalId"]) == ("pay", "r1:clerk/r1")


async def test_ag_ui_gets_whole_runs_calls_results_and_interrupts(tmp_path: Path) -> None:
    script = [Turn("I look.", calls=[call("lookup", key="a")]), call("pay", order="7")]
    body = agent_of(script, tmp_path).stream("What?").sse("ag-ui")
    events = chunks_in(b"".join([piece async for piece in body]))
    assert [each["type"] for each in events] == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ]
    assert events[6]["content"] == '{"key": "a"}'
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["reason"], interrupt["toolCallId"]) == (
        "r2",
        "approval",
        events[8]["toolCallId"],
    )


def test_the_form_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"form must be .*, got 'vercel'"):
        agent_of([], tmp_path).stream("What?").sse("vercel")  # type: ignore[arg-type]


async def test_an_error_is_the_last_event(tmp_path: Path) -> None:
    agent = agent_of([answer("42")], tmp_path)
    for form, kind in (("ai-sdk", "error"), ("ag-ui", "RUN_ERROR")):
        body = agent.stream("").sse(form)  # type: ignore[arg-type]
        (event,) = chunks_in(b"".join([piece async for piece in body]))
        assert event["type"] == kind
        assert "task" in event.get("errorText", event.get("message"))


# ------------------------------------------------------------------------------------------------ web servers


@asynccontextmanager
async def in_aiohttp(agent: Agent[Any]) -> AsyncIterator[str]:
    async def ask(_: web.Request) -> web.Response:
        body = agent.stream("What?").sse()
        return web.Response(body=body, headers=body.headers)

    app = web.Application()
    app.router.add_get("/ask", ask)
    async with listening(app) as port:
        yield f"http://127.0.0.1:{port}/ask"


async def test_events_that_end_while_a_client_leaves_are_no_error() -> None:
    problems, waits = list[dict[str, Any]](), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    async def events() -> AsyncIterator[bytes]:
        yield b"first"
        with suppress(asyncio.CancelledError):
            waits.set()
            await asyncio.Event().wait()

    sent = sse_stream.kept_alive(events(), lambda _: b"")
    assert await anext(sent) == b"first"
    leaving = asyncio.ensure_future(anext(sent))
    await waits.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    del sent, leaving  # a failure that nobody looked at is reported when it is forgotten
    gc.collect()
    assert problems == []


async def test_a_connection_is_kept_alive_and_a_client_that_leaves_cancels_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse_stream, "KEEP_ALIVE_SECONDS", 0.02)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    agent = Agent(ScriptedClient([call("wait")] * 3), [wait], home=tmp_path)
    async with in_aiohttp(agent) as url, ClientSession() as http:
        async with http.get(url) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            seen = b""
            while b": keep-alive\n\n" not in seen or not started.is_set():
                seen += await response.content.readany()
            response.close()
        await asyncio.wait_for(cancelled.wait(), 10)

    started.clear()
    cancelled.clear()
    starlette = pytest.importorskip("starlette.responses")
    body = agent.stream("What?").sse()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if started.is_set() and b"keep-alive" in message.get("body", b""):
            gone.set()

    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    await starlette.StreamingResponse(body, headers=body.headers)(scope, receive, send)
    await asyncio.wait_for(cancelled.wait(), 10)


async def test_django_and_fastapi_send_the_body_as_it_is(tmp_path: Path) -> None:
    from django import http
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    body = agent_of([answer("42")], tmp_path).stream("What?").sse()
    response = http.StreamingHttpResponse(body, headers=body.headers)
    text = b"".join([piece async for piece in response])
    assert b'"type":"finish"' in text
