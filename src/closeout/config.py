"""The one settings model: where values come from (YAML file, environment, dotted overrides), what is wrong with them.

What settings do lives in the rooms that use them.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from closeout.errors import ConfigError

__all__ = ["AgentLimits", "AgentSettings", "Config", "LLMSettings", "ToolSettings", "home_folder", "load_config"]

ENV_PREFIX = "CLOSEOUT_"
MAX_FILE_BYTES = 1_000_000
MAX_VALUES = 100_000  # of a configuration, aliases written out
_KEY = ["llm", "api_key"]
_MAX_TURNS = ("agent", "main_agent", "max_turns")  # what `agent.max_turns`, the key that everybody types first, means
_PRICE_NAMES = ("input", "output", "cache_read", "cache_write")
_PRICE_FORM = (
    "Give US dollars per million tokens for each model, input and output, then cache read and write if they differ: "
    "{my-model: [0.5, 2.0, 0.05]} or {my-model: {input: 0.5, output: 2.0, cache_read: 0.05}}"
)
# Environment names that are not settings: where runs are kept, and switches of the design's own world.
_NOT_SETTINGS = frozenset({"CLOSEOUT_HOME", "CLOSEOUT_MODELS", "CLOSEOUT_DEBUG"})


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default where there is no such key (as mappings do)."""
        return getattr(self, key, default)


class AgentLimits(_Section):
    """Limits of the main agent or of one sub-agent."""

    max_turns: int = Field(50, ge=1)


class AgentSettings(_Section):
    """How a run is led: attempts, turns, budgets, context."""

    context_compress_limit: int = Field(0, ge=0, description="further attempts after one that ends without an answer")
    keep_tool_result: int = Field(-1, ge=-1, description="-1 keeps every tool result in view, K at least the last K")
    max_consecutive_rollbacks: int = Field(5, ge=0)
    max_rollbacks: int = Field(30, ge=0, description="in all, over one attempt")
    retry_with_summary: bool = True
    answer_selection: Literal["last", "vote"] = "last"
    max_parallel_calls: int = Field(8, ge=1)
    result_budget: int = Field(4000, ge=64, description="tokens of one tool result that the model sees")
    max_tokens: int | None = Field(None, ge=1, description="input and output tokens of the whole run")
    max_cost: float | None = Field(None, gt=0, description="US dollars of the whole run")
    max_seconds: float | None = Field(None, gt=0, description="wall clock of the whole run")
    constrain: Literal["auto", "on", "off"] = Field("auto", description="constrained decoding where the server has it")
    compaction: bool = Field(False, description="let the model sum up the oldest part of a full context")
    high_water: float = Field(0.8, gt=0, le=1, description="share of the context at which old results are evicted")
    low_water: float = Field(0.5, gt=0, le=1, description="share of the context down to which they are evicted")
    main_agent: AgentLimits = AgentLimits()
    sub_agents: dict[str, AgentLimits] = {}


class LLMSettings(_Section):
    """Which model, where it is, and how it is asked."""

    provider: Literal["openai", "anthropic", "local"] | None = None
    model_name: str | None = None
    base_url: str | None = None
    api_key: str | None = Field(None, repr=False)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1, description="of one reply")
    max_context_length: int | None = Field(None, ge=256, description="tokens of prompt and reply together")
    images: bool | None = Field(None, description="whether the model takes images; unset: as its vendor is known to")
    timeout: float = Field(600.0, gt=0, description="seconds for one reply")
    max_retries: int = Field(5, ge=0)
    extra_body: dict[str, Any] = {}
    prices: dict[str, tuple[float, ...]] = Field(
        {}, description="US dollars per million tokens: model → input, output, cache read, cache write"
    )

    @field_validator("prices", mode="before")
    @classmethod
    def _prices(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            raise ValueError(_PRICE_FORM)
        return {str(model): _price(entry) for model, entry in given.items()}


def _price(entry: Any) -> tuple[float, ...]:
    """A model's price as a tuple: from one, from a mapping, or from a `Price`. Raises ValueError."""
    named = asdict(entry) if is_dataclass(entry) and not isinstance(entry, type) else entry
    if isinstance(named, Mapping):
        known = {name: value for name, value in named.items() if value is not None}
        if not {"input", "output"} <= set(known) <= set(_PRICE_NAMES):
            raise ValueError(_PRICE_FORM)
        # A cache costs as input where nothing is said of it.
        named = [known.get(name, known["input"]) for name in _PRICE_NAMES]
    if not isinstance(named, Sequence) or isinstance(named, str) or not 2 <= len(named) <= len(_PRICE_NAMES):
        raise ValueError(_PRICE_FORM)
    numbers = [each for each in named if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) < len(named) or not all(0 <= number < math.inf for number in numbers):
        raise ValueError(_PRICE_FORM)
    return tuple(map(float, numbers))


class ToolSettings(_Section):
    """Which tools there are beside those given in code."""

    mcp_servers: list[str | dict[str, Any]] | dict[str, Any] = Field(
        [], description="commands, URLs, mappings with env or headers; or, as a mapping, one of these by its name"
    )
    blacklist: list[str] = Field([], description='tools that are not offered: "name" or "server/name"')
    allow_private_addresses: bool = False

    @field_validator("mcp_servers", mode="plain")
    @classmethod
    def _servers(cls, given: Any) -> Any:
        entries = given.values() if isinstance(given, Mapping) else given
        if isinstance(given, str):
            return [given]
        if isinstance(entries, Iterable) and all(isinstance(entry, str | Mapping) for entry in entries):
            return given
        raise ValueError('Give a list of commands, URLs or mappings, such as ["python server.py"]')


_AGENT, _LLM, _TOOLS = AgentSettings(), LLMSettings(), ToolSettings()


class Config(_Section):
    """All settings. `load_config` makes one; `Agent(config=…)` takes one, a mapping, or a YAML file's path."""

    # Frozen, so that every Config may share the defaults; pydantic would copy them each time.
    agent: AgentSettings = Field(default_factory=lambda: _AGENT)
    llm: LLMSettings = Field(default_factory=lambda: _LLM)
    tools: ToolSettings = Field(default_factory=lambda: _TOOLS)
    dialect: str = "auto"
    prompts: dict[str, str] = Field({}, description="templates that replace the package's: name → Jinja text")


_DEFAULTS = Config()


def home_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where runs are kept: `CLOSEOUT_HOME`, else the user's data folder."""
    named = (os.environ if environment is None else environment).get("CLOSEOUT_HOME")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("closeout", appauthor=False))


def load_config(
    source: str | Path | Mapping[str, Any] | Config | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Config:
    """One `Config` from a YAML file or mapping, then `CLOSEOUT_…` variables, then dotted overrides, then `values`.

    The last wins. `values` are settings by their dotted keys, as Python values.

    A variable names its key with double underscores for the dots: `CLOSEOUT_AGENT__MAX_ROLLBACKS=10`. An override is
    `agent.main_agent.max_turns=20`, its value read as YAML. Raises ConfigError that names the key, the nearest known
    one, or what is wrong with the value.
    """
    if isinstance(source, Config):
        tree: dict[str, Any] = source.model_dump(exclude_unset=True)
    elif isinstance(source, Mapping):
        tree = _sections(source)
    elif isinstance(source, str | os.PathLike):
        tree = _sections(_read_yaml(Path(source)))
    elif source is None:
        tree = {}
    else:
        raise ConfigError(f"{source!r:.80} is no configuration. Give a mapping, the path of a YAML file, or a Config.")
    for name, text in _settings_in(os.environ if environment is None else environment):
        _put(tree, name.split("__"), text, name)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"'{override}' is no setting. Write key=value, for example agent.main_agent.max_turns=20."
            )
        _put(tree, _path(key.strip()), text, key.strip())
    for key, value in (values or {}).items():
        _set(tree, key, value)
    if not tree:
        return _DEFAULTS
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _sections(source: Mapping[str, Any]) -> dict[str, Any]:
    """A copy by sections: dotted keys put into theirs, sections that hold nothing left out."""
    given = _copied(source)
    tree = {key: value for key, value in given.items() if "." not in key and value is not None}
    for key, value in given.items():
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
            data = file.read(MAX_FILE_BYTES + 1)  # a device may have no end
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"The configuration file {path} has more than {MAX_FILE_BYTES:,} bytes. Is it one?")
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
        raise ConfigError(f"The configuration file {path} must hold keys and values, such as 'agent:' and 'llm:'.")
    return tree


class _NotYaml(Exception):
    """A text that is no YAML, or none to be read: what of it, ready to follow its name."""


def _parsed(text: str) -> Any:
    """The value of a YAML text. Raises `_NotYaml`, for one too whose aliases stand for more than they should."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_VALUES:
            raise _NotYaml(f"is not valid YAML: its aliases stand for more than {MAX_VALUES:,} values")
        if (twice := _given_twice(node)) is not None:
            line = twice.start_mark.line + 1
            raise _NotYaml(
                f"has '{twice.value}' a second time at line {line}, and only the last would count. "
                "Put what belongs to it in one place"
            )
        return loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date such as 2026-13-01
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else f": {str(error).partition(chr(10))[0]}"
        raise _NotYaml(f"is not valid YAML{where}") from None


def _size(node: Any, known: dict[int, float]) -> float:
    """How many values a node stands for once each alias is written out; one within itself has no end."""
    found = known.get(id(node))
    if found is None:
        known[id(node)] = float("inf")
        below = () if isinstance(node.value, str) else node.value  # of a mapping: pairs
        parts = (part for each in below for part in (each if isinstance(each, tuple) else (each,)))
        found = known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return found


def _given_twice(root: Any) -> Any:
    """A key of a YAML tree that its own mapping has already, or None. The tree must have an end: see `_size`."""
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
            yield name.removeprefix(ENV_PREFIX).lower(), environment[name]


def _put(tree: dict[str, Any], path: list[str], text: str, name: str) -> None:
    if path == ["agent", "max_turns"]:
        path = list(_MAX_TURNS)
    branch = _branch(tree, path, name)
    try:
        value = _parsed(text)
    except _NotYaml:
        value = text
    # A key of digits is no number.
    branch[path[-1]] = text if path == _KEY and not isinstance(value, str | None) else value


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    path = _path(key)
    _branch(tree, path, key)[path[-1]] = value


def _path(key: str) -> list[str]:
    """A dotted key by its parts. The name of a model that has a price may have dots of its own."""
    path = key.split(".")
    return [*path[:2], ".".join(path[2:])] if path[:2] == ["llm", "prices"] and len(path) > 2 else path


def _branch(tree: dict[str, Any], path: Sequence[str], name: str) -> dict[str, Any]:
    """The section of the tree that a key belongs to, made if it is not there."""
    for part in path[:-1]:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"'{name}': '{part}' is a value, not a section.")
        tree = branch
    return tree


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]]
    dotted = ".".join(path)
    if first["type"] in ("model_type", "dict_type"):
        if dotted in known_keys():
            return f"The setting '{dotted}' takes keys with values, such as {{a: 1}} (it is {first['input']!r:.80})."
        return f"'{dotted}' is a section with keys of its own, such as '{_first_key(dotted)}'."
    if path == _KEY:
        return "The setting 'llm.api_key' does not fit: it must be text. In a file, put it in quotes."
    if first["type"] != "extra_forbidden":
        wrong = first["msg"].removeprefix("Value error, ")
        return f"The setting '{dotted}' does not fit: {wrong} (it is {first['input']!r:.80})."
    near = difflib.get_close_matches(dotted, [*known_keys(), "agent.max_turns"], n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else " `closeout config` lists the keys."
    return f"There is no setting '{dotted}'.{hint}"


def _first_key(section: str) -> str:
    return next((key for key in known_keys() if key.startswith(f"{section}.")), section)


def known_keys() -> list[str]:
    """Every dotted key, in order; `NAME` stands for a sub-agent's name."""
    return list(_keys(Config))


def _keys(section: type[BaseModel], prefix: str = "") -> Iterable[str]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if name == "sub_agents":
            yield from _keys(AgentLimits, f"{prefix}{name}.NAME.")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name
