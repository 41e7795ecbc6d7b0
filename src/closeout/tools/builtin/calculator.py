"""The tool `calculate`: arithmetic by a whitelist over Python's own parser; nothing is executed.

Everyday signs (× ÷ ^ √ %, 1,234, full-width) are turned into Python's first. Rational numbers are exact fractions, so
0.1 + 0.2 is 0.3; roots and logarithms are floats of 15 digits.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import statistics
import unicodedata
from collections.abc import Callable
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Any, TypeAlias

from closeout.errors import ToolError
from closeout.parsing.python_source import parse_python
from closeout.tools.tool import tool

__all__ = ["calculate", "evaluate"]

MAX_LENGTH = 1_000  # characters of an expression
MAX_DEPTH = 100  # nested operations
MAX_EXPONENT = 3_000  # The exponent of a number such as 1e3000.
MAX_BITS = 13_000  # bits of a numerator or denominator: Python prints integers of up to 4,300 digits
SHOWN_DIGITS = 15  # significant digits of a result that is rounded: what a double has
EXACT_DIGITS = 20  # a decimal that ends within so many digits is shown whole

Number: TypeAlias = Fraction | float

EXAMPLE = "Write numbers and operators only, for example (36 + 4.5) / 2 or sqrt(16) + 15% of 80."


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) == 1:
            exponent %= 2  # it may have any size
        elif base and abs(exponent) * size > MAX_BITS + size:
            raise OverflowError
        exact: Fraction = base ** int(exponent)
        return exact
    return math.pow(base, exponent)


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    """Half away from zero, as taught at school; Python's own rounds 2.5 to 2."""
    places = _whole(digits)
    if abs(places) > 300:
        raise OverflowError
    scale = Fraction(10) ** places
    size = Fraction(math.floor(abs(Fraction(value)) * scale + Fraction(1, 2))) / scale
    return -size if value < 0 else size


def _whole(value: Number) -> int:
    if Fraction(value).denominator != 1:
        raise ValueError
    return int(value)


def _integers(function: Callable[..., int], *, most: float = math.inf) -> Callable[..., Number]:
    def of(*values: Number) -> Number:
        if any(value > most for value in values):
            raise OverflowError
        return Fraction(function(*(_whole(value) for value in values)))

    return of


def _angle(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """sin(pi) is 0, not the 1.2e-16 that is the error in pi."""
    return lambda angle: round(function(float(angle)), SHOWN_DIGITS)


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": lambda x: Fraction(math.ceil(x)),
    "comb": _integers(math.comb, most=10_000),
    "cos": _angle(math.cos),
    "exp": math.exp,
    "factorial": _integers(math.factorial, most=1_400),  # 1,400! has 3,813 digits
    "floor": lambda x: Fraction(math.floor(x)),
    "gcd": _integers(math.gcd),
    "lcm": _integers(math.lcm),
    "ln": lambda x: math.log(x),
    "log": lambda x, base=math.e: math.log10(x) if base == 10 else math.log(x, base),
    "log10": lambda x: math.log10(x),
    "log2": lambda x: math.log2(x),
    "max": max,
    "mean": lambda *values: statistics.mean(values),
    "median": lambda *values: statistics.median(values),
    "min": min,
    "pow": _power,
    "round": _round,
    "sin": _angle(math.sin),
    "sqrt": lambda x: math.sqrt(x),
    "sum": lambda *values: sum(values, Fraction(0)),
    "tan": _angle(math.tan),
}
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip

# ------------------------------------------------------------------------------------------------ text in and out

_SIGNS = str.maketrans({
    "×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-", "—": "-", "≤": "<=", "≥": ">=", "≠": "!=", "^": "**",
    "加": "+", "减": "-", "乘": "*", "除": "/", "π": " pi ", "√": " sqrt ",
})  # fmt: skip
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?![\d,])")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)(?:%(?!\s*[\w.(])|\s*%\s*(of)\b)")  # not 17 % 5, a remainder
_AMBIGUOUS = re.compile(r"[\w)]\s*([+-])\s*(\d+(?:\.\d+)?)\s*%\s*(?=[+\-),]|$)")


def _normalised(text: str) -> str:
    """The expression with everyday signs turned into Python's."""
    text = _SUPERSCRIPT.sub(lambda found: "**" + found[0], text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    text = " ".join(text.split()).strip("`\"' ").rstrip("=? ")
    if not re.search(r"[A-Za-z]\w*\s*\(|\[", text):  # between the arguments of a function a comma separates
        text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    if ambiguous := _AMBIGUOUS.search(text):
        sign, number = ambiguous.groups()
        raise ToolError(
            f"'{sign} {number}%' can mean two things. To change the amount by {number}% write "
            f"amount * (1 {sign} {number}/100); to change it by the number itself write {sign} {number}/100."
        )
    return _PERCENT.sub(lambda found: f"({found[1]}/100)" + (" * " if found[2] else ""), text)


def _shown(value: Number) -> str:
    """Return a number as text without float noise: whole if its decimal ends soon, else 15 significant digits."""
    if isinstance(value, float):
        decimal = Decimal(f"{value:.{SHOWN_DIGITS}g}")
    elif value.denominator == 1:
        return str(value.numerator)
    else:
        top, bottom, context = Decimal(value.numerator), Decimal(value.denominator), Context(prec=EXACT_DIGITS)
        decimal = context.divide(top, bottom)
        if context.flags[Inexact]:
            decimal = Context(prec=SHOWN_DIGITS).divide(top, bottom)
    decimal = decimal.normalize() if decimal else Decimal(0)
    if -9 <= decimal.adjusted() < 18:
        return f"{decimal:f}"
    mantissa, _, exponent = f"{decimal:e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


# ------------------------------------------------------------------------------------------------ evaluating


def evaluate(expression: str) -> str:
    """Return the value of an arithmetic expression as text: "82", "0.3", "1.4142135623731", "true".

    Raises:
        ToolError: The expression cannot be calculated. The text says what to write instead.
    """
    if len(str(expression)) > MAX_LENGTH:
        raise ToolError(f"The expression has {len(expression)} characters; at most {MAX_LENGTH} are read. Split it.")
    text = _normalised(str(expression))
    if not text:
        raise ToolError("The expression is empty. Write arithmetic, for example (36 + 4.5) / 2.")
    tree = parse_python(text)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        raise ToolError(f"'{text[:80]}' cannot be read. {EXAMPLE}")
    try:
        return _value(tree.body[0].value, text)
    except ZeroDivisionError:
        raise ToolError(f"{text} divides by zero.") from None
    except OverflowError:
        raise ToolError(f"{text[:80]} is too large a number to calculate with.") from None
    except RecursionError:
        raise ToolError("The expression is nested too deeply. Split it into steps.") from None


def _value(node: ast.expr, text: str) -> str:
    if not isinstance(node, ast.Compare):
        return _shown(_number(node, text))
    numbers = [_number(each, text) for each in (node.left, *node.comparators)]
    comparisons = [_COMPARISONS.get(type(each)) for each in node.ops]
    if None in comparisons:
        raise ToolError("Only < <= > >= == != compare numbers.")
    pairs = zip(comparisons, numbers, numbers[1:], strict=False)
    return str(all(compare(left, right) for compare, left, right in pairs if compare)).lower()


def _number(node: ast.expr, text: str, depth: int = 0) -> Number:
    """The value of a node. Raises ToolError, OverflowError, ZeroDivisionError."""
    if depth > MAX_DEPTH:
        raise ToolError("The expression is nested too deeply. Split it into steps.")
    value: Number
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            written = (ast.get_source_segment(text, node) or repr(node.value)).replace("_", "")
            exponent = written.lower().partition("e")[2]
            if exponent.lstrip("+-").isdigit() and abs(int(exponent)) > MAX_EXPONENT:
                raise OverflowError
            value = Fraction(node.value) if isinstance(node.value, int) else Fraction(written)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            inner = _number(node.operand, text, depth + 1)
            value = -inner if isinstance(node.op, ast.USub) else inner
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = (_number(each, text, depth + 1) for each in (node.left, node.right))
            try:
                value = _OPERATORS[type(node.op)](left, right)
            except ValueError:
                raise ToolError("A negative number has no real power with a fraction as exponent.") from None
        case ast.Call():
            value = _called(node, text, depth + 1)
        case ast.Name() if node.id in CONSTANTS:
            value = CONSTANTS[node.id]
        case ast.Name() if node.id in FUNCTIONS:
            raise ToolError(f"Write {node.id} with brackets: {node.id}(16).")
        case _:
            raise ToolError(f"'{ast.unparse(node)[:40]}' is not a number or operator that is known here. {EXAMPLE}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise OverflowError
    return value


def _called(node: ast.Call, text: str, depth: int) -> Number:
    if not isinstance(node.func, ast.Name | ast.Attribute):
        raise ToolError(f"An operator is missing before a bracket in '{text[:80]}'. Write 2 * (3 + 4), not 2(3 + 4).")
    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr  # sqrt, math.sqrt
    function = FUNCTIONS.get(name)
    if function is None or node.keywords:
        raise ToolError(
            f"'{ast.unparse(node)[:40]}' cannot be called. The functions are: {', '.join(sorted(FUNCTIONS))}."
        )
    items = [each for arg in node.args for each in (arg.elts if isinstance(arg, ast.List | ast.Tuple) else [arg])]
    values = [_number(each, text, depth) for each in items]
    try:
        return function(*values)
    except TypeError:
        raise ToolError(f"{name} does not take {len(values)} numbers. Write large numbers without commas.") from None
    except ValueError:
        raise ToolError(f"{name} has no value for {', '.join(map(_shown, values))[:80]}.") from None


@tool(
    inline=True,  # microseconds of work, bounded
    read_only=True,
    idempotent=True,
    timeout=10.0,
    example="compute",
    returns="trusted",
    aliases={
        "expression": ("expr", "formula", "equation", "calculation", "math", "input", "query", "question", "code")
    },
)
def calculate(expression: str) -> str:
    """Calculate arithmetic exactly. Knows + - * / // % ** ( ), sqrt, round, min, max, sum, mean, log, sin, pi and more.

    Args:
        expression: Numbers and operators only, for example: (36 + 4.5) / 2
    """
    return evaluate(expression)
