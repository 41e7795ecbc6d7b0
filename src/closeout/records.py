"""The `record` decorator: dataclasses with slots that type checkers treat as frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["record", "shallow_dict"]

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, kw_only: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, kw_only: bool = False, eq: bool = True) -> Any:
    """Make a class a dataclass with slots, frozen for type checkers.

    At run time the fields can be assigned: `dataclass(frozen=True)` sets each one through `object.__setattr__`, which
    costs 1.5 µs for eight fields instead of 0.3 µs, and a turn makes two dozen records. Do not use that: `replace` a
    record instead of changing it.

    Args:
        cls: The class, when used without parentheses.
        kw_only: Make all fields keyword-only.
        eq: Compare and hash by value. Without it two records are equal only if they are the same object.
    """
    make = dataclass(slots=True, kw_only=kw_only, eq=eq, unsafe_hash=eq)
    return make if cls is None else make(cls)


def shallow_dict(cls: type) -> Callable[[Any], dict[str, Any]]:
    """Return a function from a record of the class to a dict of its field values, which are not copied."""
    names = tuple(each.name for each in fields(cls))
    if len(names) < 2:  # attrgetter returns a tuple only for several names
        return lambda record: {name: getattr(record, name) for name in names}
    get = attrgetter(*names)
    return lambda record: dict(zip(names, get(record), strict=True))
