"""A harness for verifiers, and so for prime-rl: a Closeout agent plays the tasks of a taskset.

    pip install closeout "verifiers>=0.4"
    PYTHONPATH=examples vf-eval MY-TASKSET --env.agent.harness.id verifiers_harness --env.agent.runtime.type subprocess

The agent runs in the process of verifiers and asks its interception server, so that the trace has every request, and in
training the token ids and log-probabilities of each. The task's tool servers are the agent's MCP servers. Rewards are
the taskset's. The records of the runs are in the home, where `closeout view` shows them.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from verifiers.v1 import Harness, HarnessConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace

from closeout import Agent

__all__ = ["CloseoutHarness"]


class CloseoutHarnessConfig(HarnessConfig):
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the agent by dotted key, such as {"agent.max_seconds": 600}."""


class CloseoutHarness(Harness[CloseoutHarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        instructions, prompt = self.resolve_text_prompt(data)
        # The interception server limits turns and tokens. Nothing is evicted, so that a trace is one sequence.
        limits = {"agent.main_agent.max_turns": 10_000, "agent.context_compress_limit": 0}
        agent = Agent(
            f"openai:{ctx.model}",
            mcp_servers={name: {"url": url} for name, url in mcp_urls.items()},
            dialect="function_call",
            instructions=instructions,
            base_url=endpoint,
            api_key=secret,
            config=[limits, self.config.settings],
            home=True,
        )
        async with agent:
            result = await agent.run(prompt or "", run_id=f"verifiers.{trace.id}")
        failed = result.status == "failed"
        return ProgramResult(int(failed), result.answer or "", str(result.error or ""))
