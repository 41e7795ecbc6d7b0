"""Replace `${VAR}` in settings with the values of environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from closeout.errors import ConfigError

__all__ = ["VARIABLE", "expand_variables"]

VARIABLE = re.compile(r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][\w.-]*)(?::-(?P<default>[^}]*))?\}")


def expand_variables(
    value: Any, owner: str, environment: Mapping[str, str] | None = None, known: Mapping[str, str] | None = None
) -> Any:
    """Return a value with `${VAR}` and `${VAR:-default}` replaced, in texts at any depth.

    Args:
        value: The value.
        owner: Begins the message of an error, such as "MCP server 'files'".
        environment: The variables; None: those of the process.
        known: Values of names that are not in the environment.

    Raises:
        ConfigError: A variable is not set and has no default.
    """
    if isinstance(value, Mapping):
        return {key: expand_variables(item, owner, environment, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand_variables(item, owner, environment, known) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    variables = os.environ if environment is None else environment

    def replacement(found: re.Match[str]) -> str:
        name = found["name"]
        if found["kind"] == "input":
            raise ConfigError(
                f"{owner} asks for the input {name!r}, which its editor prompts for. Write ${{VAR}} "
                "instead and set the environment variable."
            )
        text = variables.get(name, (known or {}).get(name, found["default"]))
        if text is None:
            raise ConfigError(
                f"{owner} uses ${{{name}}}, and the environment has no variable {name}. Set it, or write "
                f"${{{name}:-default}}."
            )
        return text

    return VARIABLE.sub(replacement, value)
