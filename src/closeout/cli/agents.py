"""Load the agent that a command line names: an attribute of a module, or a settings file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from closeout.agent import Agent
from closeout.assembly.named import named_object
from closeout.cli.options import RunOptions, make_agent
from closeout.errors import UsageError

__all__ = ["is_settings_file", "load_agent"]

SETTINGS_FILES = (".yaml", ".yml", ".json")


def load_agent(source: str | None, options: RunOptions) -> Agent[Any]:
    """Return the agent that a source describes.

    Args:
        source: `package.module:attribute` for an Agent, or a function that returns one; the path of a settings file;
            or None for the options alone.
        options: What `closeout run` takes. They apply to agents that are not defined in Python.

    Raises:
        UsageError: There is no such agent.
        ConfigError: A setting is wrong.
    """
    if source is None:
        return make_agent(options)
    if is_settings_file(source):
        return make_agent(replace(options, config=(source, *options.config)))
    module, colon, attribute = source.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise UsageError(f"{source} is neither a settings file (FILE.yaml) nor an agent (package.module:agent).")
    if options != RunOptions():
        raise UsageError(f"{source} is defined in Python. Set its model, tools and settings there.")
    return _imported(source)


def is_settings_file(source: str) -> bool:
    """Return whether a source is the path of a settings file."""
    return Path(source).suffix.lower() in SETTINGS_FILES or os.sep in source


def _imported(source: str) -> Agent[Any]:
    found = named_object(source)
    if not isinstance(found, Agent) and callable(found):
        found = found()
    if not isinstance(found, Agent):
        raise UsageError(f"{source} must be an Agent, or a function that returns one, got {found!r:.80}.")
    return found
