"""The whole results behind what a model was shown: a store by handle; reading in pages, by path, by pattern.

The journal keeps the store that survives; here is its protocol, one in memory, and the reading itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from closeout.errors import ToolError
from closeout.outputs.budgets import DEFAULT_BUDGET, ValueCutter, largest_fit
from closeout.outputs.encoding import encode_normal, write_cut
from closeout.outputs.normal import SURROGATE, compact_json, normalise
from closeout.outputs.paths import drill
from closeout.outputs.tokens import count
from closeout.records import record

__all__ = ["Artifact", "ArtifactStore", "MemoryArtifacts", "read_result"]

PAGE_BUDGET = DEFAULT_BUDGET * 9 // 10  # so that a page, once it is escaped, is itself within a result's budget
_LINE = 400  # characters of one matching line that are shown
_MAX_PATTERN = 500  # characters


@record
class Artifact:
    """A whole result. `value` is normal (see `outputs.normal`): what JSON can hold."""

    value: Any
    tool_name: str = ""


@runtime_checkable
class ArtifactStore(Protocol):
    """Where whole results are kept, by handle ("r12")."""

    def put(self, handle: str, artifact: Artifact) -> None: ...

    def get(self, handle: str) -> Artifact | None:
        """The artifact, or None if the handle names none."""


class MemoryArtifacts:
    """A store for one process, one run."""

    def __init__(self) -> None:
        self._kept: dict[str, Artifact] = {}

    def put(self, handle: str, artifact: Artifact) -> None:
        """Keep an artifact; its value is normalised here, so that later changes of the caller's do not show."""
        value = normalise(artifact.value)
        self._kept[handle] = artifact if value is artifact.value else Artifact(value, artifact.tool_name)

    def get(self, handle: str) -> Artifact | None:
        return self._kept.get(handle)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)


def read_result(
    store: ArtifactStore,
    handle: str,
    offset: int = 0,
    path: str | None = None,
    pattern: str | None = None,
    budget: int | None = None,
    *,
    model: str | None = None,
) -> str:
    """More of a stored result, as text within the budget (default 3,600 tokens); says where to go on if there is more.

    `path` goes to a part first ("rows[3].text", "rows[10:20]", "/rows/3"). `offset` skips items of a list, keys of an
    object, characters of a text. `pattern` gives the matching lines of a text, or the matching leaves of a value with
    their paths: a regular expression of the linear-time kind (no look-around, no back-references), without regard to
    case; what is none is searched as plain text.

    Raises ToolError, for the model to read, for an unknown handle and a path that leads nowhere.
    """
    artifact = store.get(handle)
    if artifact is None:
        raise ToolError(f"There is no stored result {handle[:60]!r}. Use a handle that a tool result named.")
    value = artifact.value if not path else drill(artifact.value, path)
    reader = _Reader(handle, path or "", max(budget or PAGE_BUDGET, 1), model)
    if pattern:
        return reader.matches(value, pattern[:_MAX_PATTERN], max(offset, 0))
    if isinstance(value, str):
        return reader.text(value, max(offset, 0))
    if isinstance(value, (list, dict)):
        return reader.items(value, max(offset, 0))
    return compact_json(value)


@record
class _Reader:
    handle: str
    path: str
    budget: int
    model: str | None

    def text(self, source: str, offset: int) -> str:
        """Characters from `offset` on, up to a line border."""
        if offset >= len(source):
            return f"[The text ends at {len(source):,}.]"

        def build(length: int) -> str:
            end = offset + length
            if end < len(source):
                line = source.rfind("\n", offset + length // 2, end)
                end = line + 1 if line >= 0 else end
            part = _writable(source[offset:end])
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
            body = _writable(str(encode_normal(part, "columns", None, model=self.model)))
            if offset + length >= total:
                return body
            return f"{body}\n{self.more(offset + length, total, kind)}"

        found = largest_fit(1, min(len(rest), 4 * self.budget), build, self.fits)
        if found is not None or not rest:
            return found if found is not None else compact_json(rest)
        return self.first(rest[:1] if isinstance(rest, list) else dict(list(rest.items())[:1]), offset, total, kind)

    def first(self, head: list[Any] | dict[str, Any], offset: int, total: int, kind: str) -> str:
        """The first item or key where not even that fits: cut by its structure, with the call that reads on inside."""
        cutter = ValueCutter(head)

        def build(length: int) -> str:
            cut = cutter.cut(length)
            body = _writable(write_cut(cut, "columns"))
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
            body = "\n".join(_writable(f"{place}: {_around(line, pattern)}") for place, line in shown[:length])
            if offset + length >= len(found):
                return body
            return f"{body}\n{self.more(offset + length, len(found), 'matches', pattern)}"

        return self.largest(build, len(shown), 1)

    def more(self, offset: int, total: int, kind: str, pattern: str = "", path: str | None = None) -> str:
        path = self.path if path is None else path
        arguments = compact_json(self.handle)
        arguments += f", path={compact_json(path)}" if path else ""
        arguments += f", pattern={compact_json(pattern)}" if pattern else ""
        return f"[{total - offset:,} of {total:,} {kind} follow: read_result({arguments}, offset={offset})]"

    def largest(self, build: Callable[[int], str], size: int, least: int) -> str:
        found = largest_fit(1, min(size, 64 * self.budget), build, self.fits)
        return build(min(least, size)) if found is None else found

    def fits(self, text: str) -> bool:
        return count(text, self.model).tokens <= self.budget


def _lines(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """What a pattern is tried on: (line number, line) of a text, (path, leaf as text) of a value."""
    if isinstance(value, str):
        for number, line in enumerate(value.split("\n"), 1):
            yield f"{path}:{number}" if path else str(number), line
    elif isinstance(value, dict):
        for key, item in value.items():
            name = key if key.isidentifier() else f"[{compact_json(key)}]"
            yield from _leaves(item, f"{path}.{name}" if path and name == key else f"{path}{name}", key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]", "")
    else:
        yield path, compact_json(value)


def _leaves(value: Any, path: str, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, (dict, list)) or (isinstance(value, str) and "\n" in value):
        yield from _lines(value, path)
    else:
        yield path, value if isinstance(value, str) else compact_json(value)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """A test for lines in time linear in the line, whatever the pattern.

    Python's own `re` backtracks without bound. The schema validator brings Rust's regex engine, which does not, so a
    pattern is tried as a schema's `pattern`; one that this engine does not take is searched as plain text.
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

    def matches(line: str) -> bool:
        return bool(validator.is_valid(_writable(line)))

    return matches


def _around(line: str, pattern: str) -> str:
    """The line, or of a long one the part around the first place that the pattern's plain text stands at."""
    if len(line) <= _LINE:
        return line
    at = max(line.casefold().find(pattern.casefold()) - _LINE // 4, 0)
    return ("…" if at else "") + line[at : at + _LINE] + ("…" if at + _LINE < len(line) else "")


def _writable(text: str) -> str:
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)
