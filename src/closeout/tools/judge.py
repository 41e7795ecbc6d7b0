"""Decide whether a result is usable: failures reported as text, empty results, pages without content.

Pure functions of values. A judgement never changes a result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from closeout.codec import value_or_text
from closeout.language.walls import WALLS
from closeout.messages import ToolPolicy
from closeout.results.normal import normalise

__all__ = [
    "GOOD",
    "Judgement",
    "has_no_organic_results",
    "judge",
    "names_unknown_tool",
    "says_tool_failed",
    "shorten_text",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a result.

    Attributes:
        quality: "good", or why the result is not usable; "unusable" is the verdict of a tool's own `judge`.
        reason: One sentence for the model; empty if the result is good.
        ask_again: Another call is likely to give a better result, so the turn may be rolled back.
    """

    quality: Literal["good", "error", "empty", "no_content", "unusable"]
    reason: str = ""
    ask_again: bool = False


GOOD = Judgement("good")

# The MCP reference server and the research agents' tool managers start their failure texts with these.
_UNKNOWN = "Unknown tool:"
_FAILED = (_UNKNOWN, "Error executing tool")
_ERROR_WORDS = ("Error:", "ERROR:", "Traceback (most recent call last)", "[ERROR]", "Exception:")
_ITEM_KEYS = ("organic", "results", "items", "hits", "documents", "matches", "search_results", "webPages")
_TEXT_KEYS = ("text", "content", "markdown", "extracted_info", "body", "html")
# Other keys that do not hold a list repeat the query, a count, or the service's name.
_FINDING_KEYS = frozenset((*_ITEM_KEYS, *_TEXT_KEYS, "answer", "answerBox", "data", "knowledgeGraph", "result"))

_SHORT_PAGE = 1_500  # characters; an article that mentions a captcha is longer than a page that asks for one
_MAX_PARSED = 200_000  # characters of JSON text that are parsed before judging; longer texts count as content


def says_tool_failed(result: object) -> bool:
    """Return whether a result is a text that starts like a tool manager's report of a failure."""
    return isinstance(result, str) and result.startswith(_FAILED)


def names_unknown_tool(error: object) -> bool:
    """Return whether an error is a text that starts like the report that there is no such tool."""
    return isinstance(error, str) and error.startswith(_UNKNOWN)


def judge(value: Any, policy: ToolPolicy, tool_name: str = "The tool", *, is_normal: bool = False) -> Judgement:
    """Judge the result of a call that did not raise. Never raises, for any value.

    JSON text is parsed before it is judged. A `policy.judge` is asked first; its verdict is final unless it is None.

    Args:
        value: The result, in any Python type.
        policy: Declares where the result's items are, whether it is a web page, and the tool's own rule.
        tool_name: The name that reasons use.
        is_normal: The value went through `normalise` already.
    """
    plain = _parsed(value if is_normal else normalise(value))
    if policy.judge is not None:
        verdict = _own_verdict(plain, policy, tool_name)
        if verdict is not None:
            return verdict
    if isinstance(plain, str):
        if plain.startswith(_FAILED):
            return Judgement("error", plain[:300], ask_again=True)
        if plain.startswith(_ERROR_WORDS):
            return Judgement("error", plain[:300])
    elif isinstance(plain, dict):
        error = _error_in(plain)
        if error:
            return Judgement("error", error)
    empty = _judge_emptiness(plain, policy, tool_name)
    if empty is not GOOD:
        return empty
    return _judge_page(plain, tool_name) if policy.check_content else GOOD


def _parsed(value: Any) -> Any:
    """JSON text of an object or a list as its value; anything else unchanged."""
    is_json = isinstance(value, str) and len(value) <= _MAX_PARSED and value.lstrip()[:1] in ("{", "[")
    return value_or_text(value) if is_json else value


def _own_verdict(value: Any, policy: ToolPolicy, tool_name: str) -> Judgement | None:
    """The verdict of the tool's own rule; None if it has none, or fails."""
    assert policy.judge is not None
    try:
        verdict = policy.judge(value)
    except Exception:  # a rule that fails must not end the run
        logger.exception("The judge of tool %s failed; the built-in rules apply.", tool_name)
        return None
    if verdict is None:
        return None
    if isinstance(verdict, str):
        return Judgement("unusable", verdict, ask_again=True) if verdict else GOOD
    if not verdict:
        return GOOD
    return Judgement("unusable", f"The result of {tool_name} is not usable: make another call.", ask_again=True)


def _error_in(value: Mapping[str, Any]) -> str:
    """The message of a record that reports a failure instead of a result; "" if it does not."""
    error = value.get("error")
    if error and not any(value.get(key) for key in ("result", "data", *_ITEM_KEYS)):
        return str(error.get("message", error) if isinstance(error, Mapping) else error)[:300]
    if value.get("success") is False or value.get("status") == "error" or value.get("isError") is True:
        return str(value.get("message") or value.get("error") or value.get("detail") or "it reports a failure")[:300]
    return ""


# -------------------------------------------------------------------------------------------- emptiness


def _judge_emptiness(value: Any, policy: ToolPolicy, tool_name: str) -> Judgement:
    if policy.accept_empty:
        return GOOD
    nothing_found = Judgement("empty", f"{tool_name} found nothing: ask with other words.", ask_again=True)
    if isinstance(value, dict):
        if policy.empty_at and _found_nothing(value, policy.empty_at):
            return nothing_found
        keys = [key for key in _ITEM_KEYS if key in value]
        if keys and all(_is_empty(value[key]) for key in keys):
            return nothing_found
    if value is None or (isinstance(value, str | list | dict) and not value):
        return Judgement("empty", f"{tool_name} returned nothing.", bool(policy.empty_at or policy.check_content))
    return GOOD


def _found_nothing(found: Mapping[str, Any], paths: tuple[str, ...]) -> bool:
    """Return True if the declared places are empty or, if the result has no such place, all the others are."""
    places = [place for place in (_at(found, path) for path in paths) if place is not _MISSING]
    if places:
        return all(_is_empty(place) for place in places)
    # Services leave an empty place out; but a tool may also answer in another shape than declared.
    return not any(items if isinstance(items, list) else key in _FINDING_KEYS and items for key, items in found.items())


_MISSING = object()


def _at(value: Any, path: str) -> Any:
    """Return the part of a result at a key or a dotted path ("webPages.value"); `_MISSING` if nothing is there."""
    if isinstance(value, dict) and path in value:
        return value[path]
    for step in path.split("."):
        if not isinstance(value, dict) or step not in value:
            return _MISSING
        value = value[step]
    return value


def _is_empty(items: Any) -> bool:
    """Nothing, or a wrapper around nothing such as `{"value": []}`."""
    if isinstance(items, dict):
        return not items or ("value" in items and not items["value"])
    return not items


# -------------------------------------------------------------------------------------------- pages


def _judge_page(value: Any, tool_name: str) -> Judgement:
    text = _page_text(value)
    if text is None or len(text) > _SHORT_PAGE:
        return GOOD
    if not text.strip():
        return Judgement("no_content", f"{tool_name} returned no text: use another source.", ask_again=True)
    for reason, pattern in WALLS.items():
        if pattern.search(text):
            return Judgement(
                "no_content", f"{tool_name} returned no content, {reason}: use another source.", ask_again=True
            )
    return GOOD


def _page_text(value: Any) -> str | None:
    """The page's own words; None if the result is not a page."""
    if isinstance(value, dict):
        return next((value[key] for key in _TEXT_KEYS if isinstance(value.get(key), str)), None)
    return value if isinstance(value, str) else None


# -------------------------------------------------------------------------------------------- the seeds' rules


def has_no_organic_results(result: Any) -> bool:
    """Return whether a search result, JSON text or object, has an empty `organic` list; False for anything else."""
    found = _parsed(normalise(result))
    organic = found.get("organic") if isinstance(found, dict) else None
    return isinstance(organic, list | dict) and not organic


def shorten_text(result: Any, length: int) -> Any:
    """Cut a result's text to a number of characters; an object or JSON text keeps its other fields."""
    if isinstance(result, Mapping):
        text = result.get("text")
        if isinstance(text, str) and len(text) > length:
            return {**result, "text": text[:length]}
        return result
    if not isinstance(result, str) or len(result) <= length:
        return result
    parsed = value_or_text(result)
    if isinstance(parsed, dict) and isinstance(parsed.get("text"), str):
        return json.dumps(shorten_text(parsed, length), ensure_ascii=False)
    return result[:length]
