"""The numbers of `calculate`: exact fractions and floats, their functions, and how they are shown. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

from closeout.errors import ToolError

__all__ = ["CONSTANTS", "FUNCTIONS", "Number", "Value", "bounded", "floor_divide", "lift", "power", "show", "usage"]

MAX_BITS = 13_000  # of a numerator or denominator: Python prints integers of up to 4,300 digits
SHOWN_DIGITS = 15  # significant ones of a result that is rounded: what a double holds
EXACT_DIGITS = 20  # a decimal that ends within so many digits is shown whole
_SMALL, _LARGE = Fraction(1, 10**9), 10**18  # outside of these a rounded number is shown with an exponent

Number = Fraction | float
Value = Number | list[Number]


def bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise OverflowError
    return value


def lift(operate: Callable[[Number, Number], Number], left: Number, right: Number) -> Number:
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    return operate(left, right)


def power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if abs(base) in (0, 1):
            return _small_power(base, exponent)
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(exponent) * size > MAX_BITS + size:
            raise OverflowError
        exact: Fraction = base ** int(exponent)
        return exact
    if base < 0 and Fraction(exponent).denominator != 1:
        raise ToolError("A negative number has no real power with a fraction as exponent.")
    return math.pow(base, exponent)


def _small_power(base: Fraction, exponent: Fraction) -> Fraction:
    """Powers of -1, 0 and 1, whatever the exponent's size."""
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    if base == -1:
        return Fraction(-1 if exponent % 2 else 1)
    return Fraction(1) if exponent == 0 else base


def floor_divide(left: Number, right: Number) -> Number:
    return left // right if isinstance(left, float) else Fraction(left // right)


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


def _several(function: Callable[[list[Number]], Number]) -> Callable[..., Number]:
    def of(*values: Number) -> Number:
        if not values:
            raise TypeError
        return function(list(values))

    return of


def _mean(values: list[Number]) -> Number:
    return _total(values) / len(values)


def _total(values: list[Number]) -> Number:
    if any(isinstance(value, float) for value in values):
        return math.fsum(values)
    return sum((Fraction(value) for value in values), Fraction(0))


def _product(values: list[Number]) -> Number:
    result: Number = Fraction(1)
    for value in values:
        result = bounded(lift(operator.mul, result, value))
    return result


def _median(values: list[Number]) -> Number:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else _mean(ordered[middle - 1 : middle + 1])


def _integers(function: Callable[..., int]) -> Callable[..., Number]:
    return lambda *values: Fraction(function(*(_whole(value) for value in values)))


def _noiseless(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """sin(pi) is 0, not the 1.2e-16 that stands for the error in pi."""
    return lambda angle: round(function(float(angle)), SHOWN_DIGITS)


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": lambda x: abs(x),
    "acos": math.acos,
    "asin": math.asin,
    "atan": math.atan,
    "atan2": math.atan2,
    "avg": _several(_mean),
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
    "mean": _several(_mean),
    "median": _several(_median),
    "min": _several(min),
    "mod": lambda x, y: lift(operator.mod, x, y),
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
    """A number without float noise: exact where the decimal ends, else rounded to 15 significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolError("The result is not a finite number.")
        return _plain(f"{value:.{SHOWN_DIGITS}g}")
    if value.denominator == 1:
        return str(value.numerator)
    return _ending_decimal(value) or _plain(_rounded(value))


def _ending_decimal(value: Fraction) -> str:
    """All digits of a decimal that ends soon, else the empty text."""
    rest, places = value.denominator, 0
    for factor in (2, 5):
        count = 0
        while rest % factor == 0:
            rest //= factor
            count += 1
        places = max(places, count)
    if rest != 1 or places > EXACT_DIGITS:
        return ""
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    if len(digits.lstrip("0")) > EXACT_DIGITS:
        return ""
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _rounded(value: Fraction) -> str:
    quotient = Context(prec=SHOWN_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient:f}" if _SMALL <= abs(value) < _LARGE else f"{quotient:e}"


def _plain(text: str) -> str:
    """Without trailing zeros, and without an exponent while the number has an everyday size."""
    mantissa, _, exponent = text.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    if not exponent:
        return "0" if mantissa == "-0" else mantissa
    shift = int(exponent)
    if -9 <= shift < 18:
        return _plain(f"{float(text):.{max(0, SHOWN_DIGITS - 1 - shift)}f}")
    return f"{mantissa}e{shift}"
