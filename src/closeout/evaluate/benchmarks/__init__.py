"""Ready benchmarks. Each is a small module that shows how to make one of your own."""

from __future__ import annotations

from importlib import import_module

from closeout.assembly.named import named_object
from closeout.errors import UsageError
from closeout.evaluate.benchmarks.benchmark import Benchmark

__all__ = ["BENCHMARKS", "Benchmark", "find_benchmark"]

# Names and their modules. Further names: bfcl:CATEGORIES, harbor:FOLDER, browsecomp:FILE, package.module:NAME.
BENCHMARKS = {"math": "math_problems", "multihop": "multihop_questions"}


def find_benchmark(name: str) -> Benchmark | None:
    """Return the benchmark of a name, None if the name is unknown.

    Raises:
        UsageError: The name is that of a published benchmark without a file, `bfcl:…` with an unknown category,
            `harbor:…` with a folder without tasks, or `package.module:NAME` without such a benchmark.
        ConfigError: The name is `harbor:…`, and nothing isolates commands here.
    """
    prefix, _, categories = name.partition(":")
    if prefix == "bfcl":
        from closeout.evaluate.benchmarks.bfcl import make_benchmark

        return make_benchmark(categories)
    if prefix == "harbor":
        from closeout.evaluate.benchmarks.harbor import make_harbor

        return make_harbor(categories)
    from closeout.evaluate.benchmarks.own_files import named_files, over_own_file

    if prefix in named_files():
        if not categories:
            raise UsageError(f"{prefix} needs the file of its tasks: {prefix}:data.jsonl.")
        return over_own_file(prefix, categories)
    if name in BENCHMARKS:
        return _checked(import_module(f"closeout.evaluate.benchmarks.{BENCHMARKS[name]}").BENCHMARK, name)
    if prefix and categories.isidentifier():
        return _checked(named_object(name), name)
    return None


def _checked(found: object, name: str) -> Benchmark:
    if not isinstance(found, Benchmark):
        raise UsageError(f"{name} must be a Benchmark, got {type(found).__name__}.")
    return found
