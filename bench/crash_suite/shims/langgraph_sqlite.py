"""LangGraph: LangChain's create_agent with a checkpointer in SQLite.

https://docs.langchain.com/oss/python/langgraph/durable-execution: invoke with None and the same thread to resume;
durability="sync" is the most durable mode. …/langchain/human-in-the-loop, …/langchain/multi-agent/subagents and
…/handoffs (agents as nodes, Command.PARENT), …/langchain/middleware/built-in#summarization, …/langchain/streaming.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import kit
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain.messages import ToolMessage
from langchain.tools import ToolRuntime, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

NOT_OFFERED = {"timer": "no durable timer"}


@tool
def pay(invoice: str, runtime: ToolRuntime) -> str:
    """Pay an invoice."""
    return kit.pay(invoice, runtime.tool_call_id)


@tool
def clerk(request: str) -> str:
    """Let the clerk do something: the clerk pays invoices."""
    result = agent("clerk").invoke({"messages": [{"role": "user", "content": request}]})
    return result["messages"][-1].content


@tool
def transfer_to_clerk(runtime: ToolRuntime) -> Command:
    """Hand over to the clerk, who pays invoices."""
    call = runtime.state["messages"][-1]
    done = ToolMessage("Handed over to the clerk.", tool_call_id=runtime.tool_call_id)
    return Command(goto="clerk", graph=Command.PARENT, update={"active": "clerk", "messages": [call, done]})


def model() -> ChatOpenAI:
    return ChatOpenAI(model="scripted", base_url=kit.model_url(), api_key="key")


def agent(name: str = "main", saver: Any = None) -> Any:
    scenario, middleware = kit.scenario(), []
    if scenario == "approval":
        middleware.append(HumanInTheLoopMiddleware(interrupt_on={"pay": True}))
    if scenario == "overflow":
        middleware.append(SummarizationMiddleware(model(), trigger=("tokens", 1000), keep=("messages", 2)))
    tools = [*map(tool, kit.readers(name)), *kit.payers(name, pay)]
    if name == "main":
        tools += {"subagent": [clerk], "handoff": [transfer_to_clerk]}.get(scenario, [])
    text = kit.instructions(name)
    return create_agent(model(), tools, system_prompt=text, middleware=middleware, checkpointer=saver, name=name)


class Desk(AgentState):
    active: str


def graph(saver: Any) -> Any:
    if kit.scenario() != "handoff":
        return agent("main", saver)
    both = StateGraph(Desk).add_node("main", agent()).add_node("clerk", agent("clerk"))
    both.add_conditional_edges(START, lambda state: state.get("active") or "main", ["main", "clerk"])
    return both.compile(checkpointer=saver)


def saver() -> AbstractContextManager[Any]:
    return SqliteSaver.from_conn_string(f"{kit.folder()}/checkpoints.sqlite")


def drive(saver: Any, given: Any) -> kit.Shown:
    desk, config = graph(saver), {"configurable": {"thread_id": kit.run_id()}}
    if given is None and desk.get_state(config).created_at is None:  # killed before the first checkpoint
        given = {"messages": [{"role": "user", "content": kit.task()}]}
    streamed = ""
    if kit.scenario() == "stream":
        for chunk, _ in desk.stream(given, config, stream_mode="messages", durability="sync"):
            said = chunk.text if chunk.type.startswith("AIMessage") else ""
            streamed += said
            kit.watch(said)
    else:
        desk.invoke(given, config, durability="sync")
    state = desk.get_state(config)
    messages = state.values["messages"]
    if kit.scenario() == "stream" and messages[-1].text not in streamed:
        kit.watch(messages[-1].text)  # a node that was restored streams no messages
    if state.interrupts:
        return kit.Shown("waiting", waiting=[str(each.value) for each in state.interrupts])
    return kit.Shown("failed" if state.next else "answered", messages[-1].text, kit.text_of(messages))


def start() -> kit.Shown:
    with saver() as opened:
        return drive(opened, {"messages": [{"role": "user", "content": kit.task()}]})


def resume() -> kit.Shown:
    with saver() as opened:
        return drive(opened, None)


def decide() -> kit.Shown:
    with saver() as opened:
        return drive(opened, Command(resume={"decisions": [{"type": "approve"}]}))
