"""AgentHost: execute the runs of one agent for a server, some at a time, the others queued; all survive its death."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from closeout.answers.contracts import Text
from closeout.errors import (
    Failure,
    JournalDamaged,
    JournalError,
    JournalLocked,
    LeaseLost,
    ResumeRefused,
    RunExists,
    RunNotFound,
    UsageError,
)
from closeout.file_values import File
from closeout.fleet.interruptions import ended_in_vain
from closeout.fleet.made_deps import CLIENT_NOTE, ClientRequest
from closeout.fleet.work_poller import WorkPoller
from closeout.journal.claims import ClaimedRun
from closeout.journal.events import Noted, RunEnded, RunStarted
from closeout.journal.following import Wakeup, follow, news_of, waited
from closeout.journal.holds import check_not_held
from closeout.journal.retention import delete_ended, delete_runs
from closeout.journal.run_journal import Journal, open_journal
from closeout.journal.run_names import new_run_id
from closeout.journal.store import SERVED, Row, Store, server_name
from closeout.observe.run_figures import RunFigures
from closeout.run.cancelling import cancel_run, forget_requests, hand_over, is_handed_over, request_cancel
from closeout.run.plan import AgentPlan
from closeout.run.resuming import check_continues, resume_run
from closeout.run.subagents import servers_of
from closeout.run.waits.decisions import Decisions, PendingDecision, record_decisions
from closeout.server.admission import Busy
from closeout.server.serve.client_request import RequestDeps
from closeout.server.serve.reply_text import ReplyRecorder
from closeout.server.serve.request_keys import REQUEST_NOTE, RequestKey
from closeout.server.serve.response_view import RESPONSE_NOTE

if TYPE_CHECKING:
    from closeout.agent import Agent, RunSettings
    from closeout.tools.mcp.mcp_config import McpServerConfig

__all__ = ["AgentHost", "ServedRun"]

T = TypeVar("T")

log = logging.getLogger("closeout.server")

UNNAMED = "unnamed"  # the user of a request that names none
ORIGIN = SERVED  # the server keeps its own notes under this key of a run's origin
POLL_SECONDS = 0.5  # seconds between two looks at a run that another process executes
CANCEL_SECONDS = 10.0  # seconds to wait for another process that ends a run
GRACE_SECONDS = 1.0  # seconds that the host which recorded a run has to begin it, before others do
RETRY_SECONDS = 30.0  # seconds until a run is tried again that could not be read or written
PRUNE_SECONDS = 86_400.0  # seconds between two deletions of old runs


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run of the host: its first event, and the notes that the server made when it was submitted."""

    run_id: str
    created_at: float
    started: RunStarted
    notes: Mapping[str, Any]


class AgentHost:
    """Executes runs of an agent. Use it as an async context manager: entering resumes what was interrupted.

    A run is recorded before its id is returned and executed by `agent.resume`, so that a run that was queued, one that
    was interrupted by a crash and a new one all follow the same path.

    Args:
        agent: The agent. It must keep its runs in a home.
        name: The name under which clients know it.
        max_runs: How many runs are executed at the same time.
        max_queue: How many more may wait.
        origin: Notes for the person who resumes a run by hand.
        drain_seconds: How long running runs may continue when the host is left, before they are interrupted.
        user_budget: The limits of each user that requests name, such as "5 USD/day"; those that name none share one.
        deps: Makes the dependencies of a run from the `ClientRequest` that began it, also when the run is resumed.
        deps_headers: The headers that it reads. Only these are recorded with a run.
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        name: str = "",
        max_runs: int = 16,
        max_queue: int = 256,
        origin: Mapping[str, Any] | None = None,
        drain_seconds: float = 10.0,
        user_budget: str | list[str] | None = None,
        deps: Callable[[ClientRequest], Any] | None = None,
        deps_headers: Sequence[str] = (),
    ) -> None:
        store = agent.store()
        if store is None:
            raise UsageError("A served agent must keep its runs. Do not pass home=False.")
        self.agent = agent
        self.name = name or agent.name
        self.deps = RequestDeps(deps, deps_headers)
        if not self.deps:
            agent.plan().with_deps(None)  # refuses an agent without the dependencies that it needs
        self.store: Store = store
        self.ended = Counter[str]()  # runs by status since the host was entered
        self.figures = RunFigures()
        self.stopping = False
        self._origin = dict(origin or {})
        self._max_runs, self._max_active = max_runs, max_runs + max_queue
        self._drain_seconds = drain_seconds
        self._user_budget = user_budget
        self._budget_of("")  # refuses a limit that is not valid
        self._slots = asyncio.Semaphore(max_runs)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wakeups: dict[str, Wakeup] = {}
        self._executing: set[str] = set()
        self._poller = WorkPoller(
            self.store, agent.plan(), self._tasks, self._take_runs, executor=server_name(self.name)
        )
        self._beside = agent.chores(self._begin_recurring)
        self._chores: list[asyncio.Task[None]] = []
        self._left_alone: set[str] = set()  # runs that no client comes back for
        self._failures: dict[str, str] = {}  # why a run could not be executed
        self._streamed: set[str] = set()  # runs that a client follows as a stream, and whose replies are answers
        self._recorder = ReplyRecorder(self._streamed, lambda: self.agent.plan().spec.forms)

    @property
    def settings_file(self) -> Path | None:
        """The settings file that the agent was made of, if there is one."""
        named = (Path(str(each)) for each in self._origin.get("config") or ())
        return next((each for each in named if each.is_file()), None)

    # ------------------------------------------------------------------------------------------ lifetime

    async def __aenter__(self) -> Self:
        await self.agent.__aenter__()
        try:
            await asyncio.to_thread(self._name_older_runs)
            await self._beside.begin()
            await self._take_runs(grace=0.0)
        except BaseException:
            await self.agent.__aexit__(None, None, None)
            raise
        self._chores = [asyncio.create_task(self._keep_looking(), name="look for runs")]
        self._chores.append(asyncio.create_task(self._beside.keep(), name="begin and announce runs"))
        days = self.agent.config.journal.keep_days
        if days is not None:
            self._chores.append(asyncio.create_task(self._keep_pruning(days), name="delete old runs"))
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
        finally:
            await self.agent.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Take no more runs, let those that are executed end, and interrupt what has not ended in time.

        Another host of the same name continues an interrupted run, at once or when it is entered.
        """
        self.stopping = True
        for chore in self._chores:
            chore.cancel()
        executing = [task for run_id, task in self._tasks.items() if run_id in self._executing]
        if executing:
            await asyncio.wait(executing, timeout=self._drain_seconds)
        for run_id, task in list(self._tasks.items()):
            if run_id in self._executing:
                hand_over(self.store, run_id)
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._chores, return_exceptions=True)

    def _name_older_runs(self) -> None:
        """Note what executes the open runs of an older version, which noted that no worker does."""
        for (run_id,) in self.store.query(
            "SELECT run_id FROM runs WHERE agent='' AND status IN ('running', 'waiting')"
        ):
            rows = self.store.rows_from(run_id, 0, 1)
            if self._is_own(rows) and _is_awaited(rows):
                self.store.name_agent(run_id, server_name(self.name))

    async def _keep_looking(self) -> None:
        """Take the runs that can continue, also because of another process, and end those that it was asked to end."""
        with self._poller.informed():
            while True:
                await self._poller.look()
                await self._poller.wait()

    async def _keep_pruning(self, days: float) -> None:
        """Delete the runs that ended more than `days` days ago, now and every day."""
        while True:
            try:
                count = await asyncio.to_thread(delete_ended, self.store, days)
                if count:
                    log.info("%d runs that ended more than %g days ago were deleted.", count, days)
            except JournalError as error:
                log.warning("Old runs were not deleted: %s", error)
            await asyncio.sleep(PRUNE_SECONDS)

    async def _take_runs(self, grace: float = GRACE_SECONDS) -> Collection[str]:
        """Execute the runs that can continue, and those that nobody executes, while there is room.

        Args:
            grace: Seconds for which nobody must have executed a fresh run: its own host may be about to.

        Returns:
            The runs that somebody asked to cancel.
        """
        exclude = {*self._tasks, *self._failures}
        places = 0 if self.stopping else max(0, self._max_runs - len(self._tasks))
        claims, cancelled = await self._poller.claim(places, exclude=exclude, fresh_age=grace)
        for claim in claims:
            if not await self._begin(claim):
                self._poller.forget(claim.run_id)
                self.store.submit(self.store.unclaim, claim.number)
        return cancelled

    async def _begin(self, claim: ClaimedRun) -> bool:
        """Execute a claimed run. Returns False if it must not be executed."""
        try:
            rows = await self.rows(claim.run_id)
        except RunNotFound:
            return False  # it was deleted meanwhile
        except JournalError as error:
            log.warning("Run %s cannot be read: %s", claim.run_id, error)
            self._poller.put_off(claim.run_id, RETRY_SECONDS)
            return False
        if not _is_awaited(rows):
            self._left_alone.add(claim.run_id)
            await self.store.off_loop(self.store.name_agent, claim.run_id, "")
            return False
        if claim.run_id in self._tasks or self.stopping:
            return False
        self._launch(claim.run_id, streamed=bool(_notes(rows).get("stream")), claim=claim)
        return True

    def _is_own(self, rows: Sequence[Row]) -> bool:
        started = rows[0].event if rows else None
        return isinstance(started, RunStarted) and started.origin.get(ORIGIN, {}).get("agent") == self.name

    # ------------------------------------------------------------------------------------------ runs

    async def submit(
        self,
        task: str,
        *,
        history: Sequence[Mapping[str, Any]] = (),
        files: Sequence[File] = (),
        work_files: Sequence[File] = (),
        notes: Mapping[str, Any] | None = None,
        key: RequestKey | None = None,
        session: str = "",
    ) -> str:
        """Record a run and start it as soon as there is room.

        Args:
            task: The task.
            history: The conversation before it.
            files: Files that the client sent: their text precedes the task.
            work_files: Further files for scripts and tools.
            notes: Notes of the server on the run; JSON values.
            key: The request, if it may be a repetition. A run that it has begun is returned, and none is begun.
            session: The conversation whose next message it is, instead of a history, work files and a key.

        Returns:
            The run's id. The run is in the journal, so it survives the server from here on.

        Raises:
            Busy: Too many runs are queued, or the server is stopping.
            ApiError: The key was sent with another request.
            UsageError: The task or the history cannot be used.
        """
        if key is not None and await self._has_begun(key):
            return key.run_id
        self._check_room()
        place, notes = new_run_id(), dict(notes or {})
        if key is not None:
            notes[REQUEST_NOTE] = key.request
        self._tasks[place] = asyncio.Future()  # type: ignore[assignment]  # takes a place in the queue
        try:
            user, agent = str(notes.get("user") or ""), self._agent_for(notes)
            origin = {**self._origin, ORIGIN: {"agent": self.name, **notes}}
            options: dict[str, Any] = {"files": files, "origin": origin, "user": user, **self._budget_of(user)}
            if session:
                run_id = await agent.session(session, user=user).submit(task, **options)
            else:
                run_id = await agent.submit(
                    task,
                    work_files=work_files,
                    history=history,
                    run_id=place if key is None else key.run_id,
                    handed_to=notes.get("handed_to", ()),
                    **options,
                )
        except RunExists:  # the same request was faster, here or at another instance
            if key is None or not await self._has_begun(key):
                raise
            return key.run_id
        finally:
            del self._tasks[place]
        self._launch(run_id, streamed=bool(notes.get("stream")))
        return run_id

    async def _begin_recurring(self, **options: Any) -> str:
        """Record a recurring run and start it. Raises what `submit` raises."""
        self._check_room()
        user = options.get("user", "")
        origin = {**self._origin, **options.pop("origin"), ORIGIN: {"agent": self.name, "user": user}}
        run_id = await self.agent.submit(**{**self._budget_of(user), **options}, origin=origin)
        self._launch(run_id, streamed=False)
        return run_id

    async def _has_begun(self, key: RequestKey) -> bool:
        """Return whether a request has begun a run. Raises ApiError if another one with its key has."""
        try:
            run = await self.find(key.run_id)
        except RunNotFound:
            return False
        key.check_same(run.notes.get(REQUEST_NOTE))
        return True

    def _budget_of(self, user: str) -> RunSettings:
        """Return the setting of a run that limits what its user may spend."""
        if self._user_budget is None:
            return {}
        found: RunSettings = {"budget": {f"user:{user or UNNAMED}": self._user_budget}}
        self.agent.plan().overridden(found)
        return found

    def _agent_for(self, notes: Mapping[str, Any]) -> Agent[Any, Any]:
        """Return the agent, with the form of the answer that the client of a run asked for."""
        schema = notes.get("schema")
        return self.agent if schema is None else self.agent.with_answer(schema)

    def _check_room(self) -> None:
        if self.stopping:
            raise Busy("The server is stopping. Try again later.")
        if len(self._tasks) >= self._max_active:
            raise Busy(f"{len(self._tasks)} runs are executed or queued, which is the limit. Try again later.")

    def _launch(self, run_id: str, *, streamed: bool, claim: ClaimedRun | None = None, again: bool = False) -> None:
        self._wakeups[run_id] = Wakeup()
        if streamed:
            self._streamed.add(run_id)
        execution = self._execute(run_id, claim, again)
        task = self._tasks[run_id] = asyncio.create_task(execution, name=f"run {run_id}")
        task.add_done_callback(lambda _: self._forget(run_id))

    def _forget(self, run_id: str) -> None:
        self._tasks.pop(run_id, None)
        self._executing.discard(run_id)
        self._streamed.discard(run_id)
        self._beside.tell()
        wakeup = self._wakeups.pop(run_id, None)
        if wakeup is not None:
            wakeup.wake()
        self._poller.forget(run_id)

    async def _execute(self, run_id: str, claim: ClaimedRun | None, again: bool) -> None:
        try:
            async with self._slots:
                if self.stopping:
                    return  # it waits in the journal
                seen = None
                if claim is None:
                    seen = await self.store.off_loop(self.store.run, run_id)
                    if seen.status not in {"interrupted", "waiting"} | ({"failed", "cancelled"} if again else set()):
                        return  # another process was faster, or it was cancelled while it was queued
                self._executing.add(run_id)
                started = (await self.store.off_loop(self.store.rows_from, run_id, 0, 1))[0].event
                assert isinstance(started, RunStarted)
                is_interrupted = bool(claim and claim.interruptions and claim.status == "running")
                if is_interrupted and await ended_in_vain(self.store, run_id):
                    self.ended["failed"] += 1
                    return
                agent = self._agent_for(started.origin[ORIGIN])
                if not isinstance(agent.plan().contract, Text):
                    self._streamed.discard(run_id)
                listeners = (self._wakeups[run_id], self._recorder, self.figures)
                async with AsyncExitStack() as stack:
                    plan = await self._with_deps(agent.plan(streamed=True), stack, run_id, started)
                    result = await resume_run(plan, self.store, run_id, listeners, seen=seen)
            if result.error_kind == LeaseLost.__name__:
                raise LeaseLost(result.error)
            self.ended[result.status] += 1
            forget_requests(self.store, run_id)
        except asyncio.CancelledError:
            self.ended["cancelled"] += 1
            if not self.stopping:
                await self._end(run_id, RunEnded("main", "cancelled", "cancelled"))
                forget_requests(self.store, run_id)
        except (JournalLocked, LeaseLost):
            log.info("Run %s is left to another process, which executes it.", run_id)
        except (JournalDamaged, ResumeRefused) as error:
            self._fail(run_id, error)
        except JournalError as error:  # a database that is away for a while
            self._poller.put_off(run_id, RETRY_SECONDS)
            log.warning("Run %s is tried again in %g seconds: %s", run_id, RETRY_SECONDS, error)
        except Exception as error:
            self._fail(run_id, error)
        finally:
            if claim is not None:
                self.store.submit(self.store.unclaim, claim.number)

    async def _with_deps(self, plan: AgentPlan, stack: AsyncExitStack, run_id: str, started: RunStarted) -> AgentPlan:
        try:
            return await self.deps.provide(plan, stack, run_id, started.origin[ORIGIN])
        except UsageError as error:
            cause = error.__cause__
            failure = Failure.of(cause if isinstance(cause, Exception) else error, str(error))
            await self._end(
                run_id, RunEnded("main", "failed", "failed", error=failure.message, error_kind=failure.kind)
            )
            raise

    def _fail(self, run_id: str, error: Exception) -> None:
        self.ended["failed"] += 1
        self._failures[run_id] = str(error) or type(error).__name__
        log.warning("Run %s cannot be executed: %s", run_id, error)

    async def _end(self, run_id: str, ended: RunEnded) -> None:
        """Record the end of a run that nobody executes: it has not begun, or it waits."""
        if (await asyncio.to_thread(self.store.run, run_id)).status not in ("interrupted", "waiting"):
            return
        with suppress(JournalError):
            journal = await open_journal(Journal.reopen, self.store, run_id)
            await journal.end(ended)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run that is executed or queued, here or elsewhere, or that waits. Waits some seconds for its end."""
        task = self._tasks.get(run_id)
        if isinstance(task, asyncio.Task):
            request_cancel(self.store, run_id)
            task.cancel()
            await asyncio.wait([task])
        with suppress(JournalError, TimeoutError):
            await cancel_run(self.store, run_id, CANCEL_SECONDS)

    async def decide(
        self, run_id: str, decisions: Decisions, *, notes: Mapping[str, Any] | None = None
    ) -> tuple[PendingDecision, ...]:
        """Record decisions that a run waits for. It continues when it waits for no others of a person.

        Args:
            run_id: The run.
            decisions: By the ids of what it waits for.
            notes: Notes of the server on the response with which the run continues.

        Returns:
            What it still waits for.

        Raises:
            DecisionRefused: A decision does not fit, or the agent has changed so that the run cannot continue.
            JournalLocked: The run is being executed.
            Busy: Too many runs are queued, or the server is stopping.
        """
        self._check_room()
        task = self._tasks.get(run_id)
        if task is not None and isinstance((await self.rows(run_id))[-1].event, RunEnded):
            await asyncio.wait([task])  # the run waits, but its task has not ended yet
        await check_continues(self.agent.plan(), await self.rows(run_id), run_id, self.store.content)
        # One commit: any host may continue the run as soon as it is decided.
        noted = Noted("main", "info", RESPONSE_NOTE, message="Decided by a client.", metadata=notes or {})
        record = partial(
            record_decisions, self.store, run_id, decisions, by="api", also=() if notes is None else (noted,)
        )
        pending = await self._when_free(run_id, record)
        if not any(each.by_person for each in pending) and run_id not in self._tasks:
            self._launch(run_id, streamed=bool((notes or {}).get("stream")))
        self._poller.news.set()
        return pending

    async def resume(self, run_id: str) -> None:
        """Execute a run again that failed, was cancelled or interrupted, or that no longer has to wait. Raises Busy."""
        if run_id not in self._tasks:
            self._check_room()
            await asyncio.to_thread(forget_requests, self.store, run_id)
            self._launch(run_id, streamed=False, again=True)

    def servers(self) -> list[McpServerConfig]:
        """Return the MCP servers of the agent and of its sub-agents."""
        return servers_of(self.agent.plan())

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str = "") -> bool:  # noqa: A002
        """Send a signal to a run, as `Agent.signal` does, and resume the run if it waits for it."""
        sent = await self.agent.signal(run_id, name, payload, id=id)
        self._poller.news.set()
        return sent

    async def _when_free(self, run_id: str, act: Callable[[], T]) -> T:
        """Call a function in the writing thread as soon as the lock of a run that waits is released."""
        give_up = time.monotonic() + CANCEL_SECONDS
        while True:
            try:
                return await self.store.off_loop(act)
            except JournalLocked:
                at_work = (await asyncio.to_thread(self.store.run, run_id)).status == "running"
                if at_work or time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.02)

    async def wait(self, run_id: str, timeout: float | None = None) -> None:
        """Wait until a run of any process is over or waits, at most `timeout` seconds."""
        number = await asyncio.to_thread(self.store.number_of, run_id)
        with news_of(self.store, number) as news, suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while await self.state(run_id):
                    task = self._tasks.get(run_id)
                    if task is None:
                        await waited(news, POLL_SECONDS)
                    else:  # a queued run may be executed elsewhere
                        await asyncio.wait([task], timeout=None if run_id in self._executing else POLL_SECONDS)

    # ------------------------------------------------------------------------------------------ reading

    @property
    def problem(self) -> str:
        """Why no runs can be found at the moment; empty if they can."""
        return self._poller.problem

    @property
    def active(self) -> int:
        """The number of runs that are executed now."""
        return len(self._executing)

    @property
    def queued(self) -> int:
        """The number of runs that wait."""
        return len(self._tasks) - len(self._executing)

    async def state(self, run_id: str) -> str:
        """Return "running", "queued", or an empty text for a run that is over, waits, or is continued by no host."""
        if run_id in self._executing:
            return "running"
        status = (await asyncio.to_thread(self.store.run, run_id)).status
        if status == "running":
            return "running"
        is_left = status == "interrupted" or (
            status == "cancelled" and await asyncio.to_thread(is_handed_over, self.store, run_id)
        )
        if status == "waiting":
            with suppress(JournalLocked):
                await asyncio.to_thread(self.store.check_unlocked, run_id)
                return "queued" if run_id in self._tasks else ""
            return "running"  # another process begins to continue it, or has not released it yet
        if run_id in self._tasks:
            return "queued" if is_left else ""
        is_given_up = self.stopping or run_id in self._left_alone or run_id in self._failures
        return "queued" if is_left and not is_given_up else ""

    def failure(self, run_id: str) -> str:
        """Return why a run could not be executed; empty if nothing is known."""
        return self._failures.get(run_id, "")

    async def find(self, run_id: str, client: str = "") -> ServedRun:
        """Return a run of this host.

        Args:
            run_id: The run.
            client: The client that must have begun it, empty if anybody may have.

        Raises:
            RunNotFound: No run with this name was submitted to this agent, or another client began it.
        """
        try:
            rows = await asyncio.to_thread(self.store.rows_from, run_id, 0, 1)
        except RunNotFound:  # its text names the home
            rows = []
        started = rows[0].event if self._is_own(rows) else None
        if not isinstance(started, RunStarted) or client not in ("", started.origin[ORIGIN].get(CLIENT_NOTE)):
            raise RunNotFound(f"No run {run_id} here.")
        return ServedRun(run_id, rows[0].time, started, started.origin[ORIGIN])

    async def rows(self, run_id: str) -> list[Row]:
        """Return the committed events of a run."""
        return await asyncio.to_thread(self.store.rows_from, run_id, 0)

    async def follow(self, run_id: str, start: int = 0) -> AsyncIterator[Row]:
        """Iterate over the events of a run from a place on, until it is over or the host is left."""

        async def is_under_way() -> bool:
            return bool(await self.state(run_id))

        wakeup = self._wakeups.get(run_id)
        with news_of(self.store, await asyncio.to_thread(self.store.number_of, run_id)) as news:
            async for row in follow(self.store, run_id, start, wakeup=wakeup, is_under_way=is_under_way, news=news):
                yield row

    async def delete(self, run_id: str) -> None:
        """Cancel a run and delete its record.

        Raises:
            JournalLocked: Another process executes it.
            UsageError: The run is on hold; it is not cancelled either.
        """
        await asyncio.to_thread(check_not_held, self.store, [run_id])
        await self.cancel(run_id)
        await self.store.off_loop(delete_runs, self.store, [run_id])
        self._failures.pop(run_id, None)


def _notes(rows: Sequence[Row]) -> Mapping[str, Any]:
    """Return the server's notes on the last response of a run."""
    notes: Mapping[str, Any] = {}
    for row in rows:
        if isinstance(row.event, RunStarted):
            notes = row.event.origin[ORIGIN]
        elif isinstance(row.event, Noted) and row.event.name == RESPONSE_NOTE:
            notes = row.event.metadata
    return notes


def _is_awaited(rows: Sequence[Row]) -> bool:
    """Return whether a client can still come for the result.

    One of Chat Completions lost it with its connection, unless it can repeat its request.
    """
    started = rows[0].event
    notes = started.origin[ORIGIN] if isinstance(started, RunStarted) else {}
    return notes.get("api") != "chat" or REQUEST_NOTE in notes
