"""A user's AnswerGenerator in a run: the client that it asks through, and the places where its methods are called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any

from closeout.answers.dialogue import FinalAnswer, FinalizedAnswer, History, LLMCallResult
from closeout.answers.formatter import using_contract
from closeout.compat.answer_generator import AnswerGenerator, MakeGenerator
from closeout.errors import JournalError, LimitReached
from closeout.journal.events import Noted
from closeout.messages import SHOULD_BREAK, Message, ModelReply, ModelRequest, Reading, RequestInfo, Usage
from closeout.models.base import (
    BaseClient,
    CreatedMessage,
    OnDelta,
    OnRetry,
    ProcessedResponse,
    UsageSummary,
    tool_call_infos,
)
from closeout.models.connect import listed_calls, read_tool_call, system_and_history
from closeout.overrides import failure_of, is_overridden, returned, shaped
from closeout.run.final_format import UsageReport
from closeout.run.plan import AgentPlan, Scope
from closeout.run.reply_listener import ReplyListener
from closeout.run.session import ModelSession

__all__ = ["SessionClient", "UserGenerator", "own_generator"]

# Overrides that decide on the answer, so they are called too if the model has answered or failed before closing.
FINAL = ("generate_and_finalize_answer", "generate_final_answer_with_retries")
ARGUMENTS = tuple(signature(BaseClient.create_message).parameters)[1:]
FALLBACK = ("handle_no_context_management_fallback", "handle_context_management_no_fallback")


@dataclass(slots=True)
class _Asked:
    """The current request of the generator: closing, or a turn whose request the loop has written.

    Attributes:
        info: What the requests are for.
        listener: Receives the replies while they are written.
        request: The turn's request, None in closing.
        may_act: Whether a reply that calls a tool ends closing: it is in `acted` then.
        reply: The last reply.
        error: Why the reply is missing.
    """

    info: RequestInfo
    listener: OnDelta | None
    request: ModelRequest | None = None
    may_act: bool = False
    acted: Reading | None = None
    reply: ModelReply | None = None
    error: Exception | None = None


class SessionClient(BaseClient):
    """The model of an agent for an AnswerGenerator: its requests are journaled and charged as the run's own.

    Args:
        session: The agent's conversation.
        report: States the usage.
    """

    def __init__(self, session: ModelSession, report: UsageReport) -> None:
        self.name = report.name
        self.capabilities = session.capabilities
        self.asked = _Asked(RequestInfo("close", 0, 0), None)
        self._session = session
        self._report = report

    @property
    def usage(self) -> Usage:
        """The usage of the agent, with its sub-agents."""
        return self._report.usage

    def format_token_usage_summary(self) -> UsageSummary:
        return self._report.format_token_usage_summary()

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        session, asked = self._session, self.asked
        if asked.request is not None:
            request = self._in_turn(request, asked.request)
        asked.reply = None
        try:
            reply = await session.calls.request(
                session.in_form(request), asked.info, on_delta=on_delta, on_retry=on_retry
            )
        except Exception as error:
            asked.error = error
            raise
        asked.reply = reply
        if asked.may_act:
            reading = session.read(reply)
            if reading.calls:
                asked.acted = reading
                raise LimitReached("closing", "The model called a tool instead of answering, so the attempt continues.")
        return reply

    def _in_turn(self, request: ModelRequest, own: ModelRequest) -> ModelRequest:
        """Return the turn's own request, with what an override has changed in it."""
        passed = [Message(role="user", content=own.prompt)] if own.prompt is not None else [*own.messages]
        if [*request.messages] == passed:
            return own if request.tools == own.tools or own.prompt is not None else replace(own, tools=request.tools)
        return replace(own, messages=request.messages, prompt=None, tools=request.tools or own.tools, breakpoints=())

    async def create_message(self, *arguments: Any, **options: Any) -> CreatedMessage:
        """As of any client, but the history keeps its results: what leaves it is recorded in the journal."""
        listener = self.asked.listener
        if isinstance(listener, ReplyListener) and self.asked.request is None:
            listener.begin()
        given = {**dict(zip(ARGUMENTS, arguments, strict=False)), **options, "keep_tool_result": -1}
        return await super().create_message(on_delta=listener, **given)

    def process_llm_response(
        self, response: ModelReply | None, message_history: Sequence[Mapping[str, Any]], agent_type: str = "main"
    ) -> ProcessedResponse:
        """As of any client, but closing's text is what the dialect marks as the answer, if that fits the contract."""
        text, should_break, history = super().process_llm_response(response, message_history, agent_type)
        if response is not None and self.asked.request is None:
            text = self._session.answer_or_text(response)
        should_break = should_break or (response is not None and response.finish_reason == SHOULD_BREAK)
        return ProcessedResponse(text, should_break, history)

    def extract_tool_calls_info(self, response: ModelReply | None, text: str = "") -> list[dict[str, Any]]:
        """As of any client; in a dialect of text, the calls that the dialect reads."""
        return [] if response is None else tool_call_infos(self._session.calls_in(response))

    def stop_listening(self) -> None:
        """Publish no more replies: the next requests are internal."""
        self.asked.listener = None


class UserGenerator:
    """A user's AnswerGenerator through one agent's run. An override that raises is noted and costs nothing else.

    Args:
        make: Makes the generator.
        plan: The agent.
        scope: Its place in the run.
        session: Its conversation.
        report: States the usage.
        seen: Answers seen in earlier turns. The list grows.
        question: The task.
    """

    def __init__(
        self,
        make: MakeGenerator,
        plan: AgentPlan,
        scope: Scope,
        session: ModelSession,
        report: UsageReport,
        *,
        seen: list[str],
        question: str,
    ) -> None:
        self._scope = scope
        self._session = session
        self._contract = plan.contract
        self._question = question
        self._client = SessionClient(session, report)
        self._one_at_a_time = asyncio.Lock()
        self._agent_type = scope.agent_type
        with using_contract(plan.contract):
            self._generator = generator = make(
                llm_client=self._client,
                output_formatter=plan.output_formatter,
                task_log=scope.task_log,
                stream_handler=scope.run.stream_handler,
                cfg=plan,
                intermediate_boxed_answers=seen,
            )
        generator.contract = plan.contract
        generator.agent_type = self._agent_type
        self.decides = self._overrides(*FINAL)
        self.falls_back = self._overrides(*FINAL, *FALLBACK)
        if self._overrides("handle_llm_call"):
            session.ask = self.ask

    def _overrides(self, *names: str) -> bool:
        return any(is_overridden(self._generator, AnswerGenerator, name) for name in names)

    def _note(self, name: str, error: Exception) -> None:
        text = failure_of(self._generator, name, error)
        with suppress(JournalError):
            self._scope.journal.append(Noted(self._scope.path, "warning", "Answer generator", message=text))

    # ------------------------------------------------------------------------------------------ a turn

    async def ask(self, request: ModelRequest, info: RequestInfo, *, on_delta: OnDelta | None = None) -> ModelReply:
        """Have `handle_llm_call` send the request of a turn. Returns the reply as it left it.

        Raises:
            ModelError: The request failed, and the method did not make up for it.
        """
        system, history = system_and_history(request)
        async with self._one_at_a_time:
            asked = self._client.asked = _Asked(info, on_delta, request)
            step, purpose = info.turn + 1, f"{self._agent_type.capitalize()} agent | Turn: {info.turn + 1}"
            try:
                sent = self._generator.handle_llm_call(
                    system, [*history], request.tools, step, purpose, self._agent_type
                )
                call = shaped(await returned(sent), LLMCallResult, self._generator, "handle_llm_call")
                reply = self._reply(call, asked)
            except JournalError:
                raise
            except Exception as error:
                if error is asked.error:
                    raise
                self._note("handle_llm_call", error)
                if asked.reply is None and asked.error is None:
                    return await self._session.calls.request(request, info, on_delta=on_delta)
                reply = asked.reply
        if reply is None:
            assert asked.error is not None
            raise asked.error
        if reply is not asked.reply and isinstance(on_delta, ReplyListener):
            on_delta.replace(reply.text)
        return reply

    def _reply(self, call: LLMCallResult, asked: _Asked) -> ModelReply | None:
        """Return the reply with the text and the calls that the method returned; None if its request failed."""
        text, should_break, infos, _ = call
        text, infos = text or "", listed_calls(infos)
        reply = asked.reply
        if reply is None:
            if asked.error is not None and not (text or infos):
                return None
            finish = SHOULD_BREAK if should_break else "stop"
            return ModelReply(text, tool_calls=tuple(map(read_tool_call, infos)), finish_reason=finish)
        if reply.finished and bool(should_break) != (reply.finish_reason == SHOULD_BREAK):
            reply = replace(reply, finish_reason=SHOULD_BREAK if should_break else "stop")
        if not text and not infos and (not reply.finished or call.error):
            return reply  # the loop knows what to do with a reply that is not finished
        was = self._client.extract_tool_calls_info(reply)
        if text != reply.text:
            reply = replace(reply, text=text)
        if infos == was:
            return reply
        # Calls in the text would count beside those that were returned.
        return replace(
            reply, text=reply.text if reply.tool_calls or not was else "", tool_calls=tuple(map(read_tool_call, infos))
        )

    # ------------------------------------------------------------------------------------------ closing

    async def close(
        self,
        history: History,
        info: RequestInfo,
        *,
        listener: ReplyListener,
        turns_spent: bool,
        is_final: bool,
        may_act: bool,
        shrink: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]] | None],
        settled: FinalAnswer | None = None,
    ) -> FinalizedAnswer | Reading | None:
        """Have the generator close an attempt.

        Args:
            history: The conversation of the attempt.
            info: What the requests are for.
            listener: Receives the replies, if anybody watches.
            turns_spent: Whether the attempt stopped because its turns were used up.
            is_final: Whether no other attempt follows.
            may_act: Whether the model may call a tool instead.
            shrink: Returns a shorter conversation.
            settled: The loop's own outcome, if the model need not or cannot be asked.

        Returns:
            The end of the attempt; a reply that calls a tool instead; or None if an override raised.
        """
        generator, client = self._generator, self._client
        asked = client.asked = _Asked(info, listener if self._session.watched else None, may_act=may_act)
        generator.shrink_history = shrink
        generator.on_refused = listener.refused
        generator.settled = settled
        try:
            with using_contract(self._contract):
                closing = generator.generate_and_finalize_answer(
                    system_prompt="",
                    message_history=history,
                    tool_definitions=self._session.native_tools,
                    turn_count=info.turn,
                    task_description=self._question,
                    reached_max_turns=turns_spent,
                    is_final_retry=is_final,
                    save_callback=lambda *_: client.stop_listening(),
                )
                ended = await returned(closing)
            if asked.acted is None:
                return shaped(ended, FinalizedAnswer, generator, "generate_and_finalize_answer")
        except JournalError:
            raise
        except Exception as error:
            if asked.acted is None:
                self._note("generate_and_finalize_answer", error)
        return asked.acted


def own_generator(make: MakeGenerator | None) -> Callable[..., UserGenerator] | None:
    """Return what makes the UserGenerator of a run; None for AnswerGenerator itself, as closing does the same."""
    return None if make in (None, AnswerGenerator) else partial(UserGenerator, make)
