"""Pin the definitions of MCP tools in a file: one that changes later is not used until a person accepts it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from closeout.errors import NAMED_SETTINGS, ConfigError
from closeout.messages import ToolSpec
from closeout.results.normal import normalise
from closeout.shared_files import write_whole

__all__ = ["LOCK_FILE", "PinnedTools", "is_pinning", "pin"]

LOCK_FILE = "mcp.lock.json"
_VERSION = 1

is_pinning: ContextVar[bool] = ContextVar("is_pinning", default=False)
"""True while `closeout mcp pin` imports an agent whose lock file it is about to write."""

Digests = dict[str, dict[str, dict[str, str]]]
"""Server → tool → part of its definition → digest."""


class PinnedTools:
    """The definitions that a person has accepted.

    Args:
        path: The lock file that `closeout mcp pin` writes.

    Raises:
        ConfigError: The file cannot be read, or is not a lock file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._servers = _read_digests(self.path)

    def problem(self, server: str, tool: ToolSpec) -> str:
        """Return why a tool must not be used, "" if its definition is the one that was accepted."""
        pinned = self._servers.get(server, {}).get(tool.name)
        found = _digests(tool)
        if pinned == found:
            return ""
        if pinned is None:
            what = "is new"
        else:
            changed = [part for part in found if pinned.get(part) != found[part]]
            what = f"has changed its {' and its '.join(changed)}"
        return (
            f"The tool {tool.name!r} of MCP server {server!r} {what} since {self.path.name} was written, so it is not "
            f"used. Look at it with `closeout mcp tools{NAMED_SETTINGS} {server}`; "
            f"to accept it: closeout mcp pin{NAMED_SETTINGS} {server}"
        )


def pin(path: Path, offers: Mapping[str, Iterable[ToolSpec]]) -> list[str]:
    """Write the definitions of servers into a lock file; those of other servers stay.

    Args:
        path: The file.
        offers: The tools of each server.

    Returns:
        What is different now: a line for each tool.

    Raises:
        ConfigError: The file cannot be written, or is not a lock file.
    """
    known = _read_digests(path) if path.exists() else {}
    written = {server: {tool.name: _digests(tool) for tool in tools} for server, tools in offers.items()}
    changes = [
        f"{sign} {server}/{name}"
        for server, tools in written.items()
        for name in sorted(tools.keys() | known.get(server, {}).keys())
        if (sign := _sign(known.get(server, {}).get(name), tools.get(name)))
    ]
    text = json.dumps({"version": _VERSION, "servers": {**known, **written}}, indent=2, sort_keys=True)
    try:
        write_whole(path, f"{text}\n".encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    return changes


def _sign(before: Any, after: Any) -> str:
    if before is None or after is None:
        return "+" if before is None else "-"
    return "" if before == after else "~"


def _digests(tool: ToolSpec) -> dict[str, str]:
    """The digest of each part of a definition as a model sees it, and of the hints that decide about approval."""
    parts = {"description": tool.description, "parameters": tool.parameters, "hints": normalise(tool.policy)}
    return {name: _digest(part) for name, part in parts.items()}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _read_digests(path: Path) -> Digests:
    try:
        lock = json.loads(path.read_bytes())
        servers = lock["servers"] if lock["version"] == _VERSION else None
    except FileNotFoundError:
        if is_pinning.get():
            return {}
        how = f"Write it with: closeout mcp pin{NAMED_SETTINGS}"
        raise ConfigError(f"The lock file {path} does not exist. {how}") from None
    except (OSError, ValueError, KeyError, TypeError):
        servers = None
    if not isinstance(servers, dict) or not all(isinstance(tools, dict) for tools in servers.values()):
        again = f"Write it again with: closeout mcp pin{NAMED_SETTINGS}"
        raise ConfigError(f"{path} is not a lock file of MCP tools. {again}")
    return servers
