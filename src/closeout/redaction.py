"""Removes secrets from text that leaves the process: error messages, records, `repr`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["REDACTED", "mask", "redact", "secrets_in"]

REDACTED = "***"
# A shorter value, such as the "EMPTY" that local servers take for a key, is a common word rather than a secret.
SHORTEST = 8
# Servers cut off or mask what they echo: a text that starts like a secret is one.
_START = 8
_NAMES = "(?:api[-_]?key|key|token|secret|password|passwd|pwd|auth|authorization|credentials?|cookie)"
_SECRET_NAME = re.compile(f"(?:^|[^a-z]){_NAMES}$", re.IGNORECASE)
_IN_QUERY = re.compile(rf"([?&](?:[\w.-]*[-_.])?{_NAMES}=)[^&#\s\"']+", re.IGNORECASE)
# Mappings whose values are all secrets: the environment and the headers of an MCP server.
_SECRET_MAPPINGS = frozenset({"env", "headers"})
# Keys that can be recognised: OpenAI and Anthropic (sk-), Groq, Hugging Face, GitHub, GitLab, xAI, Replicate, Google,
# Slack, AWS; the credentials of an Authorization header; a login in an address; a secret option of a command.
_KNOWN = re.compile(
    r"\b(?:sk|pk|rk)-[\w-]{16,}|\b(?:gsk|hf|ghp|gho|ghs|github_pat|xai|r8)_\w{16,}|\bxai-\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bAIza[\w-]{30,}|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=\bBearer )[\w.~+/-]{8,}=*|(?<=\bBasic )[\w+/]{8,}=*"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?P<option>--?(?:api[-_]?key|token|secret|password)[= ])\S+",
    re.IGNORECASE,
)
# One of these is in every text that _KNOWN matches. Looking for them takes a hundredth of its time.
_SIGNS = (
    "sk-", "pk-", "rk-", "gsk_", "hf_", "ghp_", "gho_", "ghs_", "github_pat_", "xai_", "xai-", "r8_", "glpat-", "aiza",
    "xox", "akia", "bearer ", "basic ", "@", "-api", "-token", "-secret", "-password",
)  # fmt: skip


def redact(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return a value with its secrets replaced by `***`.

    Args:
        value: A text, or lists and mappings of texts. Other values are returned as they are.
        secrets: Texts that are known to be secret. Keys of well-known services are recognised without being listed.

    Returns:
        A text for a text; new lists and dicts for lists and mappings. In a mapping, the value of a key that names a
        secret (`api_key`, `Authorization`) is replaced whole, and so are all values under `env` and `headers`. So are
        the parameters of such names in an address.
    """
    if isinstance(value, str):
        for secret in secrets:
            start = secret[:_START] if len(secret) > _START else secret
            if start in value:
                value = re.sub(re.escape(start) + r"[\w~+/=.-]*\b", REDACTED, value)
        value = _IN_QUERY.sub(rf"\1{REDACTED}", value) if "=" in value else value
        return _without_known(value, lambda secret: REDACTED)
    if isinstance(value, Mapping):
        return {key: _redact_entry(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([redact(item, secrets) for item in value])
    return value


def mask(value: Any) -> Any:
    """Return a value in which the keys of well-known services are replaced by the same number of stars.

    Args:
        value: A text, or lists and mappings of texts. Other values are returned as they are.
    """
    if not _may_hold_known(value if isinstance(value, str) else repr(value)):
        return value
    if isinstance(value, str):
        return _without_known(value, lambda secret: "*" * len(secret))
    if isinstance(value, Mapping):
        return {key: mask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mask(item) for item in value])
    return value


def _without_known(text: str, replacement: Callable[[str], str]) -> str:
    if not _may_hold_known(text):
        return text

    def replace(found: re.Match[str]) -> str:
        option = found["option"] or ""
        return option + replacement(found[0][len(option) :])

    return _KNOWN.sub(replace, text)


def _may_hold_known(text: str) -> bool:
    small = text.lower()
    return any(map(small.__contains__, _SIGNS))


def _redact_entry(key: str, value: Any, secrets: Iterable[str]) -> Any:
    if key in _SECRET_MAPPINGS and isinstance(value, Mapping):
        return dict.fromkeys(value, REDACTED)
    if isinstance(value, str) and value and _SECRET_NAME.search(key):
        return REDACTED
    return redact(value, secrets)


def secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets that request headers carry, for `redact`: `Bearer KEY` as a whole word and its key."""
    found = [value for name, value in headers.items() if _SECRET_NAME.search(name)]
    words = [word for value in found for word in value.split()]
    return tuple(sorted({word for word in words if len(word) >= SHORTEST}, key=len, reverse=True))
