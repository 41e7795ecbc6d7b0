"""Keeps a run's requests within the budgets of their keys: each is reserved at its largest cost, and settled after."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from closeout.budget_limits import NANO, BudgetLimit, read_limits
from closeout.codec import encode_json
from closeout.errors import BudgetReached, CostReached, LimitReached, ModelUnreachable, UsageError
from closeout.homes import Home
from closeout.journal.events import ModelFailed, ModelReplied
from closeout.journal.ledger import Amount, Ledger, Refusal, open_ledger
from closeout.messages import Message, ModelRequest, Usage
from closeout.models.base import BaseClient
from closeout.models.catalog import Price
from closeout.models.fallback import FallbackClient
from closeout.run.limits import CLOSING_TOKENS

__all__ = ["PromptBound", "Reservation", "Reservations", "check_replies", "open_reservations"]

# A token is at least one byte of the prompt. What a server adds itself: marks around messages, its own text on tools.
TOKENS_OF_REQUEST = 1000
TOKENS_OF_MESSAGE = 16
TOKENS_OF_PICTURE = 50_000  # Above the count in any vendor's documentation.
NOTHING = Amount(requests=0)
FIRST_POLL, LONGEST_POLL = 0.01, 0.25  # seconds between looks at requests under way
LONGEST_POLL_FOR_PLACE = 1.0  # seconds between looks at other runs
LONGEST_SLEEP = 30.0  # a wait for the next period looks at the clock, which may be set meanwhile


def open_reservations(budget: Mapping[str, str | list[str]], home: Home | None) -> Reservations:
    """Return the budgets of a run, which the ledger of a home keeps. Raises UsageError without a home."""
    if home is None:
        raise UsageError(
            "A budget is kept in the agent's home, and home=False keeps runs in memory. Pass a home, or use max_cost."
        )
    return Reservations(open_ledger(home), read_limits(budget))


def check_replies(budget: Mapping[str, str | list[str]], client: BaseClient, max_tokens: int | None) -> None:
    """Raise UsageError if a budget cannot be kept because nobody knows how long a reply can be."""
    if not (max_tokens or client.max_reply or client.capabilities.max_context):
        _refuse_unknown_reply([limit for limit in read_limits(budget) if limit.unit != "runs"], client)


def _refuse_unknown_reply(limits: Sequence[BudgetLimit], client: BaseClient) -> None:
    if any(limit.unit != "requests" for limit in limits):
        raise UsageError(f"A budget needs to know how long a reply of {client.name} can be. Pass max_tokens=4096.")


class PromptBound:
    """The most tokens that the prompts of one agent can have, by their bytes and by what the server has counted."""

    def __init__(self, *, learns: bool = True) -> None:
        self._learns = learns  # False: the models that answer may count differently
        self._sent: Sequence[Message] = ()
        self._tools: object = ()
        self._counted = 0  # tokens of the last prompt, as its server counted them

    def tokens(self, request: ModelRequest) -> int:
        """Return the most tokens that the prompt of a request can have."""
        if request.prompt is not None:
            return len(request.prompt.encode("utf-8", "surrogatepass")) + TOKENS_OF_REQUEST
        sent, messages = self._sent, request.messages
        if self._counted and self._tools == request.tools and list(messages[: len(sent)]) == list(sent):
            return self._counted + TOKENS_OF_MESSAGE + sum(map(_tokens, messages[len(sent) :]))
        tools = [[tool.name, tool.description, tool.parameters] for tool in request.tools]
        return TOKENS_OF_REQUEST + len(encode_json(tools)) + sum(map(_tokens, messages))

    def learn(self, request: ModelRequest, usage: Usage) -> None:
        """Keep what the server counted."""
        if self._learns:
            self._sent, self._tools, self._counted = request.messages, request.tools, usage.input_tokens


def _tokens(message: Message) -> int:
    return len(encode_json(message)) + TOKENS_OF_MESSAGE + message.pictures * TOKENS_OF_PICTURE


@dataclass(frozen=True, slots=True)
class _LargestCost:
    """The largest cost of one request."""

    price: Price
    prompt: int
    reply: int

    @property
    def amount(self) -> Amount:
        return Amount(self._input + math.ceil(self.reply * self.price.output * NANO / 1e6), self.prompt + self.reply)

    @property
    def _input(self) -> int:
        dearest = max(self.price.input, self.price.cache_read or 0.0, self.price.cache_write or 0.0)
        return math.ceil(self.prompt * dearest * NANO / 1e6)

    def within(self, refusal: Refusal) -> _LargestCost | None:
        """Return the cost with a reply that the rest of a limit allows, None if that is too short for an answer."""
        left, unit = refusal.left, refusal.limit.unit
        if unit == "requests":
            return None
        if unit == "USD":
            reply = int((left - self._input) / (self.price.output * NANO / 1e6)) if self.price.output else 0
        else:
            reply = left - self.prompt
        return replace(self, reply=reply) if CLOSING_TOKENS <= reply < self.reply else None


class Reservations:
    """The budgets that the requests of a run and of its sub-agents are charged to.

    `above` are the keys among whose runs the run has a place already.
    """

    def __init__(self, ledger: Ledger, limits: Sequence[BudgetLimit], above: frozenset[str] = frozenset()) -> None:
        self._ledger = ledger
        self._limits = tuple(limit for limit in limits if limit.unit != "runs")
        self._at_once = tuple(limit for limit in limits if limit.unit == "runs" and limit.key not in above)
        self._above = above | {limit.key for limit in self._at_once}
        self._place = ""  # the reservation of the run's place
        self._taking = asyncio.Lock()
        self._agents = 0  # agents at work that share it
        self._counts_cost = any(limit.unit == "USD" for limit in limits)

    def with_budget(self, budget: Mapping[str, str | list[str]]) -> Reservations:
        """Return the same for an agent below, whose requests are charged to further keys too."""
        limits = tuple(dict.fromkeys((*self._limits, *read_limits(budget))))
        return Reservations(self._ledger, limits, self._above)

    def begin(self) -> None:
        """Note that an agent has begun. `end` follows."""
        self._agents += 1

    async def end(self) -> None:
        """Give the run's place back when all agents have ended that share it."""
        self._agents -= 1
        if self._place and not self._agents:
            place, self._place = self._place, ""
            await self.settle_off_loop(place, NOTHING)

    async def _take_place(self, seconds_left: Callable[[], float | None], note: Callable[[str], object]) -> None:
        """Take a place among the runs that may be executed at once, and wait for it if the limits say so."""
        async with self._taking:
            poll, noted = FIRST_POLL, False
            while not self._place:
                found = await self._reserve_off_loop(self._at_once, NOTHING)
                if isinstance(found, str):
                    self._place = found
                    return
                limit = found.limit
                if not limit.waits:
                    raise BudgetReached(f"{limit.key} may have {limit}, and they are being executed.")
                if not noted:
                    noted = True
                    note(f"{limit.key} may have {limit}. Waiting for the end of another run.")
                poll = min(poll * 2, LONGEST_POLL_FOR_PLACE)
                await _sleep_within(poll, seconds_left, limit)

    async def hold(
        self,
        client: BaseClient,
        request: ModelRequest,
        prompt: int,
        *,
        price: Price | None,
        closing: bool,
        seconds_left: Callable[[], float | None],
        note: Callable[[str], object],
    ) -> tuple[ModelRequest, Reservation]:
        """Reserve the largest cost of a request, and wait for it if its limits say so.

        Args:
            client: The model.
            request: What is to be sent.
            prompt: The most tokens that its prompt can have.
            price: The price of the model; None if unknown.
            closing: Whether it asks for the answer: its reply may be cut to what the budget has left.
            seconds_left: Returns the rest of the run's time.
            note: Called with the reason for a wait.

        Returns:
            The request as it may be sent, and the reservation.

        Raises:
            BudgetReached: A limit is reached, and the run is to stop then.
            LimitReached: The run's time ends before the next period.
            UsageError: The price of the model is unknown, or the length of its replies.
        """
        if self._at_once and not self._place:
            await self._take_place(seconds_left, note)
        price = self._known(price, client)
        quote = self._quote(client, request, prompt, price)
        poll, noted = FIRST_POLL, False
        while True:
            found = await self._reserve_off_loop(self._limits, quote.amount)
            if isinstance(found, str):
                if quote.reply != (request.max_tokens or client.max_reply):
                    request = replace(request, max_tokens=quote.reply)
                return request, Reservation(self, found, quote, price)
            seconds = poll = min(poll * 2, LONGEST_POLL)
            if not found.pending:
                shorter = quote.within(found) if closing else None
                if shorter is not None:
                    quote = shorter
                    continue
                self._refuse_hopeless(found, quote)
                if not noted:
                    noted = True
                    note(f"The budget of {found.limit.key} ({found.limit}) is reached. Waiting for the next period.")
                seconds = min(max(found.wait, FIRST_POLL), LONGEST_SLEEP)
            await _sleep_within(seconds, seconds_left, found.limit)

    async def _reserve_off_loop(self, limits: Sequence[BudgetLimit], amount: Amount) -> str | Refusal:
        asked = self._ledger.thread.submit(self._ledger.reserve, limits, amount)
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(self._give_back)
            raise

    def _give_back(self, asked: Future[str | Refusal]) -> None:
        """Return what was reserved for a request that was cancelled meanwhile."""
        if not asked.cancelled() and asked.exception() is None and isinstance(found := asked.result(), str):
            self._ledger.settle(found, NOTHING)

    def prompt_bound(self, client: BaseClient) -> PromptBound:
        """Return what bounds the prompts that an agent sends to a client."""
        return PromptBound(learns=not isinstance(client, FallbackClient))

    def reserve(self, quote: _LargestCost) -> str:
        """Reserve one more attempt of a request whose last one may have cost something."""
        found = self._ledger.reserve(self._limits, quote.amount)
        if isinstance(found, str):
            return found
        raise _reached(found, quote)

    def settle(self, request: str, amount: Amount | None) -> None:
        """Replace a reservation by what the request cost; None: by all that was reserved."""
        self._ledger.settle(request, amount)

    async def settle_off_loop(self, request: str, amount: Amount | None) -> None:
        """Settle a reservation in the ledger's thread, also if the wait for it is cancelled."""
        settled = self._ledger.thread.submit(self._ledger.settle, request, amount)
        await asyncio.shield(asyncio.wrap_future(settled))

    def _refuse_hopeless(self, refusal: Refusal, quote: _LargestCost) -> None:
        """Raise BudgetReached unless the request may be sent in the next period."""
        limit = refusal.limit
        asked = quote.amount.of(limit.unit)
        if asked > limit.amount:
            shorter = replace(quote, reply=CLOSING_TOKENS).amount.of(limit.unit) <= limit.amount
            raise BudgetReached(
                f"One request may cost up to {replace(limit, amount=asked, period='')}, which is more than the budget "
                f"of {limit.key} ({limit}): its prompt may have {quote.prompt:,} tokens, "
                f"and its reply {quote.reply:,}. Set {'a lower max_tokens, or ' if shorter else ''}a higher budget."
            )
        if not limit.waits:
            raise _reached(refusal, quote)

    def _known(self, price: Price | None, client: BaseClient) -> Price:
        if price is None and self._counts_cost:
            raise UsageError(
                f"The price of {client.name} is unknown, so a budget in USD cannot be kept. State it as "
                "llm.prices={MODEL: [INPUT, OUTPUT]}, in dollars per million tokens, or with the name '*' for every "
                "model without a price."
            )
        return price or Price(0.0, 0.0)

    def _quote(self, client: BaseClient, request: ModelRequest, prompt: int, price: Price) -> _LargestCost:
        context = client.capabilities.max_context
        if context is not None:
            prompt = min(prompt, context)
        reply = request.max_tokens or client.max_reply or context
        if reply is None:
            _refuse_unknown_reply(self._limits, client)
            reply = 0
        return _LargestCost(price, prompt, reply)


@dataclass(slots=True, eq=False)
class Reservation:
    """The reserve of one request, with the attempts that were made for it."""

    reservations: Reservations
    current: str
    quote: _LargestCost
    price: Price

    def retried(self, error: Exception) -> None:
        """Reserve again if the attempt that failed may have cost something. Raises BudgetReached if it does not fit."""
        if _is_free(error):
            return
        self.reservations.settle(self.current, None)
        self.current = ""
        self.current = self.reservations.reserve(self.quote)

    async def settle(self, outcome: ModelReplied | ModelFailed | None, error: Exception | None) -> None:
        """Settle the request: at the usage of its reply, or at all that was reserved if nobody knows what it cost."""
        if not self.current:
            return
        amount: Amount | None = None
        if isinstance(outcome, ModelReplied) and outcome.usage and outcome.finish_reason != "cut":
            amount = self._amount(Usage(**outcome.usage))
        elif isinstance(outcome, ModelFailed) and error is not None and _is_free(error):
            amount = Amount()
        await self.reservations.settle_off_loop(self.current, amount)

    def _amount(self, usage: Usage) -> Amount:
        cost = usage.cost_usd if usage.cost_usd is not None else self.price.of(usage).cost_usd
        return Amount(math.ceil((cost or 0.0) * NANO), usage.total_tokens, 1)


async def _sleep_within(seconds: float, seconds_left: Callable[[], float | None], limit: BudgetLimit) -> None:
    left = seconds_left()
    if left is not None and left < seconds:
        raise LimitReached("max_seconds", f"The run's time is over before {limit.key} has budget again.")
    await asyncio.sleep(seconds)


def _is_free(error: Exception) -> bool:
    """Return whether a failed request costs nothing: the server was not reached, or it refused with a status."""
    usage = getattr(error, "usage", None)
    written = usage is not None and usage.output_tokens
    refused = getattr(error, "status", None) is not None and not written
    return isinstance(error, ModelUnreachable | CostReached) or refused


def _reached(refusal: Refusal, quote: _LargestCost) -> BudgetReached:
    limit = refusal.limit
    used = replace(limit, amount=limit.amount - refusal.left, period="")
    said = f"The budget of {limit.key} ({limit}) has no room for another request: {used} are used"
    if limit.unit != "requests":
        said += f", and this one may use up to {replace(limit, amount=quote.amount.of(limit.unit), period='')}"
    return BudgetReached(f"{said}.")
