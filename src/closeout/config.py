"""Settings: their model, and how they are read from YAML files, the environment and dotted overrides."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, field_validator

from closeout.errors import ConfigError
from closeout.redaction import redact
from closeout.variables import expand_variables

__all__ = [
    "AgentLimits",
    "AgentSettings",
    "AskSettings",
    "Config",
    "LLMSettings",
    "PythonSettings",
    "SubAgentSettings",
    "ToolSettings",
    "WebSettings",
    "home_folder",
    "load_config",
]

ENV_PREFIX = "CLOSEOUT_"
MAX_FILE_BYTES = 1_000_000
MAX_VALUES = 100_000  # values in a configuration with its aliases expanded
_API_KEYS = (["llm", "api_key"], ["tools", "web", "api_key"])
_MAX_TURNS = ("agent", "main_agent", "max_turns")  # the key that the short form `agent.max_turns` sets
_PRICE_NAMES = ("input", "output", "cache_read", "cache_write")
_PRICE_FORM = (
    "Give US dollars per million tokens for each model, input and output, then cache read and write if they differ: "
    "{my-model: [0.5, 2.0, 0.05]} or {my-model: {input: 0.5, output: 2.0, cache_read: 0.05}}"
)
# Sections in which `${VAR}` stays: texts for a model, and servers, whose reader replaces it.
_VERBATIM = frozenset({"prompts", "markers", "instructions", "description", "default", "mcp_servers"})
# Environment variables that are not settings.
_NOT_SETTINGS = frozenset(
    {"CLOSEOUT_HOME", "CLOSEOUT_MODELS", "CLOSEOUT_DEBUG", "CLOSEOUT_SERVER_KEY", "CLOSEOUT_UPSTREAM_KEY"}
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Show the settings without API keys, tokens and the environment of MCP servers."""
        return [(name, redact(value)) for name, value in super().__repr_args__()]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default if the key is missing."""
        return getattr(self, key, default)


class AgentLimits(_Section):
    """Limits of the main agent."""

    max_turns: int = Field(50, ge=1)


def _read_servers(servers: Any) -> Any:
    entries = servers.values() if isinstance(servers, Mapping) else servers
    if isinstance(servers, str):
        return [servers]
    if isinstance(entries, Iterable) and all(isinstance(entry, str | Mapping) for entry in entries):
        return servers
    raise ValueError('Give a list of commands, URLs or mappings, such as ["python server.py"]')


_Servers = Annotated[list[str | dict[str, Any]] | dict[str, Any], PlainValidator(_read_servers)]


class SubAgentSettings(_Section):
    """A sub-agent: with a description it is defined here, otherwise these are limits of one that the code passes."""

    description: str = Field("", description="when the agent should call it; defines the sub-agent")
    model: str | None = Field(None, description="such as openai:NAME; unset: the main agent's model")
    base_url: str | None = Field(None, description="the address of its model's server")
    instructions: str = ""
    tools: list[str] = Field([], description="names of the agent's tools, of built-in tools and of other sub-agents")
    mcp_servers: _Servers = Field([], description="its own MCP servers, as tools.mcp_servers")
    dialect: str | None = None
    output_formatter: str | None = Field(None, description="a class of its own, as package.module:Name")
    tool_executor: str | None = Field(None, description="the same")
    answer_generator: str | None = Field(None, description="the same")
    max_turns: int | None = Field(None, ge=1)

    @property
    def is_definition(self) -> bool:
        """True if more than limits are set."""
        return bool(self.model_fields_set - {"max_turns"})


_BUDGET_FORM = 'Give limits by key, such as {"team": "100 USD/month"}. To limit each run by itself, set max_cost'


class AgentSettings(_Section):
    """Settings of a run: attempts, turns, budgets, context."""

    context_compress_limit: int = Field(0, ge=0, description="how many more attempts follow one without an answer")
    keep_tool_result: int = Field(
        -1, ge=-1, description="-1 keeps every tool result in the prompt, K at least the last K"
    )
    max_consecutive_rollbacks: int = Field(5, ge=0)
    max_rollbacks: int = Field(30, ge=0, description="in one attempt")
    retry_with_summary: bool = True
    answer_selection: Literal["last", "vote"] = "last"
    max_parallel_calls: int = Field(8, ge=1)
    result_budget: int = Field(4000, ge=64, description="tokens of a tool result that the model sees")
    max_tokens: int | None = Field(None, ge=1, description="input and output tokens of the run")
    max_cost: float | None = Field(None, gt=0, description="US dollars that the run may cost")
    max_seconds: float | None = Field(None, gt=0, description="seconds that the run may take")
    budget: dict[str, str | list[str]] = Field(
        {}, description="limits over all runs by key: team → 100 USD/month, or a list of limits"
    )
    constrain: Literal["auto", "on", "off"] = Field(
        "auto", description="constrained decoding, if the server supports it"
    )
    compaction: bool = Field(
        False, description="let the model sum up a full context also where leaving out results is enough"
    )
    high_water: float = Field(0.8, gt=0, le=1, description="share of the context that triggers eviction of old results")
    low_water: float = Field(0.5, gt=0, le=1, description="share of the context that eviction leaves")
    main_agent: AgentLimits = AgentLimits()
    sub_agents: dict[str, SubAgentSettings] = {}

    @field_validator("budget", mode="before")
    @classmethod
    def _budget(cls, budget: Any) -> Any:
        if not isinstance(budget, Mapping):
            raise ValueError(_BUDGET_FORM)
        if budget:
            from closeout.budget_limits import read_limits

            read_limits(budget)
        return budget


class LLMSettings(_Section):
    """The model, its address, and the options of its requests."""

    provider: Literal["openai", "anthropic", "local"] | None = None
    model_name: str | None = None
    base_url: str | None = None
    api_key: str | None = Field(None, repr=False)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, description="tokens of one reply")
    max_context_length: int | None = Field(None, ge=256, description="tokens of prompt and reply together")
    images: bool | None = Field(None, description="whether the model takes images; unset: as known for its vendor")
    small: bool | None = Field(
        None, description="whether the model behind a server is small and needs worked examples; unset: by its name"
    )
    timeout: float = Field(600.0, gt=0, description="seconds for one reply")
    max_retries: int = Field(5, ge=0)
    extra_body: dict[str, Any] = {}
    prices: dict[str, tuple[float, ...]] = Field(
        {}, description="US dollars per million tokens: model → input, output, cache read, cache write"
    )

    @field_validator("prices", mode="before")
    @classmethod
    def _prices(cls, prices: Any) -> Any:
        if not isinstance(prices, Mapping):
            raise ValueError(_PRICE_FORM)
        return {str(model): _price(entry) for model, entry in prices.items()}


def _price(entry: Any) -> tuple[float, ...]:
    """Return a model's price as a tuple, from a sequence, a mapping or a `Price`."""
    named = asdict(entry) if is_dataclass(entry) and not isinstance(entry, type) else entry
    if isinstance(named, Mapping):
        known = {name: value for name, value in named.items() if value is not None}
        if not {"input", "output"} <= set(known) <= set(_PRICE_NAMES):
            raise ValueError(_PRICE_FORM)
        # A cached token costs as much as an input token unless a price is set.
        named = [known.get(name, known["input"]) for name in _PRICE_NAMES]
    if not isinstance(named, Sequence) or isinstance(named, str) or not 2 <= len(named) <= len(_PRICE_NAMES):
        raise ValueError(_PRICE_FORM)
    numbers = [each for each in named if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) < len(named) or not all(0 <= number < math.inf for number in numbers):
        raise ValueError(_PRICE_FORM)
    return tuple(map(float, numbers))


class WebSettings(_Section):
    """The web tools: where they search, and which model reads pages for them."""

    provider: Literal["searxng", "serper", "tavily", "brave"] | None = Field(
        None, description="unset: the first one whose key or address is in the environment"
    )
    api_key: str | None = Field(None, repr=False, description="or SERPER_API_KEY, TAVILY_API_KEY, BRAVE_API_KEY")
    base_url: str | None = Field(None, description="the provider's address, or SEARXNG_BASE_URL")
    language: str | None = Field(None, description="of the results, such as en or zh; unset: that of the query")
    country: str | None = Field(None, description="of the results, such as us or cn")
    max_results: int = Field(10, ge=1, le=20)
    extract_model: str | None = Field(
        None, description="the model of scrape_and_extract_info; unset: the model of the run"
    )


class AskSettings(_Section):
    """The tool `ask_user`, which waits for a person."""

    max_wait: float | None = Field(None, ge=0, description="seconds; 0: never wait; unset: wait for ever")
    default: str = Field(
        "Nobody answered. Decide by yourself and say what you assumed.",
        description="the answer that the model gets if nobody answers in time",
    )


class PythonSettings(_Section):
    """The tool `run_python`."""

    isolation: Literal["auto", "bubblewrap", "sandbox-exec", "none"] = Field(
        "auto", description="what isolates scripts; auto: what works here, else they are refused; none: your rights"
    )


_Approval = Literal["destructive", "always", "never"]


class SecretSettings(_Section):
    """One secret: see `Secret`."""

    value: str | None = Field(None, repr=False, description="${VAR}; by default the variable of its name in capitals")
    tools: list[str] = Field(description='who may have it: "tool", "server" or "server/tool"')
    hosts: list[str] = Field([], description="the only hosts that it may be sent to")
    description: str = Field("", description="what it is for, told to the model")


class ToolSettings(_Section):
    """Tools in addition to those that the code passes."""

    mcp_servers: _Servers = Field(
        [], description="commands, URLs or mappings with env or headers; or a mapping from names to these"
    )
    blacklist: list[str] = Field([], description='tools to leave out: "name" or "server/name"')
    approval: _Approval | dict[str, _Approval] = Field(
        "destructive",
        description='calls of MCP servers that a person must approve; or by "server" or "server/tool": {files: always}',
    )
    search: Literal["auto", "on", "off"] = Field(
        "auto", description="let the model search for tools; auto: if their definitions exceed tools.search_budget"
    )
    search_budget: int = Field(8000, ge=0, description="tokens of tool definitions that every request may carry")
    secrets: dict[str, SecretSettings] = Field({}, description="values that calls name as secret:NAME")
    ask: AskSettings = AskSettings()
    python: PythonSettings = PythonSettings()
    allow_private_addresses: bool = False
    web: WebSettings = WebSettings()


class JournalSettings(_Section):
    """Settings of a run's record."""

    prompts: bool = Field(
        True, description="record every request as the model saw it, for the viewer and for export; known keys redacted"
    )


_Marker = Literal["thought", "action", "action_input", "observation", "final_answer"]

_AGENT, _LLM, _TOOLS, _JOURNAL = AgentSettings(), LLMSettings(), ToolSettings(), JournalSettings()


class Config(_Section):
    """All settings. `load_config` returns one; `Agent(config=…)` takes one, a mapping, or the path of a YAML file."""

    # Shared by every Config, which is safe because they are frozen; pydantic would copy them each time.
    agent: AgentSettings = Field(default_factory=lambda: _AGENT)
    llm: LLMSettings = Field(default_factory=lambda: _LLM)
    tools: ToolSettings = Field(default_factory=lambda: _TOOLS)
    journal: JournalSettings = Field(default_factory=lambda: _JOURNAL)
    dialect: str = "auto"
    prompts: dict[str, str] = Field({}, description="templates that replace the built-in ones: name → Jinja text")
    markers: dict[_Marker, list[Annotated[str, Field(min_length=1)]]] = Field(
        {}, description='words that the ReAct dialects read as markers beside the English ones: {"action": ["行动"]}'
    )


_DEFAULTS = Config()


def home_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder that stores runs: `CLOSEOUT_HOME`, otherwise the user's data folder."""
    named = (os.environ if environment is None else environment).get("CLOSEOUT_HOME")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("closeout", appauthor=False))


ConfigSource = str | Path | Mapping[str, Any] | Config


def load_config(
    source: ConfigSource | Sequence[ConfigSource] | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings from all sources. A later source overrides an earlier one.

    In files, mappings, variables and overrides, `${VAR}` and `${VAR:-default}` stand for environment variables, except
    in texts for a model.

    Args:
        source: A YAML file, a mapping, or a Config. The environment is in a Config already and is not read again.
            A list of them is merged, key by key; a later one overrides an earlier one.
        overrides: Settings such as `agent.main_agent.max_turns=20`, with YAML values.
        environment: Variables such as `CLOSEOUT_AGENT__MAX_ROLLBACKS=10`, with double underscores for dots; by default
            the process's environment. They override the source; `overrides` override them.
        values: Settings by dotted key, with Python values. They override everything else, except that None
            leaves a setting as it is.

    Raises:
        ConfigError: A key is unknown, a value is not valid, or the source cannot be read.
    """
    variables = os.environ if environment is None else environment
    sources: Sequence[Any] = source if isinstance(source, list | tuple) else [] if source is None else [source]
    tree: dict[str, Any] = {}
    for each in sources:
        _merge(tree, _tree_of(each, variables))
    if any(isinstance(each, Config) for each in sources) and environment is None:
        environment = {}
    written: dict[str, str] = {}  # environment variables by the key that they set
    for name, text in _settings_in(variables if environment is None else environment):
        path = _long(name.removeprefix(ENV_PREFIX).lower().split("__"))
        written[".".join(path)] = name
        _put(tree, path, text, name, variables)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"A setting must be key=value, such as agent.main_agent.max_turns=20, got '{override}'.")
        written.pop(".".join(_long(_path(key.strip()))), None)
        _put(tree, _path(key.strip()), text, key.strip(), variables)
    for key, value in (values or {}).items():
        if value is not None:
            _set(tree, key, value)
    if not tree:
        return _DEFAULTS
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error, written)) from None


def _tree_of(source: ConfigSource, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of one source as a tree."""
    if isinstance(source, Config):
        return source.model_dump(exclude_unset=True)
    if isinstance(source, Mapping):
        tree = _sections(source)
    elif isinstance(source, str | os.PathLike):
        tree = _sections(_read_yaml(Path(source)))
    else:
        raise ConfigError(f"config must be a mapping, the path of a YAML file or a Config, got {source!r:.80}.")
    return {key: _expanded(value, [key], variables) for key, value in tree.items()}


def _expanded(value: Any, path: Sequence[str], variables: Mapping[str, str]) -> Any:
    """Return a setting with its environment variables replaced. Texts for a model stay as they are."""
    if not _VERBATIM.isdisjoint(path):
        return value
    if isinstance(value, dict):
        return {key: _expanded(below, [*path, str(key)], variables) for key, below in value.items()}
    return expand_variables(value, f"The setting '{'.'.join(path)}'", variables)


def _merge(tree: dict[str, Any], later: Mapping[str, Any]) -> None:
    """Put the settings of a later source over those of a tree."""
    for key, value in later.items():
        below = tree.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping):
            _merge(below, value)
        else:
            tree[key] = value


def _sections(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy as a tree, dotted keys in their sections and empty sections left out."""
    copied = _copied(source)
    tree = {key: value for key, value in copied.items() if "." not in key and value is not None}
    for key, value in copied.items():
        if "." in key:
            _set(tree, key, value)
    agent = tree.get("agent")
    if isinstance(agent, dict) and "max_turns" in agent:
        turns = agent.pop("max_turns")
        _branch(tree, _MAX_TURNS, "agent.max_turns").setdefault("max_turns", turns)
    return tree


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): _copied(value) if isinstance(value, Mapping) else value for key, value in source.items()}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)  # a device may be endless
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"The configuration file {path} is larger than {MAX_FILE_BYTES:,} bytes. Check the path.")
        tree = _parsed(data.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The configuration file {path} is not UTF-8 text.") from None
    except _NotYaml as error:
        raise ConfigError(f"The configuration file {path} {error}.") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"The configuration file {path} must contain keys and values, such as 'agent:' and 'llm:'.")
    return tree


class _NotYaml(Exception):
    """The text is not usable YAML. The message continues the name of the text: "is not valid YAML at line 3"."""


def _parsed(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        _NotYaml: It is not valid, has a key twice, or its aliases expand to too many values.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_VALUES:
            raise _NotYaml(f"is not valid YAML: its aliases expand to more than {MAX_VALUES:,} values")
        if (twice := _duplicate_key(node)) is not None:
            line = twice.start_mark.line + 1
            raise _NotYaml(f"has the key '{twice.value}' a second time at line {line}. Merge the two")
        return loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date such as 2026-13-01
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else f": {str(error).partition(chr(10))[0]}"
        raise _NotYaml(f"is not valid YAML{where}") from None


def _size(node: Any, known: dict[int, float]) -> float:
    """Return how many values a node has with its aliases expanded; infinite if it contains itself."""
    found = known.get(id(node))
    if found is None:
        known[id(node)] = float("inf")
        below = () if isinstance(node.value, str) else node.value  # A mapping's value is pairs.
        parts = (part for each in below for part in (each if isinstance(each, tuple) else (each,)))
        found = known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return found


def _duplicate_key(root: Any) -> Any:
    """Return a key that its mapping contains twice, or None. The tree must be finite: see `_size`."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.id == "sequence":
            waiting += node.value
        elif node.id == "mapping":
            names = set()
            for key, value in node.value:
                if key.id == "scalar" and key.value in names:
                    return key
                if key.id == "scalar":
                    names.add(key.value)
                waiting.append(value)
    return None


def _settings_in(environment: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for name in sorted(environment):
        if name.startswith(ENV_PREFIX) and name not in _NOT_SETTINGS:
            yield name, environment[name]


def _put(tree: dict[str, Any], path: list[str], text: str, name: str, variables: Mapping[str, str]) -> None:
    path = _long(path)
    branch = _branch(tree, path, name)
    try:
        value = _parsed(text)
    except _NotYaml:
        value = text
    # An API key of digits is a string.
    if path in _API_KEYS and not isinstance(value, str | None):
        value = text
    branch[path[-1]] = _expanded(value, path, variables)


def _long(path: list[str]) -> list[str]:
    return list(_MAX_TURNS) if path == ["agent", "max_turns"] else path


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    path = _path(key)
    _branch(tree, path, key)[path[-1]] = value


def _path(key: str) -> list[str]:
    """Return the parts of a dotted key. A model name in `llm.prices` may contain dots."""
    path = key.split(".")
    return [*path[:2], ".".join(path[2:])] if path[:2] == ["llm", "prices"] and len(path) > 2 else path


def _branch(tree: dict[str, Any], path: Sequence[str], name: str) -> dict[str, Any]:
    """Return the section that a key belongs to; create it if it is missing."""
    for part in path[:-1]:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"'{name}': '{part}' is a value, not a section.")
        tree = branch
    return tree


def _explain(error: ValidationError, written: Mapping[str, str]) -> str:
    """Return the sentence for a wrong setting. One from the environment is named as its variable."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    dotted = ".".join(path)
    variable = written.get(dotted)
    shown = variable or dotted
    if first["type"] in ("model_type", "dict_type"):
        if dotted in known_keys():
            return f"'{shown}' must be a mapping such as {{a: 1}}, got {first['input']!r:.80}."
        example = _first_key(dotted)
        example = _variable(example) if variable else example
        return f"'{shown}' is a section. Set its keys, such as '{example}'."
    if path in _API_KEYS:
        return f"'{shown}' must be a string. In a file, put it in quotes."
    if first["type"] != "extra_forbidden":
        wrong = first["msg"].removeprefix("Value error, ")
        return f"Invalid value for '{shown}': {first['input']!r:.80}. {wrong}."
    known = [*known_keys(), "agent.max_turns"]
    if path[:2] == ["agent", "sub_agents"] and len(path) > 2:
        known = [key.replace("NAME", path[2]) for key in known]
    near = difflib.get_close_matches(dotted, known, n=1, cutoff=0.5)
    likely = [_variable(key) if variable else key for key in near]
    hint = f" Did you mean '{likely[0]}'?" if near else " `closeout config` lists the keys."
    return f"Unknown setting '{shown}'.{hint}"


def _variable(key: str) -> str:
    """Return the environment variable that sets a key."""
    return ENV_PREFIX + key.replace(".", "__").upper()


def _first_key(section: str) -> str:
    return next((key for key in known_keys() if key.startswith(f"{section}.")), section)


def known_keys() -> list[str]:
    """Return every dotted key in order; `NAME` is a placeholder for a sub-agent's name."""
    return list(_keys(Config))


def _keys(section: type[BaseModel], prefix: str = "") -> Iterable[str]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if name == "sub_agents":
            yield from _keys(SubAgentSettings, f"{prefix}{name}.NAME.")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name
