"""Tell the methods that a user overrides from those that a class of ours supplies."""

from __future__ import annotations

__all__ = ["is_overridden"]


def is_overridden(value: object, base: type, name: str) -> bool:
    """Return whether an object has a method of its own in place of a class's: its class's, or set on the object."""
    method = getattr(value, name, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(base, name, None)
