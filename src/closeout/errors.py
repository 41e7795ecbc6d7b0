"""The exceptions of Closeout, all under one root. Inside the loop failures are values; these are raised at the door.

CloseoutError
├── UsageError                  the caller asked for something that cannot be: what, and what to do instead
│   ├── ConfigError             a configuration key or value
│   └── ToolDefinitionError     a tool that cannot be offered: clashing name, broken schema
├── ModelError                  a request to a model that brought no reply
│   ├── PermanentModelError     asking again would fail again
│   │   ├── BadRequest          400, 413, 422
│   │   ├── AuthenticationFailed 401, 403
│   │   ├── ModelNotFound       404
│   │   ├── ContextOverflow     the prompt is longer than the model's context
│   │   └── ModelUnavailable    the embedded model's weights or library are missing
│   └── TransientModelError     asking again may help
│       ├── RateLimited         429
│       ├── ServerFailed        5xx and replies that are not the protocol
│       ├── ModelUnreachable    no connection, DNS, TLS
│       ├── StreamDropped       the connection ended before the reply did
│       └── ModelTimeout        a deadline passed
├── ToolError                   a tool failed; a message for the model, never the end of a run
├── LimitReached                a budget of the run is spent
└── JournalError                the record of runs cannot be read or written
    ├── JournalFull             no space left
    ├── JournalLocked           another process holds it
    ├── JournalDamaged          it is not a journal, or parts of it cannot be read
    ├── RunNotFound             no such run
    └── ResumeRefused           the run was made by another agent than the one that resumes it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeout.messages import Usage

__all__ = [
    "AuthenticationFailed",
    "BadRequest",
    "CloseoutError",
    "ConfigError",
    "ContextOverflow",
    "JournalDamaged",
    "JournalError",
    "JournalFull",
    "JournalLocked",
    "LimitReached",
    "ModelError",
    "ModelNotFound",
    "ModelTimeout",
    "ModelUnavailable",
    "ModelUnreachable",
    "PermanentModelError",
    "RateLimited",
    "ResumeRefused",
    "RunNotFound",
    "ServerFailed",
    "StreamDropped",
    "ToolDefinitionError",
    "ToolError",
    "TransientModelError",
    "UsageError",
    "error_type",
]


class CloseoutError(Exception):
    """Root of all. Its text is one or two sentences a person can act on."""


class UsageError(CloseoutError):
    """The caller asked for something that cannot be."""


class ConfigError(UsageError):
    """A configuration key that does not exist or a value that does not fit."""


class ToolDefinitionError(UsageError):
    """A tool that cannot be offered to a model."""


class ModelError(CloseoutError):
    """A request to a model that brought no reply.

    `status` is the HTTP status or None; `retry_after` the seconds that the server asked to wait, or None; `usage` what
    the failed request cost, as far as it is known (it is on the bill all the same).
    """

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
    """Asking again would fail again."""


class BadRequest(PermanentModelError):
    """The server does not accept the request (400, 413, 422)."""


class AuthenticationFailed(PermanentModelError):
    """The server does not accept the key (401, 403)."""


class ModelNotFound(PermanentModelError):
    """The server knows no such model or path (404)."""


class ContextOverflow(PermanentModelError):
    """The prompt is longer than the model's context."""


class ModelUnavailable(PermanentModelError):
    """The embedded model's weights or library are missing."""


class TransientModelError(ModelError):
    """Asking again may help."""


class RateLimited(TransientModelError):
    """Too many requests (429)."""


class ServerFailed(TransientModelError):
    """The server failed (5xx) or answered something that is not the protocol."""


class ModelUnreachable(TransientModelError):
    """No connection to the server."""


class StreamDropped(TransientModelError):
    """The connection ended before the reply did."""


class ModelTimeout(TransientModelError):
    """The reply did not come within its deadline."""


class ToolError(CloseoutError):
    """Raised by a tool to tell the model what went wrong; its text is what the model reads."""


class LimitReached(CloseoutError):
    """A budget of the run is spent. `limit` is its stop reason: max_turns, max_tokens, max_cost, max_seconds."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


class JournalError(CloseoutError):
    """The record of runs cannot be read or written."""


class JournalFull(JournalError):
    """No space left where the journal lives."""


class JournalLocked(JournalError):
    """Another process holds the journal for too long."""


class JournalDamaged(JournalError):
    """The journal is not one, or parts of it cannot be read."""


class RunNotFound(JournalError):
    """The journal holds no such run."""


class ResumeRefused(JournalError):
    """The run was made by another agent than the one that resumes it. `differences` names what differs."""

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


def error_type(name: str) -> type[CloseoutError] | None:
    """The class of this tree that a record names ("AuthenticationFailed"); None for any other name."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, CloseoutError) else None
