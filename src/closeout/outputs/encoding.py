"""Values as text for a model: every form, back again, and the choice of the cheapest lossless one for a payload.

The forms' own grammar lives in `columns`, `rawblock`, `markup`; what a value is in JSON, in `normal`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from closeout.errors import UsageError
from closeout.outputs import forms, markup
from closeout.outputs.budgets import Cut, More, ValueCutter, cut_text, describe_missing, largest_fit
from closeout.outputs.columns import from_columns, to_columns
from closeout.outputs.normal import EncodingError, compact_json, normalise
from closeout.outputs.rawblock import read_raw_block, worth_lifting, write_raw_block
from closeout.outputs.tokens import count_tokens, vocabulary_of

__all__ = [
    "FORMATS",
    "LOSSLESS",
    "Encoded",
    "cut_format",
    "decode",
    "describe_missing",
    "encode",
    "encode_normal",
    "write_cut",
]

LOSSLESS = ("json", "columns", "toon", "yaml", "xml", "raw", "compact", "safe_yaml", "tool_result")
FORMATS = (*LOSSLESS, "csv", "markdown", "text")

HOPELESS = 24  # characters of JSON for each token of budget; no lossless form makes up for more
_YAML_LENGTH = 2_000  # characters of JSON; on larger payloads YAML never wins, and it is the slowest to write


class Encoded(str):
    """An encoded value: the text itself, which knows its form.

    `format` is the form's name as `decode` takes it, `lossless` whether `decode` gives the whole value back,
    `missing` what a budget left out, in words ("" if nothing), `cut` the same place by place.
    """

    format: str  # type: ignore[assignment] # the form's name; nobody fills slots in an encoded value
    lossless: bool
    missing: str
    cut: Cut | None
    _value: Any
    _model: str | None

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text, for the model that `encode` was told of."""
        return count_tokens(self, self._model)

    @cached_property
    def baseline_tokens(self) -> int:
        """Tokens of the whole value as compact JSON."""
        return count_tokens(compact_json(self._value), self._model)

    @property
    def saved_tokens(self) -> int:
        """What the form saves against compact JSON; negative where it was asked for and costs more."""
        return self.baseline_tokens - self.tokens


def encode(value: Any, format: str = "auto", budget: int | None = None, *, model: str | None = None) -> Encoded:  # noqa: A002 - the public vocabulary's name
    """Any Python value as text in a form: one of `FORMATS`, or "auto", the lossless one with the fewest tokens.

    A string stays the text it is under "auto" and "text". `budget` is in tokens of `model` (by name, default o200k):
    a value over it is cut by its structure, and the text says how much is missing. Deterministic.

    Raises EncodingError (a UsageError and ValueError) for a value without JSON value, and one that the form cannot
    hold; UsageError for an unknown format or a budget under 1.

    >>> encode([{"id": 1, "ok": True}, {"id": 2, "ok": False}, {"id": 3, "ok": True}], "columns")
    '{"#cols":["id","ok"],"#rows":[[1,true],[2,false],[3,true]]}'
    """
    if format != "auto" and format not in FORMATS:
        raise UsageError(f"There is no format {format!r}. Use auto, {', '.join(FORMATS)}.")
    if budget is not None and budget < 1:
        raise UsageError(f"A budget of {budget} tokens holds nothing. Give at least 1, or None for no limit.")
    return encode_normal(normalise(value, strict=True), format, budget, model=model)


def encode_normal(value: Any, format: str, budget: int | None, *, model: str | None = None) -> Encoded:  # noqa: A002
    """`encode` for a value that is normal already and arguments that are checked."""
    if isinstance(value, str) and format in ("auto", "text"):
        return _encode_text(value, budget, model)
    if format == "auto" and budget is not None and len(compact_json(value)) > HOPELESS * budget:
        return _encode_cut(value, cut_format(value), budget, model)
    name, text = _cheapest(value, model) if format == "auto" else (format, _FORMS[format].write(value))
    encoded = _made(text, name, value, model)
    if budget is None or len(text) <= budget // 4 or encoded.tokens <= budget:
        return encoded
    return _encode_cut(value, cut_format(value) if format == "auto" else name, budget, model)


def decode(text: str, format: str) -> Any:  # noqa: A002
    """The value that `encode` wrote in this form; of csv and markdown, rows of text cells by column name.

    Raises EncodingError if the text is not in the form, UsageError for an unknown format.
    """
    form = _FORMS.get(format)
    if form is None:
        raise UsageError(f"There is no format {format!r} to read. Use {', '.join(FORMATS)}.")
    try:
        return form.read(str(text))
    except EncodingError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as failure:
        raise EncodingError(f"The text is not in the form {format!r}: {failure}") from failure


# ------------------------------------------------------------------------------------------------ the choice


def _cheapest(value: Any, model: str | None) -> tuple[str, str]:
    """The name and text of the cheapest lossless form; of equals the first, plain JSON before all.

    A model without vocabulary of its own is served by the default one: forms of one payload rank alike under all.
    """
    candidates = _candidates(value)
    if len(candidates) == 1:
        return candidates[0]
    judge = model if vocabulary_of(model) else None
    return min(candidates, key=lambda candidate: count_tokens(candidate[1], judge))


def _candidates(value: Any) -> list[tuple[str, str]]:
    """The forms that can win by the value's shape, with their texts."""
    plain = compact_json(value)
    found = [("json", plain)]
    if type(value) not in (dict, list) or not value:
        return found
    columnar = to_columns(value)
    columns = compact_json(columnar)
    if columns != plain:
        found.append(("columns", columns))
    if _any_text(value, worth_lifting):
        found.append(("raw", write_raw_block(columnar)))
    for name in ("toon", "yaml"):
        if name == "yaml" and len(plain) > _YAML_LENGTH:
            break
        try:
            found.append((name, _FORMS[name].write(value)))
        except EncodingError:
            continue
    return found


def _any_text(value: Any, wanted: Callable[[str], bool]) -> bool:
    if isinstance(value, str):
        return wanted(value)
    if type(value) is dict:
        return any(_any_text(item, wanted) for item in value.values())
    return type(value) is list and any(_any_text(item, wanted) for item in value)


# ------------------------------------------------------------------------------------------------ the budget


def _encode_text(text: str, budget: int | None, model: str | None) -> Encoded:
    encoded = _made(text, "text", text, model)
    if budget is None or len(text) <= budget // 4 or (len(text) < 64 * budget and encoded.tokens <= budget):
        return encoded

    def build(length: int) -> Encoded:
        cut = cut_text(text, length)
        made = _made(cut.text, "text", text, model)
        made.lossless, made.missing = False, f"{cut.tail - cut.head:,} of {len(text):,} characters"
        made.cut = Cut(cut)
        return made

    best = largest_fit(0, min(len(text), 64 * budget), build, lambda made: made.tokens <= budget)
    return best or _least(text, "text", budget, model)


def _encode_cut(value: Any, format: str, budget: int, model: str | None) -> Encoded:  # noqa: A002
    cutter = ValueCutter(value)

    def build(length: int) -> Encoded:
        cut = cutter.cut(length)
        made = _made(write_cut(cut, format), format, value, model)
        made.lossless, made.missing, made.cut = False, describe_missing(cut), cut
        return made

    best = largest_fit(1, 64 * budget, build, lambda made: made.tokens <= budget)
    return best or _least(value, format, budget, model)


def _least(value: Any, format: str, budget: int, model: str | None) -> Encoded:  # noqa: A002
    """What still says that something was here when the budget holds nothing of it."""
    options = ("…", "") if format in ("text", "csv", "markdown") else ('"…"', "[]", "0")
    text = next((option for option in options if count_tokens(option, model) <= budget), options[-1])
    made = _made(text, format, value, model)
    made.lossless, made.missing = False, "everything: the budget is too small"
    return made


def cut_format(value: Any) -> str:
    """The form for a value that is over budget: one that has room for the marks of a cut."""
    return "raw" if _any_text(value, worth_lifting) else "columns"


def write_cut(cut: Cut, format: str, *, note: bool = True) -> str:  # noqa: A002
    """A cut value in a form. Only the JSON forms have a place for the marks inside; others get a line (`note`)."""
    if format in ("json", "columns", "raw"):
        return _FORMS[format].write(cut.value)
    text = _FORMS[format].write(_without_marks(cut.value))
    return f"{text}\n# not shown: {describe_missing(cut)}" if note and cut.elisions else text


def _without_marks(value: Any) -> Any:
    if type(value) is dict:
        return {key: _without_marks(item) for key, item in value.items()}
    return [_without_marks(item) for item in value if type(item) is not More] if type(value) is list else value


def _made(text: str, format: str, value: Any, model: str | None) -> Encoded:  # noqa: A002
    encoded = Encoded(text)
    encoded.format, encoded.missing, encoded.cut = format, "", None
    encoded.lossless = format in LOSSLESS or (format == "text" and isinstance(value, str))
    encoded._value, encoded._model = value, model
    return encoded


# ------------------------------------------------------------------------------------------------ the forms


@dataclass(frozen=True, slots=True)
class _Form:
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _read_json(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _write_columns(value: Any) -> str:
    return compact_json(to_columns(value))


def _toon() -> Any:
    try:
        import toon_format
    except ImportError as failure:
        raise EncodingError('TOON needs its package: pip install "closeout[toon]". Or use columns.') from failure
    return toon_format


def _write_toon(value: Any) -> str:
    toon = _toon()
    try:
        return str(toon.encode(value))
    except (ValueError, TypeError, RecursionError) as failure:
        raise EncodingError(f"TOON cannot hold this value: {failure}. Use json.") from failure


def _read_toon(text: str) -> Any:
    return _toon().decode(text)


def _write_yaml(value: Any) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        text = yaml.dump(value, Dumper=dumper, allow_unicode=True, sort_keys=False, width=1 << 30)
    except (yaml.YAMLError, RecursionError, UnicodeError) as failure:
        raise EncodingError(f"YAML cannot hold this value: {failure}. Use json.") from failure
    return str(text).removesuffix("...\n").removesuffix("\n")


def _read_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except yaml.YAMLError as failure:
        raise ValueError(str(failure)) from failure


def _write_text(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)


_FORMS = {
    "json": _Form(compact_json, _read_json),
    "columns": _Form(_write_columns, lambda text: from_columns(_read_json(text))),
    "toon": _Form(_write_toon, _read_toon),
    "yaml": _Form(_write_yaml, _read_yaml),
    "xml": _Form(markup.write_xml, markup.read_xml),
    "raw": _Form(
        lambda value: write_raw_block(to_columns(value)), lambda text: from_columns(read_raw_block(text, _read_json))
    ),
    "compact": _Form(forms.write_compact_value, lambda text: forms.read_compact(text).result),
    "safe_yaml": _Form(forms.write_safe_yaml_value, lambda text: _read_yaml(text)["result"]["data"]),
    "tool_result": _Form(forms.write_tool_result_value, forms.read_tool_result_value),
    "csv": _Form(markup.write_csv, markup.read_csv),
    "markdown": _Form(markup.write_markdown, markup.read_markdown),
    "text": _Form(_write_text, str),
}
