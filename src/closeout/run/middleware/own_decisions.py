"""Records what a user's middleware decides on calls, and finds one that decides by a clock or by chance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from closeout.journal.events import CallDecided
from closeout.run.middleware.chain import Calling, Middleware
from closeout.run.plan import Scope

__all__ = ["deciders"]


def deciders(scope: Scope) -> list[Callable[[Calling], Awaitable[None]]]:
    """Return what decides on an agent's calls, in order. One that does not override `decide` is left out."""
    found: list[Callable[[Calling], Awaitable[None]]] = []
    known: list[str] = []
    for each in scope.chain:
        if type(each).decide is Middleware.decide:
            continue
        name = type(each).__name__
        known.append(name)
        by = name if known.count(name) == 1 else f"{name}{known.count(name)}"
        found.append(each.decide if each.records_itself else partial(_decide, each, by, scope))
    return found


async def _decide(middleware: Middleware, by: str, scope: Scope, calling: Calling) -> None:
    """Have a middleware decide. A recorded run keeps the decision that it was recorded with."""
    before = list(calling.reasons)
    await middleware.decide(calling)
    decided = _decided_now(by, scope, calling, calling.reasons[len(before) :])
    journal, started = scope.journal, calling.started(calling.plan.call, calling.plan.tool)
    recorded = journal.decision_on(CallDecided, started, decided.request)
    if recorded is not None:
        then = recorded
    elif journal.has_started(started):  # allowed without a word
        then = replace(decided, decision="allow", reason="")
    else:
        then = decided
    if (then.decision, then.reason) != (decided.decision, decided.reason):
        text = (
            f"{decided.by} decided otherwise on {calling.handle} ({decided.name}) than when the run was recorded: "
            f"{_shown(then)} then, {_shown(decided)} now. The recorded decision holds. A middleware must decide by the "
            "call and by what was read, not by a clock or chance."
        )
        scope.warn("Middleware", text)
        calling.output, calling.reasons[:] = None, before
        if then.decision == "refuse":
            calling.refuse(then.reason)
        elif then.decision == "ask":
            calling.ask(then.reason)
    if then.decision != "allow" or then is recorded:
        journal.append(then)


def _decided_now(by: str, scope: Scope, calling: Calling, asked: list[str]) -> CallDecided:
    started = calling.started(calling.plan.call, calling.plan.tool)
    decision, reason = "allow", ""
    if calling.output is not None:
        decision, reason = "refuse", calling.output.summary
    elif asked:
        decision, reason = "ask", " ".join(asked)
    return CallDecided(
        scope.path,
        f"{calling.handle}.{by}",
        by=by,
        name=started.name,
        decision=decision,
        reason=reason,
        arguments=started.arguments,
    )


def _shown(decided: CallDecided) -> str:
    return f"{decided.decision} ({decided.reason})" if decided.reason else decided.decision
