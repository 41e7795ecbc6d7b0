"""Read how MCP servers are named and reached, from entries of our own or from the configuration of another client."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Literal
from urllib.parse import urlsplit

from closeout.errors import ConfigError
from closeout.parsing.json_text import repair_json
from closeout.redaction import redact, secrets_in
from closeout.spelling import suggestion
from closeout.tools.mcp.mcp_auth import McpAuth, read_auth
from closeout.tools.mcp.mcp_questions import Elicitation, check_elicitation
from closeout.variables import VARIABLE, expand_variables

__all__ = ["McpEntry", "McpServerConfig", "read_servers", "without_keys"]

# Seconds for a server to start and list its tools: package runners download it first.
START_SECONDS = 60.0
MOST_SECONDS = 10_000.0  # a larger timeout in another client's configuration is in milliseconds
_URL_KEYS = ("url", "httpUrl", "serverUrl")
_SERVER_LISTS = ("mcpServers", "servers", "mcp_servers")
# Keys that other clients write beside a server's address: approvals, filters of their interfaces, looks, sign-in.
_FOREIGN_KEYS = frozenset((
    "alwaysAllow", "autoApprove", "autoapprove", "description", "dev", "gallery", "icon", "iconPath", "id", "oauth",
    "sandbox", "sandboxEnabled", "tools", "trust", "version", "workingDirectory",
))  # fmt: skip
_FOREIGN_FILTERS = {
    "includeTools": "only", "enabledTools": "only", "excludeTools": "exclude", "disabledTools": "exclude"
}  # fmt: skip
_TRANSPORTS = {
    "stdio": "stdio", "local": "stdio", "http": "http", "streamable-http": "http", "streamable_http": "http",
    "streamableHttp": "http", "remote": "http", "sse": "sse",
}  # fmt: skip
_RUNNERS = frozenset((
    "python", "python3", "py", "node", "npx", "uvx", "uv", "run", "exec", "bunx", "deno", "docker", "sh", "bash",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """One server. `timeout` is seconds for a call; None leaves it to the tool's policy.

    A run does not begin without a `required` server. `elicitation` says who answers the server's questions; with
    `sampling` it may ask the agent's model; `roots` are the file URIs that it may work in, None if it is not told; with
    `resources` two tools list and read its resources; with `tasks` it may answer a call with a task, and "leave"
    suspends the run while the server works on it; `rename` has other names for its tools. Those in `exclude` are not
    offered, nor with `only` those that are not in it.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: Literal["stdio", "http", "sse"]
    timeout: float | None = None
    start_timeout: float = START_SECONDS
    required: bool = True
    auth: McpAuth | None = None
    elicitation: Elicitation = "refuse"
    sampling: bool = False
    roots: tuple[str, ...] | None = None
    resources: bool = False
    tasks: bool | Literal["leave"] = False
    rename: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def may_ask(self) -> bool:
        """True if a call may be more than one request and its result."""
        return self.elicitation != "refuse" or self.sampling or self.roots is not None or bool(self.tasks)

    @property
    def address(self) -> str:
        """The command without its arguments, which may hold a key, or the URL without password and query."""
        if self.transport == "stdio":
            return f"{self.command} …" if self.args else self.command
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may show: the keys in headers, environment and arguments."""
        found = (*secrets_in(self.headers), *secrets_in(self.env), *_secret_arguments(self.args))
        return found if self.auth is None else (*found, *self.auth.secrets)


_KEYS = tuple(each.name for each in dataclasses.fields(McpServerConfig))

# A command, a URL, a JSON file's path, a mapping with the keys of `McpServerConfig`, or a configuration read already.
McpEntry = str | Mapping[str, Any] | McpServerConfig


def read_servers(entries: McpEntry | Mapping[str, McpEntry] | Iterable[McpEntry]) -> tuple[McpServerConfig, ...]:
    """Read MCP servers.

    Args:
        entries: One entry, a list of entries, a mapping of names to entries, or the whole configuration of Claude
            Desktop, VS Code or another client: the servers are under `mcpServers` or `servers`, other top-level keys
            are ignored, and so are disabled servers. `${VAR}` and `${VAR:-default}` are replaced from the environment.
            A text that names a JSON file is read as such a configuration.

    Returns:
        The servers, each with a name of its own.

    Raises:
        ConfigError: An entry is wrong. The text says which, and how.
    """
    unique: dict[str, McpServerConfig] = {}
    for config in _read_all(entries, is_foreign=False):
        name, number = config.name, 1
        while name in unique:
            number += 1
            name = f"{config.name}-{number}"
        unique[name] = replace(config, name=name)
    return tuple(unique.values())


def _read_all(entries: Any, *, is_foreign: bool) -> list[McpServerConfig]:
    if isinstance(entries, McpServerConfig):
        return [entries]
    if isinstance(entries, str):
        file = _configuration_file(entries)
        return [_read_server(entries, "")] if file is None else _read_all(_loaded(file), is_foreign=True)
    if isinstance(entries, Mapping):
        listed = _listed_servers(entries)
        if listed is not None:
            return _read_all(listed, is_foreign=True)
        if "command" in entries or any(key in entries for key in _URL_KEYS):
            entries = [entries]
        else:
            named = [(str(name), entry) for name, entry in entries.items() if not _is_disabled(entry)]
            return [_read_server(entry, name, is_foreign=is_foreign) for name, entry in named]
    found: list[McpServerConfig] = []
    for entry in entries:
        if isinstance(entry, str | McpServerConfig) or (isinstance(entry, Mapping) and _listed_servers(entry)):
            found += _read_all(entry, is_foreign=is_foreign)
        elif not _is_disabled(entry):
            found.append(_read_server(entry, "", is_foreign=is_foreign))
    return found


def without_keys(command: str) -> str:
    """Return a command with stars in place of the keys among its arguments. `${VAR}` stays."""
    secrets = [secret for secret in _secret_arguments(command.split()) if not VARIABLE.search(secret)]
    return command if VARIABLE.search(command) and not secrets else str(redact(command, secrets))


def _secret_arguments(args: Sequence[str]) -> tuple[str, ...]:
    """The values of options whose name is that of a secret: `--api-key KEY`, `--token=KEY`, `-e API_KEY=KEY`."""
    named = dict(arg.split("=", 1) for arg in args if "=" in arg)
    named |= {option: value for option, value in pairwise(args) if option.startswith("-") and "=" not in option}
    return secrets_in(named)


def _listed_servers(entries: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The servers of a client's whole configuration; None if this is not one."""
    if isinstance(entries.get("mcp"), Mapping):  # VS Code's settings.json
        return _listed_servers(entries["mcp"])
    for key in _SERVER_LISTS:
        listed = entries.get(key)
        if isinstance(listed, Mapping) and not ("command" in listed and isinstance(listed["command"], str)):
            return listed
    return None


def _is_disabled(entry: Any) -> bool:
    return isinstance(entry, Mapping) and (entry.get("disabled") is True or entry.get("enabled") is False)


def _configuration_file(entry: str) -> Path | None:
    """The file that a text names; None if it is a command or a URL."""
    if PurePath(entry).suffix.lower() not in (".json", ".jsonc") or _is_url(entry):
        return None
    file = Path(entry).expanduser()
    if not file.is_file() and len(entry.split()) > 1:  # a command whose last argument is a JSON file
        return None
    return file


def _loaded(file: Path) -> Any:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"The MCP configuration {file} cannot be read: {error}.") from None
    read = repair_json(text)  # these files have comments and trailing commas
    if not read.ok or not isinstance(read.value, Mapping):
        raise ConfigError(f"The MCP configuration {file} is not a JSON object. Write {{'mcpServers': {{…}}}}.")
    if _listed_servers(read.value) is None:
        raise ConfigError(f"The MCP configuration {file} has neither 'mcpServers' nor 'servers'.")
    return read.value


def _read_server(entry: Any, name: str, *, is_foreign: bool = False) -> McpServerConfig:
    if isinstance(entry, McpServerConfig):
        return entry
    if isinstance(entry, str):
        fields = {"url": entry} if _is_url(entry) else {"command": entry}
        return _from_mapping(fields, name, name or _label(fields), is_foreign=False)
    if isinstance(entry, Mapping):
        named = {**({"name": name} if name else {}), **entry}
        return _from_mapping(named, name, str(entry.get("name") or name or _label(entry)), is_foreign=is_foreign)
    # Anything but a number may hold a key.
    shown = repr(entry) if isinstance(entry, int | float | None) else type(entry).__name__
    raise ConfigError(
        f"MCP server {name!r} must be text or a mapping, got {shown}. Give a command such as "
        "'python server.py', a URL, a JSON file, or {'name': …, 'command': …, 'args': […]}."
    )


def _from_mapping(entry: Mapping[str, Any], name: str, shown: str, *, is_foreign: bool) -> McpServerConfig:
    fields = _known_fields(entry, shown, is_foreign=is_foreign)
    folders = {"workspaceFolder": str(Path.cwd()), "userHome": str(Path.home())}
    fields = expand_variables(fields, f"MCP server {shown!r}", known=folders)
    command, args = _command(fields.get("command"), fields.get("args"), shown)
    url = str(fields.get("url") or "")
    if bool(command) == bool(url):
        what = "both a command and a URL" if url else "neither a command nor a URL"
        raise ConfigError(
            f"MCP server {shown!r} has {what}. Give 'command' for a local server or 'url' for a remote one."
        )
    if url and not _is_url(url):
        raise ConfigError(
            f"MCP server {shown!r}: {redact(url)!r} is not a URL. It must start with http:// or https://."
        )
    env = {**_env_file(fields.get("envFile"), shown), **(fields.get("env") or {})}
    timeout = _seconds(fields.get("timeout"), "timeout", shown)
    if timeout is not None and is_foreign and timeout > MOST_SECONDS:
        timeout /= 1000
    return McpServerConfig(
        name=_clean(str(fields.get("name") or name or _derived_name(command, args, url))),
        transport=_transport(fields.get("transport"), url, shown),
        command=command,
        args=args,
        env={str(key): str(value) for key, value in env.items() if value is not None},
        cwd=str(fields["cwd"]) if fields.get("cwd") else None,
        url=url,
        headers={str(key): str(value) for key, value in (fields.get("headers") or {}).items()},
        timeout=timeout,
        start_timeout=_seconds(fields.get("start_timeout"), "start_timeout", shown) or START_SECONDS,
        required=_flag(fields.get("required"), "required", shown),
        auth=read_auth(fields.get("auth"), shown, is_foreign=is_foreign) if url else None,
        elicitation=check_elicitation(fields.get("elicitation"), shown),
        sampling=_flag(fields.get("sampling"), "sampling", shown, default=False),
        roots=_roots(fields.get("roots"), shown),
        resources=_flag(fields.get("resources"), "resources", shown, default=False),
        tasks=_tasks(fields.get("tasks"), shown),
        rename=_names(fields.get("rename"), shown),
        only=_tool_names(fields.get("only"), "only", shown),
        exclude=_tool_names(fields.get("exclude"), "exclude", shown),
    )


def _known_fields(entry: Mapping[str, Any], shown: str, *, is_foreign: bool) -> dict[str, Any]:
    """The entry under our own keys. Of another client's configuration, keys that mean nothing here are left out."""
    fields: dict[str, Any] = {}
    for key, value in entry.items():
        ours = "transport" if key == "type" else "url" if key in _URL_KEYS else _FOREIGN_FILTERS.get(key, key)
        if ours in _KEYS or ours == "envFile":
            if value is not None or ours not in fields:
                fields[ours] = value
            if key == "httpUrl":
                fields.setdefault("transport", "http")
        elif key not in _FOREIGN_KEYS and key not in ("disabled", "enabled"):
            hint = suggestion(str(key), _KEYS, "" if is_foreign else f"Use {', '.join(_KEYS)}.")
            if not hint:
                continue
            raise ConfigError(f"MCP server {shown!r}: {key!r} is not a known key. {hint}")
    return fields


def _env_file(path: Any, shown: str) -> dict[str, str]:
    """The variables of a file of NAME=value lines."""
    if not path:
        return {}
    try:
        lines = Path(str(path)).expanduser().read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"MCP server {shown!r}: the envFile {path} cannot be read: {error}.") from None
    pairs = [line.removeprefix("export ").split("=", 1) for line in map(str.strip, lines) if not line.startswith("#")]
    return {pair[0].strip(): pair[1].strip().strip("\"'") for pair in pairs if len(pair) == 2}


def _command(command: Any, args: Any, shown: str) -> tuple[str, tuple[str, ...]]:
    """Program and arguments. A command text without `args` is split as a shell would, but no shell runs."""
    if not command:
        return "", ()
    if isinstance(command, str) and args is None:
        try:
            words = shlex.split(command, posix=os.name != "nt")
        except ValueError as error:
            raise ConfigError(f"MCP server {shown!r}: the command cannot be split: {error}.") from None
    else:
        words = [command] if isinstance(command, str) else [str(word) for word in command]
        words += [str(word) for word in args or ()]
    if words and words[0].endswith(".py"):
        words.insert(0, sys.executable)
    return (words[0], tuple(words[1:])) if words else ("", ())


def _transport(name: Any, url: str, shown: str) -> Literal["stdio", "http", "sse"]:
    if name is not None and name not in _TRANSPORTS:
        raise ConfigError(f"MCP server {shown!r}: {name!r} is not a transport. Use stdio, http or sse.")
    if not url:
        return "stdio"
    if name is not None and _TRANSPORTS[name] == "sse":
        return "sse"
    return "sse" if name is None and urlsplit(url).path.rstrip("/").endswith("/sse") else "http"


def _seconds(value: Any, key: str, shown: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"MCP server {shown!r}: {key} must be a number of seconds above 0, got {value!r}.")
    return float(value)


def _roots(value: Any, shown: str) -> tuple[str, ...] | None:
    """Folders as file URIs."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"MCP server {shown!r}: roots must be a list of folders, got {value!r:.80}.")
    return tuple(each if each.startswith("file://") else Path(each).expanduser().absolute().as_uri() for each in value)


def _tasks(value: Any, shown: str) -> bool | Literal["leave"]:
    if isinstance(value, bool | None):
        return bool(value)
    if value != "leave":
        raise ConfigError(f"MCP server {shown!r}: tasks must be true, false or leave, got {value!r:.80}.")
    return "leave"


def _tool_names(value: Any, key: str, shown: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple | None) or not all(isinstance(each, str) for each in value or ()):
        raise ConfigError(f"MCP server {shown!r}: {key} must be a list of names of tools, got {value!r:.80}.")
    return tuple(value or ())


def _names(value: Any, shown: str) -> dict[str, str]:
    """New names of tools, by the names that the server has for them."""
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"MCP server {shown!r}: rename must map names of tools to new names, got {value!r:.80}.")
    for name in (value or {}).values():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ConfigError(
                f"MCP server {shown!r}: the new name of a tool has 1 to 64 letters, digits, _ and -, got {name!r:.80}."
            )
    return {str(name): new for name, new in (value or {}).items()}


def _flag(value: Any, key: str, shown: str, *, default: bool = True) -> bool:
    if not isinstance(value, bool | None):
        raise ConfigError(f"MCP server {shown!r}: {key} must be true or false, got {value!r}.")
    return default if value is None else value


def _is_url(text: str) -> bool:
    return re.match(r"https?://[^\s/]", text, re.IGNORECASE) is not None


def _label(entry: Mapping[str, Any]) -> str:
    """A nameless entry in messages: the beginning of its command, or its address, without what may be a key."""
    words = entry.get("command")
    if isinstance(words, str | list | tuple) and words:
        return str((words.split() or [words])[0] if isinstance(words, str) else words[0])
    url = next((entry[key] for key in _URL_KEYS if isinstance(entry.get(key), str)), "")
    return str(redact(url.partition("?")[0])) or "without a name"


def _derived_name(command: str, args: Sequence[str], url: str) -> str:
    """ "python tools/search_server.py --x" is search_server; "https://mcp.example.org/mcp" is mcp.example.org."""
    if url:
        parts = urlsplit(url)
        return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)
    secrets = _secret_arguments((command, *args))
    for word in (command, *args):
        if "=" in word or redact(word, secrets) != word:  # a name is shown everywhere
            continue
        stem = PurePath(word.replace("\\", "/")).stem
        if not word.startswith("-") and re.sub(r"[\d.]+$", "", stem) not in _RUNNERS and stem:
            return stem
    return PurePath(command).stem


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[:40] or "server"
