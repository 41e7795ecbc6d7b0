"""AnswerGenerator: ask the model for its final answer, or for what a failed attempt learned.

`replies` decides what is wrong with a reply, `experience` reads the account of a failed attempt, and the run decides
whether another attempt follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from closeout.answers.contracts import AnswerContract, Boxed, ContractReading
from closeout.answers.experience import (
    FAILURE_SUMMARY_ASSISTANT_PREFIX,
    FAILURE_SUMMARY_PROMPT,
    extract_failure_experience_summary,
)
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, NO_ANSWER, FormattedAnswer, OutputFormatter, answer_of
from closeout.answers.replies import has_tool_calls, problem_of
from closeout.answers.selection import select_answer
from closeout.errors import (
    BadRequest,
    ContextOverflow,
    JournalError,
    LimitReached,
    ModelError,
    PermanentModelError,
    ServerFailed,
    TransientModelError,
)
from closeout.messages import Constraint, ModelReply
from closeout.models.base import BaseClient, ErrorBox, ResponseBox
from closeout.parsing.read_reply import invents_result

__all__ = [
    "DEFAULT_MAX_FINAL_ANSWER_RETRIES",
    "AnswerGenerator",
    "FallbackAnswer",
    "FinalAnswer",
    "FinalizedAnswer",
    "LLMCallResult",
    "generate_agent_summarize_prompt",
]

DEFAULT_MAX_FINAL_ANSWER_RETRIES = 3
TURNS_SPENT = "Task incomplete - reached maximum turns. Will retry with failure experience."

_ANSWER_STEP = "Main Agent | Final Answer"
_SUMMARY_STEP = "Main Agent | Failure Summary"

History = list[dict[str, Any]]

# ------------------------------------------------------------------------------------------------ return types
#
# The public methods return plain tuples of a documented shape. Each tuple type also has attributes for what that shape
# has no place for. An override may return a plain tuple: the attributes then keep their defaults.


class _LLMCall(NamedTuple):
    response_text: str | None
    should_break: bool
    tool_calls_info: Any | None
    message_history: History


class LLMCallResult(_LLMCall):
    """The result of `handle_llm_call`: text, should_break, tool calls, history.

    A failed call has the text "", should_break False, no tool calls, and the history that was passed in.

    Attributes:
        error: The exception that made the call fail, or None.
        cut: Whether the reply ended at the token limit.
    """

    error: Exception | None
    cut: bool

    def __new__(cls, *values: Any, error: Exception | None = None, cut: bool = False) -> Self:
        self = super().__new__(cls, *values)
        self.error, self.cut = error, cut
        return self


class _Final(NamedTuple):
    final_answer_text: str | None
    final_summary: str
    final_boxed_answer: str | None
    usage_log: str
    message_history: History


class FinalAnswer(_Final):
    """The result of `generate_final_answer_with_retries`: text, summary, boxed answer, usage log, history.

    Without an answer the boxed answer is FORMAT_ERROR_MESSAGE.

    Attributes:
        reading: What the contract read in the text of an accepted answer.
        failure: The exception that ended the requests, if it was the model that failed.
    """

    reading: ContractReading
    failure: Exception | None

    def __new__(cls, *values: Any, reading: ContractReading | None = None, failure: Exception | None = None) -> Self:
        self = super().__new__(cls, *values)
        self.reading, self.failure = reading or ContractReading(), failure
        return self


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


class FinalizedAnswer(_Finalized):
    """The result of `generate_and_finalize_answer`: summary, boxed answer, experience, usage log, history.

    The experience is set only if another attempt should learn from this one.

    Attributes:
        text: The model's closing text, "" if there is none.
        value: The answer in the contract's type, None if there is none.
        failure: The exception that ended the requests, if it was the model that failed.
    """

    text: str
    value: Any
    failure: Exception | None

    def __new__(cls, *values: Any, text: str = "", value: Any = None, failure: Exception | None = None) -> Self:
        self = super().__new__(cls, *values)
        self.text, self.value, self.failure = text, value, failure
        return self

    @property
    def answer(self) -> str | None:
        """The boxed answer, or None."""
        return answer_of(self.final_boxed_answer)


@dataclass(frozen=True, slots=True)
class _ClosingRequest:
    """The part of a closing request that follows the conversation, and the draft that its reply completes, if any."""

    added: tuple[dict[str, Any], ...]
    draft: str = ""

    def complete(self, text: str) -> str:
        """Return the reply, after the draft that it completes."""
        return f"{self.draft}\n\n{text}" if self.draft and text else text


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


class AnswerGenerator:
    """Produce the final answer of one attempt, or the experience that the next attempt builds on.

    Every method may be overridden; `Agent(answer_generator=MyGenerator)` uses the subclass in its runs. The methods
    never modify the lists that they receive.

    Args:
        llm_client: Needs `await create_message(system_prompt=, message_history=, tool_definitions=, keep_tool_result=,
            step_id=, task_log=, agent_type=)`, which returns (reply, ErrorBox, ResponseBox or None; history);
            `process_llm_response(reply, history, agent_type)`, which returns (text, should_break, history); and
            `extract_tool_calls_info(reply, text)`.
        output_formatter: Decides with `format_final_summary_and_log` whether a reply holds an answer. Its `contract`,
            if it has one, supplies the instructions.
        task_log: Needs `log_step(level, step_name, message)`.
        stream_handler: Needs `await show_error(text)`; None if there is no stream.
        cfg: Needs `cfg.agent.get("context_compress_limit", 0)`, `cfg.agent.get("answer_selection", "last")` and
            `cfg.agent.keep_tool_result`.
        intermediate_boxed_answers: Answers seen in earlier turns, oldest first. The list may grow.
        shrink_history: Called once if the prompt is longer than the model's context. Returns a shorter history, or
            None if that is not possible.
        agent_type: "main", or the name of a sub-agent, which reports to its caller.
        on_refused: Called with each reply that is not accepted: with its text if the next request only completes it,
            otherwise with "".
    """

    def __init__(
        self,
        llm_client: Any,
        output_formatter: OutputFormatter,
        task_log: Any,
        stream_handler: Any,
        cfg: Any,
        intermediate_boxed_answers: Sequence[str],
        *,
        shrink_history: Callable[[History], Sequence[Mapping[str, Any]] | None] | None = None,
        agent_type: str = "main",
        on_refused: Callable[[str], object] | None = None,
    ) -> None:
        self.llm_client = llm_client
        self.output_formatter = output_formatter
        self.task_log = task_log
        self.stream = stream_handler
        self.cfg = cfg
        self.intermediate_boxed_answers = intermediate_boxed_answers
        self.contract: AnswerContract = getattr(output_formatter, "contract", None) or Boxed()
        self.context_compress_limit = cfg.agent.get("context_compress_limit", 0)
        self.max_final_answer_retries = DEFAULT_MAX_FINAL_ANSWER_RETRIES if cfg.agent.keep_tool_result == -1 else 1
        self.agent_type = agent_type
        self._shrink_history = shrink_history
        self._on_refused = on_refused or (lambda draft: None)

    # ------------------------------------------------------------------------------------------- one request

    async def handle_llm_call(
        self,
        system_prompt: str,
        message_history: History,
        tool_definitions: Any,
        step_id: int,
        purpose: str = "",
        agent_type: str = "main",
        *,
        constraint: Constraint | None = None,
    ) -> LLMCallResult:
        """Send one request and return its reply, or "" and the original history if it failed.

        Args:
            system_prompt: The system prompt, "" if the history starts with it.
            message_history: The conversation to send.
            tool_definitions: The tools that the request lists.
            step_id: The number of this request in the log.
            purpose: What the request is for, in the log.
            agent_type: "main" or the name of a sub-agent.
            constraint: The form that the server holds the reply to; needs a client that accepts one.

        Raises:
            JournalError: The run's journal cannot be written. Any other failure is returned as a value.
        """
        options = {} if constraint is None else {"constraint": constraint}
        try:
            response, history = await self.llm_client.create_message(
                system_prompt=system_prompt,
                message_history=list(message_history),
                tool_definitions=tool_definitions,
                keep_tool_result=self.cfg.agent.keep_tool_result,
                step_id=step_id,
                task_log=self.task_log,
                agent_type=agent_type,
                **options,
            )
            response, error = await self._unbox(response)
            if response is None:
                self._log("error", f"{purpose} | LLM Call Failed", f"{purpose} failed - no response received")
                return _failed_call(message_history, error or ModelError("The model sent no reply."))
            text, should_break, history = self.llm_client.process_llm_response(response, list(history), agent_type)
            tool_calls = self.llm_client.extract_tool_calls_info(response, text)
            history = list(history)
        except JournalError:
            raise
        except Exception as error:  # a failed request is a value; its type decides what follows
            self._log("error", f"{purpose} | LLM Call ERROR", f"{purpose} error: {error}")
            if isinstance(error, ModelError | LimitReached):
                await self._show_error(str(error))
            return _failed_call(message_history, error)
        self._log("info", f"{purpose} | LLM Call", "completed successfully")
        reason = getattr(response, "finish_reason", None)
        cut = reason in ("length", "cut")
        if isinstance(response, ModelReply) and not (response.finished or cut):
            self._log("warning", f"{purpose} | LLM Call", f"the reply is not finished ({reason})")
            return _failed_call(message_history, ServerFailed(f"The server did not finish its reply: {reason}."))
        return LLMCallResult(text, should_break, tool_calls, history, cut=cut)

    async def _unbox(self, response: Any) -> tuple[Any, Exception | None]:
        """Take a reply out of its box and show its warning; (None, the error) for an ErrorBox."""
        if ErrorBox.is_error_box(response):
            await self._show_error(str(response))
            return None, response.error
        if ResponseBox.is_response_box(response):
            warning = response.get_extra_info().get("warning_msg") if response.has_extra_info() else None
            if warning:
                await self._show_error(str(warning))
            return response.get_response(), None
        return response, None

    async def _send(
        self,
        system_prompt: str,
        base: History,
        added: Sequence[dict[str, Any]],
        tool_definitions: Any,
        *,
        step_id: int,
        purpose: str,
        constraint: Constraint | None = None,
    ) -> tuple[LLMCallResult, History]:
        """Send `base` and `added`, again with a shorter base if it was too long. Return the base that was used."""
        options = {} if constraint is None else {"constraint": constraint}
        while True:
            sent = [*base, *added]
            returned = await self.handle_llm_call(
                system_prompt, sent, tool_definitions, step_id, purpose, agent_type=self.agent_type, **options
            )
            call = returned if isinstance(returned, LLMCallResult) else LLMCallResult(*returned)
            shrink = self._shrink_history
            if not isinstance(call.error, ContextOverflow) or shrink is None:
                return call, base
            self._shrink_history = None
            shorter = shrink(base)
            if shorter is None:
                return call, base
            base = [dict(message) for message in shorter]

    # ------------------------------------------------------------------------------------------- experience

    async def generate_failure_summary(
        self, system_prompt: str, message_history: History, tool_definitions: Any, turn_count: int
    ) -> str | None:
        """Ask the model for an account of a failed attempt.

        Returns:
            The account, for `experience_from`, or None if the model wrote none.
        """
        self._log("info", _SUMMARY_STEP, "Generating failure experience summary for potential retry...")
        history = list(message_history)
        # The model would answer results or an instruction at the end instead. The task itself always stays.
        if len(history) > 1 and history[-1].get("role") == "user":
            history.pop()
        added = [_user(FAILURE_SUMMARY_PROMPT), {"role": "assistant", "content": FAILURE_SUMMARY_ASSISTANT_PREFIX}]
        purpose, step_id = "Main Agent | Failure Experience Summary", turn_count + 10
        call, history = await self._send(
            system_prompt, history, added, tool_definitions, step_id=step_id, purpose=purpose
        )
        if isinstance(call.error, BadRequest):  # some models refuse a request that begins their reply
            call, _ = await self._send(
                system_prompt, history, added[:1], tool_definitions, step_id=step_id, purpose=purpose
            )
        account = extract_failure_experience_summary(call.response_text or "")
        if not account:
            self._log("warning", _SUMMARY_STEP, "Failed to generate failure experience summary")
            return None
        if not account.lower().lstrip("#*> ").startswith("failure type"):
            account = f"{FAILURE_SUMMARY_ASSISTANT_PREFIX} {account}"
        preview = account if len(account) <= 500 else account[:500] + "..."
        self._log("info", _SUMMARY_STEP, f"Generated failure experience summary:\n{preview}")
        return account

    # ------------------------------------------------------------------------------------------- the answer

    async def generate_final_answer_with_retries(
        self,
        system_prompt: str,
        message_history: History,
        tool_definitions: Any,
        turn_count: int,
        task_description: str,
    ) -> FinalAnswer:
        """Ask for the answer until a reply satisfies the contract, at most `max_final_answer_retries` times.

        A reply that only lacks the form is completed by a short continuation. After any other unusable reply the
        request is repeated with the reason.

        Returns:
            The answer. Its history holds the closing instruction and, if there is an answer, the reply that gave it;
            replies that were not accepted are left out.
        """
        prompt = generate_agent_summarize_prompt(task_description, self.agent_type, self.contract)
        base: History = list(message_history)
        request = _ClosingRequest((_user(prompt),))
        text, summary, usage_log = "", "", ""
        failure: Exception | None = None
        transient_failures = 0  # in a row
        for attempt in range(self.max_final_answer_retries):
            call, base = await self._send(
                system_prompt,
                base,
                request.added,
                tool_definitions,
                step_id=turn_count + 1 + attempt,
                purpose=f"{_ANSWER_STEP} (attempt {attempt + 1}/{self.max_final_answer_retries})",
                # The first reply may reason freely; a later one is held to the form if the server can do that.
                constraint=self._constraint() if attempt else None,
            )
            if call.response_text:
                text = request.complete(call.response_text)
                formatted = FormattedAnswer(*self.output_formatter.format_final_summary_and_log(text, self.llm_client))
                summary, usage_log = formatted.summary_text, formatted.log_string
                reading = self.contract.read(text)
                if formatted.answer is not None and not _is_spoiled(text, reading, call):
                    self._log("info", _ANSWER_STEP, f"Boxed answer found on attempt {attempt + 1}")
                    history = [*base, _user(prompt), _reply_message(call)]
                    return FinalAnswer(text, summary, formatted.answer, usage_log, history, reading=reading)
            failure = call.error
            transient_failures = transient_failures + 1 if isinstance(failure, TransientModelError) else 0
            # The transport has already retried transient failures; permanent ones would only repeat.
            if isinstance(failure, PermanentModelError | LimitReached) or transient_failures > 1:
                self._log("error", _ANSWER_STEP, f"Giving up on the final answer: {failure}")
                break
            request = self._next_request(prompt, request, call, attempt)
            self._on_refused(request.draft)
        self._on_refused("")
        history = [*base, _user(prompt)]
        return FinalAnswer(text or None, summary, FORMAT_ERROR_MESSAGE, usage_log, history, failure=failure)

    def _next_request(self, prompt: str, last: _ClosingRequest, call: LLMCallResult, attempt: int) -> _ClosingRequest:
        """Return what to ask after a reply that was not accepted; it differs from the last request."""
        if call.error is not None:
            self._log("warning", _ANSWER_STEP, f"Failed to generate answer on attempt {attempt + 1}")
            return last
        text = call.response_text or ""
        called_tools = has_tool_calls(call.tool_calls_info)
        problem = problem_of(text, self.contract.read(text), called_tools=called_tools, cut=call.cut)
        self._log("warning", _ANSWER_STEP, f"No answer on attempt {attempt + 1} ({problem.kind})")
        if problem.finishable and not last.draft:
            reply, note = {"role": "assistant", "content": text}, f"{problem.hint} {self.contract.finishing()}"
            return _ClosingRequest((_user(prompt), reply, _user(note)), draft=text)
        return _ClosingRequest((_user(_retry_prompt(prompt, problem.hint, self.contract)),))

    def _constraint(self) -> Constraint | None:
        """Return the contract's constraint if the client can enforce it."""
        constraint = self.contract.constraint()
        if constraint is None or not isinstance(self.llm_client, BaseClient):
            return None
        can = self.llm_client.capabilities
        return constraint if (can.json_schema if constraint.kind == "json_schema" else can.grammar) else None

    # ------------------------------------------------------------------------------------------- fallbacks

    def handle_no_context_management_fallback(
        self, final_answer_text: str | None, final_summary: str, final_boxed_answer: str | None
    ) -> FallbackAnswer:
        """Return the answer of an attempt that is the last one: if it has none, an answer seen in an earlier turn.

        `cfg.agent.answer_selection` chooses which: "last", or "vote" for the one given most often.
        """
        text, summary, boxed = self._checked(final_answer_text, final_summary, final_boxed_answer)
        if answer_of(boxed) is None and self.intermediate_boxed_answers:
            method = self.cfg.agent.get("answer_selection", "last")
            chosen = select_answer(self.intermediate_boxed_answers, "vote" if method == "vote" else "last").answer
            if chosen is not None:
                boxed = chosen
                step = f"{_ANSWER_STEP} (No Context Management)"
                self._log("info", step, f"Using intermediate boxed answer as fallback: {boxed}")
        return FallbackAnswer(text, summary, boxed)

    def handle_context_management_no_fallback(
        self, final_answer_text: str | None, final_summary: str, final_boxed_answer: str | None
    ) -> FallbackAnswer:
        """Return the answer of an attempt that another one follows: no guess, a missing answer stays missing."""
        text, summary, boxed = self._checked(final_answer_text, final_summary, final_boxed_answer)
        if answer_of(boxed) is None:
            step = f"{_ANSWER_STEP} (Context Management Mode)"
            self._log("info", step, "No valid boxed answer found; no intermediate fallback, another attempt follows.")
        return FallbackAnswer(text, summary, boxed)

    def _checked(self, text: str | None, summary: str, boxed: str | None) -> FallbackAnswer:
        if not text:
            self._log("error", _ANSWER_STEP, "Unable to generate final answer after all retries")
            return FallbackAnswer(NO_ANSWER, NO_ANSWER, FORMAT_ERROR_MESSAGE)
        self._log("info", _ANSWER_STEP, f"Final answer content:\n\n{text}")
        return FallbackAnswer(text, summary, boxed or FORMAT_ERROR_MESSAGE)

    # ------------------------------------------------------------------------------------------- the whole closing

    async def generate_and_finalize_answer(
        self,
        system_prompt: str,
        message_history: History,
        tool_definitions: Any,
        turn_count: int,
        task_description: str,
        reached_max_turns: bool = False,
        is_final_retry: bool = False,
        save_callback: Callable[[str, History], Any] | None = None,
    ) -> FinalizedAnswer:
        """Close an attempt.

        | context management | turns used up | last attempt | what happens                                        |
        |--------------------|---------------|--------------|-----------------------------------------------------|
        | off                | any           | any          | ask for the answer, else fall back on an earlier one |
        | on                 | any           | yes          | the same: no attempt follows                        |
        | on                 | no            | no           | ask for the answer, no fallback; else experience    |
        | on                 | yes           | no           | do not ask, it would be a guess; experience         |

        Args:
            system_prompt: The system prompt, "" if the history starts with it.
            message_history: The conversation of the attempt.
            tool_definitions: The tools that the requests list.
            turn_count: Turns so far, for the step numbers in the log.
            task_description: The task.
            reached_max_turns: Whether the attempt stopped because its turns were used up.
            is_final_retry: Whether this is the last attempt.
            save_callback: Called once with (system_prompt, message_history) before the model is asked for experience;
                may be async.
        """
        another_follows = self.context_compress_limit > 0 and not is_final_retry
        if another_follows and reached_max_turns:
            step = f"{_ANSWER_STEP} (Context Management Mode)"
            self._log("info", step, "Reached max turns. Skipping answer generation to avoid blind guessing.")
            await _save(save_callback, system_prompt, message_history)
            experience = await self.generate_failure_summary(
                system_prompt, message_history, tool_definitions, turn_count
            )
            return FinalizedAnswer(TURNS_SPENT, FORMAT_ERROR_MESSAGE, experience, "", message_history)
        returned = await self.generate_final_answer_with_retries(
            system_prompt=system_prompt,
            message_history=message_history,
            tool_definitions=tool_definitions,
            turn_count=turn_count,
            task_description=task_description,
        )
        final = returned if isinstance(returned, FinalAnswer) else FinalAnswer(*returned)
        history = final.message_history
        await _save(save_callback, system_prompt, history)
        if is_final_retry:
            step = f"{_ANSWER_STEP} (Final Retry)"
            self._log("info", step, "This is the final retry. Using intermediate fallback if available.")
        strategy = (
            self.handle_context_management_no_fallback
            if another_follows
            else self.handle_no_context_management_fallback
        )
        chosen = FallbackAnswer(*strategy(final.final_answer_text, final.final_summary, final.final_boxed_answer))
        answer, experience = answer_of(chosen.final_boxed_answer), None
        if another_follows and answer is None and _may_ask_again(final.failure):
            experience = await self.generate_failure_summary(system_prompt, history, tool_definitions, turn_count)
        return FinalizedAnswer(
            chosen.final_summary,
            chosen.final_boxed_answer,
            experience,
            final.usage_log,
            history,
            text="" if chosen.final_answer_text == NO_ANSWER else chosen.final_answer_text,
            value=final.reading.value if answer == final.reading.text else answer,
            failure=final.failure,
        )

    async def _show_error(self, text: str) -> None:
        """Show a text on the stream, if there is one. A stream that fails does not affect the answer."""
        if self.stream is None:
            return
        try:
            shown = self.stream.show_error(text)
            if inspect.isawaitable(shown):
                await shown
        except JournalError:
            raise
        except Exception as error:
            self._log("warning", "Stream Error", f"Could not be shown ({type(error).__name__}: {error}): {text}")

    def _log(self, level: str, step: str, message: str) -> None:
        self.task_log.log_step(level, step, message)


_SPOILED = ("tool_call", "invented", "empty", "cut")  # what is wrong with the form of a reply, whatever it says


def _is_spoiled(text: str, reading: ContractReading, call: LLMCallResult) -> bool:
    """Return whether a reply with an answer does not count: where any text is an answer, few other texts may count."""
    if reading.marked:
        return invents_result(text)
    called_tools = has_tool_calls(call.tool_calls_info)
    return problem_of(text, reading, called_tools=called_tools, cut=call.cut).kind in _SPOILED


def _failed_call(history: History, error: Exception) -> LLMCallResult:
    return LLMCallResult("", False, None, history, error=error)


def _may_ask_again(failure: Exception | None) -> bool:
    return not isinstance(failure, PermanentModelError | LimitReached)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _reply_message(call: LLMCallResult) -> dict[str, Any]:
    """Return the reply as the client added it to the history, otherwise as plain text."""
    last = call.message_history[-1] if call.message_history else {}
    return last if last.get("role") == "assistant" else {"role": "assistant", "content": call.response_text or ""}


async def _save(callback: Callable[[str, History], Any] | None, system_prompt: str, history: History) -> None:
    if callback is not None:
        saved = callback(system_prompt, history)
        if inspect.isawaitable(saved):
            await saved
