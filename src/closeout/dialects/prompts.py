"""The prompt templates: Jinja files in `templates/`, replaceable by name, rendered in one pass; and their slots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from closeout.errors import ConfigError
from closeout.messages import ToolSpec
from closeout.parsing.readers import LOCAL_SERVER

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = [
    "READ_RESULT",
    "PartlyFilled",
    "Prompts",
    "examples_slots",
    "only_text",
    "program_slots",
    "tool_names",
    "tools_brief",
    "tools_json",
]

# What each template must show the model, by slot.
_FIRST_SLOTS = {"instruction": "the instructions and the form of the answer", "tools": "the tools"}
_REQUIRED: Mapping[str, Mapping[str, str]] = {
    "function_call": {"instruction": _FIRST_SLOTS["instruction"]},
    "cot_chat": _FIRST_SLOTS,
    "cot_completion": {
        **_FIRST_SLOTS,
        "historic_messages": "the earlier conversation",
        "query": "the task",
        "agent_scratchpad": "the steps so far",
    },
    "mcp_xml": {"instruction": _FIRST_SLOTS["instruction"], "servers": "the tools"},
    "code": {"instruction": _FIRST_SLOTS["instruction"], "functions": "the tools"},
    "code_completion": {"instruction": _FIRST_SLOTS["instruction"], "functions": "the tools"},
}

READ_RESULT = "read_result"  # the tool of every agent that reads more of what was shown shortened


class PartlyFilled(str):
    """A template whose slots may be filled already: what an overridden method of a runner wrote."""

    __slots__ = ()


class Prompts:
    """Templates by name. Values are inserted as they are and never expanded again.

    Args:
        own: Templates that replace the package's, name → Jinja text.

    Raises:
        ConfigError: The package has no template of that name, so it would replace nothing; or a template lacks a slot.
    """

    __slots__ = ("_own",)

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self._own = dict(own or {})
        unknown = next((name for name in self._own if name not in _names()), None)
        if unknown is not None:
            raise ConfigError(f"No prompt template is called '{unknown}'. Use one of {', '.join(_names())}.")
        for name, text in self._own.items():
            if name in _REQUIRED and not isinstance(text, PartlyFilled):
                _check_slots(name, text)

    def source(self, name: str) -> str:
        """A template's Jinja text."""
        return self._own[name] if name in self._own else _shipped(name)

    def is_own(self, name: str) -> bool:
        """True if a template replaces the package's."""
        return name in self._own

    def render(self, name: str, **slots: Any) -> str:
        """Fill a template's slots. Raises ConfigError if it names a slot that does not exist."""
        from jinja2 import TemplateError

        try:
            return _compiled(name, self.source(name)).render(**slots)
        except TemplateError as error:
            raise ConfigError(f"The prompt template '{name}' cannot be filled: {error}.") from None


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    templates = (files("closeout.dialects") / "templates").iterdir()
    return tuple(sorted(file.name.removesuffix(".jinja") for file in templates if file.name.endswith(".jinja")))


@lru_cache(maxsize=64)
def _shipped(name: str) -> str:
    return (files("closeout.dialects") / "templates" / f"{name}.jinja").read_text("utf-8")


@lru_cache(maxsize=256)
def _compiled(name: str, text: str) -> Template:
    from jinja2 import Environment, StrictUndefined, TemplateError

    # Prompts are plain text for a model: HTML escaping would corrupt them.
    environment = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise ConfigError(f"The prompt template '{name}' is not valid Jinja: {error}.") from None


@lru_cache(maxsize=256)
def _check_slots(name: str, text: str) -> None:
    """Raise ConfigError for a template without a slot that it needs, or that is not valid Jinja."""
    from jinja2 import Environment, meta

    _compiled(name, text)
    found = meta.find_undeclared_variables(Environment(autoescape=False).parse(text))  # noqa: S701  only parsed
    for slot, contents in _REQUIRED[name].items():
        if slot not in found:
            raise ConfigError(
                f"The prompt template '{name}' has no slot '{slot}', so the model would not see {contents}. "
                f"Add {{{{ {slot} }}}}."
            )


def tools_json(tools: Sequence[ToolSpec]) -> str:
    """The tools as one JSON array, one per line: name, description, parameters. UTF-8 is not escaped."""
    lines = (
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            ensure_ascii=False,
            default=dict,
        )
        for tool in tools
    )
    return "[\n" + ",\n".join(lines) + "\n]" if tools else "[]"


def tools_brief(tools: Sequence[ToolSpec]) -> str:
    """The tools in few tokens, one per line: name, parameters with their descriptions, description."""
    return "\n".join(f"{tool.name} {_parameters_brief(tool.parameters)}: {tool.description}" for tool in tools)


def _parameters_brief(schema: Mapping[str, Any]) -> str:
    """A tool's parameters as an example of its input: names with descriptions, of optional ones only the type."""
    required = schema.get("required") or ()
    shown: dict[str, Any] = {}
    for name, given in (schema.get("properties") or {}).items():
        given = given if isinstance(given, Mapping) else {}
        if not given.keys().isdisjoint(("anyOf", "oneOf", "allOf", "$ref", "properties", "items", "enum")):
            shown[name] = given
        elif name in required:
            shown[name] = given.get("description") or given.get("type") or "any"
        else:
            shown[name] = f"{given.get('type') or 'any'}, optional"
    return json.dumps(shown, ensure_ascii=False, default=dict)


def tool_names(tools: Sequence[ToolSpec]) -> str:
    """The tools' names, joined by ", "."""
    return ", ".join(tool.name for tool in tools)


def examples_slots(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The slots of a template of worked examples for weak models: tools of the agent's own.

    A tool fits if its one required parameter is a string. Tools say what they do there (`ToolPolicy.example`); without
    one that looks things up, the first tool that only reads is taken for it.

    Returns:
        `look_up` and `compute`, each {"name", "parameter", "server"} or None; empty without a tool to look things up.
    """
    fitting = [(tool, name) for tool in tools if tool.name != READ_RESULT and (name := only_text(tool)) is not None]
    slots: dict[str, Any] = {"look_up": None, "compute": None}
    for tool, name in fitting:
        if tool.policy.example is not None:
            slots[tool.policy.example] = slots[tool.policy.example] or _slot(tool, name)
    readers = (_slot(tool, name) for tool, name in fitting if tool.policy.only_reads and tool.policy.example is None)
    slots["look_up"] = slots["look_up"] or next(readers, None)
    return slots if slots["look_up"] else {}


def program_slots(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The slot `look_up` of the worked examples of programs; empty if no tool looks something up or computes.

    A program computes by itself, so examples are of use without a tool to look things up: `look_up` is None then.
    """
    slots = examples_slots(tools)
    computes = any(tool.policy.example == "compute" for tool in tools)
    return {"look_up": slots.get("look_up")} if slots or computes else {}


def _slot(tool: ToolSpec, parameter: str) -> dict[str, str]:
    return {"name": tool.name, "parameter": parameter, "server": tool.server_name or LOCAL_SERVER}


def only_text(tool: ToolSpec) -> str | None:
    """The name of a tool's one required parameter if that is a text, None otherwise."""
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or (list(properties) if len(properties) == 1 else [])
    if len(required) != 1 or not isinstance(properties.get(required[0]), dict):
        return None
    return str(required[0]) if properties[required[0]].get("type") == "string" else None
