"""The model of closing, for an AnswerGenerator: a client whose requests are journaled as closing ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closeout.errors import LimitReached
from closeout.messages import ModelReply, ModelRequest, Reading, RequestInfo, Usage
from closeout.models.base import BaseClient, CreatedMessage, OnDelta, OnRetry, ProcessedResponse, tool_call_infos
from closeout.run.reply_listener import ReplyListener
from closeout.run.session import ModelSession

__all__ = ["ClosingClient"]


class ClosingClient(BaseClient):
    """The model for an AnswerGenerator: a client whose requests are journaled as closing ones.

    Args:
        session: The agent's conversation.
        info: What the requests are for.
        listener: Receives the replies while they are written.
        may_act: Whether a reply that calls a tool ends closing: it is in `acted` then.
    """

    def __init__(
        self, session: ModelSession, info: RequestInfo, *, listener: ReplyListener | None, may_act: bool = False
    ) -> None:
        self.name = session.client_name
        self.capabilities = session.capabilities
        self.acted: Reading | None = None  # a reply that called a tool while the attempt may continue
        self._session = session
        self._info = info
        self._listener = listener
        self._may_act = may_act

    @property
    def usage(self) -> Usage:
        """The usage of the agent, with its sub-agents."""
        return self._session.usage

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        session = self._session
        reply = await session.calls.request(session.in_form(request), self._info, on_delta=on_delta, on_retry=on_retry)
        if self._may_act:
            reading = session.read(reply)
            if reading.calls:
                self.acted = reading
                raise LimitReached("closing", "The model called a tool instead of answering, so the attempt continues.")
        return reply

    async def create_message(self, *, keep_tool_result: int = -1, **options: Any) -> CreatedMessage:
        """As of any client, but the history keeps its results: what leaves it is recorded in the journal."""
        if self._listener is not None:
            self._listener.begin()
        return await super().create_message(on_delta=self._listener, **options)

    def process_llm_response(
        self, response: ModelReply | None, message_history: Sequence[Mapping[str, Any]], agent_type: str = "main"
    ) -> ProcessedResponse:
        """As of any client, but the text is what the dialect marks as the answer, if that satisfies the contract."""
        text, should_break, history = super().process_llm_response(response, message_history, agent_type)
        if response is not None:
            text = self._session.answer_or_text(response)
        return ProcessedResponse(text, should_break, history)

    def extract_tool_calls_info(self, response: ModelReply | None, text: str = "") -> list[dict[str, Any]]:
        """As of any client; in a dialect of text, the calls that the dialect reads."""
        return [] if response is None else tool_call_infos(self._session.calls_in(response))

    def stop_listening(self) -> None:
        """Publish no more replies: what is asked for now is not for people."""
        self._listener = None
