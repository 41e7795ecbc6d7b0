"""The benchmark `math`: problems of the MATH test split, answered with a calculator and judged as mathematics."""

from __future__ import annotations

from closeout.evaluate.benchmarks.benchmark import DATA, Benchmark
from closeout.evaluate.tasks import load_tasks
from closeout.tools.builtin import calculate

BENCHMARK = Benchmark(
    about="100 problems of the MATH test split, with a calculator",
    tasks=lambda: load_tasks(DATA / "math.jsonl"),
    scorer="math",
    tools=lambda _: [calculate],
    instructions=r"Solve the problem. Write the answer as LaTeX in \boxed{}.",
)
