"""Tools that make a useful agent on a fresh machine: arithmetic, a folder of documents, a web page, a Python script.

Each name below is loaded on first use, so that an agent pays for the tools it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.tools.builtin.calculator import calculate
    from closeout.tools.builtin.documents import document_tools
    from closeout.tools.builtin.python_runner import python_tool, run_python
    from closeout.tools.builtin.web import fetch_url, web_tool

__all__ = ["calculate", "document_tools", "fetch_url", "python_tool", "run_python", "web_tool"]

_HOMES = {
    "calculate": "calculator",
    "document_tools": "documents",
    "fetch_url": "web",
    "python_tool": "python_runner",
    "run_python": "python_runner",
    "web_tool": "web",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
