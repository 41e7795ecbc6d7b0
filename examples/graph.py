"""Write a text in a LangGraph graph whose nodes are Closeout agents: a writer, and a reviewer that may send it back.

    pip install 'closeout[langgraph]'
    python examples/graph.py "What a canal lock does" --docs examples/documents

The graph decides what comes next, Closeout makes every step finish. A node runs under a fixed run id: if the graph is
executed again with the same thread name, finished steps are taken from the record.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from closeout import Agent
from closeout.tools.builtin import document_tools

MOST_DRAFTS = 3


class Review(BaseModel):
    good_enough: bool
    advice: str


class State(TypedDict, total=False):
    topic: str
    draft: str
    advice: str
    drafts: int


def make_graph(model: str, folder: Path, thread: str) -> CompiledStateGraph[State, Any, State, State]:
    writer = Agent(model, tools=document_tools(folder), instructions="Write one paragraph. Use the documents.")
    reviewer = Agent(model, instructions="Judge the text: is every sentence clear and to the point?", answer=Review)

    async def write(state: State) -> State:
        count = state.get("drafts", 0) + 1
        task = f"Write about this topic: {state['topic']}"
        if state.get("draft"):
            task += f"\n\nYour last draft:\n{state['draft']}\n\nThe reviewer says: {state['advice']}"
        result = await writer.run_once(task, run_id=f"{thread} draft {count}")
        return {"draft": result.answer or "", "drafts": count}

    async def review(state: State) -> State:
        result = await reviewer.run_once(f"Review:\n{state['draft']}", run_id=f"{thread} review {state['drafts']}")
        done = result.value is None or result.value.good_enough
        return {"advice": "" if done or result.value is None else result.value.advice}

    def after_review(state: State) -> str:
        return "write" if state["advice"] and state["drafts"] < MOST_DRAFTS else END

    nodes: dict[str, Callable[[State], Awaitable[State]]] = {"write": write, "review": review}
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    graph.add_edge(START, "write")
    graph.add_edge("write", "review")
    graph.add_conditional_edges("review", after_review, ["write", END])
    return graph.compile()


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    parser.add_argument("--docs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--thread", default="graph", help="start again with the same name to continue")
    parser.add_argument("-m", "--model", default="openai:gpt-5")
    options = parser.parse_args()
    state = await make_graph(options.model, options.docs, options.thread).ainvoke({"topic": options.topic})
    print(state["draft"])
    print(f"{state['drafts']} drafts", file=sys.stderr)
    return 0 if state["draft"] else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
