"""Agents for trials on a cluster: their scripts have no memory, and each request is noted with its process.

As a program, `python ray_agents.py FOLDER NUMBER [SECONDS]` drives an evaluation of the agent that pays. A request
and a payment take so many seconds, and no time if the folder has a file `fast`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from closeout import Agent, tool
from closeout.evaluate import EvalTask, evaluate
from closeout.messages import Capabilities, ModelReply, ModelRequest, ToolCall, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry
from scripted_answers import tasks


async def pause(folder: Path, seconds: float) -> None:
    await asyncio.sleep(0 if (folder / "fast").exists() else seconds)


class Slow(BaseClient):
    """Answers `7?` with 7, after some time."""

    name = "scripted"
    capabilities = Capabilities(known=True)

    def __init__(self, folder: str, seconds: float) -> None:
        self._folder, self._seconds = Path(folder), seconds

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        question = next(message["content"] for message in request.messages if message["role"] == "user")
        with (self._folder / "noted.txt").open("a") as file:
            file.write(f"{question} {os.getpid()}\n")
        await pause(self._folder, self._seconds)
        usage = Usage(10, 2, requests=1, cost_usd=0.01)
        self.charge(usage)
        text = f"\\boxed{{{question.removesuffix('?')}}}"
        return ModelReply(text, finish_reason="stop", usage=usage, model="scripted")


def make_agent(folder: str, task: EvalTask | None = None, *, seconds: float = 0.0, **options: Any) -> Agent[Any]:
    return Agent(Slow(folder, seconds), **options)


class Paying(Slow):
    """Pays for the question once, then answers."""

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        reply = await super().complete(request)
        if any(message["role"] == "tool" for message in request.messages):
            return reply
        question = next(message["content"] for message in request.messages if message["role"] == "user")
        call = ToolCall("pay", {"purpose": question}, id="call_1")
        return ModelReply("", tool_calls=(call,), finish_reason="tool_calls", usage=reply.usage, model="scripted")


def make_paying_agent(
    folder: str, task: EvalTask | None = None, *, seconds: float = 0.0, on_crash: Any = "report"
) -> Agent[Any]:
    file = Path(folder) / "payments.sqlite3"

    @tool(on_crash=on_crash)
    async def pay(purpose: str) -> str:
        """Pay for something."""
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS payments (purpose TEXT)")
            db.execute("INSERT INTO payments VALUES (?)", (purpose,))
        await pause(file.parent, seconds)
        return "paid"

    return Agent(Paying(folder, seconds), tools=[pay])


def payments(folder: Path) -> Counter[str]:
    """Return how often each purpose was paid for."""
    if not (folder / "payments.sqlite3").exists():
        return Counter()
    with closing(sqlite3.connect(folder / "payments.sqlite3", timeout=30)) as db:
        return Counter(purpose for (purpose,) in db.execute("SELECT purpose FROM payments"))


if __name__ == "__main__":
    # By the module's name, so that a node imports the functions instead of those of a main program.
    import ray_agents

    agent = partial(ray_agents.make_paying_agent, sys.argv[1], seconds=float((*sys.argv[3:], 0.3)[0]))
    asyncio.run(evaluate(agent, tasks(int(sys.argv[2])), scorer="exact", name="x", ray="auto"))
