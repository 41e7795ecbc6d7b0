"""Keep the logins to MCP servers: one file for each address, readable by its owner only."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from closeout.config import home_folder
from closeout.errors import ConfigError

__all__ = ["delete_login", "read_login", "same_address", "saved_logins", "write_login"]

FOLDER = "mcp_logins"  # in the home
_VERSION = 1


def same_address(url: str) -> str:
    """Return a URL in the form under which its login is kept: without query, password and final slash."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"


def read_login(url: str) -> dict[str, Any] | None:
    """Return the login to a server, None without one. A file that is not one is no login."""
    return _read(_file(url))


def write_login(url: str, login: Mapping[str, Any]) -> None:
    """Keep a login in place of the one before. It is written whole or not at all.

    Raises:
        ConfigError: The file cannot be written.
    """
    file = _file(url)
    text = json.dumps({"version": _VERSION, "url": same_address(url), **login}, ensure_ascii=False)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, draft = tempfile.mkstemp(dir=file.parent, suffix=".tmp")  # only its owner may read it
        try:
            with os.fdopen(number, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(draft).replace(file)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"The login cannot be kept in {file.parent} ({error.strerror}). Set CLOSEOUT_HOME to a folder you own."
        ) from None


def delete_login(url: str) -> bool:
    """Forget a login. Return whether there was one."""
    try:
        _file(url).unlink()
    except FileNotFoundError:
        return False
    return True


def saved_logins() -> Iterator[dict[str, Any]]:
    """Yield every login, in the order of their addresses."""
    read = (_read(file) for file in (home_folder() / FOLDER).glob("*.json"))
    yield from sorted((login for login in read if login is not None), key=lambda login: str(login.get("url")))


def _file(url: str) -> Path:
    name = hashlib.sha256(same_address(url).encode()).hexdigest()[:24]
    return home_folder() / FOLDER / f"{name}.json"


def _read(file: Path) -> dict[str, Any] | None:
    try:
        login = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return login if isinstance(login, dict) and login.get("version") == _VERSION else None
