"""Tell the methods that a user overrides from those that a class of ours supplies."""

from __future__ import annotations

from inspect import isawaitable
from traceback import walk_tb
from typing import Any, TypeVar

from closeout.errors import UsageError

__all__ = ["failure_of", "is_overridden", "method_of", "returned", "shaped", "text_from"]

T = TypeVar("T", bound=tuple[Any, ...])


def is_overridden(value: object, base: type, name: str) -> bool:
    """Return whether an object has a method of its own in place of a class's: its class's, or set on the object."""
    method = getattr(value, name, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(base, name, None)


async def returned(value: Any) -> Any:
    """Return what a method returned that may be async."""
    return await value if isawaitable(value) else value


def shaped(value: Any, shape: type[T], owner: object, name: str) -> T:
    """Return what a method returned as its NamedTuple. Raises UsageError for a value of another shape."""
    if isinstance(value, shape):
        return value
    try:
        return shape(*(() if isinstance(value, str) else value))
    except TypeError:
        fields = ", ".join(shape._fields)  # type: ignore[attr-defined]
        raise UsageError(f"{type(owner).__name__}.{name} must return ({fields}), got {value!r:.80}.") from None


def text_from(value: Any, owner: object, name: str) -> str:
    """Return the string that a method returned. Raises UsageError for anything else."""
    if not isinstance(value, str):
        raise UsageError(f"{type(owner).__name__}.{name} must return a string, got {value!r:.80}.")
    return value


def method_of(owner: object, name: str, error: BaseException) -> str:
    """Return "Class.method" for the user's innermost method that an exception passed through, else for `name`."""
    for frame, _ in walk_tb(error.__traceback__):
        method = getattr(type(owner), frame.f_code.co_name, None)
        is_own = not str(frame.f_globals.get("__name__")).startswith("closeout.")
        if is_own and getattr(method, "__code__", None) is frame.f_code:
            name = frame.f_code.co_name
    return f"{type(owner).__name__}.{name}"


def failure_of(owner: object, name: str, error: BaseException) -> str:
    """Return one line for a method that raised."""
    if isinstance(error, UsageError):
        return str(error).rstrip(".")
    return f"{method_of(owner, name, error)} raised {type(error).__name__}: {error}"
