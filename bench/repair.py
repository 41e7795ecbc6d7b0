"""How often broken arguments come back as they were meant: random calls, each broken as models break them.

What counts: right, refused (the model is asked again), or silently wrong. Deterministic. Baseline: the json-repair
library, which never refuses.

    python bench/repair.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import json_repair

from closeout import repair_json

TEXTS = (
    'print("hello")\nfor x in [1, 2]:\n    print(x, "a")',
    'He said "yes", then left: "bye"',
    "C:\\Users\\me\\docs",
    r"\d+\.\d{2}",
    'SELECT * FROM t WHERE a = "b" AND c: 1',
    "a, b, c",
    "it's",
    '{"inner": "json", "n": 1}',
    '<a href="http://x.y/z">t</a>',
    "中文，“引号”",
    "one\ntwo",
    "[1, 2]",
    "https://a.b/c?d=e#f",
    "# comment // not",
    "key: value",
    'x = {"a": 1}; y = [2]',
    "",
    'a "quoted" word',
    "tab\there",
    "emoji 😀",
)


def plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


BREAKS: dict[str, Callable[[Any], str]] = {
    "trailing comma": lambda value: plain(value)[:-1] + ",}",
    "Python literal": repr,
    "bare quotes": lambda value: plain(value).replace('\\"', '"'),
    "raw newlines": lambda value: re.sub(r"(?<!\\)\\n", "\n", plain(value)),
    "bare backslashes": lambda value: plain(value).replace("\\\\", "\\"),
    "code fence": lambda value: f"```json\n{json.dumps(value, indent=1)}\n```",
    "encoded twice": lambda value: plain(plain(value)),
    "unquoted keys": lambda value: re.sub(r'"(\w+)":', r"\1:", plain(value)),
    "missing bracket": lambda value: plain(value)[:-1],
    "extra bracket": lambda value: plain(value) + "}",
    "prose around": lambda value: f"Here it is: {plain(value)}\nDone.",
    "missing comma": lambda value: plain(value).replace(', "', ' "', 1),
    "smart quotes": lambda value: re.sub(r'"(\w+)":', r"“\1”:", plain(value)),
}


def random_value(chance: random.Random, level: int = 0) -> Any:
    kind = chance.random()
    if kind < 0.5 or (level > 1 and kind > 0.8):
        return chance.choice(TEXTS)
    if kind < 0.65:
        return chance.randint(-5, 1000)
    if kind < 0.8:
        return chance.choice((True, False, None, 3.25))
    if kind < 0.9:
        return [random_value(chance, level + 1) for _ in range(chance.randint(0, 3))]
    return {name: random_value(chance, level + 1) for name in chance.sample(("a", "b", "query"), chance.randint(0, 3))}


def is_broken(text: str) -> bool:
    try:
        return isinstance(json.loads(text), str)
    except ValueError:
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    calls = 100 if parser.parse_args().quick else 1000
    chance = random.Random(7)
    whole: Counter[str] = Counter()
    counts = {name: Counter[str]() for name in BREAKS}
    for _ in range(calls):
        names = chance.sample(("q", "path", "code", "num", "tags", "x"), chance.randint(1, 4))
        value = {name: random_value(chance) for name in names}
        for name, break_it in BREAKS.items():
            text = break_it(value)
            if not is_broken(text):
                continue
            read = repair_json(text)
            verdict = "refused" if not read.ok else "right" if read.value == value else "wrong"
            counts[name].update(["texts", verdict])
            counts[name]["json-repair right"] += json_repair.loads(text) == value
    for name, count in counts.items():
        whole += count
        shares = {
            kind: f"{count[kind] / count['texts']:.1%}" for kind in ("right", "refused", "wrong", "json-repair right")
        }
        print(
            f"{name:>16}: {count['texts']:>4} texts, " + ", ".join(f"{kind} {share}" for kind, share in shares.items())
        )
    texts = whole["texts"]
    print(
        f"bench repair: {whole['right'] / texts:.1%} right, {whole['refused'] / texts:.1%} refused, "
        f"{whole['wrong'] / texts:.1%} wrong of {texts:,} broken texts; json-repair "
        f"{whole['json-repair right'] / texts:.1%} right, {1 - whole['json-repair right'] / texts:.1%} wrong"
    )


if __name__ == "__main__":
    main()
