"""Keep the logins to MCP servers: one file for each address, readable by its owner only."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from closeout.config import home_folder
from closeout.errors import ConfigError
from closeout.shared_files import try_lock, write_whole

__all__ = ["delete_login", "login_changed", "login_lock", "read_login", "same_address", "saved_logins", "write_login"]

FOLDER = "mcp_logins"  # A folder in the home.
_VERSION = 1
_BETWEEN = 0.05  # Seconds between two tries to lock a login.
# Seconds to wait for a process that holds the lock: a refresh takes one request.
_LONGEST = 60.0


def same_address(url: str) -> str:
    """Return a URL in the form under which its login is kept: without query, password and final slash."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"


def read_login(url: str) -> dict[str, Any] | None:
    """Return the login to a server, None without one. A file that is not one is no login."""
    return _read_login(_file(url))


def login_changed(url: str) -> float:
    """Return when the login to a server was kept or refreshed last, in seconds since the epoch; 0 without one."""
    try:
        return _file(url).stat().st_mtime
    except OSError:
        return 0.0


def write_login(url: str, login: Mapping[str, Any]) -> None:
    """Keep a login in place of the one before. It is written whole or not at all.

    Raises:
        ConfigError: The file cannot be written.
    """
    file = _file(url)
    text = json.dumps({"version": _VERSION, "url": same_address(url), **login}, ensure_ascii=False)
    try:
        _make_folder(file)
        write_whole(file, text.encode("utf-8", "replace"), private=True)
    except OSError as error:
        raise _not_kept(file, error) from None


@asynccontextmanager
async def login_lock(url: str) -> AsyncIterator[None]:
    """Exclude other processes and tasks while a login is refreshed: a refresh token may be valid only once.

    Raises:
        ConfigError: The folder cannot be written.
    """
    path = _file(url).with_suffix(".lock")
    loop = asyncio.get_running_loop()
    end = loop.time() + _LONGEST
    try:
        _make_folder(path)
        while (file := try_lock(path)) is None and loop.time() < end:  # noqa: ASYNC110  another process has it
            await asyncio.sleep(_BETWEEN)
    except OSError as error:
        raise _not_kept(path, error) from None
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()
            file.close()


def delete_login(url: str) -> bool:
    """Forget a login. Return whether there was one."""
    try:
        _file(url).unlink()
    except FileNotFoundError:
        return False
    return True


def saved_logins() -> Iterator[dict[str, Any]]:
    """Yield every login, in the order of their addresses."""
    read = (_read_login(file) for file in (home_folder() / FOLDER).glob("*.json"))
    yield from sorted((login for login in read if login is not None), key=lambda login: str(login.get("url")))


def _file(url: str) -> Path:
    name = hashlib.sha256(same_address(url).encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return home_folder() / FOLDER / f"{name}.json"


def _make_folder(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _not_kept(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The login cannot be kept in {file.parent} ({error.strerror}). Set CLOSEOUT_HOME to a folder you own."
    )


def _read_login(file: Path) -> dict[str, Any] | None:
    try:
        login = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return login if isinstance(login, dict) and login.get("version") == _VERSION else None
