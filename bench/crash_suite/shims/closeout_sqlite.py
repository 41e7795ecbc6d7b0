"""Closeout with its journal in SQLite.

docs/runs.md#resume (Agent.resume; RunNotFound, JournalLocked), docs/approvals.md, docs/timers.md,
docs/conversations.md#handing-over, docs/tools.md#agents-as-tools, docs/streaming.md
"""

from __future__ import annotations

import asyncio
from typing import Any

import kit

from closeout import Agent, Handoff, OpenAIClient, RunContext, tool
from closeout.errors import JournalLocked, RunNotFound
from closeout.journal.subscribers import Progress


@tool
def pay(invoice: str, context: RunContext) -> str:
    """Pay an invoice."""
    return kit.pay(invoice, f"{context.run_id}/{context.agent}/{context.handle}")


@tool(read_only=True)
async def wait_until_due(invoice: str, context: RunContext) -> str:
    """Wait until an invoice is due."""
    await context.sleep(1.5)
    return f"{invoice} is due now."


def home() -> str:
    return kit.folder()


def agent(name: str = "main") -> Agent[Any]:
    scenario = kit.scenario()
    payer = tool(approval="always")(kit.pay) if scenario == "approval" else pay
    tools = [*(tool(read_only=True)(each) for each in kit.readers(name)), *kit.payers(name, payer)]
    options: dict[str, Any] = {}
    if name == "main" and scenario == "subagent":
        tools.append(agent("clerk").as_tool("clerk", "Pays invoices."))
    if name == "main" and scenario == "handoff":
        options["handoffs"] = [Handoff(agent("clerk"), description="Pays invoices.")]
    if scenario == "timer":
        tools.append(wait_until_due)
    if scenario == "overflow":
        options["config"] = {"llm": {"max_context_length": 1500}}
    model = OpenAIClient("scripted", kit.model_url(), "key")
    return Agent(model, tools, name=name, instructions=kit.instructions(name), home=home(), **options)


def shown(result: Any) -> kit.Shown:
    waiting = [f"{each.tool} {each.arguments}" for each in result.waiting]
    if result.status == "waiting" and result.waiting[0].kind == "timer":
        return kit.Shown("timer", seconds=0.5)
    return kit.Shown(result.status, result.answer or "", kit.text_of(result.messages), waiting, note=result.error)


def watch(event: object) -> None:
    if isinstance(event, Progress) and event.kind == "text":
        kit.watch(event.text)


async def execute(decisions: Any = None) -> Any:
    """Begin the run, or continue it: at once, or when the lock or the lease of another process has ended."""
    listeners = (watch,) if kit.scenario() == "stream" else ()
    for _ in range(60):
        try:
            return await agent().resume(kit.run_id(), decisions=decisions, listeners=listeners)
        except RunNotFound:
            return await agent().run(kit.task(), run_id=kit.run_id(), listeners=listeners)
        except JournalLocked:
            await asyncio.sleep(0.25)
    raise TimeoutError("another process executes the run")


async def start() -> kit.Shown:
    return shown(await execute())


resume = start


async def decide() -> kit.Shown:
    result = await execute()
    decisions = {each.id: True for each in result.waiting}
    return shown(await execute(decisions) if decisions else result)
