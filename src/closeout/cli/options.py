"""What a run was asked for on the command line, the agent that this describes, and how a journal keeps it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.config import Config, load_config
from closeout.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from closeout.agent import Agent

__all__ = ["RunOptions", "make_agent", "model_in", "read_settings", "recorded_options"]

TOOLS = ("fetch_url", "run_python")  # what --tool names; calculate is always there
_SETTING = re.compile(r"(?:llm\.prices\.[^=]+|[\w.]+)\s*=")
_SECRET = re.compile(r"llm\.api_key\s*=")
_SECTION = re.compile(r"llm\s*=")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `closeout run`. Kept with the run, so that `closeout resume` makes the same agent."""

    model: str | None = None
    base_url: str | None = None
    docs: str | None = None
    mcp: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    dialect: str | None = None
    config: tuple[str, ...] = ()

    def as_origin(self) -> dict[str, Any]:
        """JSON-able, for the journal: paths absolute, so that the run can be resumed from any folder; no key."""
        settings = [_keyless(c) if _SETTING.match(c) else _absolute(c) for c in self.config if not _SECRET.match(c)]
        docs = None if self.docs is None else _absolute(self.docs)
        return {**asdict(self), "docs": docs, "files": [_absolute(file) for file in self.files], "config": settings}


def recorded_options(run_id: str) -> RunOptions:
    """The options that a run was started with. Raises RunNotFound, and UsageError where it has none."""
    from closeout.config import home_folder
    from closeout.journal.events import RunStarted
    from closeout.journal.readonly import open_to_read

    with open_to_read(home_folder()) as store:
        started = next(store.rows(run_id), None)
    event = started.event if started is not None else None
    if not isinstance(event, RunStarted) or not event.origin:
        raise UsageError(
            f"Run {run_id} was not started by `closeout run`, so its agent is not known here. "
            f'Lead it on in Python: agent.resume("{run_id}").'
        )
    known = {field.name for field in fields(RunOptions)}
    kept = {name: value for name, value in event.origin.items() if name in known}
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return RunOptions(**given)


def make_agent(options: RunOptions, *, api_key: str | None = None) -> Agent:
    """The agent that the options describe, its model and tools settled. Raises UsageError.

    `api_key`: stands in for one that is not needed where no model is asked.
    """
    from closeout.agent import Agent

    _check_given(options)
    config = read_settings(options.config)
    _check_commands(options.mcp)
    model = options.model or model_in(config)
    tools = _tools(options, config, small=model.partition(":")[0] == "local")
    if model.startswith("local:"):
        _check_weights(model)
    agent = Agent(
        model,
        tools,
        options.mcp,
        options.dialect,
        base_url=options.base_url,
        api_key=api_key,
        config=config,
        stream=True,
    )
    agent.plan()
    return agent


def _check_given(options: RunOptions) -> None:
    """An empty option is a shell variable that was not set. It does not mean what is taken where none is given."""
    for name, value in (
        ("-m", options.model),
        ("--base-url", options.base_url),
        ("--docs", options.docs),
        ("--dialect", options.dialect),
        *(("--file", file) for file in options.files),
    ):
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty. Say which, or leave it out.")


def read_settings(settings: Sequence[str]) -> Config:
    """The settings of `-c`: at most one YAML file, and any number of key=value. Raises ConfigError."""
    overrides = [setting for setting in settings if _SETTING.match(setting)]
    files = [setting for setting in settings if not _SETTING.match(setting)]
    if len(files) > 1:
        raise ConfigError(f"Give one configuration file, not {len(files)}: {', '.join(files)}.")
    return load_config(files[0] if files else None, overrides)


def _tools(options: RunOptions, config: Config, *, small: bool) -> list[Any]:
    """`small`: for a small model, which takes its facts from the wrong place when it is shown many."""
    from closeout.tools.builtin import calculate, document_tools

    tools: list[Any] = [calculate]
    if options.docs is not None:
        tools += document_tools(_readable_folder(options.docs), plain=small)
    for name in dict.fromkeys(options.tools):
        if name not in TOOLS:
            raise UsageError(f"There is no built-in tool '{name}'. --tool takes {' or '.join(TOOLS)}.")
        tools.append(_built_in(name, config))
    return tools


def _built_in(name: str, config: Config) -> Any:
    from closeout.tools import builtin

    if name == "fetch_url" and config.tools.allow_private_addresses:
        return builtin.web_tool(allow_private=True)
    return getattr(builtin, name)


def _readable_folder(docs: str) -> str:
    try:
        next(iter(Path(docs).iterdir()), None)
    except FileNotFoundError:
        raise ConfigError(f"--docs {docs}: there is no such folder.") from None
    except NotADirectoryError:
        raise ConfigError(f"--docs {docs} is a file. Give its folder, or the file itself with --file.") from None
    except OSError as error:
        raise ConfigError(f"--docs {docs} cannot be read: {error.strerror}.") from None
    return docs


def _check_commands(servers: Sequence[str]) -> None:
    """A misspelt command is found before the run costs anything; a server that fails later is only a warning."""
    if not servers:
        return
    from closeout.tools.mcp_config import read_servers

    for server in read_servers(servers):
        missing = server.command and server.command not in ("python", "python3") and not shutil.which(server.command)
        if missing:
            raise ConfigError(
                f"--mcp: there is no command '{server.command}'. Install it, give its full path, or give a URL."
            )


def _check_weights(model: str) -> None:
    from closeout.llm.weights import find_weights

    find_weights(model)  # raises ModelUnavailable for a name or file that does not exist


def model_in(config: Config) -> str:
    """The model that the settings name, "local" if they name none."""
    provider, name = config.llm.provider, config.llm.model_name
    if provider == "local" or (provider is None and name is None):
        return f"local:{name}" if name else "local"
    return f"{provider or 'openai'}:{name or ''}"


def _keyless(setting: str) -> str:
    """A setting without the API key: `llm={…}` gives the whole section at once."""
    if not _SECTION.match(setting):
        return setting
    kept = load_config(None, [setting], {}).llm.model_dump(mode="json", exclude_unset=True, exclude={"api_key"})
    return f"llm={json.dumps(kept)}"


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
