"""End an attempt: accept its answer, or have an AnswerGenerator ask for one, or keep what the attempt has learned."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.answers.contracts import Json, Yaml
from closeout.answers.dialogue import (
    CUT,
    ClosingDialogue,
    ClosingRequest,
    Dialogue,
    FinalAnswer,
    FinalizedAnswer,
    History,
    LLMCallResult,
    Outcome,
    enforceable,
    max_final_answer_retries,
    unfinished,
)
from closeout.answers.experience import experience_from
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE
from closeout.answers.reading import ContractReading, said, shorten
from closeout.answers.replies import problem_of
from closeout.answers.selection import select_answer
from closeout.dialects.text_chat import said_by_user
from closeout.errors import ContextOverflow, Failure, JournalError, LimitReached, ModelError, ModelTimeout
from closeout.journal.events import Noted
from closeout.journal.run_journal import Journal
from closeout.messages import Message, ModelReply, ModelRequest, Reading, RequestInfo, Usage
from closeout.models.base import RetryNote, assistant_message, tool_call_infos
from closeout.results.budgets import cut_text, largest_fit
from closeout.run.attempt import AgentWork, Attempt
from closeout.run.final_format import FinalFormat
from closeout.run.plan import AgentPlan
from closeout.run.result import AgentResult, Stop

__all__ = ["close_attempt", "fall_back", "with_summary"]

MOST_WRITTEN = 2000  # characters of a reply that the error of a run repeats
LAST_PART = 4  # the last quarter is kept of a conversation that is too long even without its results


def close_attempt(attempt: Attempt, stop: Stop, *, is_final: bool) -> Awaitable[AgentResult | Reading]:
    """End an attempt that stopped. Without an answer, the final one falls back on an answer seen on the way.

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
    """Return the result of a run with its final summary, which the main agent's formatter writes for every end.

    A summary that was written when the answer was accepted is kept. The journal records a formatter that raises, whose
    summary is then the default one, and the line of usage that an overridden method has written.
    """
    final_format = FinalFormat(plan, journal, "main", lambda: usage)
    if not result.summary:
        formatted = final_format.format(result.text)
        result = replace(result, summary=formatted.summary_text, usage_log=result.usage_log or formatted.log_string)
    if result.usage_log and (final_format.states_usage or plan.make_generator is not None):
        with suppress(JournalError):  # the summary is not lost with it
            journal.append(Noted("main", "info", "Main Agent | Usage", message=result.usage_log))
    return result


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
        wants_to_end = stop.reading is not None and stop.reading.ends
        self._may_act = stop.reason == "insisted" and not wants_to_end and attempt.may_reopen
        self._may_shrink = True

    def _log(self, level: str, step: str, message: str) -> None:
        self._agent.scope.journal.append(Noted(self._agent.scope.path, level, step, message=message))

    async def run(self) -> AgentResult | Reading:
        stop, text = self._stop, self._stop.text
        if (
            text
            and stop.reason != "check_failed"
            and self._may_stand(text)
            and (accepted := self._accepted(text)) is not None
        ):
            return await self._confirmed(accepted)
        if stop.reason in ("model_failed", "check_failed") or self._agent.scope.budget.exhausted():
            self._listener.refused()
            generator = self._agent.generator
            if generator is not None and generator.falls_back and stop.reason != "check_failed":
                settled = FinalAnswer(None, "", FORMAT_ERROR_MESSAGE, "", self._history())
                ended = await self._ask_generator(self._history(), settled)
                if ended is not None:
                    return ended
            return self._without_asking(stop)
        return await self._ask()

    async def _confirmed(self, accepted: AgentResult) -> AgentResult | Reading:
        """Have a generator that decides on answers itself decide on the one that the model gave in the loop."""
        generator = self._agent.generator
        if generator is None or not generator.decides:
            return accepted
        history, log = self._history(), self._agent.format.client.log_string()
        reading = ContractReading(value=accepted.value, text=accepted.answer or "", ok=True)
        settled = FinalAnswer(accepted.text, accepted.summary, accepted.answer, log, history, reading=reading)
        ended = await self._ask_generator(history, settled)
        if ended is None or (isinstance(ended, AgentResult) and ended.answer == accepted.answer):
            return accepted if ended is None else replace(accepted, summary=ended.summary, usage_log=ended.usage_log)
        return ended

    def _may_stand(self, text: str) -> bool:
        """Return whether the reply that ended the attempt can be the answer, if the contract takes it.

        Where any text is an answer, a thought without an action does not count as one.
        """
        found, stop = self._agent.answers.read_final(text), self._stop
        if stop.reason == "answered" or found.marked:
            return True
        return stop.reading is not None and stop.reading.answer is not None

    def _accepted(self, text: str) -> AgentResult | None:
        """Return the result of a text in which the formatter finds an answer, otherwise None."""
        formatted, found = self._agent.format.format(text), self._agent.answers.read(text)
        if (answer := formatted.answer) is None:
            return None
        value = found.value if answer == found.text else self._agent.answers.value_of(answer)
        result = AgentResult(
            answer=answer,
            stop_reason="answered",
            value=value,
            text=text,
            summary=formatted.summary_text,
            usage_log=formatted.log_string,
        )
        return self._selected(answer, result)

    def _selected(self, answer: str, result: AgentResult) -> AgentResult:
        """Return the result with the answer that the settings select among all that were seen, and their ranking.

        Its text is the one that holds the answer. The summary is kept if it belongs to that text.
        """
        answers = self._agent.answers
        selection = select_answer([*answers.seen, answer], self._plan.settings.answer_selection)
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
        text, history = self._stop.text, self._history()
        self._listener.refused(text)
        dialogue = self._dialogue()
        if text and self._agent.generator is None and problem_of(text, dialogue.contract.read(text)).finishable:
            finished = await self._converse(dialogue.ask_form(history, text))
            if isinstance(finished, Reading):
                return finished
            if (accepted := self._accepted(finished)) is not None:
                return accepted
        self._listener.refused()
        if self._agent.generator is not None and (ended := await self._ask_generator(history)) is not None:
            return ended
        steps = dialogue.close(history, turns_spent=self._turns_spent, another_follows=not self._is_final)
        closed = await self._converse(steps)
        return closed if isinstance(closed, Reading) else self._ended(closed)

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

    def _history(self) -> History:
        """The conversation, with the reply that ended it."""
        text = self._stop.text
        return [*self._messages(), *([Message(role="assistant", content=text)] if text else [])]

    def _dialogue(self) -> ClosingDialogue:
        plan, agent = self._plan, self._agent
        return ClosingDialogue(
            task="\n\n".join((agent.question, *map(said_by_user, agent.history.messages))),
            turns=self._attempt.turns,
            contract=plan.contract,
            format_answer=agent.format.format,
            log=self._log,
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
                    if isinstance(error, ModelError):  # the dialogue logs a limit
                        step = f"{asked.purpose} | LLM Call ERROR"
                        self._log("error", step, f"{asked.purpose} error: {error}")
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
        self._log("info", step, "completed successfully")
        if not (reply.finished or cut):
            self._log("warning", step, f"the reply is not finished ({reply.finish_reason})")
            return LLMCallResult.failed(asked.messages, unfinished(reply))
        text, calls = self._session.answer_or_text(reply), tool_call_infos(self._session.calls_in(reply))
        return LLMCallResult(text, False, calls, [*asked.messages, assistant_message(reply)], cut=cut)

    def _retried(self, asked: ClosingRequest, retry: RetryNote) -> None:
        agent_type = self._agent.scope.path.rpartition(":")[2]
        message = f"{retry.error} Retrying in {retry.delay:.1f} s."
        self._log("warning", f"{agent_type} | LLM retry | step {asked.step}", message)

    def _shrunk(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Message] | None:
        """Return a shorter conversation, None if it was shortened before or cannot be."""
        if not self._may_shrink:
            return None
        self._may_shrink = False
        shrunk = self._session.shrunk_messages(self._agent.history, self._attempt.number)
        return shrunk or _ends_of(messages) or _halved(messages)

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
            value=self._value_of(answer, ended.value),
            text=ended.text,
            summary=ended.final_summary,
            usage_log=ended.usage_log,
            failure=self._stop.failure if reason == "model_failed" else None,
        )
        return self._selected(answer, result)

    def _value_of(self, answer: str, value: Any) -> Any:
        """Return the typed value of an answer; a generator that sets the answer need not state it."""
        return self._agent.answers.value_of(answer) if value is None or value == answer else value

    async def _ask_generator(
        self, history: History, settled: FinalAnswer | None = None
    ) -> AgentResult | Reading | None:
        """Have the user's AnswerGenerator end the attempt. Returns None if it raises."""
        generator = self._agent.generator
        assert generator is not None
        ended = await generator.close(
            history,
            self._info,
            listener=self._listener,
            turns_spent=self._turns_spent,
            is_final=self._is_final,
            may_act=self._may_act and settled is None,
            shrink=self._shrunk,
            settled=settled,
        )
        if isinstance(ended, Reading):
            self._listener.discard()
            return ended
        return None if ended is None else self._ended(ended)

    def _unanswered(self, ended: FinalizedAnswer) -> AgentResult:
        """Closing got no answer: for the reason of the stop, or because the model failed."""
        stop, error = self._stop, ended.failure
        reason, failure = stop.reason, stop.failure
        if reason in ("answered", "insisted"):
            # A reply in the form of an answer meant to be one; any other declined. Text in place of data may be either.
            found = self._agent.answers.read(stop.text)
            wants_text = not isinstance(self._plan.contract, Json | Yaml)
            refused = stop.text and wants_text and (found.kind == "missing" or not found.marked)
            reason = "refused" if refused else "no_answer"
            wrote = f"The model wrote: {shorten(said(stop.text), MOST_WRITTEN)}" if stop.text.strip() else ""
            failure = Failure("", f"{found.problem or 'The reply is empty.'} {wrote}".rstrip())
        out_of_time = stop.reason == "max_seconds" and isinstance(error, ModelTimeout)
        if isinstance(error, ModelError) and not out_of_time:
            reason = "context_overflow" if isinstance(error, ContextOverflow) else "model_failed"
            failure = Failure.of(error)
        elif error is not None and stop.failure is None:
            failure = Failure.of(error)
        account = ended.failure_experience_summary
        return AgentResult(
            answer=None,
            stop_reason=reason,
            text=ended.text or stop.text,
            usage_log=ended.usage_log,
            experience=experience_from(account, self._attempt.call_facts(), reason=reason, reply=stop.text),
            failure=failure,
        )


def _shortened(message: Message, length: int) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= length:
        return message
    return Message(message, content=cut_text(content, length).text)


def _halved(messages: Sequence[Mapping[str, Any]]) -> list[Message] | None:
    """Return the conversation with half of each of its last results. None if it has no turn."""
    history = [Message.of(message) for message in messages]
    begin = max((index + 1 for index, message in enumerate(history) if message.role == "assistant"), default=0)
    if not begin:
        return None
    return [*history[:begin], *(_shortened(message, len(message.text) // 2) for message in history[begin:])]


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
