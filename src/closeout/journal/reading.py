"""Whether an event that was read back is one: the values in its fields are of the fields' types.

A journal is a file, which others may edit. Where an event is not what it says, it comes back as `Unknown`, as one of a
later version does, so that whoever shows or counts events need not look at each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from closeout.journal.events import EVENT_TYPES, Event, Unknown, event_from
from closeout.messages import Usage

__all__ = ["read_event", "unreadable"]

_NUMBERS = (int, float)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": _NUMBERS,
    "bool": (bool,),
    "Mapping": (Mapping,),
    "tuple": (tuple,),
    "None": (type(None),),
}
_Fields: TypeAlias = tuple[tuple[str, tuple[tuple[type, ...], tuple[type, ...], bool]], ...]
_USAGE = frozenset(each.name for each in fields(Usage))


def read_event(kind: str, values: Mapping[str, Any]) -> Event:
    """The event of a row; `Unknown` for one of a later version, or with values that cannot be its."""
    event = event_from(kind, values)
    whole = all(_fits(getattr(event, name), *how) for name, how in _FIELDS.get(type(event), ()))
    return event if whole else unreadable(kind)


def unreadable(kind: str) -> Unknown:
    return Unknown("main", kind, {"problem": "this row of the journal cannot be read"})


def _expected(kind: type[Event]) -> _Fields:
    """Each field of a known type: what it may be, what its items may be, and whether it is a count of tokens."""
    found = []
    for each in fields(kind):
        outer, _, rest = str(each.type).partition("[")
        alternatives = [part.strip() for part in outer.split("|")]
        if all(part in _TYPES for part in alternatives):
            allowed = tuple(kind for part in alternatives for kind in _TYPES[part])
            items = _TYPES.get(rest.split("[")[0].split(",")[0], ()) if outer == "tuple" else ()
            found.append((each.name, (allowed, items, each.name == "usage")))
    return tuple(found)


def _fits(value: Any, allowed: tuple[type, ...], items: tuple[type, ...], is_usage: bool) -> bool:
    if not isinstance(value, allowed):
        return False
    inner: Any = value
    if is_usage:
        return inner.keys() <= _USAGE and all(count is None or isinstance(count, _NUMBERS) for count in inner.values())
    return not items or all(isinstance(item, items) for item in inner)


_FIELDS: Mapping[type, _Fields] = {kind: _expected(kind) for kind in EVENT_TYPES.values()}
