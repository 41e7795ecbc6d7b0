"""The tool `calculate`: arithmetic by a whitelist over Python's own parser; nothing is executed.

Everyday notation (× ÷ ^ % of, 1,234, full-width, Chinese) is turned into Python's first. Rational numbers are exact
fractions, so 0.1 + 0.2 is 0.3; roots and logarithms are floats of 15 digits.
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
from typing import Any

from closeout.errors import ToolError
from closeout.tools.tool import tool

__all__ = ["calculate", "evaluate"]

# Bits of a numerator or denominator: Python prints integers of up to 4,300 digits.
MAX_BITS = 13_000
SHOWN_DIGITS = 15  # significant ones of a result that is rounded: what a double holds
EXACT_DIGITS = 20  # a decimal that ends within so many digits is shown whole

Number = Fraction | float
Value = Number | list[Number]


def bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise OverflowError
    return value


def power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if abs(base) == 1:
            exponent %= 2  # it may have any size
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base and abs(exponent) * size > MAX_BITS + size:
            raise OverflowError
        exact: Fraction = base ** int(exponent)
        return exact
    if base < 0 and Fraction(exponent).denominator != 1:
        raise ToolError("A negative number has no real power with a fraction as exponent.")
    return math.pow(base, exponent)


def floor_divide(left: Number, right: Number) -> Number:
    quotient = left // right
    return quotient if isinstance(quotient, float) else Fraction(quotient)


def _whole(value: Number) -> int:
    exact = Fraction(value)
    if exact.denominator != 1:
        raise ToolError(f"{show(value)} is not a whole number, and this function takes whole numbers only.")
    return exact.numerator


def _sqrt(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _cube_root(value: Number) -> Number:
    root = math.cbrt(value)
    near = Fraction(round(root))
    return near if near**3 == value else root


def _round(value: Number, digits: Number = Fraction(0)) -> Number:
    """Half away from zero, as taught at school; Python's own rounds 2.5 to 2."""
    places = _whole(digits)
    if abs(places) > 300:
        raise OverflowError
    scale = Fraction(10) ** places
    size = Fraction(math.floor(abs(Fraction(value)) * scale + Fraction(1, 2))) / scale
    return -size if value < 0 else size


def _log(value: Number, base: Number | None = None) -> Number:
    if value <= 0:
        raise ValueError
    if base is None:
        return math.log(value)
    if base == 10:
        return math.log10(value)
    return math.log2(value) if base == 2 else math.log(value) / math.log(base)


def _factorial(value: Number) -> Number:
    whole = _whole(value)
    if whole > 1_400:  # 1,400! has 3,813 digits
        raise OverflowError
    return Fraction(math.factorial(whole))


def _choose(count: Callable[[int, int], int]) -> Callable[[Number, Number], Number]:
    def counted(n: Number, k: Number) -> Number:
        if max(n, k) > 10_000:
            raise OverflowError
        return Fraction(count(_whole(n), _whole(k)))

    return counted


def _several(function: Callable[[list[Any]], Number]) -> Callable[..., Number]:
    def of(*values: Number) -> Number:
        if not values:
            raise TypeError
        return function(list(values))

    return of


def _total(values: list[Number]) -> Number:
    if any(isinstance(value, float) for value in values):
        return math.fsum(values)
    return sum((Fraction(value) for value in values), Fraction(0))


def _product(values: list[Number]) -> Number:
    result: Number = Fraction(1)
    for value in values:
        result = bounded(result * value)
    return result


def _integers(function: Callable[..., int]) -> Callable[..., Number]:
    return lambda *values: Fraction(function(*(_whole(value) for value in values)))


def _noiseless(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """sin(pi) is 0, not the 1.2e-16 that is the error in pi."""
    return lambda angle: round(function(float(angle)), SHOWN_DIGITS)


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "acos": math.acos,
    "asin": math.asin,
    "atan": math.atan,
    "atan2": math.atan2,
    "avg": _several(statistics.mean),
    "cbrt": _cube_root,
    "ceil": lambda x: Fraction(math.ceil(x)),
    "comb": _choose(math.comb),
    "cos": _noiseless(math.cos),
    "degrees": math.degrees,
    "exp": math.exp,
    "factorial": _factorial,
    "floor": lambda x: Fraction(math.floor(x)),
    "gcd": _integers(math.gcd),
    "hypot": math.hypot,
    "lcm": _integers(math.lcm),
    "ln": lambda x: _log(x),
    "log": _log,
    "log10": lambda x: _log(x, Fraction(10)),
    "log2": lambda x: _log(x, Fraction(2)),
    "max": _several(max),
    "mean": _several(statistics.mean),
    "median": _several(statistics.median),
    "min": _several(min),
    "mod": lambda x, y: x % y,
    "perm": _choose(math.perm),
    "pow": lambda x, y: power(x, y),
    "prod": _several(_product),
    "radians": math.radians,
    "round": _round,
    "sin": _noiseless(math.sin),
    "sqrt": _sqrt,
    "sum": _several(_total),
    "tan": _noiseless(math.tan),
    "trunc": lambda x: Fraction(math.trunc(x)),
}
CONSTANTS: dict[str, Number] = {"pi": math.pi, "PI": math.pi, "e": math.e, "tau": math.tau}
_TWO_ARGUMENTS = {
    "atan2": "y, x",
    "comb": "n, k",
    "log": "x, base",
    "mod": "x, y",
    "perm": "n, k",
    "pow": "x, y",
    "round": "x, digits",
}


def usage(name: str) -> str:
    if name in _TWO_ARGUMENTS:
        return f"Write {name}({_TWO_ARGUMENTS[name]})."
    return f"Write {name}(x), and numbers without thousands separators inside the brackets: {name}(1234)."


# ------------------------------------------------------------------------------------------------ showing


def show(value: Value | bool) -> str:
    """Return a value as text without float noise: exact where the decimal ends soon, else 15 significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, float):
        return _plain(Decimal(f"{value:.{SHOWN_DIGITS}g}"))
    if value.denominator == 1:
        return str(value.numerator)
    top, bottom = Decimal(value.numerator), Decimal(value.denominator)
    context = Context(prec=EXACT_DIGITS)
    quotient = context.divide(top, bottom)
    if not context.flags[Inexact] and (value * 10**EXACT_DIGITS).denominator == 1:
        return f"{quotient:f}"
    return _plain(Context(prec=SHOWN_DIGITS).divide(top, bottom))


def _plain(number: Decimal) -> str:
    """Without trailing zeros, and without an exponent while the number has an everyday size."""
    if not number:
        return "0"
    number = number.normalize()
    if -9 <= number.adjusted() < 18:
        return f"{number:f}"
    mantissa, _, exponent = f"{number:e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


# ------------------------------------------------------------------------------------------------ reading

MAX_LENGTH = 1_000  # characters of an expression

_SIGNS = str.maketrans({
    "×": "*", "✕": "*", "∙": "*", "·": "*", "⋅": "*", "÷": "/", "∕": "/", "−": "-", "–": "-", "—": "-", "﹣": "-",
    "加": "+", "减": "-", "乘": "*", "除": "/", "。": ".", "、": ",", "【": "(", "】": ")",
    "≤": "<=", "≥": ">=", "≠": "!=",
    "π": " pi ", "√": " sqrt ", "$": " ", "€": " ", "£": " ", "¥": " ", "￥": " ", "‰": "/1000",
})  # fmt: skip
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SUPERSCRIPT_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_CHINESE_UNITS = {"百": "100", "千": "1000", "万": "10000", "亿": "100000000"}
_CHINESE_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([百千万亿]+)")
_PERCENT_WORD = re.compile(r"\s*\bper\s?cent\b|(?<=\d)\s*percent", re.IGNORECASE)
_ROOT_OF_NUMBER = re.compile(r"\bsqrt\s+(\d+(?:\.\d+)?)")
_LAST_NUMBER = re.compile(r"((?<!\d)\d+(?:\.\d*)?|\.\d+|\))\s*$")
_OF = re.compile(r"(?<=[\d)])\s*of\b")
_VULGAR_FRACTION = re.compile("(\\d+)?([¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_LETTER_TIMES = re.compile(r"(?<=[\d)])\s*[xX]\s*(?=[\d(.-])")
_MOD_WORD = re.compile(r"(?<=[\d)])\s*\bmod\b\s*(?=[\d(])", re.IGNORECASE)
_NOISY = re.compile(r"\\|\d(?:and|else|for|if|in|is|not|or)\b")
_PIECES = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d,]*\d)|\d[\d._]*|.")  # 1,234,567; any other number; any other sign


def normalise(text: str) -> str:
    """The expression with everyday signs turned into Python's: × ÷ ^ % of, 1,234, full-width and Chinese ones."""
    if len(text) > MAX_LENGTH:
        raise ToolError(f"The expression has {len(text)} characters; at most {MAX_LENGTH} are read. Split it.")
    text = _SUPERSCRIPTS.sub(lambda found: "**" + found[0].translate(_SUPERSCRIPT_DIGITS), text)
    text = _VULGAR_FRACTION.sub(_vulgar_fraction, text)
    text = text.replace("乘以", "*").replace("除以", "/").replace("百分之", " 0.01*").translate(_SIGNS)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS).replace("^", "**")
    text = _CHINESE_UNIT.sub(
        lambda found: "(" + "*".join([found[1], *(_CHINESE_UNITS[u] for u in found[2])]) + ")", text
    )
    text = " ".join(text.split()).strip("`\"' ").rstrip("=? ")
    text = _MOD_WORD.sub(" % ", _LETTER_TIMES.sub(" * ", text))
    text = _ROOT_OF_NUMBER.sub(r"sqrt(\1)", _join_thousands(text))
    return _percents(_PERCENT_WORD.sub("%", text)).strip()


def _vulgar_fraction(found: re.Match[str]) -> str:
    part = Fraction(unicodedata.numeric(found[2])).limit_denominator(10)
    return f"({found[1] or 0}+{part})"


def _join_thousands(text: str) -> str:
    """Drop the commas of 1,234,567, but not those between the arguments of a function: max(1,234)."""
    written = ""
    calls: list[bool] = []  # one entry for each open bracket: True if it holds arguments
    for piece in _PIECES.findall(text):
        if piece in ("(", "["):
            before = written.rstrip()
            calls.append(piece == "[" or (before[-1:].isalnum() and not before[-1:].isdigit()) or before.endswith("_"))
        elif piece in (")", "]") and calls:
            calls.pop()
        written += piece.replace(",", "") if piece[0].isdigit() and not any(calls) else piece
    return written


def _percents(text: str) -> str:
    """Write "15%" as (15/100) where % is not a remainder, and "of" as *."""
    pieces = text.split("%")
    out = pieces[0]
    for rest in pieces[1:]:
        follows = rest.lstrip()
        number = _LAST_NUMBER.search(out)
        if number is None or _is_remainder(out, follows):
            out += "%" + rest
            continue
        before = out[: number.start()].rstrip()
        if _adds_percentage(before, follows):
            raise ToolError(_ambiguous(number[1], before[-1]))
        out = f"{before}({number[1]}/100){rest}" if number[1] != ")" else f"{out.rstrip()}/100{rest}"
    return _OF.sub(" *", out)


def _is_remainder(before: str, follows: str) -> bool:
    """17 % 5 and 17 % -5, but not 17% of 5, 17% * 5 and 17% - 5."""
    if re.match(r"[\w(.]", follows):
        return not re.match(r"of\b", follows)
    return before.endswith(" ") and re.match(r"[+-]\d", follows) is not None


def _adds_percentage(before: str, follows: str) -> bool:
    """80 + 15%: of the 80, or of one? But 100% - 15% and 80 + 15% of 80 are clear."""
    if follows and follows[0] not in "+-),":
        return False
    amount = before[:-1].rstrip()
    return before.endswith(("+", "-")) and amount != "" and not amount.endswith((*_OPERATORS, "/100)"))


_OPERATORS = ("+", "-", "*", "/", "(", ",", "%")


def _ambiguous(number: str, sign: str) -> str:
    verb = "add" if sign == "+" else "take off"
    return (
        f"'{sign} {number}%' can mean two things. To {verb} {number}% of the amount write "
        f"amount * (1 {sign} {number}/100); to {verb} the number itself write {sign} {number}/100."
    )


def why_unreadable(text: str, error: Exception | None = None) -> str:
    words = [word for word in re.findall(r"[^\W\d_]{2,}", text) if word not in FUNCTIONS and word not in CONSTANTS]
    if isinstance(error, RecursionError | MemoryError) or "nested" in str(error):
        return "The expression is nested too deeply. Split it into steps."
    if words:
        return (
            f"'{text[:80]}' is not arithmetic: {', '.join(words[:3])} cannot be calculated. "
            "Write numbers and operators only, without words and units, for example 36 / 8."
        )
    if text.count("(") != text.count(")"):
        return (
            f"'{text[:80]}' has {text.count('(')} '(' and {text.count(')')} ')'. Write as many of one as of the other."
        )
    if re.search(r"(?<![\d.])0\d", text):
        return f"'{text[:80]}' has a number that starts with 0. Write it without the zero."
    if re.search(r"[\d)]\s*(pi|e|tau|[a-z]+\()", text) or re.search(r"\d\s+\d", text):
        return f"'{text[:80]}' lacks an operator. Write * where two numbers are multiplied, for example 2 * pi."
    return f"'{text[:80]}' cannot be read. Write an expression such as (36 + 4.5) / 2 or sqrt(16) + 15% of 80."


# ------------------------------------------------------------------------------------------------ evaluating

# Nested operations.
MAX_DEPTH = 100
# The largest exponent of a number such as 1e3000.
MAX_EXPONENT = 3_000


def evaluate(expression: str) -> str:
    """Return the value of an arithmetic expression as text: "82", "0.3", "1.4142135623731", "true".

    Raises:
        ToolError: The expression cannot be calculated. The text says what to write instead.
    """
    text = normalise(str(expression))
    if not text:
        raise ToolError("The expression is empty. Write arithmetic, for example (36 + 4.5) / 2.")
    if _NOISY.search(text):  # Python's parser would warn on stderr before it refuses the text
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
                raise ToolError(f"{ast.unparse(node)[:40]} is not a number.")
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
        return operate(self.number(node.left), self.number(node.right))

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
            f"'{name[:40]}' is not a number. Find it out first, then write the number itself in its place; "
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
