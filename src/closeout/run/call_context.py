"""What a tool may know of its run during a call, and do in it: ask, wait, log, report progress, ask the model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from closeout.codec import json_of_any
from closeout.errors import JournalError, ToolError
from closeout.journal.events import DecisionRequested, Noted
from closeout.journal.subscribers import Progress
from closeout.messages import Message, ModelReply, ModelRequest, ToolSpec
from closeout.run.middleware.call_logins import LoginMiddleware
from closeout.run.middleware.call_secrets import secrets_in
from closeout.run.middleware.chain import found_in
from closeout.run.plan import Scope
from closeout.run.waits.decisions import decide, must_rerun, question_digest
from closeout.run.waits.server_questions import CallQuestions
from closeout.run.waits.timers import CallWaits, Memo
from closeout.tools.run_context import BudgetLeft, RunContext, Sample
from closeout.tools.secrets import Secrets

__all__ = ["CallContexts"]


class CallContexts:
    """Makes the `RunContext` of each of an agent's calls.

    `sampling` makes what asks the agent's model for the MCP server of a call, given the call's handle.
    """

    def __init__(self, scope: Scope, sampling: Callable[[str], Sample] | None = None) -> None:
        self._scope = scope
        self._secrets = secrets_in(scope)
        logins = found_in(scope, LoginMiddleware)
        self._logins: Mapping[str, int] = {} if logins is None else logins.taken
        self.turn = 0  # whose calls are made
        self._memo: Memo = {}
        self._questions: dict[str, CallQuestions] = {}
        self._sampling = sampling
        self._samples: dict[str, Sample] = {}

    def factory(self, handle: str, spec: ToolSpec) -> Callable[[], RunContext[Any]]:
        """Return what makes the context of a call when its tool wants it, also in the thread of a synchronous tool."""
        return partial(self._context, handle, spec, asyncio.get_running_loop())

    def _context(self, handle: str, spec: ToolSpec, loop: asyncio.AbstractEventLoop) -> RunContext[Any]:
        scope, budget = self._scope, self._scope.budget
        return replace(
            scope.context(),
            handle=handle,
            budget=BudgetLeft(
                turns=max(budget.limits.max_turns - self.turn - 1, 0),
                tokens=budget.tokens_left,
                cost_usd=budget.cost_left,
                seconds=budget.seconds_left(closing=False),
            ),
            files=scope.files.before(scope.path, handle),
            logger=_tool_logger(scope, handle, spec.name, self._secrets, loop),
            asker=partial(self._ask, handle, spec, count()),
            waits=CallWaits(scope, handle, spec, self._memo, self._logins.get(handle, 0)),
            questions=partial(self._questions_of, handle, spec),
            sample=None if self._sampling is None else partial(self._sample, handle),
        )

    async def _sample(self, handle: str, request: ModelRequest) -> ModelReply:
        """Ask the agent's model for the server of a call."""
        assert self._sampling is not None
        if self._secrets:
            request = replace(request, messages=[Message(self._secrets.hide(each)) for each in request.messages])
        if handle not in self._samples:
            self._samples[handle] = self._sampling(handle)
        return await self._samples[handle](request)

    def publish_progress(self, handle: str, done: float, total: float | None, message: str) -> None:
        """Publish the progress that a tool reports."""
        progress = Progress(
            self._scope.path,
            self.turn,
            "tool_progress",
            self._secrets.hide(message),
            handle=handle,
            done=done,
            total=total,
        )
        self._scope.subscribers.publish(progress)

    def _questions_of(self, handle: str, spec: ToolSpec) -> CallQuestions:
        """Return the questions of a call, the same for each time that it is tried."""
        if handle not in self._questions:
            self._questions[handle] = CallQuestions(self._scope, handle, spec, self._secrets)
        return self._questions[handle]

    async def _ask(
        self,
        handle: str,
        spec: ToolSpec,
        numbers: Iterator[int],
        question: str,
        options: Sequence[str],
        *,
        max_wait: float | None,
        default: str,
    ) -> str:
        """Ask a person for a tool: see `RunContext.ask`. A call's questions are numbered in the order it asks them."""
        if spec.policy.crash_rule != "rerun":
            raise must_rerun(self._scope, spec, "asks a person")
        number = next(numbers)
        arguments = self._secrets.hide({"question": question, "options": list(options)})
        request = DecisionRequested(
            self._scope.path,
            f"{handle}.{number + 1}" if number else handle,
            "question",
            name=spec.name,
            arguments=json_of_any(arguments),
            digest=question_digest(spec, arguments),
            default=None if max_wait is None else self._secrets.hide(default),
            expires=None if max_wait is None else self._scope.run.clock() + max_wait,
        )
        made = self._memo.get(request.request)
        if made is None or made.digest != request.digest:  # a tool that is tried again does not ask a second time
            made = self._memo[request.request] = await decide(self._scope, request)
        if made.verdict == "answer":
            return made.text
        raise ToolError(f"The user did not answer: {made.text}" if made.text else "The user did not answer.")


class _JournalHandler(logging.Handler):
    """Writes a tool's log records into the journal, on the run's event loop, as tools may log from threads."""

    def __init__(self, scope: Scope, handle: str, name: str, secrets: Secrets, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._secrets = secrets
        self._scope = scope
        self._handle = handle
        self._name_of_tool = name
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower() if record.levelno < logging.ERROR else "error"
        noted = Noted(
            self._scope.path,
            level,
            f"Tool {self._name_of_tool}",
            message=self._secrets.hide(self.format(record)),
            metadata={"handle": self._handle},
        )
        is_there = False
        with suppress(RuntimeError):  # this is a thread without a loop
            is_there = asyncio.get_running_loop() is self._loop
        if is_there:
            self._append(noted)
        else:
            with suppress(RuntimeError):  # the loop is closed: the run is over
                self._loop.call_soon_threadsafe(self._append, noted)

    def _append(self, noted: Noted) -> None:
        with suppress(JournalError):  # the run itself meets it at its next event
            self._scope.journal.append(noted)


def _tool_logger(
    scope: Scope, handle: str, name: str, secrets: Secrets, loop: asyncio.AbstractEventLoop
) -> logging.Logger:
    """Return a logger of one call, which is not registered: calls are many."""
    logger = logging.Logger(f"closeout.tools.{name}", logging.DEBUG)
    if not secrets:  # the handlers of the process would write a record as it is
        logger.parent = logging.getLogger("closeout.tools")
    logger.addHandler(_JournalHandler(scope, handle, name, secrets, loop))
    return logger
