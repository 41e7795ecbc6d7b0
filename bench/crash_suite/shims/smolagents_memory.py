"""smolagents: its memory lives in the process, so a run that was cut off begins again.

https://huggingface.co/docs/smolagents/tutorials/memory (agent.memory.steps, in the process),
https://huggingface.co/docs/smolagents/examples/multiagents (managed_agents), …/examples/plan_customization (people).
"""

from __future__ import annotations

from typing import Any

import kit
from smolagents import FinalAnswerStep, OpenAIModel, ToolCallingAgent, tool

NOT_OFFERED = {
    "approval": "people review a plan in the process that made it, calls are not approved",
    **dict.fromkeys(("timer", "handoff"), "none in the documentation"),
    "overflow": "only callbacks that the application writes",
}


def pay(invoice: str) -> str:
    """Pay an invoice.

    Args:
        invoice: the number of the invoice
    """
    return kit.pay(invoice)


def agent(name: str = "main") -> ToolCallingAgent:
    clerks = [agent("clerk")] if name == "main" and kit.scenario() == "subagent" else []
    return ToolCallingAgent(
        tools=[*map(tool, kit.readers(name)), *map(tool, kit.payers(name, pay))],
        model=OpenAIModel(model_id="scripted", api_base=kit.model_url(), api_key="key"),
        managed_agents=clerks,
        name=name,
        description="Pays invoices." if name == "clerk" else None,
        instructions=kit.instructions(name),
        stream_outputs=kit.scenario() == "stream",
        verbosity_level=0,
    )


def start() -> kit.Shown:
    main: Any = agent()
    answer = ""
    for step in main.run(kit.task(), stream=True):
        if isinstance(step, FinalAnswerStep):
            answer = str(step.output)
            kit.watch(answer)
    return kit.Shown("answered", answer, kit.text_of(main.memory.get_full_steps()))


resume = start
