"""The Responses API: create, get, cancel and delete responses; each is a run of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from closeout.answers.contracts import Text
from closeout.codec import decode_json
from closeout.errors import RunNotFound, UsageError
from closeout.file_values import File
from closeout.journal.events import RunEnded
from closeout.run.handoff import handed_to_of
from closeout.run.result import conversation_of
from closeout.server.api_errors import ApiError, json_body
from closeout.server.app import json_response
from closeout.server.file_download import run_files
from closeout.server.safety import client_of, seen_by
from closeout.server.serve.host import AgentHost
from closeout.server.serve.messages_in import approval_responses, decisions_in, response_conversation, user_of
from closeout.server.serve.request_keys import REQUEST_NOTE, RequestKey, request_key
from closeout.server.serve.response_state import ResponseId
from closeout.server.serve.response_view import ResponseView
from closeout.server.sse import event_bytes, send_events

__all__ = ["add_responses", "check_model", "check_request", "run_headers", "schema_in"]

MAX_ITEMS = 100  # the longest page that OpenAI allows
MAX_METADATA = 16  # entries, as OpenAI allows


def add_responses(app: web.Application, host: AgentHost) -> None:
    """Add the routes of the Responses API to an application."""
    api = _ResponsesRoutes(host)
    app.router.add_post("/v1/responses", api.create)
    app.router.add_get("/v1/responses/{id}", api.get)
    app.router.add_delete("/v1/responses/{id}", api.delete)
    app.router.add_get("/v1/responses/{id}/input_items", api.input_items)
    app.router.add_post("/v1/responses/{id}/cancel", api.cancel)


def run_headers(run_id: str) -> dict[str, str]:
    """Return the header that names the run of a response."""
    return {"X-Closeout-Run-Id": run_id}


def check_model(body: Mapping[str, Any], host: AgentHost) -> None:
    """Raise ApiError if a request names another model than the agent."""
    model = body.get("model", host.name)
    if model != host.name:
        raise ApiError(404, f"No model {model!r:.80} here. Use {host.name!r}.", code="model_not_found", param="model")


def check_request(body: Mapping[str, Any], host: AgentHost) -> None:
    """Raise ApiError if a request names another model, or offers tools, which the agent would never call."""
    check_model(body, host)
    if body.get("tools"):
        raise ApiError(
            400, "This agent calls its own tools and cannot be given others. Leave out tools.", param="tools"
        )


def schema_in(form: Any, param: str, host: AgentHost) -> dict[str, Any] | None:
    """Return the JSON Schema that a client wants the answer to satisfy, None if it wants a text.

    Args:
        form: `response_format`, or `text.format`.
        param: Which of the two it is.
        host: The host. Only an agent whose answers are any text can answer in another form.

    Raises:
        ApiError: It is not a form, not a schema, or the agent has a form of its own.
    """
    kind = form.get("type") if isinstance(form, dict) else form
    if kind in (None, "text"):
        return None
    if not isinstance(host.agent.plan().contract, Text):
        text = f"This agent's answers have a form of their own. Leave out {param}."
        raise ApiError(400, text, param=param)
    if kind == "json_object":
        return {"type": "object"}
    inner = form.get("json_schema", form) if isinstance(form, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        text = f"{param} must be text, json_object, or json_schema with a schema."
        raise ApiError(400, text, param=param)
    try:
        host.agent.with_answer(schema)
    except UsageError as error:
        raise ApiError(400, f"The schema of {param} cannot be used: {error}", param=param) from None
    return schema


class _ResponsesRoutes:
    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await json_body(request)
        check_request(body, self._host)
        text = body.get("text")
        notes = {
            "api": "responses",
            "background": bool(body.get("background")),
            "stream": bool(body.get("stream")),
            **self._host.deps.notes(request),
            "user": user_of(body, client_of(request)),
            "metadata": _metadata(body.get("metadata")),
            "instructions": body.get("instructions"),
            "previous_response_id": body.get("previous_response_id"),
            "schema": schema_in(text.get("format") if isinstance(text, dict) else text, "text.format", self._host),
        }
        key = await request_key(request, self._host.name, self._host.deps)
        response = await self._begin(body, notes, seen_by(request), key)
        if notes["stream"]:
            return await send_events(request, self._events(response, -1), run_headers(response.run_id))
        if not notes["background"]:
            await self._host.wait(response.run_id)
        return await self._response(response)

    async def _begin(
        self, body: Mapping[str, Any], notes: Mapping[str, Any], client: str, key: RequestKey | None
    ) -> ResponseId:
        """Begin a run, or continue one with the decisions that it waits for."""
        given, previous = body.get("input"), notes["previous_response_id"]
        approvals = approval_responses(given)
        if approvals:  # their ids name the response, so previous_response_id may be left out
            earlier = ResponseId.of_item(approvals[0].request)
        elif isinstance(previous, str):
            earlier = ResponseId.read(previous)
        elif previous is None:
            return await self._submit(body, notes, (), (), key)
        else:
            raise ApiError(400, "previous_response_id must be a text.", param="previous_response_id")
        view, later = await self._view(earlier, client), ResponseId(earlier.run_id, earlier.part + 1)
        if view.awaits_decision:
            decisions = decisions_in(given, approvals, view.state.pending)
            notes = {**notes, "previous_response_id": str(earlier), REQUEST_NOTE: key and key.request}
            await self._host.decide(earlier.run_id, decisions, notes=notes)
            return later
        if key is not None and view.parts > earlier.part:
            answered = (await self._view(later)).state.notes.get(REQUEST_NOTE)
            if answered == key.request:
                return later
        if approvals:
            raise ApiError(400, f"The response {earlier} does not wait for an approval.", param="input")
        if view.parts > earlier.part:
            text = f"The response {earlier} was continued. Continue the last one of its run."
            raise ApiError(400, text, param="previous_response_id")
        messages, handed_to = await self._conversation(earlier)
        files = run_files(self._host.store, await self._host.rows(earlier.run_id)).all()
        return await self._submit(body, {**notes, "handed_to": handed_to}, messages, files, key)

    async def _submit(
        self,
        body: Mapping[str, Any],
        notes: Mapping[str, Any],
        earlier: Sequence[Mapping[str, Any]],
        work_files: Sequence[File],
        key: RequestKey | None,
    ) -> ResponseId:
        conversation = response_conversation(body.get("input"), earlier, body.get("instructions"))
        run_id = await self._host.submit(
            conversation.task,
            history=conversation.history,
            files=conversation.files,
            work_files=work_files,
            notes=notes,
            key=key,
        )
        return ResponseId(run_id)

    async def get(self, request: web.Request) -> web.StreamResponse:
        response = await self._asked(request)
        if request.query.get("stream", "").lower() != "true":
            return await self._response(response)
        after = request.query.get("starting_after", "-1")
        if not after.removeprefix("-").isdecimal() or len(after) > 18:
            raise ApiError(400, "starting_after must be the sequence number of an event.", param="starting_after")
        await self._view(response)  # raises if the run has fewer parts
        return await send_events(request, self._events(response, int(after)), run_headers(response.run_id))

    async def input_items(self, request: web.Request) -> web.Response:
        """List the messages that a response answers, the newest first unless `order` is "asc"."""
        response = await self._asked(request)
        await self._view(response)  # raises if the run has fewer parts
        started = (await self._host.find(response.run_id)).started
        earlier = decode_json(started.earlier.encode()) if started.earlier else []
        messages = [*earlier, {"role": "user", "content": started.task}]
        items = [_input_item(f"msg_{response.run_id}_in{index}", each) for index, each in enumerate(messages)]
        if request.query.get("order", "desc") != "asc":
            items.reverse()
        limit, after = request.query.get("limit", "20"), request.query.get("after", "")
        if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_ITEMS:
            raise ApiError(400, f"limit must be a number from 1 to {MAX_ITEMS}.", param="limit")
        place = next((index + 1 for index, item in enumerate(items) if item["id"] == after), 0)
        if after and not place:
            raise ApiError(400, f"No item {after:.80} in this response.", param="after")
        page = items[place : place + int(limit)]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return json_response({"object": "list", "data": page, **ends, "has_more": place + len(page) < len(items)})

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        response = await self._asked(request)
        is_open = (await self._view(response)).state.outcome is None
        # A run that waits has given a whole response, and continues once somebody decides.
        if is_open or (await asyncio.to_thread(self._host.store.run, response.run_id)).status == "waiting":
            await self._host.cancel(response.run_id)
        return await self._response(response)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        response = await self._asked(request)
        await self._view(response)
        try:
            await self._host.delete(response.run_id)
        except UsageError:
            raise ApiError(409, f"{response} is on hold. Its server must release it first.") from None
        return json_response({"id": str(response), "object": "response", "deleted": True})

    # ------------------------------------------------------------------------------------------ reading runs

    async def _asked(self, request: web.Request) -> ResponseId:
        """Return the response that a request names. Raises RunNotFound if its client has begun no such run."""
        response = ResponseId.read(request.match_info["id"])
        await self._host.find(response.run_id, seen_by(request))
        return response

    async def _view(self, response: ResponseId, client: str = "") -> ResponseView:
        """Read a response. Raises RunNotFound if there is no run with this id that the client has begun."""
        await self._host.find(response.run_id, client)
        view = ResponseView(response, self._host.name)
        for row in await self._host.rows(response.run_id):
            view.feed(row)
        if view.parts < response.part:
            raise RunNotFound(f"No response {response} here.")
        return view

    async def _response(self, response: ResponseId) -> web.Response:
        view = await self._view(response)
        state, failure = await self._host.state(response.run_id), self._host.failure(response.run_id)
        return json_response(view.state.response(state=state, failure=failure), run_headers(response.run_id))

    async def _events(self, response: ResponseId, after: int) -> AsyncIterator[bytes]:
        """The events of a response's stream whose sequence number is greater than `after`."""
        view = ResponseView(response, self._host.name)
        async for row in self._host.follow(response.run_id):
            for event in view.feed(row):
                if event["sequence_number"] > after:
                    yield event_bytes(event, name=event["type"])
            if view.awaits_decision:
                return
        failure = self._host.failure(response.run_id)
        if view.state.outcome is None and failure:  # not a part of the record: the run may still be resumed by hand
            error = {"type": "error", "code": "server_error", "message": failure, "param": None}
            yield event_bytes(error, name="error")

    async def _conversation(self, response: ResponseId) -> tuple[list[dict[str, Any]], list[str]]:
        """The conversation up to the end of an earlier response, without its instructions, and who continues it."""
        run, rows = await self._host.find(response.run_id), await self._host.rows(response.run_id)
        ended = next((row.event for row in reversed(rows) if isinstance(row.event, RunEnded)), None)
        if ended is None or ended.status != "answered" or await self._host.state(response.run_id):
            raise ApiError(400, f"The response {response} is not completed.", param="previous_response_id")
        messages = [dict(message) for message in conversation_of(rows, ended.closing_text or ended.answer or "")]
        handed_to = handed_to_of(row.event for row in rows)
        return messages[1:] if run.notes.get("instructions") else messages, [*handed_to]


def _input_item(item_id: str, message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = message.get("role", "user"), message.get("content")
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [content] if isinstance(content, str) else content if isinstance(content, list) else []
    texts = [each if isinstance(each, str) else str(each.get("text") or "") for each in parts]
    shown: list[dict[str, Any]] = [{"type": kind, "text": text} for text in texts]
    if kind == "output_text":
        shown = [{**part, "annotations": []} for part in shown]
    return {"id": item_id, "type": "message", "role": role, "status": "completed", "content": shown}


def _metadata(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MAX_METADATA or not all(isinstance(v, str) for v in given.values()):
        raise ApiError(400, f"metadata must be an object of at most {MAX_METADATA} texts.", param="metadata")
    return given
