"""Throughput of `extract_boxed` against a plain character scanner, on long traces and on text made to hurt.

    python bench/boxed.py [--quick]

The scanner is what one writes first: for every `\\boxed`, walk its characters with a depth counter. It is given the
same text, except where it would take minutes (it is quadratic where boxes stay open): there it gets a small one.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from closeout.answers.boxed import extract_boxed

SOLUTIONS = Path(__file__).parent / "data" / "math_solutions.jsonl"
MILLION = 1_000_000
ORDINARY = ("solutions", "trace")
START = re.compile(r"\\boxed\b\s*")


def scan(text: str) -> str:
    """The baseline: last box, nesting and escapes, one character at a time."""
    last = ""
    position = 0
    while found := START.search(text, position):
        start = position = found.end()
        if text[start : start + 1] != "{":
            continue
        depth, escaped = 0, False
        for index in range(start, len(text)):
            character = text[index]
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == "{":
                depth += 1
            elif character == "}":
                depth -= 1
                if depth == 0:
                    last, position = text[start + 1 : index], index + 1
                    break
        else:
            last = text[start + 1 :]
    return last.strip()


def ordinary(size: int) -> str:
    """Solutions with their boxes, one after the other: a long piece of mathematical reasoning."""
    solutions = "\n\n".join(json.loads(line)["solution"] for line in SOLUTIONS.read_text("utf-8").splitlines())
    return (solutions * (size // len(solutions) + 1))[:size]


def traced(size: int) -> str:
    """Reasoning that boxes nothing, in `<think>`, then a short reply with the answer."""
    return "<think>" + ordinary(size).replace("\\boxed", "\\text") + "</think>\nSo the answer is $\\boxed{42}$."


def hostile(count: int) -> dict[str, str]:
    return {
        "backslashes": "\\" * count,
        "backslashes in a box": "\\boxed{" + "\\" * count,
        "open braces": "\\boxed{" + "{" * count,
        "\\boxed": "\\boxed" * count,
        "\\boxed{": "\\boxed{" * count,
        "unclosed, then complete": "\\boxed{" * count + "\\boxed{1}",
        "nested, complete": "\\boxed{" * count + "1" + "}" * count,
        "pairs in a box": "\\boxed{" + "{}" * (count // 2),
        "closing braces after": "\\boxed{1}\\boxed{2}" + "}" * count,
        "<think>": "<think>" * count + "\\boxed{1}",
    }


def speed(work: Callable[[str], object], text: str, seconds: float) -> float:
    """MB/s (10⁶ characters) of CPU time, the best of the runs that fit into the seconds, at least three."""
    best, spent, runs = float("inf"), 0.0, 0
    while spent < seconds or runs < 3:
        start = time.process_time()
        work(text)
        took = time.process_time() - start
        best, spent, runs = (
            min(best, took or best),
            spent + took,
            runs + 1,
        )  # a run may end within one tick of the clock
        if took > 5:
            break
    return len(text) / best / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    seconds = 0.1 if quick else 0.5
    count = MILLION // 10 if quick else MILLION
    big = 4 * MILLION if quick else 16 * MILLION

    common = {"solutions": ordinary(big), "trace with reasoning": traced(big), "no box": traced(big)[:big]}
    ours = {name: speed(extract_boxed, text, seconds) for name, text in common.items()}
    scanner = speed(scan, ordinary(MILLION), seconds)
    for name, value in ours.items():
        print(f"  {name:26s} {value:9.0f} MB/s")
    print(f"  {'character scanner':26s} {scanner:9.0f} MB/s on solutions")

    worst, where = float("inf"), ""
    for name, text in hostile(count).items():
        value = speed(extract_boxed, text, seconds)
        small = hostile(count // 100)[name]
        print(f"  {name:26s} {value:9.0f} MB/s   scanner {speed(scan, small, 0.05):7.1f} (1/100 of the text)")
        if value < worst:
            worst, where = value, name

    growths = {name: per_mb_growth(make, 3 if quick else 10) for name, make in of_size().items()}
    for name, value in growths.items():
        print(f"  {name:26s} time per MB x {value:.2f} from 1 to 16 MB")
    most = max(value for name, value in growths.items() if name not in ORDINARY)
    print(
        f"bench boxed: ordinary {min(ours.values()):.0f} MB/s (scanner {scanner:.0f}), worst hostile {worst:.0f} MB/s "
        f"({where}), time per MB from 1 to 16 MB x {most:.2f} at most (ordinary text, at the speed of memory, "
        f"x {max(growths[name] for name in ORDINARY):.2f})"
    )


def of_size() -> dict[str, Callable[[int], str]]:
    """Makers of texts of a size in characters: the ordinary ones, and the hostile ones that take longest."""
    lengths = {name: len(text) / 1000 for name, text in hostile(1000).items()}
    makers = {
        name: lambda size, name=name: hostile(int(size / lengths[name]))[name]
        for name in ("backslashes in a box", "open braces", "\\boxed", "nested, complete", "pairs in a box")
    }
    return {"solutions": lambda size: ordinary(size).replace("\\boxed", "\\text"), "trace": traced, **makers}


def per_mb_growth(make: Callable[[int], str], rounds: int) -> float:
    """Time per MB at 16 MB over that at 1 MB; taken in turns, so that both see the same load of the machine."""
    small, large = make(MILLION), make(16 * MILLION)
    best = {id(small): float("inf"), id(large): float("inf")}
    for _ in range(rounds):
        for text, times in ((small, 8), (large, 1)):
            for _ in range(times):
                start = time.process_time()
                extract_boxed(text)
                best[id(text)] = min(best[id(text)], (time.process_time() - start) / len(text))
    return best[id(large)] / best[id(small)]


if __name__ == "__main__":
    main()
