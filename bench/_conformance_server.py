"""The servers that bench/conformance.py tests, at /mcp as `closeout serve` has it: a served agent, or the fixture.

python bench/_conformance_server.py agent|fixture     (prints its URL)
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from aiohttp import web

from _conformance_fixture import fixture
from closeout import Agent
from closeout.server.app import LOOPBACK_HOSTS, create_app
from closeout.server.safety import origin_check
from closeout.server.serve.host import AgentHost
from closeout.server.serve.mcp_endpoint import add_mcp_server
from closeout.server.serving import agent_app, serve_until_stopped
from closeout.testing import ScriptedClient, answer


def fixture_app(home: Path) -> web.Application:
    app = create_app(home, hosts=LOOPBACK_HOSTS)
    app.middlewares.append(origin_check)
    add_mcp_server(app, fixture)
    return app


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        if "fixture" in sys.argv:
            app = fixture_app(Path(home))
        else:
            settings = {"agent": {"task_templates": {"look_up": "What is {{ word }}?"}}}
            agent = Agent(ScriptedClient([answer("42")] * 1_000), name="oracle", home=home, config=settings)
            app = agent_app(AgentHost(agent))
        await serve_until_stopped(app, "127.0.0.1", 0, on_ready=lambda url: print(f"{url}/mcp", flush=True))


if __name__ == "__main__":
    asyncio.run(main())
