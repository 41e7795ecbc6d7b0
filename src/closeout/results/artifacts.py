"""Store whole results by handle, and read them in pages, by path and by pattern."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from closeout.errors import ToolError
from closeout.records import record
from closeout.results.budgets import DEFAULT_BUDGET, ValueCutter, largest_fit, path_step, read_call
from closeout.results.encoding import encode_normal, write_cut
from closeout.results.normal import compact_json, normalise, without_surrogates
from closeout.results.tokens import count

__all__ = ["Artifact", "ArtifactStore", "MemoryArtifacts", "NormalArtifacts", "drill", "read_result"]

PAGE_BUDGET = DEFAULT_BUDGET * 9 // 10  # Leaves room for escapes: a page is itself a result.
_LINE = 400  # characters of one matching line that are shown
_MAX_PATTERN = 500  # characters


@record
class Artifact:
    """A whole result. `value` is normal: what JSON can hold (see `results.normal`)."""

    value: Any
    tool_name: str = ""


@runtime_checkable
class ArtifactStore(Protocol):
    """A store of whole results by handle ("r12")."""

    def put(self, handle: str, artifact: Artifact) -> None:
        """Store an artifact."""

    def get(self, handle: str) -> Artifact | None:
        """Return the artifact of a handle, or None."""


class MemoryArtifacts:
    """A store for one process, one run."""

    def __init__(self) -> None:
        self._kept: dict[str, Artifact] = {}

    def put(self, handle: str, artifact: Artifact) -> None:
        """Store an artifact. Its value is copied, so that later changes of the original do not show."""
        value = normalise(artifact.value)
        self._kept[handle] = artifact if value is artifact.value else Artifact(value, artifact.tool_name)

    def get(self, handle: str) -> Artifact | None:
        """Return the artifact of a handle, or None."""
        return self._kept.get(handle)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)


class NormalArtifacts(MemoryArtifacts):
    """A store for values that are normal and never changed: the results of a run. It does not copy them."""

    def put(self, handle: str, artifact: Artifact) -> None:
        """Store an artifact as it is."""
        self._kept[handle] = artifact


def read_result(
    store: ArtifactStore,
    handle: str,
    offset: int = 0,
    *,
    path: str | None = None,
    pattern: str | None = None,
    budget: int | None = None,
    model: str | None = None,
) -> str:
    """Return more of a stored result, as text inside a budget; the last line says how to continue.

    Args:
        store: The stored results.
        handle: The result's name.
        offset: Items of a list, keys of an object, characters of a text, or matches to skip.
        path: A part of the result: "rows[3].text", "rows[10:20]", "/rows/3".
        pattern: Return only the matching lines of a text, or the matching leaves of a value with their paths. A
            regular expression without look-around and back-references, case-insensitive; anything else is searched
            as plain text.
        budget: Tokens; default 3,600.
        model: The model whose tokens are counted.

    Raises:
        ToolError: The handle is unknown, or the path leads nowhere. The text is for the model.
    """
    artifact = store.get(handle)
    if artifact is None:
        raise ToolError(f"No stored result is called {handle[:60]!r}. Use a handle that a tool result named.")
    value = artifact.value if not path else drill(artifact.value, path)
    reader = _ArtifactReader(handle, path or "", max(budget or PAGE_BUDGET, 1), model)
    if pattern:
        return reader.matches(value, pattern[:_MAX_PATTERN], max(offset, 0))
    if isinstance(value, str):
        return reader.text(value, max(offset, 0))
    if isinstance(value, (list, dict)):
        return reader.items(value, max(offset, 0))
    return compact_json(value)


@record
class _ArtifactReader:
    handle: str
    path: str
    budget: int
    model: str | None

    def text(self, source: str, offset: int) -> str:
        """Characters from `offset` on, up to the end of a line."""
        if offset >= len(source):
            return f"[The text ends at {len(source):,}.]"

        def build(length: int) -> str:
            end = offset + length
            if end < len(source):
                line = source.rfind("\n", offset + length // 2, end)
                end = line + 1 if line >= 0 else end
            part = without_surrogates(source[offset:end])
            return part if end >= len(source) else f"{part}\n{self.more(end, len(source), 'characters')}"

        return self.largest(build, len(source) - offset, 64)

    def items(self, value: list[Any] | dict[str, Any], offset: int) -> str:
        """Whole items or keys from `offset` on; if not one fits, the first of them, cut."""
        total, kind = len(value), "items" if isinstance(value, list) else "keys"
        if offset and offset >= total:
            return f"[There are {total:,} {kind}.]"
        rest = value[offset:] if isinstance(value, list) else dict(list(value.items())[offset:])

        def build(length: int) -> str:
            part = rest[:length] if isinstance(rest, list) else dict(list(rest.items())[:length])
            body = without_surrogates(str(encode_normal(part, "columns", None, model=self.model)))
            if offset + length >= total:
                return body
            return f"{body}\n{self.more(offset + length, total, kind)}"

        found = largest_fit(1, min(len(rest), 4 * self.budget), build, self.fits)
        if found is not None or not rest:
            return found if found is not None else compact_json(rest)
        return self.first(rest[:1] if isinstance(rest, list) else dict(list(rest.items())[:1]), offset, total, kind)

    def first(self, head: list[Any] | dict[str, Any], offset: int, total: int, kind: str) -> str:
        """The first item or key, if not even that fits: cut by its structure, with the call that continues inside."""
        cutter = ValueCutter(head)

        def build(length: int) -> str:
            cut = cutter.cut(length)
            body = without_surrogates(write_cut(cut, "columns"))
            for loss in (loss for loss in cut.elisions[:1] if loss.path):
                place = re.sub(r"^\[0\]", f"[{offset}]", loss.path)
                inside = f"{self.path}.{place}" if self.path and place[:1] not in ("", "[") else self.path + place
                body += "\n" + self.more(loss.shown if loss.kind != "keys" else 0, loss.total, loss.kind, path=inside)
            return body if offset + 1 >= total else f"{body}\n{self.more(offset + 1, total, kind)}"

        return self.largest(build, 64 * self.budget, 1)

    def matches(self, value: Any, pattern: str, offset: int) -> str:
        """Matching lines or leaves from the `offset`-th match on, each with its place."""
        matching = _matcher(pattern)
        found = [line for line in _lines(value, self.path) if matching(line[1])]
        if not found:
            return f"[Nothing matches {pattern!r}.]"
        shown = found[offset:]
        if not shown:
            return f"[There are {len(found):,} matches.]"

        def build(length: int) -> str:
            body = "\n".join(without_surrogates(f"{place}: {_around(line, pattern)}") for place, line in shown[:length])
            if offset + length >= len(found):
                return body
            return f"{body}\n{self.more(offset + length, len(found), 'matches', pattern)}"

        return self.largest(build, len(shown), 1)

    def more(self, offset: int, total: int, kind: str, pattern: str = "", path: str | None = None) -> str:
        call = read_call(self.handle, path=self.path if path is None else path, pattern=pattern, offset=offset)
        return f"[{total - offset:,} of {total:,} {kind} follow: {call}]"

    def largest(self, build: Callable[[int], str], size: int, least: int) -> str:
        found = largest_fit(1, min(size, 64 * self.budget), build, self.fits)
        return build(min(least, size)) if found is None else found

    def fits(self, text: str) -> bool:
        return count(text, self.model).tokens <= self.budget


def _lines(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the lines to match a pattern against: (line number, line) of a text, (path, leaf as text) of a value."""
    if isinstance(value, str):
        for number, line in enumerate(value.split("\n"), 1):
            yield f"{path}:{number}" if path else str(number), line
    elif isinstance(value, dict):
        for key, item in value.items():
            step = path_step(key)
            yield from _leaves(item, path + step if path else step.removeprefix("."))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]")
    else:
        yield path, compact_json(value)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, (dict, list)) or (isinstance(value, str) and "\n" in value):
        yield from _lines(value, path)
    else:
        yield path, value if isinstance(value, str) else compact_json(value)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """A test for lines, in time linear in the line for every pattern.

    Python's `re` backtracks without bound; the schema validator's regex engine does not, so a pattern is tried as a
    schema's `pattern`. One that this engine refuses is searched as plain text.
    """
    plain = pattern.casefold()
    if re.fullmatch(r"[\w\s,;:@#%&=/<>!'\"~`-]*", pattern):
        return lambda line: plain in line.casefold()
    import jsonschema_rs

    try:
        options = jsonschema_rs.RegexOptions(size_limit=1_000_000, dfa_size_limit=2_000_000)
        validator = jsonschema_rs.validator_for({"pattern": f"(?i){pattern}"}, pattern_options=options)
    except (ValueError, UnicodeError):
        return lambda line: plain in line.casefold()
    return lambda line: bool(validator.is_valid(without_surrogates(line)))


def _around(line: str, pattern: str) -> str:
    """The line, or the part of a long one around the first place that has the pattern as plain text."""
    if len(line) <= _LINE:
        return line
    at = max(line.casefold().find(pattern.casefold()) - _LINE // 4, 0)
    return ("…" if at else "") + line[at : at + _LINE] + ("…" if at + _LINE < len(line) else "")


# ------------------------------------------------------------------------------------------------ paths

_STEP = re.compile(
    r"""\.?\[\s*(?:(?P<start>-?\d{0,18})\s*(?P<colon>:)\s*(?P<end>-?\d{0,18})|(?P<index>-?\d{1,18}|\*)
        |(?P<double>"(?:[^"\\]|\\.)*")|'(?P<single>(?:[^'\\]|\\.)*)')\s*\]
        |\.?(?P<name>[^.\[\]]+)""",
    re.VERBOSE,
)
_MAX_STEPS = 400
_LISTED = 12  # Keys that an error names.


def drill(value: Any, path: str) -> Any:
    """Return the part of a normal value at a path such as `rows[3].name`, `$.rows[10:20]` or `/rows/3/name`.

    A slice of a list is a list; `[*]` means each of its items. Raises `ToolError` that says how far the path led
    and what is there.
    """
    here = value
    walked = ""
    for kind, step in _steps(path):
        here = _take(here, kind, step, walked)
        walked += f"[{step}]" if kind != "name" else f".{step}"
    return here


def _steps(path: str) -> list[tuple[str, Any]]:
    text = path.strip()
    if text.startswith("/"):
        return [("name", part.replace("~1", "/").replace("~0", "~")) for part in text[1:].split("/") if part]
    text = text.removeprefix("$")
    steps: list[tuple[str, Any]] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or len(steps) >= _MAX_STEPS:
            raise ToolError(
                f'The path {path[:200]!r} cannot be read at character {at}. Write it like rows[3].name or a["b"].'
            )
        steps.append(_step(found))
        at = found.end()
    return steps


def _step(found: re.Match[str]) -> tuple[str, Any]:
    if found["colon"]:
        start, end = (int(part) if part.strip("-") else None for part in (found["start"], found["end"]))
        return "slice", slice(start, end)
    if found["index"]:
        return ("all", "*") if found["index"] == "*" else ("index", int(found["index"]))
    if found["double"]:
        try:
            return "name", str(json.loads(found["double"]))
        except ValueError:
            return "name", found["double"][1:-1]
    if found["single"] is not None:
        return "name", re.sub(r"\\(.)", r"\1", found["single"])
    return "name", found["name"].strip()


def _take(here: Any, kind: str, step: Any, walked: str) -> Any:
    place = f"At {walked.lstrip('.')}" if walked else "The value"
    if isinstance(here, list):
        if kind in ("slice", "all"):
            return here[step] if kind == "slice" else here
        index = step if kind == "index" else int(step) if re.fullmatch(r"\d{1,18}", step) else None
        if index is None:
            if here and all(isinstance(item, dict) and step in item for item in here):
                return [item[step] for item in here]  # rows[*].name, rows.name
            raise ToolError(f"{place} is a list of {len(here):,} items; take one by number, as in [0].")
        if -len(here) <= index < len(here):
            return here[index]
        raise ToolError(f"{place} has {len(here):,} items; there is no item {index}.")
    if isinstance(here, dict):
        name = str(step)
        if name in here:
            return here[name]
        raise ToolError(f"{place} has no key {name[:80]!r}. Its keys: {_listed(list(here))}.")
    raise ToolError(f"{place} is {_kind(here)}; the path leads no further.")


def _listed(keys: list[str]) -> str:
    shown = ", ".join(key[:60] for key in keys[:_LISTED])
    return shown + (f", … ({len(keys):,} in all)" if len(keys) > _LISTED else "")


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"a text of {len(value):,} characters"
    return "null" if value is None else "a number" if not isinstance(value, bool) else "true or false"
