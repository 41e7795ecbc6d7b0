"""Arithmetic by a whitelist over Python's own parser: text in, text out. No tool, no thread, nothing is executed.

Rational numbers are exact fractions, so 0.1 + 0.2 is 0.3; roots, logarithms and the like are floats of 15 digits.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from closeout.errors import ToolError
from closeout.tools.builtin.expressions import is_hopeless, normalise, why_unreadable
from closeout.tools.builtin.numbers import (
    CONSTANTS,
    FUNCTIONS,
    Number,
    Value,
    bounded,
    floor_divide,
    lift,
    power,
    show,
    usage,
)

__all__ = ["evaluate"]

MAX_DEPTH = 100  # of nested operations
MAX_EXPONENT = 3_000  # of a number written 1e3000


def evaluate(expression: str) -> str:
    """The value of an arithmetic expression as text: "82", "0.3", "1.4142135623731", "true".

    Raises `ToolError` with what to write instead.
    """
    text = normalise(str(expression))
    if not text:
        raise ToolError("The expression is empty. Write arithmetic, for example (1914 - 1832) * 2.")
    if is_hopeless(text):
        raise ToolError(why_unreadable(text))
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(why_unreadable(text, error)) from None
    try:
        return show(_Evaluation(text).value(tree))
    except ZeroDivisionError:
        raise ToolError(f"{text} divides by zero.") from None
    except OverflowError:
        raise ToolError(f"{text} is too large a number to calculate with.") from None


class _Evaluation:
    """One walk over the parsed expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0

    def value(self, node: ast.AST) -> Value | bool:
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.List | ast.Tuple):
            return [self.number(item) for item in node.elts]
        return self.number(node)

    def number(self, node: ast.AST) -> Number:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ToolError("The expression is nested too deeply. Split it into steps.")
        try:
            return bounded(self._number(node))
        finally:
            self.depth -= 1

    def _number(self, node: ast.AST) -> Number:
        match node:
            case ast.Constant(value=bool() | complex() | str() | bytes()):
                raise ToolError(f"{ast.unparse(node)[:40]} is no number.")
            case ast.Constant(value=int(whole)):
                return Fraction(whole)
            case ast.Constant(value=float()):
                return self._decimal(node)
            case ast.UnaryOp(op=ast.USub()):
                return -self.number(node.operand)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.number(node.operand)
            case ast.BinOp():
                return self._binary(node)
            case ast.Call():
                return self._call(node)
            case ast.Name() | ast.Attribute():
                return self._constant(node)
        raise ToolError(
            f"'{self.text[:80]}' is not plain arithmetic. Write numbers, + - * / // % **, brackets and "
            "functions such as sqrt, round, min, max, sum."
        )

    def _decimal(self, node: ast.Constant) -> Number:
        written = (ast.get_source_segment(self.text, node) or repr(node.value)).replace("_", "")
        _, _, exponent = written.lower().partition("e")
        if exponent and abs(int(exponent)) > MAX_EXPONENT:
            raise ToolError(f"{written[:40]} is too large or too small a number to calculate with.")
        return Fraction(written)

    def _binary(self, node: ast.BinOp) -> Number:
        operate = _BINARY.get(type(node.op))
        if operate is None:
            raise ToolError("Only + - * / // % ** (power) are known. For a power write 2 ** 10 or 2 ^ 10.")
        return lift(operate, self.number(node.left), self.number(node.right))

    def _call(self, node: ast.Call) -> Number:
        if isinstance(node.func, ast.Constant | ast.BinOp | ast.Call):
            raise ToolError(
                f"An operator is missing before a bracket in '{self.text[:80]}'. Write 2 * (3 + 4), not 2(3 + 4)."
            )
        name = _dotted(node.func)
        function = FUNCTIONS.get(name)
        if function is None:
            raise ToolError(f"There is no function {name[:40]}. There are: {', '.join(sorted(FUNCTIONS))}.")
        if node.keywords:
            raise ToolError(f"Write the arguments of {name} without names, for example round(2.345, 2).")
        values = [self.value(item) for item in node.args]
        flat: list[Number] = []
        for value in values:
            flat.extend(value if isinstance(value, list) else [value])
        try:
            return function(*flat)
        except TypeError:
            raise ToolError(f"{name} does not take {len(flat)} numbers. {usage(name)}") from None
        except ValueError:
            raise ToolError(f"{name} has no value for {', '.join(show(item) for item in flat)[:80]}.") from None

    def _constant(self, node: ast.Name | ast.Attribute) -> Number:
        name = _dotted(node)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name in FUNCTIONS:
            raise ToolError(f"Write {name} with brackets: {name}(16).")
        raise ToolError(
            f"'{name[:40]}' is no number. Write the number itself in its place; "
            "words, units and variables are not known."
        )

    def _compare(self, node: ast.Compare) -> bool:
        left = self.number(node.left)
        for op, other in zip(node.ops, node.comparators, strict=True):
            compare = _COMPARISONS.get(type(op))
            if compare is None:
                raise ToolError("Only < <= > >= == != compare numbers.")
            right = self.number(other)
            if not compare(left, right):
                return False
            left = right
        return True


def _dotted(node: ast.AST) -> str:
    """A name, with or without the module that models like to write before it: math.sqrt is sqrt."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("math", "np", "numpy")
    ):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.unparse(node)
    except RecursionError:
        raise ToolError("The expression is nested too deeply. Split it into steps.") from None


_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: floor_divide,
    ast.Mod: operator.mod,
    ast.Pow: power,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Number, Number], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
