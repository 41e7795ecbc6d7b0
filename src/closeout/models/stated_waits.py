"""How long a server asks to wait: the headers of a response, the fields of its body, or its text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from closeout.codec import decode_json

__all__ = ["is_daily", "stated_wait"]

# Times since the epoch, in seconds and in milliseconds: nobody asks to wait for 30 years.
_EPOCH, _EPOCH_MS = 1e9, 1e11
_HOUR = 3600.0  # until a quota of a day is asked for again, if the server does not say when it is reset
_READ = 8192  # bytes of a body that are looked at
_DEEPEST = 6
_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# Units in the languages of servers' texts, by their first letters.
_NAMES: Mapping[str, str] = {
    "ms": r"ms|millis\w*|毫秒",
    "s": r"s|sec\w*|sek\w*|seg\w*|сек\w*|秒|초",
    "m": r"m|min\w*|мин\w*|分钟?|분",
    "h": r"h|hrs?|hours?|stunden?|heures?|horas?|ore|час\w*|小时|時間|시간",
    "d": r"d|days?|tage?n?|jours?|d[ií]as?|天|日",
}
_UNIT = "|".join(f"(?P<{unit}>{names})" for unit, names in _NAMES.items())
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s*(?:{_UNIT})(?![a-z])", re.IGNORECASE)
_SPAN = rf"\d+(?:\.\d+)?\s*(?:{'|'.join(_NAMES.values())})(?![a-z])"
_IN_TEXT = re.compile(
    r"\b(?:in|after|for|wait|nach|dans|en|em|de|tra|fra|через)\s+(?:about |another )?"
    rf"(?P<spoken>(?:{_SPAN}[\s,]*(?:and )?)+)"
    rf"|(?P<written>(?:{_SPAN}\s*)+)(?:[后後후뒤]|later\b)|retry[- ]after\W{{1,3}}(?P<bare>\d+)(?=\.?\Z|[.,;]\s)",
    re.IGNORECASE,
)
_FIELD = re.compile(
    r"(?:xratelimit|ratelimit|quota)?(?:retry(?:after|delay|in)|resets?(?:at|after|in|delay)?|wait(?:time)?)"
    r"(ms|milliseconds|seconds|secs)?"
)
_HEADERS = (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("Retry-After", 1.0), ("X-Retry-After", 1.0))
_RESET = re.compile(r"(?:x-|anthropic-)?rate-?limit-(?:(\w[\w-]*)-)?reset(?:-(\w[\w-]*))?", re.IGNORECASE)
_LIMIT = re.compile(r"(?:remaining|\br)=0\b.*?(?:reset|\bt)=(\d+)", re.IGNORECASE)  # the header RateLimit
_TIMESTAMP = re.compile(r"(?<!\d)1\d{9}(?:\d{3})?(?!\d)")
_MONTH = 31 * 86_400.0  # A number that is a time of the next month is a time.
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")
_DAILY = re.compile(
    r"per[\s_-]?day|/day\b|\bdaily\b|\((?:RPD|TPD)\)|每天|[每今当一]日|pro tag|tages|par jour|quotidien|por día|diari",
    re.IGNORECASE,
)


def stated_wait(headers: Mapping[str, str], body: bytes = b"", now: float | None = None) -> float | None:
    """Return the seconds that a server asks to wait; None if it does not say.

    Args:
        headers: Of the response. `Retry-After` in any form counts before all others; the reset of a limit counts if
            nothing is left of it.
        body: Of the response: Gemini's `retryDelay`, `retry_after`, or "Please try again in 2.1s".
        now: Unix time that dates count from; by default the server's own `Date`, else this machine's clock.
    """
    if now is None:
        now = _date(headers.get("Date") or "") or time.time()
    for name, unit in _HEADERS:
        if (found := _seconds(headers.get(name), now, unit)) is not None:
            return found
    told = [*_resets(headers, now), *_in_body(body, now)]
    wait = max(told, default=None)
    if is_daily(body) and (wait is None or wait < _UNITS["m"]):  # Gemini states the wait of a minute's quota with it
        return _HOUR
    return wait


def is_daily(body: bytes) -> bool:
    """Return whether the body of an error says that the quota of a day is used up."""
    return _DAILY.search(body[:_READ].decode("utf-8", "replace")) is not None


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """Yield the waits of the limits that are used up."""
    if found := _LIMIT.search(headers.get("RateLimit") or ""):
        yield float(found[1])
    for name, value in headers.items():
        if _RESET.fullmatch(name) is None:
            continue
        left = headers.get(re.sub("reset", "remaining", name, flags=re.IGNORECASE), "0")
        if _seconds(left, now, 1.0) == 0 and (wait := _seconds(value, now, 1.0)) is not None:
            yield wait


def _in_body(body: bytes, now: float) -> Iterator[float]:
    try:
        value: Any = decode_json(body[:_READ]) if body else ""
    except ValueError:
        value = body[:_READ].decode("utf-8", "replace")
    yield from _in_value(value, now, 0)


def _in_value(value: Any, now: float, depth: int) -> Iterator[float]:
    if isinstance(value, str):
        for found in _IN_TEXT.finditer(value):
            words = found["spoken"] or found["written"]
            if (wait := _duration(words) if words else _seconds(found["bare"], now, 1.0)) is not None:
                yield wait
        for number in _TIMESTAMP.findall(value):
            if 0 < (wait := int(number[:10]) - now) < _MONTH:
                yield wait
        for moment in _MOMENT.findall(value):
            if (when := _date(moment)) is not None and when > now:
                yield when - now
    elif isinstance(value, list | dict) and depth < _DEEPEST:
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            field = _FIELD.fullmatch(re.sub(r"[-_]", "", str(key)).lower())
            unit = 0.001 if field is not None and (field[1] or "").startswith("m") else 1.0
            if field is not None and (wait := _seconds(each, now, unit)) is not None:
                yield wait
            else:
                yield from _in_value(each, now, depth + 1)


def _seconds(value: Any, now: float, unit: float) -> float | None:
    """Return a wait that is stated as a number, a duration, a date or a time since the epoch."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value).strip().strip('"')
    if text[:1] == "P":  # ISO 8601: P1DT2H
        text = text.strip("PT").replace("T", "")
    try:
        number = float(text)
    except ValueError:
        found = _duration(text) if _PART.sub("", text).strip() == "" else None
        when = _date(text) if found is None else None
        return found if when is None else max(when - now, 0.0)
    if number != number or number == float("inf"):
        return None
    if number >= _EPOCH:
        number = (number / 1000 if number >= _EPOCH_MS else number) - now
        unit = 1.0
    return max(number * unit, 0.0)


def _duration(text: str) -> float | None:
    """Return the seconds of "1m2.5s" or "2 minutes and 3 seconds"; None if there is no such part."""
    parts = [float(found[1]) * _UNITS[str(found.lastgroup)] for found in _PART.finditer(text)]
    return sum(parts) if parts else None


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        pass
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
