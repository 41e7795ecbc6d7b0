"""How fast the ReAct parser reads, and whether hostile text costs more per megabyte the longer it is.

The baseline is the least that any reader of JSON actions does: `json.loads` of the action's text, over and over as the
pieces come, which is what a parser without a state of its own has to do. CPU time, best of several runs.
"""

from __future__ import annotations

import argparse
import json
import time

from closeout.parsing.react import CotAgentOutputParser

MEGABYTE = 1_000_000
PROSE = "I should look at the second table first, because it has the totals.\nThen I compare them with the report.\n"
ROW = '{"name": "Überraschung", "tags": ["a", "b"], "size": 12.5, "text": "a \\"longer\\" piece of text"},'
NESTED = '{"a":{"b":[1,2,{"c":null,"d":[true,-1.5e3]}],"e":{"f":"g"}},"h":[[1],[2,[3]]]},'
INDENTED = '\n    {\n      "name": "x",\n      "values": [\n        1,\n        2\n      ]\n    },'
TYPICAL = {
    "thought": ("Thought: ", PROSE),
    "answer": ("Final Answer: ", PROSE),
    "arguments": ('Action: {"action": "store", "action_input": [', ROW),
    "code": ('Action: {"action": "Final Answer", "action_input": "', "for x in range(10):\\n    print(x)\\n"),
    "nested arguments": ('Action: {"action": "store", "action_input": [', NESTED),
    "numbers": ('Action: {"action": "store", "action_input": [', "1,22,-3.5e3,"),
    "indented": ('Action:\n```json\n{\n  "action": "store",\n  "action_input": [', INDENTED),
    "text form": ("Action: store\nAction Input: [", ROW),
    "short lines": ("Thought: ", "One short line.\nAnother one here.\n"),
}
HOSTILE = {
    "fences": ("", "```\n"),
    "backticks": ("", "`"),
    "quotes": ('Action: {"action": "a", "action_input": [', '"",'),
    "backslashes": ('Action: {"action": "a", "action_input": "', "\\\\"),
    "braces": ("Thought: ", "{"),
    "brace lines": ("", "{\n"),
    "thoughts": ("", "Thought:\n"),
    "tags": ("", "<think></think>"),
    "markers cut short": ("Final Answer: ", "\nObs"),
    "calls in prose": ("", '{"action": "a", "action_input": 1} no\n'),
}
SIZES = (0.25, 1.0, 4.0)  # megabytes


def text_of(parts: tuple[str, str], megabytes: float) -> str:
    head, body = parts
    size = int(megabytes * MEGABYTE)
    return (head + body * (size // len(body) + 1))[:size]


def seconds(text: str, piece: int, runs: int) -> float:
    """CPU seconds to read a text in pieces; the best of several runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        parser = CotAgentOutputParser()
        for at in range(0, len(text), piece):
            parser.feed(text[at : at + piece])
        parser.close("length")
        best = min(best, time.process_time() - start)
    return best


def reparsing(text: str, piece: int) -> float:
    """CPU seconds of a reader that tries the whole action again at every piece."""
    start = time.process_time()
    for at in range(piece, len(text), piece):
        try:
            json.loads(text[:at])
        except ValueError:
            continue
    return time.process_time() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="smaller texts, fewer runs")
    quick = options.parse_args().quick
    size, runs = (0.25, 1) if quick else (1.0, 3)

    print(f"{'typical text':20} {'whole':>8} {'64 ch.':>8} {'16 ch.':>8} {'1 ch.':>8}   MB/s")
    speeds = {}
    for name, parts in TYPICAL.items():
        text = text_of(parts, size)
        row = [size / seconds(text, piece, runs) for piece in (len(text), 64, 16)]
        row.append(size / 10 / seconds(text[: len(text) // 10], 1, runs))
        speeds[name] = row
        print(f"{name:20} " + " ".join(f"{speed:8.2f}" for speed in row))
    whole, _, sixteen, single = (min(column) for column in zip(*speeds.values(), strict=True))

    sizes = (0.1, 0.4) if quick else SIZES
    heading = " ".join(f"{size:>7} MB" for size in sizes)
    print(f"\n{'hostile text':20} {heading}   ms per MB; the largest to the smallest")
    worst, growth = 0.0, 0.0
    for name, parts in HOSTILE.items():
        costs = [seconds(text_of(parts, size), 4096, runs) / size for size in sizes]
        ratio = costs[-1] / max(costs[0], 1e-4)
        worst, growth = max(worst, *costs), max(growth, ratio)
        print(f"{name:20} " + " ".join(f"{1000 * cost:10.0f}" for cost in costs) + f"   {ratio:.2f}")

    action = text_of(TYPICAL["arguments"], 0.02)
    ours, theirs = seconds(action, 16, runs), reparsing(action[action.index("{") :], 16)
    print(
        f"\nbench parsers: at the slowest text {whole:.1f} MB/s whole, {sixteen:.1f} in pieces of 16 characters, "
        f"{single:.1f} in single ones; hostile text {1 / worst:.1f} MB/s at worst, growth {growth:.2f} over "
        f"{sizes[-1] / sizes[0]:.0f}x the length; {theirs / ours:.0f}x as fast as json.loads at each piece of 20 kB"
    )


if __name__ == "__main__":
    main()
