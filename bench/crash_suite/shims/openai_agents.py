"""OpenAI Agents SDK with sessions in SQLite.

https://openai.github.io/openai-agents-python/sessions/: the same session continues the conversation; …/running_agents/
calls it the state of "resumable runs", and names Dapr, Temporal, Restate and DBOS for durable execution.
…/human_in_the_loop/: the application keeps RunState.to_string(). …/tools/#agents-as-tools, …/handoffs/, …/streaming/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kit
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, RunState, SQLiteSession, function_tool
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

NOT_OFFERED = {
    "timer": "no durable timer",
    "overflow": "compaction needs the Responses API, ToolOutputTrimmer leaves the current turn as it is, and "
    "call_model_input_filter leaves the shortening to the application",
}


def pay(context: ToolContext[Any], invoice: str) -> str:
    """Pay an invoice."""
    return kit.pay(invoice, context.tool_call_id)


def agent(name: str = "main") -> Agent[Any]:
    scenario = kit.scenario()
    payer = function_tool(pay, needs_approval=scenario == "approval")
    tools = [*map(function_tool, kit.readers(name)), *kit.payers(name, payer)]
    if name == "main" and scenario == "subagent":
        kept = session(
            f"{kit.run_id()}-clerk"
        )  # …/tools/#customizing-tool-agents: the caller's session is not inherited
        tools.append(agent("clerk").as_tool("clerk", "Pays invoices.", session=kept))
    return Agent(
        name=name,
        instructions=kit.instructions(name),
        model=OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=kit.model_url(), api_key="key")),
        tools=tools,
        handoffs=[agent("clerk")] if name == "main" and scenario == "handoff" else [],
    )


def session(name: str) -> SQLiteSession:
    return SQLiteSession(name, f"{kit.folder()}/sessions.sqlite")


def state_file() -> Path:
    return Path(kit.folder()) / "state.json"


async def drive(given: Any) -> kit.Shown:
    kept = session(kit.run_id())
    config = RunConfig(tracing_disabled=True)
    if kit.scenario() == "stream":
        result: Any = Runner.run_streamed(agent(), given, session=kept, run_config=config)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                kit.watch(event.data.delta)
    else:
        result = await Runner.run(agent(), given, session=kept, run_config=config)
    if result.interruptions:
        part = state_file().with_suffix(".part")
        part.write_text(result.to_state().to_string())
        part.rename(state_file())
        return kit.Shown("waiting", waiting=[f"{each.name} {each.arguments}" for each in result.interruptions])
    return kit.Shown("answered", str(result.final_output), kit.text_of(await kept.get_items()))


async def start() -> kit.Shown:
    return await drive(kit.task())


async def resume() -> kit.Shown:
    if state_file().exists():
        state = await RunState.from_string(agent(), state_file().read_text())
        return kit.Shown("waiting", waiting=[f"{each.name} {each.arguments}" for each in state.get_interruptions()])
    return await start()


async def decide() -> kit.Shown:
    state = await RunState.from_string(agent(), state_file().read_text())
    state_file().unlink()  # a run that is cut off from here on continues from its session
    for each in state.get_interruptions():
        state.approve(each)
    return await drive(state)
