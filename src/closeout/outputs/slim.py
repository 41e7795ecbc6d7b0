"""What a tool's policy leaves out before its result is encoded: keys, nulls, digits, HTML. Declared, never guessed."""

from __future__ import annotations

import html
import re
from fnmatch import translate
from functools import lru_cache
from typing import Any

from closeout.messages import ToolPolicy

__all__ = ["html_to_text", "is_slimming", "slim"]

_HTML = re.compile(
    r"<(?:!doctype|html|head|body|div|p|span|a|table|tr|ul|ol|li|h[1-6]|br|img|article|section|nav|script|style)\b",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(?:(!--)|(/?)([a-zA-Z][a-zA-Z0-9-]{0,30}))")
_SKIPPED = {
    name: re.compile(rf"</{name}\b", re.IGNORECASE)
    for name in ("script", "style", "noscript", "svg", "template", "head")
}
_NEW_LINE = re.compile(
    r"address|article|aside|blockquote|br|d[dlt]|div|fieldset|fig(?:caption|ure)|footer|form|h[1-6r]|header|main|nav|ol"
    r"|option|p|pre|section|table|tbody|tfoot|thead|tr|ul"
)
_BEFORE = {"li": "\n- ", "td": " | ", "th": " | ", **{f"h{level}": f"\n\n{'#' * level} " for level in range(1, 7)}}


def is_slimming(policy: ToolPolicy) -> bool:
    """Whether the policy leaves anything out."""
    return bool(policy.drop_keys or policy.drop_nulls or policy.html_to_text) or policy.round_floats is not None


def slim(value: Any, policy: ToolPolicy) -> Any:
    """A normal value without what the policy drops.

    `drop_keys` names keys at any depth, `*` and `?` as in file names ("*_url"); `drop_nulls` drops keys whose value is
    null; `round_floats` keeps that many significant digits; `html_to_text` reads strings that hold HTML.
    """
    dropped = _key_pattern(policy.drop_keys) if policy.drop_keys else None

    def walk(value: Any) -> Any:
        if type(value) is dict:
            return {
                key: walk(item)
                for key, item in value.items()
                if not (item is None and policy.drop_nulls) and not (dropped and dropped.match(key))
            }
        if type(value) is list:
            return [walk(item) for item in value]
        if type(value) is float and policy.round_floats is not None:
            return float(f"{value:.{max(policy.round_floats, 1)}g}")
        if type(value) is str and policy.html_to_text and _HTML.search(value):
            return html_to_text(value)
        return value

    return walk(value)


@lru_cache(maxsize=256)
def _key_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(name) for name in names))


def html_to_text(source: str) -> str:
    """The readable text of HTML: headings and list items marked, table cells apart, scripts and styles gone.

    Linear in the source, whatever it holds; what is no tag stays text.
    """
    parts: list[str] = []
    at = 0
    while (found := _TAG.search(source, at)) is not None:
        parts.append(source[at : found.start()])
        end = source.find("-->" if found[1] else ">", found.end())
        if end < 0:
            at = found.start()
            break
        at = end + (3 if found[1] else 1)
        if found[1]:
            continue
        name = found[3].lower()
        if not found[2] and name in _SKIPPED:
            closing = _SKIPPED[name].search(source, at)
            at = len(source) if closing is None else closing.start()
        elif not found[2] and name in _BEFORE:
            parts.append(_BEFORE[name])
        elif _NEW_LINE.fullmatch(name):
            parts.append("\n")
    parts.append(source[at:])
    return _tidy(html.unescape("".join(parts)))


def _tidy(text: str) -> str:
    """Blanks of a line joined, at most one empty line in a row."""
    lines: list[str] = []
    for line in text.split("\n"):
        words = " ".join(line.split()).removeprefix("| ")
        if words or (lines and lines[-1]):
            lines.append(words)
    return "\n".join(lines).strip()
