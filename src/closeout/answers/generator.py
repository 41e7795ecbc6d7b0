"""AnswerGenerator, the last step of an attempt: asks for the answer until it satisfies its contract, or for experience.

What is wrong with a reply is decided in `replies`, what an experience holds in `experience`; which attempt comes next
is the orchestrator's business.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from closeout.answers.contracts import AnswerContract, Boxed, ContractReading
from closeout.answers.experience import (
    FAILURE_SUMMARY_ASSISTANT_PREFIX,
    FAILURE_SUMMARY_PROMPT,
    extract_failure_experience_summary,
)
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, OutputFormatter
from closeout.answers.outcomes import (
    Call,
    FallbackAnswer,
    FinalAnswer,
    FinalizedAnswer,
    History,
    LLMCallResult,
    Request,
    error_of,
)
from closeout.answers.prompts import generate_agent_summarize_prompt, retry_prompt
from closeout.answers.replies import has_tool_calls, invents_result, problem_of
from closeout.answers.selection import select_answer
from closeout.errors import (
    BadRequest,
    ContextOverflow,
    JournalError,
    LimitReached,
    ModelError,
    PermanentModelError,
    TransientModelError,
)
from closeout.llm.base import BaseClient
from closeout.llm.boxes import ErrorBox, ResponseBox
from closeout.messages import Constraint

__all__ = ["DEFAULT_MAX_FINAL_ANSWER_RETRIES", "AnswerGenerator"]

DEFAULT_MAX_FINAL_ANSWER_RETRIES = 3
NO_ANSWER = "No final answer generated."
TURNS_SPENT = "Task incomplete - reached maximum turns. Will retry with failure experience."

_ANSWER_STEP = "Main Agent | Final Answer"
_SUMMARY_STEP = "Main Agent | Failure Summary"


class AnswerGenerator:
    """Closes an attempt: one instance serves one run; `intermediate_boxed_answers` may grow while it exists.

    Collaborators are used as follows, so that anything of that shape will do:
    `await llm_client.create_message(system_prompt=, message_history=, tool_definitions=, keep_tool_result=, step_id=,
    task_log=, agent_type=)` → (reply or ErrorBox or ResponseBox or None, history);
    `llm_client.process_llm_response(reply, history, agent_type)` → (text, should_break, history);
    `llm_client.extract_tool_calls_info(reply, text)` → list; `output_formatter` as OutputFormatter;
    `task_log.log_step(level, step_name, message)`; `await stream_handler.show_error(text)`;
    `cfg.agent.get("context_compress_limit", 0)`, `cfg.agent.keep_tool_result`.

    `shrink_history`: called once when the prompt is longer than the model's context; returns a shorter history or None.
    `agent_type`: "main", or the name of a sub-agent, which reports to its caller. `on_refused`: told of each reply that
    is not the answer, with its text if the next one finishes it, else "". Lists handed in are never changed.
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
        self.reading = ContractReading()  # of the final answer's text, with its value in the contract's type
        self.failure: Exception | None = None  # what ended the asking, when it was the model that failed
        self.agent_type = agent_type
        self._shrink = shrink_history
        self._refused = on_refused or (lambda kept: None)

    # ------------------------------------------------------------------------------------------- one call

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
        """One request, whatever comes of it: text, or "" and the original history.

        Raises JournalError and cancellation, nothing else. `constraint` needs a client that takes one.
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
            response, error = await self._unboxed(response)
            if response is None:
                self._log("error", f"{purpose} | LLM Call Failed", f"{purpose} failed - no response received")
                return Call.failed(message_history, error)
            text, should_break, history = self.llm_client.process_llm_response(response, list(history), agent_type)
            tool_calls = self.llm_client.extract_tool_calls_info(response, text)
            result = Call(text, should_break, tool_calls, list(history))
        except JournalError:
            raise
        except Exception as error:  # a failed request is a value here; what kind it is decides what follows
            self._log("error", f"{purpose} | LLM Call ERROR", f"{purpose} error: {error}")
            if isinstance(error, ModelError | LimitReached):
                await self._show(str(error))
            return Call.failed(message_history, error)
        self._log("info", f"{purpose} | LLM Call", "completed successfully")
        result.cut = getattr(response, "finish_reason", None) in ("length", "cut")
        return result

    async def _unboxed(self, response: Any) -> tuple[Any, Exception | None]:
        """The reply without its box, its warnings shown; None and what failed for an ErrorBox."""
        if ErrorBox.is_error_box(response):
            await self._show(str(response))
            return None, response.error
        if ResponseBox.is_response_box(response):
            warning = response.get_extra_info().get("warning_msg") if response.has_extra_info() else None
            if warning:
                await self._show(str(warning))
            return response.get_response(), None
        return response, None

    async def _call(
        self,
        system_prompt: str,
        base: History,
        added: Sequence[dict[str, Any]],
        tool_definitions: Any,
        step_id: int,
        purpose: str,
        constraint: Constraint | None = None,
    ) -> tuple[LLMCallResult, History]:
        """One request, once more with a shorter history if it was too long; and the history that was used."""
        options = {} if constraint is None else {"constraint": constraint}
        while True:
            sent = [*base, *added]
            call = await self.handle_llm_call(
                system_prompt, sent, tool_definitions, step_id, purpose, agent_type=self.agent_type, **options
            )
            shrink, overflow = self._shrink, isinstance(error_of(call), ContextOverflow)
            if not overflow or shrink is None:
                return call, base
            self._shrink = None
            shorter = shrink(base)
            if shorter is None:
                return call, base
            base = [dict(message) for message in shorter]

    # ------------------------------------------------------------------------------------------- experience

    async def generate_failure_summary(
        self, system_prompt: str, message_history: History, tool_definitions: Any, turn_count: int
    ) -> str | None:
        """The model's account of a failed attempt, for `experience_from`; None when it wrote none."""
        self._log("info", _SUMMARY_STEP, "Generating failure experience summary for potential retry...")
        history = list(message_history)
        # Results or an instruction at the end would be answered instead; the task itself is never dropped.
        if len(history) > 1 and history[-1].get("role") == "user":
            history.pop()
        added = [_user(FAILURE_SUMMARY_PROMPT), {"role": "assistant", "content": FAILURE_SUMMARY_ASSISTANT_PREFIX}]
        purpose, step_id = "Main Agent | Failure Experience Summary", turn_count + 10
        call, history = await self._call(system_prompt, history, added, tool_definitions, step_id, purpose)
        if isinstance(error_of(call), BadRequest):  # some models refuse a reply that is begun for them
            call, _ = await self._call(system_prompt, history, added[:1], tool_definitions, step_id, purpose)
        account = extract_failure_experience_summary(call[0] or "")
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
        """Asks for the answer, at most `max_final_answer_retries` times, until it satisfies the contract.

        A reply that only lacks the form is finished by a short continuation; any other bad reply is asked for again,
        with what was wrong. The returned history holds the closing instruction and, if there is an answer, the reply
        that gave it; replies that were not accepted are not in it.
        """
        prompt = generate_agent_summarize_prompt(task_description, self.agent_type, self.contract)
        base: History = list(message_history)
        request = Request((_user(prompt),))
        text, summary, usage_log = "", "", ""
        passing = 0  # failures in a row that may pass
        for attempt in range(self.max_final_answer_retries):
            purpose = f"{_ANSWER_STEP} (attempt {attempt + 1}/{self.max_final_answer_retries})"
            step_id = turn_count + 1 + attempt
            # A first reply is free to reason; a later one is held to the form where the server can do that.
            constraint = self._constraint() if attempt else None
            call, base = await self._call(
                system_prompt, base, request.added, tool_definitions, step_id, purpose, constraint
            )
            if call[0]:
                text = request.whole(call[0])
                summary, boxed, usage_log = self.output_formatter.format_final_summary_and_log(text, self.llm_client)
                if boxed and boxed != FORMAT_ERROR_MESSAGE and not invents_result(text):
                    self._log("info", _ANSWER_STEP, f"Boxed answer found on attempt {attempt + 1}")
                    self.reading, self.failure = self.contract.read(text), None
                    return FinalAnswer(text, summary, boxed, usage_log, [*base, _user(prompt), _reply_of(call)])
            self.failure = error_of(call)
            passing = passing + 1 if isinstance(self.failure, TransientModelError) else 0
            # The transport has retried what may pass; what will not pass is not asked again.
            if isinstance(self.failure, PermanentModelError | LimitReached) or passing > 1:
                self._log("error", _ANSWER_STEP, f"The model is not asked again: {self.failure}")
                break
            request = self._next_request(prompt, request, call, attempt)
            self._refused(request.essay)
        self._refused("")
        return FinalAnswer(text or None, summary, FORMAT_ERROR_MESSAGE, usage_log, [*base, _user(prompt)])

    def _next_request(self, prompt: str, last: Request, call: LLMCallResult, attempt: int) -> Request:
        """What is asked after a reply that was not accepted: always something else than before."""
        if error_of(call) is not None:
            self._log("warning", _ANSWER_STEP, f"Failed to generate answer on attempt {attempt + 1}")
            return last
        text = call[0] or ""
        cut = isinstance(call, Call) and call.cut
        problem = problem_of(text, self.contract.read(text), called_tools=has_tool_calls(call[2]), cut=cut)
        self._log("warning", _ANSWER_STEP, f"No boxed answer on attempt {attempt + 1} ({problem.kind})")
        if problem.finishable and not last.essay:
            reply, note = {"role": "assistant", "content": text}, f"{problem.hint} {self.contract.finishing()}"
            return Request((_user(prompt), reply, _user(note)), essay=text)
        return Request((_user(retry_prompt(prompt, problem.hint, self.contract)),))

    def _constraint(self) -> Constraint | None:
        """The form as the client can hold the server to it."""
        constraint = self.contract.constraint()
        if constraint is None or not isinstance(self.llm_client, BaseClient):
            return None
        can = self.llm_client.capabilities
        return constraint if (can.json_schema if constraint.kind == "json_schema" else can.grammar) else None

    # ------------------------------------------------------------------------------------------- fallbacks

    def handle_no_context_management_fallback(
        self, final_answer_text: str | None, final_summary: str, final_boxed_answer: str | None
    ) -> FallbackAnswer:
        """Where no attempt follows: an answer seen on the way stands in for one that is missing.

        Which one is said by `cfg.agent.answer_selection`: the last, or the one that most agree on.
        """
        text, summary, boxed = self._checked(final_answer_text, final_summary, final_boxed_answer)
        if boxed == FORMAT_ERROR_MESSAGE and self.intermediate_boxed_answers:
            method = self.cfg.agent.get("answer_selection", "last")
            chosen = select_answer(self.intermediate_boxed_answers, "vote" if method == "vote" else "last").answer
            if chosen is not None:
                boxed = chosen
                self.reading = ContractReading(chosen, chosen, True)
                step = f"{_ANSWER_STEP} (No Context Management)"
                self._log("info", step, f"Using intermediate boxed answer as fallback: {boxed}")
        return FallbackAnswer(text, summary, boxed)

    def handle_context_management_no_fallback(
        self, final_answer_text: str | None, final_summary: str, final_boxed_answer: str | None
    ) -> FallbackAnswer:
        """Where another attempt follows: no guess; a missing answer stays missing, and leaves experience."""
        text, summary, boxed = self._checked(final_answer_text, final_summary, final_boxed_answer)
        if boxed == FORMAT_ERROR_MESSAGE:
            step = f"{_ANSWER_STEP} (Context Management Mode)"
            self._log("info", step, "No valid boxed answer found; no intermediate fallback, another attempt follows.")
        return FallbackAnswer(text, summary, boxed)

    def _checked(self, text: str | None, summary: str, boxed: str | None) -> FallbackAnswer:
        if not text:
            self._log("error", _ANSWER_STEP, "Unable to generate final answer after all retries")
            return FallbackAnswer(NO_ANSWER, NO_ANSWER, FORMAT_ERROR_MESSAGE)
        self._log("info", _ANSWER_STEP, f"Final answer content:\n\n{text}")
        return FallbackAnswer(text, summary, boxed or FORMAT_ERROR_MESSAGE)

    # ------------------------------------------------------------------------------------------- all of it

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
        """Closes an attempt.

        | context management | turns spent | last attempt | what happens                                            |
        |--------------------|-------------|--------------|---------------------------------------------------------|
        | off                | any         | any          | ask for the answer, fall back on one seen on the way    |
        | on                 | any         | yes          | the same: nothing follows                               |
        | on                 | no          | no           | ask for the answer, no fallback; else experience      |
        | on                 | yes         | no           | do not ask: it would be a guess; experience             |

        `save_callback(system_prompt, message_history)`, sync or async, is called once before experience is asked for.
        """
        attempts_follow = self.context_compress_limit > 0 and not is_final_retry
        if attempts_follow and reached_max_turns:
            step = f"{_ANSWER_STEP} (Context Management Mode)"
            self._log("info", step, "Reached max turns. Skipping answer generation to avoid blind guessing.")
            await _save(save_callback, system_prompt, message_history)
            experience = await self.generate_failure_summary(
                system_prompt, message_history, tool_definitions, turn_count
            )
            return FinalizedAnswer(TURNS_SPENT, FORMAT_ERROR_MESSAGE, experience, "", message_history)
        text, summary, boxed, usage_log, history = await self.generate_final_answer_with_retries(
            system_prompt=system_prompt,
            message_history=message_history,
            tool_definitions=tool_definitions,
            turn_count=turn_count,
            task_description=task_description,
        )
        await _save(save_callback, system_prompt, history)
        if not attempts_follow:
            if is_final_retry:
                step = f"{_ANSWER_STEP} (Final Retry)"
                self._log("info", step, "This is the final retry. Using intermediate fallback if available.")
            _, summary, boxed = self.handle_no_context_management_fallback(text, summary, boxed)
            return FinalizedAnswer(summary, boxed, None, usage_log, history)
        _, summary, boxed = self.handle_context_management_no_fallback(text, summary, boxed)
        experience = None
        if boxed == FORMAT_ERROR_MESSAGE and not isinstance(self.failure, PermanentModelError | LimitReached):
            experience = await self.generate_failure_summary(system_prompt, history, tool_definitions, turn_count)
        return FinalizedAnswer(summary, boxed, experience, usage_log, history)

    async def _show(self, text: str) -> None:
        """Tell whoever watches. That nobody can be told changes nothing about the answer."""
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


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _reply_of(call: LLMCallResult) -> dict[str, Any]:
    """The reply as the client put it into the history, else as plain text."""
    last = call[3][-1] if call[3] else {}
    return last if last.get("role") == "assistant" else {"role": "assistant", "content": call[0] or ""}


async def _save(callback: Callable[[str, History], Any] | None, system_prompt: str, history: History) -> None:
    if callback is not None:
        saved = callback(system_prompt, history)
        if inspect.isawaitable(saved):
            await saved
