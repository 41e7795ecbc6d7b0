"""Weigh two answers of a small model: the likelier one is given.

A small model makes an answer after its plan, and once more from the facts alone. If the two differ, neither is
right much more often, but the one that is likelier in both texts together usually is. See docs/design/local-model.md.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import reduce
from itertools import chain, islice

from closeout.dialects.constrain import exactly
from closeout.dialects.functions import FINAL_ANSWER
from closeout.errors import ModelError, ToolError
from closeout.messages import Constraint, ModelReply, ModelRequest
from closeout.parsing.program import numbers_in, parse_python
from closeout.tools.builtin.calculator import evaluate

__all__ = [
    "HANDICAP",
    "LIKELY",
    "MOST_LOOKED_UP",
    "SURE",
    "UNLIKELY",
    "Scales",
    "calculation",
    "in_order_of",
    "is_number",
    "likelihood",
    "same_value",
]

LONGEST = 120  # characters of a calculation that is weighed
MAX_NODES = 100  # of a value in a program, with the values of its names written out
MAX_BITS = 200  # of a number
# Logarithms, chosen on the answers of docs/design/local-model.md: of one text, and of both together.
LIKELY = -0.85  # from the facts: of 45 likelier answers after two searches, 37 were right; of 29 others, 8
SURE = -0.5  # from the facts, after one search: such an answer is not made again in words
HANDICAP = 1.0  # of the new answer: it is the likeliest one of its own text
UNLIKELY = -9.0  # less likely answers are made where a fact is missing
MOST_LOOKED_UP = 2  # programs that searched; after more, an unlikely answer does not lead to another search
_END = ")\n"


def calculation(programs: Sequence[str]) -> str | None:
    """Return what the last of several programs answers as one expression, with the values of its names written out.

    Returns:
        None if the program does more than name values and answer, or if the expression is long.
    """
    *earlier, last = map(_statements, programs or [""])
    values: dict[str, ast.expr] = {}
    for statement in chain.from_iterable(earlier):
        _note(statement, values)
    for statement in last:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id=called), args=[value], keywords=[])):
                answer = _written_out(value, values) if called == FINAL_ANSWER else None
                text = "" if answer is None else _written(answer)
                return text if 0 < len(text) <= LONGEST else None
            case _ if not _note(statement, values):
                return None
    return None


def _statements(program: str) -> Sequence[ast.stmt]:
    tree = parse_python(program)
    return tree.body if tree is not None else ()


def _note(statement: ast.stmt, values: dict[str, ast.expr]) -> bool:
    """Note the value of a name. Returns whether that is all that a statement does."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            written = _written_out(value, values)
            if written is not None:
                values[name] = written
                return True
    return False


def _written_out(value: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr | None:
    """An expression with the values of its names, None if it is large."""
    if _is_large(value):
        return None
    written: ast.expr = _WrittenOut(values).visit(value)
    return None if _is_large(written) else written


def _is_large(value: ast.expr) -> bool:
    nodes = list(islice(ast.walk(value), MAX_NODES + 1))
    numbers = (node.value for node in nodes if isinstance(node, ast.Constant))
    return len(nodes) > MAX_NODES or any(isinstance(n, int) and n.bit_length() > MAX_BITS for n in numbers)


def in_order_of(text: str, calculated: str) -> str:
    """Return a calculation with its sums and products in the order in which a text has the numbers.

    That is the order in which a model would write them: 4 * 520 was 460 times as likely as 520 * 4.
    """
    order = {Decimal(number.replace(",", "")): index for index, number in reversed(list(enumerate(numbers_in(text))))}
    tree = parse_python(calculated)
    return calculated if tree is None else _written(_Ordered(order).visit(tree))


class _Ordered(ast.NodeTransformer):
    def __init__(self, order: Mapping[Decimal, int]) -> None:
        self._order = order

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add | ast.Mult):
            return node
        first, *others = sorted(_operands(node, type(node.op)), key=self._places)
        return reduce(lambda left, right: ast.BinOp(left, node.op, right), others, first)

    def _places(self, operand: ast.expr) -> list[int]:
        """Where the numbers of an operand are in the text."""
        numbers = [each.value for each in ast.walk(operand) if isinstance(each, ast.Constant)]
        return [self._order.get(Decimal(repr(n)), len(self._order)) for n in numbers if type(n) in (int, float)]


def _operands(node: ast.expr, kind: type[ast.operator]) -> Iterator[ast.expr]:
    """The operands of a sum or product of several."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, kind):
        yield from _operands(node.left, kind)
        yield node.right
    else:
        yield node


class _WrittenOut(ast.NodeTransformer):
    """Replaces names by their values, and looks up what is taken from a dictionary."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.value, ast.Dict):
            return node
        key = ast.unparse(node.slice)
        found = (v for k, v in zip(node.value.keys, node.value.values, strict=True) if k and ast.unparse(k) == key)
        return next(found, node)


class _DoubleQuoted(ast.NodeTransformer):
    """Writes texts as models do: `ast.unparse` prefers single quotes."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Name(json.dumps(node.value, ensure_ascii=False)) if isinstance(node.value, str) else node


def _written(node: ast.AST) -> str:
    return ast.unparse(_DoubleQuoted().visit(node))


def same_value(first: str, second: str) -> bool:
    """Whether two calculations have the same result, apart from its sign."""
    if first == second:
        return True
    try:
        return abs(Decimal(evaluate(first))) == abs(Decimal(evaluate(second)))
    except (ToolError, InvalidOperation):
        return False


def is_number(calculated: str) -> bool:
    """Whether nothing is calculated: the answer is a number as it was found."""
    return re.fullmatch(r"[\d.]+", calculated) is not None


class Scales:
    """Weighs calculations: how likely each is as the answer, from the facts and after the plan.

    Args:
        send: Sends a request.
        from_facts: A request for the answer, without the programs that were written before.
        after_plan: One with them.
    """

    def __init__(
        self, send: Callable[[ModelRequest], Awaitable[ModelReply]], from_facts: ModelRequest, after_plan: ModelRequest
    ) -> None:
        self._send = send
        self._from_facts = from_facts
        self.after_plan = after_plan
        self._known: dict[tuple[str | None, str], float] = {}

    async def from_facts(self, calculated: str) -> float:
        """Return the logarithm of the likelihood of a calculation, made from the facts.

        Raises:
            ModelError: The request failed, or the server does not state it.
        """
        return await self._weigh(self._from_facts, calculated)

    async def in_both(self, calculated: str) -> float:
        """Return the sum for both texts.

        Raises:
            ModelError: A request failed, or the server does not state it.
        """
        return await self.from_facts(calculated) + await self._weigh(self.after_plan, calculated)

    async def _weigh(self, asked: ModelRequest, calculated: str) -> float:
        key = (asked.prompt, calculated)
        if key not in self._known:
            request = replace(
                asked,
                prompt=f"{asked.prompt}```python\n{FINAL_ANSWER}(",
                stop=(),
                constraint=Constraint("grammar", exactly(f"{calculated}{_END}"), "calculation"),
                extra_body={**asked.extra_body, "logprobs": 1},
            )
            self._known[key] = likelihood(await self._send(request))
        return self._known[key]


def likelihood(reply: ModelReply) -> float:
    """Return the natural logarithm of the likelihood of a reply.

    Raises:
        ModelError: The server does not state it.
    """
    tokens = reply.tokens
    if tokens is None or not tokens.logprobs or _END not in reply.text:
        raise ModelError("The server did not state how likely its reply is.")
    if not tokens.texts:
        return sum(tokens.logprobs)
    return sum(value for value, text in zip(tokens.logprobs, tokens.texts, strict=True) if text)  # not of the end
