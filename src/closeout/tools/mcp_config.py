"""How an MCP server is named and reached, read from what a user wrote. Nothing is started or connected here."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal
from urllib.parse import urlsplit

from closeout.errors import ConfigError

__all__ = ["McpEntry", "McpServerConfig", "read_servers"]

START_SECONDS = 60.0  # for a server to start and list its tools: package runners download it first
_KEYS = (
    "name", "command", "args", "env", "cwd", "url", "headers", "transport", "timeout", "start_timeout",
)  # fmt: skip
_TRANSPORTS = {
    "stdio": "stdio", "http": "http", "streamable-http": "http", "streamable_http": "http", "streamableHttp": "http",
    "sse": "sse",
}  # fmt: skip
_RUNNERS = {
    "python",
    "python3",
    "py",
    "node",
    "npx",
    "uvx",
    "uv",
    "run",
    "exec",
    "bunx",
    "deno",
    "docker",
    "sh",
    "bash",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """One server. `timeout` (seconds for a call) None: the tool's policy decides."""

    name: str
    transport: Literal["stdio", "http", "sse"]
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    start_timeout: float = START_SECONDS

    @property
    def address(self) -> str:
        """What a person is shown: the command line or the URL without password and query."""
        if self.transport == "stdio":
            return shlex.join([self.command, *self.args])
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# A command, a URL, a mapping with the keys of `McpServerConfig`, or what was read of one.
McpEntry = str | Mapping[str, Any] | McpServerConfig


def read_servers(entries: McpEntry | Mapping[str, McpEntry] | Iterable[McpEntry]) -> tuple[McpServerConfig, ...]:
    """Read one entry, a list of them, or a mapping of names to them (the usual `mcpServers` JSON, whole too).

    Every server has a name of its own afterwards. Raises `ConfigError` that says which entry is wrong and how.
    """
    if isinstance(entries, Mapping) and list(entries) == ["mcpServers"]:
        entries = entries["mcpServers"]
    if isinstance(entries, str | McpServerConfig) or (
        isinstance(entries, Mapping) and ("command" in entries or "url" in entries)
    ):
        entries = [entries]
    if isinstance(entries, Mapping):
        configs = [_read(entry, str(name)) for name, entry in entries.items()]
    else:
        configs = [_read(entry, "") for entry in entries]
    taken: set[str] = set()
    unique: list[McpServerConfig] = []
    for config in configs:
        name, number = config.name, 1
        while name in taken:
            number += 1
            name = f"{config.name}-{number}"
        taken.add(name)
        unique.append(replace(config, name=name))
    return tuple(unique)


def _read(entry: Any, name: str) -> McpServerConfig:
    if isinstance(entry, McpServerConfig):
        return entry
    if isinstance(entry, str):
        return _from_mapping({"url": entry} if _is_url(entry) else {"command": entry}, name, entry)
    if isinstance(entry, Mapping):
        return _from_mapping(
            {**({"name": name} if name else {}), **entry}, name, str(entry.get("name") or name or entry)
        )
    raise ConfigError(
        f"MCP server {entry!r} is neither text nor a mapping. Give a command such as 'python server.py', "
        "a URL, or {'name': …, 'command': …, 'args': […]}."
    )


def _from_mapping(entry: Mapping[str, Any], name: str, shown: str) -> McpServerConfig:
    fields = {("transport" if key == "type" else key): value for key, value in entry.items()}
    for key in fields:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(_KEYS)}."
            raise ConfigError(f"MCP server {shown!r}: there is no key {key!r}. {hint}")
    command, args = _command(fields.get("command"), fields.get("args"), shown)
    url = str(fields.get("url") or "")
    if bool(command) == bool(url):
        what = "both a command and a URL" if url else "neither a command nor a URL"
        raise ConfigError(
            f"MCP server {shown!r} has {what}. Give 'command' for a local server or 'url' for a remote one."
        )
    if url and not _is_url(url):
        raise ConfigError(f"MCP server {shown!r}: {url!r} is no URL. It must start with http:// or https://.")
    transport = _transport(fields.get("transport"), url, shown)
    return McpServerConfig(
        name=_clean(str(fields.get("name") or name or _derived_name(command, args, url))),
        transport=transport,
        command=command,
        args=args,
        env={str(key): str(value) for key, value in (fields.get("env") or {}).items()},
        cwd=str(fields["cwd"]) if fields.get("cwd") else None,
        url=url,
        headers={str(key): str(value) for key, value in (fields.get("headers") or {}).items()},
        timeout=_seconds(fields.get("timeout"), "timeout", shown),
        start_timeout=_seconds(fields.get("start_timeout"), "start_timeout", shown) or START_SECONDS,
    )


def _command(command: Any, args: Any, shown: str) -> tuple[str, tuple[str, ...]]:
    """Program and arguments. A command text without `args` is split as a shell would, but no shell runs."""
    if not command:
        return "", ()
    if isinstance(command, str) and args is None:
        try:
            words = shlex.split(command, posix=os.name != "nt")
        except ValueError as error:
            raise ConfigError(f"MCP server {shown!r}: the command {command!r} cannot be split: {error}.") from None
    else:
        words = [command] if isinstance(command, str) else [str(word) for word in command]
        words += [str(word) for word in args or ()]
    if words and words[0].endswith(".py"):
        words.insert(0, sys.executable)
    return (words[0], tuple(words[1:])) if words else ("", ())


def _transport(given: Any, url: str, shown: str) -> Literal["stdio", "http", "sse"]:
    if given is not None and given not in _TRANSPORTS:
        raise ConfigError(f"MCP server {shown!r}: there is no transport {given!r}. There are: stdio, http, sse.")
    if not url:
        return "stdio"
    if given is not None and _TRANSPORTS[given] == "sse":
        return "sse"
    return "sse" if given is None and urlsplit(url).path.rstrip("/").endswith("/sse") else "http"


def _seconds(value: Any, key: str, shown: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"MCP server {shown!r}: {key} must be a number of seconds above 0, and it is {value!r}.")
    return float(value)


def _is_url(text: str) -> bool:
    return re.match(r"https?://[^\s/]", text, re.IGNORECASE) is not None


def _derived_name(command: str, args: Iterable[str], url: str) -> str:
    """ "python tools/search_server.py --x" is search_server; "https://mcp.example.org/mcp" is mcp.example.org."""
    if url:
        parts = urlsplit(url)
        return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)
    for word in (command, *args):
        stem = PurePath(word.replace("\\", "/")).stem
        if not word.startswith("-") and re.sub(r"[\d.]+$", "", stem) not in _RUNNERS and stem:
            return stem
    return PurePath(command).stem


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:40] or "server"
