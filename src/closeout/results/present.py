"""Present a result to the model: reduced, in the cheapest form, inside its budget, unable to forge a marker.

`artifacts` keeps the whole result; `summary` writes summaries for people.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from closeout.codec import value_or_text
from closeout.errors import UsageError
from closeout.messages import ToolPolicy
from closeout.records import record
from closeout.results.budgets import (
    DEFAULT_BUDGET,
    TOOL_RESULT_MAX_LENGTH,
    TRUNCATED,
    Elision,
    ValueCutter,
    cut_text,
    describe_missing,
    largest_fit,
    read_call,
)
from closeout.results.encoding import (
    HOPELESS,
    Encoding,
    any_text,
    cut_format,
    encode_normal,
    find_encoding,
    without_marks,
    write_cut,
)
from closeout.results.escape import escape_markers
from closeout.results.html_text import plain_text
from closeout.results.normal import (
    EncodingError,
    compact_json,
    count_lines,
    is_large,
    json_text,
    map_texts,
    normalise,
    without_surrogates,
)
from closeout.results.summary import summarise
from closeout.results.text_encodings import tool_result_text
from closeout.results.tokens import TokenCount, count, count_tokens, estimate_tokens

__all__ = ["Presented", "limit_of", "present"]

SMALL = 256  # characters of compact JSON; for less, choosing a form costs more than it saves
SAMPLE_OVER = 512  # characters; of longer results that surely fit, the tokens are estimated from parts
_DEFAULT_POLICY = ToolPolicy()
_HTML = re.compile(
    r"<(?:!doctype|html|head|body|div|p|span|a|table|tr|ul|ol|li|h[1-6]|br|img|article|section|nav|script|style)\b",
    re.IGNORECASE,
)


@record
class Presented:
    """A result as the model sees it. The text never changes and holds no ids, times or counters."""

    text: str
    tokens: int
    exact: bool = False  # `tokens` was counted with the model's vocabulary, not estimated
    format: str = "text"
    saved_tokens: int = 0  # against the whole value as compact JSON, or the whole string
    truncated: bool = False
    missing: str = ""  # what is not shown, in words: "954 of 1,000 items at rows"


def present(
    value: Any,
    *,
    tool_name: str = "",
    latency_ms: float = 0.0,
    policy: ToolPolicy = _DEFAULT_POLICY,
    budget: int | None = None,
    handle: str = "",
    model: str | None = None,
    is_normal: bool = False,
    known: Mapping[str, Encoding] | None = None,
) -> Presented:
    """Return what the model is shown of a tool's result. Never raises for any value.

    A string is shown as it is, any other value in the policy's format. A result over its budget is cut by its
    structure, and a last line says what is missing and how to read it. Markers of protocols in the text are broken by
    one character reference each (see `escape_markers`).

    Args:
        value: The result, in any Python type.
        tool_name: For errors, and for the form "tool_result".
        latency_ms: For the form "tool_result".
        policy: The tool's format, own budget, and what to leave out.
        budget: Tokens, unless the policy has its own; default 4,000, and never over 100,000 characters.
        handle: The name under which the whole result is stored.
        model: The model whose tokens are counted.
        is_normal: The value went through `normalise` already.
        known: The encodings by name; by default the built-in ones and those of the process.

    Raises:
        UsageError: The policy's format is unknown.
    """
    if policy.format != "auto":
        try:
            find_encoding(policy.format, known)
        except UsageError as error:
            raise UsageError(f"Tool {tool_name!r}: {error}") from None
    shown = value if is_normal or type(value) is str else normalise(value)
    if isinstance(shown, str) and _may_be_binary(shown) and (found := _binary(shown)) is not None:
        text = summarise(found)
        missing = f"{len(found):,} bytes that are not text"
        return Presented(text, estimate_tokens(text), truncated=True, missing=missing)
    if policy.drop_keys or policy.drop_nulls or policy.html_to_text or policy.round_floats is not None:
        shown = _reduced(_parsed(shown), policy)
    budgeted = _Budgeted(
        limit=limit_of(policy, budget),
        handle=handle,
        model=model,
        tool_name=tool_name,
        latency_ms=latency_ms,
        known=known,
    )
    if isinstance(shown, str) and policy.format in ("auto", "text"):
        return budgeted.of_text(shown)
    return budgeted.of_value(shown, policy.format)


def limit_of(policy: ToolPolicy, budget: int | None) -> int:
    """Return the tokens that a result may have: the policy's own budget, else `budget`, else the default."""
    limit = policy.budget_tokens if policy.budget_tokens is not None else budget
    return max(DEFAULT_BUDGET if limit is None else limit, 1)


@dataclass(slots=True)
class _Budgeted:
    """Writes one result inside its budget, and says how to read what does not fit."""

    limit: int
    handle: str
    model: str | None
    tool_name: str
    latency_ms: float
    known: Mapping[str, Encoding] | None

    def of_text(self, source: str) -> Presented:
        if len(source) <= min(64 * self.limit, TOOL_RESULT_MAX_LENGTH):
            text = escape_markers(without_surrogates(source))
            if self.surely_fits(text):
                return Presented(text, estimate_tokens(text, sample_over=SAMPLE_OVER))
            counted = count(text, self.model)
            if self.fits(text, counted):
                return Presented(text, counted.tokens, counted.exact)

        breaks = count_lines(source, 0, len(source))

        def build(length: int) -> tuple[str, str]:
            cut = cut_text(source, length, breaks=breaks)
            missing = f"{cut.tail - cut.head:,} of {len(source):,} characters"
            closing = self.closing(missing, Elision("", "characters", cut.head, len(source)))
            return f"{escape_markers(without_surrogates(cut.text))}\n{closing}", missing

        return self.largest(build, source, "text")

    def of_value(self, value: Any, form: str) -> Presented:
        if form in ("auto", "json", "columns", "raw") and is_large(value):
            if any_text(value, _may_be_binary):
                value = map_texts(value, _without_binary)
            if (cutter := ValueCutter(value)).size(value) > HOPELESS * self.limit:  # not even written out
                return self.cut(cutter, cut_format(value) if form == "auto" else form)
        plain, name = json_text(value), form
        if '"base64:' in plain:
            value = map_texts(value, _without_binary)
            plain = compact_json(value)
        if form != "auto" or len(plain) <= HOPELESS * self.limit:
            name, written = self.written(value, plain, form)
            text = written if name == "tool_result" else escape_markers(written)
            if name == "json" and self.surely_fits(text):
                return Presented(text, estimate_tokens(text, sample_over=SAMPLE_OVER), format=name)
            counted = count(text, self.model)
            if self.fits(text, counted):
                saved = 0 if name == "json" else count(plain, self.model).tokens - counted.tokens
                return Presented(text, counted.tokens, counted.exact, name, saved)
        return self.cut(ValueCutter(value), form if form == name != "auto" else cut_format(value), plain)

    def cut(self, cutter: ValueCutter, shape: str, plain: str = "") -> Presented:
        """As much of a cutter's value as fits; `plain` is the whole as JSON, if it was written."""
        summary = summarise(cutter.value) if shape == "tool_result" else ""

        def build(length: int) -> tuple[str, str]:
            cut = cutter.cut(length)
            missing = describe_missing(cut)
            closing = self.closing(missing, cut.elisions[0] if cut.elisions else None)
            if shape == "tool_result":
                text = self.as_tool_result(without_marks(cut.value), summary)
            else:
                text = escape_markers(without_surrogates(write_cut(cut, shape, note=False, known=self.known)))
            return f"{text}\n{closing}", missing

        return self.largest(build, plain, shape, size=cutter.size(cutter.value))

    def written(self, value: Any, plain: str, form: str) -> tuple[str, str]:
        """The value in the policy's form, or in JSON where that form cannot hold it."""
        if form == "json" or (form == "auto" and len(plain) <= SMALL):
            return "json", plain
        if form == "tool_result":
            return form, self.as_tool_result(value, summarise(value))
        try:
            encoded = encode_normal(value, form, None, model=self.model, known=self.known)
        except EncodingError:
            return "json", plain
        return encoded.format, without_surrogates(str(encoded))

    def as_tool_result(self, value: Any, summary: str) -> str:
        """The value in the form "tool_result". Text in it is escaped, our own tags are not."""
        tokens = count_tokens(compact_json(value), self.model)
        return tool_result_text(self.tool_name, value, summary, tokens, self.latency_ms)

    def largest(self, build: Callable[[int], tuple[str, str]], whole: str, form: str, *, size: int = 0) -> Presented:
        """The largest cut that fits with its escapes and its closing line."""
        best = largest_fit(
            1,
            min(len(whole) or size, 64 * self.limit, TOOL_RESULT_MAX_LENGTH),
            build,
            lambda built: self.fits(built[0], count(built[0], self.model)),
        )
        text, missing = best or (self.least(), "everything: the budget is too small")
        counted = count(text, self.model)
        tokens = count(whole, self.model).tokens if whole else counted.tokens * size // max(len(text), 1)
        saved = max(tokens - counted.tokens, 0)
        return Presented(text, counted.tokens, counted.exact, form, saved, truncated=True, missing=missing)

    def fits(self, text: str, counted: TokenCount) -> bool:
        return counted.tokens <= self.limit and len(text) <= TOOL_RESULT_MAX_LENGTH

    def surely_fits(self, text: str) -> bool:
        """Return True if the text fits by its length alone: no vocabulary makes more tokens than there are bytes."""
        size = len(text) if text.isascii() else 4 * len(text)
        return size <= self.limit and len(text) <= TOOL_RESULT_MAX_LENGTH

    def least(self) -> str:
        """Return the shortest sign of a result, for a budget that holds no part of it."""
        options = [TRUNCATED, "…"]
        if self.handle:
            options.insert(0, f"{TRUNCATED} Read it: {read_call(self.handle)}")
        return next((text for text in options if count(text, self.model).tokens <= self.limit), "…")

    def closing(self, missing: str, first: Elision | None) -> str:
        """The last line of a cut result: what is missing, and the call that continues."""
        line = f"{TRUNCATED} Not shown: {missing}."
        if not self.handle:
            return escape_markers(line)
        call = read_call(self.handle)
        if first is not None and len(first.path) <= 100:
            call = read_call(self.handle, path=first.path, offset=None if first.kind == "keys" else first.shown)
        return escape_markers(f"{line} Read on: {call}")


def _reduced(value: Any, policy: ToolPolicy) -> Any:
    """Leave out what the policy says. `drop_keys` are dropped at any depth; `*` and `?` are as in file names."""
    dropped = re.compile("|".join(map(translate, policy.drop_keys))) if policy.drop_keys else None

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
            return plain_text(value)
        return value

    return walk(value)


def _parsed(value: Any) -> Any:
    """A string that is a JSON object or list as that; anything else as it is."""
    is_json = isinstance(value, str) and value.lstrip()[:1] in ("{", "[")
    return normalise(value_or_text(value)) if is_json else value


def _binary(text: str) -> bytes | None:
    """The bytes that `normalise` wrote as "base64:…"; None for another text."""
    try:
        return base64.b64decode(text.removeprefix("base64:"), validate=True)
    except ValueError:
        return None


def _may_be_binary(text: str) -> bool:
    return text.startswith("base64:")


def _without_binary(text: str) -> str:
    """The text, or a summary of the bytes that it encodes: base64 costs tokens and tells the model nothing."""
    found = _binary(text) if _may_be_binary(text) else None
    return text if found is None else f"[{summarise(found)}: not shown]"


class ShownText(str):
    """The text of a result as it is shown by default. `shows` is the record that it is of."""

    shows: Mapping[str, Any]


def shown_text(record: Mapping[str, Any]) -> str | None:
    """Return the `text` of a record of a run; None if its result or error was replaced."""
    text = record.get("text")
    shows = getattr(text, "shows", record)
    is_same = "handle" in record and all(record.get(key) is shows.get(key) for key in ("result", "error"))
    return text if isinstance(text, str) and is_same else None
