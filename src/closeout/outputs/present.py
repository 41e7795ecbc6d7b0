"""The face of a result that the model sees: slim, in the cheapest form, inside its budget, unable to forge a marker.

The whole result stays with `artifacts`; summaries for people are `summary`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from closeout.errors import UsageError
from closeout.messages import ToolPolicy
from closeout.outputs.budgets import (
    DEFAULT_BUDGET,
    TOOL_RESULT_MAX_LENGTH,
    TRUNCATED,
    Elision,
    ValueCutter,
    cut_text,
    describe_missing,
    largest_fit,
)
from closeout.outputs.encoding import FORMATS, HOPELESS, cut_format, encode_normal, write_cut
from closeout.outputs.escape import escape_markers
from closeout.outputs.normal import SURROGATE, EncodingError, compact_json, normalise
from closeout.outputs.slim import is_slimming, slim
from closeout.outputs.summary import summarise
from closeout.outputs.tokens import TokenCount, count, estimate_tokens
from closeout.records import record

__all__ = ["Presented", "present"]

SMALL = 256  # characters of compact JSON; under it the choice of a form saves less than it costs to make
SAMPLE_OVER = 512  # characters; of longer results that surely fit, the tokens are estimated from parts
_DEFAULT_POLICY = ToolPolicy()


@record
class Presented:
    """A result as a model sees it. The text is made once and never changes: no ids, no times, no counters in it."""

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
    policy: ToolPolicy = _DEFAULT_POLICY,
    budget: int | None = None,
    handle: str = "",
    model: str | None = None,
) -> Presented:
    """What the model is given of a tool's result; never raises for any value.

    Strings are shown as they are, other values in the policy's format ("auto": the cheapest lossless). The budget is
    the tool's own (`policy.budget_tokens`), else `budget`, else 4,000 tokens, and never over 100,000 characters; what
    is over it is cut by its structure, and a closing line says what is missing and, with a `handle`, how to read it.
    Markers of protocols in the text are broken by one character reference each (see `escape_markers`).

    Raises UsageError for a policy with an unknown format, naming the tool.
    """
    limit = policy.budget_tokens if policy.budget_tokens is not None else budget
    limit = max(DEFAULT_BUDGET if limit is None else limit, 1)
    if policy.format != "auto" and policy.format not in FORMATS:
        raise UsageError(f"Tool {tool_name!r} asks for the format {policy.format!r}. Use auto, {', '.join(FORMATS)}.")
    if isinstance(value, (bytes, bytearray)) and not _is_text(value):
        return _of_bytes(value)
    shown = value if type(value) is str else normalise(value)
    if is_slimming(policy):
        shown = slim(_parsed(shown), policy)
    face = _Face(limit, handle, model)
    if isinstance(shown, str) and policy.format in ("auto", "text"):
        return face.of_text(shown)
    return face.of_value(shown, policy.format)


@dataclass(slots=True)
class _Face:
    """The room that one result has, and how to read what does not fit."""

    limit: int
    handle: str
    model: str | None

    def of_text(self, source: str) -> Presented:
        if len(source) <= min(64 * self.limit, TOOL_RESULT_MAX_LENGTH):
            text = escape_markers(_writable(source))
            if self.surely_fits(text):
                return Presented(text, estimate_tokens(text, sample_over=SAMPLE_OVER))
            counted = count(text, self.model)
            if self.fits(text, counted):
                return Presented(text, counted.tokens, counted.exact)
        clean = _writable(source)

        def build(length: int) -> tuple[str, str]:
            cut = cut_text(clean, length)
            missing = f"{cut.tail - cut.head:,} of {len(clean):,} characters"
            closing = self.closing(missing, Elision("", "characters", cut.head, len(clean)))
            return f"{escape_markers(cut.text)}\n{closing}", missing

        return self.largest(build, clean, "text")

    def of_value(self, value: Any, form: str) -> Presented:
        plain, name = compact_json(value), form
        if form != "auto" or len(plain) <= HOPELESS * self.limit:
            name, written = self.written(value, plain, form)
            text = escape_markers(written)
            if name == "json" and self.surely_fits(text):
                return Presented(text, estimate_tokens(text, sample_over=SAMPLE_OVER), format=name)
            counted = count(text, self.model)
            if self.fits(text, counted):
                saved = 0 if name == "json" else count(plain, self.model).tokens - counted.tokens
                return Presented(text, counted.tokens, counted.exact, name, saved)
        shape = form if form == name != "auto" else cut_format(value)
        cutter = ValueCutter(value)

        def build(length: int) -> tuple[str, str]:
            cut = cutter.cut(length)
            missing = describe_missing(cut)
            closing = self.closing(missing, cut.elisions[0] if cut.elisions else None)
            return f"{escape_markers(_writable(write_cut(cut, shape, note=False)))}\n{closing}", missing

        return self.largest(build, plain, shape)

    def written(self, value: Any, plain: str, form: str) -> tuple[str, str]:
        """The value in the policy's form, or in JSON where that form cannot hold it."""
        if form == "json" or (form == "auto" and len(plain) <= SMALL):
            return "json", plain
        try:
            encoded = encode_normal(value, form, None, model=self.model)
        except EncodingError:
            return "json", plain
        return encoded.format, _writable(str(encoded))

    def largest(self, build: Callable[[int], tuple[str, str]], whole: str, form: str) -> Presented:
        """The largest cut that fits, counted whole: body, escapes, closing line."""
        best = largest_fit(
            1,
            min(len(whole), 64 * self.limit, TOOL_RESULT_MAX_LENGTH),
            build,
            lambda built: self.fits(built[0], count(built[0], self.model)),
        )
        text, missing = best or (self.least(), "everything: the budget is too small")
        counted = count(text, self.model)
        saved = max(count(whole, self.model).tokens - counted.tokens, 0)
        return Presented(text, counted.tokens, counted.exact, form, saved, truncated=True, missing=missing)

    def fits(self, text: str, counted: TokenCount) -> bool:
        return counted.tokens <= self.limit and len(text) <= TOOL_RESULT_MAX_LENGTH

    def surely_fits(self, text: str) -> bool:
        """Whether the text fits by its length alone: no vocabulary makes more tokens than there are bytes."""
        size = len(text) if text.isascii() else 4 * len(text)
        return size <= self.limit and len(text) <= TOOL_RESULT_MAX_LENGTH

    def least(self) -> str:
        """What still says that a result was here, when the budget holds nothing of it."""
        options = [TRUNCATED, "…"]
        if self.handle:
            options.insert(0, f"{TRUNCATED} Read it: read_result({compact_json(self.handle)})")
        return next((text for text in options if count(text, self.model).tokens <= self.limit), "…")

    def closing(self, missing: str, first: Elision | None) -> str:
        """The line that ends a cut result: what is missing, and the call that reads on from there."""
        line = f"{TRUNCATED} Not shown: {missing}."
        if not self.handle:
            return escape_markers(line)
        arguments = compact_json(self.handle)
        if first is not None and first.path and len(first.path) <= 100:
            arguments += f", path={compact_json(first.path)}"
        if first is not None and first.kind != "keys" and (not first.path or len(first.path) <= 100):
            arguments += f", offset={first.shown}"
        return escape_markers(f"{line} Read on: read_result({arguments})")


def _parsed(value: Any) -> Any:
    """A string that is a JSON object or list as that; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return normalise(json.loads(value))
    except (ValueError, RecursionError):
        return value


def _writable(text: str) -> str:
    """The text as UTF-8 can hold it: a lone surrogate becomes U+FFFD."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def _is_text(value: bytes | bytearray) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_bytes(value: bytes | bytearray) -> Presented:
    text = summarise(value)
    return Presented(text, estimate_tokens(text), truncated=True, missing=f"{len(value):,} bytes that are not text")
