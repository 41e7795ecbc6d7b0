"""Agno with its database in SQLite, and a checkpoint after each batch of tools.

https://docs.agno.com/examples/agents/checkpointing/crash-recovery and …/examples/teams/checkpointing/crash-recovery:
checkpoint="tool-batch", then continue_run(run_id=…, session_id=…) resumes the run that is still RUNNING.
https://docs.agno.com/hitl/user-confirmation, …/teams/delegation (members; respond_directly for routing),
…/compression/overview, …/agents/running-agents.
"""

from __future__ import annotations

from typing import Any

import kit
from agno.agent import Agent
from agno.compression.manager import CompressionManager
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.run import RunStatus
from agno.team import Team
from agno.tools import tool
from agno.tools.function import FunctionCall

NOT_OFFERED = {"timer": "no durable timer"}


def pay(invoice: str, fc: FunctionCall) -> str:
    """Pay an invoice."""
    return kit.pay(invoice, fc.call_id or "")


def model() -> OpenAIChat:
    return OpenAIChat(id="scripted", base_url=kit.model_url(), api_key="key")


def agent(name: str = "main") -> Any:
    scenario = kit.scenario()
    kept: dict[str, Any] = {
        "db": SqliteDb(db_file=f"{kit.folder()}/agno.sqlite"),
        "checkpoint": "tool-batch",
        "telemetry": False,
        "instructions": kit.instructions(name),
        "model": model(),
    }
    if scenario == "overflow":
        kept |= {
            "compress_tool_results": True,
            "compression_manager": CompressionManager(model=model(), compress_tool_results_limit=2),
        }
    tools = [*kit.readers(name), *kit.payers(name, tool(requires_confirmation=scenario == "approval")(pay))]
    if name == "main" and scenario in kit.DELEGATED:
        clerk = Agent(
            name="clerk",
            id="clerk",
            role="Pays invoices.",
            **(
                kept
                | {
                    "instructions": kit.instructions("clerk"),
                    "tools": [*kit.readers("clerk"), *kit.payers("clerk", pay)],
                }
            ),
        )
        return Team(members=[clerk], name="main", tools=tools, respond_directly=scenario == "handoff", **kept)
    return Agent(name=name, tools=tools, **kept)


def shown(response: Any) -> kit.Shown:
    if response.is_paused:
        waiting = [f"{each.tool_execution.tool_name} {each.tool_execution.tool_args}" for each in asked(response)]
        return kit.Shown("waiting", waiting=waiting)
    status = "answered" if response.status == RunStatus.completed else "failed"
    history = kit.text_of([response.to_dict(), *(each.to_dict() for each in getattr(response, "member_responses", []))])
    return kit.Shown(status, str(response.content), history, note=str(response.content))


def asked(response: Any) -> list[Any]:
    return list(response.active_requirements)


def drive(run: Any, *given: Any, **names: Any) -> kit.Shown:
    if kit.scenario() != "stream":
        return shown(run(*given, session_id=kit.run_id(), **names))
    last = None
    for event in run(*given, session_id=kit.run_id(), stream=True, yield_run_output=True, **names):
        if getattr(event, "event", "") in ("RunContent", "TeamRunContent"):
            kit.watch(str(event.content or ""))
        last = event
    return shown(last)


def start() -> kit.Shown:
    return drive(agent().run, kit.task(), run_id=kit.run_id())


def resume() -> kit.Shown:
    main = agent()
    known = main.get_run_output(run_id=kit.run_id(), session_id=kit.run_id())
    if known is None:  # killed before the first checkpoint
        return start()
    if known.is_paused or known.status == RunStatus.completed:
        return shown(known)
    return drive(main.continue_run, run_id=kit.run_id())


def decide() -> kit.Shown:
    main = agent()
    known = main.get_run_output(run_id=kit.run_id(), session_id=kit.run_id())
    if not known.is_paused:
        return resume()
    for each in asked(known):
        each.confirm()
    return drive(main.continue_run, run_id=kit.run_id(), requirements=known.requirements)
