"""Microsoft's Agent Framework: an agent in a functional workflow with checkpoints in files, its payments as steps.

https://learn.microsoft.com/agent-framework/concepts/workflows/functional: @step for "any operation where re-execution
on resume would be costly or have side effects", checkpoint_id= to resume, request_info() for people; the sample
steps_and_checkpointing.py calls it crash recovery. …/agents/tools/tool-approval,
…/concepts/agents/conversations/session (to_dict), …/journey/agents-as-tools, …/workflows/orchestrations/handoff
(checkpointing), …/concepts/agents/conversations/compaction, …/concepts/agents/running-agents (streaming).
"""

from __future__ import annotations

from typing import Any

import kit
from agent_framework import (
    Agent,
    AgentResponse,
    AgentSession,
    CharacterEstimatorTokenizer,
    FileCheckpointStorage,
    Message,
    RunContext,
    SummarizationStrategy,
    TokenBudgetComposedStrategy,
    step,
    tool,
    workflow,
)
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import HandoffBuilder

NOT_OFFERED = {"timer": "no durable timer"}


@step
async def pay_once(invoice: str) -> str:
    return kit.pay(invoice)


async def pay(invoice: str) -> str:
    """Pay an invoice."""
    return await pay_once(invoice)


def client() -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model="scripted", base_url=kit.model_url(), api_key="key")


def agent(name: str = "main") -> Agent:
    scenario, options = kit.scenario(), {}
    mode = "always_require" if scenario == "approval" else "never_require"
    tools = [*map(tool, kit.readers(name)), *kit.payers(name, tool(approval_mode=mode)(pay))]
    if name == "main" and scenario == "subagent":
        tools.append(agent("clerk").as_tool(name="clerk", description="Pays invoices."))
    if scenario == "overflow":
        summaries = SummarizationStrategy(client=client(), target_count=2, threshold=1, max_summary_input_tokens=1300)
        options["tokenizer"] = CharacterEstimatorTokenizer()
        options["compaction_strategy"] = TokenBudgetComposedStrategy(
            token_budget=1400,
            tokenizer=options["tokenizer"],
            strategies=[summaries],
        )
    if scenario == "handoff":
        options["require_per_service_call_history_persistence"] = True  # HandoffBuilder asks for it
    return Agent(client(), kit.instructions(name), name=name, description="Pays invoices.", tools=tools, **options)


@step
async def ask(given: Any, kept: dict[str, Any] | None = None) -> tuple[AgentResponse, dict[str, Any]]:
    """Run the agent, and return its response and session."""
    main = agent()
    session = AgentSession.from_dict(kept) if kept else main.create_session()
    if kit.scenario() != "stream":
        return await main.run(given, session=session), session.to_dict()
    stream = main.run(given, session=session, stream=True)
    async for update in stream:
        kit.watch(update.text)
    return await stream.get_final_response(), session.to_dict()


@workflow
async def work(task: str, ctx: RunContext) -> list[Message]:
    response, session = await ask(task)
    messages = [Message("user", [task]), *response.messages]
    for request in response.user_input_requests:
        call = request.function_call
        approved = await ctx.request_info(f"{call.name} {call.arguments}", response_type=bool)
        given = Message("user", [request.to_function_approval_response(approved)])
        response, session = await ask(given, session)
        messages += response.messages
    return messages


def desk() -> Any:
    """Return the workflow of the scenario."""
    storage = FileCheckpointStorage(kit.folder())
    if kit.scenario() != "handoff":
        return work.build(checkpoint_storage=storage), storage
    agents = [agent("main"), agent("clerk")]
    builder = HandoffBuilder(name="work", participants=agents, termination_condition=finished)
    return builder.with_start_agent(agents[0]).with_checkpointing(storage).build(), storage


def finished(conversation: list[Message]) -> bool:
    return conversation[-1].author_name == "clerk" and bool(conversation[-1].text)


async def drive(responses: Any = None) -> kit.Shown:
    main, storage = desk()
    known = await storage.get_latest(workflow_name="work")
    given: dict[str, Any] = {"checkpoint_id": known.checkpoint_id} if known else {"message": kit.task()}
    result = await main.run(**given)
    if waiting := result.get_request_info_events():
        if not responses:
            return kit.Shown("waiting", waiting=[str(each.data) for each in waiting])
        result = await main.run(responses={each.request_id: True for each in waiting})
    found = result.get_outputs()
    if not found:  # it was killed after its last checkpoint: what it had put out before is not put out again
        return kit.Shown("failed", note="the resumed workflow has ended without an output")
    messages = found[0] if isinstance(found[0], list) else [m for each in found for m in each.messages]
    return kit.Shown("answered", messages[-1].text, kit.text_of(messages))


start = resume = drive


async def decide() -> kit.Shown:
    return await drive(responses=True)
