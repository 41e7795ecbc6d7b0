"""Public names of a package that are loaded when they are first used (PEP 562), and names that were renamed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], renamed: Mapping[str, tuple[str, str]] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: The package's `__name__`.
        homes: Its modules, relative to the package, and the public names that each one has; a module may name itself.
        renamed: Former names, each with its name now and the version that no longer has the old one. Using one
            raises a DeprecationWarning (docs/versions.md).
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if renamed is not None and name in renamed:
            new, removed_in = renamed[name]
            warnings.warn(
                f"{package}.{name} is now {package}.{new}. The old name works until Closeout {removed_in}.",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(sys.modules[package], new)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{modules[name]}")
        value = module if modules[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
