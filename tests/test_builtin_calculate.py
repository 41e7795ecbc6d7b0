"""`calculate`: arithmetic as people and models write it, exact, bounded, and with errors that say what to write."""

from __future__ import annotations

import ast
import contextlib
import string
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout.errors import ToolError
from closeout.tools.builtin import calculate
from closeout.tools.builtin.calculator import evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1914 - 1832", "82"),
        ("0.1 + 0.2", "0.3"),
        ("1/3*3", "1"),
        ("1/3", "0.333333333333333"),
        ("2/3", "0.666666666666667"),
        ("10/4", "2.5"),
        ("-7//2", "-4"),
        ("17 % 5", "2"),
        ("17 % -5", "-3"),
        ("2**100", "1267650600228229401496703205376"),
        ("2 ** -2", "0.25"),
        ("(-1) ** 1000000001", "-1"),
        ("123456789012.34 + 0.01", "123456789012.35"),
        ("1/1024", "0.0009765625"),
        ("3*1e20", "300000000000000000000"),
        ("2/3*1e20", "6.66666666666667e19"),
        ("1/3e12", "3.33333333333333e-13"),
        ("3 > 2", "true"),
        ("9.11 > 9.9", "false"),
        ("1 < 2 < 3", "true"),
    ],
)
def test_plain_arithmetic_is_exact_and_without_noise(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2^10", "1024"),
        ("3 × 4 ÷ 6", "2"),
        ("5² + 1", "26"),
        ("80 * -5%", "-4"),
        ("√(9) * 2 =", "6"),
        ("10% - 0.05", "0.05"),
        ("1,234,567 + 1", "1234568"),
        ("(1,234 + 2,000) * 2", "6468"),
        ("max(1,234)", "234"),
        ("sum(1,000,000)", "1"),
        ("1_000 * 2", "2000"),
        ("15% of 80", "12"),
        ("15% * 80", "12"),
        ("80 + 15% of 80", "92"),
        ("（３＋４）×２", "14"),
        ("12，345＋１", "12346"),
        ("10加4除2", "12"),
        ("`1 + 1`", "2"),
    ],
)
def test_everyday_and_chinese_notation_is_read(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sqrt(2)", "1.4142135623731"),
        ("sqrt(0.25)", "0.5"),
        ("math.sqrt(144)", "12"),
        ("round(2.5)", "3"),
        ("round(-2.345, 2)", "-2.35"),
        ("round(1234, -2)", "1200"),
        ("min(3, 1, 2) + max([4, 5])", "6"),
        ("mean(1, 2, 4)", "2.33333333333333"),
        ("median(1, 9, 3, 4)", "3.5"),
        ("log(100, 10) + log10(1000) + log2(8) + ln(e)", "9"),
        ("sin(pi) + cos(pi/3)", "0.5"),
        ("factorial(20)", "2432902008176640000"),
        ("gcd(12, 18) + lcm(4, 6) + comb(5, 2)", "28"),
        ("abs(-5) + floor(-1.5) + ceil(1.2) + 1", "6"),
    ],
)
def test_functions_and_constants(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "empty"),
        ("80 + 15%", r"two things.*\(1 \+ 15/100\)"),
        ("100 - 5%", r"two things.*\(1 - 5/100\)"),
        ("$5 + 1", "cannot be read"),
        ("2(3+4)", r"Write 2 \* \(3 \+ 4\)"),
        ("2pi", "cannot be read.*for example"),
        ("1 2", "cannot be read"),
        ("5 km", "cannot be read.*numbers and operators only"),
        ("3万*2", "not a number|cannot be read"),
        ("2½", "cannot be read"),
        ("x + 1", "'x' is not a number"),
        ("sqrt", r"brackets: sqrt\(16\)"),
        ("(1+2", "cannot be read"),
        ("sin(1, 2)", "does not take 2 numbers"),
        ("sqrt(1,234)", "does not take 2 numbers. Write large numbers without commas"),
        ("pow(2)", "does not take 1"),
        ("round(1.5, ndigits=1)", "cannot be called"),
        ("cosine(1)", "'cosine.*cannot be called.*cos"),
        ("5/0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("sqrt(-1)", "no value for -1"),
        ("(-8) ** (1/3)", "no real power"),
        ("factorial(2.5)", "no value for 2.5"),
        ("1 << 3", "'1 << 3' is not"),
        ("'a' * 5", "cannot be read|is not a number"),
        ("True + 1", "not a number"),
        ("1j * 2", "not a number"),
        ("[1, 2][0]", "is not a number"),
        ("(lambda: 1)()", "operator is missing"),
        ("__import__('os').getcwd()", "cannot be called"),
        ("1or 2", "is not a number"),
        ("'\\d' + 1", "cannot be read"),
        ("().__class__.__mro__", "not a number"),
    ],
)
def test_what_is_not_arithmetic_is_answered_with_what_to_write(expression: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        evaluate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9", "2**13001", "1e3000*1e3000", "1e999999999", "10**-99999999", "factorial(99999)", "comb(10**7, 5)",
        "round(1, 10**9)", "exp(10**6)", "-" * 999 + "1", "(" * 400 + "1" + ")" * 400, "1+" * 5000 + "1",
        "9" * 900 + "**9", "x" + ".a" * 490, "(" + "*".join(["9" * 90] * 10) + ")**99",
    ],
)  # fmt: skip
def test_hostile_sizes_are_refused_at_once(expression: str) -> None:
    with pytest.raises(ToolError, match=r"too large|nested|at most|characters|cannot be read"):
        evaluate(expression)


@given(st.text(alphabet=string.digits + " +-*/%().,^×÷√eE" + "of加万，。％\ud800\x00" + "sqrtmax", max_size=60))
def test_any_text_has_a_value_or_a_tool_error(text: str) -> None:
    with contextlib.suppress(ToolError):
        assert evaluate(text)


@given(st.recursive(
    st.integers(-999, 999).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=8,
))  # fmt: skip
@settings(max_examples=100)
def test_rational_arithmetic_agrees_with_fractions(expression: str) -> None:
    exact = _by_fractions(ast.parse(expression, mode="eval").body)
    if exact is None:
        with pytest.raises(ToolError, match="divides by zero"):
            evaluate(expression)
    else:
        shown = Fraction(evaluate(expression))
        assert abs(shown - exact) <= abs(exact) / 10**14


def _by_fractions(node: ast.AST) -> Fraction | None:
    if isinstance(node, ast.Constant):
        return Fraction(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        inner = _by_fractions(node.operand)
        return None if inner is None else -inner
    assert isinstance(node, ast.BinOp)
    left, right = _by_fractions(node.left), _by_fractions(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Div):
        return left / right if right else None
    return (
        left + right if isinstance(node.op, ast.Add) else left - right if isinstance(node.op, ast.Sub) else left * right
    )


async def test_the_tool_tells_a_model_what_to_write() -> None:
    assert await calculate.call({"expression": "1914-1832"}) == "82"
    assert calculate("1+1") == "2"
    spec = calculate.spec
    assert spec.policy.read_only
    assert "expr" in spec.policy.aliases["expression"]
    assert spec.parameters["required"] == ["expression"]
    assert len(spec.description) < 160
