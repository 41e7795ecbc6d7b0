"""Messages to a run: anybody who can write the home sends them, the process that executes the run reads them in order.

A message is on disk before it counts as sent. Whether it is still in time is decided by a lock: a sender holds it while
it writes, and a run that gives its final answer holds it from the moment at which it has read everything. The system
releases the lock of a process that dies, so a run that was interrupted takes messages again, for when it is resumed.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from pydantic_core import from_json

from closeout.codec import encode_json
from closeout.errors import MessageRefused
from closeout.journal.events import AgentEnded, AgentStarted, MessageReceived, ModelRequested
from closeout.journal.run_names import session_of
from closeout.records import record, shallow_dict

if TYPE_CHECKING:
    from closeout.journal.recorded import RecordedRun
    from closeout.journal.store import Store

__all__ = ["Inbox", "Mailbox", "SentMessage", "check_message", "mailbox_of"]

MAIN = "main"
RUNTIME = "closeout"  # who sends the messages of the run itself
MAX_LENGTH = 1_000_000  # characters
PATIENCE = 3.0  # Seconds that a sender waits while a run gives its answer, to see whether it continues.
_LOOK_AGAIN = 0.02  # seconds
_RESUMABLE = {"failed": "failed", "cancelled": "was cancelled"}


@record(kw_only=True)
class SentMessage:
    """A message to a run.

    Attributes:
        id: Its name, unique everywhere.
        text: What it says.
        to: The path of the agent that it is for.
        by: Who sent it, as far as that is known.
        sent: When, in seconds since the epoch.
        interrupts: Whether the reply that is being written is to be cancelled.
    """

    id: str
    text: str
    to: str = MAIN
    by: str = ""
    sent: float = 0.0
    interrupts: bool = False


_values = shallow_dict(SentMessage)


def check_message(text: str) -> str:
    """Return the text of a message.

    Raises:
        MessageRefused: It is empty, too long, or not a text.
    """
    if not isinstance(text, str):
        raise MessageRefused(f"A message must be a text, got {text!r:.80}.")
    if not text.strip():
        raise MessageRefused("The message is empty. Write what the agent is to know.")
    if len(text) > MAX_LENGTH:
        raise MessageRefused(
            f"The message has {len(text):,} characters; {MAX_LENGTH:,} are allowed. Pass long texts as files of a run."
        )
    return text


def mailbox_of(store: Store, run_id: str) -> Mailbox:
    """Return the mailbox of a recorded run. Raises RunNotFound."""
    return Mailbox(store, run_id, store.number_of(run_id))


class Mailbox:
    """The messages to one run. Without a store they are kept in memory, and only this object knows them.

    Args:
        store: Where the run is kept.
        run_id: The run.
        number: Its number in the store.
    """

    def __init__(self, store: Store | None, run_id: str, number: int = 0) -> None:
        self._store = store
        self._run_id = run_id
        self._number = number
        self._kept: list[SentMessage] = []
        self._lock = threading.Lock()  # guards a run without a store
        self._read = 0  # messages
        self._agents: list[str] = []
        self._is_closed = False

    # ------------------------------------------------------------------------------------------ sending

    def send(self, text: str, *, to: str = "", by: str = "", interrupt: bool = False) -> SentMessage:
        """Send a message. It is kept until the run reads it, also through a crash and while the run waits.

        Waits for the disk, and up to three seconds for a run that gives its answer. May be called from any thread.

        Args:
            text: What it says.
            to: The name or the path of a sub-agent that is at work; empty for the main agent.
            by: Who sends it, for the record.
            interrupt: Cancel the reply that the agent is writing.

        Raises:
            MessageRefused: The run has ended or gives its final answer, or it has no such agent.
            JournalError: The message cannot be written.
        """
        check_message(text)
        message = SentMessage(
            id=secrets.token_hex(8),
            text=text,
            to=self._agent(to),
            by=by,
            sent=time.time(),
            interrupts=interrupt,
        )
        give_up = time.monotonic() + PATIENCE
        while not self._add(message):
            if time.monotonic() > give_up:
                raise MessageRefused(
                    f"Run {self._run_id} is giving its final answer and takes no more messages. {self._next_step()}"
                )
            time.sleep(_LOOK_AGAIN)
        return message

    def _add(self, message: SentMessage) -> bool:
        """Add a message, and return True unless the run may be about to end."""
        if self._store is None:
            with self._lock:
                if self._is_closed:
                    raise MessageRefused(f"The run has ended, or gives its final answer. {self._next_step()}")
                self._kept.append(message)
            return True
        self._refuse_ended()
        if not self._store.lock_messages(self._number):
            return False
        try:
            self._refuse_ended()  # it may have ended before the lock was taken
            self._store.add_message(self._number, encode_json(_values(message)))
        finally:
            self._store.unlock_messages(self._number)
        return True

    def _refuse_ended(self) -> None:
        assert self._store is not None
        status = self._store.run(self._run_id).status
        if status in ("running", "interrupted", "waiting"):
            return
        if status in _RESUMABLE:
            raise MessageRefused(
                f"Run {self._run_id} {_RESUMABLE[status]}, so it takes no messages. Resume it and send the message "
                f"then: closeout resume {self._run_id}."
            )
        raise MessageRefused(f"Run {self._run_id} has ended ({status}), so it takes no messages. {self._next_step()}")

    def _next_step(self) -> str:
        session = session_of(self._run_id)
        begin = f"agent.session({session!r}).run(…), or closeout chat --session {session}" if session else ""
        fork = f"closeout runs fork {self._run_id} --at TURN --note TEXT"
        if self._store is None:
            return "Begin another run, with result.messages as its history."
        return f"To say more after the answer: {begin}. To go another way: {fork}." if begin else f"Fork it: {fork}."

    def _agent(self, name: str) -> str:
        """Return the path of an agent that is at work."""
        if name in ("", MAIN):
            return MAIN
        if self._store is None:
            return name
        at_work: dict[str, None] = {}
        for row in self._store.rows_from(self._run_id, 0):
            if isinstance(row.event, AgentStarted):
                at_work[row.event.agent] = None
            elif isinstance(row.event, AgentEnded):
                at_work.pop(row.event.agent, None)
        found = [path for path in at_work if name in (path, path.rpartition(":")[2])]
        if len(found) == 1:
            return found[0]
        if found:
            raise MessageRefused(
                f"Several agents {name!r} of run {self._run_id} are at work. Name one by its path: {', '.join(found)}."
            )
        others = f"At work are: main, {', '.join(at_work)}." if at_work else "Only main is at work."
        raise MessageRefused(f"No agent {name!r} of run {self._run_id} is at work. {others}")

    # ------------------------------------------------------------------------------------------ reading

    def take(self) -> list[SentMessage]:
        """Return the messages that were sent since the last time. Costs a read of eight bytes if nothing is new."""
        if self._store is None:
            with self._lock:
                found = self._kept[self._read :]
        elif self._store.count_messages(self._number) == self._read:
            return []
        else:
            found = [SentMessage(**from_json(body)) for body in self._store.messages(self._number, self._read)]
        self._read += len(found)
        return found

    def close(self) -> bool:
        """Refuse messages. Returns False without doing so while a message is unread or being sent."""
        if self._is_closed:
            return True
        if self._store is None:
            with self._lock:
                self._is_closed = self._read == len(self._kept)
        elif self._store.lock_messages(self._number):
            self._is_closed = True
            # A sender that was killed may have counted one that it did not write.
            count = self._store.count_messages(self._number)
            if count != self._read and self._store.messages(self._number, self._read):
                self.reopen()
        return self._is_closed

    def end(self) -> None:
        """Refuse messages to a run in memory, and leave those to a recorded run to its record."""
        if self._store is None:
            self._is_closed = True
        else:
            self.reopen()

    def reopen(self) -> None:
        """Take messages again."""
        if self._is_closed:
            self._is_closed = False
            if self._store is not None:
                self._store.unlock_messages(self._number)


class Inbox:
    """Delivers the messages of one run to its agents, those in its record at the places where they were.

    Args:
        mailbox: The messages to the run; None for a replay, which has those in its record only.
        recorded: The record of the run.
    """

    def __init__(self, mailbox: Mailbox | None, recorded: RecordedRun) -> None:
        self.mailbox = mailbox
        self._recorded = recorded
        self._agents: set[str] = set()  # at work
        self._main = MAIN  # the agent that has the conversation
        self._unread: list[SentMessage] = []
        self._promised: dict[str, Callable[[], Awaitable[bool]]] = {}  # by agent
        self._watching: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None

    def promise(self, agent: str, wait: Callable[[], Awaitable[bool]]) -> None:
        """Do not let an agent end while messages to it are to come. `wait` waits for one; False: none is to come."""
        self._promised[agent] = wait

    def post(self, name: str, text: str, to: str) -> None:
        """Add a message of the run itself: its record alone keeps it."""
        if self.mailbox is not None and name not in self._recorded.message_ids:
            self._unread.append(SentMessage(id=name, text=text, to=to, by=RUNTIME, sent=time.time()))

    def withdraw(self, names: Iterable[str]) -> None:
        """Remove messages that were posted and not received."""
        withdrawn = {*names}
        self._unread = [each for each in self._unread if each.id not in withdrawn]

    def join(self, agent: str) -> None:
        """Begin to deliver messages to an agent. What is for an agent that is not at work goes to the main agent."""
        self._agents.add(agent)

    def leave(self, agent: str) -> None:
        """Deliver no more messages to an agent."""
        self._agents.discard(agent)
        self._promised.pop(agent, None)

    def hand_over(self, agent: str, to: str) -> bool:
        """Note that another agent continues an agent's conversation. Returns whether that is the run's own."""
        self.leave(agent)
        if agent == self._main:
            self._main = to
        return self._main == to

    def due(self, agent: str, request: int) -> list[MessageReceived]:
        """Return what joins an agent's conversation before a request, each message once.

        Args:
            agent: The agent's path.
            request: The number of its next request.
        """
        recorded = self._recorded
        found = recorded.take_messages(agent, request)
        if self.mailbox is None or recorded.find(ModelRequested, agent, str(request)) is not None:
            return found  # what was sent later joins later
        if agent == self._main:
            self.mailbox.reopen()
        self._collect()
        for message in [each for each in self._unread if self._is_for(each, agent)] if self._unread else ():
            self._unread.remove(message)
            found.append(
                MessageReceived(
                    agent,
                    message.id,
                    request,
                    text=message.text,
                    sent=message.sent,
                    by=message.by,
                    interrupts=message.interrupts,
                )
            )
        return found

    def is_interrupted(self, agent: str) -> bool:
        """True if a message that interrupts an agent's reply is unread."""
        self._collect()
        return any(each.interrupts and self._is_for(each, agent) for each in self._unread)

    def watch(self, look: Callable[[], object], seconds: float) -> None:
        """Call a function every so many seconds, until `unwatch`. One timer serves all requests of the run."""
        self._watching.append(look)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look, seconds)

    def unwatch(self, look: Callable[[], object]) -> None:
        """Do not call a function any more."""
        self._watching.remove(look)

    def _look(self, seconds: float) -> None:
        self._timer = None
        if self._watching:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look, seconds)
        for look in tuple(self._watching):
            look()

    def end(self) -> None:
        """Note that no process executes the run any more. A run that is resumed takes messages until then."""
        if self.mailbox is not None:
            self.mailbox.end()

    @property
    def unread(self) -> int:
        """The number of messages that no agent has received."""
        self._collect()
        return len(self._unread)

    async def close(self, agent: str, request: int) -> bool:
        """End the delivery to an agent that has its final answer. For the main agent, later messages are refused.

        Args:
            agent: The agent's path.
            request: The number of the request that would be its next one.

        Returns:
            False if a message is due: the agent has to continue with it.
        """
        recorded, mailbox = self._recorded, self.mailbox
        if recorded.has_message(agent, request):
            return False
        continued = recorded.find(ModelRequested, agent, str(request)) is not None  # without a message
        promised = None if continued else self._promised.get(agent)
        give_up = time.monotonic() + PATIENCE
        while True:
            self._collect()
            if not continued and any(self._is_for(each, agent) for each in self._unread):
                return False
            if promised is not None and await promised():
                give_up = time.monotonic() + PATIENCE
                continue
            if mailbox is None:
                return True
            if agent != self._main or mailbox.close() or time.monotonic() > give_up:
                return True
            await asyncio.sleep(_LOOK_AGAIN)

    def _collect(self) -> None:
        if self.mailbox is not None and (found := self.mailbox.take()):
            self._unread += [each for each in found if each.id not in self._recorded.message_ids]

    def _is_for(self, message: SentMessage, agent: str) -> bool:
        return message.to == agent or (agent == self._main and message.to not in self._agents)
