"""Settings before they are checked: the values of files, variables and overrides, and where each was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from closeout.errors import ConfigError
from closeout.miroflow_settings import with_defaults
from closeout.spelling import suggestion
from closeout.variables import expand_variables

__all__ = [
    "API_KEYS",
    "ENV_PREFIX",
    "MAX_TURNS",
    "NotYaml",
    "Origin",
    "SettingsTree",
    "nearest",
    "parse_yaml",
    "read_yaml",
    "settings_in",
]

ENV_PREFIX = "CLOSEOUT_"
MAX_FILE_BYTES = 1_000_000
MAX_VALUES = 100_000  # values in a configuration with its aliases expanded
MAX_TURNS = ("agent", "main_agent", "max_turns")  # the key that the short form `agent.max_turns` sets
API_KEYS = (("llm", "api_key"), ("tools", "web", "api_key"))
PROFILES = "profiles"
# Sections in which `${VAR}` stays: texts for a model, and servers, whose reader replaces it.
_VERBATIM = frozenset({"prompts", "task_templates", "markers", "instructions", "description", "default", "mcp_servers"})
# Environment variables that are not settings.
_NOT_SETTINGS = frozenset(
    {
        "CLOSEOUT_HOME",
        "CLOSEOUT_MODELS",
        "CLOSEOUT_DEBUG",
        "CLOSEOUT_SERVER_KEY",
        "CLOSEOUT_UPSTREAM_KEY",
        "CLOSEOUT_PROFILE",
    }
)

Keys = tuple[str, ...]
"""A setting's place: the keys of its sections, its own, and the numbers of list items."""

Anchor = Callable[[dict[str, Any], Path], None]
"""Makes the relative paths in the settings of one file relative to a folder."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where a setting was written.

    Attributes:
        kind: What it is.
        name: The path of the file, the variable, or the override as it was written.
        line: The line in the file.
        profile: The profile in the file, empty for its base.
    """

    kind: Literal["file", "environment", "override"]
    name: str
    line: int = 0
    profile: str = ""

    def __str__(self) -> str:
        if self.kind != "file":
            return self.name if self.kind == "environment" else f"override {self.name}"
        return f"{self.name}:{self.line}" + (f" (profile {self.profile})" if self.profile else "")


class SettingsTree:
    """The settings of several sources, merged key by key; a later source overrides an earlier one.

    Args:
        variables: The environment, for `${VAR}`.
        profile: The chosen profile; empty for none. Its settings override those of the source that defines it.
        required: Whether the profile must exist even if no source has profiles.
        anchor: Applied to the settings of each file.

    Attributes:
        values: The tree.
        profiles: The settings of the profiles that are not chosen, with their origins.
    """

    def __init__(self, variables: Mapping[str, str], *, profile: str, required: bool, anchor: Anchor) -> None:
        self.values: dict[str, Any] = {}
        self.profiles: list[tuple[dict[str, Any], dict[Keys, Origin]]] = []
        self.origins: dict[Keys, Origin] = {}
        self._variables = variables
        self._profile = profile
        self._required = required
        self._anchor = anchor
        self._known: dict[str, None] = {}  # names of profiles, in order

    def add(self, source: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        """Put the settings of a mapping or a YAML file over the present ones.

        Raises:
            ConfigError: The file cannot be read, or a value is where a section should be.
        """
        if isinstance(source, Mapping):
            self._add(source, {}, None)
            return
        path = Path(source)
        values, lines = read_yaml(path)
        values, group = with_defaults(values, path, lambda other: read_yaml(other)[0])
        above = (group,) if group else ()
        origins = {(*above, *keys): Origin("file", str(path), line) for keys, line in lines.items()}
        self._add(values, origins, path.expanduser().absolute().parent)

    def add_checked(self, values: Mapping[str, Any]) -> None:
        """Put settings of a `Config` over the present ones: their keys are long, and their variables replaced."""
        self._merge(self.values, values, ())

    def _add(self, source: Mapping[str, Any], origins: Mapping[Keys, Origin], folder: Path | None) -> None:
        base = {key: value for key, value in source.items() if key != PROFILES}
        self._put_over(base, {keys: each for keys, each in origins.items() if keys[0] != PROFILES}, folder)
        profiles = source.get(PROFILES) or {}
        if not isinstance(profiles, Mapping) or not all(isinstance(each, Mapping | None) for each in profiles.values()):
            at = f"{found}: " if (found := origins.get((PROFILES,))) else ""
            raise ConfigError(f"{at}'{PROFILES}' must be a mapping of names to settings, such as {{prod: {{llm: …}}}}.")
        for name, settings in profiles.items():
            own = {
                keys[2:]: replace(each, profile=str(name))
                for keys, each in origins.items()
                if keys[:2] == (PROFILES, str(name)) and len(keys) > 2
            }
            self._known[str(name)] = None
            if str(name) == self._profile:
                self._put_over(settings or {}, own, folder)
            else:
                self.profiles.append((_sections(settings or {}), _normal(own)))

    def _put_over(self, source: Mapping[str, Any], origins: Mapping[Keys, Origin], folder: Path | None) -> None:
        tree = _sections(source)
        tree = {key: _expanded(value, (key,), self._variables) for key, value in tree.items()}
        if folder is not None:
            self._anchor(tree, folder)
        self._merge(self.values, tree, ())
        self.origins.update(_normal(origins))

    def _merge(self, tree: dict[str, Any], later: Mapping[str, Any], above: Keys) -> None:
        for key, value in later.items():
            below = tree.get(key)
            if isinstance(below, dict) and isinstance(value, Mapping):
                self._merge(below, value, (*above, key))
            else:
                if key in tree:
                    self._forget((*above, key))
                tree[key] = value

    def _forget(self, keys: Keys) -> None:
        for each in [each for each in self.origins if each[: len(keys)] == keys]:
            del self.origins[each]

    def put(self, keys: Sequence[str], text: str, name: str, origin: Origin) -> None:
        """Set one key to a YAML text.

        Args:
            keys: The key.
            text: The value.
            name: The key as it was written, for errors.
            origin: The place where it was written.

        Raises:
            ConfigError: A part of the key is a value.
        """
        keys = _long(keys)
        branch = _branch(self.values, keys, name)
        try:
            value = parse_yaml(text)[0]
        except NotYaml:
            value = text
        # An API key of digits is a string.
        if keys in API_KEYS and not isinstance(value, str | None):
            value = text
        branch[keys[-1]] = _expanded(value, keys, self._variables)
        self._forget(keys)
        self.origins[keys] = origin

    def put_override(self, override: str) -> None:
        """Set one key by a text such as `agent.max_turns=20`.

        Raises:
            ConfigError: It is not of this form.
        """
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"A setting must be key=value, such as agent.main_agent.max_turns=20, got '{override}'.")
        self.put(_keys(key.strip()), text, key.strip(), Origin("override", key.strip()))

    def set(self, key: str, value: Any) -> None:
        """Set a dotted key to a value."""
        _set(self.values, key, value)
        self._forget(tuple(_keys(key)))

    def check_profile(self) -> None:
        """Raise ConfigError if no source has the profile."""
        if not self._profile or self._profile in self._known or not (self._known or self._required):
            return
        if not self._known:
            raise ConfigError(
                f"There is no profile '{self._profile}': the settings have no profiles. "
                f"Write them in a file, such as {PROFILES}: {{{self._profile}: {{llm: …}}}}."
            )
        hint = suggestion(self._profile, self._known, f"There are: {', '.join(self._known)}.")
        raise ConfigError(f"There is no profile '{self._profile}'. {hint}")

    def origins_of(self, keys: Sequence[str]) -> list[Origin]:
        """Return all places where a setting was written: a section may come from several."""
        wanted = tuple(keys)
        below = {each: found for each, found in self.origins.items() if each[: len(wanted)] == wanted}
        sections = {each[:end] for each in below for end in range(len(wanted), len(each))}
        leaves = [found for each, found in below.items() if each not in sections]
        return list(dict.fromkeys(leaves))


def nearest(origins: Mapping[Keys, Origin], keys: Sequence[str]) -> Origin | None:
    """Return the origin of a setting or of the nearest section around it."""
    return next((origins[tuple(keys[:end])] for end in range(len(keys), 0, -1) if tuple(keys[:end]) in origins), None)


def settings_in(environment: Mapping[str, str]) -> Iterable[tuple[str, str, list[str]]]:
    """Yield the variables that are settings, with their values and keys."""
    for name in sorted(environment):
        if name.startswith(ENV_PREFIX) and name not in _NOT_SETTINGS:
            yield name, environment[name], name.removeprefix(ENV_PREFIX).lower().split("__")


def _expanded(value: Any, keys: Keys, variables: Mapping[str, str]) -> Any:
    """Return a setting with its environment variables replaced. Texts for a model stay as they are."""
    if not _VERBATIM.isdisjoint(keys):
        return value
    if isinstance(value, dict):
        return {key: _expanded(below, (*keys, str(key)), variables) for key, below in value.items()}
    return expand_variables(value, f"The setting '{'.'.join(keys)}'", variables)


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
        _branch(tree, MAX_TURNS, "agent.max_turns").setdefault("max_turns", turns)
    return tree


def _normal(origins: Mapping[Keys, Origin]) -> dict[Keys, Origin]:
    """Return origins by the keys that `_sections` gives their values."""
    found: dict[Keys, Origin] = {}
    for keys, origin in origins.items():
        whole = _long((*_keys(keys[0]), *keys[1:]))
        if whole not in found or keys == whole:
            found[whole] = origin
    return found


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): _copied(value) if isinstance(value, Mapping) else value for key, value in source.items()}


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Return the settings of a file, and the line of each."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)  # a device may be endless
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"The configuration file {path} is larger than {MAX_FILE_BYTES:,} bytes. Check the path.")
        tree, lines = parse_yaml(data.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration file {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The configuration file {path} is not UTF-8 text.") from None
    except NotYaml as error:
        raise ConfigError(f"The configuration file {path} {error}.") from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise ConfigError(f"The configuration file {path} must contain keys and values, such as 'agent:' and 'llm:'.")
    return tree, lines


class NotYaml(Exception):
    """The text is not usable YAML. The message continues the name of the text: "is not valid YAML at line 3"."""


def parse_yaml(text: str) -> tuple[Any, dict[Keys, int]]:
    """Return the value of a YAML text, and the line of each value in it.

    Raises:
        NotYaml: It is not valid, has a key twice, or its aliases expand to too many values.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        if _size(node, {}) > MAX_VALUES:
            raise NotYaml(f"is not valid YAML: its aliases expand to more than {MAX_VALUES:,} values")
        if (twice := _duplicate_key(node)) is not None:
            line = twice.start_mark.line + 1
            raise NotYaml(f"has the key '{twice.value}' a second time at line {line}. Merge the two")
        value = loader.construct_document(node)
        return value, dict(_lines(node, ()))  # after it: only then are keys of `<<` in their place
    # The others are of PyYAML's constructors, for a date such as 2026-13-01, `!!bool maybe` or `!!int ''`.
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        if not mark:
            raise NotYaml(f"is not valid YAML: {str(error).partition(chr(10))[0]}") from None
        why = getattr(error, "problem", None) or "it cannot be read"
        raise NotYaml(f"is not valid YAML at line {mark.line + 1}, column {mark.column + 1}: {why}") from None


def _lines(node: Any, above: Keys) -> Iterable[tuple[Keys, int]]:
    if node.id == "mapping":
        for key, value in node.value:
            keys = (*above, str(key.value))
            yield keys, key.start_mark.line + 1
            yield from _lines(value, keys)
    elif node.id == "sequence":
        for number, item in enumerate(node.value):
            keys = (*above, str(number))
            yield keys, item.start_mark.line + 1
            yield from _lines(item, keys)


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


def _long(keys: Sequence[str]) -> Keys:
    return (*MAX_TURNS, *keys[2:]) if tuple(keys[:2]) == ("agent", "max_turns") else tuple(keys)


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    keys = _keys(key)
    _branch(tree, keys, key)[keys[-1]] = value


def _keys(key: str) -> list[str]:
    """Return the parts of a dotted key. A model name in `llm.prices` may contain dots."""
    keys = key.split(".")
    return [*keys[:2], ".".join(keys[2:])] if keys[:2] == ["llm", "prices"] and len(keys) > 2 else keys


def _branch(tree: dict[str, Any], keys: Sequence[str], name: str) -> dict[str, Any]:
    """Return the section that a key belongs to; create it if it is missing."""
    for part in keys[:-1]:
        branch = tree.setdefault(part, {})
        if not isinstance(branch, dict):
            raise ConfigError(f"'{name}': '{part}' is a value, not a section.")
        tree = branch
    return tree
