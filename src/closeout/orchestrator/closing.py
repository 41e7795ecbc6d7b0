"""How an attempt ends: the answer is checked, or asked for in a way that changes something, or experience is left.

What is asked and how often is the AnswerGenerator's; here an attempt is handed to it and taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from closeout.answers.experience import CallFact, FailureExperience, experience_from
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, OutputFormatter
from closeout.answers.generator import AnswerGenerator
from closeout.answers.replies import problem_of
from closeout.answers.selection import AnswerCandidate, select_answer
from closeout.errors import ContextOverflow, ModelError, ModelTimeout
from closeout.journal.events import Noted
from closeout.journal.stream import StreamHandler
from closeout.journal.task_log import StepLog, TaskLog
from closeout.messages import Message, Reading
from closeout.orchestrator.model_door import JournaledClient
from closeout.orchestrator.streaming import ReplyListener
from closeout.outputs.budgets import cut_text, largest_fit

if TYPE_CHECKING:
    from closeout.orchestrator.orchestrator import Orchestrator
    from closeout.tools.executor import CallOutcome

__all__ = ["Closed", "Stop", "close_attempt", "fall_back", "report_of"]

LAST_PART = 4  # of a conversation that is too long even without its results, so much of its end is closed on: 1/4


@dataclass(frozen=True, slots=True)
class Stop:
    """Why an attempt stopped acting: "answered" with the reply that answers, or the limit or failure that ended it."""

    reason: str
    reading: Reading | None = None
    error: str = ""
    error_kind: str = ""

    @classmethod
    def failed(cls, reason: str, error: Exception) -> Stop:
        return cls(reason, error=str(error), error_kind=type(error).__name__)


@dataclass(frozen=True, slots=True)
class Closed:
    """How an agent's attempt, or its whole task, ended. `answer` None: there is none.

    `error` says what failed, `error_kind` is the name of the exception that it was, if it was one.
    """

    answer: str | None
    stop_reason: str
    value: Any = None
    summary: str = ""
    experience: FailureExperience | None = None
    error: str = ""
    error_kind: str = ""
    candidates: tuple[tuple[str, float], ...] = ()

    @classmethod
    def failed(cls, reason: str, error: Exception, text: str = "") -> Closed:
        return cls(None, reason, error=text or str(error), error_kind=type(error).__name__)


def report_of(agent: Orchestrator, closed: Closed) -> str:
    """What a sub-agent hands back: its closing text with its sources, or what it learned although it has no answer."""
    if closed.answer is None:
        return closed.experience.text() if closed.experience else closed.error or f"No answer ({closed.stop_reason})."
    text = closed.summary or closed.answer
    found = experience_from(None, [fact for fact in _facts(agent.facts) if fact.ok])
    title, names = ("Pages read", found.pages) if found.pages else ("Queries made", found.queries)
    left = [name for name in names if name not in text]  # those that the text does not name itself
    return f"{text}\n\n{title}: {'; '.join(left)}" if left else text


async def close_attempt(agent: Orchestrator, stop: Stop, *, is_final: bool) -> Closed:
    """End an attempt. `is_final`: no other follows, so an answer seen on the way is better than none."""
    text = stop.reading.answer if stop.reading is not None else None
    if text is not None:
        found = agent.asking.answer_in(text)
        if found.ok:
            return _chosen(agent, Closed(found.text, stop.reason, found.value, text))
    listener = agent.asking.closing_listener(agent.turn)
    if stop.reason == "model_failed" or agent.scope.budget.exhausted():
        listener.refused()
        return _without_asking(agent, stop, is_final)
    agent.asking.client.listener = listener if agent.asking.watched else None
    try:
        return await _asked(agent, stop, text, listener, is_final)
    finally:
        agent.asking.client.listener = None


def _chosen(agent: Orchestrator, closed: Closed) -> Closed:
    """The answer among all that were seen, as the settings say, and how they rank."""
    assert closed.answer is not None
    seen: list[AnswerCandidate | str] = [*agent.candidates, AnswerCandidate(closed.answer, final=True)]
    selection = select_answer(seen, agent.plan.settings.answer_selection)
    ranking = tuple((ranked.text, ranked.share) for ranked in selection.ranking)
    if selection.answer == closed.answer or selection.answer is None:
        return replace(closed, candidates=ranking)
    value = agent.values.get(selection.answer, selection.answer)
    return replace(closed, answer=selection.answer, value=value, candidates=ranking)


def fall_back(agent: Orchestrator, closed: Closed) -> Closed:
    """An end without an answer, with one that was seen on the way if there is any."""
    selection = select_answer(agent.candidates, agent.plan.settings.answer_selection)
    if selection.answer is None:
        return closed
    value = agent.values.get(selection.answer, selection.answer)
    ranking = tuple((ranked.text, ranked.share) for ranked in selection.ranking)
    return replace(closed, answer=selection.answer, value=value, candidates=ranking)


def _without_asking(agent: Orchestrator, stop: Stop, is_final: bool) -> Closed:
    """The model cannot be asked any more: what was seen on the way is all there is."""
    experience = experience_from(None, _facts(agent.facts), reason=stop.reason)
    closed = Closed(None, stop.reason, experience=experience, error=stop.error, error_kind=stop.error_kind)
    return fall_back(agent, closed) if is_final else closed


async def _asked(agent: Orchestrator, stop: Stop, text: str | None, listener: ReplyListener, is_final: bool) -> Closed:
    """One closing turn, or as many as the AnswerGenerator finds worth it."""
    client = agent.asking.client
    client.purpose, client.note = "close", ""
    messages = agent.asking.messages(agent.history)
    if not client.can_close(messages):  # the last results are more than what is left of the budget
        messages = agent.asking.shrunk(agent.history, agent.attempt, "budget") or messages
        messages = _cut_to_room(client, messages)
    history: list[dict[str, Any]] = [*messages]
    if text:
        history.append(Message(role="assistant", content=text))
    generator = _generator(agent, listener)

    def asked_for_the_answer(*_: object) -> None:
        client.listener = None  # what is asked for after that is not for people

    listener.refused(text or "")
    try:
        finished = await _finished(agent, generator, history, text)
        if finished is not None:
            return finished
        listener.refused()
        ended = await generator.generate_and_finalize_answer(
            system_prompt="",
            message_history=history,
            tool_definitions=agent.asking.offered,
            turn_count=agent.turn,
            task_description=agent.question,
            reached_max_turns=stop.reason != "answered",
            is_final_retry=is_final,
            save_callback=asked_for_the_answer,
        )
    except ModelError as error:
        return _without_asking(agent, Stop.failed("model_failed", error), is_final)
    if ended.final_boxed_answer and ended.final_boxed_answer != FORMAT_ERROR_MESSAGE:
        answer = ended.final_boxed_answer
        value = agent.values.get(answer, generator.reading.value)
        return _chosen(agent, Closed(answer, stop.reason, value, ended.final_summary))
    account = ended.failure_experience_summary
    reason = _without_answer(stop)
    experience = experience_from(account, _facts(agent.facts), reason=reason, reply=text or "")
    return _unanswered(stop, generator.failure, ended.final_summary, experience)


def _generator(agent: Orchestrator, listener: ReplyListener) -> AnswerGenerator:
    return AnswerGenerator(
        agent.asking.client,
        OutputFormatter(agent.plan.contract),
        _task_log(agent),
        StreamHandler(),
        agent.plan,
        list(agent.candidates),
        shrink_history=lambda messages: agent.asking.shrunk(agent.history, agent.attempt) or _ends_of(messages),
        agent_type=agent.scope.path.rpartition(":")[2],
        on_refused=listener.refused,
    )


def _cut_to_room(client: JournaledClient, messages: list[Message]) -> list[Message]:
    """The messages with the last results, several reports of sub-agents for instance, cut to what the budget allows."""
    if client.can_close(messages):
        return messages
    begin = max((index + 1 for index, message in enumerate(messages) if message.role == "assistant"), default=0)
    results = messages[begin:] if begin else []
    longest = max((len(message.text) for message in results), default=0)

    def cut(length: int) -> list[Message]:
        return [*messages[:begin], *(_shortened(message, length) for message in results)]

    return largest_fit(0, longest, cut, client.can_close) or messages


def _shortened(message: Message, length: int) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= length:
        return message
    return Message(message, content=cut_text(content, length).text)


def _unanswered(stop: Stop, failure: Exception | None, summary: str, experience: FailureExperience) -> Closed:
    """Closing brought no answer: what `stop` says, or else what closing failed of."""
    reason = _without_answer(stop)
    out_of_time = stop.reason == "max_seconds" and isinstance(failure, ModelTimeout)
    if isinstance(failure, ModelError) and not out_of_time:
        reason = "context_overflow" if isinstance(failure, ContextOverflow) else "model_failed"
    if failure is not None and not stop.error:
        stop = Stop.failed(reason, failure)
    return Closed(None, reason, None, summary, experience, stop.error, stop.error_kind)


def _without_answer(stop: Stop) -> str:
    """Why there is no answer: a reply that meant to be one, and was not accepted, is none."""
    return "no_answer" if stop.reason == "answered" else stop.reason


def _ends_of(messages: Sequence[Mapping[str, Any]]) -> list[Message] | None:
    """The task and the last part of a conversation, from an assistant's message on; None where that is all there is."""
    said = [Message.of(message) for message in messages]
    starts = [index for index, message in enumerate(said) if message.role == "assistant"]
    left = sum(len(message.text) for message in said[starts[0] :]) // LAST_PART if starts else 0
    end = len(said)
    for index in reversed(starts[1:]):
        left -= sum(len(message.text) for message in said[index:end])
        end = index
        if left <= 0:
            return said[: starts[0]] + said[index:]
    return None


async def _finished(
    agent: Orchestrator, generator: AnswerGenerator, history: list[dict[str, Any]], text: str | None
) -> Closed | None:
    """A reply that only lacks the form is finished by a short continuation; None where that is not all it lacks."""
    contract = agent.plan.contract
    if not text or not problem_of(text, contract.read(text)).finishable:
        return None
    asked: list[Any] = [*history, Message(role="user", content=contract.finishing())]
    call = await generator.handle_llm_call("", asked, agent.asking.offered, agent.turn + 1, "Main Agent | Final Answer")
    whole = f"{text}\n\n{call.response_text or ''}"
    found = contract.read(whole)
    return _chosen(agent, Closed(found.text, "answered", found.value, whole)) if found.ok else None


def _task_log(agent: Orchestrator) -> TaskLog:
    """A log whose steps become events of the run."""

    def write(step: StepLog) -> None:
        agent.scope.journal.append(Noted(agent.scope.path, step.level, step.name, step.message, step.metadata))

    return TaskLog(task_id=agent.scope.journal.run_id, input=agent.question, writer=write)


def _facts(outcomes: list[CallOutcome]) -> list[CallFact]:
    return [
        CallFact(outcome.call.name, outcome.call.arguments, outcome.ok, outcome.reason or outcome.output.summary)
        for outcome in outcomes
    ]
