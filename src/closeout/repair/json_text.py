"""`repair_json`: text that should be JSON → its value, with every repair named. Pure, bounded, never raises.

Strict JSON first, then our tolerant scanner (`json_scan`), the json-repair library last and only on small texts.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from closeout.messages import Repair
from closeout.repair.json_scan import STRICT, Scanner
from closeout.repair.json_strings import Ambiguous, Broken
from closeout.repair.json_tokens import rewrite_tokens

__all__ = ["MAX_REPAIRED", "RepairedJson", "repair_json"]

_FENCE = re.compile(r"\s*+(?:```|~~~)[\w+-]*+[^\S\n]*+(?:\n|(?=[{\[\"]))")
_WRAPPER = re.compile(r"\s*+[A-Za-z_$][\w$.]*+\s*+\(\s*+(?=[{\[\"'\w])")
_ESCAPED_WHOLE = re.compile(r"\s*+(?:\{|\[\s*+\{?)\s*+\\\"")
_AFTER_ROOT = re.compile(r"(?:[\s,;)}\]]|```|~~~)*+")

# json-repair re-reads what stands after each doubtful quote and recurses into brackets: worst cases measured at
# these bounds stay under 20 ms.
_LIBRARY_MAX_CHARACTERS = 1_000
_LIBRARY_MAX_BRACKETS = 16
_MAX_ROOTS = 64

MAX_REPAIRED = 1_000_000  # characters; a broken text longer than this is not worth the seconds of guessing


class RepairedJson(NamedTuple):
    """`value` is what the text means; `repairs` name what was put right, in order; `error` says why there is no value.

    A strictly valid text has no repairs. With an error `value` is None and nothing should be done with it.
    """

    value: Any
    repairs: tuple[Repair, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def repair_json(text: object, *, truncated: bool = False) -> RepairedJson:
    """Reads text that should be JSON, putting right what models commonly get wrong.

    `truncated` says that the model was cut off (`finish_reason` "length"): then only strict, complete JSON is read, and
    nothing is closed on the model's behalf. Never raises; takes time linear in the length of the text.
    """
    if not isinstance(text, str):
        return RepairedJson(None, (), f"expected text, got {type(text).__name__}")
    try:
        value = STRICT.decode(text)
    except (ValueError, RecursionError):
        pass
    else:
        return _complete(text, value, truncated)
    if truncated:
        return RepairedJson(None, (), "the text was cut off before its JSON was complete")
    if not text.strip():
        return RepairedJson(None, (), "the text is empty")
    if len(text) > MAX_REPAIRED:
        return RepairedJson(None, (), f"not JSON, and longer than the {MAX_REPAIRED:,} characters that are repaired")
    return _repair(text)


def _complete(text: str, value: Any, truncated: bool) -> RepairedJson:
    """Strict JSON: as it is, except a string that holds a whole JSON object or list, which was encoded twice."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return RepairedJson(STRICT.decode(value), (Repair("double_encoded", "text", text[:40]),))
        except (ValueError, RecursionError):
            return RepairedJson(value)
    if truncated and isinstance(value, (int, float)) and not isinstance(value, bool):
        return RepairedJson(None, (), "the text was cut off within a number")
    return RepairedJson(value)


def _repair(text: str) -> RepairedJson:
    if _ESCAPED_WHOLE.match(text):
        unescaped = _unescape(text)
        if unescaped is not None:
            inner = repair_json(unescaped) if not _ESCAPED_WHOLE.match(unescaped) else RepairedJson(None, (), "")
            if inner.ok:
                return RepairedJson(inner.value, (Repair("escaped_twice", "text", text[:40]), *inner.repairs))
    failure = Broken("JSON", 0)
    for start, around in _starts(text):
        try:
            value, repairs = _rewritten(text[start:]) or _scanned(text, start)
        except Ambiguous as error:
            return _failed(text, error)
        except Broken as error:
            failure = error
            continue
        if around == "surrounding_text" and not (isinstance(value, (dict, list)) and value):
            continue
        named = (Repair(around, "text", text[:start].strip()[:40]),) if around else ()
        return RepairedJson(value, named + repairs or (Repair("surrounding_text", "text", text[-40:]),))
    return _by_library(text) or _failed(text, failure)


def _unescape(text: str) -> str | None:
    """`{\\"a\\": 1}` read as the inside of a JSON string."""
    try:
        return str(json.loads(f'"{text.strip()}"', strict=False))
    except ValueError:
        return None


def _starts(text: str) -> list[tuple[int, str]]:
    """Where reading may begin, likeliest first, each with the name of what stands before it."""
    fence = _FENCE.match(text)
    if fence:
        return [(fence.end(), "code_fence")]
    starts = []
    beginning = Scanner(text)
    beginning.skip()
    wrapper = _WRAPPER.match(text, beginning.position)
    if wrapper:
        starts.append((wrapper.end(), "call_syntax"))
    else:
        starts.append((1 if text[0] == "\ufeff" else 0, "byte_order_mark" if text[0] == "\ufeff" else ""))
    if text.lstrip("\ufeff \t\r\n")[:1] not in ("{", "["):
        brace = text.find("{")
        bracket = text.find("[") if brace < 0 else -1
        starts.extend((at, "surrounding_text") for at in (brace, bracket) if at >= 0)
    return starts


def _rewritten(text: str) -> tuple[Any, tuple[Repair, ...]] | None:
    """The value of a text that is JSON but for foreign tokens."""
    rewritten = rewrite_tokens(text)
    if rewritten is None:
        return None
    try:
        return STRICT.decode(rewritten.text), rewritten.notes.repairs
    except (ValueError, RecursionError):
        return None


def _scanned(text: str, start: int) -> tuple[Any, tuple[Repair, ...]]:
    scanner = Scanner(text, start)
    value = _all_values(scanner)
    return value, scanner.repairs


def _all_values(scanner: Scanner) -> Any:
    """All root values of the text, brought together into one."""
    scanner.read_value()
    first = scanner.values[0]
    follower = "{" if isinstance(first, dict) else "[" if isinstance(first, list) else ""
    while True:
        while scanner.reopen():
            pass
        character = _past_root(scanner)
        position = scanner.position
        if not character:
            break
        if len(scanner.values) >= _MAX_ROOTS:
            raise Broken("the end of the text", position)
        try:
            if follower and character != follower:
                raise Broken("the end of the text", position)
            scanner.read_value()
        except Broken:
            if not follower:
                raise
            scanner.note("surrounding_text", position)
            break
    _refuse_ambiguous(scanner)
    return _together(scanner)


def _refuse_ambiguous(scanner: Scanner) -> None:
    """Bare quotes within strings after which the text can be read in two ways: better asked than guessed."""
    if not scanner.noted("unescaped_quote"):
        return
    torn = any(scanner.noted(kind) for kind in ("missing_quote", "missing_bracket", "concatenated"))
    if torn or (scanner.noted("surrounding_text") and scanner.text.rstrip()[-1:] in ("}", "]")):
        raise Ambiguous("quotes inside strings to be escaped", scanner.position)


def _past_root(scanner: Scanner) -> str:
    """Passes over what may follow a whole value: fence, semicolon, closing parenthesis, stray comma and brackets."""
    while True:
        character = scanner.skip()
        after = _AFTER_ROOT.match(scanner.text, scanner.position)
        if not after or after.end() == scanner.position:
            return character
        if "," in after[0]:
            scanner.note("trailing_comma")
        if "}" in after[0] or "]" in after[0]:
            scanner.note("extra_bracket")
        scanner.position = after.end()


def _together(scanner: Scanner) -> Any:
    """One value of several that stood one after another.

    Objects that do not contradict each other are one object in pieces; of objects that do, the first counts. Other
    values make a list.
    """
    values = scanner.values
    if len(values) == 1:
        return values[0]
    scanner.note("concatenated")
    objects = [value for value in values if isinstance(value, dict)]
    if not objects:
        return values
    merged: dict[str, Any] = {}
    for value in objects:
        if any(key in merged and merged[key] != value[key] for key in value):
            return next(value for value in objects if value)
        merged.update(value)
    return merged


def _by_library(text: str) -> RepairedJson | None:
    """json-repair's reading of a small, shallow text that begins as an object or a list does."""
    if len(text) > _LIBRARY_MAX_CHARACTERS or text.count("{") + text.count("[") > _LIBRARY_MAX_BRACKETS:
        return None
    if text.lstrip()[:1] not in ("{", "["):
        return None
    import json_repair

    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except Exception:  # a third party's parser on hostile text: whatever it raises means that it cannot read it
        return None
    if not value or not isinstance(value, (dict, list)) or _invented(value, text):
        return None
    return RepairedJson(value, (Repair("json_repair", "text", text[:40]),))


def _invented(value: dict[str, Any] | list[Any], text: str) -> bool:
    """Whether a string in the value is not in the text, is empty for want of a value, or swallowed a delimiter."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, str) and (not item or '"' in item or item not in text):
            return True
    return False


def _failed(text: str, failure: Broken) -> RepairedJson:
    at = failure.position
    near = text[max(0, at - 12) : at + 12].replace("\n", "\\n")
    return RepairedJson(None, (), f"not JSON: expected {failure} at character {at}, near {near!r}")
