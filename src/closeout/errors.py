"""The exceptions of Closeout, all under one root, and `Failure`: what an exception says, as a value.

CloseoutError
├── UsageError                  the caller passed something invalid
│   ├── ConfigError             an invalid configuration key or value
│   ├── DecisionRefused         a decision that the run does not wait for, or that was made before
│   ├── SignalRefused           a signal that no run can receive
│   ├── MessageRefused          a message to a run that takes none any more
│   └── ToolDefinitionError     a tool that cannot be offered: duplicate name, broken schema
├── ModelError                  a request to a model failed
│   ├── PermanentModelError     the same request would fail again
│   │   ├── BadRequest          400, 413, 422
│   │   ├── AuthenticationFailed 401, 403
│   │   ├── ModelNotFound       404
│   │   ├── ContextOverflow     the prompt is longer than the model's context
│   │   └── ModelUnavailable    the embedded model's weights or library are missing
│   └── TransientModelError     a retry may succeed
│       ├── RateLimited         429
│       ├── ServerFailed        5xx, or a response that does not follow the protocol
│       │   └── RequestFailed   500 for this request each time
│       ├── ModelUnreachable    no connection, DNS, TLS
│       ├── StreamDropped       the connection closed before the reply was complete
│       └── ModelTimeout        a deadline passed
├── ToolError                   a tool failed; its text goes to the model
│   └── SignalTimeout           the signal that a tool waits for has not arrived in time; a TimeoutError, too
├── LimitReached                a budget of the run is used up
├── McpServerUnavailable        a required MCP server did not start
├── BrokenDependency            an installed package does not work as Closeout needs it
└── JournalError                the journal cannot be read or written
    ├── JournalFull             no space left
    ├── JournalLocked           another process holds the lock
    ├── LeaseLost               another process has taken the run over
    ├── JournalDamaged          not a journal, or parts of it cannot be read
    ├── RunNotFound             no such run
    ├── RunExists               a run of this name exists
    └── ResumeRefused           the run was started by a different agent

Suspended and Interrupted are not among them: like cancellation, they pass through everything that handles errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from closeout.redaction import redact

if TYPE_CHECKING:
    from closeout.messages import Usage

NAMED_SETTINGS = " -a SETTINGS.yaml"
"""The file that names an MCP server, in a command that an error states. The command line puts its own options there."""

__all__ = [
    "NAMED_SETTINGS", "AuthenticationFailed", "BadRequest", "BrokenDependency", "BudgetReached", "CloseoutError",
    "ConfigError", "ContextOverflow", "DecisionRefused", "Failure", "Interrupted", "JournalDamaged", "JournalError",
    "JournalFull", "JournalLocked", "LeaseLost", "LimitReached", "McpServerUnavailable", "MessageRefused",
    "ModelError", "ModelNotFound", "ModelTimeout", "ModelUnavailable", "ModelUnreachable", "PermanentModelError",
    "RateLimited", "RequestFailed", "ResumeRefused", "RunExists", "RunNotFound", "ServerFailed", "SignalRefused",
    "SignalTimeout", "StreamDropped", "Suspended", "ToolDefinitionError", "ToolError", "TransientModelError",
    "UsageError", "error_type",
]  # fmt: skip


class CloseoutError(Exception):
    """Base class of all exceptions of this package. The text says what is wrong and what to do."""


class UsageError(CloseoutError):
    """The caller passed something invalid."""


class ConfigError(UsageError):
    """A configuration key does not exist, or its value is invalid."""


class MessageRefused(UsageError):
    """A run takes no more messages, or has no such agent."""


class DecisionRefused(UsageError):
    """A run does not wait for this decision, it was made before, or it does not fit what is asked."""


class SignalRefused(UsageError):
    """A signal cannot be sent: its name or its payload is not valid, or the run is over."""


class ToolDefinitionError(UsageError):
    """A tool cannot be offered to a model."""


class ModelError(CloseoutError):
    """A request to a model failed.

    Attributes:
        status: The HTTP status, or None if there was no response.
        retry_after: Seconds that the server asks to wait, or None.
        usage: What the failed request cost, as far as it is known. The client has charged it already.
        retried: Whether the client has retried the request as often as it may.
    """

    retried = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.usage = usage


class PermanentModelError(ModelError):
    """The same request would fail again."""


class BadRequest(PermanentModelError):
    """The server rejects the request (400, 413, 422)."""


class AuthenticationFailed(PermanentModelError):
    """The server rejects the API key (401, 403)."""


class ModelNotFound(PermanentModelError):
    """The server has no such model or path (404)."""


class ContextOverflow(PermanentModelError):
    """The prompt is longer than the model's context."""


class ModelUnavailable(PermanentModelError):
    """The embedded model's weights or library are missing."""


class TransientModelError(ModelError):
    """A retry may succeed."""


class RateLimited(TransientModelError):
    """Too many requests (429)."""


class ServerFailed(TransientModelError):
    """The server failed (5xx), or its response does not follow the protocol.

    Attributes:
        about_request: True if the server answered with something that is not a reply, as it is likely to do each time.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        usage: Usage | None = None,
        about_request: bool = False,
    ) -> None:
        super().__init__(message, status=status, retry_after=retry_after, usage=usage)
        self.about_request = about_request


class RequestFailed(ServerFailed):
    """The server fails at this request each time (500), also with other options and plainer tools."""


class ModelUnreachable(TransientModelError):
    """The connection to the server failed."""


class StreamDropped(TransientModelError):
    """The connection closed before the reply was complete."""


class ModelTimeout(TransientModelError):
    """The reply did not arrive before its deadline."""


class ToolError(CloseoutError):
    """A tool failed. Raise it in a tool to tell the model what went wrong: the model reads the text."""


class SignalTimeout(ToolError, TimeoutError):
    """The signal that a tool waits for has not arrived in time. `except TimeoutError` catches it, too."""


class LimitReached(CloseoutError):
    """A budget of the run is used up.

    Attributes:
        limit: The stop reason: max_turns, max_tokens, max_cost, max_seconds or budget.
    """

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


class CostReached(LimitReached):
    """One more request, at the price of the model that would be asked, may cost more than `max_cost` leaves."""

    def __init__(self, message: str, *, usage: Usage | None = None) -> None:
        super().__init__("max_cost", message)
        self.usage = usage  # of attempts of the request that failed


class BudgetReached(LimitReached):
    """A budget that the run shares with others has no room for another request."""

    def __init__(self, message: str) -> None:
        super().__init__("budget", message)


class McpServerUnavailable(CloseoutError):
    """A required MCP server did not start."""


class BrokenDependency(CloseoutError):
    """An installed package does not work as Closeout needs it: most often another version is required."""


class JournalError(CloseoutError):
    """The journal cannot be read or written."""


class JournalFull(JournalError):
    """No space is left on the journal's disk."""


class JournalLocked(JournalError):
    """Another process holds the journal's lock for too long."""


class LeaseLost(JournalError):
    """Another process has taken the run over, because this one was silent for longer than its lease."""


class JournalDamaged(JournalError):
    """The file is not a journal, or parts of it cannot be read."""


class RunNotFound(JournalError):
    """The journal has no run with this id."""


class RunExists(JournalError):
    """A run of this name exists already."""


class ResumeRefused(JournalError):
    """The run was started by a different agent than the one that resumes it.

    Attributes:
        differences: What differs between the two agents.
    """

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class Interrupted(BaseException):
    """A message of the user's interrupts the reply that the model is writing. The next request has the message.

    It is a BaseException, as cancellation is, so that nothing takes it for a failure of the model.
    """


class Suspended(BaseException):
    """The outcome of an effect is not there yet: the run ends here, and is resumed when it is.

    It is a BaseException, as cancellation is, so that no tool and no agent takes it for a failure.

    Attributes:
        requests: What the run waits for: `journal.events.DecisionRequested`.
    """

    def __init__(self, requests: Sequence[Any]) -> None:
        super().__init__("The run waits for a decision, a time or a signal.")
        self.requests = tuple(requests)


def error_type(name: str) -> type[CloseoutError] | None:
    """Return the exception class of this module with the name, or None."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, CloseoutError) else None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as a value. Events and results hold it; it can be compared, pickled and recorded.

    Attributes:
        kind: The name of the exception's class, "AuthenticationFailed"; empty if no exception was raised.
        message: The exception's text.
        status: The HTTP status, if a server sent one.
        permanent: Whether the same would fail again.
        exception: The exception itself, in the process that raised it. It is neither pickled nor compared.
    """

    kind: str
    message: str
    status: int | None = None
    _: KW_ONLY
    permanent: bool = False
    exception: Exception | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: Exception, message: str = "") -> Failure:
        """Return the failure for an exception, with its own message or the one given."""
        return cls(
            type(error).__name__,
            redact(message or str(error)),
            error.status if isinstance(error, ModelError) else None,
            permanent=isinstance(error, PermanentModelError),
            exception=error,
        )

    def to_exception(self, usage: Usage | None = None) -> Exception:
        """Return the original exception; a failure read from a record becomes a new ModelError with the usage."""
        if self.exception is not None:
            return self.exception
        kind = error_type(self.kind)
        if kind in (BudgetReached, CostReached):
            return kind(self.message)
        if kind is LimitReached:  # a request is refused in time only by the run's end
            return LimitReached("max_seconds", self.message)
        if kind is None or not issubclass(kind, ModelError):
            kind = PermanentModelError if self.permanent else ModelError
        return kind(self.message, status=self.status, usage=usage)

    def __getstate__(self) -> list[Any]:
        return [self.kind, self.message, self.status, self.permanent, None]
