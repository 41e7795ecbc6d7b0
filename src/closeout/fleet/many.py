"""Many tasks: run each once under a name of its own, some at a time; what has ended is never repeated."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from closeout.answers.reading import Value
from closeout.errors import (
    Failure,
    JournalDamaged,
    JournalLocked,
    ResumeRefused,
    RunExists,
    RunNotFound,
    UsageError,
)
from closeout.file_values import File
from closeout.journal.events import REPLIED
from closeout.journal.store import RunRecord, Store
from closeout.messages import Usage, UsageSum
from closeout.run.lifecycle import as_recorded, beginning, recorded_task
from closeout.run.loading import load_result
from closeout.run.plan import LIMITS, AgentPlan
from closeout.run.result import RunResult
from closeout.run.resuming import check_same, resume_run

__all__ = ["ManyRuns", "MapProgress", "Once", "OnceRunner", "TaskItem", "check_key", "named_origin", "run_id_of"]

logger = logging.getLogger("closeout")

# The arguments of `Agent.run` that decide what a run does, beside its task. Limits and listeners are not among them:
# they are those of the call that continues it. Dependencies are identified by `task_id` or `user`, else by their JSON
# if they are plain data; other objects have no identity.
DECIDING = ("files", "work_files", "history", "state", "user", "task_id", "handed_to", "history_labels", "temperature")
_ABSENT: tuple[Any, ...] = (None, "", (), [], {})
IDENTITY = "identity"  # the key of a run's origin with the digest of its task and these arguments

LOCKED_SECONDS = 0.25  # seconds between two looks at a run that another process executes
MAX_NAME = 200  # characters of a key or a session's name

TaskItem = str | Mapping[str, Any]
"""A task, or a mapping with the key `task` and arguments of `Agent.run`: `files`, `history`, `task_id`, …"""


@dataclass(frozen=True, slots=True)
class Once(Generic[Value]):
    """The result of a task that is run once. `loaded`: it had ended before, and nothing was executed."""

    result: RunResult[Value]
    loaded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceRunner(Generic[Value]):
    """Runs tasks under fixed run ids: a new run is begun, one that stopped is resumed, one that has ended is loaded.

    Attributes:
        plan: The agent.
        store: Where its runs are kept.
        begin: Starts a new run: `Agent.run`.
        retry_failed: Resume runs that failed, or had no answer when a budget was spent, instead of returning that.
        despite_changes: Take runs of an agent that differs from this one.
    """

    plan: AgentPlan
    store: Store
    begin: Callable[..., Awaitable[RunResult[Value]]]
    retry_failed: bool = True
    despite_changes: bool = False

    async def run(self, task: str, run_id: str, options: Mapping[str, Any], *, wait: bool = True) -> Once[Value]:
        """Run a task unless it has ended.

        Args:
            task: The task.
            run_id: The name of its run.
            options: Further arguments of `Agent.run`.
            wait: Wait for another process that executes the run, instead of raising JournalLocked.

        Raises:
            ResumeRefused: A run of this name has another task, or another agent made it.
            JournalLocked: Another process executes the run.
        """
        while True:
            record = await self.store.off_loop(self._find, run_id)
            if record is None:
                with suppress(RunExists):  # another process was faster
                    return Once(await self.begin(task, **{**options, "run_id": run_id}))
                continue
            if record.status != "running":
                with suppress(JournalLocked):
                    return await self._again(task, record, options)
            if not wait:
                raise JournalLocked(f"Run {run_id} is being executed by another process.")
            await asyncio.sleep(LOCKED_SECONDS)

    def _find(self, run_id: str) -> RunRecord | None:
        try:
            return self.store.run(run_id)
        except RunNotFound:
            return None

    async def _again(self, task: str, record: RunRecord, options: Mapping[str, Any]) -> Once[Value]:
        run_id, store = record.run_id, self.store
        identity = await _identity(task, options)
        rows = (await store.off_loop(store.read, run_id)).rows
        plan = as_recorded(self.plan.with_deps(options.get("deps")), rows)
        async with plan.manager:
            if not self.despite_changes:
                check_same(plan, rows, run_id)
            recorded = recorded_task(rows, run_id, load=store.content)
            if recorded.text != task:
                raise ResumeRefused(f"Run {run_id} has another task: {recorded.text!r:.80}. Use another name.")
            if recorded.user != (options.get("user") or ""):
                raise ResumeRefused(f"Run {run_id} is for another user. Use another name, or name its user.")
            if beginning(rows, run_id).origin.get(IDENTITY, identity) != identity:
                raise ResumeRefused(
                    f"Run {run_id} began with other arguments: one of {', '.join(DECIDING)}, or the content of a "
                    "file. Use another name."
                )
            limits = {name: options[name] for name in LIMITS if options.get(name) is not None}
            failed = record.status == "failed" or (record.status == "unanswered" and _has_room(record, plan, limits))
            has_ended = not self.retry_failed if failed else record.status in REPLIED
            if has_ended:
                loaded = load_result(run_id, rows, plan.contract, lambda: store.read(run_id).rows, load=store.content)
                truth = options.get("ground_truth")
                return Once(loaded if truth is None else replace(loaded, ground_truth=truth), loaded=True)
            listeners = options.get("listeners", ())
            resumed = resume_run(
                plan, store, run_id, listeners, despite_changes=self.despite_changes, limits=limits, seen=record
            )
            return Once(await resumed)


def _has_room(record: RunRecord, plan: AgentPlan, limits: Mapping[str, Any]) -> bool:
    """Return whether a run that stopped at a limit may continue: at a budget of several runs, or at a lower limit."""
    reason = record.stop_reason
    if reason == "budget":
        return True
    return reason is not None and reason in limits and limits[reason] > getattr(plan.limits, reason)


# ------------------------------------------------------------------------------------------------ many tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class MapProgress:
    """The progress of `Agent.map`.

    Attributes:
        total: The number of tasks, None if it is not known.
        done: Tasks that have a result.
        running: Tasks that are being worked on.
        loaded: Tasks that had ended before and were not run again. They are among `done`.
        by_status: The number of results by their status.
        usage: What the runs of this call have spent. Loaded results do not count.
        seconds: Since the call began.
    """

    total: int | None
    done: int = 0
    running: int = 0
    loaded: int = 0
    by_status: Mapping[str, int] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _QueuedTask:
    index: int
    task: str
    options: Mapping[str, Any]
    run_id: str


class ManyRuns(Generic[Value]):
    """The results of many tasks: `async for result in runs`. Leaving the iteration cancels the runs that are left.

    Args:
        tasks: The tasks; they are taken one by one, when a place is free.
        once: Runs one task.
        opened: Holds the agent's tools open from the first task to the last.
        key: The name under which the runs are found again; empty: they are new runs.
        limit: How many runs are executed at the same time.
        ordered: Yield results in the order of the tasks, not as they come.
        progress: Called whenever a task begins or has a result.
        options: Arguments of `Agent.run` for every task.
        known: The names of the arguments that a task may have of its own.
    """

    def __init__(
        self,
        tasks: Iterable[TaskItem] | AsyncIterable[TaskItem],
        once: Callable[..., Awaitable[Once[Value]]],
        opened: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        key: str,
        limit: int,
        ordered: bool,
        progress: Callable[[MapProgress], object] | None,
        options: Mapping[str, Any],
        known: Collection[str],
    ) -> None:
        self._tasks: Any = tasks
        self._total = len(tasks) if isinstance(tasks, Sequence) else None
        self._once = once
        self._opened = opened
        self._key = key
        self._limit = limit
        self._ordered = ordered
        self._on_progress = progress
        self._options = options
        self._known = known
        self._begun = False
        self._taken = 0
        self._seen: Counter[str] = Counter()  # how often each task occurred
        self._later: list[_QueuedTask] = []  # being run by another process when their turn came
        self._source = asyncio.Lock()
        self._results: asyncio.Queue[tuple[int, RunResult[Value]] | None] = asyncio.Queue()
        self._running = 0
        self._loaded = 0
        self._statuses: Counter[str] = Counter()
        self._usage = UsageSum()
        self._began = time.monotonic()

    @property
    def progress(self) -> MapProgress:
        """The progress of the tasks."""
        return MapProgress(
            total=self._total,
            done=self._statuses.total(),
            running=self._running,
            loaded=self._loaded,
            by_status=dict(self._statuses),
            usage=self._usage.total,
            seconds=time.monotonic() - self._began,
        )

    async def __aiter__(self) -> AsyncIterator[RunResult[Value]]:
        if self._begun:
            raise UsageError("These results can be iterated only once. Call agent.map(…) again, with the same key.")
        self._begun, self._began = True, time.monotonic()
        async with self._opened():
            work = asyncio.ensure_future(self._work())
            work.add_done_callback(lambda _: self._results.put_nowait(None))
            waiting: dict[int, RunResult[Value]] = {}  # results whose turn has not come
            next_index = 0
            try:
                while (found := await self._results.get()) is not None:
                    index, result = found
                    if not self._ordered:
                        yield result
                        continue
                    waiting[index] = result
                    while next_index in waiting:
                        yield waiting.pop(next_index)
                        next_index += 1
                await work
            finally:
                if not work.done():
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)

    async def _work(self) -> None:
        source = _iterate(self._tasks)
        workers = self._limit if self._total is None else min(self._limit, max(self._total, 1))
        running = [asyncio.ensure_future(self._worker(source)) for _ in range(workers)]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
            if self._total is None:  # only now is it known that no task follows
                self._total = self._taken
                self._report()
        finally:
            for worker in running:
                worker.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await source.aclose()

    async def _worker(self, source: AsyncIterator[TaskItem]) -> None:
        while True:
            async with self._source:
                item, wait = await self._next(source), False
            if item is None:
                if not self._later:
                    return
                item, wait = self._later.pop(0), True
            self._running += 1
            try:
                self._report()
                once = await self._run(item, wait=wait)
            except JournalLocked:
                if wait:
                    raise
                self._later.append(item)
                continue
            finally:
                self._running -= 1
            self._count(once)
            self._results.put_nowait((item.index, once.result))

    async def _run(self, item: _QueuedTask, *, wait: bool) -> Once[Value]:
        try:
            return await self._once(item.task, item.run_id, item.options, wait=wait)
        except (UsageError, JournalDamaged) as error:  # only this task is affected
            return Once(
                RunResult(
                    answer=None,
                    status="failed",
                    stop_reason="failed",
                    run_id=item.run_id,
                    failure=Failure.of(error),
                    task=item.task,
                    task_id=str(item.options.get("task_id", "")),
                    ground_truth=item.options.get("ground_truth"),
                )
            )

    async def _next(self, source: AsyncIterator[TaskItem]) -> _QueuedTask | None:
        """Take the next task. Raises UsageError if it is not one."""
        try:
            given = await anext(source)
        except StopAsyncIteration:
            return None
        index, self._taken = self._taken, self._taken + 1
        if isinstance(given, str):
            given = {"task": given}
        if not isinstance(given, Mapping) or not isinstance(given.get("task"), str):
            raise UsageError(
                f"Task {index} must be a string, or a mapping with 'task' and other arguments of agent.run, "
                f"got {given!r:.80}."
            )
        task = given["task"]
        unknown = given.keys() - self._known - {"task"}
        if unknown:
            raise UsageError(
                f"Task {index} has the unknown key {min(map(str, unknown))!r}. A task takes: task, "
                f"{', '.join(sorted(self._known))}."
            )
        run_id = ""
        if self._key:
            if given.get("deps") is not None and not (given.get("task_id") or given.get("user")):
                raise UsageError(
                    f"Task {index} has dependencies of its own, by which its run cannot be found again. Give it a "
                    "task_id that stands for them, or a user."
                )
            run_id = run_id_of(self._key, {**self._options, **given})
            if self._seen[run_id] and given.get("deps") is not None:
                raise UsageError(
                    f"Task {index} differs from an earlier one at most in its dependencies, so that their results "
                    "could be exchanged. Give each a task_id."
                )
            self._seen[run_id] += 1
            if self._seen[run_id] > 1:
                run_id = f"{run_id}-{self._seen[run_id]}"
        own = {name: value for name, value in given.items() if name != "task"}
        return _QueuedTask(index, task, {**self._options, **own}, run_id)

    def _count(self, once: Once[Value]) -> None:
        self._statuses[once.result.status] += 1
        self._loaded += once.loaded
        if not once.loaded:
            self._usage.add(once.result.usage)
        self._report()

    def _report(self) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(self.progress)
        except Exception:  # a failing callback must not end the runs
            self._on_progress = None
            logger.warning("The progress callback raised an exception. It is not called again.", exc_info=True)


async def _iterate(tasks: Iterable[TaskItem] | AsyncIterable[TaskItem]) -> AsyncGenerator[TaskItem]:
    if isinstance(tasks, AsyncIterable):
        async for each in tasks:
            yield each
    else:
        for each in tasks:
            yield each


def run_id_of(key: str, item: Mapping[str, Any]) -> str:
    """Return the run id of a task under a key: the same for the same task and the arguments that decide its result."""
    files = [file if isinstance(file, File) else str(file) for file in item.get("files", ())]
    what: list[Any] = [item["task"], files, list(item.get("history", ()))]
    what.append(item.get("task_id", ""))
    others = {name: item.get(name) for name in DECIDING if name not in ("files", "history", "task_id")}
    if others := {name: value for name, value in others.items() if value not in _ABSENT}:
        what.append(others)
    digest = hashlib.sha256(_as_json(what)).hexdigest()
    return f"{key}.{digest[:12]}"


def identity_of(task: str, options: Mapping[str, Any]) -> str:
    """Return a digest of a task and of all arguments that decide its result, the contents of files included."""
    parts: dict[str, Any] = {name: options[name] for name in DECIDING if options.get(name) not in _ABSENT}
    if options.get("deps") is not None and not (options.get("user") or options.get("task_id")):
        with suppress(TypeError, ValueError):
            parts["deps"] = json.dumps(options["deps"], sort_keys=True)
    for name in ("files", "work_files"):
        if name in parts:
            parts[name] = list(map(_file_identity, parts[name]))
    return hashlib.sha256(_as_json([task, parts])).hexdigest()[:32]


async def named_origin(task: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the origin of a new run, with its identity if it has a name by which `run_once` finds it again."""
    origin = given["origin"] or {}
    return {**origin, IDENTITY: await _identity(task, given)} if given["run_id"] else origin


async def _identity(task: str, options: Mapping[str, Any]) -> str:
    reads = options.get("files") or options.get("work_files")
    return await asyncio.to_thread(identity_of, task, options) if reads else identity_of(task, options)


def _file_identity(file: Any) -> Any:
    if isinstance(file, File):
        return file
    try:
        return [str(file), hashlib.sha256(Path(file).read_bytes()).hexdigest()]
    except (OSError, TypeError, ValueError):  # the run says that it cannot be read
        return str(file)


def _as_json(value: Any) -> bytes:
    def of(value: Any) -> Any:
        return [value.name, value.sha256] if isinstance(value, File) else str(value)

    return json.dumps(value, default=of).encode("utf-8", "surrogatepass")


def check_key(name: str, value: Any) -> str:
    """Return the name of a group of runs: a key of `map`, a session's id.

    Raises:
        UsageError: It is not a printable text of a sensible length.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME or not value.isprintable():
        most = f"printable, at most {MAX_NAME} characters"
        raise UsageError(f"{name} must be a short text ({most}), got {value!r:.80}.")
    return value
