"""The options of a run: the agent that they describe, and how the journal stores them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from closeout.config import Config, anchored_name, load_config, load_settings
from closeout.errors import ConfigError, UsageError
from closeout.stray_output import stray_output_to_stderr

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from closeout.agent import Agent
    from closeout.settings_tree import SettingsTree

__all__ = [
    "RunOptions",
    "is_settings_file",
    "make_agent",
    "model_in",
    "options_in",
    "read_settings",
    "read_with_origins",
    "with_own_deps",
]

SETTINGS_FILES = (".yaml", ".yml", ".json")
TOOLS = ("fetch_url", "run_python", "ask_user")  # values of --tool; calculate is always included
_SETTING = re.compile(r"(?:llm\.prices\.[^=]+|[\w.]+)\s*=")
_SECRET = re.compile(r"(?:llm|tools\.web)\.api_key\s*=")


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
    skills: tuple[str, ...] = ()
    agent: str | None = None
    profile: str | None = None
    research: bool = False

    @property
    def not_default(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in values if value != field.default}

    def over(self, earlier: RunOptions) -> RunOptions:
        """Return these options, completed by those of an earlier run. Its files are not read again."""
        return replace(earlier, **{"files": (), **self.not_default})

    def with_model(self, model: str | None, base_url: str | None) -> RunOptions:
        """Return these options with another model or address, if they are set."""
        return replace(self, model=model or self.model, base_url=base_url or self.base_url)

    def as_origin(self) -> dict[str, Any]:
        """Return JSON-serialisable data for the journal: paths absolute, API keys left out."""
        config = self.settings
        settings = [_without_key(c) if _SETTING.match(c) else _absolute(c) for c in config if not _SECRET.match(c)]
        python = self.agent if self.is_python else None
        docs = None if self.docs is None else _absolute(self.docs)
        kind, _, schema = (self.answer or "").partition(":")
        from closeout.tools.mcp.mcp_config import without_keys

        return {
            **asdict(self),
            "docs": docs,
            "mcp": [without_keys(server) for server in self.mcp],
            "answer": f"{kind}:{_absolute(schema)}" if kind in ("json", "yaml") and schema else self.answer,
            "skills": [_absolute(folder) for folder in self.skills],
            "files": [_absolute(file) for file in self.files],
            "config": settings,
            "agent": None if python is None else anchored_name(python, Path.cwd()),
        }

    @property
    def is_python(self) -> bool:
        """True if the agent is defined in Python: `package.module:agent`."""
        return self.agent is not None and not is_settings_file(self.agent)

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings files, the agent's first, and the overrides."""
        return self.config if self.agent is None or self.is_python else (self.agent, *self.config)


def options_in(values: Mapping[str, Any]) -> RunOptions:
    """Return the options among values by name: the parameters of a command, or the origin of a run."""
    known = {field.name for field in fields(RunOptions)}
    kept = {name: value for name, value in values.items() if name in known and value is not None}
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return RunOptions(**found)


@stray_output_to_stderr()
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
    from closeout.assembly.parts import answer_of
    from closeout.models.connect import connect

    _refuse_empty(options)
    if options.agent is not None and options.is_python:
        return _python_agent(options.agent, options)
    config = read_settings(options.settings, options.profile)
    _check_commands(options.mcp)
    model = options.model or model_in(config)
    if api_key is None and options.model is None:
        _check_default(config)
    if options.web and api_key is None:
        _check_search(config)
    for name in map(str.strip, model.split(",")):
        if name.startswith("local:"):
            from closeout.models.local.weights import find_weights

            find_weights(name)  # raises ModelUnavailable
    if options.docs is not None:
        config = load_config(config, values={"agent.documents": _readable_folder(options.docs)})
    falls_back = options.model is None and config.llm.fallback.models
    make: Callable[..., Agent] = Agent
    if options.research:
        from closeout.recipes import research_agent

        first = "search_documents" if config.agent.documents is not None else "web_search" if options.web else ""
        if not (first or options.mcp or options.tools or config.agent.tools or config.tools.mcp_servers):
            raise UsageError("closeout research has nothing to read. Pass --docs FOLDER, --web or --mcp SERVER.")
        make = partial(research_agent, first=first)
    agent = make(
        connect(None if falls_back else model, options.base_url, api_key, config.llm),
        _tools(options, config),
        options.mcp,
        options.dialect,
        options.instructions,
        base_url=options.base_url,
        api_key=api_key,
        answer=None if options.answer is None else answer_of(options.answer),
        config=config,
        skills=options.skills,
        stream=True,
    )
    agent.plan()
    return agent


async def with_own_deps(agent: Agent, stack: AsyncExitStack, run_id: str) -> Agent:
    """Return the agent with the dependencies of a run, if its settings name a function that makes them.

    Args:
        agent: The agent.
        stack: Left when the run is over.
        run_id: The run, which may be new.

    Raises:
        UsageError: They cannot be made.
    """
    name = agent.config.agent.deps
    if name is None or agent.plan().deps is not None:
        return agent
    from closeout.assembly.named import named_object
    from closeout.errors import RunNotFound
    from closeout.fleet.made_deps import DepsMaker
    from closeout.journal.events import RunStarted

    user, store = "", agent.store()
    if store is not None:
        with suppress(RunNotFound):
            rows = store.rows_from(run_id, 0, 1)
            user = rows[0].event.user if rows and isinstance(rows[0].event, RunStarted) else ""
    made = DepsMaker(named_object(name))
    return agent.with_deps((await made.provide(agent.plan(), stack, run_id, {"user": user})).deps)


def is_settings_file(source: str) -> bool:
    """Return whether the source of an agent is the path of a settings file."""
    return Path(source).suffix.lower() in SETTINGS_FILES or (os.sep in source and ":" not in source)


def _python_agent(source: str, options: RunOptions) -> Agent:
    """Return the agent that `package.module:attribute` names: an Agent, or a function that returns one."""
    from closeout.agent import Agent
    from closeout.assembly.named import named_object

    if replace(options, agent=None, files=()) != RunOptions():
        raise UsageError(f"{source} is defined in Python. Set its model, tools and settings there.")
    module, colon, attribute = source.rpartition("/")[2].partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise UsageError(f"{source} is neither a settings file (FILE.yaml) nor an agent (package.module:agent).")
    found = named_object(source)
    if not isinstance(found, Agent) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise UsageError(f"{source} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Agent):
        raise UsageError(f"{source} must be an Agent, or a function that returns one, got {found!r:.80}.")
    found.plan()
    return found


def _refuse_empty(options: RunOptions) -> None:
    """Raise UsageError for an empty option: an unset shell variable must not mean the default."""
    for name, value in (
        ("-m", options.model),
        ("--base-url", options.base_url),
        ("--docs", options.docs),
        ("--dialect", options.dialect),
        ("--answer", options.answer),
        ("-s", options.instructions),
        ("--agent", options.agent),
        ("--profile", options.profile),
        *(("--file", file) for file in options.files),
        *(("--skills", folder) for folder in options.skills),
    ):
        if value is not None and not value.strip():
            raise UsageError(f"{name} is empty. Give it a value, or leave it out.")


def read_settings(settings: Sequence[str], profile: str | None) -> Config:
    """Return the settings of `--config`: later YAML files override earlier ones, and key=value overrides files."""
    return read_with_origins(settings, profile)[0]


def read_with_origins(settings: Sequence[str], profile: str | None) -> tuple[Config, SettingsTree]:
    """Return the settings of `--config`, and where each was written."""
    overrides = [setting for setting in settings if _SETTING.match(setting)]
    files = [setting for setting in settings if not _SETTING.match(setting)]
    return load_settings(files, overrides, profile=profile)


def _tools(options: RunOptions, config: Config) -> list[Any]:
    """Return the tools of the options, without those that the settings name."""
    from closeout.assembly.toolset import built_in_tool
    from closeout.tools.builtin import calculate, web_tools

    tools: list[Any] = [] if "tools" in config.agent.model_fields_set else [calculate]
    if options.web:
        tools += web_tools(config.tools)
    for name in dict.fromkeys(options.tools):
        if name not in TOOLS:
            raise UsageError(f"Unknown built-in tool '{name}'. --tool takes {', '.join(TOOLS)}.")
        tools.append(built_in_tool(name, config.tools))
    return [each for each in tools if each.spec.name not in config.agent.tools]


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
    from closeout.tools.builtin.document_text import lacks_reader

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
    from closeout.tools.mcp.mcp_config import read_servers

    for server in read_servers(servers):
        missing = server.command and server.command not in ("python", "python3") and not shutil.which(server.command)
        if missing:
            raise ConfigError(
                f"--mcp: command not found: '{server.command}'. Install it, give its full path, or give a URL."
            )


def model_in(config: Config) -> str:
    """Return the model that the settings name, "local" if they name none."""
    from closeout.models.connect import named_model

    return named_model(config.llm) or "local"


def _check_default(config: Config) -> None:
    """Ask before a download if no model is named and the weights of the embedded one are not here.

    Raises:
        ConfigError: There is nobody to ask, or the answer is no.
    """
    from closeout.cli.terminal import agrees
    from closeout.models.connect import named_model
    from closeout.models.local.weights import KNOWN_WEIGHTS, find_weights

    if named_model(config.llm) is not None or find_weights("local") is not None:
        return
    size = f"{KNOWN_WEIGHTS['local'].megabytes:,} MB"
    if not agrees(f"No model is named (-m). Download the embedded one, 'local', {size}?"):
        raise ConfigError(
            "No model is named, and the weights of the embedded one are not here. Name one: -m openai:NAME with "
            f"OPENAI_API_KEY or --base-url, or -m local. The weights of 'local' ({size}): closeout models pull local"
        )


def _without_key(setting: str) -> str:
    """Return the setting without API keys in its value: `llm={…}` and `tools={…}` set a whole section."""
    import yaml

    key, _, text = setting.partition("=")
    if "api_key" not in text:
        return setting
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return setting
    return f"{key}={json.dumps(_keyless(value))}"


def _keyless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _keyless(each) for key, each in value.items() if key != "api_key"}
    return [_keyless(each) for each in value] if isinstance(value, list) else value


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
