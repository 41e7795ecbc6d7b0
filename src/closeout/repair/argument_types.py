"""Values made to fit their schemas where the intent is clear: "5" for 5, one value for a list, an enum's other case.

Nothing here is final: a repaired call is validated as a whole afterwards, in `arguments`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from closeout.messages import Repair
from closeout.repair.argument_names import close_spelling, fold, match_names
from closeout.repair.json_text import repair_json
from closeout.repair.schema import SchemaRules, kind_of, short

__all__ = ["Fitting"]

_INTEGER = re.compile(r"[+-]?\d{1,18}(?:\.0{1,9})?|[+-]?\d{1,3}(?:,\d{3}){1,5}")
_NUMBER = re.compile(
    r"[+-]?(?:\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(?:[eE][+-]?\d{1,3})?|[+-]?\d{1,3}(?:,\d{3}){1,5}(?:\.\d+)?"
)
_TRUE, _FALSE = frozenset(("true", "yes", "on", "1")), frozenset(("false", "no", "off", "0"))
_NULLS = frozenset(("", "null", "none", "undefined", "nil"))
_INDEX = re.compile(r"\[\d+\]")
_MAX_FITS = 2_000  # values looked at in one repair; bounds schemas whose alternatives multiply
_MAX_LEVELS = 32
_MAX_UNKNOWN = 64  # arguments of an object; one with more of them is meant for something else altogether
_MAX_PIECES = 200  # of one text that is split at its commas
_NO_CHANGE = object()


class Fitting:
    """One attempt to make a value fit a schema. `repairs` names what was changed, in order."""

    def __init__(self, rules: SchemaRules, *, drop_unknown: bool = True, effort: list[int] | None = None) -> None:
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
        """Names a change. The same change of many items of one list is one entry that counts them."""
        place = kind, _INDEX.sub("[]", where)
        if place in self._noted:
            first, count = self._noted[place]
            self._noted[place] = first, count + 1
        else:
            self._noted[place] = Repair(kind, where, short(before), short(after)), 1

    def _adopt(self, attempt: Fitting) -> None:
        for place, (repair, count) in attempt._noted.items():
            first, before = self._noted.get(place, (repair, 0))
            self._noted[place] = first, before + count

    def fit(self, value: Any, schema: Any, where: str, level: int = 0) -> Any:
        """The value, or what it must be to satisfy the schema, as far as that is clear."""
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
        """Alternatives: as it is if one accepts it, else the first that accepts what it can be made into."""
        if any(self.rules.accepts_part(branch, value) for branch in branches):
            return value
        kind = kind_of(value)
        likely = sorted(branches, key=lambda branch: kind not in self.rules.types_of(branch))
        for branch in likely:
            attempt = Fitting(self.rules, drop_unknown=self._drop_unknown, effort=self._effort)
            fitted = attempt.fit(value, branch, where, level + 1)
            if self.rules.accepts_part(branch, fitted):
                self._adopt(attempt)
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
        """The object with its members named, typed and completed as the schema says; order kept."""
        shape = self.rules.shape_of(schema)
        if not shape.properties or sum(name not in shape.properties for name in value) > _MAX_UNKNOWN:
            return dict(value)

        def could_be(item: Any, parameter: str) -> bool:
            attempt = Fitting(self.rules, effort=self._effort)
            fitted = attempt.fit(item, shape.properties[parameter], where, level + 1)
            return self.rules.accepts_part(shape.properties[parameter], fitted)

        renames = match_names(value, shape.properties, shape.required, aliases or {}, could_be)
        new_names = {}
        for written, parameter, kind in renames:
            self.note(kind, f"{where}.{parameter}", written, parameter)
            new_names[written] = parameter
        fitted: dict[str, Any] = {}
        for written, item in value.items():
            name = new_names.get(written, written)
            inside = f"{where}.{name}"
            if name not in shape.properties:
                if shape.closed and self._drop_unknown:
                    self.note("argument_dropped", inside, item, None)
                else:
                    fitted[name] = item
            elif self._is_left_out(item, name, shape.properties[name], shape.required):
                self.note("null_dropped", inside, item, None)
            else:
                fitted[name] = self.fit(item, shape.properties[name], inside, level + 1)
        self._fill(fitted, shape.properties, shape.required, where, defaults or {})
        return fitted

    def _is_left_out(self, item: Any, name: str, schema: Any, required: tuple[str, ...]) -> bool:
        """Whether a null, or a word for it, stands for "not given"."""
        if item is not None and not (isinstance(item, str) and item.strip().casefold() in _NULLS):
            return False
        if self.rules.accepts_part(schema, item):
            return False
        default = self.rules.resolve(schema).get("default", _NO_CHANGE)
        types = self.rules.types_of(schema)
        if isinstance(item, str) and ("null" in types or "string" in types or not types):
            return False
        return name not in required or default is not _NO_CHANGE

    def _fill(
        self,
        fitted: dict[str, Any],
        properties: Mapping[str, Any],
        required: tuple[str, ...],
        where: str,
        defaults: Mapping[str, Any],
    ) -> None:
        for name in required:
            if name in fitted:
                continue
            default = defaults.get(name, self.rules.resolve(properties.get(name)).get("default", _NO_CHANGE))
            if default is not _NO_CHANGE:
                fitted[name] = default
                self.note("argument_default", f"{where}.{name}", None, default)

    def _fit_items(self, value: list[Any], schema: Any, where: str, level: int) -> list[Any]:
        if len(value) > self._effort[0] or all(self.rules.accepts_part(schema, item) for item in value):
            return value
        return [self.fit(item, schema, f"{where}[{index}]", level + 1) for index, item in enumerate(value)]

    # ------------------------------------------------------------------------------------------ single values

    def _coerce(self, value: Any, types: frozenset[str], schema: Mapping[str, Any], where: str, level: int) -> Any:
        for kind, changed in self._candidates(value, types):
            if kind == "":
                continue
            self.note(kind, where, value, changed)
            return changed
        if "array" in types and not isinstance(value, list):
            return self._as_list(value, schema, where, level)
        return _NO_CHANGE

    def _candidates(self, value: Any, types: frozenset[str]) -> list[tuple[str, Any]]:
        if isinstance(value, str):
            return _from_text(value, types)
        if isinstance(value, bool):
            return [("boolean_to_string", "true" if value else "false")] if "string" in types else []
        if isinstance(value, int | float):
            return _from_number(value, types)
        if isinstance(value, list) and len(value) == 1 and "array" not in types and _has_type(value[0], types):
            return [("list_to_value", value[0])]
        if isinstance(value, dict) and "string" in types and "array" not in types:
            return [("object_to_string", json.dumps(value, ensure_ascii=False))]
        return []

    def _as_list(self, value: Any, schema: Mapping[str, Any], where: str, level: int) -> Any:
        """One value where a list is wanted; several in one text, split at commas, where a whole one does not fit."""
        items = schema.get("items", True)
        attempts: list[list[Any]] = [[value]]
        if isinstance(value, str) and "," in value and value.count(",") < _MAX_PIECES:
            attempts.append([piece.strip() for piece in value.split(",")])
        for attempt in attempts:
            trial = Fitting(self.rules, drop_unknown=self._drop_unknown, effort=self._effort)
            fitted = [trial.fit(item, items, where, level + 1) for item in attempt]
            if isinstance(value, dict) and not isinstance(fitted[0], dict):
                break  # a list of objects written as text is nobody's intent
            if all(self.rules.accepts_part(items, item) for item in fitted):
                self.note("value_to_list", where, value, fitted)
                return fitted
        return _NO_CHANGE

    def _fit_enum(self, value: Any, allowed: list[Any], where: str) -> Any:
        if value in allowed and not isinstance(value, bool):
            return value
        for choice in allowed:
            if not isinstance(value, str) and not isinstance(choice, str):
                continue
            if fold(str(choice)) and fold(str(choice)) == fold(str(value)[:128]):
                self.note("enum_case", where, value, choice)
                return choice
        if isinstance(value, str):
            names = {choice: fold(choice) for choice in allowed if isinstance(choice, str)}
            best = close_spelling(value, names)
            if best is not None:
                self.note("enum_spelling", where, value, best)
                return best
        return value


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _has_type(value: Any, types: frozenset[str]) -> bool:
    kind = kind_of(value)
    return kind in types or (kind == "integer" and "number" in types)


def _from_text(text: str, types: frozenset[str]) -> list[tuple[str, Any]]:
    word = text.strip()
    if "integer" in types and _INTEGER.fullmatch(word):
        return [("string_to_number", int(word.replace(",", "").split(".")[0]))]
    if "number" in types and _NUMBER.fullmatch(word):
        number = float(word.replace(",", ""))
        return [("string_to_number", int(number) if _INTEGER.fullmatch(word) else number)]
    if "boolean" in types and word.casefold() in _TRUE | _FALSE:
        return [("string_to_boolean", word.casefold() in _TRUE)]
    if "null" in types and word.casefold() in _NULLS:
        return [("string_to_null", None)]
    for kind, opening, wanted in (("string_to_list", "[", list), ("string_to_object", "{", dict)):
        if ("array" if wanted is list else "object") in types and opening in word[:16]:
            read = repair_json(word)
            if read.ok and isinstance(read.value, wanted):
                return [(kind, read.value)]
    return []


def _from_number(value: float, types: frozenset[str]) -> list[tuple[str, Any]]:
    if "boolean" in types and value in (0, 1):
        return [("number_to_boolean", bool(value))]
    if "string" in types:
        return [("number_to_string", json.dumps(value))]
    return []
