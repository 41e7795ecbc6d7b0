"""The requests of one agent to its model: each is journaled before and after, and its reply reused on resume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.codec import json_of_any
from closeout.compat.history_methods import as_reply, asks_by_methods, complete_by_methods, name_method
from closeout.context.keeper import ContextKeeper, PromptSize, message_size
from closeout.errors import (
    CloseoutError,
    CostReached,
    Failure,
    Interrupted,
    JournalError,
    LimitReached,
    ModelError,
    ModelTimeout,
)
from closeout.journal.events import Event, ModelFailed, ModelReplied, ModelRequested, ModelRetried
from closeout.journal.recorded import CANCELLED, REPLY_INTERRUPTED
from closeout.journal.token_record import dump_tokens, load_tokens
from closeout.messages import Message, ModelReply, ModelRequest, RequestInfo, Usage
from closeout.models.base import BaseClient, OnDelta, RunRequest, price_of
from closeout.models.retry import OnRetry, Retries, RetryNote, RetryPolicy
from closeout.redaction import mask, redact
from closeout.run.middleware.chain import Sending, wrap
from closeout.run.plan import Scope
from closeout.run.request_deadline import ReplyInterrupted, RequestDeadline

__all__ = ["ModelCalls"]

UNPRICED = (
    "max_cost cannot be kept: the price of {} is unknown. Set max_tokens or max_seconds instead, "
    "or state the price as llm.prices={{MODEL: [INPUT, OUTPUT]}}, in dollars per million tokens."
)

MAX_URL = 2048  # characters of a picture's address in the record of a request; longer ones contain the picture


class _GivenUp(CloseoutError):
    """A request is not sent again, because there is another form of it."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(str(error))
        self.error = error


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
        self._complete: Callable[..., Awaitable[Any]] = client.complete
        self._by_methods = asks_by_methods(client)
        if self._by_methods:
            run = RunRequest(keep_tool_result=keep_tool_result, task_log=scope.task_log, agent_type=scope.agent_type)
            self._complete = partial(complete_by_methods, client, run=run)
        self._retry = client.retry or retry or RetryPolicy()
        self._journal = scope.journal
        self._agent = scope.path
        self._budget = scope.budget
        self._keeper = keeper
        self._record_prompts = scope.run.record_prompts
        self._send = wrap(scope.chain, "send", self._send_request)
        self._prices = scope.prices
        self._price = price_of(client, scope.prices)
        self._budget.tariff = price_of(client, scope.prices, "least_price")
        # Returns True if a request is not to be sent again after an error.
        self.gives_up: Callable[[ModelError], bool] = lambda _: False
        self.sent = 0  # requests so far: the number of the next one
        self._tokens: tuple[int, ...] = ()  # ids of the last prompt and its reply, if the server states them
        self._warn = scope.warn
        self._warnings: set[str] = set()  # each is noted once

    async def request(
        self,
        request: ModelRequest,
        info: RequestInfo,
        *,
        on_delta: OnDelta | None = None,
        on_retry: OnRetry | None = None,
    ) -> ModelReply:
        """Send a request, or return the recorded reply. A request that is not for a turn must fit into the budget.

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
        budget = self._budget
        expected = self._keeper.expected_tokens(request, prompt) if budget.limited else 0
        if info.purpose != "act" and (limit := self._exceeded(expected)):
            stated = budget.stated(limit)
            raise LimitReached(limit, f"One more request to the model would exceed the limit {stated}.")
        self.sent += 1
        exchange = Sending(
            request=request,
            intent=intent,
            tokens=expected,
            client=self._client,
            price=self._price,
            seconds_left=lambda closing: budget.seconds_left(closing=closing),
            note=self._warn,
            on_delta=on_delta,
            on_retry=[] if on_retry is None else [on_retry],
        )
        budget.request_pending = True
        try:
            send, lost = partial(self._send, exchange), partial(self._lost, exchange)
            outcome = await self._journal.effect(intent, send, failed=self._charge_lost, lost=lost)
        finally:
            budget.request_pending = False
        if isinstance(outcome, ModelFailed):
            usage = Usage(**outcome.usage)
            self._charge(usage, outcome.ms, expected)
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
        self._charge(reply.usage, outcome.ms, expected)
        if intent.call == 0 and reply.usage.cost_usd is None and budget.limits_cost:
            self._warn("Budget", UNPRICED.format(self._client.name))
        self._keeper.learn(prompt, reply.usage)
        return reply

    def can_close(self, messages: Sequence[Message]) -> bool:
        """Return whether the rest of the budget allows a closing request with these messages."""
        return not self._exceeded(self._keeper.tokens_of(sum(map(message_size, messages))) + self._budget.closing)

    def _exceeded(self, tokens: int) -> str:
        """Return the limit that a prompt of so many tokens would exceed; else empty."""
        budget = self._budget
        # The estimate may be a little too low.
        return budget.forbids(tokens + tokens // 50, budget.last.output_tokens) if budget.limited else ""

    async def _send_request(self, exchange: Sending) -> ModelReplied | ModelFailed:
        intent = exchange.intent
        call, listener = intent.call, exchange.listener

        def retried(note: RetryNote) -> None:
            if self.gives_up(note.error):
                raise _GivenUp(note.error)
            self._journal.append(ModelRetried(self._agent, call, str(note.error), wait=note.delay))
            if listener is not None:
                listener.discard()
            exchange.retried(note)
            exchange.lost = note.error.usage or exchange.lost
            self._check_cost(exchange)

        began, retries = time.perf_counter(), Retries(self._retry, retried)
        ask = partial(self._complete, step_id=intent.turn + 1) if self._by_methods else self._complete
        may_act = RequestInfo(intent.purpose).may_act
        seconds = self._budget.seconds_left(closing=not may_act)
        interrupted = partial(self._interrupted, exchange) if may_act else None
        try:
            async with RequestDeadline(seconds, self._journal.inbox, self._agent, interrupted):
                self._check_cost(exchange)
                while True:
                    try:
                        returned = await ask(exchange.request, on_delta=exchange.on_delta, on_retry=retried)
                        reply = as_reply(self._client, returned)
                        break
                    except Exception as error:
                        name_method(self._client, error)
                        await retries.wait(error)
        except (ModelError, CostReached) as error:
            failed: ModelError | CostReached = error
        except _GivenUp as given_up:
            failed = given_up.error
        except TimeoutError:
            text = "The time allowed for this run (max_seconds) ran out while the model was writing."
            failed = ModelTimeout(text, usage=self._unfinished(exchange))
        except asyncio.CancelledError:
            failure = Failure(CANCELLED, "The request was cancelled.")
            lost = ModelFailed.of(self._agent, call, failure, usage=self._unfinished(exchange), ms=_ms(began))
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
                    self._warn("Model", warning)
            return ModelReplied.of(self._agent, call, reply, _ms(began), dump_tokens(reply.tokens, self._tokens))
        if listener is not None:
            listener.discard()
        exchange.error = failed
        spent = failed.usage and self._priced(failed.usage)
        return ModelFailed.of(self._agent, call, Failure.of(failed), usage=spent, ms=_ms(began))

    def _check_cost(self, exchange: Sending) -> None:
        """Raise CostReached if `max_cost` has no room for a request at the price of the model that is asked now."""
        if not self._budget.limits_cost:
            return
        tariff, lost = price_of(self._client, self._prices, "next_price"), self._priced(exchange.lost)
        prompt = 0 if RequestInfo(exchange.intent.purpose).may_act else exchange.tokens
        if self._budget.too_dear(tariff, lost.cost_usd or 0.0, prompt):
            limit = self._budget.stated("max_cost")
            raise CostReached(f"One more request to the model would exceed the limit {limit}.", usage=lost)

    def _priced(self, usage: Usage) -> Usage:
        """Return the usage with its cost, if the client has not computed it and the price is known."""
        return usage if self._price is None or usage.cost_usd is not None else self._price.of(usage)

    def _charge(self, usage: Usage, ms: float, tokens: int) -> None:
        self._budget.charge(usage)
        if tokens and usage.requests > 1:  # the usage of all attempts says little about the size of one
            usage = replace(usage, input_tokens=min(usage.input_tokens, tokens))
        self._budget.note_request(usage, ms / 1000)

    def _charge_lost(self, failed: Event) -> None:
        """Charge a request that was sent again afterwards: it does not predict the size of the next one."""
        assert isinstance(failed, ModelFailed)
        self._budget.charge(Usage(**failed.usage))

    def _lost(self, exchange: Sending) -> ModelFailed:
        """Return the failure of a request that was under way when the process died, with what it cost at least."""
        failure = Failure(CANCELLED, "The program stopped while this request was under way.")
        return ModelFailed.of(self._agent, exchange.intent.call, failure, usage=self._unfinished(exchange), ms=0.0)

    def _interrupted(self, exchange: Sending) -> ReplyInterrupted:
        text = "A message of the user's interrupted the reply."
        return ReplyInterrupted(text, usage=self._unfinished(exchange))

    def _unfinished(self, exchange: Sending) -> Usage:
        """Estimate a request whose reply was not awaited: the server has read the prompt, whatever it wrote."""
        read = exchange.tokens or self._keeper.tokens_of(exchange.intent.size)
        now = Usage(read, requests=1, cost_usd=self._budget.cost_of(read, 0, self._price))
        return self._priced(exchange.lost) + now if exchange.lost.requests else now

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
    return json_of_any(
        [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in request.tools]
    )


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
