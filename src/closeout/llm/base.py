"""What every model client offers: `complete`, and on top of it, once for all, the message-history face.

How a client reaches its model lives in the module of that client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from closeout.codec import encode_json
from closeout.errors import ModelError
from closeout.llm.boxes import ErrorBox
from closeout.llm.toolnames import offered_tools, tool_call_infos
from closeout.messages import Bill, Capabilities, Delta, Message, ModelReply, ModelRequest, ToolSpec, Usage

__all__ = ["BaseClient", "CreatedMessage", "OnDelta", "OnRetry", "ProcessedResponse", "RetryNote", "UsageSummary"]

OMITTED_RESULT = "Tool result is omitted to save tokens."


@dataclass(frozen=True, slots=True)
class RetryNote:
    """One attempt failed and another follows. Deltas of the failed attempt are void."""

    attempt: int  # the one that failed, from 1
    attempts: int  # at most
    delay: float  # seconds until the next one
    error: ModelError


OnDelta = Callable[[Delta], bool | None]
"""Called with each piece of a streamed reply; True means "enough": the connection is closed."""

OnRetry = Callable[[RetryNote], None]


class CreatedMessage(NamedTuple):
    """What `create_message` returns: the reply, or an ErrorBox, and the history as it was."""

    response: ModelReply | ErrorBox
    message_history: list[Message]


class ProcessedResponse(NamedTuple):
    """What `process_llm_response` returns; the history is a new list that ends with the assistant's message."""

    text: str
    should_break: bool
    message_history: list[Message]


class UsageSummary(NamedTuple):
    """Token usage for a person, line by line, and as one line for a log."""

    lines: list[str]
    log_string: str


class BaseClient(ABC):
    """A model behind some endpoint. One client serves any number of concurrent runs.

    A subclass sets `name` ("openai:gpt-5") and `capabilities` and implements `complete`; it charges what a request
    cost with `charge`. Everything else works through `complete` and `usage`, so that a wrapper overrides only those.
    """

    name: str = "model"
    capabilities: Capabilities = Capabilities()
    _bill: Bill | None = None

    @abstractmethod
    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        """The reply to a request, after transport retries. `usage` of the reply counts the failed attempts too.

        With `on_delta` the reply is streamed where the endpoint can; once it returns True the connection is closed
        and the reply, as far as it got, has finish_reason "cut". Raises ModelError; its `usage` is what was spent.
        """

    async def context_length(self) -> int | None:
        """Tokens that prompt and reply may have together, as far as is known or the server says. Never raises for that.

        A server is asked once; a value that it told is not in `capabilities`, which say what is known without asking.
        """
        return self.capabilities.max_context

    async def aclose(self) -> None:  # noqa: B027  most clients hold nothing
        """Frees what the client holds. Safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def usage(self) -> Usage:
        """All that this client was charged so far, failed requests too."""
        return Usage() if self._bill is None else self._bill.total

    def charge(self, usage: Usage) -> None:
        """Puts what one request cost on the client's bill."""
        if self._bill is None:  # not made in __init__, which subclasses need not call
            self._bill = Bill()
        self._bill.add(usage)

    # ---------------------------------------------------------------------------------- the message-history face

    async def create_message(
        self,
        *,
        system_prompt: str = "",
        message_history: Sequence[Mapping[str, Any]],
        tool_definitions: Sequence[ToolSpec] | Sequence[Mapping[str, Any]] | None = (),
        keep_tool_result: int = -1,
        step_id: int = 0,
        task_log: Any = None,
        agent_type: str = "main",
        on_delta: OnDelta | None = None,
        **options: Any,
    ) -> CreatedMessage:
        """One request made of a system prompt and a history. A model error comes back as an ErrorBox.

        `tool_definitions`: ToolSpecs, or `[{"name": server, "tools": [{"name", "description", "schema"}]}]`.
        `keep_tool_result`: -1 sends every tool result, K the last K; older ones are replaced by a short note.
        `task_log`: told of retries through `log_step(level, step_name, message)`. `options`: fields of ModelRequest.
        """
        history = [Message.of(message) for message in message_history]
        shown = _without_old_results(history, keep_tool_result)
        if system_prompt:
            shown = [Message(role="system", content=system_prompt), *shown]
        offer = offered_tools(tool_definitions or ())

        def note(retry: RetryNote) -> None:
            if task_log is not None:
                message = f"{retry.error} Asked again after {retry.delay:.1f} s."
                task_log.log_step("warning", f"{agent_type} | LLM retry | step {step_id}", message)

        try:
            reply = await self.complete(
                ModelRequest(messages=shown, tools=offer.specs, **options), on_delta=on_delta, on_retry=note
            )
        except ModelError as error:
            return CreatedMessage(ErrorBox(str(error), error), history)
        return CreatedMessage(replace(reply, tool_calls=tuple(map(offer.resolve, reply.tool_calls))), history)

    def process_llm_response(
        self, response: ModelReply | None, message_history: Sequence[Mapping[str, Any]], agent_type: str = "main"
    ) -> ProcessedResponse:
        """The reply's text and the history with the reply at its end. No reply at all: ("", True, the history)."""
        history = [Message.of(message) for message in message_history]
        if response is None:
            return ProcessedResponse("", True, history)
        return ProcessedResponse(response.text, False, [*history, assistant_message(response)])

    def extract_tool_calls_info(self, response: ModelReply | None, text: str = "") -> list[dict[str, Any]]:
        """The reply's native calls: `{"server_name", "tool_name", "arguments", "id"}` each.

        `arguments` is an object, or the model's own text where that is no JSON object.
        """
        return [] if response is None else tool_call_infos(response.tool_calls)

    def update_message_history(
        self, message_history: Sequence[Mapping[str, Any]], tool_results: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[Message]:
        """A new history with tool results added: `[(call id, {"type": "text", "text": …})]`.

        Results of native calls become `tool` messages; all others together one `user` message.
        """
        history = [Message.of(message) for message in message_history]
        calls = history[-1].get("tool_calls") or () if history else ()
        native = {call.get("id") for call in calls}
        loose = [str(part.get("text", "")) for call_id, part in tool_results if call_id not in native]
        for call_id, part in tool_results:
            if call_id in native:
                history.append(Message(role="tool", tool_call_id=call_id, content=str(part.get("text", ""))))
        if loose:
            history.append(Message(role="user", content="\n".join(loose)))
        return history

    def format_token_usage_summary(self) -> UsageSummary:
        """What was spent so far, as lines for a person and as one line for a log."""
        usage = self.usage
        cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
        lines = [
            f"Requests: {usage.requests:,}",
            f"Input tokens: {usage.input_tokens:,} (from cache: {usage.cache_read_tokens:,})",
            f"Output tokens: {usage.output_tokens:,}",
            f"Cost: {cost}",
        ]
        log = (
            f"[{self.name}] requests {usage.requests}, input {usage.input_tokens}, "
            f"cache read {usage.cache_read_tokens}, cache write {usage.cache_write_tokens}, "
            f"output {usage.output_tokens}, cost {cost}"
        )
        return UsageSummary(lines, log)


def assistant_message(reply: ModelReply) -> Message:
    """A reply as the message that stands for it in a history; reasoning is kept beside the content."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.reasoning_details is not None:
        message["reasoning_details"] = reply.reasoning_details
    if reply.tool_calls:
        message["content"] = reply.text or None
        message["tool_calls"] = [
            {
                "id": info["id"],
                "type": "function",
                "function": {"name": call.name, "arguments": call.text or _as_text(call.arguments)},
            }
            for call, info in zip(reply.tool_calls, tool_call_infos(reply.tool_calls), strict=True)
        ]
    return Message(message)


def _as_text(arguments: Mapping[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else encode_json(dict(arguments)).decode()


def _without_old_results(history: list[Message], keep: int) -> list[Message]:
    """The history with all but the last `keep` tool results replaced; its first and last message are never touched."""
    if keep < 0:
        return history
    inner = range(1, len(history) - 1)
    results = [i for i, message in enumerate(history) if message.role == "tool"]
    results = results or [i for i in inner if history[i].role == "user"]
    old = set(results[: max(len(results) - keep, 0)]) & set(inner)
    return [
        Message({**message, "content": OMITTED_RESULT}) if i in old else message for i, message in enumerate(history)
    ]
