"""The limits of a budget as people write them: `"5 USD/day"`, `"60 requests/minute or wait"`, `"3 runs at once"`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

__all__ = ["NANO", "BudgetLimit", "Unit", "period_start", "read_limits"]

Unit: TypeAlias = Literal["USD", "tokens", "requests", "runs"]

NANO = 10**9  # US dollars are counted in whole billionths, so that sums are exact
FORM = (
    'A limit is an amount, a unit (USD, tokens, requests) and a period (minute, hour, day, month, or none), such as "5 '
    'USD/day" or "60 requests/minute or wait", or a number of "runs at once"'
)
_LIMIT = re.compile(
    r"\s*(?P<amount>\d+(?:\.\d+)?)\s*"
    r"(?:(?P<unit>USD|tokens|requests)\s*(?:/\s*(?P<period>minute|hour|day|month))?|(?P<runs>runs?\s+at\s+once))"
    r"(?:\s+or\s+(?P<then>wait|stop))?\s*",
    re.IGNORECASE | re.ASCII,
)
_UNITS: Mapping[str, Unit] = {"usd": "USD", "tokens": "tokens", "requests": "requests"}
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimit:
    """One limit of one key.

    Attributes:
        key: Who pays: "team", "user:ann".
        unit: What is counted. "runs" are those that are executed at the same time.
        amount: How much: tokens, requests, runs, or billionths of a US dollar.
        period: "minute", "hour", "day" or "month" of UTC; empty: for ever.
        waits: Whether a run waits for the next period, or for the end of another run, instead of stopping.
    """

    key: str
    unit: Unit
    amount: int
    period: str = ""
    waits: bool = False

    def __str__(self) -> str:
        amount = f"{self.amount / NANO:.10g}" if self.unit == "USD" else f"{self.amount:,}"
        if self.unit == "runs":
            return f"{amount} run{'s' * (self.amount > 1)} at once"
        return f"{amount} {self.unit}" + (f"/{self.period}" if self.period else "")

    def window(self, at: float) -> tuple[float, float]:
        """Return when the period that contains a moment begins and ends, in seconds since the epoch."""
        if not self.period:
            return 0.0, _LATEST
        begin = period_start(self.period, at)
        return begin, _end(self.period, begin)


def period_start(period: str, at: float) -> float:
    """Return the beginning of the minute, hour, day or month of UTC that contains a moment."""
    moment = datetime.fromtimestamp(at, UTC).replace(second=0, microsecond=0)
    if period != "minute":
        moment = moment.replace(minute=0)
    if period in ("day", "month"):
        moment = moment.replace(hour=0)
    return (moment.replace(day=1) if period == "month" else moment).timestamp()


def _end(period: str, begin: float) -> float:
    if period != "month":
        return begin + {"minute": 60, "hour": 3600, "day": 86400}[period]
    later = datetime.fromtimestamp(begin, UTC) + timedelta(days=31)
    return later.replace(day=1).timestamp()


def read_limits(budget: Mapping[str, Any]) -> tuple[BudgetLimit, ...]:
    """Return the limits of a budget: keys, each with a limit or a list of limits.

    Raises:
        ValueError: A key or a limit is not valid.
    """
    found = []
    for key, written in budget.items():
        if not isinstance(key, str) or not key.strip() or len(key) > 200 or not key.isprintable():
            raise ValueError(f"A key of a budget must be a short text such as 'user:ann', got {key!r:.80}")
        texts = written if isinstance(written, Sequence) and not isinstance(written, str) else [written]
        if not texts:
            raise ValueError(f"The key {key!r} has no limit. {FORM}")
        found += [_limit(key, text) for text in texts]
    return tuple(found)


def _limit(key: str, text: Any) -> BudgetLimit:
    read = _LIMIT.fullmatch(text) if isinstance(text, str) else None
    if read is None:
        raise ValueError(f"{text!r:.80} of {key!r} is not a limit. {FORM}")
    unit, amount = "runs" if read["runs"] else _UNITS[read["unit"].lower()], Decimal(read["amount"])
    amount = amount * NANO if unit == "USD" else amount
    if amount != int(amount) or not amount:
        raise ValueError(f"{text!r:.80} of {key!r}: the amount must be above zero, and whole except for USD")
    period, waits = (read["period"] or "").lower(), (read["then"] or "").lower() == "wait"
    if waits and not period and unit != "runs":
        raise ValueError(f"{text!r:.80} of {key!r}: without a period there is nothing to wait for. Leave out 'or wait'")
    return BudgetLimit(key=key, unit=unit, amount=int(amount), period=period, waits=waits)
