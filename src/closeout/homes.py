"""Homes: where runs are kept. A home is a folder, or a schema of a PostgreSQL database."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from closeout.errors import UsageError

__all__ = ["DatabaseHome", "Home", "as_home", "data_folder"]

SCHEMA = "closeout"
LEASE_SECONDS = 30.0
_SCHEMES = ("postgresql", "postgres")
_BEGINS = tuple(f"{scheme}:" for scheme in _SCHEMES)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_EXAMPLE = "postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class DatabaseHome:
    """A home in a PostgreSQL database. As text, and in errors, it is its address without the password.

    Attributes:
        url: Its address without the password, and without what only Closeout reads.
        schema: The schema that holds the runs. Each tenant may have one.
        lease: Seconds after which the runs of a worker that is silent may be continued by others.
        secrets: The parameters that are never shown. Without a password, libpq looks for one (PGPASSWORD, ~/.pgpass).
    """

    url: str
    schema: str = SCHEMA
    lease: float = LEASE_SECONDS
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        joint = "&" if "?" in self.url else "?"
        return self.url if self.schema == SCHEMA else f"{self.url}{joint}schema={self.schema}"

    @property
    def address(self) -> str:
        """The whole address, with its password: for another process, and never to be shown."""
        own = (("schema", self.schema), ("lease", f"{self.lease:g}"), *self.secrets)
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode(own, quote_via=quote)}"

    @property
    def folder(self) -> Path:
        """The folder of this machine for what is not in the database: the search index and evaluations."""
        return data_folder() / "databases" / hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def absolute(self) -> DatabaseHome:
        """Return the home itself: an address does not depend on the working directory."""
        return self


Home: TypeAlias = Path | DatabaseHome


def data_folder() -> Path:
    """Return the user's data folder."""
    import platformdirs

    return Path(platformdirs.user_data_dir("closeout", appauthor=False))


def as_home(value: str | os.PathLike[str] | DatabaseHome) -> Home:
    """Return the home that a text or a path names: `postgresql://…`, or a folder.

    Besides the parameters that PostgreSQL knows, an address has two: `schema` (default `closeout`) and `lease`, the
    seconds after which the runs of a silent worker may be continued by others (default 30).

    Raises:
        UsageError: The address cannot be used. The text does not repeat it, because it may hold a password.
    """
    if isinstance(value, DatabaseHome):
        return value
    text = os.fspath(value)
    if isinstance(value, str) and text.startswith(_BEGINS):
        return _database(text)
    if isinstance(value, str) and "://" in text:
        scheme = text.partition(":")[0]
        raise UsageError(f"A home is a folder or a database in PostgreSQL, not {scheme}://…. Write {_EXAMPLE}.")
    return Path(text).expanduser()


def _database(address: str) -> DatabaseHome:
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise UsageError(f"The address of the database cannot be read ({error}). Write {_EXAMPLE}.") from None
    if not address.startswith(f"{parts.scheme}://") or "@" in parts.path + parts.query + parts.fragment:
        raise UsageError(
            f"The address of the database cannot be read. Write {_EXAMPLE}, and in a password % and two hexadecimal "
            "digits for each of the characters / @ : ? # %."
        )
    query: list[tuple[str, str]] = []
    secrets: dict[str, str] = {}
    schema, lease = SCHEMA, LEASE_SECONDS
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "schema":
            schema = value
        elif name == "lease":
            lease = _seconds(value)
        elif name in ("password", "sslpassword"):
            secrets[name] = value
        else:
            query.append((name, value))
    if not _NAME.fullmatch(schema):
        raise UsageError(
            f"schema={schema!r:.80} is not a name for a schema: at most 63 lower-case letters, digits and _, the first "
            "one no digit."
        )
    login, at, host = parts.netloc.rpartition("@")
    user, colon, secret = login.partition(":")
    asked = urlencode(query, quote_via=quote, safe="/")
    url = urlunsplit((_SCHEMES[0], f"{user}{at}{host}", parts.path or "/", asked, ""))
    if url.startswith(f"{_SCHEMES[0]}:/") and not url.startswith(f"{_SCHEMES[0]}://"):
        url = url.replace(":/", ":///", 1)  # a socket has no host
    if colon:
        secrets["password"] = unquote(secret)
    return DatabaseHome(url, schema, lease, tuple(secrets.items()))


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise UsageError(f"lease={value!r:.80} must be a number of seconds between 1 and 86400.")
    return seconds
