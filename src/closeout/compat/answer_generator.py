"""AnswerGenerator: ask the model for its final answer, or for what a failed attempt learned.

`dialogue` decides what is asked, `replies` what is wrong with a reply, `experience` reads the account of a failed
attempt, and the run decides whether another attempt follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from closeout.answers.contracts import AnswerContract, Boxed
from closeout.answers.dialogue import (
    CUT,
    DEFAULT_MAX_FINAL_ANSWER_RETRIES,
    TURNS_SPENT,
    ClosingDialogue,
    Dialogue,
    FallbackAnswer,
    FinalAnswer,
    FinalizedAnswer,
    History,
    LLMCallResult,
    Outcome,
    enforceable,
    generate_agent_summarize_prompt,
    max_final_answer_retries,
    unfinished,
)
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, FormattedAnswer, OutputFormatter, answer_of
from closeout.errors import ContextOverflow, JournalError, LimitReached, ModelError
from closeout.messages import Constraint, ModelReply
from closeout.models.base import BaseClient
from closeout.models.connect import unboxed
from closeout.overrides import returned, shaped

__all__ = [
    "DEFAULT_MAX_FINAL_ANSWER_RETRIES",
    "AnswerGenerator",
    "FallbackAnswer",
    "FinalAnswer",
    "FinalizedAnswer",
    "LLMCallResult",
    "MakeGenerator",
    "generate_agent_summarize_prompt",
]


class AnswerGenerator:
    """Produce the final answer of one attempt, or the experience that the next attempt builds on.

    Every method may be overridden; `Agent(answer_generator=MyGenerator)` uses the subclass in its runs. An override of
    `handle_llm_call` sends the requests of turns too; one of `generate_and_finalize_answer` or
    `generate_final_answer_with_retries` also decides on an answer that the model gave before closing. The methods never
    modify the lists that they receive.

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

    Attributes:
        contract: The form of the answer.
        max_final_answer_retries: How often the answer is asked for at most.
        shrink_history: Called once if the prompt is longer than the model's context. Returns a shorter history, or
            None if that is not possible. None by default; a run sets it.
        agent_type: "main", or the name of a sub-agent, which reports to its caller. A run sets it.
        on_refused: Called with each reply that is not accepted: with its text if the next request only completes it,
            otherwise with "". A run sets it.
        constraint: The form that the server holds the reply of the current request to, for a client that takes one.
        settled: The outcome before closing: the answer that the model gave, or that the model failed.
            `generate_final_answer_with_retries` returns it instead of asking. A run sets it.
    """

    def __init__(
        self,
        llm_client: Any,
        output_formatter: OutputFormatter,
        task_log: Any,
        stream_handler: Any,
        cfg: Any,
        intermediate_boxed_answers: Sequence[str],
    ) -> None:
        self.llm_client = llm_client
        self.output_formatter = output_formatter
        self.task_log = task_log
        self.stream = stream_handler
        self.cfg = cfg
        self.intermediate_boxed_answers = intermediate_boxed_answers
        self.contract: AnswerContract = getattr(output_formatter, "contract", None) or Boxed()
        self.context_compress_limit = cfg.agent.get("context_compress_limit", 0)
        self.max_final_answer_retries = max_final_answer_retries(cfg)
        # Set after the object is made, so that a subclass with these six parameters needs no others.
        self.agent_type = "main"
        self.shrink_history: Callable[[History], Sequence[Mapping[str, Any]] | None] | None = None
        self.on_refused: Callable[[str], object] = lambda draft: None
        self.constraint: Constraint | None = None
        self.settled: FinalAnswer | None = None

    # ------------------------------------------------------------------------------------------- one request

    async def handle_llm_call(
        self,
        system_prompt: str,
        message_history: History,
        tool_definitions: Any,
        step_id: int,
        purpose: str = "",
        agent_type: str = "main",
    ) -> LLMCallResult:
        """Send one request and return its reply, or "" and the original history if it failed.

        Args:
            system_prompt: The system prompt, "" if the history starts with it.
            message_history: The conversation to send.
            tool_definitions: The tools that the request lists.
            step_id: The number of this request in the log.
            purpose: What the request is for, in the log.
            agent_type: "main" or the name of a sub-agent.

        Raises:
            JournalError: The run's journal cannot be written. Any other failure is returned as a value.
        """
        options = {} if self.constraint is None else {"constraint": self.constraint}
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
            response, warnings = unboxed(response, getattr(self.llm_client, "name", "The model"))
            for warning in warnings:
                await self._show_error(warning)
            text, should_break, history = self.llm_client.process_llm_response(response, list(history), agent_type)
            tool_calls = self.llm_client.extract_tool_calls_info(response, text)
            history = list(history)
        except JournalError:
            raise
        except Exception as error:  # a failed request is a value; its type decides what follows
            if not isinstance(error, LimitReached):
                self.task_log.log_step("error", f"{purpose} | LLM Call ERROR", f"{purpose} error: {error}")
            if isinstance(error, ModelError | LimitReached):
                await self._show_error(str(error))
            return LLMCallResult.failed(message_history, error)
        self.task_log.log_step("info", f"{purpose} | LLM Call", "completed successfully")
        reason = getattr(response, "finish_reason", None)
        cut = reason in CUT
        if isinstance(response, ModelReply) and not (response.finished or cut):
            self.task_log.log_step("warning", f"{purpose} | LLM Call", f"the reply is not finished ({reason})")
            return LLMCallResult.failed(message_history, unfinished(response))
        return LLMCallResult(text, should_break, tool_calls, history, cut=cut)

    async def _converse(self, steps: Dialogue[Outcome], system_prompt: str, tool_definitions: Any) -> Outcome:
        """Send the requests of a dialogue, one that is too long once more with a shorter base. Return the outcome."""
        try:
            request = next(steps)
            while True:
                self.constraint = request.constraint
                sent = self.handle_llm_call(
                    system_prompt,
                    request.messages,
                    tool_definitions,
                    request.step,
                    request.purpose,
                    agent_type=self.agent_type,
                )
                call = shaped(await returned(sent), LLMCallResult, self, "handle_llm_call")
                shrink = self.shrink_history
                if isinstance(call.error, ContextOverflow) and shrink is not None:
                    self.shrink_history = None
                    if (shorter := shrink(request.base)) is not None:
                        request = replace(request, base=[dict(message) for message in shorter])
                        continue
                request = steps.send((call, request.base))
        except StopIteration as end:
            self.constraint = None
            outcome: Outcome = end.value
            return outcome

    # ------------------------------------------------------------------------------------------- experience

    async def generate_failure_summary(
        self, system_prompt: str, message_history: History, tool_definitions: Any, turn_count: int
    ) -> str | None:
        """Ask the model for an account of a failed attempt.

        Returns:
            The account, for `experience_from`, or None if the model wrote none.
        """
        steps = self._dialogue("", turn_count).ask_experience(message_history)
        return await self._converse(steps, system_prompt, tool_definitions)

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

        A reply that only lacks the form is completed by a short continuation. After any other unusable reply, also
        one that the history ends with, the request states the reason.

        Returns:
            The answer. Its history holds the closing instruction and, if there is an answer, the reply that gave it;
            replies that were not accepted are left out.
        """
        if self.settled is not None:
            return self.settled
        steps = self._dialogue(task_description, turn_count).ask_answer(message_history)
        return await self._converse(steps, system_prompt, tool_definitions)

    def _dialogue(self, task: str = "", turns: int = 0) -> ClosingDialogue:
        client, constraint = self.llm_client, None
        if isinstance(client, BaseClient):
            constraint = enforceable(self.contract.constraint(), client.capabilities)
        return ClosingDialogue(
            task=task,
            turns=turns,
            contract=self.contract,
            format_answer=lambda text: FormattedAnswer(
                *self.output_formatter.format_final_summary_and_log(text, self.llm_client)
            ),
            log=self.task_log.log_step,
            agent_type=self.agent_type,
            retries=self.max_final_answer_retries,
            constraint=constraint,
            on_refused=self.on_refused,
            seen=self.intermediate_boxed_answers,
            selection=self.cfg.agent.get("answer_selection", "last"),
        )

    # ------------------------------------------------------------------------------------------- fallbacks

    def handle_no_context_management_fallback(
        self, final_answer_text: str | None, final_summary: str, final_boxed_answer: str | None
    ) -> FallbackAnswer:
        """Return the answer of an attempt that is the last one: if it has none, an answer seen in an earlier turn.

        `cfg.agent.answer_selection` chooses which: "last", or "vote" for the one given most often.
        """
        return self._dialogue().with_fallback(final_answer_text, final_summary, final_boxed_answer)

    def handle_context_management_no_fallback(
        self, final_answer_text: str | None, final_summary: str, final_boxed_answer: str | None
    ) -> FallbackAnswer:
        """Return the answer of an attempt that another one follows: no guess, a missing answer stays missing."""
        return self._dialogue().without_fallback(final_answer_text, final_summary, final_boxed_answer)

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
        save = save_callback or (lambda *_: None)
        another_follows = self.context_compress_limit > 0 and not is_final_retry
        if another_follows and reached_max_turns and self.settled is None:
            self._dialogue().note_turns_spent()
            await returned(save(system_prompt, message_history))
            learned = self.generate_failure_summary(system_prompt, message_history, tool_definitions, turn_count)
            return FinalizedAnswer(TURNS_SPENT, FORMAT_ERROR_MESSAGE, await returned(learned), "", message_history)
        asked = self.generate_final_answer_with_retries(
            system_prompt=system_prompt,
            message_history=message_history,
            tool_definitions=tool_definitions,
            turn_count=turn_count,
            task_description=task_description,
        )
        final = shaped(await returned(asked), FinalAnswer, self, "generate_final_answer_with_retries")
        history = final.message_history
        await returned(save(system_prompt, history))
        if is_final_retry:
            self._dialogue().note_final_retry()
        strategy = (
            self.handle_context_management_no_fallback
            if another_follows
            else self.handle_no_context_management_fallback
        )
        found = strategy(final.final_answer_text, final.final_summary, final.final_boxed_answer)
        chosen = shaped(found, FallbackAnswer, self, strategy.__name__)
        experience = None
        if another_follows and answer_of(chosen.final_boxed_answer) is None and final.may_ask_again:
            learned = self.generate_failure_summary(system_prompt, history, tool_definitions, turn_count)
            experience = await returned(learned)
        return final.finalized(chosen, experience)

    async def _show_error(self, text: str) -> None:
        """Show a text on the stream, if there is one. A stream that fails does not affect the answer."""
        if self.stream is None:
            return
        try:
            await returned(self.stream.show_error(text))
        except JournalError:
            raise
        except Exception as error:
            message = f"Could not be shown ({type(error).__name__}: {error}): {text}"
            self.task_log.log_step("warning", "Stream Error", message)


MakeGenerator: TypeAlias = Callable[..., AnswerGenerator]
"""An `AnswerGenerator` class, or a function that takes the same arguments."""
