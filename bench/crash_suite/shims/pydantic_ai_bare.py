"""Pydantic AI by itself: the application stores messages when a run has ended or waits.

https://ai.pydantic.dev/message-history/ (all_messages_json), …/deferred-tools/ (approval), …/multi-agent-applications/
(delegation), …/output/#output-functions (hand-off), …/agent/#streaming-all-events, and the harness's compaction.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import kit
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
    RunContext,
    Tool,
    ToolOutput,
)
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_harness.compaction import SummarizingCompaction

NOT_OFFERED = {"timer": "no durable timer"}


async def pay(context: RunContext[Any], invoice: str) -> str:
    """Pay an invoice."""
    return kit.pay(invoice, context.tool_call_id or "")


async def clerk(request: str) -> str:
    """Let the clerk do something: the clerk pays invoices."""
    return str((await agent("clerk").run(request)).output)


async def transfer_to_clerk(request: str) -> str:
    """Hand over to the clerk, who pays invoices."""
    return await clerk(request)


async def watch(_: RunContext[Any], events: AsyncIterable[Any]) -> None:
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            kit.watch(event.part.content)
        if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            kit.watch(event.delta.content_delta)


def capabilities(name: str) -> list[Any]:
    return [SummarizingCompaction(max_messages=6, keep_messages=2)] if kit.scenario() == "overflow" else []


def agent(name: str = "main", payer: Any = pay) -> Agent[Any, Any]:
    scenario, output = kit.scenario(), [str, DeferredToolRequests]
    if name == "main" and scenario == "handoff":
        output.append(ToolOutput(transfer_to_clerk, name="transfer_to_clerk"))
    tools = [*kit.readers(name), *kit.payers(name, Tool(payer, requires_approval=scenario == "approval"))]
    tools += [clerk] if name == "main" and scenario == "subagent" else []
    model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=kit.model_url(), api_key="key"))
    text = kit.instructions(name)
    return Agent(model, name=name, instructions=text, tools=tools, output_type=output, capabilities=capabilities(name))


def kept(name: str) -> Path:
    return Path(kit.folder()) / name


def keep(name: str, data: bytes) -> None:
    part = kept(f"{name}.part")
    part.write_bytes(data)
    part.rename(kept(name))


def shown(result: Any) -> kit.Shown:
    """Store the result of a run, or its messages if it waits."""
    if isinstance(result.output, DeferredToolRequests):
        keep("waiting.json", result.all_messages_json())
        return waiting()
    keep("answer.json", json.dumps([str(result.output), result.all_messages_json().decode()]).encode())
    return answered()


def answered() -> kit.Shown:
    return kit.Shown("answered", *json.loads(kept("answer.json").read_bytes()))


def waiting() -> kit.Shown:
    return kit.Shown("waiting", waiting=[f"{call.tool_name} {call.args}" for call in history()[-1].tool_calls])


def history() -> list[Any]:
    return list(ModelMessagesTypeAdapter.validate_json(kept("waiting.json").read_bytes()))


def handler() -> Any:
    return watch if kit.scenario() == "stream" else None


async def start() -> kit.Shown:
    return shown(await agent().run(kit.task(), event_stream_handler=handler()))


async def resume() -> kit.Shown:
    """Nothing is kept of a run amid its work: begin again, unless it has ended or waits for an approval."""
    if kept("answer.json").exists():
        return answered()
    return waiting() if kept("waiting.json").exists() else await start()


async def decide() -> kit.Shown:
    approved = DeferredToolResults(approvals={call.tool_call_id: True for call in history()[-1].tool_calls})
    return shown(await agent().run(message_history=history(), deferred_tool_results=approved))
