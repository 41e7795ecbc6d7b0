"""Leads one agent from its task to its answer: attempts, turns, rollbacks, closing. One loop for every agent.

Main agent and sub-agents, every dialect, streaming and not, live and replayed: this is the loop. What a reply says is
the dialect's business, how a call is governed the executor's, what counts as an answer the contract's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from closeout.answers.experience import FailureExperience, render_experiences
from closeout.context.history import History
from closeout.errors import ContextOverflow, LimitReached, ModelError
from closeout.journal.events import (
    AnswerSeen,
    AttemptEnded,
    AttemptStarted,
    Repaired,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.messages import Message, Reading, Repair
from closeout.orchestrator.asking import Asking
from closeout.orchestrator.closing import Closed, Stop, close_attempt, fall_back
from closeout.orchestrator.limits import CLOSING_TOKENS
from closeout.orchestrator.loops import LoopWatch
from closeout.orchestrator.plan import AgentPlan
from closeout.orchestrator.review import RollBack, review_answer, review_outcomes, review_reply
from closeout.orchestrator.rollback import RollbackPolicy
from closeout.orchestrator.room import eviction_policy, make_room
from closeout.orchestrator.scope import Scope
from closeout.orchestrator.tool_door import ToolDoor
from closeout.outputs.artifacts import Artifact
from closeout.outputs.tokens import TokenCounter, estimate_tokens
from closeout.tools.executor import CallOutcome, ToolExecutor

__all__ = ["Orchestrator"]

# No attempt follows these.
FINAL_STOPS = frozenset({"max_tokens", "max_cost", "max_seconds", "model_failed", "context_overflow"})


class Orchestrator:
    """Leads the agent of a plan through one task, in a scope of a run's journal."""

    def __init__(
        self,
        plan: AgentPlan,
        scope: Scope,
        question: str,
        *,
        earlier: Sequence[Message] = (),
        images: Sequence[dict[str, Any]] = (),
        task: str = "",
    ) -> None:
        self.plan = plan
        self.scope = scope
        self.question = task or question  # what closing asks again: without the texts of files
        self.tools = plan.offered_tools()
        self.history = History(plan.full_instructions(), question, self.tools, earlier, images, scope.path)
        self.asking = Asking(plan, scope, self.tools)
        self.door = ToolDoor(scope)
        self.executor = ToolExecutor(
            main_agent_tool_manager=plan.manager,
            max_consecutive_rollbacks=plan.settings.max_consecutive_rollbacks,
            result_budget=plan.settings.result_budget,
            max_parallel=plan.settings.max_parallel_calls,
            model=plan.client.name.rpartition(":")[2],
        )
        self.eviction = eviction_policy(plan)
        self.context_asked = False  # its server, how long the model's context is
        self.counter = TokenCounter(plan.client.name)
        self.candidates: list[str] = []  # answers in the form asked for, seen on the way
        self.values: dict[str, Any] = {}  # the same as their contract's type
        self.facts: list[CallOutcome] = []  # what the present attempt called, for its experience
        self.closed: Closed | None = None  # how the last attempt ended

    async def run(self) -> Closed:
        """The task's answer, or why there is none. Raises nothing but cancellation and JournalError."""
        stop_listening = self.scope.journal.listen(self.history)
        budget = self.scope.budget
        budget.begin(CLOSING_TOKENS + (estimate_tokens(self.question) if budget.limited else 0))
        experiences: list[FailureExperience] = []
        try:
            for number in range(self.plan.settings.context_compress_limit + 1):
                closed = await self._attempt(number, experiences)
                if closed.answer is not None or closed.stop_reason in FINAL_STOPS or not closed.experience:
                    break
                experiences.append(closed.experience)
            return closed
        finally:
            budget.end()
            stop_listening()

    def so_far(self, broken: Closed) -> Closed:
        """The best answer there is when something breaks: the one given, else one that was seen on the way."""
        given = self.closed
        if given is not None and given.answer is not None:
            return replace(given, stop_reason=broken.stop_reason, error=broken.error, error_kind=broken.error_kind)
        return fall_back(self, broken)

    async def _attempt(self, number: int, experiences: Sequence[FailureExperience]) -> Closed:
        plan, path = self.plan, self.scope.path
        self.attempt, self.turn, self.nudges, self.circles = number, 0, 0, 0
        self.doubted = False  # an answer that was only an error was asked for again
        self.facts = []
        self.rollbacks = RollbackPolicy(
            plan.settings.max_consecutive_rollbacks,
            plan.settings.max_rollbacks,
            plan.llm.temperature,
            [tool.name for tool in self.tools if tool.name != "read_result"],
        )
        self.loops = LoopWatch(tool.name for tool in self.tools if tool.policy.repeatable)
        self.executor.begin_attempt(path)
        learned = render_experiences(experiences) if plan.settings.retry_with_summary else ""
        self.scope.journal.append(AttemptStarted(path, number, (learned,) if learned else ()))
        if self.scope.budget.limited:
            self.scope.budget.expect(self.asking.first_prompt_tokens(self.history))
        try:
            stop = await self._act()
        except LimitReached as error:
            stop = Stop.failed(error.limit, error)
        except ContextOverflow as error:
            stop = Stop.failed("context_overflow", error)
        except ModelError as error:
            budget = self.scope.budget
            late = "max_seconds" if budget.out_of_time else "model_failed"
            stop = Stop.failed(budget.reached(self.turn) or late, error)
        is_final = number == plan.settings.context_compress_limit or stop.reason in FINAL_STOPS
        self.closed = closed = await close_attempt(self, stop, is_final=is_final)
        experience = closed.experience.text() if closed.experience else ""
        turns = self.turn + (stop.reading is not None)
        self.scope.journal.append(AttemptEnded(path, number, closed.stop_reason, closed.answer, experience, turns))
        return closed

    async def _act(self) -> Stop:
        """Turns, until the model answers or something ends the attempt."""
        while not (limit := self.scope.budget.reached(self.turn)):
            reading = await self.asking.ask(self.history, self.rollbacks, self.attempt, self.turn)
            if reading.repairs:
                self._record(reading.repairs)
            outcomes: Sequence[CallOutcome] = ()
            back = self._review(reading)
            if back is None:
                if not reading.calls:
                    return Stop("answered", reading)
                outcomes = await self._call(reading)
                back = review_outcomes(outcomes)
            if back is not None:
                if self.rollbacks.spent:
                    return Stop("rollbacks", error=back.detail or back.hint)
                self._roll_back(back)
                continue
            self._accept(reading, outcomes)
            if self._circles():
                return Stop("loop")
            await make_room(self)
        return Stop(limit)

    # ------------------------------------------------------------------------------------------- parts of a turn

    def _review(self, reading: Reading) -> RollBack | None:
        text = reading.answer or ""
        back = review_reply(
            reading,
            answer_fits=bool(text) and self.asking.answer_in(text).ok,
            tools_offered=bool(self.tools),
            may_nudge=self.nudges < 2,
        )
        if back is not None and back.reason == "no_action":
            self.nudges += 1
        if back is None and text and not reading.calls and not self.doubted and self.history.steps:
            back = review_answer(self.asking.answer_in(text).text, self.history.steps[-1].returns)
            self.doubted = back is not None
        return back

    async def _call(self, reading: Reading) -> Sequence[CallOutcome]:
        self.door.begin(self.turn, len(reading.calls))
        outcomes = await self.executor.execute_calls(
            reading.calls,
            agent=self.scope.path,
            allow_duplicates=self.rollbacks.spent,
            through=self.door,
            handles=self.door.handle,
        )
        for outcome in outcomes:
            if outcome.repairs:
                self._record(outcome.repairs)
            self.scope.artifacts.put(outcome.handle, Artifact(outcome.output.result, outcome.call.name))
        self.facts.extend(outcomes)
        return outcomes

    def _record(self, repairs: Sequence[Repair]) -> None:
        for repair in repairs:
            self.scope.journal.append(
                Repaired(self.scope.path, self.turn, repair.kind, repair.where, repair.before, repair.after)
            )

    def _roll_back(self, back: RollBack) -> None:
        change = self.rollbacks.roll_back(back)
        tokens = self.scope.budget.last.total_tokens
        event = TurnRolledBack(self.scope.path, self.attempt, self.turn, back.reason, back.detail, change, tokens)
        self.scope.journal.append(event)
        self.asking.taken_back()

    def _accept(self, reading: Reading, outcomes: Sequence[CallOutcome]) -> None:
        self.rollbacks.succeed()
        calls, returns = [], []
        for index, outcome in enumerate(outcomes):
            call = outcome.call
            calls.append(
                {
                    "id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                    "server_name": call.server_name,
                    "text": call.text,
                }
            )
            returns.append(
                {
                    "call": index,
                    "text": outcome.text,
                    "handle": outcome.handle,
                    "ok": outcome.ok,
                    "tokens": outcome.tokens,
                    "images": outcome.images,
                }
            )
        said = reading.text, reading.raw, reading.reasoning
        self.scope.journal.append(
            TurnAccepted(self.scope.path, self.attempt, self.turn, *said, tuple(calls), tuple(returns))
        )
        self._note_candidate(reading.text)
        self.turn += 1

    def _note_candidate(self, text: str) -> None:
        """An answer on the way is not the end, but something to fall back on."""
        if not text:
            return
        found = self.asking.answer_in(text)
        if found.ok:
            self.candidates.append(found.text)
            self.values[found.text] = found.value
            self.scope.journal.append(AnswerSeen(self.scope.path, self.attempt, self.turn, found.text, text))

    def _circles(self) -> bool:
        """Whether the agent still goes in circles after it was told so once."""
        step = self.history.steps[-1]
        finding = self.loops.see(step.calls, step.returns)
        if not finding:
            return False
        self.circles += 1
        self.rollbacks.note = f"{finding} Do something else, or give your answer from what you know."
        return self.circles > 1
