"""Makes room in an agent's context after a turn: evicts old results, or has the oldest part summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from closeout.context.compaction import COMPACTION_PROMPT, is_due, summary_of
from closeout.context.eviction import Eviction, EvictionPolicy, best_batch
from closeout.errors import JournalError, LimitReached, ModelError
from closeout.journal.events import Compacted, Evicted, Noted, ServerAsked, ServerTold
from closeout.llm.pricing import find_price
from closeout.messages import Step
from closeout.orchestrator.plan import AgentPlan

if TYPE_CHECKING:
    from closeout.orchestrator.orchestrator import Orchestrator

__all__ = ["eviction_policy", "make_room"]

USUAL_RATIO = 0.1
REPLY_TOKENS = 2048  # kept free for the reply where its limit is not set
WORTH_ASKING = 1000  # tokens of a prompt from which on it matters how long the context is


def eviction_policy(plan: AgentPlan) -> EvictionPolicy:
    """The policy of a plan: its settings, the model's context, the price of a cached token beside a fresh one."""
    keep = plan.settings.keep_tool_result
    return EvictionPolicy(
        keep=keep,
        batch=best_batch(keep, _cache_ratio(plan.client.name, plan.llm.prices)),
        max_context=plan.llm.max_context_length or plan.client.capabilities.max_context,
        high_water=plan.settings.high_water,
        low_water=min(plan.settings.low_water, plan.settings.high_water),
        reserve=plan.llm.max_tokens or REPLY_TOKENS,
    )


def _cache_ratio(model: str, prices: Mapping[str, Sequence[float]]) -> float:
    """The price of a cached input token beside a fresh one; where no price is known, what most vendors ask."""
    price = find_price(model.partition(":")[2] or model, prices)
    if price is None or price.cache_read is None or price.input <= 0:
        return USUAL_RATIO
    return price.cache_read / price.input


async def make_room(orchestrator: Orchestrator) -> None:
    """Evict or sum up if the policy says so. The next prompt is the last one, as counted, and what was added since."""
    history, scope, counter = orchestrator.history, orchestrator.scope, orchestrator.counter
    _learn(orchestrator)
    added = round(_tokens(history.steps[-1]) * counter.scale)
    scope.budget.added = added
    tokens = orchestrator.asking.client.prompt_tokens + scope.budget.last.output_tokens + added
    if tokens > WORTH_ASKING and orchestrator.eviction.max_context is None and not orchestrator.context_asked:
        await _ask_for_context(orchestrator)
    eviction = orchestrator.eviction.decide(history.steps, history.evicted_before, tokens, counter.scale)
    if eviction is None:
        return
    if is_due(eviction, orchestrator.plan.settings.compaction) and await _compact(orchestrator, eviction):
        return
    scope.journal.append(
        Evicted(scope.path, orchestrator.attempt, eviction.before, eviction.results, eviction.tokens, eviction.reason)
    )


async def _ask_for_context(orchestrator: Orchestrator) -> None:
    """How long the model's context is, from its server. In the journal, since what is evicted depends on it."""
    orchestrator.context_asked = True
    scope, client = orchestrator.scope, orchestrator.plan.client

    async def ask() -> ServerTold:
        return ServerTold(scope.path, "context", await client.context_length())

    try:
        told = await scope.journal.effect(ServerAsked(scope.path, "context"), ask)
    except JournalError:
        if scope.journal.replay_only:
            return  # a record of an agent that knew it
        raise
    if isinstance(told, ServerTold) and isinstance(told.value, int):
        orchestrator.eviction = replace(orchestrator.eviction, max_context=told.value)


def _learn(orchestrator: Orchestrator) -> None:
    """Hold what the results before the last were estimated at against what the server counted for them.

    The last request was longer by them and by the call; where they are not most of that, it says little of them.
    """
    characters, tokens = orchestrator.asking.client.growth
    steps = orchestrator.history.steps
    if characters == 0 or len(steps) < 2:
        return
    step = steps[-2]
    shown = 0
    for returned in step.returns:
        shown += len(returned.text)
    if shown <= characters <= 2 * shown and not any(returned.images for returned in step.returns):
        orchestrator.counter.calibrate(_tokens(step) * characters / shown, tokens)


def _tokens(step: Step) -> int:
    """What the results of a step were estimated at."""
    tokens = 0
    for returned in step.returns:
        tokens += returned.tokens
    return tokens


async def _compact(orchestrator: Orchestrator, eviction: Eviction) -> bool:
    """Have the model sum up the turns before the border; False where it did not, and they are evicted instead."""
    asking, scope = orchestrator.asking, orchestrator.scope
    if scope.budget.reached(orchestrator.turn):
        return False  # what is left is for closing
    asking.client.purpose, asking.client.note = "compact", ""
    try:
        reply = await asking.client.complete(asking.render(orchestrator.history, closing=COMPACTION_PROMPT))
    except (ModelError, LimitReached) as error:
        scope.journal.append(Noted(scope.path, "warning", "Compaction", str(error)))
        return False
    summary = summary_of(reply.text)
    if not summary:
        return False
    scope.journal.append(Compacted(scope.path, orchestrator.attempt, eviction.before, summary, eviction.tokens))
    return True
