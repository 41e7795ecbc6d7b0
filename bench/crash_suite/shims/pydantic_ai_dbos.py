"""Pydantic AI over DBOS, its system database in SQLite; agents and tools as in pydantic_ai_bare.

https://ai.pydantic.dev/durable_execution/dbos/: DBOSDurability, tools as steps; https://docs.dbos.dev/python/tutorials/
workflow-tutorial: launch() recovers pending workflows, a workflow id is started once; …/workflow-communication: events
and send/recv for people.
"""

from __future__ import annotations

from typing import Any

import kit
import pydantic_ai_bare as bare
from dbos import DBOS, SetWorkflowID
from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.durable_exec.dbos import DBOSDurability

NOT_OFFERED: dict[str, str] = {}
plain, plain_pay = bare.capabilities, bare.pay


@DBOS.step()
async def pay_step(invoice: str, key: str) -> str:
    return kit.pay(invoice, key)


async def pay(context: RunContext[Any], invoice: str) -> str:
    """Pay an invoice."""
    return await pay_step(invoice, context.tool_call_id or "")


async def wait_until_due(invoice: str) -> str:
    """Wait until an invoice is due."""
    await DBOS.sleep_async(1.5)
    return f"{invoice} is due now."


def capabilities(name: str) -> list[Any]:
    return [*plain(name), DBOSDurability(event_stream_handler=bare.handler())]


bare.capabilities, bare.agent.__defaults__ = capabilities, ("main", pay)


@DBOS.workflow()
async def work(task: str) -> tuple[str, str]:
    agent = AGENTS[0]
    result = await agent.run(task)
    if isinstance(result.output, DeferredToolRequests):
        asked = result.output.approvals
        await DBOS.set_event_async("waiting", [f"{call.tool_name} {call.args}" for call in asked])
        await DBOS.recv_async("approved", timeout_seconds=600)
        approved = DeferredToolResults(approvals={call.tool_call_id: True for call in asked})
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=approved)
    return str(result.output), result.all_messages_json().decode()


AGENTS: list[Any] = []


async def drive(approve: bool = False) -> kit.Shown:
    DBOS(config={"name": "suite", "system_database_url": f"sqlite:///{kit.folder()}/dbos.sqlite"})
    clerks = [bare.agent("clerk")] if kit.scenario() in kit.DELEGATED else []
    AGENTS.append(bare.agent())
    AGENTS.extend(clerks)
    if kit.scenario() == "timer":
        AGENTS[0].tool_plain(wait_until_due)
    DBOS.launch()
    with SetWorkflowID(kit.run_id()):
        handle = await DBOS.start_workflow_async(work, kit.task())
    if kit.scenario() == "approval":
        if approve:
            await DBOS.send_async(kit.run_id(), True, "approved")
        elif waiting := await DBOS.get_event_async(kit.run_id(), "waiting", timeout_seconds=60):
            status = await handle.get_status()
            if status.status == "PENDING":
                return kit.Shown("waiting", waiting=waiting)
    answer, history = await handle.get_result()
    return kit.Shown("answered", answer, history)


async def start() -> kit.Shown:
    return await drive()


resume = start


async def decide() -> kit.Shown:
    return await drive(approve=True)
