"""The requests of closing: what the model is asked at the end of an attempt, and what its replies amount to.

Nothing is sent here. A dialogue is a generator of requests that is sent each reply; `converse` and the run's closing
drive one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from closeout.answers.contracts import AnswerContract, Boxed, ContractReading
from closeout.answers.experience import (
    FAILURE_SUMMARY_ASSISTANT_PREFIX,
    FAILURE_SUMMARY_PROMPT,
    extract_failure_experience_summary,
)
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, NO_ANSWER, FormattedAnswer, answer_of
from closeout.answers.replies import has_tool_calls, problem_of
from closeout.answers.selection import select_answer
from closeout.errors import BadRequest, LimitReached, PermanentModelError, ServerFailed, TransientModelError
from closeout.messages import Capabilities, Constraint, ModelReply
from closeout.parsing.read_reply import invents_result

__all__ = [
    "ClosingDialogue",
    "ClosingRequest",
    "Dialogue",
    "FallbackAnswer",
    "FinalAnswer",
    "FinalizedAnswer",
    "LLMCallResult",
    "generate_agent_summarize_prompt",
    "max_final_answer_retries",
]

DEFAULT_MAX_FINAL_ANSWER_RETRIES = 3

TURNS_SPENT = "Task incomplete - reached maximum turns. Will retry with failure experience."
CUT = ("length", "context_full", "cut")  # finish reasons of a reply that ends at a limit

History = list[dict[str, Any]]


def max_final_answer_retries(cfg: Any) -> int:
    """Return how often the answer is asked for at most: once if old tool results leave the prompt."""
    return DEFAULT_MAX_FINAL_ANSWER_RETRIES if cfg.agent.keep_tool_result == -1 else 1


# ------------------------------------------------------------------------------------------------ return types
#
# The public methods return plain tuples of a documented shape. Each tuple type also has attributes for what that shape
# has no place for. An override may return a plain tuple: the attributes then keep their defaults.


class _WithNotes:
    """Makes a tuple of the positional values; those given by name are attributes."""

    def __new__(cls, *values: Any, **notes: Any) -> Self:
        self = super().__new__(cls, *values)
        self.__dict__.update(notes)
        return self


class _LLMCall(NamedTuple):
    response_text: str | None
    should_break: bool
    tool_calls_info: Any | None
    message_history: History


class LLMCallResult(_WithNotes, _LLMCall):
    """The result of `handle_llm_call`: text, should_break, tool calls, history.

    A failed call has the text "", should_break False, no tool calls, and the history that was passed in.

    Attributes:
        error: The exception that made the call fail, or None.
        cut: Whether the reply ended at the token limit.
    """

    error: Exception | None = None
    cut: bool = False

    @classmethod
    def failed(cls, history: History, error: Exception) -> Self:
        """Return the result of a call that failed."""
        return cls("", False, None, history, error=error)


class _Final(NamedTuple):
    final_answer_text: str | None
    final_summary: str
    final_boxed_answer: str | None
    usage_log: str
    message_history: History


class FinalAnswer(_WithNotes, _Final):
    """The result of `generate_final_answer_with_retries`: text, summary, boxed answer, usage log, history.

    Without an answer the boxed answer is FORMAT_ERROR_MESSAGE.

    Attributes:
        reading: What the contract read in the text of an accepted answer.
        failure: The exception that ended the requests, if it was the model that failed.
    """

    reading: ContractReading = ContractReading()
    failure: Exception | None = None

    @property
    def may_ask_again(self) -> bool:
        """False if the model failed in a way that would only repeat."""
        return not isinstance(self.failure, PermanentModelError | LimitReached)

    def finalized(self, chosen: FallbackAnswer, experience: str | None) -> FinalizedAnswer:
        """Return the end of the attempt, with what a fallback chose and the account of the attempt."""
        answer = answer_of(chosen.final_boxed_answer)
        return FinalizedAnswer(
            chosen.final_summary,
            chosen.final_boxed_answer,
            experience,
            self.usage_log,
            self.message_history,
            text="" if chosen.final_answer_text == NO_ANSWER else chosen.final_answer_text,
            value=self.reading.value if answer == self.reading.text else answer,
            failure=self.failure,
        )


class FallbackAnswer(NamedTuple):
    """The result of the two fallback methods: text, summary, boxed answer."""

    final_answer_text: str
    final_summary: str
    final_boxed_answer: str


class _Finalized(NamedTuple):
    final_summary: str
    final_boxed_answer: str
    failure_experience_summary: str | None
    usage_log: str
    message_history: History


class FinalizedAnswer(_WithNotes, _Finalized):
    """The result of `generate_and_finalize_answer`: summary, boxed answer, experience, usage log, history.

    The experience is set only if another attempt should learn from this one.

    Attributes:
        text: The model's closing text, "" without one.
        value: The answer in the contract's type, None without an answer.
        failure: The exception that ended the requests, if it was the model that failed.
    """

    text: str = ""
    value: Any = None
    failure: Exception | None = None

    @property
    def answer(self) -> str | None:
        """The boxed answer, or None."""
        return answer_of(self.final_boxed_answer)


# ------------------------------------------------------------------------------------------------ prompts


def generate_agent_summarize_prompt(
    task_description: str, agent_type: str = "main", contract: AnswerContract | None = None
) -> str:
    """Return the prompt of the closing turn: no more tools, the task again, the form of the answer.

    Args:
        task_description: The task.
        agent_type: "main" asks for the answer; any other name asks for a report to the calling agent.
        contract: The form of the answer; None means `Boxed()`.
    """
    form = (contract or Boxed()).instruction()
    if agent_type == "main":
        asked = (
            "Say briefly what the answer rests on. If something stayed uncertain, give the answer that the evidence "
            f"supports best. Keep to the language, unit and precision that the task asks for. {form}"
        )
    else:
        asked = (
            "Report to the agent that gave you this task: the result, the facts that support it with their sources, "
            f"and what stayed open. {form}"
        )
    return (
        "This is the closing turn. Tools are closed: call none. Use what was found above.\n\n"
        f"Task:\n{task_description.strip()}\n\n{asked.rstrip()}"
    )


def _retry_prompt(summary_prompt: str, problem: str, contract: AnswerContract) -> str:
    return f"{summary_prompt}\n\nYou were asked this before. {problem} {contract.instruction()}".rstrip()


# ------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRequest:
    """One request of closing: a conversation, and what follows it.

    Attributes:
        base: The conversation. The sender of the request may shorten it.
        added: The messages after it.
        purpose: The step's name in the log.
        step: The step's number in the log.
        constraint: The form that the reply should be held to, if the server can do that.
        shown: Whether the reply is for people too: an answer, and not the account of a failed attempt.
        draft: The reply that this one completes, if any.
    """

    base: History
    added: tuple[dict[str, Any], ...]
    purpose: str
    step: int
    constraint: Constraint | None = None
    shown: bool = True
    draft: str = ""

    @property
    def messages(self) -> History:
        """All that is sent."""
        return [*self.base, *self.added]

    def complete(self, text: str) -> str:
        """Return the reply, after the draft that it completes."""
        return f"{self.draft}\n\n{text}" if self.draft and text else text


Outcome = TypeVar("Outcome")
Dialogue: TypeAlias = Generator[ClosingRequest, tuple[LLMCallResult, History], Outcome]
"""Yields requests, is sent each reply with the conversation that was used, and returns what came of it."""


@dataclass(frozen=True, kw_only=True)
class ClosingDialogue:
    """The requests that close an attempt.

    Attributes:
        task: The task.
        turns: Turns so far, for the step numbers in the log.
        contract: The form of the answer.
        format_answer: Returns the summary and the answer in a text; it decides whether a reply holds an answer.
        log: Receives a level, a step's name and a message.
        agent_type: "main", or the name of a sub-agent, which reports to its caller.
        retries: How often the answer is asked for at most.
        constraint: The form that a repeated request holds the reply to.
        on_refused: Called with each reply that is not accepted: with its text if the next request only completes it,
            otherwise with "".
        seen: Answers seen in earlier turns, oldest first.
        selection: How one of them is chosen: "last", or "vote" for the one given most often.
    """

    task: str
    turns: int
    contract: AnswerContract
    format_answer: Callable[[str], FormattedAnswer]
    log: Callable[[str, str, str], object]
    agent_type: str = "main"
    retries: int = 3
    constraint: Constraint | None = None
    on_refused: Callable[[str], object] = lambda draft: None
    seen: Sequence[Any] = field(default=())
    selection: str = "last"

    @property
    def _who(self) -> str:
        return "Main Agent" if self.agent_type == "main" else self.agent_type

    @property
    def _answer_step(self) -> str:
        return f"{self._who} | Final Answer"

    @property
    def _summary_step(self) -> str:
        return f"{self._who} | Failure Summary"

    def close(self, base: History, *, turns_spent: bool, another_follows: bool) -> Dialogue[FinalizedAnswer]:
        """Ask for the answer, or for experience if asking for an answer would get a guess.

        That is the case if the attempt ended because its turns were used up, and another attempt follows.
        """
        if another_follows and turns_spent:
            self.note_turns_spent()
            experience = yield from self.ask_experience(base)
            return FinalizedAnswer(TURNS_SPENT, FORMAT_ERROR_MESSAGE, experience, "", base)
        final = yield from self.ask_answer(base)
        if not another_follows:
            self.note_final_retry()
        chosen = (self.without_fallback if another_follows else self.with_fallback)(*final[:3])
        experience = None
        if another_follows and answer_of(chosen.final_boxed_answer) is None and final.may_ask_again:
            experience = yield from self.ask_experience(final.message_history)
        return final.finalized(chosen, experience)

    def ask_form(self, base: History, text: str) -> Dialogue[str]:
        """Ask for the form that a reply lacks. Returns that reply with the form added."""
        hint = problem_of(text, self.contract.read(text)).hint
        note = _user(f"{hint} {self.contract.finishing()}")
        request = ClosingRequest(base=base, added=(note,), purpose=self._answer_step, step=self.turns + 1, draft=text)
        call, _ = yield request
        return request.complete(call.response_text or "")

    def ask_answer(self, base: History) -> Dialogue[FinalAnswer]:
        """Ask for the answer until a reply satisfies the contract; see `generate_final_answer_with_retries`."""
        prompt = generate_agent_summarize_prompt(self.task, self.agent_type, self.contract)
        first = f"{prompt}\n\n{self._objection_to(base)}".rstrip()
        request = ClosingRequest(base=base, added=(_user(first),), purpose="", step=0)
        text, summary, usage_log = "", "", ""
        failure: Exception | None = None
        transient_failures = 0  # consecutive ones
        for attempt in range(self.retries):
            request = replace(
                request,
                purpose=f"{self._answer_step} (attempt {attempt + 1}/{self.retries})",
                step=self.turns + 1 + attempt,
                # The first reply may reason freely; a later one is held to the form if the server can do that.
                constraint=self.constraint if attempt else None,
            )
            call, base = yield request
            request = replace(request, base=base)
            if call.response_text:
                text = request.complete(call.response_text)
                formatted = self.format_answer(text)
                summary, usage_log = formatted.summary_text, formatted.log_string
                reading = self.contract.read(text)
                if formatted.answer is not None and not _is_spoiled(text, reading, call):
                    self.log("info", self._answer_step, f"Boxed answer found on attempt {attempt + 1}")
                    history = [*base, _user(prompt), _reply_message(call)]
                    return FinalAnswer(text, summary, formatted.answer, usage_log, history, reading=reading)
            failure = call.error
            transient_failures = transient_failures + 1 if isinstance(failure, TransientModelError) else 0
            if isinstance(failure, LimitReached):  # no reply was wrong, so this is no error
                self.log("info", self._answer_step, f"Not asked for: {failure}")
                break
            # The transport has already retried transient failures; permanent ones would only repeat.
            if isinstance(failure, PermanentModelError) or transient_failures > 1:
                self.log("error", self._answer_step, f"Giving up on the final answer: {failure}")
                break
            request = self._next_request(prompt, request, call, attempt)
            self.on_refused(request.draft)
        self.on_refused("")
        if not text and not isinstance(failure, LimitReached):
            self.log("error", self._answer_step, "Unable to generate final answer after all retries")
        history = [*base, _user(prompt)]
        return FinalAnswer(text or None, summary, FORMAT_ERROR_MESSAGE, usage_log, history, failure=failure)

    def _objection_to(self, history: History) -> str:
        """Return what is wrong with the reply that a conversation ends with, "" if it ends with something else."""
        last = history[-1] if history else {}
        text = last.get("content")
        if last.get("role") != "assistant" or last.get("tool_calls") or not isinstance(text, str):
            return ""
        reading = self.contract.read(text)
        return "" if reading.ok else problem_of(text, reading).hint

    def _next_request(self, prompt: str, last: ClosingRequest, call: LLMCallResult, attempt: int) -> ClosingRequest:
        """Return what to ask after a reply that was not accepted; it differs from the last request."""
        if call.error is not None:
            self.log("warning", self._answer_step, f"Failed to generate answer on attempt {attempt + 1}")
            return last
        text = call.response_text or ""
        called_tools = has_tool_calls(call.tool_calls_info)
        problem = problem_of(text, self.contract.read(text), called_tools=called_tools, cut=call.cut)
        self.log("warning", self._answer_step, f"No answer on attempt {attempt + 1} ({problem.kind})")
        if problem.finishable and not last.draft:
            reply, note = {"role": "assistant", "content": text}, f"{problem.hint} {self.contract.finishing()}"
            return replace(last, added=(_user(prompt), reply, _user(note)), draft=text)
        return replace(last, added=(_user(_retry_prompt(prompt, problem.hint, self.contract)),), draft="")

    def ask_experience(self, base: History) -> Dialogue[str | None]:
        """Ask for an account of a failed attempt. Returns None if the model writes none."""
        self.log("info", self._summary_step, "Generating failure experience summary for potential retry...")
        base = list(base)
        # The model would answer results or an instruction at the end instead. The task itself always stays.
        if len(base) > 1 and base[-1].get("role") == "user":
            base.pop()
        request = ClosingRequest(
            base=base,
            added=(_user(FAILURE_SUMMARY_PROMPT), {"role": "assistant", "content": FAILURE_SUMMARY_ASSISTANT_PREFIX}),
            purpose=f"{self._who} | Failure Experience Summary",
            step=self.turns + 10,
            shown=False,
        )
        call, base = yield request
        if isinstance(call.error, BadRequest):  # some models refuse a request that begins their reply
            call, _ = yield replace(request, base=base, added=request.added[:1])
        account = extract_failure_experience_summary(call.response_text or "")
        if not account:
            self.log("warning", self._summary_step, "Failed to generate failure experience summary")
            return None
        if not account.lower().lstrip("#*> ").startswith("failure type"):
            account = f"{FAILURE_SUMMARY_ASSISTANT_PREFIX} {account}"
        preview = account if len(account) <= 500 else account[:500] + "..."
        self.log("info", self._summary_step, f"Generated failure experience summary:\n{preview}")
        return account

    # ------------------------------------------------------------------------------------------- fallbacks

    def with_fallback(self, text: str | None, summary: str, boxed: str | None) -> FallbackAnswer:
        """Return the answer of an attempt that is the last one: if it has none, an answer seen in an earlier turn."""
        chosen = self._checked(text, summary, boxed)
        if answer_of(chosen.final_boxed_answer) is None and self.seen:
            earlier = select_answer(self.seen, "vote" if self.selection == "vote" else "last").answer
            if earlier is not None:
                step = f"{self._answer_step} (No Context Management)"
                self.log("info", step, f"Using intermediate boxed answer as fallback: {earlier}")
                return chosen._replace(final_boxed_answer=earlier)
        return chosen

    def without_fallback(self, text: str | None, summary: str, boxed: str | None) -> FallbackAnswer:
        """Return the answer of an attempt that another one follows: no guess, a missing answer stays missing."""
        chosen = self._checked(text, summary, boxed)
        if answer_of(chosen.final_boxed_answer) is None:
            step = f"{self._answer_step} (Context Management Mode)"
            self.log("info", step, "No valid boxed answer found; no intermediate fallback, another attempt follows.")
        return chosen

    def _checked(self, text: str | None, summary: str, boxed: str | None) -> FallbackAnswer:
        if not text:
            return FallbackAnswer(NO_ANSWER, NO_ANSWER, FORMAT_ERROR_MESSAGE)
        self.log("info", self._answer_step, f"Final answer content:\n\n{text}")
        return FallbackAnswer(text, summary, boxed or FORMAT_ERROR_MESSAGE)

    def note_turns_spent(self) -> None:
        """Log that no answer is asked for."""
        step = f"{self._answer_step} (Context Management Mode)"
        self.log("info", step, "Reached max turns. Skipping answer generation to avoid blind guessing.")

    def note_final_retry(self) -> None:
        """Log that no attempt follows."""
        step = f"{self._answer_step} (Final Retry)"
        self.log("info", step, "This is the final retry. Using intermediate fallback if available.")


def unfinished(reply: ModelReply) -> ServerFailed:
    """Return the failure that a reply amounts to which the server did not finish."""
    return ServerFailed(f"The server did not finish its reply: {reply.finish_reason}.")


def enforceable(constraint: Constraint | None, can: Capabilities) -> Constraint | None:
    """Return a contract's constraint if a server can enforce it."""
    if constraint is None:
        return None
    return constraint if (can.json_schema if constraint.kind == "json_schema" else can.grammar) else None


# Defects of form: they say nothing about the content.
_SPOILED = ("tool_call", "invented", "empty", "repeating", "cut")


def _is_spoiled(text: str, reading: ContractReading, call: LLMCallResult) -> bool:
    """Return whether a reply with an answer does not count: where any text is an answer, few other texts may count."""
    if reading.marked:
        return invents_result(text)
    called_tools = has_tool_calls(call.tool_calls_info)
    return problem_of(text, reading, called_tools=called_tools, cut=call.cut).kind in _SPOILED


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _reply_message(call: LLMCallResult) -> dict[str, Any]:
    """Return the reply as the client added it to the history, otherwise as plain text."""
    last = call.message_history[-1] if call.message_history else {}
    return last if last.get("role") == "assistant" else {"role": "assistant", "content": call.response_text or ""}
