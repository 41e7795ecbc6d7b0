"""An agent's task templates: texts of tasks with slots, which people fill in and send."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from closeout.config import AgentSettings, TaskTemplateSettings
from closeout.errors import ConfigError
from closeout.tools.mcp.mcp_offers import PromptSlot, PromptTemplate

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["task_templates"]


def task_templates(settings: AgentSettings) -> tuple[PromptTemplate, ...]:
    """Return the templates of the settings. Every slot of a text must be filled, except one with a default filter.

    Raises:
        ConfigError: A text is not valid Jinja, or an argument is described that it does not have.
    """
    return tuple(_template(name, found) for name, found in settings.task_templates.items())


def _template(name: str, settings: str | TaskTemplateSettings) -> PromptTemplate:
    from jinja2 import Environment, StrictUndefined, TemplateError, meta, nodes

    if isinstance(settings, str):
        settings = TaskTemplateSettings(text=settings)
    # Tasks are plain text for a model: HTML escaping would corrupt them.
    environment = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    try:
        tree = environment.parse(settings.text)
        found = meta.find_undeclared_variables(tree)
        compiled = environment.from_string(settings.text)
    except TemplateError as error:
        raise ConfigError(f"The task template '{name}' is not valid Jinja: {error}.") from None
    if unknown := settings.arguments.keys() - found:
        raise ConfigError(
            f"The task template '{name}' has no argument '{min(unknown)}'. Write {{{{ {min(unknown)} }}}} in its text."
        )
    optional = {
        each.node.name
        for each in tree.find_all(nodes.Filter)
        if each.name in ("default", "d") and isinstance(each.node, nodes.Name)
    }
    names = [each.name for each in tree.find_all(nodes.Name) if each.name in found]  # in the order of the text
    slots = {each: _slot(settings.arguments.get(each, ""), required=each not in optional) for each in names}
    return PromptTemplate(
        name=name, description=settings.description, slots=slots, render=partial(_rendered, name, compiled)
    )


def _slot(about: str | list[str], *, required: bool) -> PromptSlot:
    if isinstance(about, str):
        return PromptSlot(description=about, required=required)
    return PromptSlot(description=f"One of {', '.join(about)}", values=tuple(about), required=required)


def _rendered(name: str, compiled: Template, arguments: Mapping[str, str]) -> str:
    from jinja2 import TemplateError

    try:
        return compiled.render(arguments)
    except TemplateError as error:
        raise ConfigError(f"The task template '{name}' cannot be filled: {error}.") from None
