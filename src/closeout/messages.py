"""The records that packages pass to each other: messages, tool calls, model requests and replies, usage.

Type checkers treat records as frozen: `replace` one instead of changing it. A `Message` is a dict in the OpenAI chat
format, so that every API that takes `list[dict]` takes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from functools import reduce
from operator import add
from typing import Any, Literal, NoReturn, TypeAlias

from closeout.codec import join_surrogates
from closeout.records import record

__all__ = [
    "FINISHED",
    "NO_RESULT",
    "SHOULD_BREAK",
    "ApprovalPolicy",
    "Capabilities",
    "Constraint",
    "Defect",
    "Delta",
    "Message",
    "ModelReply",
    "ModelRequest",
    "Reading",
    "Repair",
    "RequestInfo",
    "Step",
    "ToolCall",
    "ToolPolicy",
    "ToolReturn",
    "ToolSpec",
    "Usage",
    "UsageSum",
    "is_picture",
]


# ------------------------------------------------------------------------------------------------ conversation


def is_picture(part: Any) -> bool:
    """Return whether a part of a message's content is a picture."""
    return isinstance(part, dict) and ("image_url" in part or part.get("type") == "image")


class Message(dict[str, Any]):
    """One message in the OpenAI chat shape, frozen, encoded once for the wire protocol that it is spoken of in.

    Keys: `role` ("system" | "user" | "assistant" | "tool"), `content` (str, a list of parts, or None), and where they
    apply `tool_calls` (list of `{"id", "type": "function", "function": {"name", "arguments": str}}`), `tool_call_id`,
    `name`, `reasoning_content`, `attached` (see `ModelReply.attached`; only clients of the same server send it).
    """

    __slots__ = ("_protocol", "_through", "_wire")

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self._protocol = ""
        self._wire = b""
        self._through: tuple[str, list[Message], bytes] | None = None  # see `joined`

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Message:
        """The message itself if it is one, else a frozen copy of the mapping."""
        return message if isinstance(message, Message) else cls(message)

    @classmethod
    def all_of(cls, messages: Iterable[Mapping[str, Any]]) -> list[Message]:
        """A conversation as a list of messages. A run asks for it at every turn, so most items cost no call."""
        return [each if type(each) is Message else cls.of(each) for each in messages]

    @property
    def role(self) -> str:
        return str(self.get("role", ""))

    @property
    def content(self) -> Any:
        """The content: a string, a list of parts, or None."""
        return self.get("content")

    @property
    def text(self) -> str:
        """The content as text: a string as it is, of a list its text parts, joined."""
        content = self.get("content")
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            return ""
        return "".join(
            part.get("text") or "" for part in content if isinstance(part, dict) and part.get("type") == "text"
        )

    @property
    def pictures(self) -> int:
        """How many pictures the content has."""
        content = self.get("content")
        return sum(map(is_picture, content)) if isinstance(content, list) else 0

    def wire(self, protocol: str, encode: Callable[[Message], bytes]) -> bytes:
        """The message's bytes in a protocol; `encode` is called only if it was last encoded for another one."""
        if self._protocol != protocol:
            self._wire, self._protocol = encode(self), protocol
        return self._wire

    @staticmethod
    def joined(messages: Sequence[Message], protocol: str, encode: Callable[[Message], bytes]) -> bytes:
        """The bytes of messages, with commas between them.

        What was joined is kept with the last of them, so that a longer conversation is only added to.
        """
        conversation = list(messages)
        start, parts = _joined_before(conversation, protocol)
        parts += [
            message._wire if message._protocol is protocol else message.wire(protocol, encode)
            for message in conversation[start:]
        ]
        joined = b",".join(parts)
        if conversation:
            last = conversation.pop()  # left out, since what holds itself is freed late
            last._through = (protocol, conversation, joined)
        return joined

    def _frozen(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("A Message is frozen: build a new one, for example Message({**message, 'content': …}).")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _frozen

    def __copy__(self) -> Message:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        from copy import deepcopy

        return deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return Message, (dict(self),)


_ADDED = 16  # messages that a conversation grows by between two requests, at most as a rule


def _joined_before(conversation: list[Message], protocol: str) -> tuple[int, list[bytes]]:
    """Return the number of leading messages that were joined already, and their joined bytes."""
    for index in range(len(conversation) - 1, max(len(conversation) - 1 - _ADDED, -1), -1):
        found, conversation[index]._through = conversation[index]._through, None
        if found is not None and found[0] == protocol and found[1] == conversation[:index]:
            return index + 1, [found[2]]
    return 0, []


@record
class Repair:
    """One repair: its kind, its place, and short texts from before and after it, for people."""

    kind: str  # "trailing_comma", "argument_alias", "tool_name", "dialect:hermes", …
    where: str = ""  # "arguments.q", "name", "reply"
    before: str = ""
    _: KW_ONLY
    after: str = ""


@record
class ToolCall:
    """A call by a model. `arguments` is the model's text until it is read, then an object."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""
    _: KW_ONLY
    server_name: str | None = None
    text: str = ""  # the arguments as the model wrote them, where that is known


@record
class ToolReturn:
    """The result of one call as the model sees it. `text` never changes."""

    call: ToolCall
    text: str
    handle: str = ""  # names the stored whole result, "r12"; what read_result takes
    _: KW_ONLY
    ok: bool = True
    tokens: int = 0
    images: tuple[Mapping[str, Any], ...] = ()  # OpenAI image_url parts with a `name`, for models that take them


@record(eq=False)
class Step:
    """One accepted turn as the history shows it: what the model wrote, what it called, what came back.

    `messages` are what the user sent to the running agent after it.
    `rendered` caches each dialect's messages for it, so that a step is written once for ever.
    """

    turn: int
    text: str  # thought or plain text, without reasoning
    calls: tuple[ToolCall, ...] = ()
    _: KW_ONLY
    returns: tuple[ToolReturn, ...] = ()
    reasoning: str = ""
    raw: str = ""  # the trusted part of the reply as written, for text dialects
    attached: Mapping[str, Any] = field(default_factory=dict)  # see `ModelReply.attached`
    messages: tuple[str, ...] = ()
    rendered: dict[str, tuple[Message, ...]] = field(default_factory=dict, repr=False)

    def followed_by(self, message: str) -> Step:
        """Return the step with one more message of the user's after it."""
        return replace(self, messages=(*self.messages, message), rendered={})

    @property
    def succeeded(self) -> bool:
        """True if none of its calls failed."""
        return all(result.ok for result in self.returns)


# ------------------------------------------------------------------------------------------------ tools


ApprovalPolicy: TypeAlias = (
    Literal["always", "never"] | Callable[..., bool | str | Awaitable[bool | str | None] | None] | None
)
"""Whether a person must approve a call; see `ToolPolicy.approval`."""


@record(kw_only=True)
class ToolPolicy:
    """Rules for the calls of one tool. The defaults fit an unknown tool."""

    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # parameter → other names models give it
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values of required parameters that models leave out
    ignored: tuple[str, ...] = ()  # arguments that models give and that mean nothing here
    other_names: tuple[str, ...] = ()  # names that models may call the tool by, where no tool has them
    replaces: tuple[str, ...] = ()  # former names of the tool: runs that began with one continue with this tool
    duplicate_key: tuple[str, ...] | None = None  # parameters that make two calls the same; None: all of them
    repeatable: bool = False  # the same call may rightly be made again (a clock, a random number)
    read_only: bool = False
    # What a call changes: nothing; what stays on this machine; what can be undone; anything else. None: "none" if
    # read_only, else "outside".
    effects: Literal["none", "local", "reversible", "outside"] | None = None
    # Undoes a call that succeeded: a function of its arguments and its result, for `closeout runs undo`.
    undo: Callable[[dict[str, Any], Any], Any] | None = None
    idempotent: bool = False
    destructive: bool = False
    effects_known: bool = True  # False: an MCP tool whose server does not say whether it destroys
    # A call that was cut off by a crash: make it again, tell the model, or ask a person. None: rerun if read_only or
    # idempotent, else report.
    on_crash: Literal["rerun", "report", "ask"] | None = None
    # Whether a person must approve a call: "always", "never", or a function of the arguments, and of the `RunContext`
    # if it takes two, that returns a reason (or True) if so; it may be async. None: "never" for a tool passed in code,
    # and as `tools.approval` says for one of an MCP server.
    approval: ApprovalPolicy = None
    repair: Literal["full", "none"] = "full"
    timeout: float | None = 120.0  # seconds
    retries: int = 0  # tries after a transient failure; only for read-only or idempotent tools
    empty_at: tuple[str, ...] = ()  # keys or dotted paths that hold the result's items: {"organic": []} is empty
    accept_empty: bool = False  # an empty result is an answer, not a reason to ask again
    check_content: bool = False  # results are web pages: captcha, login wall, "enable JavaScript" are failures
    judge: Callable[[Any], bool | str | None] | None = None  # own rule: True or a reason if the result is unusable
    response_format: Literal["concise", "standard", "detailed", "raw"] | None = None  # None: the data, encoded
    version: str = "1.0.0"  # the version that telemetry reports
    demo_length: int | None = None  # characters of a result's text while DEMO_MODE=1
    format: str = "auto"  # encoding of the text that the model sees: see `closeout.encode`
    budget_tokens: int | None = None  # None: the run's default
    drop_keys: tuple[str, ...] = ()
    drop_nulls: bool = False
    round_floats: int | None = None  # significant digits
    html_to_text: bool = False
    # The part that the tool may play in worked examples for small models, as a tool with one required text. None: any
    # tool that only reads may be the one that looks things up.
    example: Literal["look_up", "compute"] | None = None
    gives_answer: bool = False  # a result that fits the form of the answer is the answer, without another request
    needs_state: str | None = None  # a name that the run's state must have: before that, the tool is not offered
    # For runs with flow rules (`Flow`). None: results are untrusted; "below": the tool has no effects but the calls of
    # an agent or a program below it; "read": it shows what the run has read before; "files": it may show what the
    # files of the run hold, so that to trust it is not to trust them.
    returns: Literal["trusted", "untrusted", "below", "read", "files"] | None = None
    # "untrusted": the call may depend on untrusted text; "trusted": it may not, even if it only reads; or parameters
    # that may come from untrusted text. None: the call may depend on it only if it reads.
    allow: Literal["trusted", "untrusted"] | tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()  # of the results: who may have them
    accepts: tuple[str, ...] = ()  # labels that the tool may have

    def __post_init__(self) -> None:
        if self.effects == "none":
            self.read_only = True  # type: ignore[misc]

    @property
    def strict_names(self) -> bool:
        """True if a call that names another server is never taken for this tool."""
        return self.destructive or not (self.effects_known or self.read_only)

    @property
    def all_other_names(self) -> tuple[str, ...]:
        """The names besides its own that calls of the tool may use."""
        return (*self.other_names, *self.replaces)

    @property
    def only_reads(self) -> bool:
        """True if the tool is declared to have no effects."""
        return self.read_only and not self.destructive

    @property
    def crash_rule(self) -> Literal["rerun", "report", "ask"]:
        return self.on_crash or ("rerun" if self.read_only or self.idempotent else "report")


@record
class ToolSpec:
    """A tool as the model sees it, and the policy for its calls. `parameters` is a JSON Schema object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    _: KW_ONLY
    server_name: str | None = None
    policy: ToolPolicy = field(default_factory=ToolPolicy)


# ------------------------------------------------------------------------------------------------ models


@record
class Usage:
    """Tokens and cost of requests. `input_tokens` includes cached tokens. `cost_usd` None: the price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    _: KW_ONLY
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            requests=self.requests + other.requests,
            cost_usd=_add_costs(self, other),
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


NO_RESULT = "(no result: it is not known whether this call was made)"  # for a call of a history that has none

_NOTHING = Usage()
_OPEN_ITEMS = 64  # usages that are kept before they are added up


class UsageSum:
    """A running sum of usages, computed when it is read: a request is charged in several places and few are read."""

    __slots__ = ("_open", "_sum")

    def __init__(self) -> None:
        self._sum = _NOTHING
        self._open: list[Usage] = []

    def add(self, usage: Usage) -> None:
        self._open.append(usage)
        if len(self._open) >= _OPEN_ITEMS:
            self._settle()

    @property
    def total(self) -> Usage:
        if self._open:
            self._settle()
        return self._sum

    def _settle(self) -> None:
        items = [] if self._sum is _NOTHING else [self._sum]
        while self._open:  # one by one: another thread may be adding
            items.append(self._open.pop())
        if any(item.cost_usd is not None for item in items):
            self._sum = reduce(add, items)
        else:
            self._sum = Usage(
                sum([item.input_tokens for item in items]),
                sum([item.output_tokens for item in items]),
                cache_read_tokens=sum([item.cache_read_tokens for item in items]),
                cache_write_tokens=sum([item.cache_write_tokens for item in items]),
                requests=sum([item.requests for item in items]),
            )


def _add_costs(a: Usage, b: Usage) -> float | None:
    """One unpriced request makes the sum unknown; an empty usage changes nothing."""
    if a.cost_usd is b.cost_usd is None:
        return None
    if a.cost_usd is None:
        return b.cost_usd if b.cost_usd is not None and a == _NOTHING else None
    if b.cost_usd is None:
        return a.cost_usd if b == _NOTHING else None
    return a.cost_usd + b.cost_usd


@record(kw_only=True)
class Capabilities:
    """Known abilities of an endpoint. Dialects check this, never a vendor's name."""

    chat: bool = True
    completions: bool = False
    native_tools: bool = True  # tool calls come back as such
    stop: bool = True
    streaming: bool = True
    json_schema: bool = False  # constrained decoding by schema
    grammar: bool = False  # constrained decoding by GBNF grammar
    images: bool = False
    known: bool = False  # False: assumed, worth one probe
    weak: bool = False  # a small model: worked examples and constrained decoding help
    max_context: int | None = None  # tokens
    preferred_dialect: str | None = None


@record
class Constraint:
    """A pattern that the reply must match: a JSON schema (dict) or a GBNF grammar or a regular expression (str)."""

    kind: Literal["json_schema", "grammar", "regex"]
    value: Mapping[str, Any] | str
    name: str = "reply"


@record(kw_only=True)
class ModelRequest:
    """One request to a model. `prompt` replaces `messages` for completion endpoints.

    Its first `shared` characters are the same in other runs, so their state is worth keeping.
    """

    messages: Sequence[Message] = ()
    prompt: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    constraint: Constraint | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    breakpoints: tuple[int, ...] = ()  # indexes of messages that end a stable prefix, for caches with explicit marks
    timeout: float | None = None  # seconds for this request, retries not counted
    shared: int = 0  # characters of `prompt`

    @property
    def as_messages(self) -> list[Message]:
        """The messages; a prompt as one message of the user's."""
        return list(self.messages) if self.prompt is None else [Message(role="user", content=self.prompt)]

    @property
    def last(self) -> str:
        """The text of the last message, or the prompt."""
        if self.prompt is not None:
            return self.prompt
        return self.messages[-1].text if self.messages else ""

    @property
    def text(self) -> str:
        """The texts of all messages, joined; or the prompt."""
        return self.prompt if self.prompt is not None else "\n".join(message.text for message in self.messages)

    @property
    def question(self) -> str:
        """The text of the first user message; empty for a prompt."""
        return next((message.text for message in self.messages if message.role == "user"), "")


@record
class RequestInfo:
    """The purpose of a request; the journal records it with the request.

    Attributes:
        purpose: "act" for a turn, "close" for the closing answer, "experience" for a failure account, "compact" for a
            summary; any other word is a strategy's.
        attempt: The number of the agent's attempt, from 0.
        turn: The number of the turn in the attempt, from 0.
        note: The hint that the request carries after a rollback.
    """

    purpose: str = "act"
    attempt: int = 0
    turn: int = 0
    note: str = ""

    @property
    def may_act(self) -> bool:
        """True if the reply may call tools: the request is a turn's, or a strategy's beside it."""
        return self.purpose not in ("close", "experience", "compact")


@record
class Delta:
    """A piece of a reply while it is written. For tool calls `index` says which one."""

    kind: Literal["text", "reasoning", "tool_name", "tool_arguments"]
    text: str
    index: int = 0


@record(kw_only=True)
class ReplyTokens:
    """The tokens of a reply, as far as the server states them.

    Attributes:
        ids: The ids of the reply's tokens.
        prompt: The ids of the prompt.
        logprobs: The log-probabilities of the reply's tokens.
        texts: The texts of the reply's tokens, if there are no ids.
        version: The version of the weights, as SGLang states it.
        by_ids: The prompt was sent as ids, so that the model writes calls in its own form.
    """

    ids: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    version: str = ""
    by_ids: bool = False


SHOULD_BREAK = "should_break"
FINISHED = frozenset({"stop", "tool_calls", "cut", SHOULD_BREAK})
"""The finish reasons of a reply that is whole."""


@record
class ModelReply:
    """One reply, whole.

    Attributes:
        tool_calls: Native calls; their `arguments` are still the model's text.
        finish_reason: "stop", "tool_calls", "cut" (we closed the connection on purpose, having read enough) or
            "should_break" (a user's `process_llm_response` or `handle_llm_call` ends the attempt with it). Any other
            reply is not finished: "length", "context_full", "content_filter", "malformed_call", "rejected" (the server
            could not read what its own model wrote), "missing" (it gave no reason), or the server's own word.
        attached: What the server added to the message or its calls and wants back unchanged: signed or encrypted
            reasoning, unknown fields. `server` names the server; the rest is known only to the client that wrote it.
        warnings: For people: what the server could not do.
        tokens: The tokens, if the request asked for them.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    _: KW_ONLY
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=lambda: Usage(requests=1))
    model: str = ""
    attached: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    tokens: ReplyTokens | None = None

    def __post_init__(self) -> None:
        # No file and no socket takes half of a surrogate pair.
        self.text, self.reasoning = join_surrogates(self.text), join_surrogates(self.reasoning)  # type: ignore[misc]

    @property
    def finished(self) -> bool:
        """True if the model ended the reply. Only such a reply can be an answer."""
        return self.finish_reason in FINISHED


# ------------------------------------------------------------------------------------------------ readings


@record
class Defect:
    """An error in a reply, and a short, exact hint for the model's next try."""

    code: str  # "empty", "broken_action", "truncated", "invented_observation", "refusal", "repeating", …
    hint: str
    span: tuple[int, int] | None = None
    # The reply was refused for safety: no later stage (salvage, another form, closing) may run a call from it.
    refuses: bool = False


@record
class Reading:
    """A dialect's reading of a reply: calls to make, an answer, or defects that explain why it has neither."""

    text: str = ""  # thought before a call, or the whole plain text
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    _: KW_ONLY
    answer: str | None = None  # the closing text, still to be checked by the answer contract
    defects: tuple[Defect, ...] = ()
    repairs: tuple[Repair, ...] = ()
    raw: str = ""  # the trusted part of the reply as written
    ends: bool = False  # whether the attempt ends with this reply, which is not acted on
    attached: Mapping[str, Any] = field(default_factory=dict)  # see `ModelReply.attached`

    def __post_init__(self) -> None:
        if self.answer is not None:  # JSON escapes in it may be half of a surrogate pair
            self.answer = join_surrogates(self.answer)  # type: ignore[misc]
