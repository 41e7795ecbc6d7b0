"""Settings of the sign-in to an MCP server over HTTP (OAuth 2.1)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from closeout.errors import ConfigError
from closeout.spelling import suggestion

__all__ = ["CALLBACK_PORT", "McpAuth", "SignIn", "read_auth"]

# The loopback port of the callback unless another is set: a registered client needs an address that stays the same.
CALLBACK_PORT = 33_418
GRANTS = ("authorization_code", "client_credentials")

SignIn = Callable[[str], Awaitable[str]]
"""Shows a person the address of the authorization server's page; returns the address that the browser was sent to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAuth:
    """The client that signs in to a server, and what it asks for. Everything is optional.

    Attributes:
        client_id: A client that is registered with the authorization server; None registers one.
        client_secret: Its secret.
        private_key: PEM text that signs the client's assertions instead of a secret; for `client_credentials`.
        signing_algorithm: The algorithm of the private key.
        client_metadata_url: The https address of a client id metadata document; used where the server accepts it.
        grant: "authorization_code", where a person signs in, or "client_credentials", where the client is enough.
        issuer: The authorization server that the client belongs to; `client_credentials` needs it.
        scopes: Scopes to ask for besides those that the server names.
        redirect_url: Where the authorization server sends the browser; a loopback address by default.
        callback_port: The port of that loopback address.
        sign_in: Shows a person the page and returns the address that the browser was sent to; for programs.
        is_new: Sign in again although a login is kept.
    """

    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    signing_algorithm: str = "ES256"
    client_metadata_url: str | None = None
    grant: str = GRANTS[0]
    issuer: str | None = None
    scopes: tuple[str, ...] = ()
    redirect_url: str = ""
    callback_port: int = CALLBACK_PORT
    sign_in: SignIn | None = field(default=None, repr=False, compare=False)
    is_new: bool = False

    @property
    def callback(self) -> str:
        """The address that the authorization server sends the browser to."""
        return self.redirect_url or f"http://127.0.0.1:{self.callback_port}/callback"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show."""
        return tuple(filter(None, (self.client_secret, self.private_key)))


_NAMES = {each.name.replace("_", ""): each.name for each in fields(McpAuth) if each.name != "is_new"}


def read_auth(value: Any, shown: str, *, is_foreign: bool = False) -> McpAuth | None:
    """Read `auth` of a server.

    Args:
        value: A mapping with the fields of `McpAuth`; None if there is none.
        shown: The server's name in messages.
        is_foreign: It is of another client's configuration: keys that mean nothing here are left out.

    Raises:
        ConfigError: It is wrong. The text says how.
    """
    if value is None or isinstance(value, McpAuth):
        return value
    about = f"MCP server {shown!r}: auth"
    if not isinstance(value, Mapping):
        if is_foreign:
            return None
        raise ConfigError(f"{about} must be a mapping such as {{client_id: …, scopes: [read]}}.")
    read: dict[str, Any] = {}
    for key, each in value.items():
        name = _NAMES.get(str(key).replace("_", "").lower())  # other clients write clientId and CLIENT_ID
        if name is not None:
            read[name] = each
        elif not is_foreign:
            hint = suggestion(str(key), _NAMES.values(), f"Use {', '.join(_NAMES.values())}.")
            raise ConfigError(f"{about}: {key!r} is not a known key. {hint}")
    return _checked(read, about)


def _checked(read: dict[str, Any], about: str) -> McpAuth:
    scopes = read.pop("scopes", None) or ()
    port = read.pop("callback_port", CALLBACK_PORT)
    sign_in = read.pop("sign_in", None)
    texts: dict[str, Any] = {name: str(value) for name, value in read.items() if value not in (None, "")}
    if not isinstance(scopes, str | list | tuple):
        raise ConfigError(f"{about}: scopes must be a list of texts.")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        raise ConfigError(f"{about}: callback_port must be a port from 1 to 65535.")
    if sign_in is not None and not callable(sign_in):
        raise ConfigError(f"{about}: sign_in must be an async function of one address.")
    if "private_key" in texts and not texts["private_key"].lstrip().startswith("-----"):
        texts["private_key"] = _key_in(texts["private_key"], about)
    words = scopes.split() if isinstance(scopes, str) else map(str, scopes)
    auth = McpAuth(**texts, scopes=tuple(words), callback_port=port, sign_in=sign_in)
    if auth.grant not in GRANTS:
        raise ConfigError(f"{about}: grant must be {' or '.join(GRANTS)}, got {auth.grant!r}.")
    for name in ("issuer", "client_metadata_url", "redirect_url"):
        if name in texts and not re.match(r"https?://[^\s/]", texts[name], re.IGNORECASE):
            raise ConfigError(f"{about}: {name} must be a URL.")
    if auth.client_metadata_url and not re.match(r"https://[^\s/]+/.", auth.client_metadata_url):
        raise ConfigError(f"{about}: client_metadata_url must be an https URL with a path.")
    if auth.grant == "client_credentials":
        if not auth.client_id or not (auth.client_secret or auth.private_key):
            raise ConfigError(f"{about}: client_credentials needs client_id and client_secret (or private_key).")
        if not auth.issuer:
            raise ConfigError(
                f"{about}: client_credentials needs issuer, the URL of the authorization server that knows the "
                "client. Otherwise the MCP server would choose who receives the secret."
            )
    return auth


def _key_in(path: str, about: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8")
    except (OSError, ValueError):
        raise ConfigError(f"{about}: private_key must be PEM text or a file with it that can be read.") from None
