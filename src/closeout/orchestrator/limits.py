"""The budgets of a run: turns, tokens, cost, wall clock; a sub-agent's lie within its parent's. Only counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from closeout.messages import Usage

__all__ = ["Budget", "Limits"]

CLOSING_TOKENS = 400  # of the closing instruction and a short answer
RESERVE = 0.1  # of the time allowed that is kept for closing, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one agent may spend. None: no limit. `max_cost` in US dollars, `max_seconds` of work."""

    max_turns: int = 50
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None


@dataclass(slots=True)
class Budget:
    """What one agent has spent. Its spending is also its parent's; `elapsed` tells the run's seconds of work.

    A reserve is kept for the closing turn: a limit counts as reached while one more request like the last one, plus the
    closing one, would go beyond it.
    """

    limits: Limits
    elapsed: Callable[[], float]
    parent: Budget | None = None
    usage: Usage = field(default_factory=Usage)
    last: Usage = field(default_factory=Usage)
    added: int = 0  # tokens that the next prompt has beyond the last one and its reply
    seconds_of_last: float = 0.0
    started: float = -1.0

    def charge(self, usage: Usage) -> None:
        """What a request cost, failed ones too."""
        self.usage += usage
        if self.parent is not None:
            self.parent.charge(usage)

    def note_request(self, usage: Usage, seconds: float) -> None:
        """How large the agent's last request was: the measure of what closing will need."""
        self.last, self.seconds_of_last, self.added = usage, seconds, 0

    def begin(self) -> None:
        if self.started < 0:
            self.started = self.elapsed()

    def reached(self, turns: int) -> str:
        """The limit that is reached, by its stop reason (max_turns, max_tokens, max_cost, max_seconds), or empty."""
        if turns >= self.limits.max_turns:
            return "max_turns"
        tokens = self.last.total_tokens
        if not tokens:
            return self._spent(0, 0.0, self.seconds_of_last)
        # Two more requests, each larger than the last: the next one, and the closing one with its instruction.
        grown = 2 * (tokens + self.added) + self.last.output_tokens + CLOSING_TOKENS
        return self._spent(grown, (self.last.cost_usd or 0.0) * grown / tokens, 2 * self.seconds_of_last)

    def exhausted(self) -> str:
        """The limit that leaves no room even for closing, or empty."""
        return self._spent(0, 0.0, 0.0)

    def _spent(self, tokens: int, cost: float, seconds: float) -> str:
        """The limit that would be reached with so much more, this agent's or one of those above it."""
        limits = self.limits
        if limits.max_tokens is not None and self.usage.total_tokens + tokens >= limits.max_tokens:
            return "max_tokens"
        if limits.max_cost is not None and (self.usage.cost_usd or 0.0) + cost >= limits.max_cost:
            return "max_cost"
        if limits.max_seconds is not None:
            reserve = max(seconds, RESERVE * limits.max_seconds) if seconds else 0.0
            if self.elapsed() - self.started + reserve >= limits.max_seconds:
                return "max_seconds"
        return self.parent._spent(tokens, cost, seconds) if self.parent is not None else ""

    def seconds_left(self, *, closing: bool) -> float | None:
        """Until the time of this agent or of one above it runs out; None: no limit. The reserve is for closing only."""
        own = None
        if self.limits.max_seconds is not None:
            allowed = self.limits.max_seconds * (1.0 if closing else 1.0 - RESERVE)
            own = max(allowed - (self.elapsed() - max(self.started, 0.0)), 0.0)
        above = self.parent.seconds_left(closing=closing) if self.parent is not None else None
        return min((left for left in (own, above) if left is not None), default=None)
