"""The server that bench/conformance.py tests: an agent with a scripted model, as `closeout serve` offers it at /mcp.

python bench/_conformance_server.py     (prints its URL)
"""

from __future__ import annotations

import asyncio
import tempfile

from closeout import Agent
from closeout.server.host import AgentHost
from closeout.server.serving import agent_app, serve_until_stopped
from closeout.testing import ScriptedClient, answer


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        agent = Agent(ScriptedClient([answer("42")] * 1_000), name="oracle", home=home)
        await serve_until_stopped(
            agent_app(AgentHost(agent)), "127.0.0.1", 0, on_ready=lambda url: print(f"{url}/mcp", flush=True)
        )


if __name__ == "__main__":
    asyncio.run(main())
