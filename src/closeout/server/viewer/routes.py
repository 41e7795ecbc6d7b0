"""The viewer's routes: its files, and the runs and events that its pages ask for."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from aiohttp import web

from closeout.errors import DecisionRefused, JournalError, JournalLocked, MessageRefused, RunNotFound, UsageError
from closeout.fleet.announcing import unsent_ends
from closeout.fleet.chores import change_schedule, list_schedules
from closeout.journal.events import ModelRequested
from closeout.journal.following import follow
from closeout.journal.persons import belongs_to
from closeout.journal.readonly import open_to_read
from closeout.journal.run_names import LAB
from closeout.journal.store import RunRecord, Store, open_store
from closeout.journal.text_search import SearchIndex
from closeout.server.app import HOME, error_response, json_response
from closeout.server.file_download import file_response, files_shape, find_file, run_files
from closeout.server.sse import event_bytes, send_events
from closeout.server.viewer.page_export import STATIC, export_run, joined_modules
from closeout.server.viewer.shapes import (
    about_shape,
    cut,
    ended_shape,
    event_shape,
    hit_shape,
    run_reason,
    run_shape,
    without_messages,
)
from closeout.server.viewer.story_items import StoryItems
from closeout.visible import visible

if TYPE_CHECKING:
    from closeout.run.waits.decisions import PendingDecision
    from closeout.server.serve.host import AgentHost
    from closeout.server.viewer.sign_in import SignIns

__all__ = ["add_viewer"]

P = ParamSpec("P")
T = TypeVar("T")

MOST_RUNS = 200  # runs in one response
MOST_EVENTS = 5000
INDEX_SECONDS = 0.1  # seconds of indexing before a list is made; the rest is indexed between lists
USAGE_DAYS, MOST_USAGE_DAYS = 31, 3_660
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FOLLOW_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def add_viewer(app: web.Application, *, host: AgentHost | None = None) -> None:
    """Add the viewer's pages under /viewer/, and a redirect from / to them.

    Args:
        app: The application, from `create_app`.
        host: Continues its own runs when what they wait for is decided. Without it decisions are only recorded.
    """
    viewer = _Viewer(app, host)
    app.on_shutdown.append(viewer.stop)
    app.on_cleanup.append(viewer.close)
    route = app.router
    route.add_get("/", _redirect)
    route.add_get("/viewer", _redirect)
    route.add_get("/viewer/api/runs", viewer.list_runs)
    route.add_post("/viewer/api/runs", viewer.begin_run)
    route.add_post("/viewer/api/schedules/{name}/{change:pause|continue}", viewer.change_schedule)
    route.add_get("/viewer/api/agent", viewer.show_agent)
    route.add_get("/viewer/api/agent.svg", viewer.draw_agent)
    route.add_get("/viewer/api/runs/{run_id}", viewer.show_run)
    route.add_get("/viewer/api/runs/{run_id}/trial", viewer.show_trial)
    route.add_get("/viewer/api/runs/{run_id}/events", viewer.list_events)
    route.add_get("/viewer/api/runs/{run_id}/events/{seq}", viewer.show_event)
    route.add_get("/viewer/api/runs/{run_id}/story", viewer.show_story)
    route.add_get("/viewer/api/runs/{run_id}/follow", viewer.follow_run)
    route.add_get("/viewer/api/runs/{run_id}/requests", viewer.list_requests)
    route.add_get("/viewer/api/runs/{run_id}/waiting", viewer.list_waiting)
    route.add_post("/viewer/api/runs/{run_id}/decisions", viewer.decide)
    route.add_post("/viewer/api/runs/{run_id}/resume", viewer.resume)
    route.add_get("/viewer/api/runs/{run_id}/rule", viewer.show_rule)
    route.add_post("/viewer/api/runs/{run_id}/rule", viewer.accept_rule)
    route.add_get("/viewer/api/runs/{run_id}/undo", viewer.list_undoable)
    route.add_post("/viewer/api/runs/{run_id}/undo", viewer.undo)
    route.add_post("/viewer/api/runs/{run_id}/login", viewer.sign_in)
    route.add_get("/viewer/login/callback", viewer.end_sign_in)
    route.add_post("/viewer/api/runs/{run_id}/messages", viewer.send_message)
    route.add_get("/viewer/api/runs/{run_id}/export", viewer.export)
    route.add_get("/viewer/api/runs/{run_id}/files", viewer.list_files)
    route.add_get("/viewer/api/runs/{run_id}/files/{name:.+}", viewer.send_run_file)
    route.add_get("/viewer/api/runs/{run_id}/sources", viewer.show_sources)
    route.add_get("/viewer/api/evaluations", viewer.list_evaluations)
    route.add_get("/viewer/api/evaluations/{name}", viewer.show_evaluation)
    route.add_get("/viewer/api/usage", viewer.show_usage)
    route.add_get("/viewer/{name:[a-z]*(?:\\.[a-z]+)?}", viewer.send_file)


async def _redirect(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/viewer/")


@lru_cache
def _file(name: str) -> bytes | None:
    """Return a file of the pages. `app.js` is all modules as one: a page that waits for one file is there sooner."""
    if name == "app.js":
        return joined_modules("main").encode()
    file = STATIC / name
    return file.read_bytes() if file.is_file() else None


class _Viewer:
    """Answers the pages' requests. The journal is read in threads, so that a slow disk holds up nobody else.

    Runs that wait and evaluations import much of the package, so they do it when a page asks for them.
    """

    def __init__(self, app: web.Application, host: AgentHost | None) -> None:
        self._app = app
        self._host = host
        self._token = secrets.token_urlsafe(24)  # known to the pages of this server only
        self._readers = ThreadPoolExecutor(4, "closeout-viewer")
        self._searcher = ThreadPoolExecutor(1, "closeout-search")  # a list waits for the index to be updated once
        self._index: tuple[Store, SearchIndex] | None = None
        self._followers: set[asyncio.Task[Any]] = set()
        self._indexing = False
        self._stopping = False
        self._sign_ins: SignIns | None = None

    async def stop(self, app: web.Application) -> None:
        """End the background work: following runs for pages, indexing."""
        self._stopping = True
        if self._sign_ins is not None:
            await self._sign_ins.close()
        for task in self._followers:
            task.cancel()

    async def close(self, app: web.Application) -> None:
        self._readers.shutdown()
        self._searcher.shutdown()
        if self._index is not None:
            self._index[1].close()

    async def _off_loop(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: act(*args, **kwargs))

    async def send_file(self, request: web.Request) -> web.Response:
        """A file of the pages. The first one carries the token that decisions must have."""
        name = request.match_info["name"] or "index.html"
        if (body := _file(name)) is None:
            raise web.HTTPNotFound(text=f"The viewer has no file {name}.")
        if name == "index.html":
            body = body.replace(b"TOKEN", self._token.encode())
        kind = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def _body_from_own_page(self, request: web.Request) -> bytes:
        """Return the body of a request that changes something. Raises what `check_own_page` raises."""
        from closeout.server.viewer.decision_requests import check_own_page

        check_own_page(request, self._token)
        return await request.read()

    # -------------------------------------------------------------------------------------------- runs

    async def list_runs(self, request: web.Request) -> web.Response:
        """The runs, newest first, filtered; with `text`, those in which it is found. Only these include trials."""
        loop = asyncio.get_running_loop()
        return json_response(await loop.run_in_executor(self._searcher, self._list_runs, dict(request.query)))

    def _list_runs(self, query: dict[str, str]) -> dict[str, Any]:
        from closeout.evaluate.trials import evaluations_in

        limit = _number(query, "limit", 50, MOST_RUNS)
        text, before = query.get("text", "").strip(), query.get("before", "")
        evaluations = evaluations_in(self._app[HOME])
        with open_to_read(self._app[HOME]) as store:
            index = self._open_index(store)
            state = index.update(INDEX_SECONDS)
            if state.indexed < state.runs and not self._indexing:
                self._indexing = True
                self._searcher.submit(self._index_more)
            named = {"agent": query.get("agent", ""), "user": query.get("user", "")}
            found: Iterator[tuple[RunRecord, Any]]
            if text:
                found = ((h.run, h) for h in index.search(text, before=before))
            elif any(named.values()):
                begun = store.beginnings(named["user"] or named["agent"], before=before)
                listed = (run_id for run_id, started in begun if belongs_to(started, **named))
                grouped = tuple(f"{name}." for name in [*evaluations, LAB])
                found = ((store.run(run_id), None) for run_id in listed if not run_id.startswith(grouped))
            else:
                found = ((record, None) for record in store.each_run(before, not_under=[*evaluations, LAB]))
            found = (pair for pair in found if _matches(pair[0], query))
            if text and any(named.values()):
                found = (pair for pair in found if belongs_to(store.beginning(pair[0].run_id), **named))
            wanted = list(islice(found, limit + 1))
            totals = index.totals(record.run_id for record, _ in wanted)
            shapes = []
            for record, hit in wanted[:limit]:
                shape = {**run_shape(record, totals.get(record.run_id)), "reason": run_reason(store, record)}
                shape |= about_shape(store.beginning(record.run_id))
                shapes.append(shape if hit is None else {**shape, "hit": hit_shape(hit)})
            schedules = [{**asdict(each), "task": ""} for each in list_schedules(store)]
            unsent = unsent_ends(store)[:20]
        return {
            "runs": shapes,
            "more": len(wanted) > limit,
            "indexed": state.indexed,
            "total": state.runs,
            "evaluations": [] if text else evaluations,
            "schedules": schedules,
            "unsent": unsent,
        }

    def _index_more(self) -> None:
        """Index for a moment, and again after the lists requested in the meantime."""
        with suppress(JournalError), open_to_read(self._app[HOME]) as store:
            state = self._open_index(store).update(INDEX_SECONDS)
            self._indexing = state.indexed < state.runs and not self._stopping
            if self._indexing:
                with suppress(RuntimeError):  # the server has stopped
                    self._searcher.submit(self._index_more)
            return
        self._indexing = False

    def _open_index(self, store: Store) -> SearchIndex:
        """Return the index of a store. Kept while the store is the same: it knows what it has indexed."""
        if self._index is None or self._index[0] is not store:
            if self._index is not None:
                self._index[1].close()
            self._index = (store, SearchIndex(store))
        return self._index[1]

    # -------------------------------------------------------------------------------------------- the playground

    async def show_agent(self, request: web.Request) -> web.Response:
        """The served agent and its sub-agents; an empty list without one."""
        from closeout.assembly.agent_picture import picture_of

        boxes = [] if self._host is None else picture_of(self._host.agent.plan())
        return json_response({"agents": [{"name": b.name, "model": b.model, "tools": b.tools} for b in boxes]})

    async def draw_agent(self, request: web.Request) -> web.Response:
        """A picture of the agent."""
        from closeout.assembly.agent_picture import as_svg, picture_of

        if self._host is None:
            raise web.HTTPNotFound(text="This viewer has no agent.")
        picture = as_svg(picture_of(self._host.agent.plan()), dark="dark" in request.query)
        return web.Response(text=picture, content_type="image/svg+xml")

    async def begin_run(self, request: web.Request) -> web.Response:
        """Begin a run of the served agent."""
        from closeout.server.serve.runs_api import begin_run

        await self._body_from_own_page(request)
        if self._host is None:
            raise UsageError("This viewer has no agent. Serve one: closeout serve AGENT.yaml")
        return json_response({"run_id": await begin_run(self._host, request, stream=True)})

    # -------------------------------------------------------------------------------------------- one run

    async def show_run(self, request: web.Request) -> web.Response:
        """One run's record."""
        return json_response(await self._in_store(ended_shape, request))

    async def show_trial(self, request: web.Request) -> web.Response:
        """The verdicts on a run that is a trial of an evaluation; null for another run."""
        from closeout.server.viewer.evaluations import trial_shape

        return json_response(await self._in_store(trial_shape, request))

    # -------------------------------------------------------------------------------------------- decisions

    async def list_waiting(self, request: web.Request) -> web.Response:
        """List what the run waits for, and whether this server continues it once that is decided."""

        def read(store: Store, run_id: str) -> list[dict[str, Any]]:
            from closeout.fleet.due_runs import has_login, waits_since
            from closeout.run.waits.decisions import pending_decisions
            from closeout.server.viewer.decision_requests import pending_shape

            rows = list(store.rows(run_id))
            since = waits_since(rows)
            return [
                pending_shape(each, signed_in=has_login(each, since), problem=self._problem_of(each))
                for each in pending_decisions(rows)
            ]

        waiting = await self._in_store(read, request)
        return json_response({"waiting": waiting, "continues": await self._host_of(request) is not None})

    async def decide(self, request: web.Request) -> web.Response:
        """Record a decision on what was shown. The run continues by itself if this server has its agent."""
        from closeout.run.waits.decisions import record_decisions
        from closeout.server.viewer.decision_requests import pending_shape, read_decision

        run_id = request.match_info["run_id"]
        name, decision = read_decision(await self._body_from_own_page(request))
        host = await self._host_of(request)
        try:
            if host is not None:
                left = await host.decide(run_id, {name: decision})
            else:
                store = await self._off_loop(open_store, self._app[HOME])
                left = await self._off_loop(record_decisions, store, run_id, {name: decision})
        except (DecisionRefused, JournalLocked) as error:
            return error_response(409, str(error), "decision_refused")
        return json_response({"waiting": [pending_shape(each) for each in left], "continues": host is not None})

    async def show_rule(self, request: web.Request) -> web.Response:
        """The rule that past decisions suggest for a call that waits: `call`. Null if they suggest none."""
        from closeout.lab.learned_rules import rule_for

        def read(store: Store, run_id: str) -> dict[str, Any] | None:
            found = rule_for(store, run_id, request.query.get("call", ""))
            if found is None:
                return None
            return {"rule": visible(str(found.rule)), "approved": len(found.approved), "denied": found.denied}

        host, shape = await self._host_of(request), await self._in_store(read, request)
        file = None if host is None else host.settings_file
        return json_response(shape and {**shape, "file": None if file is None else str(file)})

    async def accept_rule(self, request: web.Request) -> web.Response:
        """Write a rule that was shown into the settings of the served agent, whose calls it approves from now on."""
        from closeout.lab.learned_rules import add_to_settings, rule_for
        from closeout.server.viewer.decision_requests import read_rule

        call, rule = read_rule(await self._body_from_own_page(request))
        host = await self._host_of(request)
        if host is None or host.settings_file is None:
            raise UsageError("The agent of this run has no settings file here. Put the rule into its settings.")
        found = await self._in_store(partial(rule_for, call=call), request)
        if found is None or visible(str(found.rule)) != rule:
            return error_response(409, "Decisions since then suggest another rule. Reload the page.", "rule_changed")
        await self._off_loop(add_to_settings, host.settings_file, found.rule)
        host.agent = host.agent.with_approved(found.rule)
        return json_response({"file": str(host.settings_file)})

    async def list_undoable(self, request: web.Request) -> web.Response:
        """The calls of the run that can be undone here, and whether they have been."""
        from closeout.lab.undoing import undoable_calls

        host, run_id = await self._host_of(request), request.match_info["run_id"]
        return json_response({} if host is None else await undoable_calls(host.agent.plan(), host.store, run_id))

    async def undo(self, request: web.Request) -> web.Response:
        """Undo a call of the run."""
        from closeout.server.viewer.decision_requests import read_name

        call = read_name(await self._body_from_own_page(request))
        host = await self._host_of(request)
        if host is None:
            raise UsageError("This viewer does not have the run's agent. Undo the call: closeout runs undo RUN CALL")
        try:
            output = await host.agent.undo(request.match_info["run_id"], call)
        except JournalLocked as error:
            return error_response(409, str(error), "being_undone")
        return json_response({"undone": output.success, "text": output.summary.removeprefix("Error: ")})

    async def resume(self, request: web.Request) -> web.Response:
        """Continue a run that failed or was stopped, or one that waits for a time and need not."""
        from closeout.run.waits.decisions import end_wait
        from closeout.server.viewer.decision_requests import BY, read_name

        run_id, name = request.match_info["run_id"], read_name(await self._body_from_own_page(request))
        host = await self._host_of(request)
        try:
            if name:
                store = await self._off_loop(open_store, self._app[HOME])
                await self._off_loop(end_wait, store, run_id, name, by=BY)
            elif host is None:
                raise DecisionRefused("This viewer does not have the run's agent. Resume the run with its command.")
        except (DecisionRefused, JournalLocked) as error:
            return error_response(409, str(error), "decision_refused")
        if host is not None:
            await host.resume(run_id)
        return json_response({"continues": host is not None})

    async def sign_in(self, request: web.Request) -> web.Response:
        """Begin to sign in to the MCP server that the run waits for. Returns the address of the page to open."""
        from closeout.run.waits.decisions import pending_decisions
        from closeout.server.viewer.decision_requests import read_name
        from closeout.server.viewer.sign_in import SignIns

        name = read_name(await self._body_from_own_page(request))

        def read(store: Store, run_id: str) -> tuple[str, str]:
            waits = {each.id: each for each in pending_decisions(store.rows(run_id)) if each.kind == "login"}
            if name not in waits:
                raise UsageError(f"Run {run_id} does not wait for a login on {name!r:.80}.")
            return str(waits[name].arguments["url"]), str(waits[name].arguments.get("scope", ""))

        url, scope = await self._in_store(read, request)
        if self._sign_ins is None:
            self._sign_ins = SignIns()
        host = await self._host_of(request)
        return await self._sign_ins.begin(request, url, () if host is None else host.servers(), scope)

    async def end_sign_in(self, request: web.Request) -> web.Response:
        """The page to which an authorization server sends the browser."""
        if self._sign_ins is None:
            raise web.HTTPNotFound(text="No login is under way.")
        return await self._sign_ins.receive(request)

    def _problem_of(self, pending: PendingDecision) -> str:
        return "" if self._sign_ins is None else self._sign_ins.problem(str(pending.arguments.get("url", "")))

    async def send_message(self, request: web.Request) -> web.Response:
        """Send a message to a run, whichever process executes it."""
        from closeout.journal.inbox import mailbox_of
        from closeout.server.viewer.decision_requests import BY, read_message

        text, interrupt = read_message(await self._body_from_own_page(request))
        store = await self._off_loop(open_store, self._app[HOME])

        def send() -> str:
            return mailbox_of(store, request.match_info["run_id"]).send(text, by=BY, interrupt=interrupt).id

        try:
            return json_response({"id": await self._off_loop(send)})
        except MessageRefused as error:
            return error_response(409, str(error), "message_refused")

    async def change_schedule(self, request: web.Request) -> web.Response:
        """Pause a schedule, or continue it."""
        await self._body_from_own_page(request)
        store, paused = await self._off_loop(open_store, self._app[HOME]), request.match_info["change"] == "pause"
        await self._off_loop(partial(change_schedule, store, request.match_info["name"], paused=paused))
        return json_response({"paused": paused})

    async def _host_of(self, request: web.Request) -> AgentHost | None:
        """Return what executes the run, if this server does."""
        if self._host is None:
            return None
        try:
            await self._host.find(request.match_info["run_id"])
        except RunNotFound:
            return None
        return self._host

    # -------------------------------------------------------------------------------------------- evaluations

    async def list_evaluations(self, request: web.Request) -> web.Response:
        """The evaluations, the latest first."""
        from closeout.server.viewer.evaluations import evaluations_shape

        return json_response({"evaluations": await self._off_loop(evaluations_shape, self._app[HOME])})

    async def show_evaluation(self, request: web.Request) -> web.Response:
        """One evaluation with its trials; only its state if `version` is still the latest."""
        from closeout.server.viewer.evaluations import evaluation_shape

        name, asked = request.match_info["name"], {key: request.query.get(key, "") for key in ("scorer", "version")}
        return json_response(await self._off_loop(evaluation_shape, self._app[HOME], name, **asked))

    async def show_usage(self, request: web.Request) -> web.Response:
        """The usage of the runs of the last `days`, in the groups of `by`, and what the keys of budgets have spent."""
        by = tuple(name for name in request.query.get("by", "day,model").split(",") if name)
        days = _number(request.query, "days", USAGE_DAYS, MOST_USAGE_DAYS)
        since = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()

        def read() -> dict[str, Any]:
            from closeout.journal.ledger import spent_by_day
            from closeout.journal.usage_totals import usage_totals

            home = self._app[HOME]
            return {
                "since": since,
                "usage": [total.to_dict() for total in usage_totals(home, by=by, since=since)],
                "budgets": [row for spent in spent_by_day(home) if str((row := spent.to_dict())["day"]) >= since],
            }

        return json_response(await self._off_loop(read))

    # -------------------------------------------------------------------------------------------- events

    async def list_events(self, request: web.Request) -> web.Response:
        """The events from number `start` on, at most `limit`, with long texts cut."""
        start, limit = _number(request.query, "start", 0), _number(request.query, "limit", 500, MOST_EVENTS)

        def read(store: Store, run_id: str) -> dict[str, Any]:
            rows = store.rows_from(run_id, start, limit)
            # Read after the events: if it is over, these are all.
            return {
                "run": ended_shape(store, run_id),
                "events": [cut(without_messages(event_shape(row))) for row in rows],
            }

        return json_response(await self._in_store(read, request))

    async def show_story(self, request: web.Request) -> web.Response:
        """The items of the run's story that the events from number `start` on changed, at most `limit` events."""
        start, limit = _number(request.query, "start", 0), _number(request.query, "limit", MOST_EVENTS)

        def read(store: Store, run_id: str) -> dict[str, Any]:
            rows = store.rows_from(run_id, 0, start + limit)
            story = StoryItems()
            story.feed(row for row in rows if row.seq < start)
            story.take()
            story.feed(row for row in rows if row.seq >= start)
            # Read after the events: if it is over, these are all.
            return {"run": ended_shape(store, run_id), **story.take()}

        return json_response(await self._in_store(read, request))

    async def show_event(self, request: web.Request) -> web.Response:
        """One whole event."""
        seq = _number(request.match_info, "seq", 0)

        def read(store: Store, run_id: str) -> dict[str, Any]:
            for row in store.rows_from(run_id, seq, 1):
                if row.seq == seq:
                    return event_shape(row)
            raise RunNotFound(f"Run {run_id} has no event {seq}.")

        return json_response(await self._in_store(read, request))

    async def list_requests(self, request: web.Request) -> web.Response:
        """The requests to the model, whole: what each keeps of the one before, and what it adds."""
        start, limit = _number(request.query, "start", 0), _number(request.query, "limit", 200, MOST_EVENTS)

        def read(store: Store, run_id: str) -> dict[str, Any]:
            found: list[dict[str, Any]] = []
            following = start
            while len(found) < limit and (rows := store.rows_from(run_id, following, MOST_EVENTS)):
                for row in rows:
                    following = row.seq + 1
                    if isinstance(row.event, ModelRequested):
                        found.append(event_shape(row))
                        if len(found) == limit:
                            return {"requests": found, "next": following}
            return {"requests": found, "next": None}

        return json_response(await self._in_store(read, request))

    async def follow_run(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the items that the events from `start` on change, as these are written, then `end`."""
        start = _number(request.query, "start", 0)
        if last := request.headers.get("Last-Event-ID", ""):
            start = _number({"id": last}, "id", 0) + 1
        await self._in_store(Store.run, request)  # raises RunNotFound while the response can still say so
        task = asyncio.current_task()
        assert task is not None
        self._followers.add(task)
        try:
            return await send_events(request, self._story_events(request.match_info["run_id"], start), FOLLOW_HEADERS)
        except ConnectionError:
            return web.Response(status=499)  # the page is gone
        finally:
            self._followers.discard(task)

    async def _story_events(self, run_id: str, start: int) -> AsyncIterator[bytes]:
        with open_to_read(self._app[HOME]) as store:
            story = StoryItems()
            async for row in follow(store, run_id):
                story.feed([row])
                changed = story.take()
                if row.seq >= start:
                    yield event_bytes(changed, number=row.seq)
            yield event_bytes(await self._off_loop(ended_shape, store, run_id), name="end")

    async def export(self, request: web.Request) -> web.Response:
        """The run as one HTML file."""
        page = await self._in_store(export_run, request)
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in request.match_info["run_id"])
        headers = {"Content-Disposition": f'attachment; filename="{name}.html"'}
        return web.Response(text=page, content_type="text/html", headers=headers)

    async def list_files(self, request: web.Request) -> web.Response:
        """The files of the run: those that it left, then those that it began with."""

        def read(store: Store, run_id: str) -> list[dict[str, Any]]:
            return files_shape(run_files(store, store.rows(run_id)))

        return json_response({"files": await self._in_store(read, request)})

    async def send_run_file(self, request: web.Request) -> web.Response:
        """One file of the run, to save."""

        def read(store: Store, run_id: str) -> web.Response:
            files = run_files(store, store.rows(run_id))
            file = find_file(files, run_id, request.match_info["name"])
            return file_response(file, file.data)

        return await self._in_store(read, request)

    async def show_sources(self, request: web.Request) -> web.Response:
        """The citations of the run's answer and what the run read; with `handle` one result with its text."""
        handle = request.query.get("handle", "")

        def read(store: Store, run_id: str) -> dict[str, Any]:
            from closeout.server.viewer.cited_sources import list_sources, show_source

            rows = list(store.rows(run_id))
            return show_source(rows, handle) if handle else list_sources(rows)

        return json_response(await self._in_store(read, request))

    async def _in_store(self, read: Callable[[Store, str], T], request: web.Request) -> T:
        run_id = request.match_info["run_id"]

        def act() -> T:
            with open_to_read(self._app[HOME]) as store:
                return read(store, run_id)

        return await self._off_loop(act)


def _matches(record: RunRecord, query: dict[str, str]) -> bool:
    """True if a run passes the filters: its status, its model, and when it began."""
    status, model = query.get("status", ""), query.get("model", "")
    if (status and record.status != status) or (model and model.lower() not in record.model.lower()):
        return False
    return record.started >= _number(query, "since", 0)


def _number(values: Any, name: str, default: int, most: int = 2**53) -> int:
    """Return a parameter as a number from 0 to `most`. Raises UsageError."""
    text = values.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise UsageError(f"{name} must be a number, got {text[:50]!r}.")
    return min(int(text), most)
