"""Several models in order of preference: one that cannot answer a request is replaced by the next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from weakref import WeakKeyDictionary

from closeout.errors import (
    ContextOverflow,
    ModelError,
    ModelTimeout,
    PermanentModelError,
    RateLimited,
    TransientModelError,
    UsageError,
)
from closeout.messages import Capabilities, ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry, RetryNote, price_of
from closeout.models.catalog import Price
from closeout.models.retry import MISTAKES, RetryPolicy, as_model_error, complete_with_retries

__all__ = ["CONDITIONS", "Fallback", "FallbackClient"]

CONDITIONS = ("refusal", "overload", "rate_limit", "time", "context")
FIRST_WAIT = 1.0  # seconds that a model is left alone after its first failure; doubled by each further one
LONGEST_WAIT = 60.0
# Capabilities that a conversation may use only if every model has them.
_SHARED = ("chat", "completions", "native_tools", "stop", "streaming", "json_schema", "grammar", "images", "known")


@dataclass(frozen=True)
class Fallback:
    """Models in order of preference, for `Agent(model=…)`. A list of models means `Fallback(models)`.

    Args:
        models: Names, clients, or mappings with `model`, `base_url` and `api_key`, the preferred one first.
        on: When the next model is asked: `"refusal"` (the vendor filtered the reply), `"overload"` (the server failed
            or cannot be reached), `"rate_limit"`, `"time"` (the reply did not come in time), `"context"` (the prompt is
            too long for the model).
        seconds: How long a reply may take before the next model is asked. None: as long as `llm.timeout`.
        max_cost: US dollars that a run may spend on a model before it continues with the next one.
        malformed: Rolled-back replies in a row after which a turn continues with the next model. None: it never does.

    Raises:
        UsageError: An argument is wrong.
    """

    models: Sequence[str | BaseClient | Mapping[str, Any]]
    on: Sequence[str] = CONDITIONS
    seconds: float | None = field(default=None, kw_only=True)
    max_cost: float | None = field(default=None, kw_only=True)
    malformed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.models, list | tuple) or len(self.models) < 2:
            raise UsageError(
                f"Fallback needs a list of two or more models, got {self.models!r:.80}. "
                "Write Fallback(['openai:a', 'anthropic:b'])."
            )
        on = (self.on,) if isinstance(self.on, str) else tuple(self.on)
        object.__setattr__(self, "on", on)
        unknown = [condition for condition in on if condition not in CONDITIONS]
        if unknown:
            raise UsageError(f"Fallback has no condition {unknown[0]!r}. Choose from {', '.join(CONDITIONS)}.")
        for name in ("seconds", "max_cost", "malformed"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} of a Fallback must be greater than 0, got {value!r}. Or leave it out.")


@dataclass(slots=True, weakref_slot=True)
class CircuitBreaker:
    """The recent failures of a model's server. While it is open, runs ask another model."""

    failures: int = 0
    opened: float = 0.0
    until: float = 0.0

    def begin(self) -> float:
        """Note a request and return its time. After a failure, one request tries and others wait for it."""
        now = time.monotonic()
        if self.failures:
            self.until = max(self.until, now + self._wait())
        return now

    def fail(self, error: ModelError, began: float) -> None:
        """Note a failure. One of a request that began before the last failure says nothing new."""
        if began >= self.opened:
            self.failures += 1
            self.opened = time.monotonic()
        self.until = max(self.until, self.opened + max(self._wait(), error.retry_after or 0.0))

    def succeed(self) -> None:
        self.failures, self.until = 0, 0.0

    def _wait(self) -> float:
        return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self.failures - 1, 16))


# Shared by the process: a server that is down is down for every run. Keyed by model and address; a client without an
# address has a breaker of its own.
_BREAKERS: dict[str, CircuitBreaker] = {}
_OWN_BREAKERS: WeakKeyDictionary[BaseClient, CircuitBreaker] = WeakKeyDictionary()


def _breaker_of(client: BaseClient) -> CircuitBreaker:
    address = getattr(client, "base_url", "")
    if not address:
        return _OWN_BREAKERS.setdefault(client, CircuitBreaker())
    return _BREAKERS.setdefault(f"{client.name} {address}", CircuitBreaker())


class FallbackClient(BaseClient):
    """Asks the first of several clients that can answer.

    What concerns a server (it is overloaded, limits the rate, takes too long) is known to all runs of the process: the
    server is left alone for a while. What concerns a run (the model refused, its context is too short, its share of the
    cost is spent, its replies were malformed) makes that run continue with the next model.

    Args:
        clients: The clients, the preferred one first.
        rules: When the next one is asked.
        retry: How often all of them are asked again if none could answer.
        prices: The prices that the settings state, for clients that do not know theirs.
    """

    def __init__(
        self,
        clients: Sequence[BaseClient],
        rules: Fallback,
        retry: RetryPolicy,
        prices: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.clients = tuple(clients)
        self._labels = _labels(self.clients)
        self.name = " | ".join(self._labels)
        self.scripted = all(client.scripted for client in clients)
        self.missing_key = next((client.missing_key for client in clients if client.missing_key), "")
        self._prices = [price_of(client, prices) for client in clients]
        self._stated_prices = prices
        self.price = _highest(self._prices)
        replies = [client.max_reply for client in clients]
        self.max_reply = None if None in replies else max(each for each in replies if each is not None)
        self._rules = rules
        self._retry = retry
        self._breakers = [_breaker_of(client) for client in clients]
        self._asked: int | None = None  # the model that is asked now
        self._first = 0  # the model that this run prefers now
        self._spare: list[int] = []  # models that it left for their replies: asked again only if no other can answer
        self._cost = [0.0] * len(self.clients)  # the cost of this run, by model
        self._notes: list[str] = []  # warnings for the next reply
        self._knows_cost = rules.max_cost is None or self.price is not None

    def for_run(self) -> Self:
        return type(self)(self.clients, self._rules, self._retry, self._stated_prices)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # clients learn theirs while they are used
        found = [client.capabilities for client in self.clients]
        shared: dict[str, Any] = {name: all(getattr(each, name) for each in found) for name in _SHARED}
        return replace(found[0], **shared, max_context=self._longest([each.max_context for each in found]))

    async def context_length(self) -> int | None:
        return self._longest([await client.context_length() for client in self.clients])

    def _longest(self, lengths: Sequence[int | None]) -> int | None:
        """Return the size of the context that a run may use."""
        if "context" not in self._rules.on:
            lengths = lengths[:1]
        known = [length for length in lengths if length is not None]
        return max(known) if len(known) == len(lengths) else None

    @property
    def least_price(self) -> Price | None:
        known = [price for price in self._prices if price is not None]
        if len(known) < len(self._prices):  # nothing says that a request costs anything
            return Price(0.0, 0.0)
        least = min(min(price.input, price.input if price.cache_read is None else price.cache_read) for price in known)
        return Price(least, min(price.output for price in known))

    @property
    def next_price(self) -> Price | None:
        return self._prices[self._chosen()[0] if self._asked is None else self._asked]

    @property
    def usage(self) -> Usage:
        return sum((client.usage for client in self.clients), Usage())

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()

    # -------------------------------------------------------------------------------------------- what a run tells

    def recall(self, reply: ModelReply) -> None:
        if reply.model in self._labels:
            self._cost[self._labels.index(reply.model)] += reply.usage.cost_usd or 0.0

    def rolled_back(self, times: int) -> None:
        every = self._rules.malformed
        if every is not None and times and times % every == 0:
            self._leave(self._first, spare=True, because="malformed")

    def _leave(self, number: int, *, spare: bool = False, because: str = "") -> None:
        """Continue the run with the models after this one. The next reply says so if a reason is given."""
        if spare and number not in self._spare:
            self._spare.append(number)
        before, self._first = self._first, min(max(self._first, number + 1), len(self.clients) - 1)
        if because and self._first > before:
            self._notes.append(f"{self._labels[self._first]} is asked instead of {self._labels[number]} ({because}).")

    # -------------------------------------------------------------------------------------------- requests

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        try:
            reply, spent = await complete_with_retries(
                lambda _: self._ask_in_turn(request, on_delta, on_retry),  # each client has a timeout of its own
                policy=self._retry,
                timeout=request.timeout,
                on_retry=on_retry,
            )
        finally:
            self._asked = None
        return replace(reply, usage=spent + reply.usage) if spent.requests else reply

    async def _ask_in_turn(
        self, request: ModelRequest, on_delta: OnDelta | None, on_retry: OnRetry | None
    ) -> ModelReply:
        """Ask one model after the other until one answers.

        Raises:
            ModelError: None did. The first error that may pass, else the last one.
        """
        spent, errors, warnings = Usage(), dict[str, ModelError](), list[str]()
        chosen = self._chosen()
        for place, number in enumerate(chosen):
            self._asked = number
            following = self._label_at(chosen, place + 1)
            client, asked, breaker = self.clients[number], self._labels[number], self._breakers[number]
            limit = self._rules.seconds if following and "time" in self._rules.on else None
            began = breaker.begin()
            try:
                reply = await client.complete(
                    request if limit is None else replace(request, timeout=min(limit, request.timeout or limit)),
                    on_delta=on_delta,
                    on_retry=_adding(spent, on_retry),
                )
            except Exception as raised:
                error = _model_error(raised, client)
                usage = self._priced(number, error.usage or Usage(requests=1))
                error.usage = spent = spent + usage
                self._cost[number] += usage.cost_usd or 0.0
                condition = _condition(error)
                if condition not in self._rules.on:
                    raise error from None
                if isinstance(error, TransientModelError):
                    breaker.fail(error, began)
                    if not following:
                        chosen += [spare for spare in self._spare if spare not in chosen]
                        following = self._label_at(chosen, place + 1)
                errors[asked] = error
                why: ModelError = error
            else:
                breaker.succeed()
                used = self._priced(number, reply.usage)
                self._cost[number] += used.cost_usd or 0.0
                refused = reply.finish_reason == "content_filter" and "refusal" in self._rules.on
                if not (refused and following):
                    usage = spent + used if spent.requests else used
                    notes, self._notes = self._notes, []
                    if not self._knows_cost and used.cost_usd is None:
                        self._knows_cost = True  # said once
                        notes.append(f"max_cost of the Fallback cannot be kept: the price of {asked} is unknown.")
                    return replace(reply, usage=usage, model=asked, warnings=(*reply.warnings, *notes, *warnings))
                spent = spent + used
                condition, why = "refusal", PermanentModelError("The reply was refused.")
            if condition in ("refusal", "context"):
                self._leave(number, spare=condition == "refusal")
            if following:
                warnings.append(f"{following} was asked instead of {asked} ({condition}).")
                self._asked = chosen[place + 1]
                if on_retry is not None:
                    on_retry(_note(why, place, len(chosen), asked=asked, following=following, spent=spent))
        found = list(errors.values())
        last = next((error for error in found if isinstance(error, TransientModelError)), found[-1])
        last.usage = spent
        if len(errors) > 1:
            last.args = ("No model answered. " + " ".join(f"{label}: {error}" for label, error in errors.items()),)
        raise last

    def _priced(self, number: int, usage: Usage) -> Usage:
        """Return the usage of a request to a model with its cost, if its price is known."""
        price = self._prices[number]
        return usage if price is None or usage.cost_usd is not None else price.of(usage)

    def _label_at(self, chosen: Sequence[int], place: int) -> str:
        return self._labels[chosen[place]] if place < len(chosen) else ""

    def _chosen(self) -> list[int]:
        """Return the numbers of the models to ask, in order: at least one."""
        cap, last = self._rules.max_cost, len(self.clients) - 1
        while cap is not None and self._first < last and self._cost[self._first] >= cap:
            self._leave(self._first, because="max_cost")
        left, now = range(self._first, last + 1), time.monotonic()
        closed = [number for number in left if self._breakers[number].until <= now]
        return closed or sorted(left, key=lambda number: self._breakers[number].until)


def _highest(prices: Sequence[Price | None]) -> Price | None:
    """Return a price that none of several exceeds, None if one is unknown."""
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    inputs = [max(each.input, each.cache_read or 0.0, each.cache_write or 0.0) for each in known]
    return Price(max(inputs), max(each.output for each in known))


def _labels(clients: Sequence[BaseClient]) -> list[str]:
    """Return the names of the clients; of those with the same name, with the address or the place in the list."""
    names = [client.name for client in clients]
    places = [getattr(client, "base_url", "") or number for number, client in enumerate(clients, 1)]
    return [
        name if names.count(name) == 1 else f"{name} at {place}" if isinstance(place, str) else f"{name} #{place}"
        for name, place in zip(names, places, strict=True)
    ]


def _model_error(error: Exception, client: BaseClient) -> ModelError:
    """Return an exception of a client as a ModelError; raises others, see `as_model_error`."""
    if isinstance(error, MISTAKES):
        error.add_note(f"{type(client).__name__}.complete raised it.")
    found = as_model_error(error)
    if client.retry is not None and not client.retry.retries:
        found.retried = False  # asked only once, and may be asked again after the others
    return found


def _condition(error: ModelError) -> str:
    """Return the condition that an error is, empty for a mistake of the caller such as a wrong key."""
    kinds: Sequence[tuple[type[ModelError], str]] = (
        (ContextOverflow, "context"),
        (RateLimited, "rate_limit"),
        (ModelTimeout, "time"),
        (TransientModelError, "overload"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "")


def _adding(spent: Usage, on_retry: OnRetry | None) -> OnRetry | None:
    """Return what passes on the retries of a model, with what those before it have used."""

    def retried(note: RetryNote) -> None:
        assert on_retry is not None
        note.error.usage = spent + (note.error.usage or Usage())
        on_retry(note)

    return retried if on_retry is not None and spent.requests else on_retry


def _note(error: ModelError, place: int, number: int, asked: str, following: str, spent: Usage) -> RetryNote:
    text = f"{asked}: {error} Asking {following}."
    told = type(error)(text, status=error.status, retry_after=error.retry_after, usage=spent)
    return RetryNote(place + 1, number, 0.0, told)
