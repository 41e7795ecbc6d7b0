"""Settings: their model, and where it is read from: YAML files, the environment and dotted overrides."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)

from closeout.errors import ConfigError
from closeout.homes import Home, as_home, data_folder
from closeout.miroflow_settings import in_our_keys
from closeout.redaction import redact
from closeout.settings_tree import API_KEYS, ENV_PREFIX, Origin, SettingsTree, nearest, settings_in

__all__ = [
    "AgentLimits",
    "AgentParts",
    "AgentSettings",
    "AskSettings",
    "CheckSettings",
    "Config",
    "FallbackSettings",
    "LLMSettings",
    "PythonSettings",
    "SubAgentSettings",
    "TextFile",
    "ToolSettings",
    "WebSettings",
    "WebhookSettings",
    "anchor_paths",
    "anchored_name",
    "home_folder",
    "load_config",
    "load_settings",
]

_PRICE_NAMES = ("input", "output", "cache_read", "cache_write")
_PRICE_FORM = (
    "Give US dollars per million tokens for each model, input and output, then cache read and write if they differ: "
    "{my-model: [0.5, 2.0, 0.05]} or {my-model: {input: 0.5, output: 2.0, cache_read: 0.05}}"
)


_NUMBER = {"type": "number", "minimum": 0}
_PRICES = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [
            {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": len(_PRICE_NAMES)},
            {
                "type": "object",
                "properties": dict.fromkeys(_PRICE_NAMES, _NUMBER),
                "required": ["input", "output"],
                "additionalProperties": False,
            },
        ]
    },
}


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


_Servers = Annotated[
    list[str | dict[str, Any]] | dict[str, Any],
    PlainValidator(_read_servers, str | list[str | dict[str, Any]] | dict[str, str | dict[str, Any]]),
]


class TextFile(_Section):
    """A text in a file."""

    file: str


class CheckSettings(_Section):
    """A check of answers, and what follows if it keeps failing: see `Check`."""

    function: str
    times: int = Field(2, ge=0)
    then: Literal["accept", "unanswered"] = "accept"


def _read_text(value: Any) -> Any:
    if isinstance(value, str | TextFile):
        return value
    if isinstance(value, Mapping) and value.keys() == {"file"} and isinstance(value["file"], str):
        return TextFile(file=value["file"])
    raise ValueError("Give a text, or the file that holds it: {file: instructions.md}")


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _read_checks(value: Any) -> Any:
    several = value if isinstance(value, list | tuple) else [value]
    return [_read_check(each) for each in several]


def _read_check(value: Any) -> Any:
    if isinstance(value, str | CheckSettings):
        return value
    if isinstance(value, Mapping) and "function" in value and value.keys() <= CheckSettings.model_fields.keys():
        return CheckSettings(**value)
    raise ValueError("Give a function as package.module:name, or {function: …, times: 2, then: accept | unanswered}")


_BUDGET_FORM = 'Give limits by key, such as {"team": "100 USD/month"}. To limit each run by itself, set max_cost'


def _read_budget(budget: Any) -> Any:
    if not isinstance(budget, Mapping):
        raise ValueError(_BUDGET_FORM)
    if budget:
        from closeout.budget_limits import read_limits

        read_limits(budget)
    return budget


_Limits = dict[str, str | list[str]]
_Budget = Annotated[_Limits, BeforeValidator(_read_budget, _Limits)]
_Text = Annotated[str | TextFile, BeforeValidator(_read_text, str | TextFile)]
_Several = Annotated[list[str], BeforeValidator(_one_or_more, str | list[str])]
_Checks = Annotated[
    list[str | CheckSettings],
    BeforeValidator(_read_checks, str | CheckSettings | list[str | CheckSettings]),
]


class AgentParts(_Section):
    """The parts of the main agent and of a sub-agent. `MODULE:NAME` is a function or class of yours."""

    instructions: _Text = Field("", description="the system prompt: a text, or {file: PATH}")
    tools: _Several = Field([], description="built-in tools by name, and functions as package.module:name")
    documents: str | None = Field(None, description="a folder of documents to search and read")
    skills: _Several = Field([], description="folders of skills")
    answer: str | dict[str, Any] | None = Field(
        None, description="number, choice:A,B, json:SCHEMA.json, … or package.module:Class; or a JSON Schema"
    )
    check: _Checks = Field([], description="functions that say what is wrong with an answer: package.module:name")
    strategy: str | None = Field(
        None,
        description="how the model is asked: majority:N, call_first:TOOL, require_call, small_model, module:Name",
    )
    budget: _Budget = Field({}, description="limits over all runs by key: team → 100 USD/month, or a list of limits")
    code_mode: bool = Field(False, description="let the model write programs that call the tools")
    output_formatter: str | None = Field(None, description="a class, as package.module:Name")
    tool_executor: str | None = Field(None, description="the same")
    answer_generator: str | None = Field(None, description="the same")


class SubAgentSettings(AgentParts):
    """A sub-agent: with a description it is defined here, otherwise these are limits of one that the code passes."""

    description: str = Field("", description="when the agent should call it; defines the sub-agent")
    model: str | None = Field(None, description="such as openai:NAME; unset: the main agent's model")
    base_url: str | None = Field(None, description="the address of its model's server")
    tools: _Several = Field(
        [], description="tools of the agent, built-in tools and other sub-agents by name; or package.module:name"
    )
    mcp_servers: _Servers = Field([], description="its own MCP servers, as tools.mcp_servers")
    dialect: str | None = None
    max_turns: int | None = Field(None, ge=1)

    @property
    def is_definition(self) -> bool:
        """True if more than limits are set."""
        return bool(self.model_fields_set - {"max_turns"})


class TaskTemplateSettings(_Section):
    """A task with slots: a prompt of the served agent for MCP clients, and a command of `closeout chat`."""

    text: str = Field(description="the task, with slots in Jinja: Plan a trip to {{ city }}.")
    description: str = Field("", description="what it is for")
    arguments: dict[str, str | list[str]] = Field({}, description="by slot, its description or its values")


# The beginnings of answers and strategies that are not modules.
_FORMS = frozenset({"choice", "json", "yaml", "tagged", "majority", "call_first"})


class AgentSettings(AgentParts):
    """The agent: its parts, and the limits of its runs: attempts, turns, budgets, context."""

    name: str | None = Field(None, description="the agent's name in records and traces")
    listeners: _Several = Field(
        [], description="what receives the events of every run, as package.module:Name, such as OpenTelemetry's"
    )
    handoffs: _Several = Field(
        [], description="agents that the conversation may be handed over to: names of sub_agents, package.module:agent"
    )
    deps_type: str | None = Field(None, description="the class of the dependencies of a run: package.module:Class")
    deps: str | None = Field(
        None,
        description="package.module:name, which makes the dependencies of a command's run from its ClientRequest",
    )
    deps_headers: _Several = Field([], description="the headers of a request that it reads, recorded with the run")
    task_templates: dict[str, str | TaskTemplateSettings] = Field(
        {}, description="by name, the text of a task with slots, or a mapping with text, description and arguments"
    )
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


class FallbackSettings(_Section):
    """The models that are asked where the first one cannot answer: see `Fallback`."""

    models: list[str | dict[str, Any]] = Field(
        [], description="in order of preference: names, or mappings with model, base_url and api_key"
    )
    conditions: list[str] | None = Field(  # YAML reads `on` as true
        None, description="when the next is asked: refusal, overload, rate_limit, time, context; unset: all"
    )
    seconds: float | None = Field(None, gt=0, description="how long a reply may take")
    max_cost: float | None = Field(None, gt=0, description="US dollars that a run may spend on one model")
    malformed: int | None = Field(None, ge=1, description="malformed replies of a turn after which the next is asked")


def _read_fallback(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        return {"models": [value] if isinstance(value, str) else list(value)}
    return value


_Fallback = Annotated[
    FallbackSettings, BeforeValidator(_read_fallback, str | list[str | dict[str, Any]] | FallbackSettings)
]
_NO_FALLBACK = FallbackSettings()


def _read_prices(prices: Any) -> Any:
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


_Prices = Annotated[dict[str, tuple[float, ...]], BeforeValidator(_read_prices), WithJsonSchema(_PRICES)]


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
    fallback: _Fallback = Field(
        default_factory=lambda: _NO_FALLBACK, description="models to ask where this one cannot answer"
    )
    timeout: float = Field(600.0, gt=0, description="seconds for one reply")
    max_retries: int = Field(5, ge=0)
    max_wait: float = Field(
        300.0, ge=0, description="seconds to wait where a server asks for it; a run that is kept waits longer suspended"
    )
    extra_body: dict[str, Any] = {}
    prices: _Prices = Field(
        {}, description="US dollars per million tokens: model → input, output, cache read, cache write"
    )


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
        None, description="the model of scrape_and_extract_info and extract; unset: the model of the run"
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
    keep_variables: bool = Field(False, description="whether a script's variables are there for the run's next one")


_Approval = Literal["destructive", "always", "never"]


class SecretSettings(_Section):
    """One secret: see `Secret`."""

    value: str | None = Field(None, repr=False, description="${VAR}; by default the variable of its name in capitals")
    tools: list[str] = Field(description='who may have it: "tool", "server" or "server/tool"')
    hosts: list[str] = Field([], description="the only hosts that it may be sent to")
    description: str = Field("", description="what it is for, told to the model")


class ToolModelSettings(_Section):
    """The model that a tool asks."""

    model: str = Field(description="such as openai:NAME")
    base_url: str | None = None
    api_key: str | None = Field(None, repr=False)


def _read_tool_model(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


_ToolModel = Annotated[ToolModelSettings, BeforeValidator(_read_tool_model, str | ToolModelSettings)]


class ToolSettings(_Section):
    """Tools in addition to those that the code passes."""

    mcp_servers: _Servers = Field(
        [], description="commands, URLs or mappings with env or headers; or a mapping from names to these"
    )
    mcp_lock: str | None = Field(
        None, description="the lock file of `closeout mcp pin`: servers whose tools have changed since are not used"
    )
    blacklist: list[str] = Field([], description='tools to leave out: "name" or "server/name"')
    approval: _Approval | dict[str, _Approval] = Field(
        "destructive",
        description='calls of MCP servers that a person must approve; or by "server" or "server/tool": {files: always}',
    )
    approved: list[dict[str, Any]] = Field(
        [], description="rules that approve calls in a person's place, as `closeout approvals suggest` writes them"
    )
    search: Literal["auto", "on", "off"] = Field(
        "auto", description="let the model search for tools; auto: if their definitions exceed tools.search_budget"
    )
    search_budget: int = Field(8000, ge=0, description="tokens of tool definitions that every request may carry")
    models: dict[str, _ToolModel] = Field({}, description="by tool, the model that it asks; unset: the agent's own")
    secrets: dict[str, SecretSettings] = Field({}, description="values that calls name as secret:NAME")
    ask: AskSettings = AskSettings()
    python: PythonSettings = PythonSettings()
    allow_private_addresses: bool = False
    web: WebSettings = WebSettings()


class JournalSettings(_Section):
    """Settings of a run's record."""

    keep_days: float | None = Field(
        None,
        gt=0,
        description="delete runs that ended more days ago: by `closeout serve` every day, and by `closeout runs prune`",
    )
    prompts: bool = Field(
        True, description="record every request as the model saw it, for the viewer and for export; known keys redacted"
    )


_FlowGuard = Literal["ask", "refuse", "allow"]


class FlowSettings(_Section):
    """Flow rules: see `Flow`. Tools are named "tool"; those of servers "server" or "server/tool"."""

    trusted: list[str] = Field([], description="the tools whose results are trusted")
    guard: _FlowGuard | dict[str, _FlowGuard] = Field(
        "ask", description='what becomes of a guarded call; or by tool, with "*" for all others: {pay: refuse}'
    )
    effects: dict[str, Literal["local", "reversible", "outside"]] = Field(
        {}, description="by tool, what a call changes, in place of what the tool says"
    )
    free: tuple[Literal["local", "reversible"], ...] = Field(
        ("local", "reversible"), description="the effects that a call may have after untrusted text was read"
    )
    allow: dict[str, Literal["untrusted"] | list[str]] = Field(
        {}, description='by tool, the parameters that may be untrusted in programs; or "untrusted": the whole call'
    )
    labels: dict[str, list[str]] = Field({}, description="by tool, the labels of its results")
    accepts: dict[str, list[str]] = Field({}, description="by tool, the labels that it may have")
    policies: list[str] = Field([], description='functions of a call and its labels: "module:function"')
    ask: Literal["calls", "plans"] = Field("calls", description="ask about each call, or once about a whole program")
    trust_files: bool = Field(False, description="the contents of the task's files are trusted")
    trust_history: bool = Field(False, description="the messages before the task are trusted")


class WebhookSettings(_Section):
    """Where the ends of runs are announced: see `Webhook`."""

    url: str = Field(description="the address of the receiver")
    secret: str = Field(repr=False, description="the key of the signature in Base64: ${VAR}")
    events: list[Literal["ended", "waiting"]] = Field(["ended", "waiting"], description="what is announced")
    allow_private: bool | list[str] = Field(False, description="true, or private networks that the receiver may be in")


class ScheduleSettings(_Section):
    """A recurring run, which `closeout work` and `closeout serve` begin."""

    task: str
    every: str = Field(description='a cron expression: "0 7 * * 1-5"')
    timezone: str = "UTC"
    user: str | None = None
    priority: int | None = None


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
    flow: FlowSettings | None = Field(None, description="rules on calls that depend on text that nobody vouches for")
    schedules: dict[str, ScheduleSettings] = Field({}, description="recurring runs by name: task, every, timezone")
    webhook: WebhookSettings | None = Field(None, description="where the ends and waits of runs are announced")
    prompts: dict[str, str] = Field({}, description="templates that replace the built-in ones: name → Jinja text")
    markers: dict[_Marker, list[Annotated[str, Field(min_length=1)]]] = Field(
        {}, description='words that the ReAct dialects read as markers beside the English ones: {"action": ["行动"]}'
    )


_DEFAULTS = Config()


def home_folder(named: Home | str | None = None, *, environment: Mapping[str, str] | None = None) -> Home:
    """Return the named home of runs, else `CLOSEOUT_HOME`, a folder or a database, else the user's data folder."""
    named = named or (os.environ if environment is None else environment).get("CLOSEOUT_HOME")
    return as_home(named) if named else data_folder()


ConfigSource = str | Path | Mapping[str, Any] | Config


def load_config(
    source: ConfigSource | Sequence[ConfigSource] | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
    profile: str | None = None,
) -> Config:
    """Return the settings from all sources. A later source overrides an earlier one.

    In files, mappings, variables and overrides, `${VAR}` and `${VAR:-default}` stand for environment variables, except
    in texts for a model. Relative paths in a file are relative to its folder.

    Args:
        source: A YAML file, a mapping, or a Config. The environment is in a Config already and is not read again.
            A list of them is merged, key by key; a later one overrides an earlier one.
        overrides: Settings such as `agent.main_agent.max_turns=20`, with YAML values.
        environment: Variables such as `CLOSEOUT_AGENT__MAX_ROLLBACKS=10`, with double underscores for dots; by default
            the process's environment. They override the source; `overrides` override them.
        values: Settings by dotted key, with Python values. They override everything else, except that None
            leaves a setting as it is.
        profile: The profile of the sources to use: the settings under `profiles` and this name. Defaults to the
            variable CLOSEOUT_PROFILE.

    Raises:
        ConfigError: A key is unknown, a value is not valid, there is no such profile, or the source cannot be read.
    """
    return load_settings(source, overrides, environment, values, profile)[0]


def load_settings(
    source: ConfigSource | Sequence[ConfigSource] | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
    profile: str | None = None,
) -> tuple[Config, SettingsTree]:
    """Return the settings, and the tree that knows where each was written. The arguments are those of `load_config`.

    Raises:
        ConfigError: As for `load_config`.
    """
    variables = os.environ if environment is None else environment
    sources: Sequence[Any] = source if isinstance(source, list | tuple) else [] if source is None else [source]
    tree = SettingsTree(
        variables,
        profile=variables.get("CLOSEOUT_PROFILE", "") if profile is None else profile,
        required=profile is not None,
        anchor=anchor_paths,
    )
    for each in sources:
        if isinstance(each, Config):
            tree.add_checked(each.model_dump(exclude_unset=True))
        elif isinstance(each, Mapping | str | os.PathLike):
            tree.add(each)
        else:
            raise ConfigError(f"config must be a mapping, the path of a YAML file or a Config, got {each!r:.80}.")
    tree.check_profile()
    # A Config has the settings of the process's environment already.
    is_read = environment is None and any(isinstance(each, Config) for each in sources)
    for name, text, keys in () if is_read else settings_in(variables):
        tree.put(keys, text, name, Origin("environment", name))
    for override in overrides:
        tree.put_override(override)
    for key, value in (values or {}).items():
        if value is not None:
            tree.set(key, value)
    in_our_keys(tree.values)
    _check_keys(tree)
    if not tree.values:
        return _DEFAULTS, tree
    try:
        return Config.model_validate(tree.values), tree
    except ValidationError as error:
        raise ConfigError(_explain(error.errors(include_url=False)[0], tree.origins)) from None


def anchor_paths(tree: dict[str, Any], folder: Path) -> None:
    """Make the relative paths in the settings of a file relative to its folder.

    Args:
        tree: The settings, which are changed. What is of a wrong type stays as it is.
        folder: The folder of the file.
    """
    agent = tree.get("agent")
    if isinstance(agent, dict):
        _anchor_parts(agent, folder)
        below = agent.get("sub_agents")
        for entry in below.values() if isinstance(below, dict) else ():
            if isinstance(entry, dict):
                _anchor_parts(entry, folder)
                _change(entry, "mcp_servers", lambda servers: _anchored_servers(servers, folder))
                _change(entry, "model", lambda name: _anchored_weights(name, folder))
    tools, llm = tree.get("tools"), tree.get("llm")
    if isinstance(tools, dict):
        _change(tools, "mcp_servers", lambda servers: _anchored_servers(servers, folder))
        _change(tools, "mcp_lock", lambda path: _anchored(path, folder))
    if isinstance(llm, dict):
        _change(llm, "model_name", lambda name: _anchored_weights(name, folder))


def _anchor_parts(parts: dict[str, Any], folder: Path) -> None:
    def named(value: Any) -> Any:
        return anchored_name(value, folder)

    def check(value: Any) -> Any:
        return {**value, "function": named(value.get("function"))} if isinstance(value, dict) else named(value)

    def text(value: Any) -> Any:
        return {key: _anchored(each, folder) for key, each in value.items()} if isinstance(value, dict) else value

    def answer(value: Any) -> Any:
        kind, colon, details = value.partition(":") if isinstance(value, str) else ("", "", "")
        schema = kind in ("json", "yaml") and details
        return f"{kind}{colon}{_anchored(details.strip(), folder)}" if schema else named(value)

    _change(parts, "instructions", text)
    _change(parts, "answer", answer)
    for key in ("documents", "skills"):
        _change(parts, key, lambda value: _each(value, lambda path: _anchored(path, folder)))
    classes = ("output_formatter", "tool_executor", "answer_generator", "deps_type")
    for key in ("tools", "handoffs", "listeners", "strategy", "deps", *classes):
        _change(parts, key, lambda value: _each(value, named))
    _change(parts, "check", lambda value: _each(value, check))


def _change(section: dict[str, Any], key: str, change: Callable[[Any], Any]) -> None:
    if section.get(key) is not None:
        section[key] = change(section[key])


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return [change(each) for each in value] if isinstance(value, list) else change(value)


def _anchored(path: Any, folder: Path) -> Any:
    """Return an absolute path for one that is relative to a folder."""
    return (folder / Path(path).expanduser()).as_posix() if isinstance(path, str) and path else path


def anchored_name(name: Any, folder: Path) -> Any:
    """Return the name of an object with its folder, if its module is a file there: `FOLDER/package.module:Name`."""
    if not isinstance(name, str) or ":" not in name or name.partition(":")[0] in _FORMS:
        return name
    place, _, attribute = name.rpartition(":")
    path, _, module = place.rpartition("/")
    first = module.partition(".")[0]
    home = folder / path
    if path or (home / f"{first}.py").is_file() or (first and (home / first).is_dir()):
        return f"{home.as_posix()}/{module}:{attribute}"
    return name


def _anchored_weights(name: Any, folder: Path) -> Any:
    return _anchored(name, folder) if isinstance(name, str) and (folder / name).is_file() else name


def _anchored_servers(servers: Any, folder: Path) -> Any:
    """Return MCP servers that start in a folder: relative paths in their arguments are relative to it."""

    def anchored(server: Any) -> Any:
        if isinstance(server, str):
            if server.lower().endswith((".json", ".jsonc")) and (folder / server).is_file():
                return _anchored(server, folder)
            if "://" in server.partition(" ")[0]:
                return server
            return {"command": server, "cwd": folder.as_posix()}
        if isinstance(server, dict) and "command" in server:
            return {**server, "cwd": _anchored(server.get("cwd") or ".", folder)}
        return server

    if isinstance(servers, dict):
        return {name: anchored(server) for name, server in servers.items()}
    return _each(servers, anchored)


def _check_keys(tree: SettingsTree) -> None:
    """Raise ConfigError for an unknown key in a profile that is not chosen. Its values may need variables."""
    for values, origins in tree.profiles:
        in_our_keys(values)
        try:
            Config.model_validate(values)
        except ValidationError as error:
            unknown = [each for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
            if unknown:
                raise ConfigError(_explain(unknown[0], origins)) from None


def _explain(error: Any, origins: Mapping[tuple[str, ...], Origin]) -> str:
    """Return the sentence for a wrong setting: with its file and line, or as its variable if that sets it."""
    keys = tuple(str(part) for part in error["loc"])
    origin = nearest(origins, keys)
    at = f"{origin}: " if origin is not None and origin.kind == "file" else ""
    from_variable = origin is not None and origin.kind == "environment"
    if from_variable and origins.get(keys) is not origin:  # the variable sets a whole section
        at, from_variable = f"{origin}: ", False
    return at + _sentence(error, keys, str(origin) if from_variable else "")


def _sentence(error: Any, keys: tuple[str, ...], variable: str) -> str:
    dotted = ".".join(keys)
    shown = variable or dotted
    if error["type"] in ("model_type", "dict_type"):
        if dotted in known_keys():
            return f"'{shown}' must be a mapping such as {{a: 1}}, got {error['input']!r:.80}."
        example = next((key for key in known_keys() if key.startswith(f"{dotted}.")), dotted)
        example = _variable(example) if variable else example
        return f"'{shown}' is a section. Set its keys, such as '{example}'."
    if keys in API_KEYS:
        return f"'{shown}' must be a string. In a file, put it in quotes."
    if error["type"] != "extra_forbidden":
        wrong = error["msg"].removeprefix("Value error, ")
        return f"Invalid value for '{shown}': {error['input']!r:.80}. {wrong}."
    known = [*known_keys(), "agent.max_turns"]
    if keys[:2] == ("agent", "sub_agents") and len(keys) > 2:
        known = [key.replace("NAME", keys[2]) for key in known]
    near = difflib.get_close_matches(dotted, known, n=1, cutoff=0.5)
    likely = [_variable(key) if variable else key for key in near]
    hint = f" Did you mean '{likely[0]}'?" if near else " `closeout config` lists the keys."
    return f"Unknown setting '{shown}'.{hint}"


def _variable(key: str) -> str:
    """Return the environment variable that sets a key."""
    return ENV_PREFIX + key.replace(".", "__").upper()


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
