"""The module `statistics` for programs. The sandbox has no such module, so this process computes its functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from pydantic_monty import ExternalModule

__all__ = ["MODULE_FUNCTIONS", "external_modules", "value_of"]

_NAMES = (
    "correlation", "covariance", "fmean", "geometric_mean", "harmonic_mean", "mean", "median", "median_high",
    "median_low", "mode", "multimode", "pstdev", "pvariance", "stdev", "variance",
)  # fmt: skip

MODULE_FUNCTIONS = {f"statistics.{name}": getattr(statistics, name) for name in _NAMES}
"""The functions, by the names under which a program calls them."""


def external_modules() -> dict[str, ExternalModule]:
    """Return the modules for the sandbox, whose functions are computed by `value_of`."""
    from pydantic_monty import ExternalModule

    def function_named(name: str) -> Callable[..., None]:
        def function(*_: Any, **__: Any) -> None: ...

        function.__name__ = function.__qualname__ = f"statistics.{name}"
        return function

    stubs = ["from typing import Any"]
    stubs += [f"def {name}(*args: Any, **kwargs: Any) -> Any: ..." for name in _NAMES]
    functions = {name: function_named(name) for name in _NAMES}
    return {"statistics": ExternalModule(functions, stubs="\n".join(stubs), id=UUID(int=0))}


def value_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of a module. Return its value or its exception, in the sandbox's form."""
    try:
        return {"return_value": MODULE_FUNCTIONS[name](*args, **kwargs)}
    except TypeError as error:
        return {"exception": error}
    except (ValueError, ArithmeticError, AttributeError) as error:
        return {"exception": ValueError(str(error))}
