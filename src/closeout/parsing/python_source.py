"""Parse Python that a model writes."""

from __future__ import annotations

import ast
import warnings

__all__ = ["MAX_PROGRAM", "parse_python"]

MAX_PROGRAM = 100_000  # characters


def parse_python(code: str) -> ast.Module | None:
    """Return the syntax tree of a program, None if it is not Python or too long. Nothing is run."""
    if len(code) > MAX_PROGRAM:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an invalid escape in a string is the model's affair
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
