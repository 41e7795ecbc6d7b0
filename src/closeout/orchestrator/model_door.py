"""The model's side of the one door: a client that journals every request before and after, and replays on resume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.codec import shared_prefix
from closeout.errors import JournalError, LimitReached, ModelError, ModelTimeout, error_type
from closeout.journal.events import Event, ModelFailed, ModelReplied, ModelRequested, ModelRetried, Noted, usage_record
from closeout.journal.journal import Journal
from closeout.journal.past import CANCELLED
from closeout.llm.base import BaseClient, CreatedMessage, OnDelta, OnRetry, RetryNote
from closeout.messages import Message, ModelReply, ModelRequest, Usage
from closeout.orchestrator.limits import Budget
from closeout.orchestrator.streaming import ReplyListener

__all__ = ["JournaledClient", "error_of", "message_size"]

UNPRICED = (
    "max_cost cannot be kept: the price of {} is not known. Limit max_tokens or max_seconds, "
    "or say it with llm.prices={{MODEL: [INPUT, OUTPUT]}}, in dollars per million tokens."
)
USUAL_DENSITY = 0.3  # tokens for a character of a prompt, before the server has counted one
LEAST_DENSITY = 0.2  # what a counted growth is taken for at least: a repeated text has next to none


class JournaledClient(BaseClient):
    """A client for one agent of one run. What it cost is this agent's; the inner client may serve many runs.

    The loop says before a request what it is for: `purpose`, `attempt`, `turn`, `note` go into the journal.
    """

    def __init__(self, inner: BaseClient, journal: Journal, agent: str, budget: Budget) -> None:
        self.inner = inner
        self.name = inner.name
        self.capabilities = inner.capabilities
        self.purpose = "act"
        self.attempt = 0
        self.turn = 0
        self.note = ""
        self.prompt_tokens = 0  # of the last request, as the server counted
        self.growth = (0, 0)  # characters and tokens that the last request had more than the one that it extends
        self._counted = 0  # characters of the last request that the server counted
        self._base = (0, 0)  # characters and tokens of the last prompt that the server counted
        self._rate = USUAL_DENSITY  # tokens for a character more
        self.listener: ReplyListener | None = None  # for requests made through the message-history face
        self.to_prompt: Callable[[Sequence[Message]], str] | None = None  # for endpoints that take text only
        self._journal = journal
        self._agent = agent
        self._budget = budget
        self._calls = 0
        self._last: ModelRequest = ModelRequest()
        self._sizes: list[int] = []  # characters up to and including each message of the last request

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        if request.prompt is None and self.to_prompt is not None:
            request = _as_prompt(request, self.to_prompt)
        if self.purpose != "act" and request.tools:
            # The tools stay in the request, since leaving them out would break the cached prefix.
            request = replace(request, tool_choice="none")
        call = self._calls
        intent = self._intent(call, request)
        if self.purpose != "act":
            self._refuse_beyond_budget(intent.size)
        self._calls += 1
        live: list[ModelReply] = []
        self._budget.asking = True
        try:
            outcome = await self._journal.effect(
                intent, partial(self._ask, intent, request, on_delta, on_retry, live), failed=self._charge_lost
            )
        finally:
            self._budget.asking = False
        if isinstance(outcome, ModelFailed):
            usage = Usage(**outcome.usage)
            self._charge(usage, outcome.ms)
            raise error_of(outcome, usage)
        assert isinstance(outcome, ModelReplied)
        reply = live[0] if live else outcome.reply()
        self._charge(reply.usage, outcome.ms)
        if call == 0 and reply.usage.cost_usd is None and self._budget.limits_cost:
            self._journal.append(Noted(self._agent, "warning", "Budget", UNPRICED.format(self.name)))
        self._learn(intent, reply.usage)
        return reply

    def _learn(self, intent: ModelRequested, usage: Usage) -> None:
        """What the server's count says of the prompt's size, and of what was added to it."""
        before, self.prompt_tokens = self.prompt_tokens, usage.input_tokens
        extends = usage.requests == 1 and intent.shared == self._counted > 0
        self.growth = (intent.size - intent.shared, usage.input_tokens - before) if extends else (0, 0)
        self._counted = 0
        if usage.requests == 1 and intent.size and usage.input_tokens:
            characters, tokens = self.growth
            if characters and tokens > 0:
                self._rate = max(tokens / characters, LEAST_DENSITY)
            elif self._base == (0, 0):  # tools and frame are in the tokens, and not in the characters
                self._rate = min(max(usage.input_tokens / intent.size, LEAST_DENSITY), 1.0)
            self._counted = intent.size
            self._base = (intent.size, usage.input_tokens)

    async def create_message(self, *, keep_tool_result: int = -1, **options: Any) -> CreatedMessage:
        """As of any client, but with the results that the history has: what leaves it is in the journal."""
        if self.listener is not None:
            self.listener.begin()
        return await super().create_message(on_delta=self.listener, **options)

    def _refuse_beyond_budget(self, size: int) -> None:
        """Closing may take several requests; one that would go beyond a limit is not made."""
        limit = self._forbidden(size)
        if limit:
            raise LimitReached(limit, f"One more request to the model would go beyond the limit ({limit}).")

    def _forbidden(self, size: int, added: int = 0) -> str:
        """The limit that a prompt of so many characters, and tokens beside them, would go beyond; or empty."""
        budget = self._budget
        return budget.forbids(self._tokens_of(size) + added + budget.last.output_tokens) if budget.limited else ""

    def can_close(self, messages: Sequence[Message]) -> bool:
        """Whether what is left of the budget allows a closing request with these messages."""
        return not self._forbidden(sum(map(message_size, messages)), self._budget.closing)

    def _tokens_of(self, size: int) -> int:
        """Tokens of a prompt of so many characters: what the server counted for the last one, and what differs."""
        characters, tokens = self._base
        return max(int(tokens + (size - characters) * self._rate), 0)

    def _charge(self, usage: Usage, ms: float) -> None:
        self.charge(usage)
        self._budget.charge(usage)
        self._budget.note_request(usage, ms / 1000)

    def _charge_lost(self, failed: Event) -> None:
        """What a request cost after which the same was asked again: it says nothing of the next one's size."""
        assert isinstance(failed, ModelFailed)
        usage = Usage(**failed.usage)
        self.charge(usage)
        self._budget.charge(usage)

    def _unheard(self, size: int) -> Usage:
        """What a request costs whose reply was not waited for: the server has read the prompt, whatever it wrote."""
        spent = self._tokens_of(size)
        return Usage(spent, requests=1, cost_usd=spent * self._budget.price)

    async def _ask(
        self,
        intent: ModelRequested,
        request: ModelRequest,
        on_delta: OnDelta | None,
        on_retry: OnRetry | None,
        live: list[ModelReply],
    ) -> ModelReplied | ModelFailed:
        call = intent.call
        listener = on_delta if isinstance(on_delta, ReplyListener) else None

        def retried(note: RetryNote) -> None:
            self._journal.append(ModelRetried(self._agent, call, str(note.error), note.delay))
            if listener is not None:
                listener.void()
            if on_retry is not None:
                on_retry(note)

        began = time.perf_counter()
        try:
            seconds = self._budget.seconds_left(closing=self.purpose != "act")
            if seconds is None:
                reply = await self.inner.complete(request, on_delta=on_delta, on_retry=retried)
            else:
                async with asyncio.timeout(seconds):
                    reply = await self.inner.complete(request, on_delta=on_delta, on_retry=retried)
        except ModelError as error:
            failed = error
        except TimeoutError:
            text = "The time allowed for this run (max_seconds) ran out while the model was writing."
            failed = ModelTimeout(text, usage=self._unheard(intent.size))
        except asyncio.CancelledError:
            usage = usage_record(self._unheard(intent.size))
            lost = ModelFailed(self._agent, call, CANCELLED, "The request was cancelled.", usage, None, _ms(began))
            self._charge_lost(lost)
            with suppress(JournalError):
                self._journal.append(lost)
            raise
        else:
            live.append(reply)
            return ModelReplied.of(self._agent, call, reply, _ms(began))
        if listener is not None:
            listener.void()
        return self._failure(call, failed, began)

    def _failure(self, call: int, error: ModelError, began: float) -> ModelFailed:
        usage = usage_record(error.usage)
        return ModelFailed(self._agent, call, type(error).__name__, str(error), usage, error.status, _ms(began))

    # ------------------------------------------------------------------------------------ what was shared

    def _intent(self, call: int, request: ModelRequest) -> ModelRequested:
        size, shared = self._measure(request)
        return ModelRequested(
            self._agent, call, self.attempt, self.turn, self.purpose, len(request.messages), size, shared,
            request.temperature, self.note,
        )  # fmt: skip

    def _measure(self, request: ModelRequest) -> tuple[int, int]:
        """Characters of the prompt, and how many at its start were in the request before."""
        last, self._last = self._last, request
        if request.prompt is not None:
            return len(request.prompt), shared_prefix(last.prompt or "", request.prompt)
        same = 0
        if request.tools != last.tools:
            pass
        elif request.messages[: len(last.messages)] == last.messages:
            same = len(last.messages)
        else:
            for before, now in zip(last.messages, request.messages, strict=False):
                if before is not now and before != now:
                    break
                same += 1
        sizes = self._sizes
        del sizes[same:]
        size = shared = sizes[-1] if sizes else 0
        for message in request.messages[same:]:
            size += message_size(message)
            sizes.append(size)
        return size, shared


def message_size(message: Message) -> int:
    """Characters of a message as `ModelRequested.size` counts them."""
    size = len(message.text)
    for call in message.get("tool_calls") or ():
        size += len(call["function"]["arguments"])
    return size


def _as_prompt(request: ModelRequest, to_prompt: Callable[[Sequence[Message]], str]) -> ModelRequest:
    return replace(request, prompt=to_prompt(request.messages), messages=(), tools=(), tool_choice=None)


def error_of(failed: ModelFailed, usage: Usage) -> ModelError:
    """The exception that a recorded failure was, as far as it is one of ours; else a ModelError that says the same."""
    kind = error_type(failed.kind)
    if kind is None or not issubclass(kind, ModelError):
        kind = ModelError
    return kind(failed.error, status=failed.status, usage=usage)


def _ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
