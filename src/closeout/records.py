"""`record`: a frozen dataclass with slots, made at a third of the usual cost. What the records are lives with their
rooms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["record", "shallow_dict"]

T = TypeVar("T")


class _Factory:
    """Stands in a signature for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
_OPEN = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, kw_only: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, **options: Any) -> Any:
    """`@dataclass(frozen=True, slots=True)`, whose `__init__` assigns its fields as an ordinary class does.

    The usual one goes through `object.__setattr__` with each field's name: 1.5 µs for eight fields, where assignment is
    0.2. A turn makes two dozen records, so that is a twentieth of what a turn costs. To be assigned to, a record is for
    the time of its `__init__` of another class, which has the same slots and is not frozen. Everything else is the
    dataclass: `fields`, `replace`, comparison, `FrozenInstanceError`.
    """

    def make(plain: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True, **options)(plain)
        setattr(made, "__init__", _init(made))  # noqa: B010  a method, which a checker lets nobody assign
        return made

    return make if cls is None else make(cls)


def shallow_dict(cls: type) -> Callable[[Any], dict[str, Any]]:
    """A function from a record of the class to its values by name, its fields as they are: a fifth of `asdict`'s cost.

    Written out with the names in it, as the classes' `__init__` is.
    """
    names: dict[str, Any] = {}
    pairs = ", ".join(f"{each.name!r}: record.{each.name}" for each in fields(cls))
    exec(f"def values(record):\n    return {{{pairs}}}", names)  # noqa: S102  as dataclass does
    values: Callable[[Any], dict[str, Any]] = names["values"]
    return values


_become: Callable[[object, type], None] = object.__dict__["__class__"].__set__
# Without a global lock a change of class stops all threads.
_FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def _init(cls: type) -> Callable[..., None]:
    twin = type(cls)(f"_Open{cls.__name__}", (cls,), {"__slots__": (), **_OPEN, "__module__": cls.__module__})
    names: dict[str, Any] = {"_FACTORY": _FACTORY, "_become": _become, "_open": twin, "_type": type}
    positional: list[str] = ["self"]
    keywords: list[str] = []
    made: list[str] = []
    for each in fields(cls):
        names[f"_set_{each.name}"] = getattr(cls, each.name).__set__
        (keywords if each.kw_only else positional).append(_parameter(each, names))
        if each.default_factory is not MISSING:
            names[f"_make_{each.name}"] = each.default_factory
            made.append(f"    if {each.name} is _FACTORY: {each.name} = _make_{each.name}()")
    slots = [each.name for each in fields(cls)]
    by_slot = [f"_set_{name}(self, {name})" for name in slots]
    if _FREE_THREADED or not slots:
        body = [*made, *(f"    {line}" for line in by_slot or ["pass"])]
    else:
        body = [
            *made,
            "    _kind = _type(self)",
            "    try:",
            "        _become(self, _open)",
            "    except TypeError:  # a subclass with attributes of its own",
            *(f"        {line}" for line in by_slot),
            "    else:",
            *(f"        self.{name} = {name}" for name in slots),
            "        self.__class__ = _kind",
        ]
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({parameters}):\n" + "\n".join(body), names)  # noqa: S102  as dataclass does
    init: Callable[..., None] = names["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = dict(cls.__dict__["__init__"].__annotations__)
    return init


def _parameter(each: Field[Any], names: dict[str, Any]) -> str:
    if each.default_factory is not MISSING:
        return f"{each.name}=_FACTORY"
    if each.default is MISSING:
        return each.name
    names[f"_default_{each.name}"] = each.default
    return f"{each.name}=_default_{each.name}"
