"""What the research agents' result rules look at: scraped texts, search results without hits, results as message parts.

The rules themselves are `executor`'s methods; everything here is a pure function of values and the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from closeout.outputs.present import present

__all__ = ["DEMO_SCRAPE_MAX_LENGTH", "formatted_as_text", "has_no_organic_results", "is_demo_cut", "shorten_scrape"]

DEMO_SCRAPE_MAX_LENGTH = 20_000  # characters of a scraped text in demonstrations; leaves room for more turns

_CUT_IN_DEMOS = ("scrape", "scrape_website")


def is_demo_cut(tool_name: str) -> bool:
    """Whether results of this tool are shortened, here and now: DEMO_MODE is exactly "1"."""
    return tool_name in _CUT_IN_DEMOS and os.environ.get("DEMO_MODE") == "1"


def shorten_scrape(result: Any) -> Any:
    """The result with at most DEMO_SCRAPE_MAX_LENGTH characters of text; JSON stays JSON with all its other fields."""
    if isinstance(result, Mapping):
        text = result.get("text")
        if isinstance(text, str) and len(text) > DEMO_SCRAPE_MAX_LENGTH:
            return {**result, "text": text[:DEMO_SCRAPE_MAX_LENGTH]}
        return result
    if not isinstance(result, str) or len(result) <= DEMO_SCRAPE_MAX_LENGTH:
        return result
    try:
        parsed = json.loads(result)
    except (ValueError, RecursionError):
        return result[:DEMO_SCRAPE_MAX_LENGTH]
    if isinstance(parsed, dict) and isinstance(parsed.get("text"), str):
        return json.dumps(shorten_scrape(parsed), ensure_ascii=False)
    return result[:DEMO_SCRAPE_MAX_LENGTH]


def has_no_organic_results(result: Any) -> bool:
    """Whether a search result, JSON text or object, lists no organic hits; False for what is no search result."""
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return False
    if not isinstance(result, Mapping):
        return False
    organic = result.get("organic")  # a result without that key is no list of hits that is empty
    return isinstance(organic, list | dict) and not organic


def formatted_as_text(tool_result: Mapping[str, Any], budget: int | None) -> dict[str, Any]:
    """A tool result as a message part, where no output formatter is at hand."""
    name, server = tool_result.get("tool_name", "the tool"), tool_result.get("server_name")
    if tool_result.get("error"):
        where = f" on {server}" if server else ""
        text = present(f"Tool call to {name}{where} failed. Error: {tool_result['error']}", budget=budget).text
    elif tool_result.get("result") is not None:
        text = present(tool_result["result"], budget=budget).text
    else:
        text = f"Tool call to {name} completed, but produced no output."
    return {"type": "text", "text": text}
