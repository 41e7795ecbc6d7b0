"""The questions of an MCP server during one call, as decisions of the run.

A call that waits for a person is given up at the server and made again with the answer. So it may be repeated up to the
question that it waited at, whatever its tool's rule says: letting a server ask means agreeing to that. What follows
the answer is not repeated: `AnswerGiven` is recorded before the server gets it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from closeout.codec import decode_json, encode_json
from closeout.errors import Suspended
from closeout.journal.events import AnswerGiven, DecisionMade, DecisionRequested, TaskCreated
from closeout.journal.run_journal import Journal
from closeout.messages import ToolSpec
from closeout.run.cancelling import is_to_be_cancelled
from closeout.run.plan import Scope
from closeout.run.waits.decisions import decide, ended_timer, question_digest, recorded_requests, utc_time
from closeout.tools.run_context import ServerAnswer
from closeout.tools.secrets import Secrets

__all__ = ["CallQuestions", "may_continue"]

# Seconds before the first look at a task that the run has left; each later rest is longer by this factor.
FIRST_REST, LONGER, LONGEST = 10.0, 1.2, 3600.0


def may_continue(journal: Journal, agent: str, handle: str) -> bool:
    """Return True if a call can be continued: its server works on a task, or has not got the answer it waited for."""
    if journal.recorded(TaskCreated, agent, handle) is not None:
        return True
    last = ""
    for asked in recorded_requests(journal, agent, f"{handle}.q"):
        last = asked.request
    return bool(last) and journal.recorded(AnswerGiven, agent, last) is None


class CallQuestions:
    """The questions of one call. A recorded answer counts for the same question, in whatever order they are asked."""

    def __init__(self, scope: Scope, handle: str, spec: ToolSpec, secrets: Secrets) -> None:
        self._scope = scope
        self._handle = handle
        self._spec = spec
        self._secrets = secrets
        self._answers: list[ServerAnswer] | None = None
        self._unused: list[ServerAnswer] = []
        self._asked = 0
        self._task = ""
        self._rests = 0

    async def recall(self, *, by_person: bool) -> list[ServerAnswer]:
        """Return the answers so far, in the order of their questions, and let each be used once more.

        Args:
            by_person: A person answers. A question that a rule was about to answer is left to the rule.

        Raises:
            Suspended: A question has no answer yet.
        """
        if self._answers is None:
            self._answers, journal = [], self._scope.journal
            open_requests: list[DecisionRequested] = []
            for asked in list(recorded_requests(journal, self._scope.path, f"{self._handle}.q")):
                if not by_person and not journal.has_decision(asked):
                    break
                self._asked += 1
                try:
                    self._answers.append(await self._decided(asked, None))
                except Suspended:
                    open_requests.append(asked)
            if open_requests:
                raise Suspended(open_requests)
        self._unused = list(self._answers)
        return list(self._answers)

    async def ask(
        self, question: Mapping[str, Any], answer: Callable[[], Awaitable[tuple[bool, str] | None]]
    ) -> ServerAnswer:
        """Return the answer to a question. `recall` has been called before.

        Args:
            question: What is asked, as `PendingDecision.arguments`. `context` in it does not distinguish questions.
            answer: Returns at once whether the question is accepted, and the text; None if a person must be asked.

        Raises:
            Suspended: A person must answer.
        """
        assert self._answers is not None
        arguments = self._secrets.hide(dict(question))
        digest = question_digest(self._spec, {name: each for name, each in arguments.items() if name != "context"})
        for known in self._unused:
            if known.digest == digest:
                self._unused.remove(known)
                return known
        self._asked += 1
        request = DecisionRequested(
            self._scope.path,
            f"{self._handle}.q{self._asked}",
            "question",
            name=self._spec.name,
            arguments=encode_json(arguments).decode(),
            digest=digest,
        )
        made = await self._decided(request, answer)
        self._answers.append(made)
        return made

    async def _decided(
        self, request: DecisionRequested, answer: Callable[[], Awaitable[tuple[bool, str] | None]] | None
    ) -> ServerAnswer:
        async def outcome(asked: DecisionRequested) -> DecisionMade | None:
            found = None if answer is None else await answer()
            if found is None:
                return None
            verdict = "answer" if found[0] else "deny"
            return DecisionMade(asked.agent, asked.request, verdict, digest=asked.digest, text=found[1], by="rule")

        made = await decide(self._scope, request, outcome)
        return ServerAnswer(
            request=request.request,
            digest=request.digest,
            question=decode_json(request.arguments),
            accepted=made.verdict == "answer",
            text=made.text,
        )

    async def give(self, answers: Sequence[ServerAnswer]) -> None:
        """Record that the server is about to get these answers."""
        journal = self._scope.journal
        for answer in answers:
            journal.append(AnswerGiven(self._scope.path, answer.request), durable=True)
        await journal.committed()

    def task(self) -> str:
        """Return the id of the task that the call has become; empty if it has not."""
        journal, place = self._scope.journal, (self._scope.path, self._handle)
        if not self._task and isinstance(found := journal.recorded(TaskCreated, *place), TaskCreated):
            self._task = found.task
            journal.append(found)
        return self._task

    async def rested(self) -> None:
        """Take over the recorded rests of the call's task. Raises Suspended if the last is not over."""
        looks = recorded_requests(self._scope.journal, self._scope.path, f"{self._handle}.look", self._rests + 1)
        for asked in looks:
            await decide(self._scope, asked, partial(ended_timer, self._scope))
            self._rests += 1

    async def rest(self, seconds: float) -> None:
        """Suspend the run until its task is to be looked at again: after so many seconds, and later each time."""
        seconds = max(seconds, min(FIRST_REST * LONGER**self._rests, LONGEST))
        expires = round(self._scope.run.clock() + seconds, 3)
        request = DecisionRequested(
            self._scope.path,
            f"{self._handle}.look{self._rests + 1}",
            "timer",
            name=self._spec.name,
            arguments=encode_json({"until": utc_time(expires), "task": self._task}).decode(),
            digest=question_digest(self._spec, ["look", self._task]),
            expires=expires,
        )
        await decide(self._scope, request, partial(ended_timer, self._scope))
        self._rests += 1

    def is_to_end(self) -> bool:
        """Return whether somebody wants the run to end, and not only this process to leave it."""
        journal = self._scope.journal
        return journal.store is not None and is_to_be_cancelled(journal.store, journal.run_id)

    async def became(self, task: str) -> None:
        """Record the task that the call has become."""
        self._task = task
        self._scope.journal.append(TaskCreated(self._scope.path, self._handle, task), durable=True)
        await self._scope.journal.committed()
