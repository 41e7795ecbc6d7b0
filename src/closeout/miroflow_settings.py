"""Settings files of MiroFlow: Hydra's groups `agent`, `llm` and `benchmark`, and keys that have other names here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.errors import ConfigError

__all__ = ["TaskFile", "in_our_keys", "task_file", "with_defaults"]

Values = dict[str, Any]

GROUPS = ("llm", "agent", "benchmark")
# Top-level keys by which a file of a group is known: settings files have none of them.
_GROUP_KEYS = {
    "agent": {"main_agent", "sub_agents"},
    "llm": {"provider", "model_name"},
    "benchmark": {"execution", "data"},
}
_HYDRA_KEYS = ("defaults", "hydra", "project_name", "debug_dir")
BENCHMARK_KEYS = ("name", "data", "execution")
FIELDS = {"task_id": "id", "task_question": "question", "ground_truth": "answer", "file_name": "files"}

_SEARCH = {"google_search": "web_search", "sogou_search": "web_search"}
_SCRAPE = {"scrape_website": "scrape_website"}
_SEE = {"visual_question_answering": "ask_about_image"}
_HEAR = {"audio_transcription": "transcribe", "audio_question_answering": "transcribe"}
_REASON = {"reasoning": "reasoning"}
# MiroFlow's servers, their tools, and the built-in tools in their place. Of tool-python, those that move files have
# none: scripts work in a folder of the run that holds the files of the task.
SERVERS: Mapping[str, Mapping[str, str]] = {
    "search_and_scrape_webpage": _SEARCH,
    "tool-google-search": {"google_search": "web_search", **_SCRAPE},
    "tool-sogou-search": {"sogou_search": "web_search", **_SCRAPE},
    "jina_scrape_llm_summary": {"scrape_and_extract_info": "scrape_and_extract_info"},
    "tool-python": {"run_python_code": "run_python", "run_command": "run_command"},
    "stateless_python": {"python": "run_python"},
    "tool-reader": {"convert_to_markdown": "scrape_website"},
    "tool-reading": {"convert_to_markdown": "scrape_website"},
    "tool-vqa": _SEE,
    "tool-vqa-os": _SEE,
    "tool-transcribe": _HEAR,
    "tool-transcribe-os": _HEAR,
    "tool-reasoning": _REASON,
    "tool-reasoning-os": _REASON,
}
BROWSING = "Searches and reads the web for one missing fact. State the whole subtask, with all that is known already."
# Options of a request that are not settings here, and the value that means "not set".
_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def with_defaults(values: Values, path: Path, read: Callable[[Path], Values]) -> tuple[Values, str]:
    """Return the settings of a file with those that its `defaults` name below them, and the group of the file.

    Args:
        values: The settings in the file.
        path: The file.
        read: Reads another file.

    Returns:
        The settings, in the section of the group if the file has one; "" as the group for all other files.

    Raises:
        ConfigError: A file in `defaults` cannot be read, or `defaults` is malformed.
    """
    if any(key in values for key in GROUPS) and "defaults" not in values:
        return values, ""
    group = next((name for name, keys in _GROUP_KEYS.items() if keys & values.keys()), "")
    if not group and "defaults" in values and path.absolute().parent.name in GROUPS:
        group = path.absolute().parent.name
    if not group and "defaults" not in values:
        return values, ""
    base: Values = {}
    for entry in _listed(values.get("defaults")):
        if entry == "_self_":
            continue
        names = {group: entry} if group and isinstance(entry, str) else entry
        if not isinstance(names, Mapping) or not all(key in GROUPS and isinstance(names[key], str) for key in names):
            raise ConfigError(f"{path}: 'defaults' must name files of {', '.join(GROUPS)}, got {entry!r:.80}.")
        for section, name in names.items():
            other = path.parent / f"{name}.yaml" if group else path.parent / section / f"{name}.yaml"
            below, _ = with_defaults(read(other), other, read)
            base = _merged(base, below if section in below else {section: below})
    own = {key: value for key, value in values.items() if key not in _HYDRA_KEYS}
    return _merged(base, {group: own} if group else own), group


def _merged(base: Values, later: Values) -> Values:
    both = dict(base)
    for key, value in later.items():
        below = both.get(key)
        both[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return both


@dataclass(frozen=True)
class TaskFile:
    """The tasks that a file of the group `benchmark` names.

    Attributes:
        path: The file with the tasks.
        fields: Where its records hold the fields of a task.
        limit: How many tasks are taken; None: all.
    """

    path: Path
    fields: Mapping[str, str]
    limit: int | None


def task_file(path: Path, read: Callable[[Path], Values]) -> TaskFile:
    """Return the tasks that a file of the group `benchmark` names. Relative paths are tried in MiroFlow's own order.

    Raises:
        ConfigError: It is not such a file, or names no folder or no file of tasks.
    """
    values, group = with_defaults(read(path), path, read)
    found = values[group].get("data") if group == "benchmark" else None
    data: Values = found if isinstance(found, dict) else {}
    names = [name for key in ("data_dir", "metadata_file") if isinstance(name := data.get(key), str)]
    if len(names) < 2:
        raise ConfigError(f"{path} must be a benchmark file of MiroFlow, with data.data_dir and data.metadata_file.")
    places = [Path(*names), path.absolute().parent.parent.parent / Path(*names)]  # this folder, that of the app
    place = next((place for place in places if place.exists()), places[0])
    mapped = data.get("field_mapping") or {}
    fields = {FIELDS[key]: mapped[f"{key}_field"] for key in FIELDS if f"{key}_field" in mapped}
    limit = (values[group].get("execution") or {}).get("max_tasks")
    return TaskFile(place, fields, limit if isinstance(limit, int) else None)


def in_our_keys(tree: Values) -> None:
    """Give MiroFlow's keys in a tree of settings the names and places that they have here.

    Raises:
        ConfigError: A key says something that has no counterpart.
    """
    agent, llm = tree.get("agent"), tree.get("llm")
    if isinstance(agent, dict):
        _read_agent(agent, tree)
    if isinstance(llm, dict):
        _read_llm(llm)
    benchmark = tree.pop("benchmark", None)
    is_group = isinstance(benchmark, dict | None)
    unknown = next((key for key in benchmark or () if key not in BENCHMARK_KEYS), None) if is_group else None
    if unknown is not None or not is_group:
        raise ConfigError(f"'benchmark' has {', '.join(BENCHMARK_KEYS)}, got {unknown or benchmark!r:.80}.")


def _read_agent(agent: Values, tree: Values) -> None:
    main = agent.get("main_agent")
    if isinstance(main, dict) and ("tools" in main or "tool_blacklist" in main):
        tools = tree.get("tools")
        servers = tools.get("mcp_servers") if isinstance(tools, dict) else None
        found = _tools_of(main, "agent.main_agent", servers if isinstance(servers, Mapping) else {})
        agent["tools"] = [*_listed(agent.get("tools")), *found]
    if "sub_agents" in agent and agent["sub_agents"] is None:
        del agent["sub_agents"]
    below = agent.get("sub_agents")
    for name, entry in below.items() if isinstance(below, dict) else ():
        if isinstance(entry, dict) and ("tool_blacklist" in entry or set(SERVERS) & {*_listed(entry.get("tools"))}):
            entry["tools"] = _tools_of(entry, f"agent.sub_agents.{name}", {})
        if isinstance(entry, dict) and "browsing" in name and entry.get("tools"):
            entry.setdefault("description", BROWSING)


def _tools_of(section: Values, key: str, own: Mapping[str, Any]) -> list[str]:
    """Take the tools out of a section. Returns the names of ours; a server of the user's own is there anyway."""
    left_out = {tuple(map(str, _listed(pair))) for pair in _listed(section.pop("tool_blacklist", None))}
    found: dict[str, None] = {}
    for name in map(str, _listed(section.pop("tools", None))):
        known = SERVERS.get(name)
        if known is None and name not in own and key.startswith("agent.main_agent"):
            raise ConfigError(
                f"'{key}.tools' names {name!r}, which is not a server of MiroFlow with a counterpart here. Those are: "
                f"{', '.join(SERVERS)}. Put your own functions under agent.tools, and servers under tools.mcp_servers."
            )
        if known is None:
            found |= {} if name in own else {name: None}
        elif name not in own:
            found |= {ours: None for theirs, ours in known.items() if (name, theirs) not in left_out}
    return list(found)


def _listed(value: Any) -> list[Any]:
    """Return a list as it is, a list of one item for any other value, and an empty list for None."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_llm(llm: Values) -> None:
    if llm.get("provider") == "qwen":  # an OpenAI-compatible server
        llm["provider"] = "openai"
    llm.pop("async_client", None)
    if llm.get("api_key") == "":
        del llm["api_key"]
    sampling = {key: llm.pop(key) for key in _SAMPLING if key in llm}
    set_ones = {key: value for key, value in sampling.items() if value is not None and value != _SAMPLING[key]}
    if set_ones and isinstance(llm.get("extra_body") or {}, dict):
        llm["extra_body"] = {**set_ones, **(llm.get("extra_body") or {})}
