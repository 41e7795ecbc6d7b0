"""End an attempt: accept its answer, or have an AnswerGenerator ask for one, or keep what the attempt has learned."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from closeout.answers.dialogue import (
    CUT,
    ClosingDialogue,
    ClosingRequest,
    Dialogue,
    FinalizedAnswer,
    History,
    LLMCallResult,
    Outcome,
    enforceable,
    unfinished,
)
from closeout.answers.experience import experience_from
from closeout.answers.formatter import FinalSummary, FormattedAnswer
from closeout.answers.generator import AnswerGenerator, max_final_answer_retries
from closeout.answers.reading import ContractReading
from closeout.answers.replies import problem_of
from closeout.answers.selection import AnswerCandidate, select_answer
from closeout.errors import ContextOverflow, Failure, JournalError, LimitReached, ModelError, ModelTimeout
from closeout.journal.events import Noted
from closeout.journal.run_journal import Journal
from closeout.journal.task_log import StepLog, TaskLog
from closeout.messages import Message, ModelReply, ModelRequest, Reading, RequestInfo, Usage
from closeout.models.base import RetryNote, UsageSummary, assistant_message, summarise_usage, tool_call_infos
from closeout.results.budgets import cut_text, largest_fit
from closeout.run.attempt import AgentWork, Attempt
from closeout.run.closing_client import ClosingClient
from closeout.run.plan import AgentPlan
from closeout.run.result import AgentResult, Stop

__all__ = ["close_attempt", "fall_back", "with_summary"]

LAST_PART = 4  # of a conversation that is too long even without its results, this fraction of its end is kept: 1/4


def close_attempt(attempt: Attempt, stop: Stop, *, is_final: bool) -> Awaitable[AgentResult | Reading]:
    """End an attempt.

    Args:
        attempt: The attempt.
        stop: Why it stopped acting.
        is_final: Whether no other attempt follows, so that an answer seen on the way is better than none.

    Returns:
        The result; or a reply that calls a tool instead of answering, with which the attempt continues.
    """
    return _Closing(attempt, stop, is_final).run()


def fall_back(agent: AgentWork, result: AgentResult) -> AgentResult:
    """Return a result without an answer with the best one that was seen on the way, if there is any."""
    selection = select_answer(agent.answers.seen, agent.plan.settings.answer_selection)
    if selection.answer is None:
        return result
    answers = agent.answers
    return replace(
        result,
        answer=selection.answer,
        value=answers.value_of(selection.answer),
        text=answers.text_of(selection.answer) or result.text,
        summary="",
        candidates=tuple((ranked.text, ranked.share) for ranked in selection.ranking),
    )


def with_summary(plan: AgentPlan, result: AgentResult, usage: Usage, journal: Journal) -> AgentResult:
    """Return the result of a run with its final summary, which the plan's formatter writes for every end.

    Args:
        plan: The main agent.
        result: How it ended. A summary that was written when its answer was accepted is kept.
        usage: What the run used.
        journal: Records a formatter that raises; the summary is then the default one.
    """
    if result.summary:
        return result
    client = _RunUsage(plan.client.name, usage)
    try:
        formatted = FormattedAnswer(*plan.output_formatter.format_final_summary_and_log(result.text, client))
        return replace(result, summary=formatted.summary_text)
    except Exception as error:  # a formatter or a contract that fails must not cost the result
        text = f"The output formatter failed, so the summary is the default one. {type(error).__name__}: {error}"
        with suppress(JournalError):
            journal.append(Noted("main", "warning", "Final summary", message=text))
    lines, log = client.format_token_usage_summary()
    summary = FinalSummary(
        final_answer=result.text,
        answer=result.answer,
        value=result.value,
        reading=ContractReading(problem="No answer was found."),
        usage_lines=tuple(lines),
        usage_log=log,
    )
    return replace(result, summary=summary.text)


@dataclass(frozen=True, slots=True)
class _RunUsage:
    """The usage of a run, in the shape that formatters take it from a model client."""

    name: str
    usage: Usage

    def format_token_usage_summary(self) -> UsageSummary:
        return summarise_usage(self.name, self.usage)


class _Closing:
    """The end of one attempt."""

    def __init__(self, attempt: Attempt, stop: Stop, is_final: bool) -> None:
        agent = attempt.agent
        self._attempt = attempt
        self._stop = stop
        self._is_final = is_final
        self._agent = agent
        self._plan = agent.plan
        self._session = agent.session
        self._listener = agent.session.closing_listener(attempt.turns)
        self._info = RequestInfo("close", attempt.number, attempt.turns)
        self._may_act = stop.reason == "insisted" and attempt.may_reopen
        self._may_shrink = True
        self._log = self._task_log()

    async def run(self) -> AgentResult | Reading:
        stop, text = self._stop, self._stop.text
        if (
            text
            and stop.reason != "check_failed"
            and self._may_stand(text)
            and (accepted := self._accepted(text)) is not None
        ):
            return accepted
        if stop.reason in ("model_failed", "check_failed") or self._agent.scope.budget.exhausted():
            self._listener.refused()
            return self._without_asking(stop)
        return await self._ask()

    def _may_stand(self, text: str) -> bool:
        """Return whether the reply that ended the attempt can be the answer, if the contract takes it.

        Where any text is an answer, a thought without an action is none.
        """
        found, stop = self._agent.answers.read(text), self._stop
        if stop.reason == "answered" or found.marked:
            return True
        return stop.reading is not None and stop.reading.answer is not None

    def _accepted(self, text: str) -> AgentResult | None:
        """Return the result of a text in which the formatter finds an answer, otherwise None."""
        formatted, found = self._format(text), self._agent.answers.read(text)
        if (answer := formatted.answer) is None:
            return None
        value = found.value if answer == found.text else self._agent.answers.value_of(answer)
        result = AgentResult(
            answer=answer, stop_reason="answered", value=value, text=text, summary=formatted.summary_text
        )
        return self._selected(answer, result)

    def _format(self, text: str) -> FormattedAnswer:
        client = _RunUsage(self._plan.client.name, self._agent.scope.budget.usage)
        return FormattedAnswer(*self._plan.output_formatter.format_final_summary_and_log(text, client))

    def _selected(self, answer: str, result: AgentResult) -> AgentResult:
        """Return the result with the answer that the settings select among all that were seen, and their ranking.

        Its text is the one that holds the answer. The summary is kept if it belongs to that text.
        """
        answers = self._agent.answers
        seen: list[AnswerCandidate | str] = [*answers.seen, AnswerCandidate(answer, final=True)]
        selection = select_answer(seen, self._plan.settings.answer_selection)
        ranking = tuple((ranked.text, ranked.share) for ranked in selection.ranking)
        if selection.answer is not None and selection.answer != answer:
            answer = selection.answer
            result = replace(result, answer=answer, value=answers.value_of(answer))
        source = answers.text_of(answer)
        if source is not None and answers.read(result.text).text != answer:
            result = replace(result, text=source, summary="")
        return replace(result, candidates=ranking)

    def _without_asking(self, stop: Stop) -> AgentResult:
        """End without the model: what was seen on the way is all there is."""
        result = AgentResult(
            answer=None,
            stop_reason=stop.reason,
            text=stop.text,
            experience=experience_from(None, self._attempt.call_facts(), reason=stop.reason),
            failure=stop.failure,
        )
        return fall_back(self._agent, result) if self._is_final else result

    # ------------------------------------------------------------------------------------------ asking

    async def _ask(self) -> AgentResult | Reading:
        """Ask for the answer, as often as that is worthwhile; an AnswerGenerator of the user's decides how."""
        text = self._stop.text
        history: History = [*self._messages()]
        if text:
            history.append(Message(role="assistant", content=text))
        self._listener.refused(text)
        dialogue = self._dialogue()
        if text and problem_of(text, dialogue.contract.read(text)).finishable:
            finished = await self._converse(dialogue.ask_form(history, text))
            if isinstance(finished, Reading):
                return finished
            if (accepted := self._accepted(finished)) is not None:
                return accepted
        self._listener.refused()
        if self._plan.make_generator is not AnswerGenerator:
            return await self._ask_generator(history)
        steps = dialogue.close(history, turns_spent=self._turns_spent, another_follows=not self._is_final)
        ended = await self._converse(steps)
        return ended if isinstance(ended, Reading) else self._ended(ended)

    def _dialogue(self) -> ClosingDialogue:
        plan, agent = self._plan, self._agent
        return ClosingDialogue(
            task=agent.question,
            turns=self._attempt.turns,
            contract=plan.contract,
            format_answer=self._format,
            log=self._log.log_step,
            agent_type=agent.scope.path.rpartition(":")[2],
            retries=max_final_answer_retries(plan),
            constraint=enforceable(plan.contract.constraint(), self._session.capabilities),
            on_refused=self._listener.refused,
            seen=agent.answers.seen,
            selection=plan.settings.answer_selection,
        )

    async def _converse(self, steps: Dialogue[Outcome]) -> Outcome | Reading:
        """Send the requests of a dialogue. Returns what came of it, or a reply that calls a tool instead."""
        session = self._session
        listener = self._listener if session.watched else None
        try:
            asked = next(steps)
            while True:
                on_delta = listener if asked.shown else None
                if on_delta is not None:
                    on_delta.begin()
                request = ModelRequest(
                    messages=[*map(Message.of, asked.messages)],
                    tools=tuple(session.native_tools),
                    constraint=asked.constraint,
                )
                try:
                    reply = await session.calls.request(
                        session.in_form(request), self._info, on_delta=on_delta, on_retry=partial(self._retried, asked)
                    )
                except (ModelError, LimitReached) as error:
                    if isinstance(error, ContextOverflow) and (shorter := self._shrunk(asked.base)) is not None:
                        asked = replace(asked, base=[*shorter])
                        continue
                    self._log.log_step("error", f"{asked.purpose} | LLM Call ERROR", f"{asked.purpose} error: {error}")
                    call = LLMCallResult.failed(asked.messages, error)
                else:
                    if self._may_act and (reading := session.read(reply)).calls:
                        self._listener.discard()
                        return reading
                    call = self._received(reply, asked)
                asked = steps.send((call, asked.base))
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    def _received(self, reply: ModelReply, asked: ClosingRequest) -> LLMCallResult:
        step, cut = f"{asked.purpose} | LLM Call", reply.finish_reason in CUT
        self._log.log_step("info", step, "completed successfully")
        if not (reply.finished or cut):
            self._log.log_step("warning", step, f"the reply is not finished ({reply.finish_reason})")
            return LLMCallResult.failed(asked.messages, unfinished(reply))
        text, calls = self._session.answer_or_text(reply), tool_call_infos(self._session.calls_in(reply))
        return LLMCallResult(text, False, calls, [*asked.messages, assistant_message(reply)], cut=cut)

    def _retried(self, asked: ClosingRequest, retry: RetryNote) -> None:
        agent_type = self._agent.scope.path.rpartition(":")[2]
        message = f"{retry.error} Retrying in {retry.delay:.1f} s."
        self._log.log_step("warning", f"{agent_type} | LLM retry | step {asked.step}", message)

    def _shrunk(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Message] | None:
        """Return a shorter conversation, None if it was shortened before or cannot be."""
        if not self._may_shrink:
            return None
        self._may_shrink = False
        return self._session.shrunk_messages(self._agent.history, self._attempt.number) or _ends_of(messages)

    @property
    def _turns_spent(self) -> bool:
        return self._stop.reason not in ("answered", "insisted")

    def _ended(self, ended: FinalizedAnswer) -> AgentResult:
        """Return the result of what closing came to."""
        if (answer := ended.answer) is None:
            return self._unanswered(ended)
        reason = self._stop.reason
        result = AgentResult(
            answer=answer,
            stop_reason="answered" if reason == "insisted" else reason,
            value=self._agent.answers.value_of(answer, ended.value),
            text=ended.text,
            summary=ended.final_summary,
        )
        return self._selected(answer, result)

    async def _ask_generator(self, history: History) -> AgentResult | Reading:
        """Have the user's AnswerGenerator ask."""
        client = ClosingClient(
            self._session,
            self._info,
            listener=self._listener if self._session.watched else None,
            may_act=self._may_act,
        )
        try:
            ended: Any = await self._generator(client).generate_and_finalize_answer(
                system_prompt="",
                message_history=history,
                tool_definitions=self._session.native_tools,
                turn_count=self._attempt.turns,
                task_description=self._agent.question,
                reached_max_turns=self._turns_spent,
                is_final_retry=self._is_final,
                save_callback=lambda *_: client.stop_listening(),
            )
        except ModelError as error:
            return self._without_asking(Stop(reason="model_failed", failure=Failure.of(error)))
        if client.acted is not None:
            self._listener.discard()
            return client.acted
        return self._ended(ended if isinstance(ended, FinalizedAnswer) else FinalizedAnswer(*ended))

    def _generator(self, client: ClosingClient) -> AnswerGenerator:
        generator = self._plan.make_generator(
            llm_client=client,
            output_formatter=self._plan.output_formatter,
            task_log=self._log,
            stream_handler=None,
            cfg=self._plan,
            intermediate_boxed_answers=list(self._agent.answers.seen),
        )
        generator.contract = self._plan.contract
        generator.shrink_history = self._shrunk
        generator.agent_type = self._agent.scope.path.rpartition(":")[2]
        generator.on_refused = self._listener.refused
        return generator

    def _messages(self) -> list[Message]:
        """The conversation, cut to what the budget allows if the last results are larger than that."""
        calls, agent, number = self._session.calls, self._agent, self._attempt.number
        messages = self._session.messages(agent.history)
        if calls.can_close(messages):
            return messages
        messages = self._session.shrunk_messages(agent.history, number, "budget") or messages
        if calls.can_close(messages):
            return messages
        begin = max((index + 1 for index, message in enumerate(messages) if message.role == "assistant"), default=0)
        results = messages[begin:] if begin else []
        longest = max((len(message.text) for message in results), default=0)

        def cut(length: int) -> list[Message]:
            return [*messages[:begin], *(_shortened(message, length) for message in results)]

        return largest_fit(0, longest, cut, calls.can_close) or messages

    def _unanswered(self, ended: FinalizedAnswer) -> AgentResult:
        """Closing got no answer: for the reason of the stop, or because the model failed."""
        stop, error = self._stop, ended.failure
        reason, failure = stop.reason, stop.failure
        if reason in ("answered", "insisted"):
            # A reply in the form of an answer meant to be one; any other declined.
            found = self._agent.answers.read(stop.text)
            refused = stop.text and (found.kind == "missing" or not found.marked)
            reason, failure = ("refused", Failure("", stop.text)) if refused else ("no_answer", None)
        out_of_time = stop.reason == "max_seconds" and isinstance(error, ModelTimeout)
        if isinstance(error, ModelError) and not out_of_time:
            reason = "context_overflow" if isinstance(error, ContextOverflow) else "model_failed"
        if error is not None and stop.failure is None:
            failure = Failure.of(error)
        account = ended.failure_experience_summary
        return AgentResult(
            answer=None,
            stop_reason=reason,
            text=ended.text or stop.text,
            experience=experience_from(account, self._attempt.call_facts(), reason=reason, reply=stop.text),
            failure=failure,
        )

    def _task_log(self) -> TaskLog:
        """A log whose steps become events of the run."""
        scope = self._agent.scope

        def write(step: StepLog) -> None:
            scope.journal.append(Noted(scope.path, step.level, step.name, message=step.message, metadata=step.metadata))

        return TaskLog(task_id=scope.journal.run_id, input=self._agent.question, writer=write)


def _shortened(message: Message, length: int) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= length:
        return message
    return Message(message, content=cut_text(content, length).text)


def _ends_of(messages: Sequence[Mapping[str, Any]]) -> list[Message] | None:
    """Return the task and the last part of a conversation, from an assistant's message on. None if that is all."""
    history = [Message.of(message) for message in messages]
    starts = [index for index, message in enumerate(history) if message.role == "assistant"]
    left = sum(len(message.text) for message in history[starts[0] :]) // LAST_PART if starts else 0
    end = len(history)
    for index in reversed(starts[1:]):
        left -= sum(len(message.text) for message in history[index:end])
        end = index
        if left <= 0:
            return history[: starts[0]] + history[index:]
    return None
