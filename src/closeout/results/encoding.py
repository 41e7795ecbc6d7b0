"""Write values as text for a model, read them back, and choose the cheapest lossless form.

`forms` has the built-in forms. `Agent(encodings=…)` and `register_encoding` add forms of your own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from closeout.errors import UsageError
from closeout.results import text_encodings as forms
from closeout.results.budgets import Cut, More, ValueCutter, cut_text, describe_missing, largest_fit
from closeout.results.normal import EncodingError, compact_json, normalise
from closeout.results.tokens import count_tokens, vocabulary_of

__all__ = [
    "FORMATS",
    "Encoded",
    "Encoding",
    "any_text",
    "check_encoding",
    "cut_format",
    "decode",
    "describe_missing",
    "encode",
    "encode_normal",
    "find_encoding",
    "known_encodings",
    "register_encoding",
    "without_marks",
    "write_cut",
]

HOPELESS = 24  # characters of JSON for each token of budget; no lossless form makes up for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A form that values can be written in.

    Attributes:
        name: What `encode(format=…)` and `@tool(format=…)` call it.
        write: Returns the text of a JSON value: dict with text keys, list, str, int, float, bool or None. Raises
            `EncodingError` if the form cannot hold the value.
        read: Returns the value of a text; None if the form cannot be read back.
        automatic: `format="auto"` may choose it. Needs `read`.
    """

    name: str
    write: Callable[[Any], str]
    read: Callable[[str], Any] | None = None
    automatic: bool = False


def _write_text(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)


_BUILT_IN = (
    Encoding(name="json", write=compact_json, read=forms.read_json),
    Encoding(
        name="columns",
        write=lambda value: compact_json(forms.to_columns(value)),
        read=lambda text: forms.from_columns(forms.read_json(text)),
    ),
    Encoding(name="toon", write=forms.write_toon, read=forms.read_toon),
    Encoding(
        name="raw",
        write=lambda value: forms.write_raw_block(forms.to_columns(value)),
        read=lambda text: forms.from_columns(forms.read_raw_block(text)),
    ),
    Encoding(name="text", write=_write_text, read=str),
    Encoding(name="compact", write=forms.write_compact),
    Encoding(name="safe_yaml", write=forms.write_safe_yaml),
    Encoding(name="tool_result", write=forms.write_tool_result),
)
_sorted_json = json.JSONEncoder(sort_keys=True, allow_nan=False).encode
FORMATS = tuple(encoding.name for encoding in _BUILT_IN)
_encodings = {encoding.name: encoding for encoding in _BUILT_IN}


def register_encoding(encoding: Encoding) -> None:
    """Make a form available to `encode`, `decode`, `@tool(format=…)` and `closeout models encode`, in this process.

    Registering a name again replaces its form. Raises `UsageError` for the name of a built-in form.
    """
    _encodings[check_encoding(encoding).name] = encoding


def check_encoding(encoding: Any) -> Encoding:
    """Return a form of the user's own. Raises `UsageError` if it has the name of a built-in one, or cannot be read."""
    if not isinstance(encoding, Encoding):
        raise UsageError(f"encodings must hold Encoding objects, got {encoding!r:.80}.")
    if encoding.name in FORMATS or encoding.name == "auto" or not encoding.name.isidentifier():
        raise UsageError(
            f"{encoding.name!r} cannot name an encoding: it is built in, or not an identifier. Choose another name."
        )
    if encoding.automatic and encoding.read is None:
        raise UsageError(f"The encoding {encoding.name!r} is automatic, so it needs `read`.")
    return encoding


def known_encodings(own: Sequence[Encoding] = ()) -> Mapping[str, Encoding]:
    """Return all forms by name, those of an agent's own too."""
    return {**_encodings, **{each.name: each for each in own}} if own else _encodings


def find_encoding(name: str, known: Mapping[str, Encoding] | None = None) -> Encoding:
    """Return the form of a name. Raises `UsageError` if the name is unknown."""
    known = known or _encodings
    encoding = known.get(name)
    if encoding is None:
        raise UsageError(f"No format is called {name!r}. Use auto, {', '.join(known)}.")
    return encoding


class Encoded(str):
    """An encoded value: the text, with what is known about it.

    Attributes:
        format: The form's name, as `decode` takes it.
        lossless: `decode` returns the value that was passed to `encode`: this was tried, and compared with it.
        missing: What a budget left out, in words; empty if nothing.
        cut: The same, place by place.
    """

    format: str  # type: ignore[assignment] # str.format makes no sense for an encoded value
    lossless: bool = False
    missing: str
    cut: Cut | None
    _value: Any
    _model: str | None

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text, as the model passed to `encode` counts them."""
        return count_tokens(self, self._model)

    @cached_property
    def baseline_tokens(self) -> int:
        """Tokens of the whole value as compact JSON."""
        return count_tokens(compact_json(self._value), self._model)

    @property
    def saved_tokens(self) -> int:
        """Tokens that the form saves against compact JSON; negative if a form was asked for that costs more."""
        return self.baseline_tokens - self.tokens


def encode(value: Any, format: str = "auto", budget: int | None = None, *, model: str | None = None) -> Encoded:  # noqa: A002 - the public vocabulary's name
    """Write any Python value as text. Deterministic.

    Args:
        value: Any value; a string stays as it is under "auto" and "text".
        format: A form's name, or "auto" for the lossless form with the fewest tokens.
        budget: Tokens of `model`. A larger value is cut by its structure, and the text says how much is missing.
        model: A model's name, to count its tokens; None counts with o200k_base.

    Raises:
        EncodingError: The value has no JSON value, or the form cannot hold it. Also a ValueError.
        UsageError: The format is unknown, or the budget is under 1.

    >>> encode([{"id": 1, "ok": True}, {"id": 2, "ok": False}, {"id": 3, "ok": True}], "columns")
    '{"#cols":["id","ok"],"#rows":[[1,true],[2,false],[3,true]]}'
    """
    if format != "auto":
        find_encoding(format)
    if budget is not None and budget < 1:
        raise UsageError(f"A budget of {budget} tokens holds nothing. Give at least 1, or None for no limit.")
    encoded = encode_normal(normalise(value, strict=True), format, budget, model=model)
    encoded.lossless = not encoded.missing and _reads_back(encoded, find_encoding(encoded.format), value)
    return encoded


def encode_normal(
    value: Any,
    format: str,  # noqa: A002
    budget: int | None,
    *,
    model: str | None = None,
    known: Mapping[str, Encoding] | None = None,
) -> Encoded:
    """Do what `encode` does, for a value that is normal and arguments that are checked. Leaves `lossless` False."""
    if isinstance(value, str) and format in ("auto", "text"):
        return _encode_text(value, budget, model)
    if format == "auto" and budget is not None and len(compact_json(value)) > HOPELESS * budget:
        return _encode_cut(value, cut_format(value), budget, model)
    if format == "auto":
        name, text = _cheapest(value, model, known or _encodings)
    else:
        name, text = format, find_encoding(format, known).write(value)
    encoded = _made(text, name, value, model)
    if budget is None or len(text) <= budget // 4 or encoded.tokens <= budget:
        return encoded
    return _encode_cut(value, cut_format(value) if format == "auto" else name, budget, model)


def decode(text: str, format: str) -> Any:  # noqa: A002
    """Return the value that `encode` wrote in a form.

    Raises:
        EncodingError: The text is not in the form.
        UsageError: The format is unknown, or cannot be read back.
    """
    return _decode(text, find_encoding(format))


def _decode(text: str, encoding: Encoding) -> Any:
    if encoding.read is None:
        raise UsageError(f"The format {encoding.name!r} cannot be read back.")
    try:
        return encoding.read(str(text))
    except EncodingError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as failure:
        raise EncodingError(f"The text is not in the form {encoding.name!r}: {failure}") from failure


# ------------------------------------------------------------------------------------------------ the choice


def _cheapest(value: Any, model: str | None, known: Mapping[str, Encoding]) -> tuple[str, str]:
    """The name and text of the cheapest form that reads back as the value; of equals the first, which is plain JSON.

    Without the model's own vocabulary the default one decides: it ranks the forms of a payload alike.
    """
    candidates = _candidates(value, known)
    if len(candidates) == 1:
        return candidates[0]
    judge = model if vocabulary_of(model) else None
    candidates.sort(key=lambda candidate: count_tokens(candidate[1], judge))
    return next((name, text) for name, text in candidates if name == "json" or _reads_back(text, known[name], value))


def _reads_back(text: str, encoding: Encoding, value: Any) -> bool:
    """Return whether a text decodes to the value. 1, 1.0 and true are three values; the order of keys says nothing."""
    try:
        found = _decode(text, encoding)
        return bool(found == value) and _sorted_json(found) == _sorted_json(value)
    except Exception:  # a form that cannot be read, or a value of a class whose comparison raises
        return False


def _candidates(value: Any, known: Mapping[str, Encoding]) -> list[tuple[str, str]]:
    """The names and texts of the forms that can win, by the value's shape."""
    plain = compact_json(value)
    found = [("json", plain)]
    if type(value) not in (dict, list) or not value:
        return found
    columnar = forms.to_columns(value)
    columns = compact_json(columnar)
    if columns != plain:
        found.append(("columns", columns))
    if any_text(value, forms.worth_lifting):
        found.append(("raw", forms.write_raw_block(columnar)))
    for name in ("toon", *(each.name for each in known.values() if each.automatic)):
        with suppress(EncodingError):
            found.append((name, known[name].write(value)))
    return found


def any_text(value: Any, wanted: Callable[[str], bool]) -> bool:
    """Return whether a normal value has a string, keys excepted, for which `wanted` is true."""
    if isinstance(value, str):
        return wanted(value)
    if type(value) is dict:
        return any(any_text(item, wanted) for item in value.values())
    return type(value) is list and any(any_text(item, wanted) for item in value)


# ------------------------------------------------------------------------------------------------ the budget


def _encode_text(text: str, budget: int | None, model: str | None) -> Encoded:
    encoded = _made(text, "text", text, model)
    if budget is None or len(text) <= budget // 4 or (len(text) < 64 * budget and encoded.tokens <= budget):
        return encoded

    def build(length: int) -> Encoded:
        cut = cut_text(text, length)
        missing = f"{cut.tail - cut.head:,} of {len(text):,} characters"
        return _made(cut.text, "text", text, model, missing=missing, cut=Cut(cut))

    best = largest_fit(0, min(len(text), 64 * budget), build, lambda made: made.tokens <= budget)
    return best or _least(text, "text", budget, model)


def _encode_cut(value: Any, format: str, budget: int, model: str | None) -> Encoded:  # noqa: A002
    cutter = ValueCutter(value)

    def build(length: int) -> Encoded:
        cut = cutter.cut(length)
        return _made(write_cut(cut, format), format, value, model, missing=describe_missing(cut), cut=cut)

    best = largest_fit(1, 64 * budget, build, lambda made: made.tokens <= budget)
    return best or _least(value, format, budget, model)


def _least(value: Any, format: str, budget: int, model: str | None) -> Encoded:  # noqa: A002
    """Return the shortest sign of a value, for a budget that holds no part of it."""
    options = ("…", "") if format == "text" else ('"…"', "[]", "0")
    text = next((option for option in options if count_tokens(option, model) <= budget), options[-1])
    return _made(text, format, value, model, missing="everything: the budget is too small")


def cut_format(value: Any) -> str:
    """Return the form for a value over budget: one that has a place for the marks of a cut."""
    return "raw" if any_text(value, forms.worth_lifting) else "columns"


def write_cut(
    cut: Cut,
    format: str,  # noqa: A002
    *,
    note: bool = True,
    known: Mapping[str, Encoding] | None = None,
) -> str:
    """Write a cut value. Only the JSON forms have a place for marks inside; others get a line (`note`)."""
    encoding = find_encoding(format, known)
    if format in ("json", "columns", "raw"):
        return encoding.write(cut.value)
    text = encoding.write(without_marks(cut.value))
    return f"{text}\n# not shown: {describe_missing(cut)}" if note and cut.elisions else text


def without_marks(value: Any) -> Any:
    """Return a cut value without the marks of what is missing, for a form that has no place for them."""
    if type(value) is dict:
        return {key: without_marks(item) for key, item in value.items()}
    return [without_marks(item) for item in value if type(item) is not More] if type(value) is list else value


def _made(
    text: str,
    format: str,  # noqa: A002
    value: Any,
    model: str | None,
    *,
    missing: str = "",
    cut: Cut | None = None,
) -> Encoded:
    encoded = Encoded(text)
    encoded.format, encoded.missing, encoded.cut = format, missing, cut
    encoded._value, encoded._model = value, model
    return encoded
