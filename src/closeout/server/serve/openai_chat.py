"""The Chat Completions API: `/v1/models` and `/v1/chat/completions`; each request is a run of the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from closeout.journal.events import Event, RunEnded, ToolStarted, TurnAccepted, has_conversation
from closeout.journal.story import Story
from closeout.journal.totals import RunTotals
from closeout.server.api_errors import ApiError, error_body, json_body
from closeout.server.app import json_response
from closeout.server.formats.chat_completions import chat_usage
from closeout.server.safety import client_of
from closeout.server.serve.answer_sources import chat_annotations
from closeout.server.serve.host import AgentHost
from closeout.server.serve.messages_in import Conversation, chat_conversation, user_of
from closeout.server.serve.reply_text import ReplyText
from closeout.server.serve.request_keys import RequestKey, request_key
from closeout.server.serve.response_state import Outcome
from closeout.server.serve.responses import check_model, check_request, run_headers, schema_in
from closeout.server.sse import event_bytes, send_events

__all__ = ["add_chat", "answer_of", "followed_answer", "run_while_connected"]

DONE = b"data: [DONE]\n\n"
INTERRUPTED = "interrupted"  # the code of an error: the run can be resumed


def add_chat(app: web.Application, host: AgentHost) -> None:
    """Add the routes of the Chat Completions API to an application."""
    api = _Chat(host)
    app.router.add_get("/v1/models", api.models)
    app.router.add_get("/v1/models/{name}", api.model)
    app.router.add_post("/v1/chat/completions", api.create)


class _Chat:
    def __init__(self, host: AgentHost) -> None:
        self._host = host
        self._model = {"id": host.name, "object": "model", "created": int(time.time()), "owned_by": "closeout"}

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model]})

    async def model(self, request: web.Request) -> web.Response:
        check_model({"model": request.match_info["name"]}, self._host)
        return web.json_response(self._model)

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await json_body(request)
        check_request(body, self._host)
        if body.get("n", 1) != 1:
            raise ApiError(400, "This agent gives one answer: leave out n.", param="n")
        conversation = chat_conversation(body.get("messages"))
        schema = schema_in(body.get("response_format"), "response_format", self._host)
        notes = {
            "api": "chat",
            "stream": bool(body.get("stream")),
            **self._host.deps.notes(request),
            "user": user_of(body, client_of(request)),
            "schema": schema,
        }
        key = await request_key(request, self._host.name, self._host.deps)
        async with run_while_connected(self._host, conversation, notes, key) as run_id:
            if body.get("stream"):
                options = body.get("stream_options")
                with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
                return await send_events(request, self._chunks(run_id, with_usage), run_headers(run_id))
            return await self._completion(run_id)

    # ------------------------------------------------------------------------------------------ whole

    async def _completion(self, run_id: str) -> web.Response:
        await self._host.wait(run_id)
        rows = await self._host.rows(run_id)
        events = [row.event for row in rows]
        totals = RunTotals(events)
        reasoning = "".join(map(_activity, events))
        answer = answer_of(self._host, run_id, totals.ended)
        message: dict[str, Any] = {"role": "assistant", "content": answer, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if annotations := chat_annotations(rows, run_id, answer):
            message["annotations"] = annotations
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        completion = {
            **self._head(run_id, "chat.completion"),
            "choices": [choice],
            "usage": chat_usage(totals.usage),
        }
        return json_response(completion, run_headers(run_id))

    # ------------------------------------------------------------------------------------------ streamed

    async def _chunks(self, run_id: str, with_usage: bool) -> AsyncIterator[bytes]:
        head, totals = self._head(run_id, "chat.completion.chunk"), RunTotals()

        def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish_reason}
            return event_bytes({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        async for event, pieces in followed_answer(self._host, run_id, totals):
            for piece in pieces:
                yield chunk({"content": piece})
            if text := _activity(event):
                yield chunk({"reasoning_content": text})
        try:
            answer = answer_of(self._host, run_id, totals.ended)
        except ApiError as error:
            yield event_bytes(error_body(error))
            return
        if annotations := chat_annotations(await self._host.rows(run_id), run_id, answer):
            yield chunk({"annotations": annotations})
        yield chunk({}, "stop")
        if with_usage:
            yield event_bytes({**head, "choices": [], "usage": chat_usage(totals.usage)})
        yield DONE

    def _head(self, run_id: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{run_id}",
            "object": kind,
            "created": int(time.time()),
            "model": self._host.name,
            "system_fingerprint": None,
        }


@asynccontextmanager
async def run_while_connected(
    host: AgentHost, conversation: Conversation, notes: Mapping[str, Any], key: RequestKey | None
) -> AsyncIterator[str]:
    """Begin the run of a request, and cancel it if the client disconnects and has no key. Yields the run's id."""
    run_id = await host.submit(
        conversation.task, history=conversation.history, files=conversation.files, notes=notes, key=key
    )
    try:
        yield run_id
    except (asyncio.CancelledError, ConnectionError):
        if key is None and not host.stopping:
            await host.cancel(run_id)  # nobody can receive the answer any more
        raise
    except ApiError as error:
        error.repeatable = key is not None and error.code == INTERRUPTED
        raise


async def followed_answer(host: AgentHost, run_id: str, totals: RunTotals) -> AsyncIterator[tuple[Event, list[str]]]:
    """Yield the events of a run, counted in `totals`, with the pieces of the answer that each one adds."""
    story, reply = Story(), ReplyText()
    gap = ""  # separates a text that does not count, which cannot be taken from the client
    async for row in host.follow(run_id):
        place, pieces = story.feed(row.event), []
        for change in reply.feed(row.event, place) if has_conversation(row.event.agent) else ():
            if change.text:
                pieces.append(gap + change.text)
            gap = "\n\n" if change.withdrawn else ""
        totals(row.event)
        yield row.event, pieces


def answer_of(host: AgentHost, run_id: str, ended: RunEnded | None) -> str:
    """Return the answer of a run that is over. Raises ApiError if it has none."""
    if ended is None or (host.stopping and ended.status == "cancelled"):
        text = host.failure(run_id) or f"The server is stopping. To continue: closeout resume {run_id}"
        raise ApiError(503, text, code=INTERRUPTED)
    outcome = Outcome(ended)
    if ended.status == "waiting":
        raise ApiError(409, f"{outcome.message} See /v1/runs/{run_id}.", code=outcome.code)
    if ended.status != "answered":
        message = outcome.message or f"The run was {outcome.status}."
        status = 429 if ended.stop_reason == "budget" else 403 if ended.error_kind == "PermissionError" else 500
        raise ApiError(status, f"{message} (run {run_id})", code=outcome.code)
    return ended.answer or ""


def _activity(event: Event) -> str:
    """Return what an event adds to the text that describes the run's activity."""
    if not has_conversation(event.agent):
        return ""
    match event:
        case ToolStarted():
            return f"→ {event.name} {event.arguments}\n"
        case TurnAccepted(text=text) if text:
            return f"{text}\n"
    return ""
