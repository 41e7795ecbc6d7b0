"""A scripted model in process: the same turns and faults as the scripted server, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NoReturn

from closeout.errors import ModelTimeout, RateLimited, ServerFailed, StreamDropped
from closeout.llm.base import BaseClient, OnDelta, OnRetry
from closeout.llm.building import ReplyBuilder
from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.testing.misbehaviour import CONNECTION_FAULTS, Misbehaviour
from closeout.testing.player import ConversationKey, Player
from closeout.testing.script import RequestView, Script
from closeout.testing.writing import as_deltas

__all__ = ["ScriptedClient"]

EVERYTHING = Capabilities(completions=True, json_schema=True, grammar=True, images=True, known=True)


class ScriptedClient(BaseClient):
    """A model client that plays a script. `requests` keeps every request that it was given.

    `misbehave`: what goes wrong and when. A fault of the connection is raised as the error that a real client raises
    when its retries are spent. `chunks`: lengths of the pieces in which a reply is streamed, in characters.
    """

    def __init__(
        self,
        script: Script,
        *,
        misbehave: Iterable[Misbehaviour | str] | Misbehaviour | str = (),
        by: ConversationKey = "key",
        name: str = "scripted",
        capabilities: Capabilities = EVERYTHING,
        chunks: Sequence[int] = (7, 3, 11),
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.requests: list[ModelRequest] = []
        self._chunks = chunks
        self._player = Player(script, misbehave=misbehave, by=by, stop_words=capabilities.stop)

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        self.requests.append(request)
        await asyncio.sleep(0)
        performance = self._player.play(
            RequestView(request.messages, request.prompt, tuple(tool.name for tool in request.tools), request.stop)
        )
        reply, fault = performance.reply, performance.connection_fault
        if fault is not None and fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        elif fault is not None:
            self.charge(Usage(requests=1))
            await self._fail(fault, request, reply, on_delta)
        self.charge(reply.usage)
        if on_delta is None:
            return reply
        return self._stream(reply, on_delta)

    def _stream(self, reply: ModelReply, on_delta: OnDelta, *, share: float = 1.0) -> ModelReply:
        deltas = list(as_deltas(reply, self._chunks))
        builder = ReplyBuilder(on_delta)
        for delta in deltas[: int(len(deltas) * share)]:
            if delta.kind == "text":
                builder.add_text(delta.text)
            elif delta.kind == "reasoning":
                builder.add_reasoning(delta.text)
            elif delta.kind == "tool_name":
                builder.add_call(delta.index, call_id=reply.tool_calls[delta.index].id, name=delta.text)
            else:
                builder.add_call(delta.index, arguments=delta.text)
            if builder.enough:
                return builder.reply(usage=reply.usage)
        return reply

    async def _fail(
        self, fault: Misbehaviour, request: ModelRequest, reply: ModelReply, on_delta: OnDelta | None
    ) -> NoReturn:
        spent = Usage(requests=1)
        if fault.kind == "hang":
            await asyncio.sleep(request.timeout if request.timeout is not None else float("inf"))
            raise ModelTimeout("The scripted model said nothing in time.", usage=spent)
        if fault.kind == "rate_limited":
            raise RateLimited("The scripted model is asked too often.", status=429, retry_after=fault.seconds)
        if fault.kind == "dropped":
            if on_delta is not None:
                self._stream(reply, on_delta, share=0.5)
            raise StreamDropped("The scripted model's stream broke off.", usage=spent)
        raise ServerFailed(f"The scripted model failed: {CONNECTION_FAULTS[fault.kind]}.", status=500, usage=spent)
