"""The agent that a command line names: an attribute of a module, or a settings file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from closeout.agent import Agent
from closeout.assembly.named import named_object
from closeout.errors import UsageError

__all__ = ["imported_agent", "is_settings_file"]

SETTINGS_FILES = (".yaml", ".yml", ".json")


def is_settings_file(source: str) -> bool:
    """Return whether a source is the path of a settings file."""
    return Path(source).suffix.lower() in SETTINGS_FILES or (os.sep in source and ":" not in source)


def imported_agent(source: str) -> Agent[Any]:
    """Return the agent that a text names: `package.module:attribute`, an Agent or a function that returns one.

    Raises:
        UsageError: There is no such agent.
    """
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
    return found
