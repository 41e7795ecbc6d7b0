"""Built-in tools: arithmetic, documents, the web, scripts, questions, values in texts. Each is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeout.lazy_names import lazy_names

if TYPE_CHECKING:
    from closeout.tools.builtin.ask import ask_tool, ask_user
    from closeout.tools.builtin.calculator import calculate
    from closeout.tools.builtin.documents import document_tools
    from closeout.tools.builtin.embeddings import openai_embeddings
    from closeout.tools.builtin.media import ask_about_image, reasoning, transcribe
    from closeout.tools.builtin.python_runner import command_tool, python_tool, run_command, run_python
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
    "ask_about_image",
    "ask_tool",
    "ask_user",
    "calculate",
    "command_tool",
    "document_tools",
    "extract",
    "extract_tool",
    "fetch_url",
    "openai_embeddings",
    "python_tool",
    "reasoning",
    "run_command",
    "run_python",
    "scrape_and_extract_info",
    "scrape_tool",
    "scrape_website",
    "search_tool",
    "transcribe",
    "web_search",
    "web_tool",
    "web_tools",
]

_HOMES = {
    "ask": ("ask_tool", "ask_user"),
    "calculator": ("calculate",),
    "documents": ("document_tools",),
    "embeddings": ("openai_embeddings",),
    "media": ("ask_about_image", "reasoning", "transcribe"),
    "python_runner": ("command_tool", "python_tool", "run_command", "run_python"),
    "quarantine": ("extract",),
    "scrape": ("extract_tool", "scrape_and_extract_info", "scrape_tool", "scrape_website", "web_tools"),
    "search": ("search_tool", "web_search"),
    "web": ("fetch_url", "web_tool"),
}

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
