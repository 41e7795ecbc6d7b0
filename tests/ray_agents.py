"""An agent for trials on a cluster: its script has no memory, and each request is noted with its process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from closeout import Agent
from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry


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
        await asyncio.sleep(self._seconds)
        usage = Usage(10, 2, requests=1, cost_usd=0.01)
        self.charge(usage)
        text = f"\\boxed{{{question.removesuffix('?')}}}"
        return ModelReply(text, finish_reason="stop", usage=usage, model="scripted")


def make_agent(folder: str, seconds: float = 0.0) -> Agent[Any]:
    return Agent(Slow(folder, seconds))
