"""Requests that clients repeat: one `Idempotency-Key` is one run, in every API, for every instance."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from closeout import Agent, tool
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from serving import Served, serving
from test_serve_openai import a_client

ASKED = [{"role": "user", "content": "Ship it."}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/runs": {"task": "Ship it."},
    "/v1/responses": {"model": "shop", "input": "Ship it."},
    "/v1/chat/completions": {"model": "shop", "messages": ASKED},
    "/v1/messages": {"model": "shop", "messages": ASKED, "max_tokens": 99},
}


class Shop:
    """An agent with a tool that must not be used twice and lasts until the test opens the gate."""

    def __init__(self) -> None:
        self.shipped: list[str] = []
        self.entered, self.opened = asyncio.Event(), asyncio.Event()

    def agent(self) -> Agent[Any]:
        @tool
        async def ship(order: str) -> str:
            """Ship an order."""
            self.shipped.append(order)
            self.entered.set()
            await self.opened.wait()
            return "It is on its way."

        def play(view: RequestView) -> Turn:
            return answer("Done.") if "on its way" in view.text else call("ship", order="A")

        return Agent(ScriptedClient(play), [ship], name="shop")


async def post(
    served: Served, path: str, *, key: str = "order-7", by: str = "one", **more: Any
) -> tuple[int, str, str]:
    """Send a request. Returns the status, the id of the run, and the body."""
    headers = {"Idempotency-Key": key, "Authorization": f"Bearer {by}"}
    async with served.http.post(served.url + path, json=APIS[path] | more, headers=headers) as response:
        return response.status, response.headers.get("X-Closeout-Run-Id", ""), await response.text()


@pytest.mark.parametrize("path", APIS)
async def test_repeated_requests_share_one_run(path: str) -> None:
    shop = Shop()
    async with serving(shop.agent()) as served:
        at_once = [asyncio.create_task(post(served, path)) for _ in range(3)]
        await shop.entered.wait()
        at_once.pop().cancel()  # a client that is gone does not cancel what its next attempt waits for
        streams = [] if path == "/v1/runs" else [asyncio.create_task(post(served, path, key="s", stream=True))]
        shop.opened.set()
        (status, run_id, _), other = await asyncio.gather(*at_once)
        assert (status, other[:2]) == (202 if path == "/v1/runs" else 200, (status, run_id))
        late = await post(served, path)
        assert late[:2] == (status, run_id)
        await served.host.wait(run_id)
        assert served.host.store.run(run_id).status == "answered"
        for stream in streams:
            seen = await stream
            again = await post(served, path, key="s", stream=True)
            assert again[:2] == seen[:2] != late[:2]
            assert "Done." in again[2]
            assert len(again[2].splitlines()) == len(seen[2].splitlines())
        assert len(shop.shipped) == len(served.host.store.runs()) == 1 + len(streams)
        refused = await post(served, path, metadata={}) if streams else await post(served, path, user="Ada")
        assert (refused[0], "was sent with another request" in refused[2]) == (422, True)


async def test_clients_have_keys_of_their_own_and_keys_are_short_texts() -> None:
    shop = Shop()
    shop.opened.set()
    async with serving(shop.agent()) as served:
        ids = {(await post(served, "/v1/runs", by=client))[1] for client in ("one", "two", "one")}
        assert len(ids) == 2
        for key in ("", "x" * 201):
            status, _, text = await post(served, "/v1/runs", key=key)
            assert (status, "Idempotency-Key must be a short text" in text) == (400, True)
        status, _, text = await post(served, "/v1/responses")
        assert status == 422, "the same key at another API is another request"
        assert {run.run_id for run in served.host.store.runs()} == ids


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_retries_of_the_official_client_ship_once(api: str) -> None:
    shop = Shop()
    async with a_client(shop.agent()) as (client, served):

        async def ask(client: openai.AsyncOpenAI) -> Any:
            key = {"Idempotency-Key": "order-7"}
            if api == "chat":
                asked: Any = ASKED
                return await client.chat.completions.create(model="shop", messages=asked, extra_headers=key)
            return await client.responses.create(model="shop", input="Ship it.", extra_headers=key)

        with pytest.raises(openai.APITimeoutError):
            await ask(client.with_options(timeout=0.2, max_retries=2))
        shop.opened.set()
        found = await ask(client)
        assert (found.choices[0].message.content if api == "chat" else found.output_text) == "Done."
        assert shop.shipped == ["A"]
        assert len(served.host.store.runs()) == 1
