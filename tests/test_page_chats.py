"""Chats of web pages: a served agent behind the AI SDK's and AG-UI's requests, alone and mounted elsewhere."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from closeout import Agent, AgentApp
from closeout.testing import answer, call, say
from serving import Served, serving, written_model
from test_page_streams import LONG, agent_of, chunks_in, draw, lookup

Found = dict[str, Any]


def user(text: str, *files: Found) -> Found:
    return {"id": "u", "role": "user", "parts": [*files, {"type": "text", "text": text}]}


def decided(name: str, *, approved: bool, reason: str = "") -> Found:
    approval = {"id": name, "approved": approved, "reason": reason}
    part = {"type": "tool-pay", "toolCallId": "x", "state": "approval-responded", "approval": approval}
    return {"id": "a", "role": "assistant", "parts": [part]}


async def post(served: Served, chat: str, message: Found, *, status: int = 200, **body: Any) -> Any:
    body = {"id": chat, "messages": [message], "trigger": "submit-message", **body}
    async with served.http.post(f"{served.base_url}/ui", json=body) as response:
        assert response.status == status, await response.text()
        return chunks_in(await response.read()) if status == 200 else (await response.json())["error"]


async def messages(served: Served, chat: str, path: str = "ui") -> list[Found]:
    async with served.http.get(f"{served.base_url}/{path}/{chat}") as response:
        found: list[Found] = (await response.json())["messages"]
        return found


def parts(message: Found) -> list[Found]:
    return [each for each in message["parts"] if each["type"] != "step-start"]


def pays(request: Any) -> Any:
    return call("pay", order="7") if request.messages[-1].role == "user" else answer(request.last)


async def test_a_chat_remembers_and_is_read_again(tmp_path: Path) -> None:
    async with serving(agent_of([say("Hello Ada."), say("You are Ada.")], tmp_path)) as served:
        chunks = await post(served, "c1", user("I am Ada."))
        assert (chunks[0]["messageId"], chunks[-1]["type"]) == ("c1.1", "finish")
        await post(served, "c1", user("Who am I?"))
        said = [[part["text"] for part in parts(each)] for each in await messages(served, "c1")]
        assert said == [["I am Ada."], ["Hello Ada."], ["Who am I?"], ["You are Ada."]]
        assert [each.text for each in served.host.agent.session("c1").messages][-4:] == [each[0] for each in said]
        assert await messages(served, "new") == []
        error = await post(served, "c1", user("?"), status=409, trigger="regenerate-message")
        assert error["message"] == "This message has its answer. Send another message."


async def test_calls_are_approved_and_declined(tmp_path: Path) -> None:
    async with serving(agent_of(pays, tmp_path)) as served:
        for chat, approved, state in (("c1", True, "output-available"), ("c2", False, "output-denied")):
            chunks = await post(served, chat, user("Pay 7."))
            (asked,) = [each for each in chunks if each["type"] == "tool-approval-request"]
            error = await post(served, chat, user("Hurry!"), status=409)
            assert error["message"] == "The last message waits for a decision (pay). Decide it first."
            chunks = await post(served, chat, decided(asked["approvalId"], approved=approved, reason="too much"))
            assert chunks[-1]["messageMetadata"]["status"] == "answered"
            assert not [each for each in chunks if each["type"] == "start"]  # the message goes on
            paid, said = parts((await messages(served, chat))[-1])
            assert (paid["type"], paid["state"], paid["approval"]["approved"]) == ("tool-pay", state, approved)
            assert ("paid 7" if approved else "too much") in said["text"]


async def test_a_call_that_was_not_decided_when_its_run_was_stopped_asks_no_more(tmp_path: Path) -> None:
    async with serving(agent_of(pays, tmp_path)) as served:
        await post(served, "c1", user("Pay 7."))
        await served.http.post(f"{served.base_url}/ui/c1/stop")
        (paid,) = parts((await messages(served, "c1"))[-1])
        assert (paid["state"], paid["errorText"]) == ("output-error", "The run ended before this call.")
        (told,) = [each for each in await messages(served, "c1", "ag-ui") if each["role"] == "tool"]
        assert told["content"] == "The run ended before this call."
        chunks = await post(served, "c1", user("Pay 7 after all."))
        assert [each for each in chunks if each["type"] == "tool-approval-request"], "the chat goes on"


async def test_a_question_is_answered_by_the_next_message(tmp_path: Path) -> None:
    script = [call("ask_user", question="Which?", options=["a", "b"]), say("It is b.")]
    async with serving(agent_of(script, tmp_path)) as served:
        (asked,) = [each for each in await post(served, "c1", user("Find it.")) if each["type"] == "data-question"]
        assert asked["data"] == {"reason": "", "question": "Which?", "options": ["a", "b"]}
        await post(served, "c1", user("b"))
        roles = [(each["role"], parts(each)[-1].get("text")) for each in await messages(served, "c1")]
        assert roles == [("user", "Find it."), ("assistant", None), ("user", "b"), ("assistant", "It is b.")]


async def test_files_go_both_ways(tmp_path: Path) -> None:
    data = "data:text/plain;base64," + base64.b64encode(b"The Moon is far.").decode()
    async with serving(agent_of([call("draw"), say("Drawn.")], tmp_path)) as served:
        sent = {"type": "file", "mediaType": "text/plain", "filename": "moon.txt", "url": data}
        (file,) = [each for each in await post(served, "c1", user("Draw.", sent)) if each["type"] == "file"]
        assert file["providerMetadata"] == {"closeout": {"filename": "chart.csv"}}
        async with served.http.get(f"{served.url}{file['url']}") as response:
            assert await response.text() == "a,b\n1,2\n"
        first, last = await messages(served, "c1")
        assert (first["parts"][1]["filename"], parts(last)[1]["url"]) == ("moon.txt", file["url"])
        link = {"type": "file", "mediaType": "image/png", "url": "https://example.org/a.png"}
        assert "fetches nothing" in (await post(served, "c2", user("See.", link), status=400))["message"]


async def test_a_page_that_is_loaded_again_follows_the_run_under_way(tmp_path: Path) -> None:
    async with written_model() as model:
        llm = {"llm": {"base_url": model.base_url, "api_key": "none"}}
        agent = Agent("openai:m", [lookup, draw], home=tmp_path, config=llm, dialect="function_call")
        async with serving(agent) as served:
            first = asyncio.create_task(post(served, "c1", user("How far?")))
            reply = await model.asked()
            reply.text(LONG)
            error = await post(served, "c1", user("And?"), status=409)
            assert error["code"] == "busy"
            assert [each["role"] for each in await messages(served, "c1")] == ["user"]
            async with served.http.get(f"{served.base_url}/ui/c1/stream") as second:
                reply.text("That is all.")
                reply.end()
                chunks = chunks_in(await second.read())
            assert chunks == await first
            async with served.http.get(f"{served.base_url}/ui/c1/stream") as response:
                assert response.status == 204

            stopped = asyncio.create_task(post(served, "c1", user("Again.")))
            (await model.asked()).text(LONG)
            await served.http.post(f"{served.base_url}/ui/c1/stop")
            assert (await stopped)[-1] == {"type": "abort"}
            assert (await messages(served, "c1"))[-1]["metadata"]["status"] == "cancelled"


async def test_ag_ui_answers_interrupts_and_reads_its_messages_again(tmp_path: Path) -> None:
    async def run(served: Served, thread: str, **body: Any) -> list[Found]:
        about = {"threadId": thread, "runId": "page-run", "tools": [], "context": [], "state": {}}
        async with served.http.post(f"{served.base_url}/ag-ui", json={**about, **body}) as response:
            assert response.status == 200, await response.text()
            return chunks_in(await response.read())

    def asked(text: str) -> list[Found]:
        return [{"id": "u", "role": "user", "content": text}]

    async with serving(agent_of(pays, tmp_path)) as served:
        events = await run(served, "t1", messages=asked("Pay 7."))
        (interrupt,) = events[-1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        events = await run(served, "t1", messages=asked("Pay 7."), resume=resume)
        assert (events[0]["type"], events[0]["runId"]) == ("RUN_STARTED", "page-run")
        assert not [each for each in events if each["type"] == "TOOL_CALL_START"]  # the page has it already
        assert [each["content"] for each in events if each["type"] == "TOOL_CALL_RESULT"] == ["paid 7"]
        assert events[-1]["outcome"] == {"type": "success"}
        found = await messages(served, "t1", "ag-ui")
        assert [each["role"] for each in found] == ["user", "assistant", "tool", "assistant"]
    script = [call("ask_user", question="Which?"), say("b.")]
    async with serving(agent_of(script, tmp_path / "2")) as served:
        events = await run(served, "t2", messages=asked("Find it."))
        (interrupt,) = events[-1]["outcome"]["interrupts"]
        assert (interrupt["reason"], interrupt["message"]) == ("question", "Which?")
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"answer": "b"}}]
        assert (await run(served, "t2", messages=asked("b"), resume=resume))[-1]["outcome"] == {"type": "success"}


# ------------------------------------------------------------------------------------------------ mounted


@asynccontextmanager
async def mounted(served: AgentApp) -> AsyncIterator[str]:
    """The address of an application in which an agent is mounted at /agent."""
    uvicorn = pytest.importorskip("uvicorn")
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount("/agent", served)], lifespan=served.lifespan)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/agent"
        finally:
            server.should_exit = True
            await running


async def test_a_mounted_agent_keeps_its_users_apart(tmp_path: Path) -> None:
    def user_of(scope: Any) -> str:
        return dict(scope["headers"]).get(b"x-session", b"").decode()

    served = AgentApp(agent_of([call("draw"), say("Drawn.")], tmp_path), user=user_of)
    async with mounted(served) as url, ClientSession() as http:
        ada = {"x-session": "ada"}
        body = {"id": "c 1/ü", "messages": [user("Draw.")]}
        async with http.post(f"{url}/v1/ui", json=body, headers=ada) as response:
            chunks = chunks_in(await response.read())
        (file,) = [each for each in chunks if each["type"] == "file"]
        assert file["url"].startswith("/agent/v1/runs/")
        async with http.get(url.removesuffix("/agent") + file["url"], headers=ada) as response:
            assert await response.text() == "a,b\n1,2\n"
        chat = f"{url}/v1/ui/c%201%2F%C3%BC"
        async with http.get(chat, headers=ada) as response:
            assert len((await response.json())["messages"]) == 2
        for headers, status in (
            ({"x-session": "bob"}, 404),
            ({"x-session": "bob", "x-closeout-user": "ada"}, 404),
            ({"x-closeout-user": "ada"}, 401),
        ):
            async with http.get(chat, headers=headers) as response:
                assert response.status == status
    store = served.host.store
    assert [run.run_id for run in store.runs()] == ["c 1/ü.1"]


async def test_a_mounted_agent_continues_runs_after_a_restart_and_notices_that_a_client_left(tmp_path: Path) -> None:
    async with written_model() as model:
        llm = {"llm": {"base_url": model.base_url, "api_key": "none"}}

        def app() -> AgentApp:
            return AgentApp(Agent("openai:m", [lookup], home=tmp_path, config=llm, name="a"), drain_seconds=0.0)

        async with mounted(app()) as url, ClientSession() as http:
            body = {"id": "c1", "messages": [user("How far?")]}
            async with http.post(f"{url}/v1/ui", json=body) as response:
                (await model.asked()).text(LONG)
                await response.content.readany()
        async with mounted(app()) as url, ClientSession() as http:
            reply = await model.asked()
            async with http.get(f"{url}/v1/ui/c1/stream") as response:
                reply.text("It is far.")
                reply.end()
                chunks = chunks_in(await response.read())
            assert chunks[-1]["messageMetadata"]["answer"] == "It is far."
            completion = {"model": "a", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
            async with http.post(f"{url}/v1/chat/completions", json=completion) as response:
                reply = await model.asked()
                await response.content.readany()
                response.close()
            await asyncio.wait_for(reply.gone.wait(), 10)  # nobody can receive the answer any more
