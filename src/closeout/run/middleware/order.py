"""The order of the middleware, which is part of its meaning."""

from __future__ import annotations

from collections.abc import Callable

from closeout.run.middleware.budgeting import BudgetMiddleware
from closeout.run.middleware.chain import Middleware
from closeout.run.middleware.flow_rules import FlowMiddleware
from closeout.run.middleware.gate import GateMiddleware
from closeout.run.plan import Scope

__all__ = ["ORDER", "chain_of"]


def _flow(scope: Scope) -> Middleware | None:
    return None if scope.flow is None else FlowMiddleware(scope.flow, scope.path, scope.journal)


def _gate(scope: Scope) -> Middleware | None:
    return None if scope.gate is None else GateMiddleware(scope.gate)


def _budget(scope: Scope) -> Middleware | None:
    return None if scope.reserves is None else BudgetMiddleware(scope.reserves)


# The first is outermost.
ORDER: tuple[Callable[[Scope], Middleware | None], ...] = (
    _flow,
    _gate,  # what waits for the gate has reserved nothing
    _budget,
)


def chain_of(scope: Scope) -> tuple[Middleware, ...]:
    """Return what governs the requests and calls of an agent, the outermost first."""
    return tuple(each for make in ORDER if (each := make(scope)) is not None)
