"""Objects that a text names: `package.module:Name`, from the working folder, a folder or an installed package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from closeout.errors import UsageError
from closeout.spelling import suggestion

__all__ = ["named_object"]


def named_object(name: str) -> Any:
    """Import an object.

    Args:
        name: `package.module:Name`, or `package.module:Class.attribute`. A folder may precede the module:
            `team/tools:look_up`.

    Raises:
        UsageError: It cannot be imported, or the module has no such name.
    """
    place, _, attribute = name.rpartition(":")
    path, slash, module = place.rpartition("/")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise UsageError(f"{name!r:.80} is not of the form package.module:Name.")
    folder = Path(path or slash or ".").expanduser().absolute()
    if str(folder) not in sys.path:  # as with `python -m`
        sys.path.insert(0, str(folder))
    found: Any = _imported(module, folder if slash else None)
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = suggestion(part, [each for each in vars(found) if not each.startswith("_")], "")
            raise UsageError(f"The module {module} has no {attribute}. {hint}".rstrip())
        found = getattr(found, part)
    return found


def _imported(name: str, folder: Path | None) -> ModuleType:
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"{name} cannot be imported: it needs the module {error.name}.") from error
        if folder is not None:
            raise UsageError(f"There is no module {name} in {folder}.") from None
        if name.endswith(".py"):
            raise UsageError(f"{name} is a file. Write its module without the suffix: {name[:-3]}:NAME.") from None
        raise UsageError(f"There is no module {name}. Start the command in the folder that contains it.") from None
    except Exception as error:
        raise UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    file = getattr(module, "__file__", None)
    if folder is not None and file is not None and not Path(file).resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"The module {name} of {folder} has the name of another one, {file}. Rename it.")
    return module
