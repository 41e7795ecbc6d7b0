"""Numbers of a call that keep the digits they were written with until the schema says which number it takes."""

from __future__ import annotations

from typing import Any

from closeout.parsing.numbers import MAX_DIGITS, WrittenFloat, read_integer
from closeout.repair.schema_rules import SchemaRules

__all__ = ["settled", "too_large"]

_MAX_LEVELS = 32


def settled(value: Any, rules: SchemaRules, *, repaired: bool) -> Any:
    """Return arguments that satisfy a schema with all digits of the numbers that a float would change.

    A schema that takes numbers and texts of digits, such as that of a `Decimal`, gets the text; one that takes whole
    numbers gets those of `9007199254740993.0`. Other numbers stay as they are.

    Args:
        value: The arguments.
        rules: The schema.
        repaired: A repair found the place of the numbers, so that `1.000` may be meant as a thousand.

    Raises:
        ValueError: A number is whole only as a float, or may be meant otherwise. The message is the number.
    """
    return _settled(value, rules.schema, rules, repaired, 0)


def too_large(value: Any) -> str | None:
    """Return a number in a value that is too large for a float, as it was written, or None."""
    if isinstance(value, WrittenFloat):
        return value.text if value - value != 0 else None  # infinite
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(too_large, items)), None)


def _settled(value: Any, schema: Any, rules: SchemaRules, repaired: bool, level: int) -> Any:
    if isinstance(value, WrittenFloat):
        return _settled_number(value, schema, rules, repaired)
    if level > _MAX_LEVELS or not isinstance(value, dict | list):
        return value
    part = rules.resolve(schema)
    for key in ("anyOf", "oneOf"):
        branches = part.get(key)
        if isinstance(branches, list):
            part = next((rules.resolve(each) for each in branches if rules.accepts_part(each, value)), part)
    if isinstance(value, dict):
        members, others = rules.shape_of(part).properties, part.get("additionalProperties")
        return {
            name: _settled(item, members.get(name, others), rules, repaired, level + 1) for name, item in value.items()
        }
    return [_settled(item, part.get("items"), rules, repaired, level + 1) for item in value]


def _settled_number(value: WrittenFloat, schema: Any, rules: SchemaRules, repaired: bool) -> Any:
    types, number = rules.types_of(schema), value.exact
    if "integer" in types and "number" not in types:
        unclear = repaired and read_integer(value.text) is None
        if unclear or not number.is_finite() or abs(number.adjusted()) >= MAX_DIGITS or number != int(number):
            raise ValueError(value.text)
        return value if value.is_exact else int(number)
    if not value.is_exact and types >= {"number", "string"} and rules.accepts_part(schema, value.digits):
        return value.digits
    return value
