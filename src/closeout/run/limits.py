"""The budgets of a run: turns, tokens, cost, time. A sub-agent's budget is part of its parent's. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from closeout.config import AgentSettings
from closeout.messages import Usage, UsageSum
from closeout.models.catalog import Price

__all__ = ["CLOSING_TOKENS", "Budget", "Limits"]

MARGIN = 1.05  # of the estimate of a closing request
CLOSING_TOKENS = 400  # the closing instruction and a short answer
RESERVE = 0.1  # the fraction of the time that is kept for closing, at least
CLOCK_STEP = 0.02  # seconds by which the moments of a journal and a deadline may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one agent. None means no limit.

    Attributes:
        max_turns: Turns of one attempt.
        max_tokens: Input and output tokens of all requests.
        max_cost: US dollars.
        max_seconds: Seconds of work.
    """

    max_turns: int = 50
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None

    @classmethod
    def of(cls, settings: AgentSettings) -> Self:
        """Return the limits in an agent's settings."""
        return cls(
            max_turns=settings.main_agent.max_turns,
            max_tokens=settings.max_tokens,
            max_cost=settings.max_cost,
            max_seconds=settings.max_seconds,
        )


@dataclass(slots=True, eq=False)
class Budget:
    """The spending of one agent, which is charged to its parent too.

    A reserve is kept for closing: a limit counts as reached if one more request like the last one, and a closing one,
    would exceed it. A sub-agent also reserves, within its parent's limits, what other sub-agents have under way and
    what the parent needs to close with their reports.

    Attributes:
        limits: The agent's own limits.
        elapsed: Returns the run's seconds of work.
        parent: The budget of the agent that started this one.
    """

    limits: Limits
    elapsed: Callable[[], float]
    parent: Budget | None = None
    usage_sum: UsageSum = field(default_factory=UsageSum)
    cost: float = 0.0  # US dollars, as far as prices are known
    last: Usage = field(default_factory=Usage)
    added: int = 0  # tokens that the next prompt has beyond the last one and its reply
    closing: int = CLOSING_TOKENS  # tokens that closing adds to a prompt
    seconds_of_last: float = 0.0
    started: float = -1.0
    request_pending: bool = False
    children: list[Budget] = field(default_factory=list)  # the budgets of agents at work
    tariff: Price | None = None  # of the model that is about to be asked
    # Whether something is limited, here or above: cost, tokens or cost, time, any of these.
    limits_cost: bool = field(init=False)
    limited: bool = field(init=False)
    limits_time: bool = field(init=False)
    watched: bool = field(init=False)

    def __post_init__(self) -> None:
        own, above = self.limits, self.parent
        self.limits_cost = own.max_cost is not None or (above is not None and above.limits_cost)
        self.limited = own.max_tokens is not None or self.limits_cost or (above is not None and above.limited)
        self.limits_time = own.max_seconds is not None or (above is not None and above.limits_time)
        self.watched = self.limited or self.limits_time

    @property
    def usage(self) -> Usage:
        return self.usage_sum.total

    # ------------------------------------------------------------------------------------------ spending

    def begin(self, closing: int = CLOSING_TOKENS) -> None:
        """Start the agent's clock. `closing` is how many tokens its closing request adds to a prompt."""
        self.closing = closing
        if self.started < 0:
            self.started = self.elapsed()
        if self.parent is not None and self not in self.parent.children:
            self.parent.children.append(self)

    def end(self) -> None:
        """Release what the agent had reserved: it has ended."""
        if self.parent is not None and self in self.parent.children:
            self.parent.children.remove(self)

    def expect(self, prompt_tokens: int) -> None:
        """Set the estimated size of an attempt's first request, in place of a last request."""
        self.last, self.added = Usage(prompt_tokens), 0

    def charge(self, usage: Usage) -> None:
        """Charge a request, successful or not."""
        self.usage_sum.add(usage)
        self.cost += usage.cost_usd or 0.0
        if self.parent is not None:
            self.parent.charge(usage)

    def note_request(self, usage: Usage, seconds: float) -> None:
        """Note the size of the last request, from which the next is estimated. A failed request has none."""
        self.seconds_of_last = seconds
        if usage.total_tokens:
            self.last, self.added = usage, 0

    def cost_of(self, prompt: int, reply: int = 0, tariff: Price | None = None, *, closes: bool = False) -> float:
        """Return what tokens of a prompt and a reply cost at most, in US dollars; 0 if the price is unknown.

        `closes`: the prompt of a closing request begins with the last one. What was read from a cache is read again.
        """
        price = tariff or self.tariff
        if price is None:
            return 0.0
        cached = self.last.cache_read_tokens if closes and price == self.tariff else 0
        fresh = (prompt - cached) * max(price.input, price.cache_write or 0.0)
        read = cached * (price.input if price.cache_read is None else price.cache_read)
        return (fresh + read + reply * price.output) / 1e6

    # ------------------------------------------------------------------------------------------ what is left

    def stated(self, limit: str) -> str:
        """Return a limit as it was set: of this agent and those above it, the one that has the least left."""
        found: list[tuple[float, float]] = []
        budget: Budget | None = self
        while budget is not None:
            if (value := getattr(budget.limits, limit)) is not None:
                spent = {
                    "max_tokens": budget.usage.total_tokens,
                    "max_cost": budget.cost,
                    "max_seconds": -budget.started,
                }
                found.append((value - spent.get(limit, 0), value))
            budget = budget.parent if limit != "max_turns" else None
        return f"{limit}={min(found)[1]}" if found else limit

    def reached(self, turns: int) -> str:
        """Return the limit that is reached (max_turns, max_tokens, max_cost, max_seconds), empty if none is."""
        if turns >= self.limits.max_turns:
            return "max_turns"
        if not self.watched:
            return ""
        # Two more requests, each larger than the last: the next one, and the closing one with its instruction.
        tokens = self._need(2)[0]
        limit = self._spent(tokens, 0.0, (2 if tokens else 1) * self.seconds_of_last)
        return limit or ("max_cost" if self.limits_cost and self.too_dear(self.tariff) else "")

    def too_dear(self, tariff: Price | None, lost: float = 0.0, prompt: int = 0) -> bool:
        """Return whether `max_cost` has no room for a request at the price of the model that would be asked.

        Room is kept for a closing request if there is any, but for a first request, which may bring the answer.

        Args:
            tariff: The price.
            lost: What failed attempts of the request have cost, in US dollars.
            prompt: The tokens of a request that closes; 0 for one that a closing request may follow.
        """

        def fits(cost: float) -> bool:
            return self._spent(0, cost + lost, 0.0) != "max_cost"

        closing = self._need(1, tariff)[1]
        following = self.cost_of(prompt, 0, tariff, closes=True) if prompt else self._need(2, tariff)[1] - closing
        if prompt or not self.usage.requests:
            return not fits(following)
        return not fits(following) or (fits(MARGIN * closing) and not fits(following + closing))

    def exhausted(self) -> str:
        """Return the limit that is reached, empty if none is."""
        return self._spent(0, 0.0, 0.0)

    def forbids(self, prompt: int, reply: int = 0) -> str:
        """Return the limit that a request of so many tokens would exceed, empty if none."""
        return self._spent(prompt + reply, self.cost_of(prompt, reply, closes=True), 0.0)

    def _need(self, requests: int, tariff: Price | None = None) -> tuple[int, float]:
        """Estimate tokens and cost of the next requests, the last of which closes; zero before the first one."""
        if not self.last.total_tokens:
            return 0, 0.0
        prompt = self.last.total_tokens + self.added
        if self.children:  # each will return a report, about as long as its closing
            prompt += sum(child.last.output_tokens + child.closing for child in self.children)
        reply = self.last.output_tokens
        tokens = requests * prompt + reply + self.closing
        if (tariff or self.tariff) is None:
            return tokens, tokens * (self.last.cost_usd or 0.0) / self.last.total_tokens
        closing = self.cost_of(prompt + self.closing, reply, tariff, closes=True)
        return tokens, self.cost_of((requests - 1) * prompt, 0, tariff) + closing

    def _held(self, by: Budget | None = None) -> tuple[int, float]:
        """Estimate what this agent and its sub-agents, except `by`, need for closing and have under way."""
        needs = [
            self._need(2 if self.request_pending else 1),
            *(child._held() for child in self.children if child is not by),
        ]
        return sum(tokens for tokens, _ in needs), sum(cost for _, cost in needs)

    def _spent(self, tokens: int, cost: float, seconds: float) -> str:
        """Return the limit, of this agent or of one above it, that so much more would reach."""
        limits = self.limits
        if limits.max_tokens is not None and self.usage.total_tokens + tokens >= limits.max_tokens:
            return "max_tokens"
        if limits.max_cost is not None and self.cost + cost >= limits.max_cost:
            return "max_cost"
        if limits.max_seconds is not None:
            reserve = max(seconds, RESERVE * limits.max_seconds) if seconds else 0.0
            if self.elapsed() - max(self.started, 0.0) + reserve >= limits.max_seconds:
                return "max_seconds"
        if self.parent is None:
            return ""
        held_tokens, held_cost = self.parent._held(self) if self.parent.limited else (0, 0.0)
        return self.parent._spent(tokens + held_tokens, cost + held_cost, seconds)

    @property
    def tokens_left(self) -> int | None:
        """Tokens that this agent may still spend within its limits and those above it; None: no limit."""
        limit = self.limits.max_tokens
        own = [] if limit is None else [max(limit - self.usage.total_tokens, 0)]
        above = None if self.parent is None else self.parent.tokens_left
        return min(own if above is None else [*own, above], default=None)

    @property
    def cost_left(self) -> float | None:
        """US dollars that this agent may still spend within its limits and those above it; None: no limit."""
        limit = self.limits.max_cost
        own = [] if limit is None else [max(limit - self.cost, 0.0)]
        above = None if self.parent is None else self.parent.cost_left
        return min(own if above is None else [*own, above], default=None)

    @property
    def out_of_time(self) -> bool:
        """True if there is no time left for another turn."""
        left = self.seconds_left(closing=False)
        return left is not None and left < CLOCK_STEP

    def seconds_left(self, *, closing: bool) -> float | None:
        """Return the seconds until the time of this agent or of one above it runs out, None without a limit.

        Only closing may use the reserve. A sub-agent's closing ends before its parent's reserve begins.
        """
        if not self.watched:
            return None
        left = []
        if self.limits.max_seconds is not None:
            left.append(self.limits.max_seconds - (self.elapsed() - max(self.started, 0.0)))
            if not closing:
                left[0] -= RESERVE * self.limits.max_seconds
        above = self.parent.seconds_left(closing=False) if self.parent is not None else None
        if above is not None:
            left.append(above if closing else above * (1 - RESERVE))
        return max(min(left), 0.0) if left else None
