"""Ready benchmarks. Each is a small module that shows how to make one of your own."""

from __future__ import annotations

from importlib import import_module

from closeout.evaluate.benchmarks.benchmark import Benchmark

__all__ = ["BENCHMARKS", "Benchmark", "find_benchmark"]

BENCHMARKS = ("math", "multihop", "retail")  # and bfcl:CATEGORIES, harbor:FOLDER
_MODULES = {"math": "math_problems", "multihop": "multihop_questions", "retail": "retail_desk"}


def find_benchmark(name: str) -> Benchmark | None:
    """Return the benchmark of a name, None if the name is unknown.

    Raises:
        UsageError: The name is `bfcl:…` with an unknown category, or `harbor:…` with a folder without tasks.
        ConfigError: The name is `harbor:…`, and nothing isolates commands here.
    """
    prefix, _, categories = name.partition(":")
    if prefix == "bfcl":
        from closeout.evaluate.benchmarks.bfcl import make_benchmark

        return make_benchmark(categories)
    if prefix == "harbor":
        from closeout.evaluate.benchmarks.harbor import make_harbor

        return make_harbor(categories)
    if name not in _MODULES:
        return None
    found: Benchmark = import_module(f"closeout.evaluate.benchmarks.{_MODULES[name]}").BENCHMARK
    return found
