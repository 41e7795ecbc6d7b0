"""The order of the middleware, which is part of its meaning, and how a run's agents get their scopes and begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from closeout.journal.events import HANDOFF
from closeout.run.collecting import run_telemetry
from closeout.run.limits import Budget, Limits
from closeout.run.middleware.after_crash import CrashMiddleware
from closeout.run.middleware.approval import ApprovalMiddleware
from closeout.run.middleware.background import BackgroundMiddleware
from closeout.run.middleware.budgeting import BudgetMiddleware
from closeout.run.middleware.call_logins import LoginMiddleware
from closeout.run.middleware.call_secrets import SecretsMiddleware
from closeout.run.middleware.chain import AgentPlace, Middleware
from closeout.run.middleware.deadline import DeadlineMiddleware
from closeout.run.middleware.flow_rules import FlowMiddleware
from closeout.run.middleware.request_gate import GateMiddleware
from closeout.run.plan import AgentPlan, Scope
from closeout.run.task import Task
from closeout.run.waits.logins import begin_servers

__all__ = ["ORDER", "below", "governed", "started_agent"]

# The first is outermost.
ORDER: tuple[type[Middleware], ...] = (
    # Outside the journal: decided again when a record is executed again.
    FlowMiddleware,
    Middleware,  # the user's: their reasons, and those of the flow rules, are among those that a person is asked for
    ApprovalMiddleware,  # a call that a person denies is not made again after a crash
    CrashMiddleware,
    BackgroundMiddleware,  # a call that was decided on
    # Inside: done once.
    GateMiddleware,  # what waits for the gate has reserved nothing
    BudgetMiddleware,
    LoginMiddleware,
    DeadlineMiddleware,
    SecretsMiddleware,  # nobody outside sees a value
)


def governed(scope: Scope, plan: AgentPlan, task: Task) -> Scope:
    """Return the scope of a run's main agent with its middleware."""
    return _with_chain(AgentPlace(scope=scope, plan=plan, task=task), ())


def below(
    scope: Scope, name: str, limits: Limits, plan: AgentPlan | None = None, *, handed_over: bool = False
) -> Scope:
    """Return the scope of what an agent starts: a sub-agent, a program, a successor, or the requests of a tool.

    Args:
        scope: The agent, and the call that starts it.
        name: The last part of its path.
        limits: Its limits. Those in the settings of a sub-agent with this name take precedence.
        plan: The agent that is started; None for a program, and for the requests of a tool.
        handed_over: Whether it continues the conversation. A successor reads the same results.
    """
    run, handle = scope.run, HANDOFF if handed_over else scope.handle
    turns = run.sub_agents[name].max_turns if name in run.sub_agents else None
    if turns is not None:
        limits = replace(limits, max_turns=turns)
    started = Scope(
        run,
        Budget(limits, lambda: run.journal.elapsed, scope.budget),
        f"{scope.path}/{handle}:{name}",
        scope.depth + (not handed_over),
        telemetry=scope.telemetry,
        prices=scope.prices,
        deps=scope.deps,
    )
    if handed_over:
        started = replace(started, artifacts=scope.artifacts)
    elif plan is not None:
        started = replace(started, telemetry=run_telemetry(plan.spec.telemetry, run.journal, scope.telemetry))
    if plan is not None:
        started = replace(started, deps=plan.deps, prices=plan.llm.prices)
    started.share(scope.shared.items())
    return _with_chain(AgentPlace(scope=started, plan=plan, handed_over=handed_over), scope.chain)


async def started_agent(plan: AgentPlan, scope: Scope) -> AgentPlan:
    """Begin the servers of an agent that another one starts, and return its plan with its instructions written.

    Raises:
        McpServerUnavailable: A required server did not start, or has tools that nobody has accepted.
        Suspended: A person must sign in to a server first.
        UsageError: The plan names a tool that does not exist.
    """
    await begin_servers(plan.manager, scope)
    plan.check_secrets()
    return await plan.with_instructions(scope)


def _with_chain(place: AgentPlace, above: tuple[Middleware, ...]) -> Scope:
    has = {type(each): each for each in above if type(each) in ORDER}
    chain: list[Middleware | None] = []
    for kind in ORDER:
        if kind is Middleware:
            chain += _own(place, [each for each in above if type(each) not in ORDER])
        else:
            chain.append(has[kind].below(place) if kind in has else kind.at(place))
    return replace(place.scope, chain=tuple(each for each in chain if each is not None))


def _own(place: AgentPlace, above: Sequence[Middleware]) -> list[Middleware | None]:
    """Return the user's middleware: those of the agents above, then the agent's own, each instance once."""
    found = [each.below(place) for each in above]
    plans: tuple[AgentPlan, ...] = () if place.plan is None else (place.plan,)
    if place.task is not None and place.plan is not None:  # the conversation was handed over in an earlier run
        plans = (*place.plan.predecessors, place.plan)
    for spec in (each for plan in plans for each in plan.spec.middleware):
        made = spec if isinstance(spec, Middleware) else spec(place)
        if all(made is not each for each in (*above, *found)):
            found.append(made)
    return found
