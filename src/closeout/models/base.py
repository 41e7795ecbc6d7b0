"""The interface of every model client: `complete`, and the seeds' message-history methods built on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeGuard

from closeout.codec import decode_json, encode_json
from closeout.errors import ModelError, UsageError
from closeout.messages import (
    Capabilities,
    Delta,
    Message,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolSpec,
    Usage,
    UsageSum,
)
from closeout.models.catalog import Price, find_price
from closeout.models.retry import OnRetry, RetryNote, RetryPolicy

__all__ = [
    "BaseClient",
    "CreatedMessage",
    "ErrorBox",
    "Offer",
    "OnDelta",
    "OnRetry",
    "ProcessedResponse",
    "ResponseBox",
    "RetryNote",
    "RunRequest",
    "UsageSummary",
    "assistant_message",
    "offered_tools",
    "price_of",
    "run_request",
    "summarise_usage",
    "tool_call_infos",
]

OMITTED_RESULT = "Tool result is omitted to save tokens."


OnDelta = Callable[[Delta], bool | None]
"""Called with each piece of a streamed reply. If it returns True, the connection is closed."""


class CreatedMessage(NamedTuple):
    """The result of `create_message`: the reply or an ErrorBox, and the unchanged history."""

    response: ModelReply | ErrorBox | None
    message_history: list[Message]


class ProcessedResponse(NamedTuple):
    """The result of `process_llm_response`. The history is a new list that ends with the assistant's message."""

    text: str
    should_break: bool
    message_history: list[Message]


class UsageSummary(NamedTuple):
    """Token usage for a person, line by line, and as one line for a log."""

    lines: list[str]
    log_string: str


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The fields of a run's request beside its messages and tools. `create_message` sends them along.

    Attributes:
        options: Fields of ModelRequest.
        is_text: Whether the conversation is one text for a completion endpoint.
        on_delta: Receives the reply in pieces.
        on_retry: Called before each retry.
        keep_tool_result: The setting of the run. What leaves the context is left out of the messages already.
        step_id: The number of the turn, from 1.
        task_log: The log of the run.
        agent_type: "main", or the name of a sub-agent.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    is_text: bool = False
    on_delta: OnDelta | None = None
    on_retry: OnRetry | None = None
    keep_tool_result: int = -1
    step_id: int = 1
    task_log: Any = None
    agent_type: str = "main"


# The request that a run sends through an overridden `create_message`, whose parameters have no place for all of it.
run_request: ContextVar[RunRequest | None] = ContextVar("closeout_run_request", default=None)


class BaseClient(ABC):
    """A model client. One client serves any number of concurrent runs.

    A subclass sets `name` ("openai:gpt-5") and `capabilities`, implements `complete`, and calls `charge` with the
    usage of each request. Everything else uses `complete` and `usage`, so a wrapper overrides only those two.

    Attributes:
        retry: How often a run repeats a request that failed, if the error may pass and the client has not retried it
            itself. None: `llm.max_retries` times.
        price: The highest price of a request; None if unknown. Budgets reserve by it.
        least_price: The lowest, if the client asks several models.
        next_price: That of the model that is asked now or next.
        max_reply: The most tokens that a reply has if the request does not say; None if unknown.
        missing_key: Why no request can be sent, if the vendor's key is missing. Runs are refused with it.
    """

    name: str = "model"
    capabilities: Capabilities = Capabilities()
    scripted: bool = False  # whether it only plays a script: its runs do not belong among a user's own
    retry: RetryPolicy | None = None
    price: Price | None = None
    max_reply: int | None = None
    missing_key = ""
    has_learned = False  # whether the server's answers have taught it something that `lessons` tells
    _usage_sum: UsageSum | None = None

    @abstractmethod
    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        """Send a request and return the reply.

        Args:
            request: What to send.
            on_delta: Receives the reply in pieces, if the endpoint can stream. If it returns True, the connection is
                closed and the incomplete reply has the finish_reason "cut".
            on_retry: Called before each retry that the client makes itself.

        Returns:
            The reply. Its usage includes the failed attempts.

        Raises:
            ModelError: The request failed. Its `usage` is what all attempts cost. A run retries a TransientModelError
                and exceptions of other libraries; TypeError, AttributeError and the like end it.
        """

    async def context_length(self) -> int | None:
        """Return the tokens that prompt and reply may have together; None if neither known nor stated by the server.

        The server is asked once. `capabilities` holds only what is known without asking.
        """
        return self.capabilities.max_context

    def for_run(self) -> BaseClient:
        """Return the client for one agent's run. A client that keeps something of a run returns one for it alone."""
        return self

    @property
    def least_price(self) -> Price | None:
        return self.price

    @property
    def next_price(self) -> Price | None:
        return self.price

    def recall(self, reply: ModelReply) -> None:  # noqa: B027  most clients keep nothing
        """Note a reply that a resumed run read from its record."""

    def rolled_back(self, times: int) -> None:  # noqa: B027
        """Note how many replies in a row were rolled back before the next request; 0: the last one was not."""

    def lessons(self) -> str:
        """Return what the server's refusals have taught, for `take_lessons` of a later client."""
        return ""

    def take_lessons(self, text: str) -> None:  # noqa: B027
        """Write requests by the lessons of an earlier client of the same model and server."""

    async def aclose(self) -> None:  # noqa: B027  most clients hold nothing
        """Release the client's resources. May be called twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def usage(self) -> Usage:
        """The usage of all requests so far, failed ones included."""
        return Usage() if self._usage_sum is None else self._usage_sum.total

    def charge(self, usage: Usage) -> None:
        """Add the usage of one request."""
        if self._usage_sum is None:  # not made in __init__, which subclasses need not call
            self._usage_sum = UsageSum()
        self._usage_sum.add(usage)

    # ---------------------------------------------------------------------------------- the message-history interface

    async def create_message(
        self,
        system_prompt: str = "",
        message_history: Sequence[Mapping[str, Any]] = (),
        tool_definitions: Sequence[ToolSpec] | Sequence[Mapping[str, Any]] | None = (),
        keep_tool_result: int = -1,
        step_id: int = 0,
        task_log: Any = None,
        agent_type: str = "main",
        *,
        on_delta: OnDelta | None = None,
        **options: Any,
    ) -> CreatedMessage:
        """Send a system prompt and a history as one request. A ModelError is returned as an ErrorBox.

        `tool_definitions`: ToolSpecs, or `[{"name": server, "tools": [{"name", "description", "schema"}]}]`.
        `keep_tool_result`: -1 sends every tool result, K the last K; older ones are replaced by a short note.
        `task_log`: receives retries through `log_step(level, step_name, message)`. `options`: fields of ModelRequest.
        """
        history, own = Message.all_of(message_history), run_request.get()
        if own is not None and keep_tool_result == own.keep_tool_result:
            keep_tool_result = -1
        shown = _without_old_results(history, keep_tool_result)
        if system_prompt:
            shown = [Message(role="system", content=system_prompt), *shown]
        offer = offered_tools(tool_definitions or ())
        if own is not None:
            options, on_delta = {**own.options, **options}, on_delta or own.on_delta
            if own.is_text:
                options["prompt"] = "\n\n".join(message.text for message in shown)

        def note(retry: RetryNote) -> None:
            if own is not None and own.on_retry is not None:
                own.on_retry(retry)
            elif task_log is not None:
                message = f"{retry.error} Retrying in {retry.delay:.1f} s."
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
        """Return the reply's text and the history with the reply added. Without a reply: ("", True, the history)."""
        history = Message.all_of(message_history)
        if response is None:
            return ProcessedResponse("", True, history)
        return ProcessedResponse(response.text, False, [*history, assistant_message(response)])

    def extract_tool_calls_info(self, response: ModelReply | None, text: str = "") -> list[dict[str, Any]]:
        """Return the reply's native calls as dicts with `server_name`, `tool_name`, `arguments` and `id`.

        `arguments` is an object, or the model's text if that is not a JSON object.
        """
        return [] if response is None else tool_call_infos(response.tool_calls)

    def update_message_history(
        self, message_history: Sequence[Mapping[str, Any]], tool_results: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[Message]:
        """Return a new history with tool results added: `[(call id, {"type": "text", "text": …})]`.

        Results of native calls become `tool` messages; all others together one `user` message.
        """
        history = Message.all_of(message_history)
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
        """Return the usage so far, as lines for people and as one line for a log."""
        return summarise_usage(self.name, self.usage)


def price_of(client: BaseClient, prices: Mapping[str, Sequence[float]] | None, which: str = "price") -> Price | None:
    """Return the price of a client's model by the client or by the settings; None if it is unknown.

    `which` is the attribute of a client that asks several models: price, least_price or next_price.
    """
    price: Price | None = getattr(client, which)
    if price is None and prices:  # a client that was passed as an object does not know the settings
        return find_price(client.name.partition(":")[2] or client.name, prices, known={})
    return price


def summarise_usage(model: str, usage: Usage) -> UsageSummary:
    """Return the usage of a model, as lines for people and as one line for a log."""
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    lines = [
        f"Requests: {usage.requests:,}",
        f"Input tokens: {usage.input_tokens:,} (from cache: {usage.cache_read_tokens:,})",
        f"Output tokens: {usage.output_tokens:,}",
        f"Cost: {cost}",
    ]
    log = (
        f"[{model}] requests {usage.requests}, input {usage.input_tokens}, "
        f"cache read {usage.cache_read_tokens}, cache write {usage.cache_write_tokens}, "
        f"output {usage.output_tokens}, cost {cost}"
    )
    return UsageSummary(lines, log)


def assistant_message(reply: ModelReply) -> Message:
    """Return a reply as a message for the history. Reasoning is kept beside the content."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.attached:
        message["attached"] = reply.attached
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
    """Return the history with all but the last `keep` tool results replaced. Its first and last message stay."""
    if keep < 0:
        return history
    inner = range(1, len(history) - 1)
    results = [i for i, message in enumerate(history) if message.role == "tool"]
    results = results or [i for i in inner if history[i].role == "user"]
    old = set(results[: max(len(results) - keep, 0)]) & set(inner)
    return [
        Message({**message, "content": OMITTED_RESULT}) if i in old else message for i, message in enumerate(history)
    ]


# ------------------------------------------------------------------------------------------------ boxes


class ErrorBox:
    """A failed request as a value. Its text is the message; `error` is the exception, if known."""

    __slots__ = ("error", "message")

    def __init__(self, message: str, error: Exception | None = None) -> None:
        self.message = message
        self.error = error

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"ErrorBox({self.message!r})"

    @staticmethod
    def is_error_box(something: object) -> TypeGuard[ErrorBox]:
        return isinstance(something, ErrorBox)


class ResponseBox:
    """A reply with remarks: `{"warning_msg": "…"}` is shown to people."""

    __slots__ = ("extra_info", "response")

    def __init__(self, response: Any, extra_info: Mapping[str, Any] | None = None) -> None:
        self.response = response
        self.extra_info = extra_info

    def __repr__(self) -> str:
        return f"ResponseBox({self.response!r}, {self.extra_info!r})"

    @staticmethod
    def is_response_box(something: object) -> TypeGuard[ResponseBox]:
        return isinstance(something, ResponseBox)

    def has_extra_info(self) -> bool:
        return bool(self.extra_info)

    def get_extra_info(self) -> Mapping[str, Any]:
        """Return the remarks; an empty mapping by default."""
        return self.extra_info or {}

    def get_response(self) -> Any:
        return self.response


# ------------------------------------------------------------------------------------------------ tool names


# The text between server and tool where two servers offer the same name.
SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one request, and the server of each offered name."""

    specs: tuple[ToolSpec, ...] = ()
    servers: Mapping[str, str | None] = field(default_factory=dict)

    def resolve(self, call: ToolCall) -> ToolCall:
        """Return the call with the server that offers its name. A call of an unknown name is unchanged."""
        return replace(call, server_name=self.servers.get(call.name, call.server_name))


def offered_tools(definitions: Sequence[ToolSpec] | Sequence[Mapping[str, Any]]) -> Offer:
    """Return ToolSpecs, or servers with their tools, as an Offer. A name of two servers becomes `server__tool`."""
    if all(isinstance(item, ToolSpec) for item in definitions):
        specs = [item for item in definitions if isinstance(item, ToolSpec)]
    else:
        specs = [spec for server in definitions for spec in _of_server(server)]
        counts = Counter(spec.name for spec in specs)
        specs = [spec if counts[spec.name] == 1 else _qualified(spec) for spec in specs]
    return Offer(tuple(specs), {spec.name: spec.server_name for spec in specs})


def _qualified(spec: ToolSpec) -> ToolSpec:
    return replace(spec, name=f"{spec.server_name}{SEPARATOR}{spec.name}") if spec.server_name else spec


def _of_server(server: ToolSpec | Mapping[str, Any]) -> list[ToolSpec]:
    if isinstance(server, ToolSpec):
        return [server]
    if "name" not in server:
        raise UsageError('A tool definition needs a "name": {"name": server, "tools": [{"name", "schema"}]}.')
    return [
        ToolSpec(
            name=str(tool["name"]),
            description=str(tool.get("description") or ""),
            parameters=tool.get("schema") or tool.get("parameters") or {"type": "object", "properties": {}},
            server_name=str(server["name"]),
        )
        for tool in server.get("tools") or ()
        if "name" in tool
    ]


def tool_call_infos(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Return calls as dicts: server_name, tool_name, arguments (an object if the text is one), id (made if missing)."""
    return [
        {
            "server_name": call.server_name,
            "tool_name": call.name.removeprefix(f"{call.server_name}{SEPARATOR}"),
            "arguments": _object_or_text(call.arguments),
            "id": call.id or f"call_{number}",
        }
        for number, call in enumerate(calls)
    ]


def _object_or_text(arguments: Mapping[str, Any] | str) -> dict[str, Any] | str:
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        value = decode_json(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
