"""Run one agent from its task to its answer: main agents and sub-agents, in every dialect, live and replayed.

An AgentLoop makes attempts (`attempt`), each of which ends in closing (`closing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.answers.experience import FailureExperience, render_experiences
from closeout.context.history import History
from closeout.context.keeper import ContextKeeper
from closeout.dialects.functions import RUN_PROGRAM
from closeout.dialects.protocol import HistoryView
from closeout.errors import Failure
from closeout.journal.events import HANDOFF, AttemptEnded, HandedOver
from closeout.messages import Message, Usage
from closeout.results.tokens import estimate_tokens
from closeout.run.attempt import AgentWork, Attempt
from closeout.run.calls import ToolCalls
from closeout.run.closing import close_attempt, fall_back
from closeout.run.earlier_calls import described
from closeout.run.final_format import FinalFormat
from closeout.run.handoff import Handoff, handoffs_of, successor_of
from closeout.run.limits import CLOSING_TOKENS, Budget
from closeout.run.middleware.order import below, started_agent
from closeout.run.offered_tools import OfferedTools
from closeout.run.plan import AgentPlan, Scope
from closeout.run.programs import Programs
from closeout.run.result import AgentResult, Stop
from closeout.run.review import Answers
from closeout.run.sampling import call_sampling
from closeout.run.session import ModelSession

__all__ = ["AgentLoop"]

LIMITS = ("max_turns", "max_tokens", "max_cost", "max_seconds")
# No attempt follows these.
FINAL_STOPS = frozenset({"max_tokens", "max_cost", "max_seconds", "budget", "model_failed"})


class AgentLoop:
    """Runs the agent of a plan through one task.

    Args:
        plan: The agent's plan.
        scope: Its place in the run.
        question: The task as the model sees it, with the texts of its files.
        earlier: The conversation before the task.
        images: Pictures of the task, OpenAI `image_url` parts.
        task: The task without the texts of files; closing repeats it.
        taken_over: The conversation handed over by another agent; None if this agent begins it.
        first_call: The number of its first call.
    """

    def __init__(
        self,
        plan: AgentPlan,
        scope: Scope,
        question: str,
        *,
        earlier: Sequence[Message] = (),
        images: Sequence[dict[str, Any]] = (),
        task: str = "",
        taken_over: HistoryView | None = None,
        first_call: int = 1,
    ) -> None:
        tools = OfferedTools(plan.manager, scope, plan.search_budget)
        final_format = FinalFormat(plan, scope.journal, scope.path, lambda: scope.budget.usage)
        answers = Answers(plan.contract, final_format.accept, final_format.warn)
        keeper = ContextKeeper(
            plan.client,
            scope.journal,
            scope.path,
            policy=plan.context_policy(),
            max_context=plan.llm.max_context_length,
            max_reply=plan.llm.max_tokens,
        )
        sampling = partial(call_sampling, scope, plan.client)
        tool_calls = ToolCalls(scope, first_call, sampling=sampling)
        executor = plan.executor(tool_calls.publish_progress, scope)
        executor.offer(tools.specs)
        session = ModelSession(plan, scope, task or question, tools, keeper=keeper, answers=answers)
        generator = None
        if plan.make_generator is not None:
            generator = plan.make_generator(
                plan, scope, session, final_format.client, seen=answers.seen, question=task or question
            )
        self.attempt: Attempt | None = None  # the last one
        self._result: AgentResult | None = None  # the result of the last attempt
        self._agent = AgentWork(
            plan=plan,
            scope=scope,
            question=task or question,
            offered=tools,
            history=History(
                plan.full_instructions(),
                question,
                tools.shown,
                earlier=earlier,
                images=images,
                agent=scope.path,
                taken_over=taken_over,
                answer=answers.schema,
            ),
            keeper=keeper,
            session=session,
            executor=executor,
            tool_calls=tool_calls,
            answers=answers,
            format=final_format,
            generator=generator,
            handoffs=handoffs_of(plan),
        )

    async def run(self) -> AgentResult:
        """Make attempts until one has an answer or none may follow.

        Raises:
            JournalError: The record cannot be kept.
        """
        agent, settings = self._agent, self._agent.plan.settings
        journal, budget = agent.scope.journal, agent.scope.budget
        unsubscribe = journal.subscribers.subscribe(agent.history.apply)
        path, effects = agent.scope.path, agent.scope.run.effects
        # Further attempts, later calls of a sub-agent and later handoffs must know the earlier calls with effects.
        if settings.context_compress_limit > 0 or agent.scope.depth > 0 or agent.handoffs or f"/{HANDOFF}:" in path:
            effects.join(path, lambda: agent.tools)
        journal.inbox.join(agent.scope.path)
        budget.begin(CLOSING_TOKENS + (estimate_tokens(agent.question) if budget.limited else 0))
        experiences: list[FailureExperience] = []
        programs = AsyncExitStack()
        for each in agent.scope.chain:
            each.start()
        try:
            if any(tool.name == RUN_PROGRAM for tool in agent.tools):
                made = Programs(agent.scope, agent.executor, agent.answers, lambda: agent.tools)
                await programs.enter_async_context(made)
            for number in range(settings.context_compress_limit + 1):
                learned = render_experiences(experiences) if settings.retry_with_summary else ""
                self.attempt = attempt = Attempt(agent, number, learned)
                attempt.start()
                before = effects.count(path)
                if earlier := effects.before(path, agent.tools):
                    agent.executor.take_over(earlier, path)
                stop = await attempt.run()
                is_last = number == settings.context_compress_limit
                while True:
                    if attempt.handoff is not None:
                        return await self._hand_over(attempt, stop, attempt.handoff)
                    await attempt.receive_last()
                    is_final = is_last or _ends_run(stop.reason, attempt)
                    closed = await close_attempt(attempt, stop, is_final=is_final)
                    if isinstance(closed, AgentResult):
                        break
                    stop = await attempt.run(closed)
                result = _explained(await attempt.checked(closed), budget)
                if result.experience is not None and effects.count(path) > before:
                    done = tuple(dict.fromkeys(map(described, effects.of(path, before))))
                    result = replace(result, experience=replace(result.experience, done=done))
                self._result = result
                journal.append(_ended(attempt, stop, result, agent.scope.path))
                if result.answer is not None or _ends_run(result.stop_reason, attempt) or not result.experience:
                    break
                experiences.append(result.experience)
            return result
        finally:
            budget.end()
            journal.inbox.leave(agent.scope.path)
            effects.leave(path)
            unsubscribe()
            await programs.aclose()
            for each in agent.scope.chain:
                await each.end()

    async def _hand_over(self, attempt: Attempt, stop: Stop, handoff: Handoff) -> AgentResult:
        """Have another agent continue the conversation, and return its result."""
        agent, scope = self._agent, self._agent.scope
        plan = successor_of(handoff, scope.run.stream, scope.deps)
        place = below(scope, handoff.agent_name, plan.limits, plan, handed_over=True)
        scope.journal.append(HandedOver(scope.path, handoff.agent_name, place.path))
        if scope.journal.inbox.hand_over(scope.path, place.path):
            scope.run.handed.append(handoff.agent_name)
        scope.budget.last = Usage()  # This agent makes no closing request.
        view = agent.history.view()
        async with plan.manager:
            successor = AgentLoop(
                await started_agent(plan, place),
                place,
                view.question,
                earlier=view.earlier,
                images=[dict(image) for image in view.images],
                task=agent.question,
                taken_over=view,
                first_call=agent.tool_calls.next,
            )
            result = await successor.run()
        self._result = result
        scope.journal.append(_ended(attempt, stop, result, scope.path))
        self.attempt = successor.attempt or attempt
        return result

    def best_result(self, broken: AgentResult) -> AgentResult:
        """Return the best answer so far when something breaks: the last attempt's, else one from an earlier turn."""
        last = self._result
        if last is not None and last.answer is not None:
            return replace(last, stop_reason=broken.stop_reason, failure=broken.failure)
        return fall_back(self._agent, broken)


def _ends_run(reason: str, attempt: Attempt) -> bool:
    """Return whether no attempt follows. A further attempt would begin with only the task in its context."""
    return reason in FINAL_STOPS or (reason == "context_overflow" and not attempt.turns)


def _explained(result: AgentResult, budget: Budget) -> AgentResult:
    """Return the result with a failure that says why there is no answer."""
    if result.answer is not None or result.failure is not None:
        return result
    if result.stop_reason in LIMITS:
        text = f"There is no answer within the limit {budget.stated(result.stop_reason)}."
    elif result.stop_reason == "loop":
        text = "The model repeated the same calls, also after it was told so."
    else:
        text = f"There is no answer ({result.stop_reason})."
    return replace(result, failure=Failure("", text))


def _ended(attempt: Attempt, stop: Stop, result: AgentResult, path: str) -> AttemptEnded:
    experience = result.experience.text() if result.experience else ""
    turns = attempt.turns + (stop.reading is not None and not stop.accepted)
    return AttemptEnded(
        path, attempt.number, result.stop_reason, answer=result.answer, experience=experience, turns=turns
    )
