"""A model that answers each question by a function, without tools; and tasks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry
from closeout.models.retry import RetryPolicy

Reply = Callable[[str, int], "str | Exception"]


class Scripted(BaseClient):
    """Answers by a function of the question and of how often it was asked; keeps count of what is in flight."""

    name = "scripted"
    capabilities = Capabilities(known=True)
    retry = RetryPolicy(retries=0)

    def __init__(self, reply: Reply, *, cost: float | None = 0.01) -> None:
        self._reply, self._cost = reply, cost
        self.asked: dict[str, int] = {}
        self.in_flight = self.most = 0
        self.before: Callable[[], Any] | None = None

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        question = str(next(message["content"] for message in request.messages if message["role"] == "user"))
        self.asked[question] = self.asked.get(question, 0) + 1
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if self.before is not None:
                await self.before()
            await asyncio.sleep(0)
            usage = Usage(100, 10, requests=1, cost_usd=self._cost)
            self.charge(usage)
            reply = self._reply(question, self.asked[question])
            if isinstance(reply, Exception):
                raise reply
            return ModelReply(f"\\boxed{{{reply}}}", finish_reason="stop", usage=usage, model="scripted")
        finally:
            self.in_flight -= 1

    @property
    def requests(self) -> int:
        return sum(self.asked.values())


def tasks(number: int) -> list[dict[str, Any]]:
    return [{"id": f"t{i}", "question": f"{i}?", "answer": str(i), "half": i % 2} for i in range(number)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


def echo(question: str, _: int) -> str:
    return question.removesuffix("?")
