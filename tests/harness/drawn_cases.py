"""Checks cases that hypothesis draws, as many as are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

Case = TypeVar("Case")


def check_drawn(
    drawn: SearchStrategy[Case], problems: Callable[[Case], Sequence[str]], *, cases: int, number: int
) -> None:
    """Check cases, drawn with this seed. The smallest case with a problem is the AssertionError."""

    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(drawn)
    def each(case: Case) -> None:
        found = problems(case)
        assert not found, "\n".join(found)

    each()
