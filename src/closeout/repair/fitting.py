"""Make arguments fit a JSON Schema where the intent is clear: which parameter each is meant for, and its value.

A repaired value is the value that was written: only its form changes. What could be read in two ways stays as it is,
and is then refused: a repaired call is validated as a whole afterwards, in `arguments`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from closeout.messages import Repair
from closeout.parsing.json_text import repair_json
from closeout.parsing.numbers import WrittenFloat, read_integer, read_number
from closeout.repair.schema_rules import ObjectShape, SchemaRules, kind_of, short
from closeout.spelling import fold, words

__all__ = ["Fitting"]

_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # 5,101 is one number or two
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset(("", "null", "NULL", "None", "undefined", "nil"))
_WORD = re.compile(r"[^\W\d_]+")
_GAP = re.compile(r"(?<=[^\W\d_]{2})(?:\s+|[_-])(?=[^\W\d_]{2})")
_LONGEST_SYMBOL = 5  # letters; no unit with its prefix has more ("damol"), and the case of a symbol counts: mW, MW
_INDEX = re.compile(r"\[\d+\]")
_MAX_FITS = 2_000  # values looked at in one repair; bounds schemas whose alternatives multiply
_MAX_LEVELS = 32
_MAX_UNKNOWN = 64  # arguments of an object; one with more of them is meant for something else altogether
_MAX_PIECES = 200  # pieces of one text that is split at its commas
_MIN_LIKENESS = 70.0  # rapidfuzz, 0 to 100: an unknown argument that is so like a parameter was meant for something
_NO_CHANGE = object()

# Names for one and the same thing. A call that lacks one of them and has another one, with a value that fits, means it.
_SYNONYMS = tuple(
    frozenset(line.split())
    for line in """
    q query searchquery search searchterm searchterms keyword keywords
    limit count n num number maxresults numresults resultcount maxitems topk
    url link href weburl pageurl
    path file filename filepath
    directory dir folder directorypath folderpath
    code script program sourcecode codeblock pythoncode
    text content contents body message msg
    language lang
    city location place cityname locationname
    command cmd shellcommand
    expression expr formula
    image img picture
    description desc
    """.strip().splitlines()
)
_PLACEHOLDERS = frozenset(("input", "value", "arg", "arg1", "argument", "param", "parameter", "data"))


def match_names(
    arguments: Mapping[str, Any],
    shape: ObjectShape,
    aliases: Mapping[str, tuple[str, ...]],
    fits: Callable[[Any, str], bool],
) -> list[tuple[str, str, str]]:
    """Return the renames that give arguments their parameters, the surest first.

    A rename is (the name as the model wrote it, the parameter it means, the kind of repair). `fits` tells whether a
    value could be meant for a parameter; it is not asked for declared aliases, case and separators.
    """
    renames: list[tuple[str, str, str]] = []
    unknown = [name for name in arguments if isinstance(name, str) and name not in shape.properties]
    free = [name for name in shape.properties if name not in arguments]

    def take(written: str, parameter: str, kind: str) -> None:
        renames.append((written, parameter, kind))
        unknown.remove(written)
        free.remove(parameter)

    for parameter in list(free):
        for alias in aliases.get(parameter, ()):
            if alias in unknown:
                take(alias, parameter, "argument_alias")
                break
    for written in list(unknown):
        form = fold(written)
        same = [name for name in free if form and fold(name) == form]
        known_as = [name for name in free if form and form in map(fold, aliases.get(name, ()))]
        if len(same) == 1:
            take(written, same[0], "argument_case")
        elif len(known_as) == 1:
            take(written, known_as[0], "argument_alias")
    missing = [name for name in shape.required if name in free]
    if len(unknown) == 1 and len(missing) == 1:
        written, parameter = fold(unknown[0]), fold(missing[0])
        synonyms = any(written in group and parameter in group for group in _SYNONYMS)
        nameless = written in _PLACEHOLDERS and len(shape.properties) == 1
        if (synonyms or nameless) and fits(arguments[unknown[0]], missing[0]):
            take(unknown[0], missing[0], "argument_synonym")
    return renames


def _says_something(written: str, properties: Mapping[str, Any]) -> bool:
    """Tell whether an unknown argument resembles a parameter, so that it must not be dropped."""
    from rapidfuzz import fuzz

    mine, form = {word for word in words(written) if len(word) > 2}, fold(written)
    return any(mine.intersection(words(name)) or fuzz.ratio(form, fold(name)) >= _MIN_LIKENESS for name in properties)


class Fitting:
    """One attempt to make a value fit a schema. `repairs` names what was changed, in order."""

    def __init__(
        self, rules: SchemaRules, *, drop_unknown: bool | tuple[str, ...] = False, effort: list[int] | None = None
    ) -> None:
        self.rules = rules
        self._noted: dict[tuple[str, str], tuple[Repair, int]] = {}
        self._drop_unknown = drop_unknown
        self._effort = [_MAX_FITS] if effort is None else effort  # shared with the attempts that this one makes

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(
            repair if count == 1 else replace(repair, after=f"{repair.after}, and so in {count} places")
            for repair, count in self._noted.values()
        )

    def note(self, kind: str, where: str, before: Any, after: Any) -> None:
        """Record a change. The same change of many items of one list is one entry that counts them."""
        place = kind, _INDEX.sub("[]", where)
        if place in self._noted:
            first, count = self._noted[place]
            self._noted[place] = first, count + 1
        else:
            self._noted[place] = Repair(kind, where, short(before), after=short(after)), 1

    def _trial(self) -> Fitting:
        """An attempt that may be thrown away."""
        return Fitting(self.rules, drop_unknown=self._drop_unknown, effort=self._effort)

    def _adopt(self, trial: Fitting) -> None:
        for place, (repair, count) in trial._noted.items():
            first, before = self._noted.get(place, (repair, 0))
            self._noted[place] = first, before + count

    def fit(self, value: Any, schema: Any, where: str, level: int = 0) -> Any:
        """Return the value, or what it must be to satisfy the schema, as far as that is clear."""
        self._effort[0] -= 1
        if self._effort[0] < 0 or level > _MAX_LEVELS:
            return value
        part = self.rules.resolve(schema)
        for key in ("anyOf", "oneOf"):
            if branches := _listed(part, key):
                value = self._fit_any(value, branches, where, level)
        for branch in _listed(part, "allOf"):
            if "properties" not in self.rules.resolve(branch):  # members are seen together, in shape_of
                value = self.fit(value, branch, where, level + 1)
        types = self.rules.types_of(
            {key: part[key] for key in ("type", "enum", "const", "properties", "items") if key in part}
        )
        if types and not _has_type(value, types):
            changed = self._coerce(value, types, part, where, level)
            value = value if changed is _NO_CHANGE else changed
        if allowed := _listed(part, "enum"):
            value = self._fit_enum(value, allowed, where)
        if isinstance(value, dict):
            return self.fit_object(value, part, where, level)
        if isinstance(value, list) and "items" in part:
            return self._fit_items(value, part["items"], where, level)
        return value

    def _fit_any(self, value: Any, branches: list[Any], where: str, level: int) -> Any:
        """Alternatives: the value itself if one accepts it, else the first that accepts what it can be made into."""
        if any(self.rules.accepts_part(branch, value) for branch in branches):
            return value
        kind = kind_of(value)
        likely = sorted(branches, key=lambda branch: kind not in self.rules.types_of(branch))
        for branch in likely:
            trial = self._trial()
            fitted = trial.fit(value, branch, where, level + 1)
            if self.rules.accepts_part(branch, fitted):
                self._adopt(trial)
                return fitted
        return value

    # ------------------------------------------------------------------------------------------ objects and lists

    def fit_object(
        self,
        value: Mapping[str, Any],
        schema: Any,
        where: str,
        level: int = 0,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the object with its members named, typed and completed as the schema says, in their order."""
        shape = self.rules.shape_of(schema)
        if not shape.properties or sum(name not in shape.properties for name in value) > _MAX_UNKNOWN:
            return dict(value)

        def could_be(item: Any, parameter: str) -> bool:
            fitted = self._trial().fit(item, shape.properties[parameter], where, level + 1)
            return self.rules.accepts_part(shape.properties[parameter], fitted)

        new_names = {}
        for written, parameter, kind in match_names(value, shape, aliases or {}, could_be):
            self.note(kind, f"{where}.{parameter}", written, parameter)
            new_names[written] = parameter
        fitted: dict[str, Any] = {}
        for written, item in value.items():
            name = new_names.get(written, written)
            inside = f"{where}.{name}"
            if name not in shape.properties:
                if shape.closed and self._may_drop(written, item, shape.properties):
                    self.note("argument_dropped", inside, item, None)
                else:
                    fitted[name] = item
            elif name not in shape.required and self._is_left_out(item, shape.properties[name]):
                self.note("null_dropped", inside, item, None)
            else:
                fitted[name] = self.fit(item, shape.properties[name], inside, level + 1)
        self._fill(fitted, shape, where, defaults or {})
        return fitted

    def _may_drop(self, written: Any, item: Any, properties: Mapping[str, Any]) -> bool:
        """Tell whether an unknown argument means nothing: it has no value, or nothing can depend on it."""
        if item is None or not self._drop_unknown:
            return item is None
        if isinstance(self._drop_unknown, tuple):
            return written in self._drop_unknown
        return item == "" or not (isinstance(written, str) and _says_something(written, properties))

    def _is_left_out(self, item: Any, schema: Any) -> bool:
        """Tell whether a null, or a word for it, means that an optional argument is not given."""
        if item is not None and not (isinstance(item, str) and item.strip() in _NULLS):
            return False
        if self.rules.accepts_part(schema, item):
            return False
        types = self.rules.types_of(schema)
        return not (isinstance(item, str) and ("null" in types or "string" in types or not types))

    def _fill(self, fitted: dict[str, Any], shape: ObjectShape, where: str, defaults: Mapping[str, Any]) -> None:
        for name in shape.required:
            if name in fitted:
                continue
            default = defaults.get(name, self.rules.resolve(shape.properties.get(name)).get("default", _NO_CHANGE))
            if default is not _NO_CHANGE:
                fitted[name] = default
                self.note("argument_default", f"{where}.{name}", None, default)

    def _fit_items(self, value: list[Any], schema: Any, where: str, level: int) -> list[Any]:
        if len(value) > self._effort[0] or all(self.rules.accepts_part(schema, item) for item in value):
            return value
        return [self.fit(item, schema, f"{where}[{index}]", level + 1) for index, item in enumerate(value)]

    # ------------------------------------------------------------------------------------------ single values

    def _coerce(self, value: Any, types: frozenset[str], schema: Mapping[str, Any], where: str, level: int) -> Any:
        found = _converted(value, types)
        if found is not None:
            kind, changed = found
            self.note(kind, where, value, changed)
            return changed
        if "array" in types and not isinstance(value, list):
            return self._as_list(value, schema, where, level)
        return _NO_CHANGE

    def _as_list(self, value: Any, schema: Mapping[str, Any], where: str, level: int) -> Any:
        """One value where a list is wanted, or several in one text with commas; unchanged where both can be meant."""
        items = schema.get("items", True)
        attempts: list[list[Any]] = [[value]]
        if isinstance(value, str) and "," in value:
            if _GROUPED.fullmatch(value.strip()) or value.count(",") >= _MAX_PIECES:
                return _NO_CHANGE
            attempts.append([piece.strip() for piece in value.split(",")])
        found = []
        for attempt in attempts:
            trial = self._trial()
            fitted = [trial.fit(item, items, where, level + 1) for item in attempt]
            if isinstance(value, dict) and not isinstance(fitted[0], dict):
                break  # an object is not meant as a list of texts
            if all(self.rules.accepts_part(items, item) for item in fitted):
                found.append(fitted)
        if len(found) != 1:
            return _NO_CHANGE
        self.note("value_to_list", where, value, found[0])
        return found[0]

    def _fit_enum(self, value: Any, allowed: list[Any], where: str) -> Any:
        if not isinstance(value, str) or value in allowed:
            return value
        for choice in allowed:
            if not isinstance(choice, str | bool) and str(choice) == value.strip():
                self.note("enum_case", where, value, choice)
                return choice
        form = _value_form(value)
        same = [choice for choice in allowed if isinstance(choice, str) and _value_form(choice) == form]
        if len(same) != 1:
            return value
        self.note("enum_case", where, value, same[0])
        return same[0]


def _value_form(text: str) -> str:
    """A value without the case of its long words and with one separator: `picnic_tables` is `Picnic Tables`.

    Shorter words may be symbols, whose case has a meaning; beside a digit, a separator may be a sign.
    """
    spaced = _GAP.sub(" ", text.strip())
    return _WORD.sub(lambda word: word[0].casefold() if len(word[0]) > _LONGEST_SYMBOL else word[0], spaced)


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _has_type(value: Any, types: frozenset[str]) -> bool:
    kind = kind_of(value)
    return kind in types or (kind == "integer" and "number" in types)


def _converted(value: Any, types: frozenset[str]) -> tuple[str, Any] | None:
    """Return (kind of repair, the value as one of the types); None where it cannot be one."""
    if isinstance(value, str):
        return _from_text(value, types)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        if "boolean" in types and value in (0, 1):
            return "number_to_boolean", bool(value)
        return ("number_to_string", str(value)) if "string" in types else None
    if isinstance(value, WrittenFloat):
        return ("number_to_string", value.text) if "string" in types else None
    if isinstance(value, list) and len(value) == 1 and "array" not in types and _has_type(value[0], types):
        return "list_to_value", value[0]
    if isinstance(value, dict) and "string" in types and "array" not in types:
        return "object_to_string", json.dumps(value, ensure_ascii=False)
    return None


def _from_text(text: str, types: frozenset[str]) -> tuple[str, Any] | None:
    word = text.strip()
    if types & {"integer", "number"}:
        number = read_number(word) if "number" in types else read_integer(word)
        if number is not None:
            return "string_to_number", number
    if "boolean" in types and word in _BOOLEANS:
        return "string_to_boolean", _BOOLEANS[word]
    if "null" in types and word in _NULLS:
        return "string_to_null", None
    for kind, opening, wanted in (("string_to_list", "[", list), ("string_to_object", "{", dict)):
        if ("array" if wanted is list else "object") in types and opening in word[:16]:
            read = repair_json(word)
            if read.ok and isinstance(read.value, wanted):
                return kind, read.value
    return None
