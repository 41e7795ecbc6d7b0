"""One attempt at a task: turns of asking the model, running its calls, and accepting or rolling back what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from closeout.answers.dialogue import FinalizedAnswer
from closeout.answers.experience import CallFact, experience_from
from closeout.answers.reading import ContractReading
from closeout.context.history import History
from closeout.context.keeper import ContextKeeper, estimate_prompt
from closeout.dialects.functions import programs_in
from closeout.errors import ContextOverflow, Failure, Interrupted, LimitReached, ModelError
from closeout.journal.events import (
    AnswerSeen,
    AttemptStarted,
    CheckpointReached,
    Repaired,
    TurnAccepted,
    TurnRolledBack,
    attached_text,
)
from closeout.messages import Reading, Repair, RequestInfo, ToolSpec
from closeout.parsing.salvage import AMID_TEXT
from closeout.results.artifacts import Artifact
from closeout.run.answer_checks import AnswerChecks, Objection
from closeout.run.calls import ToolCalls, refusal_note
from closeout.run.final_format import FinalFormat
from closeout.run.handoff import Handoff
from closeout.run.loops import LoopWatch
from closeout.run.offered_tools import OfferedTools
from closeout.run.plan import AgentPlan, Scope
from closeout.run.programs import answer_given
from closeout.run.result import AgentResult, Stop
from closeout.run.review import (
    Answers,
    RollBack,
    RollbackPolicy,
    review_outcomes,
    review_program,
    review_reply,
    review_text,
    review_unrun_call,
)
from closeout.run.session import ModelSession
from closeout.tools.executor import CallExecutor, CallOutcome
from closeout.tools.search_tools import as_written, inner_call

__all__ = ["AgentWork", "Attempt", "AttemptTurn"]

MAX_NON_ANSWERS = 2  # replies in a row that neither act nor answer, before the contract's closing takes over
MAX_REOPENED = 3  # Times that an attempt continues because closing was answered with a tool call.


class ClosingGenerator(Protocol):
    """Closes an attempt in a way of the user's.

    Attributes:
        decides: Whether it is also asked about an answer that the model gave before closing.
        falls_back: Whether it is also asked where the model has failed.
    """

    decides: bool
    falls_back: bool

    async def close(
        self, history: list[dict[str, Any]], info: RequestInfo, **options: Any
    ) -> FinalizedAnswer | Reading | None:
        """Return the end of the attempt, a reply that calls a tool instead, or None if it cannot close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork:
    """The parts of an agent that all its attempts share."""

    plan: AgentPlan
    scope: Scope
    question: str  # the task without the texts of its files
    offered: OfferedTools
    history: History
    keeper: ContextKeeper
    session: ModelSession
    executor: CallExecutor
    tool_calls: ToolCalls
    answers: Answers
    format: FinalFormat
    generator: ClosingGenerator | None  # None: closing asks by itself
    handoffs: Mapping[str, Handoff]  # keyed by the names of their tools

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that are offered now."""
        return self.offered.specs


@dataclass(slots=True)
class AttemptTurn:
    """One reply and the results of its calls."""

    number: int
    reading: Reading
    outcomes: Sequence[CallOutcome] = ()

    @property
    def text(self) -> str:
        """The reply's answer, or its text beside a call."""
        return self.reading.text if self.reading.answer is None else self.reading.answer

    def accepted(self, agent: str, attempt: int) -> TurnAccepted:
        """Return the event that adds the turn to the history."""
        calls, returns = [], []
        for index, outcome in enumerate(self.outcomes):
            call = as_written(self.reading.calls[index], outcome.call)
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
            if outcome.output.compressed:
                returns[-1]["compressed"] = True
        reading = self.reading
        return TurnAccepted(
            agent,
            attempt,
            self.number,
            text=reading.text,
            raw=reading.raw,
            reasoning=reading.reasoning,
            calls=tuple(calls),
            returns=tuple(returns),
            attached=attached_text(reading.attached),
        )


class Attempt:
    """One attempt of an agent. It starts with an empty history and what earlier attempts have learned."""

    def __init__(self, agent: AgentWork, number: int, learned: str = "") -> None:
        plan, scope = agent.plan, agent.scope
        self.agent = agent
        self.number = number
        self.turns = 0  # accepted so far
        self._outcomes: list[CallOutcome] = []  # those of all calls
        self._learned = learned
        self._path = scope.path
        self._journal = scope.journal
        self._budget = scope.budget
        self._history = agent.history
        self._session = agent.session
        self._executor = agent.executor
        self._rollbacks = RollbackPolicy(
            agent.executor.max_consecutive_rollbacks,
            plan.settings.max_rollbacks,
            plan.llm.temperature,
        )
        self._checks = AnswerChecks(plan.spec.check, scope, agent.question, number)
        self._loops = LoopWatch()
        self._note_tools()
        self._loops_found = 0
        self._non_answers = 0  # consecutive ones
        self._reopened = 0
        self.handoff: Handoff | None = None  # to the agent that continues
        self._unrun = False  # an answer that contained a call was asked for again

    @property
    def may_reopen(self) -> bool:
        """True if the attempt may continue after closing was answered with a tool call."""
        return bool(self.agent.tools) and self._reopened < MAX_REOPENED and not self._budget.reached(self.turns)

    def call_facts(self, *, only_ok: bool = False) -> list[CallFact]:
        """Return what was called and how it went, for the experience. A call that was made before is one call."""
        return [
            CallFact(outcome.call.name, outcome.call.arguments, outcome.ok, outcome.reason or outcome.output.summary)
            for outcome in self._outcomes
            if (outcome.ok or not only_ok) and outcome.status != "duplicate"
        ]

    def start(self) -> None:
        """Record that the attempt begins. The history is empty again."""
        self._executor.begin_attempt(self._path)
        self._journal.append(AttemptStarted(self._path, self.number, (self._learned,) if self._learned else ()))
        if self._budget.limited:
            self._budget.expect(estimate_prompt(self._session.render(self._history)))

    async def run(self, first: Reading | None = None) -> Stop:
        """Take turns until the model answers or something ends the attempt.

        Args:
            first: A reply to act on before the model is asked again: the tool call that closing was answered with.

        Returns:
            Why the attempt stopped. Failures of the model and limits are reasons, not exceptions.
        """
        if first is not None:
            self._reopened += 1
        try:
            while not (limit := self._budget.reached(self.turns)):
                reading, first = first, None
                if reading is None:
                    self._receive()
                    self._refresh_tools()
                    info = RequestInfo("act", self.number, self.turns, self._hints())
                    try:
                        reading = await self._session.query(self._history, info, self._rollbacks)
                    except Interrupted:
                        continue
                stop = await self._take(AttemptTurn(self.turns, reading))
                if stop is not None:
                    if self.handoff is not None or await self._takes_no_more():
                        return stop
                    self._keep_reply(stop)
            return Stop(reason=limit)
        except LimitReached as error:
            return Stop(reason=error.limit, failure=Failure.of(error))
        except ContextOverflow as error:
            return Stop(reason="context_overflow", failure=Failure.of(error))
        except ModelError as error:
            late = "max_seconds" if self._budget.out_of_time else "model_failed"
            return Stop(reason=self._budget.reached(self.turns) or late, failure=Failure.of(error))

    # ------------------------------------------------------------------------------------------ messages of the user's

    def _receive(self) -> bool:
        """Add what the user has sent to the history, and return whether there was anything."""
        received = self._journal.inbox.due(self._path, self._session.calls.sent)
        for message in received:
            self._journal.append(message)
        if received:
            self.agent.answers.forget()
            self._loops, self._loops_found = LoopWatch(), 0
            self._note_tools()
        return bool(received)

    async def _takes_no_more(self) -> bool:
        """Close the inbox. Return False if a message arrived first."""
        return await self._journal.inbox.close(self._path, self._session.calls.sent)

    def _keep_reply(self, stop: Stop) -> None:
        """Make the reply that would have ended the attempt a turn like others."""
        if stop.reading is not None and stop.text and not stop.accepted:
            self._accept(AttemptTurn(self.turns, replace(stop.reading, text=stop.text, calls=(), answer=None)))

    async def receive_last(self) -> None:
        """Add what the user has sent to the history, for closing, and refuse messages from now on."""
        while not await self._takes_no_more() and self._receive():
            pass

    def _hints(self) -> str:
        """Return what the next request ends with: the note of a fork, and the hint of a rollback."""
        started, hint = self._journal.started, self._rollbacks.note
        if started is None or not started.notes or self._path != "main":
            return hint
        sent = self._session.calls.sent
        notes = [f"Note from the user: {note.get('text')}" for note in started.notes if note.get("request", 0) <= sent]
        return "\n\n".join(filter(None, (*notes, hint)))

    def _refresh_tools(self) -> None:
        """Offer what the tool manager has now. Servers may have changed their tools during the last turn."""
        agent = self.agent
        if not agent.offered.refresh(self._session.calls.sent):
            return
        agent.history.tools = agent.offered.shown
        agent.executor.offer(agent.tools)
        self._note_tools()

    def _note_tools(self) -> None:
        tools = self.agent.tools
        self._rollbacks.tools = [tool.name for tool in tools if tool.name != "read_result"]
        self._loops.repeatable = frozenset(tool.name for tool in tools if tool.policy.repeatable)

    async def _take(self, turn: AttemptTurn) -> Stop | None:
        """Act on a reply. Returns why the attempt stops here, None if it continues."""
        if self._rollbacks.draft:
            self._complete_draft(turn)
        reading = turn.reading
        if reading.ends:
            return Stop(reason="insisted", reading=replace(reading, calls=()))
        if reading.repairs:
            self._record(reading.repairs)
        back = self._review(turn)
        if back is None:
            if not reading.calls:
                return await self._answered(turn)
            turn.outcomes = await self.agent.tool_calls.execute(
                self._executor,
                [inner_call(call) for call in reading.calls],
                turn=turn.number,
                agent=self._path,
                allow_duplicates=self._rollbacks.exhausted,
                shows=self._history.shows,
            )
            self._note_outcomes(turn.outcomes)
            back = review_outcomes(turn.outcomes)
        if back is not None:
            return self._roll_back(back, reading)
        self._accept(turn)
        if self.agent.handoffs and (handoff := self._handoff_in(turn.outcomes)) is not None:
            self.handoff = handoff
            return Stop(reason="handed_over", accepted=True)
        if (answer := answer_given(turn.outcomes, self.agent.answers)) is not None:
            objection = await self._objection(answer, turn)
            if objection is None or not objection.sends_back:
                reading = replace(reading, text="", calls=(), answer=answer)
                if objection is None:
                    return Stop(reason="answered", reading=reading, accepted=True)
                failure = Failure("", objection.problem)
                return Stop(reason="check_failed", reading=reading, failure=failure, accepted=True)
            self._rollbacks.note = objection.problem
        if self._circles():
            return Stop(reason="loop")
        await self._make_room()
        return None

    def _handoff_in(self, outcomes: Sequence[CallOutcome]) -> Handoff | None:
        """Return the first handoff among the calls of a turn."""
        called = (self.agent.handoffs.get(each.call.name) for each in outcomes if each.was_executed and each.ok)
        return next(filter(None, called), None)

    # ------------------------------------------------------------------------------------------ the answer

    async def _answered(self, turn: AttemptTurn) -> Stop | None:
        """Decide on a reply without calls. Returns None if a check of the user's sends the model back."""
        if not self.agent.answers.read_final(turn.text).ok:
            return Stop(reason="insisted", reading=turn.reading)
        objection = await self._objection(turn.text, turn)
        if objection is None:
            return Stop(reason="answered", reading=turn.reading)
        if objection.sends_back:
            said = objection.problem
            return self._roll_back(RollBack("check", said, said, draft=turn.text), turn.reading)
        return Stop(reason="check_failed", reading=turn.reading, failure=Failure("", objection.problem))

    async def _objection(self, text: str, turn: AttemptTurn) -> Objection | None:
        found, may_ask = self.agent.answers.read_final(text), not self._rollbacks.exhausted
        return await self._checks.objection(found, self._outcomes, turn.reading.calls, may_ask=may_ask)

    async def checked(self, result: AgentResult) -> AgentResult:
        """Return the result of closing, without its answer if a check of the user's refuses that.

        The next attempt learns what the check said.
        """
        failure = result.failure if result.stop_reason == "check_failed" else None
        if result.answer is not None:
            found = ContractReading(value=result.value, text=result.answer, ok=True)
            objection = await self._checks.objection(found, self._outcomes, (), may_ask=False)
            if objection is None:
                return result
            failure = Failure("", objection.problem)
        if failure is None:
            return result
        reason = f"a check said: {failure.message}"
        return AgentResult(
            answer=None,
            stop_reason="check_failed",
            text=result.text,
            experience=experience_from(None, self.call_facts(), reason=reason, reply=result.text),
            failure=failure,
        )

    # ------------------------------------------------------------------------------------------ parts of a turn

    def _complete_draft(self, turn: AttemptTurn) -> None:
        """If the reply only adds the answer's form to the reply before, both together are the answer."""
        reading, answers, draft = turn.reading, self.agent.answers, self._rollbacks.draft
        if reading.calls or reading.defects or not turn.text or answers.read(draft).ok:  # an answer that was refused
            return
        both = f"{draft}\n\n{turn.text}"
        alone, together = answers.read(turn.text), answers.read(both)
        if together.ok and (not alone.ok or alone.text == together.text):
            turn.reading = replace(reading, answer=both)
            self._session.publish_answer(both)

    def _review(self, turn: AttemptTurn) -> RollBack | None:
        if self._rollbacks.note.startswith(AMID_TEXT.hint) and turn.reading.answer is not None:
            self._unrun = True  # asked for once, it is text
            turn.reading = replace(turn.reading, defects=tuple(d for d in turn.reading.defects if d != AMID_TEXT))
        reading, answers, tools = turn.reading, self.agent.answers, self.agent.tools
        read = answers.read if reading.calls or reading.defects else answers.read_final
        found = read(turn.text) if turn.text else ContractReading()
        back = review_reply(reading, answers.contract, found, tools_offered=bool(tools))
        if back is None and self._session.capabilities.weak:
            back = next(filter(None, map(review_program, programs_in(reading.calls))), None)
        if back is not None or reading.calls or not found.ok:
            return back
        if not found.marked:
            back = review_text(found.text)
        if back is None and tools and not self._unrun and not self._rollbacks.draft:
            back = review_unrun_call(turn.text, tools, self.agent.plan.spec.forms)
            self._unrun = back is not None
        return back

    def _note_outcomes(self, outcomes: Sequence[CallOutcome]) -> None:
        """Record what was repaired, and keep the results for `read_result`."""
        artifacts, telemetry = self.agent.scope.artifacts, self.agent.scope.telemetry
        for outcome in outcomes:
            if outcome.was_executed:
                telemetry.record(outcome.output.telemetry)
                self.agent.scope.update_state(outcome.output)
            elif outcome.was_refused:
                if outcome.spec is not None:
                    telemetry.record(outcome.output.telemetry)
                self._journal.append(refusal_note(self._path, outcome))
            if outcome.warning:
                self.agent.scope.warn("Result formatter", outcome.warning)
            if outcome.repairs:
                self._record(outcome.repairs)
            artifacts.put(outcome.handle, Artifact(outcome.output.value, outcome.call.name))
        self._outcomes.extend(outcomes)

    def _record(self, repairs: Sequence[Repair]) -> None:
        for repair in repairs:
            self._journal.append(
                Repaired(
                    self._path, self.turns, repair.kind, where=repair.where, before=repair.before, after=repair.after
                )
            )

    def _roll_back(self, back: RollBack, reading: Reading) -> Stop | None:
        self._non_answers = self._non_answers + 1 if back.reason == "no_action" else 0
        if self._non_answers >= MAX_NON_ANSWERS:
            self._non_answers = 0
            return Stop(reason="insisted", reading=reading)
        if self._rollbacks.exhausted:
            told = f"The model's replies were rolled back {self._rollbacks.total} times. It was told last: {back.hint}"
            return Stop(reason="rollbacks", failure=Failure("", back.detail or told))
        change = self._rollbacks.roll_back(back)
        tokens = self._budget.last.total_tokens
        self._journal.append(
            TurnRolledBack(
                self._path,
                self.number,
                self.turns,
                reason=back.reason,
                detail=back.detail,
                change=change,
                draft=back.draft,
                tokens=tokens,
            )
        )
        self._session.rolled_back()
        return None

    def _accept(self, turn: AttemptTurn) -> None:
        self._non_answers = 0
        self._rollbacks.succeed()
        self._journal.append(turn.accepted(self._path, self.number))
        for outcome in turn.outcomes:
            if outcome.was_executed and outcome.output.success and outcome.output.checkpoint:
                name, handle = outcome.output.checkpoint, outcome.handle
                self._journal.append(CheckpointReached(self._path, self.number, self.turns, name=name, handle=handle))
        text = turn.reading.text
        if text:
            found = self.agent.answers.note(text)  # not the end, but an answer to fall back on
            if found.ok and found.marked:
                self._journal.append(AnswerSeen(self._path, self.number, self.turns, answer=found.text, text=text))
        self.turns += 1

    def _circles(self) -> bool:
        """Return whether the agent is in a loop again after one warning."""
        step = self._history.steps[-1]
        finding = self._loops.see([inner_call(call) for call in step.calls], step.returns)
        if not finding:
            return False
        self._loops_found += 1
        self._rollbacks.note = f"{finding} Do something else, or give your answer from what you know."
        return self._loops_found > 1

    async def _make_room(self) -> None:
        """Leave out old results if the context is full. What is left of a spent budget is for closing."""
        agent, budget = self.agent, self._budget
        budget.added = agent.keeper.added_tokens(self._history.steps)
        tokens = agent.keeper.prompt_tokens + budget.last.output_tokens + budget.added

        async def summarise() -> str:
            if budget.reached(self.turns):
                return ""
            return await self._session.summarise(self._history, RequestInfo("compact", self.number, self.turns))

        await agent.keeper.make_room(self._history, self.number, tokens, summarise)
