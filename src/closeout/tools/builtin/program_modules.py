"""The module `statistics` for programs. The sandbox has no such module, so this process computes its functions."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from pydantic_monty import ExternalModule

__all__ = ["MODULE_FUNCTIONS", "external_modules", "host_function", "value_of"]

_NAMES = (
    "correlation", "covariance", "fmean", "geometric_mean", "harmonic_mean", "mean", "median", "median_high",
    "median_low", "mode", "multimode", "pstdev", "pvariance", "stdev", "variance",
)  # fmt: skip

MODULE_FUNCTIONS = {f"statistics.{name}": getattr(statistics, name) for name in _NAMES}
"""The functions, by the names under which a program calls them."""

# The sandbox passes on a view of a dict as its repr.
_VIEW = re.compile(r"dict_(?:keys|values)\((\[.*\])\)", re.DOTALL)


def host_function(name: str) -> Callable[..., None]:
    """Return a function for the sandbox whose calls come back to this process under `name`."""

    def function(*_: Any, **__: Any) -> None: ...

    function.__name__ = function.__qualname__ = name
    return function


def external_modules() -> dict[str, ExternalModule]:
    """Return the modules for the sandbox, whose functions are computed by `value_of`."""
    from pydantic_monty import ExternalModule

    stubs = "".join(f"def {name}(*args: Any, **kwargs: Any) -> Any: ...\n" for name in _NAMES)
    functions = {name: host_function(f"statistics.{name}") for name in _NAMES}
    return {"statistics": ExternalModule(functions, stubs="from typing import Any\n" + stubs, id=UUID(int=0))}


def value_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of a module. Return its value or its exception, in the sandbox's form."""
    try:
        return {"return_value": MODULE_FUNCTIONS[name](*map(_listed, args), **kwargs)}
    except TypeError as error:
        is_text = any(isinstance(each, str) for each in args)
        return {"exception": TypeError(f"{error}. Pass a list: list(…)") if is_text else error}
    except (ValueError, ArithmeticError, AttributeError) as error:
        return {"exception": ValueError(str(error))}


def _listed(value: Any) -> Any:
    view = _VIEW.fullmatch(value) if isinstance(value, str) else None
    try:
        return ast.literal_eval(view[1]) if view else value
    except (ValueError, SyntaxError):  # NaN, or over 200 levels
        return value
