"""The prompt templates: Jinja files in `templates/`, replaceable by name, rendered in one pass.

What goes into the slots is decided by the dialects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from closeout.errors import ConfigError
from closeout.messages import ToolSpec

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["Prompts", "tool_names", "tools_json"]


class Prompts:
    """Templates by name: those given, else the package's. Values are put in as they are, never expanded again.

    Raises ConfigError for a name that the package does not have: it would replace nothing.
    """

    __slots__ = ("_own",)

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self._own = dict(own or {})
        unknown = next((name for name in self._own if name not in _names()), None)
        if unknown is not None:
            raise ConfigError(f"There is no prompt template '{unknown}'. Their names are {', '.join(_names())}.")

    def source(self, name: str) -> str:
        """A template's Jinja text."""
        return self._own[name] if name in self._own else _shipped(name)

    def render(self, name: str, **slots: Any) -> str:
        """The template with its slots filled. Raises ConfigError if it names a slot that does not exist."""
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
    world = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    try:
        return world.from_string(text)
    except TemplateError as error:
        raise ConfigError(f"The prompt template '{name}' is not valid Jinja: {error}.") from None


def tools_json(tools: Sequence[ToolSpec]) -> str:
    """The tools as one JSON array, a line for each: name, description, parameters. UTF-8 is left unescaped."""
    lines = (
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            ensure_ascii=False,
            default=dict,
        )
        for tool in tools
    )
    return "[\n" + ",\n".join(lines) + "\n]" if tools else "[]"


def tool_names(tools: Sequence[ToolSpec]) -> str:
    """The tools' names, joined by ", "."""
    return ", ".join(tool.name for tool in tools)
