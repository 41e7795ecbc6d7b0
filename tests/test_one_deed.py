"""A deed is one deed whichever door it comes by: Python, the terminal, the server's two APIs, or the viewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from closeout import Agent, tool
from closeout.cli.approve import approve_command
from closeout.cli.sending import cancel_command
from closeout.errors import CloseoutError, PermanentModelError
from closeout.run.waits.decisions import pending_decisions
from closeout.server.viewer.decision_requests import pending_shape
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from serving import Served, serving
from test_viewer_decisions import decide as sent_by_viewer
from viewer_server import viewer_app

AFTER_CANCEL = {
    "waiting": "cancelled",
    "interrupted": "cancelled",  # as in the queue of a server
    "running": "cancelled",
    "answered": "answered",
    "failed": "failed",
    "cancelled": "cancelled",
}


class Shop:
    """A served agent that pays if it may, or works until it is stopped, or answers or fails at once."""

    def __init__(self) -> None:
        self.paid: list[str] = []

        @tool(approval="always")
        def pay() -> str:
            """Pay."""
            self.paid.append("paid")
            return "paid"

        @tool(read_only=True)
        async def work() -> str:
            """Work."""
            await asyncio.Event().wait()
            return ""

        def play(view: RequestView) -> Turn:
            match view.question:
                case "waiting":
                    return Turn(calls=[call("pay")])
                case "failed":
                    raise PermanentModelError("No such model.")
                case "answered":
                    return answer("done")
            return Turn(calls=[call("work")])

        self.agent = Agent(ScriptedClient(play), [pay, work], name="shop")

    @asynccontextmanager
    async def run_in(self, served: Served, state: str) -> AsyncIterator[str]:
        """A run of the server in a state."""
        before = await begin(served, "running") if state == "interrupted" else ""
        run_id = await begin(served, state)
        if state == "cancelled":
            await self.agent.cancel(run_id)
        store = self.agent.store()
        while store is not None and store.run(run_id).status != state:  # noqa: ASYNC110 - its process is this one
            await asyncio.sleep(0.005)
        yield run_id
        for each in filter(None, (before, run_id)):
            await sent(served, f"runs/{each}/cancel")


async def begin(served: Served, state: str) -> str:
    found = await sent(served, "responses", {"model": "shop", "input": state, "background": True})
    return str(found["id"]).removeprefix("resp_")


async def sent(served: Served, path: str, body: Any = None) -> Any:
    """What the server answers to a POST; what it refuses is a CloseoutError, as elsewhere."""
    async with served.http.post(f"{served.base_url}/{path}", json=body) as response:
        found = await response.json()
        if response.status >= 400:
            raise CloseoutError(str(found))
        return found


async def decided_in_viewer(home: Path, run_id: str, decision: Any) -> None:
    async with TestClient(TestServer(viewer_app(home))) as client:
        status, found = await sent_by_viewer(client, run_id, decision)
        if status == 409:
            raise CloseoutError(str(found))


async def test_a_run_is_cancelled_alike_by_every_door_and_none_decides_on_it_later() -> None:
    shop = Shop()
    async with serving(shop.agent, max_runs=1) as served:
        store = shop.agent.store()
        assert store is not None
        cancelling: list[Callable[[str], Awaitable[Any]]] = [
            shop.agent.cancel,
            lambda run: asyncio.to_thread(cancel_command, run, as_json=True),
            lambda run: sent(served, f"runs/{run}/cancel"),
            lambda run: sent(served, f"responses/resp_{run}/cancel"),
        ]
        for state, after in AFTER_CANCEL.items():
            for cancel in cancelling:
                async with shop.run_in(served, state) as run_id:
                    await cancel(run_id)
                    assert store.run(run_id).status == after, (state, cancelling.index(cancel))
        async with shop.run_in(served, "waiting") as run_id:
            (asked,) = pending_decisions(store.rows(run_id))
            async with served.http.get(f"{served.base_url}/responses/resp_{run_id}") as response:
                (request,) = [
                    each for each in (await response.json())["output"] if each["type"] == "mcp_approval_request"
                ]
            shown = {"id": asked.id, "verdict": "approve", "hash": pending_shape(asked)["hash"]}
            await shop.agent.cancel(run_id)
            item = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
            body = {"model": "shop", "previous_response_id": f"resp_{run_id}", "input": [item]}
            deciding: list[Callable[[], Awaitable[Any]]] = [
                lambda: shop.agent.decide(run_id, {asked.id: True}),
                lambda: shop.agent.resume(run_id, decisions={asked.id: True}),
                lambda: asyncio.to_thread(approve_command, run_id, asked.id, as_json=True),
                lambda: sent(served, f"runs/{run_id}/decisions", {"decisions": {asked.id: True}}),
                lambda: sent(served, "responses", body),
                lambda: decided_in_viewer(store.home, run_id, shown),
            ]
            for decide in deciding:
                with pytest.raises(CloseoutError):
                    await decide()
                assert store.run(run_id).status == "cancelled"
        assert not shop.paid
