"""The options of a run: the agent that they describe, and how the journal stores them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.config import Config, load_config
from closeout.errors import ConfigError, UsageError
from closeout.redaction import REDACTED

if TYPE_CHECKING:
    from closeout.agent import Agent

__all__ = [
    "RunOptions",
    "is_from_command",
    "make_agent",
    "model_in",
    "options_in",
    "read_settings",
    "recorded_options",
]

TOOLS = ("fetch_url", "run_python", "ask_user")  # for --tool; calculate is always included
_SETTING = re.compile(r"(?:llm\.prices\.[^=]+|[\w.]+)\s*=")
_SECRET = re.compile(r"(?:llm|tools\.web)\.api_key\s*=")
_SECTION = re.compile(r"(llm|tools|tools\.web)\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `closeout run`, stored with the run so that `closeout resume` makes the same agent."""

    model: str | None = None
    base_url: str | None = None
    docs: str | None = None
    mcp: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    web: bool = False
    files: tuple[str, ...] = ()
    dialect: str | None = None
    answer: str | None = None
    config: tuple[str, ...] = ()
    instructions: str | None = None

    def over(self, earlier: RunOptions) -> RunOptions:
        """Return these options, completed by those of an earlier run. Its files are not read again."""
        default = RunOptions()
        names = [
            field.name for field in fields(RunOptions) if getattr(self, field.name) != getattr(default, field.name)
        ]
        return replace(earlier, files=(), **{name: getattr(self, name) for name in names})

    def with_model(self, model: str | None, base_url: str | None) -> RunOptions:
        """Return these options with another model or address, if they are set."""
        return replace(self, model=model or self.model, base_url=base_url or self.base_url)

    def as_origin(self) -> dict[str, Any]:
        """Return JSON-serialisable data for the journal: paths absolute, API keys left out."""
        settings = [_without_key(c) if _SETTING.match(c) else _absolute(c) for c in self.config if not _SECRET.match(c)]
        docs = None if self.docs is None else _absolute(self.docs)
        kind, _, schema = (self.answer or "").partition(":")
        from closeout.tools.mcp_config import without_keys

        return {
            **asdict(self),
            "docs": docs,
            "mcp": [without_keys(server) for server in self.mcp],
            "answer": f"{kind}:{_absolute(schema)}" if kind in ("json", "yaml") and schema else self.answer,
            "files": [_absolute(file) for file in self.files],
            "config": settings,
        }


def recorded_options(run_id: str) -> RunOptions:
    """Return the options that a run was started with.

    Raises:
        RunNotFound: There is no such run.
        UsageError: It was not started on the command line.
    """
    from closeout.config import home_folder
    from closeout.journal.events import RunStarted
    from closeout.journal.readonly import open_to_read

    with open_to_read(home_folder()) as store:
        started = next(store.rows(run_id), None)
    event = started.event if started is not None else None
    if not isinstance(event, RunStarted) or not is_from_command(event.origin):
        raise UsageError(
            f"Run {run_id} was not started by `closeout run`, so its agent is unknown here. "
            f'Resume it in Python: agent.resume("{run_id}").'
        )
    options = options_in(event.origin)
    if any(REDACTED in server for server in options.mcp):
        raise UsageError(
            f"Run {run_id} used an MCP server with a key among its arguments, and keys are not recorded. Resume it in "
            f'Python: agent.resume("{run_id}"). In later runs write ${{NAME}} for the key and set that variable.'
        )
    return options


def is_from_command(origin: Mapping[str, Any]) -> bool:
    """True if a run with this origin was started on the command line."""
    return "model" in origin and "config" in origin


def options_in(values: Mapping[str, Any]) -> RunOptions:
    """Return the options among values by name: the parameters of a command, or the origin of a run."""
    known = {field.name for field in fields(RunOptions)}
    kept = {name: value for name, value in values.items() if name in known and value is not None}
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return RunOptions(**found)


def make_agent(options: RunOptions, *, api_key: str | None = None) -> Agent:
    """Return the agent that the options describe, its model and tools checked.

    Args:
        options: The options.
        api_key: A placeholder if no request will be made.

    Raises:
        UsageError: An option is wrong.
        ConfigError: A setting is wrong.
    """
    from closeout.agent import Agent
    from closeout.answers.typed import named_contract
    from closeout.models.connect import connect

    _refuse_empty(options)
    config = read_settings(options.config)
    _check_commands(options.mcp)
    model = options.model or model_in(config)
    if options.web and api_key is None:
        _check_search(config)
    for name in map(str.strip, model.split(",")):
        if name.startswith("local:"):
            _check_weights(name)
    client = connect(model, options.base_url, api_key, config.llm)
    agent = Agent(
        client,
        _tools(options, config, small=model.partition(":")[0] == "local" or client.capabilities.weak),
        options.mcp,
        options.dialect,
        options.instructions,
        base_url=options.base_url,
        api_key=api_key,
        answer=None if options.answer is None else named_contract(options.answer),
        config=config,
        stream=True,
    )
    agent.plan()
    return agent


def _refuse_empty(options: RunOptions) -> None:
    """Raise UsageError for an empty option: a shell variable that is not set must not mean the default."""
    for name, value in (
        ("-m", options.model),
        ("--base-url", options.base_url),
        ("--docs", options.docs),
        ("--dialect", options.dialect),
        ("--answer", options.answer),
        ("-s", options.instructions),
        *(("--file", file) for file in options.files),
    ):
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty. Give it a value, or leave it out.")


def read_settings(settings: Sequence[str]) -> Config:
    """Return the settings of `--config`: YAML files, of which a later one overrides an earlier one, then key=value."""
    overrides = [setting for setting in settings if _SETTING.match(setting)]
    files = [setting for setting in settings if not _SETTING.match(setting)]
    return load_config(files, overrides)


def _tools(options: RunOptions, config: Config, *, small: bool) -> list[Any]:
    """Return the built-in tools. `small`: simpler ones, because a small model mixes up facts if it sees many."""
    from closeout.assembly.toolset import built_in_tool
    from closeout.tools.builtin import calculate, document_tools, web_tools

    tools: list[Any] = [calculate]
    if options.docs is not None:
        tools += document_tools(_readable_folder(options.docs), plain=small)
    if options.web:
        tools += web_tools(config.tools)
    for name in dict.fromkeys(options.tools):
        if name not in TOOLS:
            raise UsageError(f"Unknown built-in tool '{name}'. --tool takes {', '.join(TOOLS)}.")
        tools.append(built_in_tool(name, config.tools))
    return tools


def _check_search(config: Config) -> None:
    """Raise ConfigError if no search provider is configured, or its key or address is missing."""
    from closeout.tools.builtin.search import search_provider

    try:
        search_provider(config.tools.web)
    except ConfigError as error:
        raise ConfigError(f"--web: {error}") from None


def _readable_folder(docs: str) -> str:
    try:
        next(iter(Path(docs).iterdir()), None)
    except FileNotFoundError:
        raise ConfigError(f"--docs {docs}: no such folder.") from None
    except NotADirectoryError:
        raise ConfigError(f"--docs {docs} is a file. Give its folder, or the file itself with --file.") from None
    except OSError as error:
        raise ConfigError(f"--docs {docs} cannot be read: {error.strerror}.") from None
    _report_missing_readers(docs)
    return docs


def _report_missing_readers(docs: str) -> None:
    """Say on stderr how many documents are not searched because their reader is not installed.

    Raises:
        ConfigError: There is no other document.
    """
    from closeout.cli.terminal import amount, say_error
    from closeout.tools.builtin.document_index import document_files
    from closeout.tools.builtin.extract import lacks_reader

    files = list(document_files(Path(docs)))
    unread = [file for file in files if lacks_reader(file)]
    if not unread:
        return
    kinds = ", ".join(sorted({file.suffix.lower() for file in unread}))
    said = f"--docs {docs}: the reader for {kinds} is not installed: pip install 'closeout[documents]'."
    if len(unread) == len(files):
        raise ConfigError(said)
    say_error(f"{said} Without it, {amount(len(unread), 'document')} of {len(files):,} cannot be searched.")


def _check_commands(servers: Sequence[str]) -> None:
    """Raise ConfigError for a misspelt command before the run costs anything. A later failure is only a warning."""
    if not servers:
        return
    from closeout.tools.mcp_config import read_servers

    for server in read_servers(servers):
        missing = server.command and server.command not in ("python", "python3") and not shutil.which(server.command)
        if missing:
            raise ConfigError(
                f"--mcp: command not found: '{server.command}'. Install it, give its full path, or give a URL."
            )


def _check_weights(model: str) -> None:
    from closeout.models.weights import find_weights

    find_weights(model)  # raises ModelUnavailable


def model_in(config: Config) -> str:
    """Return the model that the settings name, "local" if they name none. A bare name is one of OpenAI's API."""
    from closeout.models.connect import PROVIDERS, named_model

    name = named_model(config.llm) or "local"
    return name if name.partition(":")[0] in PROVIDERS else f"openai:{name}"


def _without_key(setting: str) -> str:
    """Return the setting without the API key; `llm={…}` and `tools={…}` set a whole section."""
    found = _SECTION.match(setting)
    if found is None:
        return setting
    import yaml

    kept = yaml.safe_load(setting.partition("=")[2])
    web = kept.get("web") if found[1] == "tools" else kept
    if isinstance(web, dict):
        web.pop("api_key", None)
    return f"{found[1]}={json.dumps(kept)}"


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
