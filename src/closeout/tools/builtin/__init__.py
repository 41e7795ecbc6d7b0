"""Tools that make a useful agent on a fresh machine: arithmetic, a folder of documents, a web page, a Python script.

Each name below is loaded on first use, so that an agent pays for the tools it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.tools.builtin.calculator import calculate
    from closeout.tools.builtin.documents import document_tools

__all__ = ["calculate", "document_tools"]

_HOMES = {"calculate": "calculator", "document_tools": "documents"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
