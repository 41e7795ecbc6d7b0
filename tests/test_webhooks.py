"""Webhooks: each end and wait is sent at least once, signed, from an outbox that is written with it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from cli_process import here, start
from closeout import Agent, Webhook, tool
from closeout.errors import ConfigError, UsageError
from closeout.fleet import announcing
from closeout.fleet.announcing import DELAYS, unsent_ends
from closeout.fleet.chores import list_schedules
from closeout.homes import Home
from closeout.journal.store import close_store, open_store
from closeout.run.cancelling import cancel_run
from closeout.server.serve.host import AgentHost
from closeout.testing import ScriptedClient, answer, call, serve_script

KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """Receives webhooks and checks their signatures as the Standard Webhooks say."""

    def __init__(self, status: Callable[[str, int], int] = lambda notice, tries: 204) -> None:
        self.tries, self.received = Counter[str](), dict[str, Any]()
        self.url, self._status = "", status
        self.news = asyncio.Event()

    async def _post(self, request: web.Request) -> web.Response:
        name, at, body = request.headers["webhook-id"], request.headers["webhook-timestamp"], await request.read()
        signed = hmac.digest(KEY, f"{name}.{at}.".encode() + body, hashlib.sha256)
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
        self.tries[name] += 1
        status = self._status(name, self.tries[name])
        if status < 300:
            assert self.received.setdefault(name, json.loads(body)) == json.loads(body)  # each try says the same
            self.news.set()
        return web.Response(status=status)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/hook", self._post)
        async with TestServer(app) as server:
            self.url = str(server.make_url("/hook"))
            yield self

    def webhook(self, **options: Any) -> Webhook:
        return Webhook(self.url, SECRET, allow_private="127.0.0.1", **options)


@tool(approval="always")
async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def shop(home: Home, webhook: Any, **options: Any) -> Agent[Any, Any]:
    client = ScriptedClient(
        lambda view: call("pay", amount=5) if view.messages[-1]["role"] == "user" else answer("done")
    )
    return Agent(client, [pay], home=home, name="shop", dialect="function_call", webhook=webhook, **options)


async def test_the_wait_and_the_end_of_a_run_are_sent_once_each(any_home: Home) -> None:
    async with Receiver().listening() as receiver:
        agent = shop(any_home, receiver.webhook())
        run = await agent.run("Pay 5.", run_id="order-1", user="ann")
        assert receiver.received == {}  # what is recorded is sent by a worker, a server, or `resume_due`
        await agent.resume_due()
        await agent.resume("order-1", decisions={run.waiting[0].id: True})
        await agent.work(until_idle=True)
        await agent.resume_due()
    waiting, ended = receiver.received.values()
    assert (waiting["type"], waiting["data"]["status"]) == ("run.waiting", "waiting")
    (asked,) = waiting["data"]["waiting"]  # enough to show the call, and to decide on this one alone
    assert (asked["tool"], asked["arguments"], asked["hash"]) == ("pay", {"amount": 5}, run.waiting[0].hash)
    assert (ended["type"], ended["timestamp"][-6:]) == ("run.ended", "+00:00")
    assert ended["data"] == {
        "run_id": "order-1",
        "agent": "shop",
        "user": "ann",
        "status": "answered",
        "stop_reason": "answered",
        "answer": "done",
        "error": "",
    }
    assert set(receiver.tries.values()) == {1}
    assert unsent_ends(open_store(any_home)) == []


async def test_a_server_begins_recurring_runs_and_announces_their_ends(any_home: Home) -> None:
    async with Receiver().listening() as receiver:
        client = ScriptedClient(lambda view: answer("done"))
        agent = Agent(client, home=any_home, name="shop", webhook=receiver.webhook())
        start = datetime(2026, 1, 1, tzinfo=UTC)
        await agent.submit("Report.", run_id="daily", every="0 7 * * *", user="ann", start_at=start)
        async with AgentHost(agent) as host, asyncio.timeout(30):
            await receiver.news.wait()
            run = await host.find("daily.20260101T070000Z")  # it is the server's, as any other one
    (notice,) = receiver.received.values()
    assert (notice["data"]["run_id"], notice["data"]["status"]) == (run.run_id, "answered")
    assert (run.started.user, run.started.origin["schedule"]["name"]) == ("ann", "daily")


async def test_a_worker_of_the_command_line_begins_recurring_runs_and_announces_their_ends(
    home: Path, tmp_path: Path
) -> None:
    with serve_script(lambda view: answer("done")) as model:
        async with Receiver().listening() as receiver:
            file = tmp_path / "agent.yaml"
            file.write_text(
                f"agent: {{name: shop}}\nllm: {{model_name: x, base_url: '{model.base_url}', api_key: k}}\n"
                f"webhook: {{url: '{receiver.url}', secret: {SECRET}, events: [ended], allow_private: [127.0.0.1]}}\n"
                "schedules: {yearly: {task: Report., every: 0 7 1 1 *, timezone: Asia/Tokyo}}\n"
            )
            past = datetime(2026, 1, 1, tzinfo=UTC)
            await Agent.from_yaml(file).submit("Report.", run_id="daily", every="0 7 * * *", start_at=past)
            process = start("work", str(file))
            async with asyncio.timeout(60):
                await receiver.news.wait()
            process.send_signal(signal.SIGTERM)
            _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, err
    assert [each["data"]["run_id"] for each in receiver.received.values()] == ["daily.20260101T070000Z"]
    assert [each.name for each in list_schedules(open_store(home))] == ["daily", "yearly"]


async def test_an_end_that_no_agent_records_is_sent_too(any_home: Home) -> None:
    async with Receiver().listening() as receiver:
        agent = shop(any_home, receiver.webhook(events="ended"))
        await agent.run("Pay 5.", run_id="order-1")
        await cancel_run(open_store(any_home), "order-1", 10.0)  # as `closeout runs cancel` does
        await agent.resume_due()
    assert [each["data"]["status"] for each in receiver.received.values()] == ["cancelled"]


async def test_a_run_that_a_stopping_worker_hands_over_has_not_ended(any_home: Home) -> None:
    begun = asyncio.Event()

    @tool(read_only=True)
    async def think() -> str:
        """Think."""
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(600)
        return "thought"

    async with Receiver().listening() as receiver:
        steps = ScriptedClient(lambda view: call("think") if len(view.messages) < 3 else answer("done"))
        agent = Agent(steps, [think], home=any_home, dialect="function_call", webhook=receiver.webhook())
        await agent.submit("Think.")
        stop = asyncio.Event()
        working = asyncio.create_task(agent.work(stop, drain_seconds=0.0))
        await begun.wait()
        stop.set()
        await working
        await agent.resume_due()
        assert receiver.received == {}
        await agent.work(until_idle=True)
    assert [each["data"]["status"] for each in receiver.received.values()] == ["answered"]


async def test_a_receiver_that_fails_is_asked_again_and_given_up_after_days(
    any_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(DELAYS) == pytest.approx(5 * 86_400, rel=0.05)
    monkeypatch.setattr(announcing, "DELAYS", DELAYS[:2])
    async with Receiver(lambda name, tries: 500 if tries <= 2 else 200).listening() as receiver:
        agent = shop(any_home, receiver.webhook(events=("waiting",)))
        await agent.run("Pay 5.", run_id="order-1")
        store = open_store(any_home)
        chores, now = agent.chores(), store.clock()
        for tries, delay in enumerate(DELAYS[:2], 1):
            await chores.announce(now)
            await chores.announce(now)  # it is not due yet
            (unsent,) = unsent_ends(store)
            assert (unsent["run_id"], unsent["tries"], unsent["error"]) == ("order-1", tries, "HTTP 500")
            assert (unsent_ends(store, "order-1"), unsent_ends(store, "order")) == ([unsent], [])
            if isinstance(any_home, Path):  # that of the command line
                found = (await asyncio.to_thread(here, "runs", "order-1", "--json")).json
                assert found["unsent"] == [unsent]
                done = await asyncio.to_thread(here, "runs", "order-1")
                assert f"announcement failed: {tries} tries, next 20" in done.out
            assert delay <= unsent["due"] - now <= 1.1 * delay
            now = unsent["due"]
        await chores.announce(now)
        assert len(receiver.received) == 1
        assert unsent_ends(store) == []

    async with Receiver(lambda name, tries: 302).listening() as receiver:  # redirects are not followed
        agent = shop(any_home, receiver.webhook())
        await agent.run("Pay 5.", run_id="order-2")
        now = store.clock()
        while (next_try := await agent.chores().announce(now)) < float("inf"):
            now = next_try
        assert now - store.clock() >= sum(DELAYS[:2]) - 60
        (unsent,) = unsent_ends(store)
        assert (unsent["tries"], unsent["due"], unsent["error"]) == (3, None, "HTTP 302")
        if isinstance(any_home, Path):  # that of the command line
            done = await asyncio.to_thread(here, "runs", "webhooks")
            assert done.out == "order-2  3 tries, given up: HTTP 302\n"
            done = await asyncio.to_thread(here, "doctor")
            assert "1 webhook given up, the last with HTTP 302: closeout runs webhooks" in done.out
        assert unsent_ends(store, retry=True)[0]["due"] == 0
        await asyncio.to_thread(store.delete_runs, ["order-2"])
        assert await agent.chores().announce(now) == float("inf")


async def test_a_private_address_is_refused_unless_it_is_allowed(home: Path) -> None:
    async with Receiver().listening() as receiver:
        agent = shop(home, Webhook(receiver.url, SECRET))
        await agent.run("Pay 5.")
        await agent.resume_due()
        (unsent,) = unsent_ends(open_store(home))
        assert unsent["error"] == "127.0.0.1 is not a public address. Set allow_private if you trust it"
        assert receiver.tries == {}


async def test_send_may_be_overridden_and_an_agent_announces_for_those_it_hands_over_to(home: Path) -> None:
    sent = []

    class Told(Webhook):
        async def send(self, id: str, notice: Mapping[str, Any]) -> None:  # noqa: A002
            sent.append((id, notice["type"], notice["data"]["agent"], notice["data"]["answer"]))

    billing = Agent(ScriptedClient([answer("7")]), home=home, name="billing")
    webhook = Told("https://example.org", SECRET, events="ended")
    clerk = Agent(ScriptedClient([]), home=home, name="clerk", handoffs=[billing], webhook=webhook)
    run = await clerk.run("3 + 4?", handed_to=["billing"])
    await clerk.resume_due()
    last = len(list(open_store(home).rows(run.run_id))) - 1
    assert sent == [(f"{run.run_id}.{last}", "run.ended", "billing", "7")]


def test_the_secret_is_in_no_record(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", SECRET)
    config = {"webhook": {"url": "https://example.org/hook?token=abcdefgh", "secret": "${HOOK}", "events": ["ended"]}}
    agent = Agent(ScriptedClient([answer("7")]), home=home, config=config)
    assert repr(agent.plan().spec.webhook) == "Webhook('https://example.org', events=('ended',))"
    assert SECRET not in repr(agent.config)
    agent.run_sync("3 + 4?")
    close_store(home)
    for each in home.iterdir():
        assert not any(text in each.read_bytes() for text in (SECRET.encode(), b"example.org", SECRET[6:].encode()))


def test_arguments_that_are_not_valid_are_refused() -> None:
    for options, kind, message in (
        ({"secret": "short"}, ConfigError, "openssl rand -base64 32"),
        ({"secret": None}, ConfigError, "24 bytes or more in Base64"),
        ({"url": "hook"}, ConfigError, "is not the address of a server"),
        ({"events": "sometimes"}, UsageError, "'ended', 'waiting' or both"),
        ({"allow_private": "here"}, UsageError, "Write networks"),
    ):
        with pytest.raises(kind, match=message):
            Webhook(**{"url": "https://example.org", "secret": SECRET, **options})
    with pytest.raises(UsageError, match=r"Pass webhook=Webhook\(url, secret\)"):
        Agent(ScriptedClient([]), webhook="https://example.org")  # type: ignore[arg-type]
