"""Anthropic's Messages API, `/v1/messages`: each request is a run of the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from closeout.journal.totals import RunTotals
from closeout.messages import ModelReply
from closeout.server.api_errors import TYPES, ApiError, error_response, json_body
from closeout.server.app import json_response
from closeout.server.formats.anthropic_messages import AnthropicMessages
from closeout.server.serve.answer_sources import search_results
from closeout.server.serve.host import AgentHost
from closeout.server.serve.messages_in import chat_conversation, user_of
from closeout.server.serve.openai_chat import answer_of, followed_answer, run_while_connected
from closeout.server.serve.request_keys import request_key
from closeout.server.serve.responses import check_request, run_headers, schema_in
from closeout.server.sse import event_bytes, send_events

__all__ = ["add_messages"]

_FORMAT = AnthropicMessages()
# What a client sends back of earlier replies, and the agent does not need.
_THOUGHTS = ("thinking", "redacted_thinking")


def add_messages(app: web.Application, host: AgentHost) -> None:
    """Add the route of the Messages API to an application."""
    app.router.add_post("/v1/messages", _Messages(host).create)


class _Messages:
    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def create(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._create(request, await json_body(request))
        except ApiError as error:
            return error_response(error, body=_error)

    async def _create(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        check_request(body, self._host)
        conversation = chat_conversation(_chat_messages(body))
        config, metadata = body.get("output_config"), body.get("metadata")
        wanted = config.get("format") if isinstance(config, dict) else body.get("output_format")
        notes = {
            "api": "chat",
            "stream": bool(body.get("stream")),
            **self._host.deps.notes(request),
            "user": user_of({"user": metadata.get("user_id") if isinstance(metadata, dict) else None}),
            "schema": schema_in(wanted, "output_config.format", self._host),
        }
        key = await request_key(request, self._host.name, self._host.deps)
        async with run_while_connected(self._host, conversation, notes, key) as run_id:
            if body.get("stream"):
                return await send_events(request, self._events(run_id, body), run_headers(run_id))
            await self._host.wait(run_id)
            rows = await self._host.rows(run_id)
            totals = RunTotals([row.event for row in rows])
            answer = answer_of(self._host, run_id, totals.ended)
            whole = _FORMAT.whole(body, self._reply(answer, totals)) | {"id": f"msg_{run_id}"}
            if citations := search_results(rows, run_id, answer):
                whole["content"] = [{**block, "citations": citations} for block in whole["content"]]
            return json_response(whole, run_headers(run_id))

    def _reply(self, answer: str, totals: RunTotals) -> ModelReply:
        return ModelReply(answer, finish_reason="stop", usage=totals.usage, model=self._host.name)

    async def _events(self, run_id: str, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
        writer = _FORMAT.writer({**body, "model": self._host.name})
        totals = RunTotals()
        for sent in writer.begin():
            yield sent
        async for _, pieces in followed_answer(self._host, run_id, totals):
            for piece in pieces:
                for sent in writer.text(piece):
                    yield sent
        try:
            answer = answer_of(self._host, run_id, totals.ended)
        except ApiError as error:
            yield event_bytes(_error(error), name="error")
            return
        for each in search_results(await self._host.rows(run_id), run_id, answer):
            yield writer.citation(each)
        for sent in writer.finish(self._reply("", totals)):
            yield sent


def _chat_messages(body: Mapping[str, Any]) -> Any:
    """The request's messages as those of Chat Completions, without the thoughts of earlier replies."""
    system, messages = body.get("system"), body.get("messages")
    if not isinstance(messages, list):
        return messages
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *map(_without_thoughts, messages)]


def _without_thoughts(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    kept = [each for each in content if not (isinstance(each, dict) and each.get("type") in _THOUGHTS)]
    return {**message, "content": kept}


def _error(error: ApiError) -> dict[str, Any]:
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
