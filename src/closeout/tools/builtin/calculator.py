"""The tool `calculate`. What it can work out is arithmetic.py's business."""

from __future__ import annotations

from closeout.tools.builtin.arithmetic import evaluate
from closeout.tools.tool import tool

__all__ = ["calculate"]


@tool(
    inline=True,  # microseconds of work, bounded
    read_only=True,
    idempotent=True,
    timeout=10.0,
    aliases={
        "expression": ("expr", "formula", "equation", "calculation", "math", "input", "query", "question", "code")
    },
)
def calculate(expression: str) -> str:
    """Calculate arithmetic exactly. Knows + - * / // % ** ( ), sqrt, round, min, max, sum, mean, log, sin, pi and more.

    Args:
        expression: Numbers and operators only, for example: (1914 - 1832) * 2
    """
    return evaluate(expression)
