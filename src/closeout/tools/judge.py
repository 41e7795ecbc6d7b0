"""Is a result worth its place in the conversation? Errors in disguise, empty results, pages without content.

Pure: text and values in, a judgement with its reason out. A judgement never throws anything away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from closeout.messages import ToolPolicy

__all__ = ["GOOD", "Judgement", "judge", "says_tool_failed"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`reason` is a sentence for the model. `ask_again`: the call is worth making in another way, so the turn may be
    rolled back."""

    quality: Literal["good", "error", "empty", "no_content"]
    reason: str = ""
    ask_again: bool = False


GOOD = Judgement("good")

# What the MCP reference server and the research agents' tool managers write in front of a failure.
_FAILED = ("Unknown tool:", "Error executing tool")
_ERROR_WORDS = ("Error:", "ERROR:", "Traceback (most recent call last)", "[ERROR]", "Exception:")
_ITEM_KEYS = ("organic", "results", "items", "hits", "documents", "matches", "search_results", "webPages")
_TEXT_KEYS = ("text", "content", "markdown", "extracted_info", "body", "html")
# Under any other key that holds no list services repeat the question, count, and name themselves.
_FINDING_KEYS = frozenset((*_ITEM_KEYS, *_TEXT_KEYS, "answer", "answerBox", "data", "knowledgeGraph", "result"))

_SHORT_PAGE = 1_500  # characters; an article that mentions a captcha is longer than the wall that asks for one
_MAX_PARSED = 20_000  # characters of JSON text that are parsed to be judged; longer results are not empty

_CAPTCHA = (
    r"captcha|verify (?:that )?you are (?:a )?human|are you a (?:ro)?bot|not a robot|unusual traffic"
    r"|验证码|人机验证|安全验证|访问验证|滑动验证"
)
_BOT_WALL = (
    r"checking your browser|just a moment\.\.\.|attention required!|cloudflare ray id|ddos protection by"
    r"|access denied|request blocked|pardon our interruption|访问被拒绝|请求被拦截"
)
_JAVASCRIPT = (
    r"(?:enable|activate|turn on|requires?|need) javascript|javascript (?:is|must be|to be)"
    r" (?:disabled|enabled|required)|(?:启用|开启|打开) ?javascript"
)
_LOGIN = (
    r"(?:log|sign) ?in to (?:continue|view|see|read|access)|please (?:log|sign) ?in|login required"
    r"|create an account to (?:continue|view|read)|subscribe to (?:continue|read)"
    r"|请先?登录|登录后(?:查看|可见|继续)|登录查看"
)
_HTTP_ERROR = (
    r"\A\W*(?:error )?(?:40[0-9]|410|429|451|50[0-9])\b|\b(?:404|403|410) (?:not found|forbidden|gone)"
    r"|\b(?:502 bad gateway|503 service unavailable|504 gateway time-?out|500 internal server error)"
    r"|page (?:not found|does not exist|cannot be found)|页面不存在|找不到(?:该|此)?页面"
)
_WALLS = {
    "it asks for a captcha": re.compile(_CAPTCHA, re.IGNORECASE),
    "it is a bot wall": re.compile(_BOT_WALL, re.IGNORECASE),
    "it needs JavaScript": re.compile(_JAVASCRIPT, re.IGNORECASE),
    "it is a login wall": re.compile(_LOGIN, re.IGNORECASE),
    "it is an HTTP error page": re.compile(_HTTP_ERROR, re.IGNORECASE),
}


def says_tool_failed(result: object) -> bool:
    """Whether a result is text that begins as a tool manager's own report of a failure does."""
    return isinstance(result, str) and result.startswith(_FAILED)


def judge(value: Any, policy: ToolPolicy, tool_name: str = "The tool") -> Judgement:
    """What a call that did not raise brought. `policy` declares where the items are and whether it reads pages."""
    if isinstance(value, str):
        if value.startswith(_FAILED):
            return Judgement("error", value[:300], ask_again=True)
        if value.startswith(_ERROR_WORDS):
            return Judgement("error", value[:300])
    elif isinstance(value, Mapping):
        error = _error_in(value)
        if error:
            return Judgement("error", error)
    empty = _judge_emptiness(value, policy, tool_name)
    if empty is not GOOD:
        return empty
    return _judge_page(value, tool_name) if policy.check_content else GOOD


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
    if policy.empty_at:
        found = _parsed(value, policy.empty_at) if isinstance(value, str) else value
        if isinstance(found, Mapping) and _brought_nothing(found, policy.empty_at):
            return Judgement("empty", f"{tool_name} found nothing: ask with other words.", ask_again=True)
    if not isinstance(value, str) and isinstance(value, Mapping):
        keys = [key for key in _ITEM_KEYS if key in value]
        if keys and all(is_empty(value[key]) for key in keys):
            return Judgement("empty", f"{tool_name} found nothing: ask with other words.", ask_again=True)
    if value is None or value in ("", "[]", "{}") or (isinstance(value, list | tuple | dict) and not value):
        return Judgement("empty", f"{tool_name} returned nothing.", ask_again=bool(policy.empty_at))
    return GOOD


def _brought_nothing(found: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    """Whether the declared places hold nothing; where there are none of them, whether others hold nothing either."""
    if any(key in found for key in keys):
        return all(is_empty(found.get(key)) for key in keys)
    # Services leave an empty place out; but a tool may also answer in another shape than was declared for its name.
    return not any(items if isinstance(items, list) else key in _FINDING_KEYS and items for key, items in found.items())


def is_empty(items: Any) -> bool:
    """Nothing, or a wrapper around nothing such as `{"value": []}`."""
    if isinstance(items, Mapping):
        return not items or ("value" in items and not items["value"])
    return not items


@lru_cache(maxsize=64)
def _filled(keys: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(key) for key in keys)
    return re.compile(rf'"(?:{names})"\s*+:\s*+[\[{{]\s*+[^\s\]}}]')


def _parsed(text: str, keys: tuple[str, ...]) -> Any:
    """JSON text as its value, unless a look at it shows that there are items, or that it is too long to be empty."""
    if text.lstrip()[:1] != "{" or len(text) > _MAX_PARSED or _filled(keys).search(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# -------------------------------------------------------------------------------------------- pages


def _judge_page(value: Any, tool_name: str) -> Judgement:
    text = _page_text(value)
    if text is None or len(text) > _SHORT_PAGE:
        return GOOD
    if not text.strip():
        return Judgement("no_content", f"{tool_name} brought no text: use another source.", ask_again=True)
    for reason, pattern in _WALLS.items():
        if pattern.search(text):
            return Judgement(
                "no_content", f"{tool_name} brought no content, {reason}: use another source.", ask_again=True
            )
    return GOOD


def _page_text(value: Any) -> str | None:
    """The page's own words; None where the result is not a page or is plainly long enough."""
    if isinstance(value, str) and value.lstrip()[:1] == "{" and len(value) <= 4 * _SHORT_PAGE:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    if isinstance(value, Mapping):
        return next((value[key] for key in _TEXT_KEYS if isinstance(value.get(key), str)), None)
    return value if isinstance(value, str) else None
