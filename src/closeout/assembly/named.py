"""Objects that a text names: `package.module:Name`, from the working folder or an installed package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from closeout.errors import UsageError

__all__ = ["named_object"]


def named_object(name: str) -> Any:
    """Import an object.

    Args:
        name: `package.module:Name`, or `package.module:Class.attribute`.

    Raises:
        UsageError: It cannot be imported, or the module has no such name.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise UsageError(f"{name!r:.80} is not of the form package.module:Name.")
    folder = str(Path.cwd())
    if folder not in sys.path:  # as with `python -m`
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise UsageError(f"{module} cannot be imported: it needs the module {error.name}.") from error
        raise UsageError(f"There is no module {module}. Start the command in the folder that contains it.") from None
    except Exception as error:
        raise UsageError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"The module {module} has no {attribute}.")
        found = getattr(found, part)
    return found
