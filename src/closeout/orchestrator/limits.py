"""The budgets of a run: turns, tokens, cost, wall clock; a sub-agent's lie within its parent's. Only counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from closeout.messages import Bill, Usage

__all__ = ["CLOSING_TOKENS", "Budget", "Limits"]

CLOSING_TOKENS = 400  # of the closing instruction and a short answer
RESERVE = 0.1  # of the time allowed that is kept for closing, at least
CLOCK_STEP = 0.02  # seconds by which the moments of a journal and a deadline may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one agent may spend. None: no limit. `max_cost` in US dollars, `max_seconds` of work."""

    max_turns: int = 50
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None


@dataclass(slots=True, eq=False)
class Budget:
    """What one agent has spent. Its spending is also its parent's; `elapsed` tells the run's seconds of work.

    A reserve is kept for the closing turn: a limit counts as reached while one more request like the last one, plus the
    closing one, would go beyond it. Within its parent's limits an agent leaves room for what the others there have
    under way, and for the parent's own closing with the reports that it will then have got.
    """

    limits: Limits
    elapsed: Callable[[], float]
    parent: Budget | None = None
    bill: Bill = field(default_factory=Bill)
    cost: float = 0.0  # US dollars, as far as prices are known
    last: Usage = field(default_factory=Usage)
    added: int = 0  # tokens that the next prompt has beyond the last one and its reply
    closing: int = CLOSING_TOKENS  # tokens that closing adds to a prompt
    seconds_of_last: float = 0.0
    started: float = -1.0
    asking: bool = False  # a request is under way
    children: list[Budget] = field(default_factory=list)  # of agents at work
    watched: bool = field(init=False)  # more than turns is limited, here or above

    def __post_init__(self) -> None:
        own = self.limits.max_tokens, self.limits.max_cost, self.limits.max_seconds
        self.watched = own != (None, None, None) or (self.parent is not None and self.parent.watched)

    @property
    def usage(self) -> Usage:
        return self.bill.total

    # ------------------------------------------------------------------------------------------ what is spent

    def begin(self, closing: int = CLOSING_TOKENS) -> None:
        """The agent sets to work. `closing`: tokens that its closing turn adds to a prompt."""
        self.closing = closing
        if self.started < 0:
            self.started = self.elapsed()
        if self.parent is not None and self not in self.parent.children:
            self.parent.children.append(self)

    def end(self) -> None:
        """The agent is done: what it had under way is free for others."""
        if self.parent is not None and self in self.parent.children:
            self.parent.children.remove(self)

    def expect(self, prompt_tokens: int) -> None:
        """How large the first request of an attempt will be, before there is a last one to go by."""
        self.last, self.added = Usage(prompt_tokens, cost_usd=prompt_tokens * self.price), 0

    def charge(self, usage: Usage) -> None:
        """What a request cost, failed ones too."""
        self.bill.add(usage)
        self.cost += usage.cost_usd or 0.0
        if self.parent is not None:
            self.parent.charge(usage)

    def note_request(self, usage: Usage, seconds: float) -> None:
        """How large the agent's last request was: the measure of what closing will need. A failed one says nothing."""
        self.seconds_of_last = seconds
        if usage.total_tokens:
            self.last, self.added = usage, 0

    @property
    def price(self) -> float:
        """US dollars for a token, on average so far, here or at the parent; 0 where nothing is known."""
        if self.cost:
            return self.cost / max(self.usage.total_tokens, 1)
        return self.parent.price if self.parent is not None else 0.0

    @property
    def limited(self) -> bool:
        """Whether tokens or cost are limited, here or above."""
        own = self.limits.max_tokens is not None or self.limits.max_cost is not None
        return own or (self.parent is not None and self.parent.limited)

    @property
    def limits_cost(self) -> bool:
        """Whether cost is limited, here or above."""
        return self.limits.max_cost is not None or (self.parent is not None and self.parent.limits_cost)

    # ------------------------------------------------------------------------------------------ what is left

    def reached(self, turns: int) -> str:
        """The limit that is reached, by its stop reason (max_turns, max_tokens, max_cost, max_seconds), or empty."""
        if turns >= self.limits.max_turns:
            return "max_turns"
        if not self.watched:
            return ""
        # Two more requests, each larger than the last: the next one, and the closing one with its instruction.
        tokens, cost = self._need(2)
        return self._spent(tokens, cost, (2 if tokens else 1) * self.seconds_of_last)

    def exhausted(self) -> str:
        """The limit that leaves no room even for closing, or empty."""
        return self._spent(0, 0.0, 0.0)

    def forbids(self, tokens: int) -> str:
        """The limit that a request of so many tokens, prompt and reply, would go beyond; or empty."""
        return self._spent(tokens, tokens * self.price, 0.0)

    def _need(self, requests: int) -> tuple[int, float]:
        """Tokens and cost of so many requests to come, the last of them for closing; nothing where nothing is known."""
        if not self.last.total_tokens:
            return 0, 0.0
        prompt = self.last.total_tokens + self.added
        if self.children:  # each will hand back a report, about as long as its closing
            prompt += sum(child.last.output_tokens + child.closing for child in self.children)
        tokens = requests * prompt + self.last.output_tokens + self.closing
        cost = self.last.cost_usd
        return tokens, tokens * (self.price if cost is None else cost / self.last.total_tokens)

    def _held(self, by: Budget | None = None) -> tuple[int, float]:
        """What this agent and those it started need, but the one that asks: for closing, and for what is under way."""
        needs = [self._need(2 if self.asking else 1), *(child._held() for child in self.children if child is not by)]
        return sum(tokens for tokens, _ in needs), sum(cost for _, cost in needs)

    def _spent(self, tokens: int, cost: float, seconds: float) -> str:
        """The limit that would be reached with so much more, this agent's or one of those above it."""
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
    def out_of_time(self) -> bool:
        """Whether there is no time left for another turn."""
        left = self.seconds_left(closing=False)
        return left is not None and left < CLOCK_STEP

    def seconds_left(self, *, closing: bool) -> float | None:
        """Until the time of this agent or of one above it runs out; None: no limit. The reserve is for closing only.

        A sub-agent's closing too ends before its parent's reserve begins.
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
