"""Strands Agents with its session in files.

https://strandsagents.com/docs/user-guide/sdk/agents/session-management/: SnapshotSessionManager; saved on each
message, the most durable setting by its API reference. An agent made with the same session id has its messages again,
and a call with a prompt gives its calls without results an error. …/docs/user-guide/concepts/interrupts/ (in tools),
…/concepts/multi-agent/agents-as-tools/, …/multi-agent/swarm/, …/concepts/agents/conversation-management/,
…/concepts/streaming/callback-handlers/.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kit
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager, SummarizingConversationManager
from strands.models.openai import OpenAIModel
from strands.multiagent import Swarm
from strands.session import SnapshotSessionManager
from strands.storage import LocalFileStorage

NOT_OFFERED = {"timer": "no durable timer"}


@tool(context=True)
def pay(invoice: str, tool_context: ToolContext) -> str:
    """Pay an invoice.

    Args:
        invoice: the number of the invoice
    """
    if kit.scenario() == "approval":
        approved = tool_context.interrupt("approval", reason={"tool": "pay", "invoice": invoice})
        if approved != "yes":
            return "A person has refused it."
    return kit.pay(invoice, tool_context.tool_use["toolUseId"])


def session() -> SnapshotSessionManager:
    return SnapshotSessionManager(kit.run_id(), storage=LocalFileStorage(kit.folder()), save_latest_on="message")


def watch(**event: Any) -> None:
    kit.watch(event.get("data") or "")


def agent(name: str = "main", *, kept: bool = True) -> Agent:
    tools = [*map(tool, kit.readers(name)), *kit.payers(name, pay)]
    if name == "main" and kit.scenario() == "subagent":
        tools.append(agent("clerk", kept=False).as_tool(name="clerk", description="Pays invoices."))
    manager: Any = SlidingWindowConversationManager()
    if kit.scenario() == "overflow":
        manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2)
    return Agent(
        model=OpenAIModel(client_args={"base_url": kit.model_url(), "api_key": "key"}, model_id="scripted"),
        name=name,
        agent_id=name,
        description="Pays invoices." if name == "clerk" else None,
        system_prompt=kit.instructions(name),
        tools=tools,
        conversation_manager=manager,
        session_manager=session() if kept else None,
        callback_handler=watch if kit.scenario() == "stream" else None,
    )


def ended_swarm() -> list[str]:
    """Return the last text of each agent of a swarm that has ended, from its snapshot."""
    for file in Path(kit.folder()).glob("session/*/scopes/multiAgent/*/snapshots/snapshot_latest.json"):
        state = json.loads(file.read_text())["data"]["state"]
        if state["status"] == "completed":
            return [kit.text_of(each["result"]["message"]["content"]) for each in state["node_results"].values()]
    return []


def drive(given: Any = None) -> kit.Shown:
    if kit.scenario() == "handoff":
        agents = [agent("main", kept=False), agent("clerk", kept=False)]
        if done := ended_swarm():  # one that has ended would begin again
            return kit.Shown("answered", done[-1], kit.text_of(done))
        swarm = Swarm(agents, entry_point=agents[0], session_manager=session())
        result: Any = swarm(kit.task())
        texts = [str(node.result) for node in result.results.values()]
        status = "answered" if result.status.value == "completed" else "failed"
        return kit.Shown(status, texts[-1] if texts else "", kit.text_of([texts, [each.messages for each in agents]]))
    main = agent()
    kept = main._interrupt_state  # the public result has gone with its process
    if given is None and kept.activated:
        return asked(kept.interrupts.values())
    result = main(given if given is not None else "Continue." if main.messages else kit.task())
    if result.stop_reason == "interrupt":
        return asked(result.interrupts)
    return kit.Shown("answered", str(result).strip(), kit.text_of(main.messages))


def asked(interrupts: Any) -> kit.Shown:
    return kit.Shown("waiting", waiting=[f"{each.id} {each.reason}" for each in interrupts])


start = resume = drive


def decide() -> kit.Shown:
    kept = agent()._interrupt_state
    answers = [{"interruptResponse": {"interruptId": each, "response": "yes"}} for each in kept.interrupts]
    return drive(answers if kept.activated else None)
