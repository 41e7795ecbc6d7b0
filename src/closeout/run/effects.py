"""The effects of one agent, model requests and tool calls: each is journaled before and after, and reused on resume."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from itertools import count
from types import TracebackType
from typing import Any

from pydantic_core import to_json

from closeout.context.keeper import ContextKeeper, PromptSize, message_size
from closeout.errors import (
    Failure,
    Interrupted,
    JournalError,
    LimitReached,
    ModelError,
    ModelTimeout,
    ToolError,
)
from closeout.file_values import File
from closeout.journal.events import (
    REFUSED_CALL,
    CallRepeated,
    DecisionMade,
    DecisionRequested,
    Event,
    FlowDecided,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    Noted,
    ToolFinished,
    ToolStarted,
)
from closeout.journal.inbox import Inbox
from closeout.journal.recorded import CANCELLED, REPLY_INTERRUPTED
from closeout.journal.subscribers import Progress
from closeout.journal.token_record import dump_tokens, load_tokens
from closeout.messages import Message, ModelReply, ModelRequest, RequestInfo, ToolCall, ToolSpec, Usage
from closeout.models.base import BaseClient, OnDelta, price_of
from closeout.models.history_methods import asks_by_methods, complete_by_methods
from closeout.models.retry import OnRetry, Retries, RetryNote, RetryPolicy
from closeout.redaction import mask, redact
from closeout.results.normal import is_large, json_text
from closeout.results.tool_output import REMOVED_FILES, ToolOutput, ToolTelemetry
from closeout.run.logins import awaits_login, take_logins
from closeout.run.middleware.chain import Calling, Middleware, Sending, through
from closeout.run.plan import Scope, enter, leave
from closeout.run.server_questions import CallQuestions, may_continue
from closeout.run.timers import CallWaits, Memo
from closeout.run.waiting import AGAIN, call_digest, decide, must_rerun, question_digest
from closeout.tools.calls import CallOutcome
from closeout.tools.executor import UNSURE, PlannedCall, ToolExecutor
from closeout.tools.flow import CallLabels
from closeout.tools.run_context import BudgetLeft, RunContext, Sample, context_factory
from closeout.tools.running import MAY_HAVE_EFFECT
from closeout.tools.secrets import Secrets
from closeout.tools.threads import run_in_thread
from closeout.tools.tool import takes_context

__all__ = [
    "ModelCalls",
    "ToolCalls",
    "as_decided",
    "recorded_output",
    "refusal_note",
    "refused_by_flow",
    "refused_calls",
]

UNPRICED = (
    "max_cost cannot be kept: the price of {} is unknown. Set max_tokens or max_seconds instead, "
    "or state the price as llm.prices={{MODEL: [INPUT, OUTPUT]}}, in dollars per million tokens."
)
INTERRUPTED = f"Interrupted: the program stopped while this call was running. {MAY_HAVE_EFFECT}"
STAYS_INTERRUPTED = (
    "Interrupted: the program stopped while this call was running, and a person has decided not to make it again."
)
OUT_OF_TIME = "Stopped: the time allowed for this run is nearly over, and the rest is needed to answer."


WATCH_SECONDS = 0.2  # seconds between two looks for a message that interrupts a reply

MAX_URL = 2048  # characters of a picture's address in the record of a request; longer ones contain the picture

# ------------------------------------------------------------------------------------------------ model requests


class ModelCalls:
    """Sends one agent's requests to its model. A client may serve many runs; what is charged here is this agent's."""

    def __init__(
        self,
        client: BaseClient,
        scope: Scope,
        keeper: ContextKeeper,
        *,
        retry: RetryPolicy | None = None,
        keep_tool_result: int = -1,
    ) -> None:
        client = client.for_run()
        self._client = client
        self.rolled_back = client.rolled_back
        self._complete: Callable[..., Awaitable[ModelReply]] = client.complete
        self._by_methods = asks_by_methods(client)
        if self._by_methods:
            self._complete = partial(
                complete_by_methods,
                client,
                keep_tool_result=keep_tool_result,
                task_log=scope.task_log,
                agent_type=scope.agent_type,
            )
        self._retry = client.retry or retry or RetryPolicy()
        self._journal = scope.journal
        self._agent = scope.path
        self._budget = scope.budget
        self._keeper = keeper
        self._record_prompts = scope.run.record_prompts
        self._send = through(scope.chain, self._send_request)
        self._price = price_of(client, scope.prices)
        self.sent = 0  # requests so far: the number of the next one
        self._tokens: tuple[int, ...] = ()  # ids of the last prompt and its reply, if the server states them
        self._warnings: set[str] = set()  # each is noted once

    async def request(
        self,
        request: ModelRequest,
        info: RequestInfo,
        *,
        on_delta: OnDelta | None = None,
        on_retry: OnRetry | None = None,
    ) -> ModelReply:
        """Send a request, or return the recorded reply.

        Args:
            request: What to send.
            info: What it is for. Requests that are not for a turn must fit into the budget.
            on_delta: Receives the reply in pieces, see `BaseClient.complete`.
            on_retry: Called when the transport tries again.

        Raises:
            ModelError: The request failed.
            LimitReached: A request that is not for a turn would exceed a limit.
            Interrupted: A message of the user's has cancelled it.
        """
        if not info.may_act and request.tools:
            # The tools stay in the request, because leaving them out would break the cached prefix.
            request = replace(request, tool_choice="none")
        prompt = self._keeper.measure(request)
        intent = self._intent(request, info, prompt)
        if info.purpose != "act" and (limit := self._exceeded(prompt.size)):
            stated = self._budget.stated(limit)
            raise LimitReached(limit, f"One more request to the model would exceed the limit {stated}.")
        self.sent += 1
        budget = self._budget
        exchange = self._sending(request, intent, on_delta, on_retry)
        budget.request_pending = True
        try:
            outcome = await self._journal.effect(intent, partial(self._send, exchange), failed=self._charge_lost)
        finally:
            budget.request_pending = False
        if isinstance(outcome, ModelFailed):
            usage = Usage(**outcome.usage)
            self._charge(usage, outcome.ms)
            if outcome.kind == REPLY_INTERRUPTED:
                raise Interrupted
            raise exchange.error or outcome.failure().to_exception(usage)
        assert isinstance(outcome, ModelReplied)
        if outcome.tokens:
            tokens = load_tokens(outcome.tokens, self._tokens)
            self._tokens = (*tokens.prompt, *tokens.ids)
        if exchange.reply is None:
            self._client.recall(outcome.reply())
        reply = exchange.reply or outcome.reply()
        self._charge(reply.usage, outcome.ms)
        if intent.call == 0 and reply.usage.cost_usd is None and budget.limits_cost:
            self._journal.append(Noted(self._agent, "warning", "Budget", message=UNPRICED.format(self._client.name)))
        self._keeper.learn(prompt, reply.usage)
        return reply

    def can_close(self, messages: Sequence[Message]) -> bool:
        """Return whether the rest of the budget allows a closing request with these messages."""
        return not self._exceeded(sum(map(message_size, messages)), self._budget.closing)

    def _exceeded(self, size: int, added: int = 0) -> str:
        """Return the limit that a prompt of so many characters, and tokens besides, would exceed; else empty."""
        budget = self._budget
        if not budget.limited:
            return ""
        tokens = self._keeper.tokens_of(size)
        # The estimate is made by the length of earlier prompts: it may be a little too low.
        return budget.forbids(tokens + tokens // 50 + added + budget.last.output_tokens)

    def _sending(
        self, request: ModelRequest, intent: ModelRequested, on_delta: OnDelta | None, on_retry: OnRetry | None
    ) -> Sending:
        budget = self._budget
        return Sending(
            request,
            intent,
            self._client,
            self._price,
            lambda closing: budget.seconds_left(closing=closing),
            self._warn,
            on_delta,
            [] if on_retry is None else [on_retry],
        )

    async def _send_request(self, exchange: Sending) -> ModelReplied | ModelFailed:
        intent = exchange.intent
        call, listener = intent.call, exchange.listener

        def retried(note: RetryNote) -> None:
            self._journal.append(ModelRetried(self._agent, call, str(note.error), wait=note.delay))
            if listener is not None:
                listener.discard()
            exchange.retried(note)

        began, retries = time.perf_counter(), Retries(self._retry, retried)
        complete = partial(self._complete, step_id=intent.turn + 1) if self._by_methods else self._complete
        may_act = RequestInfo(intent.purpose).may_act
        seconds = self._budget.seconds_left(closing=not may_act)
        interrupted = partial(self._interrupted, intent) if may_act else None
        try:
            async with _Deadline(seconds, self._journal.inbox, self._agent, interrupted):
                while True:
                    try:
                        reply = await complete(exchange.request, on_delta=exchange.on_delta, on_retry=retried)
                        break
                    except Exception as error:
                        await retries.wait(error)
        except ModelError as error:
            failed = error
        except TimeoutError:
            text = "The time allowed for this run (max_seconds) ran out while the model was writing."
            failed = ModelTimeout(text, usage=self._unfinished(intent.size))
        except asyncio.CancelledError:
            failure = Failure(CANCELLED, "The request was cancelled.")
            lost = ModelFailed.of(self._agent, call, failure, usage=self._unfinished(intent.size), ms=_ms(began))
            self._charge_lost(lost)
            with suppress(JournalError):
                self._journal.append(lost)
            raise
        else:
            usage = self._priced(retries.spent + reply.usage if retries.spent.requests else reply.usage)
            exchange.reply = reply = reply if usage is reply.usage else replace(reply, usage=usage)
            for warning in reply.warnings:
                if warning not in self._warnings:
                    self._warnings.add(warning)
                    self._journal.append(Noted(self._agent, "warning", "Model", message=warning))
            return ModelReplied.of(self._agent, call, reply, _ms(began), dump_tokens(reply.tokens, self._tokens))
        if listener is not None:
            listener.discard()
        exchange.error = failed
        spent = failed.usage and self._priced(failed.usage)
        return ModelFailed.of(self._agent, call, Failure.of(failed), usage=spent, ms=_ms(began))

    def _warn(self, name: str, text: str) -> None:
        self._journal.append(Noted(self._agent, "warning", name, message=text))

    def _priced(self, usage: Usage) -> Usage:
        """Return the usage with its cost, if the client has not computed it and the price is known."""
        return usage if self._price is None or usage.cost_usd is not None else self._price.of(usage)

    def _charge(self, usage: Usage, ms: float) -> None:
        self._budget.charge(usage)
        self._budget.note_request(usage, ms / 1000)

    def _charge_lost(self, failed: Event) -> None:
        """Charge a request that was sent again afterwards: it does not predict the size of the next one."""
        assert isinstance(failed, ModelFailed)
        self._budget.charge(Usage(**failed.usage))

    def _interrupted(self, intent: ModelRequested) -> ReplyInterrupted:
        text = "A message of the user's interrupted the reply."
        return ReplyInterrupted(text, usage=self._unfinished(intent.size))

    def _unfinished(self, size: int) -> Usage:
        """Estimate a request whose reply was not awaited: the server has read the prompt, whatever it wrote."""
        spent = self._keeper.tokens_of(size)
        return Usage(spent, requests=1, cost_usd=spent * self._budget.price)

    def _intent(self, request: ModelRequest, info: RequestInfo, prompt: PromptSize) -> ModelRequested:
        return ModelRequested(
            self._agent,
            self.sent,
            info.attempt,
            turn=info.turn,
            purpose=info.purpose,
            messages=len(request.messages),
            size=prompt.size,
            shared=prompt.shared,
            temperature=request.temperature,
            note=info.note,
            kept=prompt.kept,
            added=_recorded(request, prompt) if self._record_prompts else (),
            tools=_recorded_tools(request) if self._record_prompts and not prompt.same_tools else "",
            options=_options(request),
        )


def _options(request: ModelRequest) -> dict[str, Any]:
    """Return what a request sets besides its temperature."""
    given = {"top_p": request.top_p, "max_tokens": request.max_tokens}
    options = {name: value for name, value in given.items() if value is not None}
    return {**options, "extra_body": redact(request.extra_body)} if request.extra_body else options


class ReplyInterrupted(ModelError):
    """A message of the user's has cancelled the request: `REPLY_INTERRUPTED` as the kind of a ModelFailed."""


class _Deadline:
    """Ends a request when its time is over, or when a message of the user's interrupts it. An async context manager.

    Args:
        seconds: The time; None for no limit.
        inbox: The messages to the run.
        agent: The agent that asks.
        interrupted: What to raise for a message; None to let the request end.
    """

    def __init__(
        self, seconds: float | None, inbox: Inbox, agent: str, interrupted: Callable[[], ReplyInterrupted] | None
    ) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._inbox = inbox
        self._agent = agent
        self._interrupted = interrupted
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._has_message = False

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        if self._interrupted is not None:
            self._timer = self._loop.call_later(WATCH_SECONDS, self._look)

    def _look(self) -> None:
        if self._timeout.expired():  # the request is being ended, which may take a while
            return
        try:
            self._has_message = self._inbox.is_interrupted(self._agent)
        except JournalError:
            return  # the run itself meets it at its next event
        if self._has_message:
            self._timeout.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_later(WATCH_SECONDS, self._look)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._has_message and self._interrupted is not None:
                raise self._interrupted() from None
            raise


# ------------------------------------------------------------------------------------------------ tool calls


class ToolCalls:
    """Runs one agent's tool calls: approval and journal around each effect.

    Args:
        scope: The agent.
        first: The number of its first call.
        sampling: Makes what asks the agent's model for the MCP server of a call, given the call's handle.
    """

    def __init__(self, scope: Scope, first: int = 1, *, sampling: Callable[[str], Sample] | None = None) -> None:
        self._scope = scope
        self._turn = 0
        self._memo: Memo = {}
        self._logins: dict[str, int] = {}
        self._questions: dict[str, CallQuestions] = {}
        self._sampling = sampling
        self._samples: dict[str, Sample] = {}
        self._first = self._next = first  # numbers of the reply's first call and of the one after its last
        self._chain: Sequence[Middleware] = scope.chain

    @property
    def next(self) -> int:
        """The number of the next call."""
        return self._next

    def begin(self, turn: int, calls: int) -> None:
        """Prepare for so many calls of one reply."""
        self._turn, self._first, self._next = turn, self._next, self._next + calls
        for each in self._chain:
            each.begin(turn)

    async def _sample(self, handle: str, secrets: Secrets, request: ModelRequest) -> ModelReply:
        """Ask the agent's model for the server of a call."""
        assert self._sampling is not None
        if secrets:
            request = replace(request, messages=[Message(secrets.hide(each)) for each in request.messages])
        if handle not in self._samples:
            self._samples[handle] = self._sampling(handle)
        return await self._samples[handle](request)

    def publish_progress(self, handle: str, done: float, total: float | None, message: str) -> None:
        """Publish the progress that a tool reports."""
        progress = Progress(
            self._scope.path, self._turn, "tool_progress", message, handle=handle, done=done, total=total
        )
        self._scope.subscribers.publish(progress)

    def _context(
        self, handle: str, spec: ToolSpec, secrets: Secrets, loop: asyncio.AbstractEventLoop
    ) -> RunContext[Any]:
        """Return what a tool may know of the run. It may be called in the thread of a synchronous tool."""
        scope, budget = self._scope, self._scope.budget
        return replace(
            scope.context(),
            handle=handle,
            budget=BudgetLeft(
                turns=max(budget.limits.max_turns - self._turn - 1, 0),
                tokens=budget.tokens_left,
                cost_usd=budget.cost_left,
                seconds=budget.seconds_left(closing=False),
            ),
            files=scope.files.before(scope.path, handle),
            logger=_tool_logger(scope, handle, spec.name, secrets, loop),
            asker=partial(self._ask, handle, spec, count(), secrets),
            waits=CallWaits(scope, handle, spec, self._memo, self._logins.get(handle, 0)),
            questions=partial(self._questions_of, handle, spec, secrets),
            sample=None if self._sampling is None else partial(self._sample, handle, secrets),
        )

    def _questions_of(self, handle: str, spec: ToolSpec, secrets: Secrets) -> CallQuestions:
        """Return the questions of a call, the same for each time that it is tried."""
        if handle not in self._questions:
            self._questions[handle] = CallQuestions(self._scope, handle, spec, secrets)
        return self._questions[handle]

    async def _ask(
        self,
        handle: str,
        spec: ToolSpec,
        numbers: Iterator[int],
        secrets: Secrets,
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
        arguments = secrets.hide({"question": question, "options": list(options)})
        request = DecisionRequested(
            self._scope.path,
            f"{handle}.{number + 1}" if number else handle,
            "question",
            name=spec.name,
            arguments=_json_text(arguments),
            digest=question_digest(spec, arguments),
            default=None if max_wait is None else secrets.hide(default),
            expires=None if max_wait is None else self._scope.run.clock() + max_wait,
        )
        made = self._memo.get(request.request)
        if made is None or made.digest != request.digest:  # a tool that is tried again does not ask a second time
            made = self._memo[request.request] = await decide(self._scope, request)
        if made.verdict == "answer":
            return made.text
        raise ToolError(f"The user did not answer: {made.text}" if made.text else "The user did not answer.")

    def handle(self, index: int) -> str:
        """Return the handle of a call by its index in the reply. Calls are numbered through the agent's whole run."""
        return f"r{self._first + index}"

    async def execute(
        self,
        executor: ToolExecutor,
        calls: Sequence[ToolCall],
        *,
        turn: int = 0,
        agent: str,
        allow_duplicates: bool = False,
        labels: CallLabels | None = None,
    ) -> list[CallOutcome]:
        """Plan, run and judge the calls of one reply.

        Args:
            executor: Governs the calls.
            calls: The calls.
            turn: The number of the turn.
            agent: The name of the agent.
            allow_duplicates: As for `ToolExecutor.plan_calls`.
            labels: What the calls depend on, if it is known better than that it is all that the agent has read.

        Raises:
            Suspended: Calls wait for a decision; all others were made.
        """
        self.begin(turn, len(calls))
        plans = executor.plan_calls(
            calls, agent=agent, allow_duplicates=allow_duplicates, handles=self.handle, turn=turn
        )
        refused = [plan.made is not None or (plan.code == UNSURE and not plan.runs) for plan in plans]
        plans = [self._as_begun(plan, agent) if back else plan for plan, back in zip(plans, refused, strict=True)]
        running = [index for index, plan in enumerate(plans) if plan.runs]
        run = partial(self._run, executor, labels)
        if len(running) == 1:  # the usual case needs no task of its own
            ran = {running[0]: await run(plans[running[0]])}
        else:
            ran = await executor.run_together(plans, run) if running else {}
        return await executor.judge_calls(plans, ran, agent=agent, allow_duplicates=allow_duplicates)

    def _as_begun(self, plan: PlannedCall, agent: str) -> PlannedCall:
        """Return the plan of a repeated call as one that runs if the record has it, from an older version."""
        begun = self._scope.journal.has_started(self._started(plan.call, plan.tool, plan.handle))
        return replace(plan, agent=agent, turn=self._turn, runs=True) if begun else plan

    async def _run(
        self, executor: ToolExecutor, labels: CallLabels | None, plan: PlannedCall
    ) -> tuple[PlannedCall, ToolOutput]:
        """Make a call, or take its recorded result. Returns the plan as it was approved, and the output."""
        scope, handle = self._scope, plan.handle
        # The record may say what its server offered at an earlier time.
        calling = Calling(plan, executor.as_served(plan), partial(self._started, handle=handle), labels)
        await self._permit(executor, calling)
        plan = calling.plan
        if calling.output is not None:
            return plan, calling.output
        spec = plan.tool
        call = plan.call
        live: list[ToolOutput] = []

        async def outcome() -> ToolFinished:
            began = time.perf_counter()
            seconds = self._seconds_left(spec)
            if spec.server_name is not None:
                self._logins[handle] = await take_logins(scope, handle)
            token = enter((scope, handle))
            loop = asyncio.get_running_loop()
            context = context_factory.set(partial(self._context, handle, spec, executor.secrets, loop))
            try:
                async with asyncio.timeout(seconds) as deadline:
                    output = executor.post_process(plan, await executor.start(plan))
            except TimeoutError:
                if not deadline.expired():
                    raise
                output = _failed(spec.name, OUT_OF_TIME, "OutOfTime")
            finally:
                context_factory.reset(context)
                leave(token)
            live.append(output)
            for file in output.files:
                scope.journal.keep(file.data, file.sha256)
            finished = partial(_finished, scope.path, handle, spec.name, output, began)
            return recorded(await run_in_thread(finished) if is_large(output.result) else finished())

        def recorded(finished: ToolFinished, *, made: bool = True) -> ToolFinished:
            for each in self._chain:
                finished = each.record(calling, finished, made=made)
            return finished

        started = self._started(call, spec, handle)
        interrupted = None
        again = await self._decide_again(started, call, spec)
        if self._is_made_once(started, spec) and (again is None or again.verdict != "approve"):

            def interrupted() -> ToolFinished:
                text = INTERRUPTED if again is None else f"{STAYS_INTERRUPTED} {again.text}".rstrip()
                live.append(_failed(spec.name, text, "Interrupted"))
                cut_off = _finished(scope.path, handle, spec.name, live[0], time.perf_counter())
                return recorded(cut_off, made=False)

        finished = await scope.journal.effect(started, outcome, interrupted=interrupted, below=self._count_recorded)
        assert isinstance(finished, ToolFinished)
        for each in self._chain:
            each.read(finished, calling.served)
        if live:
            return plan, live[0]
        return plan, recorded_output(finished, scope.files.load)

    def _is_made_once(self, started: ToolStarted, spec: ToolSpec) -> bool:
        """Return whether a call that a crash cut off must not be made again unasked."""
        place = self._scope.journal, started.agent, started.handle
        return spec.policy.crash_rule != "rerun" and not may_continue(*place) and not awaits_login(*place)

    async def _decide_again(self, started: ToolStarted, call: ToolCall, spec: ToolSpec) -> DecisionMade | None:
        """Ask a person whether a call that a crash cut off is made again. None: its tool does not want that.

        Raises:
            Suspended: There is no decision yet.
        """
        journal, path, handle = self._scope.journal, started.agent, started.handle
        if spec.policy.crash_rule != "ask" or not journal.has_started(started) or not self._is_made_once(started, spec):
            return None
        if journal.outcome_of(ToolStarted, path, handle) is not None:
            return None
        number = 0
        while True:
            number += 1
            request = DecisionRequested(
                path,
                f"{handle}.{AGAIN}{number}",
                "approval",
                name=spec.name,
                arguments=started.arguments,
                digest=call_digest(spec, call.arguments),
                reason="The program stopped while this call was running: it may have taken effect. Make it again?",
            )
            made = await decide(self._scope, request)
            if made.verdict != "approve":
                return made
            was_repeated = journal.recorded(CallRepeated, path, request.request) is not None
            journal.append(CallRepeated(path, request.request), durable=True)
            if not was_repeated:
                await journal.committed()
                return made

    async def _permit(self, executor: ToolExecutor, calling: Calling) -> None:
        """Let the middleware and a person decide on a call: `calling` has the plan that they allow, or an output."""
        for each in self._chain:
            await each.decide(calling)
            if calling.output is not None:
                return
        plan, served = calling.plan, calling.served
        spec, reasons = plan.tool, " ".join(calling.reasons)
        if not reasons and all(each.policy.approval in (None, "never") for each in (spec, served)):
            return
        approved = await self.approve(plan.call, served, plan.handle, reasons)
        if isinstance(approved, ToolOutput):
            calling.output = approved
            return
        if approved is not plan.call:
            calling.plan = plan = executor.edited(plan, approved)
            if plan.refusal:
                calling.output = _failed(spec.name, plan.refusal, "InvalidArguments")
        for each in self._chain:
            each.approved(calling)

    def _started(self, call: ToolCall, spec: ToolSpec, handle: str) -> ToolStarted:
        return ToolStarted(
            self._scope.path,
            handle,
            spec.name,
            arguments=_json_text(call.arguments),
            turn=self._turn,
            call_id=call.id,
            server_name=spec.server_name,
            index=int(handle.removeprefix("r")) - self._first,
        )

    async def approve(
        self, call: ToolCall, spec: ToolSpec, handle: str, flow_reason: str = ""
    ) -> ToolCall | ToolOutput:
        """Ask for the approval of a call, if its tool's policy or the flow rules want that.

        Args:
            call: The call.
            spec: Its tool.
            handle: The name of the call.
            flow_reason: Why the flow rules want it; empty if they do not.

        Returns:
            The call, with the arguments that were approved; or the output of a denied call.

        Raises:
            Suspended: There is no decision yet.
        """
        journal, path = self._scope.journal, self._scope.path
        digest, arguments = call_digest(spec, call.arguments), _json_text(call.arguments)
        recorded = journal.recorded(DecisionRequested, path, handle)
        if isinstance(recorded, DecisionRequested) and (recorded.name, recorded.arguments) == (spec.name, arguments):
            if recorded.digest == digest or self._is_settled(recorded, call, spec):
                return as_decided(await decide(self._scope, recorded), call, spec)
            reason: str | None = f"{recorded.reason} The tool has changed since this was asked."
        else:
            # A rule may be a function that would decide otherwise now. What has begun without approval needs none.
            reason = await self._approval_reason(call, spec, handle)
            reason = " ".join(filter(None, (reason, flow_reason))) or None
            reason = None if journal.has_started(self._started(call, spec, handle)) else reason
        if reason is None:
            return call
        request = DecisionRequested(
            path, handle, "approval", name=spec.name, arguments=arguments, digest=digest, reason=reason
        )
        return as_decided(await decide(self._scope, request), call, spec)

    async def _approval_reason(self, call: ToolCall, spec: ToolSpec, handle: str) -> str | None:
        """Why a call needs an approval, None if it needs none. A rule that raises asks for one."""
        rule = spec.policy.approval
        if not callable(rule):
            where = f" of the MCP server {spec.server_name}" if spec.server_name else ""
            what = "is destructive" if spec.policy.destructive else "needs approval"
            return f"{spec.name}{where} {what}." if rule == "always" else None
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        try:
            context = (replace(self._scope.context(), handle=handle),) if takes_context(rule) else ()
            found = rule(arguments, *context)
            found = await found if isawaitable(found) else found
        except Exception as error:
            return f"The approval rule of {spec.name} raised {type(error).__name__}: {error}"
        if isinstance(found, str):
            return found or None
        return f"{spec.name} needs approval." if found else None

    def _is_settled(self, request: DecisionRequested, call: ToolCall, spec: ToolSpec) -> bool:
        """Return whether the call is not made any more in this place, so that a change of its tool does not matter."""
        journal, path, handle = self._scope.journal, self._scope.path, request.request
        if journal.replay_only:
            return True
        made = journal.outcome_of(DecisionRequested, path, handle)
        if isinstance(made, DecisionMade) and made.digest == request.digest:
            decided = as_decided(made, call, spec)
            if isinstance(decided, ToolOutput):
                return True
            call = decided
        if not journal.has_started(self._started(call, spec, handle)):  # another call may have been made in this place
            return False
        return spec.policy.crash_rule == "report" or journal.outcome_of(ToolStarted, path, handle) is not None

    def _count_recorded(self, event: Event) -> None:
        """Count what a sub-agent did in a call whose recorded result is reused."""
        if isinstance(event, ToolFinished):
            output = ToolOutput.from_record(json.loads(event.record))
            self._scope.telemetry.record(output.telemetry)
            self._scope.update_state(output)
            for each in self._chain:
                each.read(event, None)
        for refused in refused_calls((event,)):
            self._scope.telemetry.record(refused)
        if isinstance(event, (ModelReplied, ModelFailed)) and event.usage:
            self._scope.budget.charge(Usage(**event.usage))

    def _seconds_left(self, spec: ToolSpec) -> float | None:
        """Return the rest of the run's time. None for a tool without a deadline: it is an agent with its own limits."""
        return self._scope.budget.seconds_left(closing=False) if spec.policy.timeout is not None else None


def refusal_note(agent: str, outcome: CallOutcome) -> Noted:
    """Return the event of a call that could not be made."""
    call = outcome.call
    metadata = {
        "handle": outcome.handle,
        "server_name": call.server_name,
        "tool_name": call.name,
        "arguments": call.arguments,
        "error_code": outcome.output.telemetry.error_code,
        "error": outcome.reason,
    }
    text = f"{call.name} was not called: {outcome.reason}"
    return Noted(agent, "warning", REFUSED_CALL, message=text, metadata=metadata)


def refused_calls(events: Iterable[Event]) -> Iterator[ToolTelemetry]:
    """Yield the telemetry of the calls of known tools that could not be made.

    A resumed run notes them again; each counts once.
    """
    seen = set()
    for event in events:
        if not isinstance(event, Noted) or event.name != REFUSED_CALL:
            continue
        keys = ("tool_name", "error_code", "error", "handle")
        name, code, message, handle = (str(event.metadata.get(key, "")) for key in keys)
        if code != "UnknownTool" and (event.agent, handle) not in seen:
            seen.add((event.agent, handle))
            yield ToolTelemetry(tool_name=name, success=False, error_code=code, error_message=message)


def as_decided(made: DecisionMade, call: ToolCall, spec: ToolSpec) -> ToolCall | ToolOutput:
    """Return the call as it was approved, or the output of a denied one."""
    if made.verdict == "approve":
        return call if made.arguments is None else replace(call, arguments=json.loads(made.arguments), text="")
    text = f"The user denied this call: {made.text}" if made.text else "The user denied this call."
    return _failed(spec.name, text, "Denied")


def refused_by_flow(name: str, decided: FlowDecided) -> ToolOutput:
    """Return the output of a call that flow rules refuse."""
    return _failed(name, f"Not allowed: {decided.reason}", "Denied")


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


def _finished(agent: str, handle: str, name: str, output: ToolOutput, began: float) -> ToolFinished:
    telemetry, fields = output.telemetry, output.lean_record()
    result = fields.pop("result", None)
    if is_large(result):
        record = json_text(result, before=f'{_json_text(fields)[:-1]},"result":', after="}")
    else:
        record = _json_text(fields if result is None else {"result": result, **fields})
    files: tuple[Mapping[str, Any], ...] = ()
    if output.files or REMOVED_FILES in output.metadata:
        removed = [{"name": name, "removed": True} for name in output.metadata.get(REMOVED_FILES, ())]
        files = (*(file.to_dict() for file in output.files), *removed)
    return ToolFinished(
        agent,
        handle,
        name,
        ok=telemetry.success,
        record=record,
        ms=_ms(began),
        note=telemetry.error_message or "",
        files=files,
    )


def recorded_output(finished: ToolFinished, load: Callable[[str], bytes]) -> ToolOutput:
    """Return the output of a recorded call, with the files that it left."""
    output = ToolOutput.from_record(json.loads(finished.record))
    if finished.files:
        output.files = tuple(File.recorded(each, load) for each in finished.files if "sha256" in each)
    return output


def _failed(name: str, text: str, code: str) -> ToolOutput:
    telemetry = ToolTelemetry(tool_name=name, success=False, error_code=code, error_message=text)
    return ToolOutput(summary=text, telemetry=telemetry)


def _recorded(request: ModelRequest, prompt: PromptSize) -> tuple[Mapping[str, Any], ...]:
    """Return what the request adds to the one before, as `ModelRequested.added` holds it."""
    if request.prompt is not None:
        return ({"prompt": mask(request.prompt[prompt.shared :])},)
    added = request.messages[prompt.kept :]
    return tuple([mask(_recorded_message(m)) for m in added])


def _recorded_message(message: Message) -> Mapping[str, Any]:
    """A message without what the journal holds already: what its server attached, and the data of its pictures."""
    if "attached" in message:
        message = Message({name: value for name, value in message.items() if name != "attached"})
    return message if type(message.get("content")) is not list else _without_pictures(message)


def _without_pictures(message: Message) -> dict[str, Any]:
    """A message with the sizes of its pictures instead of their data."""
    parts = []
    for part in message["content"]:
        picture = part.get("image_url") if isinstance(part, dict) else None
        url = str(picture.get("url", "")) if isinstance(picture, dict) else ""
        parts.append({"type": "text", "text": f"[picture, {len(url):,} characters]"} if len(url) > MAX_URL else part)
    return {**message, "content": parts}


def _recorded_tools(request: ModelRequest) -> str:
    return _json_text(
        [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in request.tools]
    )


def _json_text(value: object) -> str:
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, default=str)


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
