"""Summarise a result in one line: its shape, its size, its first words, in English or Chinese."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from closeout.errors import UsageError
from closeout.results.normal import compact_json, count_lines, join_surrogates, normalise

__all__ = ["LANGUAGES", "summarise"]

LENGTH = 240  # characters of a summary at most
_SHORT = 160  # characters of a one-line text that is its own summary
_NAMES = 6  # names, titles or items listed before "…"
_LOOKED_AT = 100  # rows examined for their keys

_ITEM_KEYS = ("organic", "results", "items", "hits", "documents", "search_results", "web")
_TITLE_KEYS = ("title", "name", "headline")
_SOURCE_KEYS = ("link", "url", "snippet", "href", "description", "score")

_ENGLISH = {
    "nothing": "no result",
    "table": "{rows:,} rows × {columns:,} columns: {names}",
    "one_row": "1 row × {columns:,} columns: {names}",
    "grid": "{rows:,} rows × {columns:,} columns",
    "empty_list": "an empty list",
    "empty_object": "an empty object",
    "numbers": "{count:,} numbers from {low} to {high}: {names}",
    "items": "{count:,} items: {names}",
    "results": "{count:,} results: {names}",
    "no_results": "no results",
    "object": "{count:,} keys: {names}",
    "text": "text of {count:,} characters, {lines:,} lines: {names}",
    "blank": "an empty text",
    "bytes": "{count:,} bytes{kind}",
    "list_of": "{count:,} items",
    "keys": "{count:,} keys",
    "error": "error: {names}",
    "comma": ", ",
    "semicolon": "; ",
}
_CHINESE = {
    "nothing": "无结果",
    "table": "{rows:,} 行 × {columns:,} 列：{names}",
    "one_row": "1 行 × {columns:,} 列：{names}",
    "grid": "{rows:,} 行 × {columns:,} 列",
    "empty_list": "空列表",
    "empty_object": "空对象",
    "numbers": "{count:,} 个数，{low} 至 {high}：{names}",
    "items": "{count:,} 项：{names}",
    "results": "{count:,} 条结果：{names}",
    "no_results": "没有结果",
    "object": "{count:,} 个键：{names}",
    "text": "文本 {count:,} 字符，{lines:,} 行：{names}",
    "blank": "空文本",
    "bytes": "{count:,} 字节{kind}",
    "list_of": "{count:,} 项",
    "keys": "{count:,} 个键",
    "error": "错误：{names}",
    "comma": "、",
    "semicolon": "；",
}
LANGUAGES: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH, "zh": _CHINESE}

_MAGIC = ((b"\x89PNG", "PNG"), (b"\xff\xd8\xff", "JPEG"), (b"GIF8", "GIF"), (b"%PDF", "PDF"), (b"PK\x03\x04", "ZIP"))


def summarise(value: Any, language: str = "en") -> str:
    """Return one line of at most 240 characters about any value. Never raises for any value.

    >>> summarise([{"date": "2025-01-01", "region": "north"}, {"date": "2025-01-02", "region": "south"}])
    '2 rows × 2 columns: date, region'
    """
    words = LANGUAGES.get(language)
    if words is None:
        raise UsageError(f"Summaries are not available in {language!r}. Use {' or '.join(LANGUAGES)}.")
    if type(value) in (bytes, bytearray):
        kind = next((f" ({name})" for magic, name in _MAGIC if value.startswith(magic)), "")
        return words["bytes"].format(count=len(value), kind=kind)
    try:
        return _line(_WRITERS[type(value)](value, words))
    except Exception:  # another type, or one inside that raises when it is looked at
        value = normalise(value)
        return _line(_WRITERS[type(value)](value, words))


def _line(text: str) -> str:
    """One bounded line; line breaks become blanks."""
    if len(text) > 2 * LENGTH:
        text = text[: 2 * LENGTH]
    text = join_surrogates(" ".join(text.split()))
    return text if len(text) <= LENGTH else text[: LENGTH - 1] + "…"


def _of_text(value: str, words: Mapping[str, str]) -> str:
    if len(value) <= _SHORT and "\n" not in value:
        return value if value and not value.isspace() else words["blank"]
    head = next((line.strip() for line in value[:2_000].splitlines() if line.strip()), "")
    if not head and value.isspace():
        return words["blank"]
    return words["text"].format(count=len(value), lines=count_lines(value, 0, len(value)) + 1, names=_short(head, 100))


def _of_list(value: list[Any], words: Mapping[str, str]) -> str:
    if not value:
        return words["empty_list"]
    seen = value[:_LOOKED_AT]
    if all(type(item) is dict for item in seen):
        titles = _titles(value)
        if titles:
            return words["results"].format(count=len(value), names=_joined(titles, len(value), words["semicolon"]))
        names = list(dict.fromkeys(str(key) for row in seen for key in row))
        shape = "table" if len(value) > 1 else "one_row"
        shown = _joined(names[: 2 * _NAMES], len(names), words["comma"])
        return words[shape].format(rows=len(value), columns=len(names), names=shown)
    if all(type(item) is list for item in seen):
        return words["grid"].format(rows=len(value), columns=max(map(len, seen)))
    shown = _joined([_token(item, words) for item in value[:_NAMES]], len(value), words["comma"])
    if len(value) > 2 and all(type(item) in (int, float) for item in value):
        low, high = (_token(end, words) for end in (min(value), max(value)))
        return words["numbers"].format(count=len(value), low=low, high=high, names=shown)
    return words["items"].format(count=len(value), names=shown)


def _of_object(value: dict[Any, Any], words: Mapping[str, str]) -> str:
    if not value:
        return words["empty_object"]
    error = value.get("error")
    if error and isinstance(error, (str, dict)):
        shown = _token(error, words) if isinstance(error, str) else _short(compact_json(normalise(error)), 200)
        return words["error"].format(names=shown)
    for key in _ITEM_KEYS:
        found = value.get(key)
        if isinstance(found, list) and not found:
            return words["no_results"]
        if isinstance(found, list) and _titles(found):
            return _of_list(found, words)
    parts = [f"{_short(str(key), 40)}: {_token(item, words)}" for key, item in list(value.items())[: 2 * _NAMES]]
    shown = _joined(parts, len(value), words["comma"])
    return shown if len(value) <= _NAMES else words["object"].format(count=len(value), names=shown)


def _titles(rows: list[Any]) -> list[str]:
    """Titles of search results; empty if the rows are something else."""
    head = [row for row in rows[:_NAMES] if isinstance(row, dict)]
    key = next((key for key in _TITLE_KEYS if head and all(isinstance(row.get(key), str) for row in head)), None)
    if key is None or not all(any(source in row for source in _SOURCE_KEYS) for row in head):
        return []
    return [_short(row[key], 50) for row in head]


def _token(value: Any, words: Mapping[str, str]) -> str:
    """A value inside a summary: a small one as it is, a container by its size."""
    if isinstance(value, str):
        return _short(value, 60)
    if isinstance(value, dict):
        return words["keys"].format(count=len(value))
    if isinstance(value, list):
        head = value[0] if value else None
        return _of_list(value, words) if isinstance(head, (dict, list)) else words["list_of"].format(count=len(value))
    return _short(repr(value) if type(value) is float else compact_json(normalise(value)), 40)


def _short(text: str, length: int) -> str:
    if len(text) <= length and text.isprintable():
        return text
    text = " ".join(text[: 4 * length].split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _joined(names: list[str], total: int, separator: str) -> str:
    """Names up to what a summary holds, with "…" where more exist."""
    kept: list[str] = []
    room = LENGTH - 60
    for name in names:
        room -= len(name) + len(separator)
        if room < 0 and kept:
            break
        kept.append(name)
    return separator.join(kept) + (f"{separator}…" if len(kept) < total else "")


_WRITERS: dict[type, Callable[[Any, Mapping[str, str]], str]] = {
    str: _of_text,
    list: _of_list,
    dict: _of_object,
    type(None): lambda _, words: words["nothing"],
    bool: lambda value, _: compact_json(value),
    int: lambda value, _: str(normalise(value)),
    float: lambda value, _: compact_json(normalise(value)),
}
