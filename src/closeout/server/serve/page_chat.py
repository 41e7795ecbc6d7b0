"""Chats of web pages: the AI SDK's `useChat` and AG-UI. A chat is a session of the agent, and its record is the truth.

A run continues when its page is gone. A page that is loaded again gets the messages from the record, and the run that
is under way as a stream from its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from aiohttp import web

from closeout.errors import RunExists
from closeout.file_values import File
from closeout.journal.events import REPLIED
from closeout.journal.store import RunRecord
from closeout.journal.subscribers import RunInfo
from closeout.run.ag_ui import ag_ui_messages
from closeout.run.page_stream import page_messages
from closeout.run.sse_stream import ServerSentEvents, StreamForm
from closeout.run.waits.decisions import Decision, PendingDecision, pending_decisions
from closeout.server.api_errors import ApiError, json_body
from closeout.server.app import json_response
from closeout.server.safety import client_of, seen_by
from closeout.server.serve.files_in import file_in
from closeout.server.serve.host import AgentHost
from closeout.server.serve.messages_in import user_of
from closeout.server.sse import send_events

__all__ = ["add_page_chat"]

BUSY = "The last message of this chat is being answered. Follow it at {}/stream, or stop it."


def add_page_chat(app: web.Application, host: AgentHost) -> None:
    """Add the routes that pages talk to. `POST /v1/ui` is the `api` of `useChat`, `POST /v1/ag-ui` the URL of AG-UI."""
    forms: Mapping[str, StreamForm] = {"/v1/ui": "ai-sdk", "/v1/ag-ui": "ag-ui"}
    for path, form in forms.items():
        chat = _Chats(host, path, form)
        app.router.add_post(path, chat.post)
        app.router.add_get(f"{path}/{{id}}", chat.messages)
        app.router.add_get(f"{path}/{{id}}/stream", chat.stream)
        app.router.add_post(f"{path}/{{id}}/stop", chat.stop)


class _Chats:
    def __init__(self, host: AgentHost, path: str, form: StreamForm) -> None:
        self._host = host
        self._path = path
        self._form = form
        self._busy: dict[str, asyncio.Lock] = {}  # of chats to which a message is being added

    # ------------------------------------------------------------------------------------------ routes

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer the last message, or continue with what the user decided."""
        body = await json_body(request)
        name = "id" if self._form == "ai-sdk" else "threadId"
        chat = body.get(name)
        if not isinstance(chat, str) or not chat:
            raise ApiError(400, f"{name} must be the chat's name, a text.", param=name)
        if body.get("tools"):
            raise ApiError(400, "This agent calls its own tools and cannot be given others. Leave out tools.")
        messages = body.get("messages")
        message = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(message, dict):
            raise ApiError(400, "messages must end with the message to answer.", param="messages")
        lock = self._busy.setdefault(chat, asyncio.Lock())
        try:
            async with lock:
                run_id, after = await self._begin(request, chat, message, body)
        finally:
            if not lock.locked():
                self._busy.pop(chat, None)
        return await self._send(request, run_id, (chat, str(body.get("runId") or "")), after)

    async def messages(self, request: web.Request) -> web.Response:
        """Return the messages of the chat. The one that is being written is left to its stream."""
        runs = await self._runs(request)
        found: list[dict[str, Any]] = []
        for run in runs:
            messages, _ = await self._read_messages(request, run.run_id)
            under_way = run is runs[-1] and bool(await self._host.state(run.run_id))
            found += messages[:-1] if under_way else messages
        return json_response({"messages": found if self._form == "ai-sdk" else ag_ui_messages(found)})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Stream the message that is being written from its beginning; 204 if there is none."""
        runs = await self._runs(request)
        if not runs or not await self._host.state(runs[-1].run_id):
            return web.Response(status=204)
        _, begin = await self._read_messages(request, runs[-1].run_id)
        return await self._send(request, runs[-1].run_id, (request.match_info["id"], ""), begin)

    async def stop(self, request: web.Request) -> web.Response:
        """Cancel the run that is under way or waits."""
        runs = await self._runs(request)
        if runs and (runs[-1].status == "waiting" or await self._host.state(runs[-1].run_id)):
            await self._host.cancel(runs[-1].run_id)
        return json_response({"stopped": bool(runs)})

    # ------------------------------------------------------------------------------------------ messages

    async def _begin(
        self, request: web.Request, chat: str, message: Mapping[str, Any], body: Mapping[str, Any]
    ) -> tuple[str, int]:
        """Begin a run, or continue the one that waits. Returns it, and the number of the first event to send."""
        runs = await self._runs(request, chat)
        last = runs[-1] if runs else None
        if last is not None and await self._host.state(last.run_id):
            raise ApiError(409, BUSY.format(f"{self._path}/{quote(chat, safe='')}"), code="busy")
        text, files = _text_and_files(message)
        if last is not None and last.status == "waiting":
            rows = await self._host.rows(last.run_id)
            pending = {each.id: each for each in pending_decisions(rows)}
            given = _decisions(message, body, pending, text)
            if not given:
                names = ", ".join(each.tool for each in pending.values())
                raise ApiError(
                    409, f"The last message waits for a decision ({names}). Decide it first.", code="waiting"
                )
            await self._host.decide(last.run_id, given, notes={"stream": True})
            return last.run_id, len(rows)
        if message.get("role") != "user":
            raise ApiError(400, "The last message must be the user's: nothing waits for a decision.", param="messages")
        if body.get("trigger") == "regenerate-message" and last is not None and last.status in REPLIED:
            raise ApiError(409, "This message has its answer. Send another message.", code="answered")
        user = seen_by(request) or user_of(body, client_of(request))
        notes = {"api": "page", "stream": True, "user": user, **self._host.deps.notes(request)}
        try:
            return await self._host.submit(text, files=files, notes=notes, session=chat), 0
        except RunExists:
            raise ApiError(409, BUSY.format(f"{self._path}/{quote(chat, safe='')}"), code="busy") from None

    async def _runs(self, request: web.Request, chat: str = "") -> list[RunRecord]:
        """Return the runs of a chat, that of the path by default. Raises RunNotFound if another client began it."""
        session = self._host.agent.session(chat or request.match_info["id"])
        runs = await self._host.store.off_loop(lambda: session.runs)
        for run in runs[:1]:
            await self._host.find(run.run_id, seen_by(request))
        return runs

    async def _read_messages(self, request: web.Request, run_id: str) -> tuple[list[dict[str, Any]], int]:
        events = [row.event for row in await self._host.rows(run_id)]
        return page_messages(run_id, events, _file_url(request, run_id))

    # ------------------------------------------------------------------------------------------ streams

    async def _send(
        self, request: web.Request, run_id: str, names: tuple[str, str], after: int = 0
    ) -> web.StreamResponse:
        events = ServerSentEvents(
            (row.event async for row in self._host.follow(run_id)),
            lambda: RunInfo(run_id),
            self._form,
            skip=after,
            file_url=_file_url(request, run_id),
            names=names,
        )
        return await send_events(request, events, events.headers)


def _file_url(request: web.Request, run_id: str) -> Callable[[str], str]:
    """Return the addresses of a run's files. A proxy, or the application that this one is mounted in, has a prefix."""
    prefix = request.headers.get("X-Forwarded-Prefix", "").rstrip("/")
    return lambda name: f"{prefix}/v1/runs/{quote(run_id, safe='')}/files/{quote(name)}"


def _text_and_files(message: Mapping[str, Any]) -> tuple[str, list[File]]:
    """Read a user's message of the AI SDK (`parts`) or of AG-UI (`content`)."""
    parts = message.get("parts", message.get("content"))
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    texts, files = list[str](), list[File]()
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            raise ApiError(400, "The parts of a message must be objects.", param="messages")
        source = part["source"] if isinstance(part.get("source"), dict) else {}
        if part.get("type") == "text":
            texts.append(str(part.get("text", "")))
        elif part.get("type") == "file" or source:
            url = str(part.get("url") or source.get("value") or "")
            if url.startswith(("http:", "https:")):
                raise ApiError(400, "Send the content of a file, not its address: this server fetches nothing.")
            about = part["metadata"] if isinstance(part.get("metadata"), dict) else {}
            kind, name = source.get("mimeType"), part.get("filename") or about.get("filename")
            files.append(file_in(url, name, kind, place="messages", files=files))
    return "\n".join(texts), files


def _decisions(
    message: Mapping[str, Any], body: Mapping[str, Any], pending: Mapping[str, PendingDecision], text: str
) -> dict[str, Decision]:
    """Return what the user decided, of what the run waits for."""
    found: dict[str, Decision] = {}
    for part in message.get("parts") or ():  # the AI SDK
        approval = part.get("approval") if isinstance(part, dict) else None
        if isinstance(approval, dict) and isinstance(approval.get("approved"), bool):
            found[str(approval.get("id"))] = _verdict(approval["approved"], approval.get("reason"))
    for entry in body.get("resume") or ():  # AG-UI
        if not isinstance(entry, dict):
            raise ApiError(400, "resume must be a list of objects.", param="resume")
        given, name = entry.get("payload"), str(entry.get("interruptId"))
        given = given if isinstance(given, dict) else {"approved": given, "answer": given}
        if name in pending and pending[name].kind == "question" and entry.get("status") != "cancelled":
            found[name] = Decision(verdict="answer", text=str(given.get("answer", "")))
        elif name in pending:
            approved = entry.get("status") != "cancelled" and given.get("approved") is True
            found[name] = _verdict(approved, given.get("reason"))
    question = next((name for name, each in pending.items() if each.kind == "question"), None)
    if not found and question is not None and message.get("role") == "user":
        found[question] = Decision(verdict="answer", text=text)
    return {name: decision for name, decision in found.items() if name in pending}


def _verdict(approved: bool, reason: Any) -> Decision:
    return Decision(verdict="approve" if approved else "deny", text=reason if isinstance(reason, str) else "")
