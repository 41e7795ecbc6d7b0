"""The signatures of all public names, one a line, so that a changed parameter is a decision and no accident.

python tests/public_signatures.py > tests/data/public_signatures.txt
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from typing import Any

import closeout

PLAIN = (str, int, float, bool, bytes, type(None), tuple)


def shown(function: Any) -> str:
    """The parameters with their defaults; a default that has no short text is shown as `...`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        each.replace(annotation=each.empty)
        if each.default is each.empty or (isinstance(each.default, PLAIN) and "<" not in repr(each.default))
        else each.replace(annotation=each.empty, default=...)
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    return text.replace("Ellipsis", "...")


def lines() -> Iterator[str]:
    for name in closeout.__all__:
        value = getattr(closeout, name)
        if not isinstance(value, type):
            yield f"{name}{shown(value)}" if callable(value) else name
            continue
        plain = issubclass(value, enum.Enum) or getattr(value, "_is_protocol", False)  # Python's own constructor
        yield f"class {name}" if plain else f"class {name}{shown(value)}"
        for member, defined in sorted(vars(value).items()):
            if member.startswith("_"):
                continue
            function = getattr(defined, "__func__", defined)
            if inspect.isfunction(function):
                yield f"    {name}.{member}{shown(function)}"
            elif isinstance(defined, property):
                yield f"    {name}.{member}"


if __name__ == "__main__":
    print("\n".join(lines()))
