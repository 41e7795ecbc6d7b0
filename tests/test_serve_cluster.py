"""Several instances of `closeout serve` over one journal: any of them continues what another one began."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.homes import DatabaseHome, Home
from closeout.journal.store import Store, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.builtin import ask_tool
from postgres_server import PostgresServer
from serving import Served, serving
from test_serve_crash import client_of, process


def clerk(folder: Path, home: Home | None = None) -> Agent[Any, Any]:
    """Books and looks, asks, or pays, as the task says. A look lasts until there is a file `open`."""

    @tool
    def book(what: str) -> str:
        """Book."""
        with (folder / "booked").open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")
        return "booked"

    @tool(read_only=True)
    async def look() -> str:
        """Look."""
        (folder / "looking").touch()
        while not (folder / "open").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)
        return "seen"

    @tool(approval="always")
    def pay(to: str) -> str:
        """Pay."""
        return f"{to} was paid"

    def play(view: RequestView) -> Turn:
        last = str(view.messages[-1]["content"])
        if "订" in last:
            return call("book", what="房间")
        if "booked" in last:
            return call("look")
        if "ask" in last:
            return call("ask_user", question="Which?")
        if "pay" in last:
            return call("pay", to="Ada")
        return answer(f"{last}, after {sum(each['role'] == 'user' for each in view.messages)}")

    options = {} if home is None else {"home": home}
    return Agent(ScriptedClient(play), [book, look, pay, ask_tool()], name="clerk", **options)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - another process would do the same
        await asyncio.sleep(0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="kills processes")
async def test_one_instance_continues_what_another_one_began_also_when_that_is_killed(
    database: DatabaseHome, postgres: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "clerk_module.py").write_text(
        f"from pathlib import Path\nfrom test_serve_cluster import clerk\nagent = clerk(Path({str(tmp_path)!r}))\n"
    )
    path = os.pathsep.join(map(str, (tmp_path, *sys.path)))
    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(process("clerk_module:agent", cwd=tmp_path, PYTHONPATH=path))
            for _ in range(2)
        ]
        first, second = [await stack.enter_async_context(client_of(url)) for _, url in (one, two)]

        async def respond(client: Any, text: Any, **more: Any) -> Any:
            return await client.responses.create(model="clerk", input=text, **more)

        # A conversation, a question and an approval.
        begun = await respond(first, "你好")
        assert (await respond(second, "and", previous_response_id=begun.id)).output_text == "and, after 2"
        asked = await respond(first, "ask")
        assert (await respond(second, "blue", previous_response_id=asked.id)).output_text.startswith("blue, after")
        waits = await respond(second, "pay")
        (item,) = [each for each in waits.output if each.type == "mcp_approval_request"]
        approval = {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        assert (await respond(first, [approval])).output_text.startswith("Ada was paid")
        # What the first executes, the second cancels.
        running = await respond(first, "订一", background=True)
        await until((tmp_path / "looking").exists)
        assert (await second.responses.cancel(running.id)).status == "cancelled"
        assert (await first.responses.retrieve(running.id)).status == "cancelled"
        (tmp_path / "looking").unlink()
        # A stream breaks off, is continued at the second, and goes on when the first is killed.
        stream = await respond(first, "订二", stream=True)
        seen = [await anext(aiter(stream)) for _ in range(4)]
        await until((tmp_path / "looking").exists)
        await stream.close()
        assert (await second.responses.retrieve(seen[0].response.id)).status == "in_progress"
        rest = await second.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
        )
        seen.append(await anext(aiter(rest)))
        one[0].kill()
        one[0].wait()
        postgres.end_leases(database.schema)
        (tmp_path / "open").touch()
        seen += [event async for event in rest]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].response.output_text == "seen, after 1"
        whole = await second.responses.retrieve(seen[0].response.id, stream=True)
        assert [event async for event in whole] == seen
    assert (tmp_path / "booked").read_text("utf-8").split() == ["房间", "房间"]


@asynccontextmanager
async def two_hosts(home: Home, folder: Path) -> AsyncIterator[tuple[Served, Served]]:
    """As two processes have them: each with a store of its own."""
    agents = clerk(folder, home), clerk(folder, home)
    with closing(Store(home)) as elsewhere:
        agents[1]._assembler.store = lambda: elsewhere  # type: ignore[method-assign]
        async with serving(agents[0], max_runs=1) as one, serving(agents[1], max_runs=1) as two:
            yield one, two


async def last_event(served: Served, run_id: str) -> Any:
    async with served.http.get(f"{served.base_url}/runs/{run_id}/events") as response:
        *_, last = [line async for line in response.content if line.startswith(b"data: ")]
    return json.loads(last.removeprefix(b"data: "))


async def test_what_a_stopping_instance_has_not_ended_is_continued_by_another_one(
    any_home: Home, tmp_path: Path
) -> None:
    async with two_hosts(any_home, tmp_path) as (one, two):
        run_id = await one.host.submit("订", notes={"api": "runs"})
        await until((tmp_path / "looking").exists)
        followed = asyncio.create_task(last_event(two, run_id))
        await one.host.stop()
        (tmp_path / "open").touch()
        assert (await followed)["status"] == "answered"
        async with two.http.get(f"{two.base_url}/runs/{run_id}") as response:
            assert (await response.json())["answer"] == "seen, after 1"
        await until(lambda: open_store(any_home).notes_that_begin_with("handed over ") == [])
    assert (tmp_path / "booked").read_text("utf-8").split() == ["房间"]


async def test_a_repeated_chat_request_finds_its_run_at_any_instance_also_when_the_first_one_stops(
    any_home: Home, tmp_path: Path
) -> None:
    async def ask(served: Served) -> tuple[int, bool, str]:
        body, key = {"model": "clerk", "messages": [{"role": "user", "content": "订"}]}, {"Idempotency-Key": "七"}
        async with served.http.post(f"{served.base_url}/chat/completions", json=body, headers=key) as response:
            return response.status, "Retry-After" in response.headers, await response.text()

    async with two_hosts(any_home, tmp_path) as (one, two):
        first = asyncio.create_task(ask(one))
        await until((tmp_path / "looking").exists)
        second = asyncio.create_task(ask(two))
        await one.host.stop()
        (tmp_path / "open").touch()
        status, may_retry, _ = await first
        assert status == 200 or (status, may_retry) == (503, True)  # 200 if the other instance was faster to begin it
        for answered in (await second, await ask(two)):
            assert (answered[0], "seen, after 1" in answered[2]) == (200, True)
        assert len(open_store(any_home).runs()) == 1
    assert (tmp_path / "booked").read_text("utf-8").split() == ["房间"]


async def test_an_idle_instance_takes_what_is_queued_at_another_one(any_home: Home, tmp_path: Path) -> None:
    async with two_hosts(any_home, tmp_path) as (one, two):
        ids = [await one.host.submit(text, notes={"api": "runs"}) for text in ("订", "queued")]
        await one.host.wait(ids[1])  # although the first still occupies the only place
        await until(lambda: two.host.ended.total() > 0)  # it counts the end after it is recorded
        assert (one.host.active, two.host.ended) == (1, {"answered": 1})
        await two.host.cancel(ids[0])
        assert (await two.host.state(ids[0]), open_store(any_home).run(ids[0]).status) == ("", "cancelled")


async def test_a_server_continues_open_runs_of_an_older_version_and_no_run_that_no_client_comes_back_for(
    any_home: Home, tmp_path: Path
) -> None:
    store = open_store(any_home)
    for name, api, server in (("kept", "runs", "clerk"), ("lost", "chat", "clerk"), ("other", "runs", "bank")):
        notes = {"serve": {"agent": server, "api": api}}
        await clerk(tmp_path, any_home).submit(name, run_id=name, origin=notes)
    store.transact(lambda db: db.execute("UPDATE runs SET agent='' WHERE run_id='kept'"))  # as it was noted then
    async with serving(clerk(tmp_path, any_home), name="clerk") as served:
        await served.host.wait("kept")
        await until(lambda: "lost" in served.host._left_alone)
        assert [await served.host.state(name) for name in ("kept", "lost")] == ["", ""]
    assert [store.run(name).status for name in ("kept", "lost", "other")] == ["answered", "interrupted", "interrupted"]
