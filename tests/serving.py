"""A served agent in the test's own event loop, and `closeout serve` as a process that can be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession, web

from closeout import Agent
from closeout.server.host import AgentHost
from closeout.server.serving import agent_app

__all__ = ["Served", "serving"]


@dataclass(frozen=True)
class Served:
    url: str
    host: AgentHost
    http: ClientSession
    runner: web.AppRunner

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@asynccontextmanager
async def serving(agent: Agent[Any], *, keys: Sequence[str] = (), **options: Any) -> AsyncIterator[Served]:
    """Serve an agent on the loopback interface."""
    host = AgentHost(agent, **{"drain_seconds": 0.0, **options})
    runner = web.AppRunner(agent_app(host, keys=keys), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with ClientSession() as http:
            yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}", host, http, runner)
    finally:
        await runner.cleanup()
