"""A conversation with an agent, kept in the journal: each message is a run, which continues from the one before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from closeout.answers.reading import Value
from closeout.dialects.text_chat import fit_history, historic_prompt
from closeout.errors import DecisionRefused, MessageRefused, RunExists, RunNotFound, UsageError
from closeout.file_values import File
from closeout.journal.events import REPLIED
from closeout.journal.inbox import mailbox_of
from closeout.journal.run_names import is_new_run_id
from closeout.journal.store import RunRecord, Store
from closeout.journal.subscribers import Listener
from closeout.journal.totals import RunTotals
from closeout.messages import Message
from closeout.notebook import html_table
from closeout.results.tokens import estimate_tokens
from closeout.run.event_stream import RunStream
from closeout.run.files_of_run import files_of
from closeout.run.flow_watch import labels_of_events, written_labels
from closeout.run.handoff import handed_to_of
from closeout.run.lifecycle import recorded_task, run_here
from closeout.run.result import RunResult, conversation_of, state_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Deps = TypeVarWithDefault("Deps", contravariant=True, default=Any)
else:
    Deps = TypeVar("Deps", contravariant=True)
T = TypeVar("T")

__all__ = ["Session"]

log = logging.getLogger("closeout")
BUSY_SECONDS = 0.25  # seconds between two looks at a message that another process answers
FULL = 0.5  # Share of the model's context that the history may take.
WORTH_ASKING = 1_000  # tokens: a server need not be asked how much fits while the history is shorter
KEPT = 0.5  # share of that which stays when it is full: rare and large, so that the provider's cache is of use


class Session(Generic[Value, Deps]):
    """A conversation with an agent: `await session.run("…")` knows what was said before.

    Each message is a run of its own, named `ID.1`, `ID.2` and so on, which can be listed, resumed and replayed as any
    other. A run that failed or was cancelled is not part of the conversation until it is resumed. One message is
    answered at a time, and none while one waits for a decision. The id that a run got by default begins a conversation
    with that run.

    `agent.session(id)` makes one. The same id, also in another process, continues the conversation.

    Args:
        session_id: The name of the conversation.
        store: Where its runs are kept; None: nowhere, the conversation lives as long as this object.
        start: Runs the agent.
        resume: Resumes one of its runs.
        submit: Records a run.
        context_length: Asks for the size of the model's context in tokens, None if it is not known.
        history: Messages before the first one.
        user: The person who sends the messages.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:  # type variables have defaults from Python 3.13 on only
            return super().__class_getitem__(types if isinstance(types, tuple) else (types, Any))

    def __init__(
        self,
        session_id: str,
        store: Store | None,
        *,
        start: Callable[..., Awaitable[RunResult[Value]]],
        resume: Callable[..., Awaitable[RunResult[Value]]],
        submit: Callable[..., Awaitable[str]],
        context_length: Callable[[], Awaitable[int | None]],
        history: Iterable[Message] = (),
        user: str = "",
    ) -> None:
        self.id = session_id
        self._store = store
        self._start = start
        self._resume = resume
        self._submit = submit
        self._context_length = context_length
        self._user = user
        self._before = self._messages = tuple(history)
        self._state: Mapping[str, Any] = {}
        self._files: tuple[File, ...] = ()
        self._handed_to: tuple[str, ...] = ()
        self._labels: tuple[str, ...] = ()  # of what the conversation has read
        self._messages_of: tuple[str, ...] = ()  # the ids of the runs that `_messages` was read from
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def _repr_html_(self) -> str:
        return html_table(self.id, ((message.role, message.text) for message in self.messages))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, with the calls and results of its runs."""
        self._read_messages(self.runs)
        return self._messages

    @property
    def state(self) -> Mapping[str, Any]:
        """The state that tools of earlier messages kept with `ToolOutput(state_update={…})`, merged by key."""
        self._read_messages(self.runs)
        return self._state

    @property
    def files(self) -> tuple[File, ...]:
        """The files of the conversation: those of its tasks and those that its runs left, in their latest versions."""
        self._read_messages(self.runs)
        return self._files

    @property
    def runs(self) -> list[RunRecord]:
        """The runs of the conversation, oldest first, those that failed included. Empty without a journal."""
        if self._store is None:
            return []
        found = self._store.runs_under(self.id)
        return sorted((record for record in found if self._number(record) >= 0), key=self._number)

    def next_run_id(self) -> str:
        """Return the name that the run of the next message gets; empty without a journal."""
        return self._id_after(self.runs)

    async def run(self, task: str, *, deps: Deps | None = None, **options: Any) -> RunResult[Value]:
        """Send a message and return the result of its run. The options are those of `Agent.run`.

        Raises:
            UsageError: An argument is wrong; `history`, `run_id`, `state` and `work_files` are the session's own.
            DecisionRefused: The last message waits for a decision.
            JournalError: The record cannot be started.
        """

        async def begin(**own: Any) -> RunResult[Value]:
            return self._keep(await self._start(task, deps=deps, **own))

        return await self._next(begin, options)

    async def submit(self, task: str, **options: Any) -> str:
        """Record a message without starting its run, and return the run's id. The options are those of `Agent.submit`.

        Raises:
            UsageError: As for `run`, or an earlier message has no reply yet.
            DecisionRefused: The last message waits for a decision.
            JournalError: The record cannot be started.
        """
        runs = self.runs if self._store is None else await self._store.off_loop(lambda: self.runs)
        if runs and runs[-1].status in ("running", "interrupted"):
            raise UsageError(f"Message {runs[-1].run_id} has no reply yet. Wait for it, or cancel it.")
        return await self._next(partial(self._submit, task), options, again=False)

    async def _next(self, begin: Callable[..., Awaitable[T]], options: dict[str, Any], *, again: bool = True) -> T:
        """Begin the run of the next message; `again` if another process was faster."""
        for name in ("history", "run_id", "state", "work_files", "handed_to", "history_labels"):
            if name in options:
                raise UsageError(f"A session sets {name} itself. Leave it out, or call agent.run(…).")
        if self._user:
            options.setdefault("user", self._user)
        async with self._turn:
            while True:
                runs = await self._idle_runs()
                if self._store is not None and (self._user or self._before):
                    await self._store.off_loop(self._refuse_another, runs, self._store)
                waiting = next((record.run_id for record in runs if record.status == "waiting"), "")
                if waiting:
                    resume = "session" if waiting == runs[-1].run_id else "agent"
                    target = "" if resume == "session" else f"{waiting!r}, "
                    raise DecisionRefused(
                        f"A message of session {self.id} waits for a decision, a time or a signal, and its outcome "
                        "belongs to the conversation. Decide it before the next message: "
                        f"{resume}.resume({target}decisions={{…}}), or closeout approve {waiting}. After a time or a "
                        "signal: agent.resume_due()."
                    )
                for left in (record.run_id for record in runs if record.status == "interrupted"):
                    log.warning(
                        "Message %s was interrupted, so the conversation continues without it. To continue it: "
                        "session.resume(), or closeout resume %s",
                        left,
                        left,
                    )
                run_id = self._id_after(runs)
                history = await self._fitting_history()
                try:
                    own = {"history": history, "run_id": run_id, "state": self._state, "work_files": self._files}
                    own |= {"handed_to": self._handed_to, "history_labels": self._labels}
                    return await begin(**own, **options)
                except RunExists:  # another process sent a message meanwhile
                    if not again:
                        raise

    def run_sync(self, task: str, *, deps: Deps | None = None, **options: Any) -> RunResult[Value]:
        """`run` from code that is not async."""
        return run_here(self.run(task, deps=deps, **options), instead="await session.run(…)")

    def stream(self, task: str, *, deps: Deps | None = None, **options: Any) -> RunStream[Value]:
        """Send a message and iterate over what happens. The options are those of `Agent.run`."""
        others: Sequence[Listener] = options.pop("listeners", ())
        return RunStream(lambda listener: self.run(task, deps=deps, listeners=(listener, *others), **options))

    async def send(self, text: str, *, interrupt: bool = False, to: str = "", by: str = "") -> None:
        """Send a message to the agent while it answers the last one. The arguments are those of `Agent.send`.

        Raises:
            MessageRefused: No message of this session is being answered. Call `run` instead.
            JournalError: The message cannot be written.
        """
        runs = [] if self._store is None else await self._store.off_loop(lambda: self.runs)
        if self._store is None or not runs or runs[-1].status in REPLIED:
            raise MessageRefused(
                f"No message of session {self.id} is being answered, so there is nobody to send to. Call "
                "session.run(…); without a journal, call send of what session.stream(…) returns."
            )
        mailbox = await asyncio.to_thread(mailbox_of, self._store, runs[-1].run_id)
        await asyncio.to_thread(mailbox.send, text, to=to, by=by, interrupt=interrupt)

    async def resume(self, **options: Any) -> RunResult[Value]:
        """Continue the last message if it was interrupted, cancelled or failed, else the last one that was interrupted.

        The options are those of `Agent.resume`.

        Raises:
            RunNotFound: There is no such message.
        """
        async with self._turn:
            runs = await self._idle_runs()
            left = [record for record in runs if record.status == "interrupted"]
            left += [record for record in runs[-1:] if record.status not in REPLIED]
            if not left:
                raise RunNotFound(f"The messages of session {self.id} have their replies: there is nothing to resume.")
            result = await self._resume(left[-1].run_id, **options)
            if left[-1] is runs[-1]:
                return self._keep(result)
            await self._idle_runs()  # its reply follows those that were given meanwhile
            return result

    def _keep(self, result: RunResult[Value]) -> RunResult[Value]:
        if result.status in REPLIED:
            self._messages, self._state, self._messages_of = result.messages, result.state, (result.run_id,)
            self._files = result.work_files
            self._handed_to, self._labels = result.handed_to, result.labels
        return result

    async def _idle_runs(self) -> list[RunRecord]:
        """Return the runs, once no process executes one of them, and read the conversation up to the last."""
        if self._store is None:
            return []
        while True:
            runs = await self._store.off_loop(lambda: self.runs)
            if all(record.status != "running" for record in runs):
                await self._store.off_loop(self._read_messages, runs)
                return runs
            await asyncio.sleep(BUSY_SECONDS)

    def _read_messages(self, runs: Sequence[RunRecord]) -> None:
        """Take over what another process, or an earlier one, has said.

        The last message that has its reply began with those before it. An earlier one that was interrupted, and got
        its reply by a resume after that, follows it.
        """
        replied = [record for record in runs if record.status in REPLIED]
        if not replied or self._store is None:
            return
        last = replied[-1]
        late = [record for record in replied[:-1] if record.ended is not None and record.ended > last.started]
        parts = tuple(record.run_id for record in (last, *sorted(late, key=lambda record: record.ended or 0.0)))
        if parts == self._messages_of:
            return
        messages: tuple[Message, ...] = ()
        state: dict[str, Any] = {}
        files: dict[str, File] = {}
        labels: list[tuple[str, ...]] = []
        for run_id in parts:
            rows = self._store.read(run_id).rows
            ended = RunTotals(row.event for row in rows).ended
            reply = "" if ended is None else ended.closing_text or ended.answer or ""
            is_last = run_id == last.run_id
            messages += conversation_of(rows, reply, with_earlier=is_last)
            state.update(state_of([row.event for row in rows[0 if is_last else 1 :]]))
            found = files_of((row.event for row in rows), self._store.content)
            files |= {file.name: file for file in (found.all() if is_last else found.left())}
            self._handed_to = handed_to_of(row.event for row in rows)
            labels.append(labels_of_events(row.event for row in rows))
        self._messages, self._state, self._messages_of = messages, state, parts
        self._files = tuple(files.values())
        self._labels = written_labels(label for each in labels for label in each) if all(labels) else ()

    async def _fitting_history(self) -> tuple[Message, ...]:
        """Return the messages; without the oldest ones once they take half of the model's context."""
        size = estimate_tokens(historic_prompt(self._messages))
        context = await self._context_length() if size > WORTH_ASKING else None
        if context is not None and size > FULL * context:
            self._messages = fit_history(self._messages, int(KEPT * FULL * context), estimate_tokens)
        return self._messages

    def _refuse_another(self, runs: Sequence[RunRecord], store: Store) -> None:
        """Raise UsageError if others than `history` began the conversation, or the first or last one is another user's.

        Between two messages anybody may begin a run whose name is that of the next one.
        """
        started = store.rows_from(runs[0].run_id, 0, 1) if runs else []
        if not started:
            return
        first = recorded_task(started, runs[0].run_id, load=store.content)
        given, recorded = (
            [message.text for message in messages if message.role != "tool"]
            for messages in (self._before, first.earlier)
        )
        if given and (given[-1:] != recorded[-1:] or not set(recorded) <= set(given)):  # old messages may be left out
            raise UsageError(f"Session {self.id} began with another history. Use another name, or leave history out.")
        last = store.beginning(runs[-1].run_id)
        if self._user and {first.user, first.user if last is None else last.user} - {"", self._user}:
            raise UsageError(
                f"Session {self.id} is another user's. Use another name. For a conversation of several people leave "
                "user out of session(…), and pass it with each message."
            )

    def _id_after(self, runs: Sequence[RunRecord]) -> str:
        return "" if self._store is None else f"{self.id}.{self._number(runs[-1]) + 1 if runs else 1}"

    def _number(self, record: RunRecord) -> int:
        """Return the number of one of its runs, -1 for any other run: a key of `Agent.map` may have the same name."""
        if record.run_id == self.id:
            return 0 if is_new_run_id(self.id) else -1  # a name of a user's may be that of any run
        text = record.run_id.removeprefix(f"{self.id}.")
        return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else -1
