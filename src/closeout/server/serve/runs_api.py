"""The agent's own API: start runs, follow their events, read their answers, cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from aiohttp import web

from closeout.errors import MessageRefused
from closeout.file_values import File
from closeout.journal.events import RunEnded
from closeout.journal.inbox import mailbox_of
from closeout.journal.totals import RunTotals
from closeout.run.files_of_run import RunFiles
from closeout.run.waits.decisions import pending_decisions
from closeout.server.api_errors import ApiError, json_body, json_value
from closeout.server.app import json_response
from closeout.server.file_download import file_response, files_shape, find_file, run_files
from closeout.server.safety import client_of, seen_by
from closeout.server.serve.files_in import file_in
from closeout.server.serve.host import AgentHost
from closeout.server.serve.messages_in import chat_conversation, user_of
from closeout.server.serve.request_keys import KEY_HEADER, request_key
from closeout.server.serve.responses import run_headers
from closeout.server.sse import event_bytes, send_events

__all__ = ["add_runs_api", "begin_run"]

MAX_WAIT_SECONDS = 600.0


def add_runs_api(app: web.Application, host: AgentHost) -> None:
    """Add the routes of the agent's own API to an application."""
    api = _Runs(host)
    app.router.add_post("/v1/runs", api.create)
    app.router.add_get("/v1/runs/{id}", api.get)
    app.router.add_get("/v1/runs/{id}/events", api.events)
    app.router.add_get("/v1/runs/{id}/files", api.list_files)
    app.router.add_get("/v1/runs/{id}/files/{name:.+}", api.send_run_file)
    app.router.add_post("/v1/runs/{id}/cancel", api.cancel)
    app.router.add_post("/v1/runs/{id}/decisions", api.decide)
    app.router.add_post("/v1/runs/{id}/signals/{name}", api.signal)
    app.router.add_post("/v1/runs/{id}/messages", api.send)


async def begin_run(host: AgentHost, request: web.Request, **notes: Any) -> str:
    """Submit the run that the body of a request describes, and return its id.

    Args:
        host: Executes it.
        request: The request.
        notes: Notes of the server on the run.

    Raises:
        ApiError: The body is not valid.
        Busy: Too many runs are queued, or the server is stopping.
    """
    body = await json_body(request)
    if unknown := body.keys() - {"task", "history", "user", "files"}:
        raise ApiError(400, f"Unknown keys: {', '.join(sorted(unknown))[:200]}. Send task, history, user, files.")
    task = body.get("task")
    if not isinstance(task, str) or not task.strip():
        raise ApiError(400, 'task must be a text: {"task": "How far is the Moon?"}.', param="task")
    history = body.get("history") or []
    if not isinstance(history, list):
        raise ApiError(400, "history must be a list of messages.", param="history")
    conversation = chat_conversation([*history, {"role": "user", "content": task}])
    notes = {"api": "runs", "user": user_of(body, client_of(request)), **notes, **host.deps.notes(request)}
    files = [*conversation.files, *_files_in(body.get("files") or [])]
    key = await request_key(request, host.name, host.deps)
    return await host.submit(conversation.task, history=conversation.history, files=files, notes=notes, key=key)


class _Runs:
    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def create(self, request: web.Request) -> web.Response:
        return await self._run(await begin_run(self._host, request), status=202)

    async def get(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        wait = _number(request, "wait", 0.0)
        if wait > 0:
            await self._host.wait(run_id, min(wait, MAX_WAIT_SECONDS))
        return await self._run(run_id)

    async def events(self, request: web.Request) -> web.StreamResponse:
        run_id = await self._run_id(request)
        last = _number(request, "after", _number(request, "Last-Event-ID", -1.0))
        return await send_events(request, self._events(run_id, int(last) + 1), run_headers(run_id))

    async def list_files(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        files = await self._files(run_id)
        return web.json_response({"run_id": run_id, "files": files_shape(files)}, headers=run_headers(run_id))

    async def send_run_file(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        file = find_file(await self._files(run_id), run_id, request.match_info["name"])
        return file_response(file, await asyncio.to_thread(lambda: file.data))

    async def _files(self, run_id: str) -> RunFiles:
        return run_files(self._host.store, await self._host.rows(run_id))

    async def cancel(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        await self._host.cancel(run_id)
        return await self._run(run_id)

    async def decide(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        decisions = (await json_body(request)).get("decisions")
        if not isinstance(decisions, dict) or not decisions:
            raise ApiError(400, 'Send {"decisions": {ID: true, false, or an answer}}.', param="decisions")
        await self._host.decide(run_id, decisions)
        return await self._run(run_id, status=202)

    async def signal(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        payload = await json_value(request)
        key = request.headers.get(KEY_HEADER, "")
        sent = await self._host.signal(run_id, request.match_info["name"], payload, id=key)
        return web.json_response({"run_id": run_id, "sent": sent}, status=202)

    async def send(self, request: web.Request) -> web.Response:
        run_id = await self._run_id(request)
        body = await json_body(request)
        if unknown := body.keys() - {"text", "interrupt", "to", "user"}:
            raise ApiError(400, f"Unknown keys: {', '.join(sorted(unknown))[:200]}. Send text, interrupt, to and user.")
        text, interrupt, to = body.get("text"), body.get("interrupt", False), body.get("to", "")
        if not isinstance(text, str) or not isinstance(interrupt, bool) or not isinstance(to, str):
            raise ApiError(400, 'Send {"text": "…"}; interrupt is true or false, and to a name.', param="text")
        by = user_of(body, client_of(request))
        try:
            sent = await asyncio.to_thread(
                mailbox_of(self._host.store, run_id).send, text, to=to, by=by or "api", interrupt=interrupt
            )
        except MessageRefused as error:
            raise ApiError(409, str(error), code="message_refused") from None
        return json_response({"run_id": run_id, "id": sent.id, "to": sent.to}, run_headers(run_id), status=202)

    async def _run_id(self, request: web.Request) -> str:
        return (await self._host.find(request.match_info["id"], seen_by(request))).run_id

    async def _events(self, run_id: str, start: int) -> AsyncIterator[bytes]:
        async for row in self._host.follow(run_id, start):
            name = type(row.event).__name__
            data = {"seq": row.seq, "time": row.time, "type": name, **row.event.values()}
            yield event_bytes(data, name=name, number=row.seq)

    async def _run(self, run_id: str, *, status: int = 200) -> web.Response:
        rows = await self._host.rows(run_id)
        totals, ended = RunTotals(), None
        for row in rows:
            totals(row.event)
            if row.event.agent == "main":
                ended = row.event if isinstance(row.event, RunEnded) else None
        state = await self._host.state(run_id)
        waits = ended is not None and ended.status == "waiting" and not state
        found: dict[str, Any] = {
            "run_id": run_id,
            "status": state or (ended.status if ended is not None else "interrupted"),
            "answer": ended.answer if ended is not None and not state else None,
            "stop_reason": ended.stop_reason if ended is not None and not state else None,
            "error": (ended.error if ended is not None else self._host.failure(run_id)) or None,
            "waiting": [asdict(each) for each in pending_decisions(rows)] if waits else [],
            "turns": totals.turns,
            "repairs": len(totals.repairs),
            "rollbacks": totals.rollbacks,
            "usage": {
                "requests": totals.usage.requests,
                "input_tokens": totals.usage.input_tokens,
                "cached_tokens": totals.usage.cache_read_tokens,
                "output_tokens": totals.usage.output_tokens,
                "cost_usd": totals.usage.cost_usd,
            },
            "events": len(rows),
        }
        return json_response(found, run_headers(run_id), status=status)


def _files_in(given: Any) -> list[File]:
    if not isinstance(given, list) or not all(isinstance(e, dict) and isinstance(e.get("data"), str) for e in given):
        text = 'files must be a list such as [{"name": "sales.csv", "data": "BASE64"}].'
        raise ApiError(400, text, param="files")
    found: list[File] = []
    for each in given:
        found.append(file_in(each["data"], each.get("name"), "", place="files", files=found))
    return found


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name, request.headers.get(name))
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not -1 <= number < 2**53:
        raise ApiError(400, f"{name} must be a number, got {text[:80]}.", param=name)
    return number
