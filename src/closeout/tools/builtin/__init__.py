"""Built-in tools: arithmetic, documents, the web, scripts, questions, values in texts. Each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.tools.builtin.ask import ask_tool, ask_user
    from closeout.tools.builtin.calculator import calculate
    from closeout.tools.builtin.documents import document_tools
    from closeout.tools.builtin.python_runner import python_tool, run_python
    from closeout.tools.builtin.quarantine import extract
    from closeout.tools.builtin.scrape import (
        extract_tool,
        scrape_and_extract_info,
        scrape_tool,
        scrape_website,
        web_tools,
    )
    from closeout.tools.builtin.search import search_tool, web_search
    from closeout.tools.builtin.web import fetch_url, web_tool

__all__ = [
    "ask_tool",
    "ask_user",
    "calculate",
    "document_tools",
    "extract",
    "extract_tool",
    "fetch_url",
    "python_tool",
    "run_python",
    "scrape_and_extract_info",
    "scrape_tool",
    "scrape_website",
    "search_tool",
    "web_search",
    "web_tool",
    "web_tools",
]

_HOMES = {
    "ask_tool": "ask",
    "ask_user": "ask",
    "calculate": "calculator",
    "document_tools": "documents",
    "extract": "quarantine",
    "extract_tool": "scrape",
    "fetch_url": "web",
    "python_tool": "python_runner",
    "run_python": "python_runner",
    "scrape_and_extract_info": "scrape",
    "scrape_tool": "scrape",
    "scrape_website": "scrape",
    "search_tool": "search",
    "web_search": "search",
    "web_tool": "web",
    "web_tools": "scrape",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
