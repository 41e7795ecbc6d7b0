"""Never the wrong thing: names that must not run a tool, forms of names that must, wrong answers and changed values.

    python bench/never_wrong.py [--quick] [--show] [--seed 1]

Names are played through real agents: as native calls, as calls written as text, and as argument names. The pairs come
from `data/never_wrong` (see `data/README.md`); a half of them, chosen by hash, is held out: its misses are counted but
not shown, so that nobody tunes on them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from closeout import Agent
from closeout.answers.grading import grade
from closeout.messages import ToolCall, ToolPolicy
from closeout.repair import repair_arguments
from closeout.testing import ScriptedClient, Turn, answer
from closeout.tools.tool import Tool

DATA = Path(__file__).parent / "data" / "never_wrong"
TEMPLATES = ("{}", "{}_order", "get_{}", "{}Report", "set_{}_value")
WAYS = ("native", "text", "argument")
KEYS = dict(zip("qwertyuiopasdfghjklzxcvbnm", "wqrewuyoipsadgfhgjkxzvcbmn", strict=True))
AT_ONCE = 20


def held_out(*parts: str) -> bool:
    return hashlib.sha256("/".join(parts).encode()).digest()[0] % 2 == 1


# ------------------------------------------------------------------------------------------------ names


def adversarial() -> list[tuple[str, str]]:
    """(name written, name of the tool) of different meaning: opposites in a template each way, real neighbours."""
    pairs: dict[tuple[str, str], None] = {}
    lines = (DATA / "opposites.txt").read_text("utf-8").splitlines()
    words = [pair.split("/") for line in lines if not line.startswith("#") for pair in line.split()[1:]]
    for index, (one, other) in enumerate(words):
        template = TEMPLATES[index % len(TEMPLATES)]
        pairs[template.format(one), template.format(other)] = None
        pairs[template.format(other), template.format(one)] = None
        pairs[one, other] = pairs[other, one] = None
    for line in (DATA / "neighbours.jsonl").read_text("utf-8").splitlines():
        one, other = (re.sub(r"\W", "_", name) for name in json.loads(line))
        if one.lower().replace("_", "") != other.lower().replace("_", ""):
            pairs[one, other] = None
    return [pair for pair in pairs if all(re.fullmatch(r"[A-Za-z_][\w-]{0,63}", name) for name in pair)]


def slipped(names: list[str], rng: random.Random, each: int) -> Iterator[tuple[str, str, str]]:
    """(kind, name written, name of the tool) that differ only in form, or by one typing slip."""
    for name in names:
        parts = [part.lower() for part in re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name) if part]
        yield "case", rng.choice([name.upper(), name.title(), "".join(part.title() for part in parts)]), name
        yield "separators", rng.choice(["-", " ", ".", "__", ""]).join(parts), name
        space = rng.choice(["functions.{}", "default_api:{}", "tools/{}", "functions.{}:0", "mcp__tools__{}", "{}()"])
        yield "namespace", space.format(name), name
        long = [index for index, part in enumerate(parts) if len(part) >= 5 and part.isalpha()]
        for _ in range(each if long else 0):
            index = rng.choice(long)
            word = mistyped(parts[index], rng)
            yield "slip", "_".join([*parts[:index], word, *parts[index + 1 :]]), name


def mistyped(word: str, rng: random.Random) -> str:
    """The word with two letters swapped, a letter missing, doubled, or its neighbour on the keyboard."""
    while True:
        at = rng.randrange(len(word) - 1)
        wrong = rng.choice([
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + KEYS.get(word[at], "x") + word[at + 1 :],
        ])  # fmt: skip
        if wrong != word:
            return wrong


async def played(written: str, name: str, way: str) -> tuple[int, int]:
    """(how often the tool ran, requests) in a run whose model writes a name for the only tool or its only argument."""
    ran = 0

    def run(**arguments: Any) -> str:
        nonlocal ran
        ran += 1
        return "done"

    argument = name if way == "argument" else "it"
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    tool: Tool[..., str] = Tool(
        run,
        name="work" if way == "argument" else name,
        description="It.",
        parameters=schema,
        policy=ToolPolicy(read_only=True),
        inline=True,
    )
    call = ToolCall("work", {written: "x"}) if way == "argument" else ToolCall(written, {"it": "x"})
    text = json.dumps({"name": call.name, "arguments": call.arguments})
    turn = Turn(text=f"<tool_call>\n{text}\n</tool_call>") if way == "text" else Turn("I do it.", calls=[call])
    client = ScriptedClient([turn, answer("1")])
    agent = Agent(client, [tool], max_turns=4, home=False)
    result = await agent.run("Do it.")
    return ran, result.usage.requests


async def all_played(cases: list[tuple[str, str, str]]) -> list[tuple[int, int]]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(case: tuple[str, str, str]) -> tuple[int, int]:
        async with slots:
            return await played(*case)

    return list(await asyncio.gather(*map(one, cases)))


def measure_names(quick: bool, show: bool, rng: random.Random) -> str:
    pairs = adversarial()
    if quick:
        pairs = rng.sample(pairs, 60)
    cases = [(one, other, way) for way in WAYS for one, other in pairs]
    executed: Counter[str] = Counter()
    for (one, other, way), (ran, _) in zip(cases, asyncio.run(all_played(cases)), strict=True):
        if ran:
            held = held_out(one, other)
            executed[f"{way}, {'held out' if held else 'open'}"] += 1
            if show and not held:
                print(f"  executed as {way}: {one} ran {other}")
    tools = [re.sub(r"\W", "_", name) for name in (DATA / "tools.txt").read_text("utf-8").split()]
    slips = list(slipped(tools[:20] if quick else tools, rng, 3))
    played_slips = asyncio.run(all_played([(one, other, "native") for _, one, other in slips]))
    counts: dict[str, list[int]] = {}
    mistyped_names = sum(kind == "slip" for kind, _, _ in slips)
    executed["slip"] += sum(ran for (kind, _, _), (ran, _) in zip(slips, played_slips, strict=True) if kind == "slip")
    for (kind, one, other), (ran, requests) in zip(slips, played_slips, strict=True):
        if kind == "slip":  # the model is asked, and this scripted one then answers
            continue
        done = ran == 1 and requests == 2
        count = counts.setdefault(kind, [0, 0])
        count[0] += done
        count[1] += 1
        if show and not done:
            print(f"  not repaired ({kind}): {one} for {other}")
    for kind, (done, total) in counts.items():
        print(f"  {kind:<12} {done:>4}/{total} repaired at no extra request")
    done, total = (sum(column) for column in zip(*counts.values(), strict=True))
    held = sum(held_out(*pair) for pair in pairs)
    return (
        f"{len(pairs)} adversarial pairs ({held} held out) in {len(WAYS)} ways: {sum(executed.values())} executed "
        f"{dict(+executed) or ''}; {done}/{total} forms repaired ({done / total:.1%}); "
        f"{mistyped_names} typing slips asked about"
    )


# ------------------------------------------------------------------------------------------------ answers

_SWAPS = [
    (r"<", ">"), (r">", "<"), (r"\\leq?(?![a-z])", r"\\geq"), (r"\\geq?(?![a-z])", r"\\leq"), (r"=", "<"),
    (r"\\cup", r"\\cap"), (r"\\pm", r"\\mp"), (r"\\in(?![a-z])", r"\\notin"),
]  # fmt: skip
_NAMED = re.compile(r"frac|sqrt|left|right|pi|infty|cup|text|cdot|sin|cos|tan|log")


def wrong_answers(right: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """(kind, a wrong answer) with one sign, operator, relation, exponent, bracket or digit changed."""
    for found in re.finditer("-", right):
        yield "sign", right[: found.start()] + right[found.end() :]
    if re.match(r"[\\\dA-Za-z(]", right) and not re.search("[a-z]{3,}", _NAMED.sub("", right)):
        yield "sign", f"-{right}"
    for found in re.finditer(r"(?<=[\w})])\s*([+-])\s*(?=[\w\\({])", right):
        other = "-" if found[1] == "+" else "+"
        yield "operator", right[: found.start(1)] + other + right[found.end(1) :]
    for pattern, replacement in _SWAPS:
        for found in re.finditer(pattern, right):
            yield "relation", right[: found.start()] + found.expand(replacement) + right[found.end() :]
    for found in re.finditer(r"\^\{?(-?\d+)\}?", right):
        for exponent in (f"^{{{int(found[1]) + 1}}}", f"^{{{-int(found[1])}}}", "", found[1]):
            yield "exponent", right[: found.start()] + exponent + right[found.end() :]
    if re.fullmatch(r"(?:\\left)?\s*[\[(][^()\[\]]*,[^()\[\]]*(?:\\right)?[\])]", right):
        for old, new, at in (("(", "[", right.find), ("[", "(", right.find), (")", "]", right.rfind)):
            if at(old) >= 0:
                yield "bracket", right[: at(old)] + new + right[at(old) + 1 :]
    for found in re.finditer(r"\d", right):
        yield "digit", right[: found.start()] + str((int(found[0]) + rng.randint(1, 9)) % 10) + right[found.end() :]


def is_zero(wrong: str, right: str) -> bool:
    """Whether the only difference is the sign of a nought: -0 is 0."""
    return re.sub(r"-(?=0(?![\d.]))", "", wrong) == re.sub(r"-(?=0(?![\d.]))", "", right)


def equivalents() -> list[tuple[str, str]]:
    """Pairs that are equal by math-verify's documentation and by school mathematics."""
    lines = (DATA / "equivalent.txt").read_text("utf-8").splitlines()
    return [(one, other) for line in lines if line and not line.startswith("#") for one, other in [line.split(" == ")]]


def math_verify(prediction: str, gold: str) -> bool:
    from closeout.answers.math_worker import MathWorkerFailed, equivalent

    try:
        return equivalent(prediction, gold)
    except MathWorkerFailed:
        return False


def measure_answers(quick: bool, show: bool, rng: random.Random) -> str:
    answers = (DATA / "answers.txt").read_text("utf-8").splitlines()
    if quick:
        answers = rng.sample(answers, 30)
    cases = {
        (kind, wrong, right): None
        for right in answers
        for kind, wrong in wrong_answers(right, rng)
        if wrong.strip() and wrong != right and not is_zero(wrong, right)
    }
    graders: dict[str, Callable[[str, str], object]] = {
        "math": lambda one, other: grade(one, other, "math"),
        "normalized": lambda one, other: grade(one, other, "normalized"),
        "math-verify": math_verify,
    }
    accepted: Counter[str] = Counter()
    for kind, wrong, right in cases:
        for name, grader in graders.items():
            if grader(wrong, right):
                accepted[name] += 1
                if show and name != "math-verify":
                    print(f"  accepted by {name} ({kind}): {wrong} for {right}")
    pairs = [pair for one, other in equivalents() for pair in ((one, other), (other, one))]
    equal = {name: sum(bool(graders[name](*pair)) for pair in pairs) for name in ("math", "math-verify")}
    print(f"  wrong answers by kind: {dict(Counter(kind for kind, _, _ in cases))}")
    shares = ", ".join(f"{name} {accepted[name]} ({accepted[name] / len(cases):.2%})" for name in graders)
    return (
        f"{len(cases)} wrong answers, accepted by {shares}; {len(pairs)} equivalent ones, accepted by "
        f"math {equal['math']}, math-verify {equal['math-verify']}"
    )


# ------------------------------------------------------------------------------------------------ values

SYMBOLS = ("mW", "MW", "Mb", "MB", "mPa", "MPa", "m", "M", "1m", "1M", "UTC+5", "UTC-5", "T+1", "NA", "A-", "A+", "C++")
LONG_WORDS = ("Celsius", "kelvin", "Picnic Tables", "gluten_free", "prednisolone", "Hertford", "ascending")
NEAR_WORDS = (*SYMBOLS, *LONG_WORDS, "UTC 5", "T1", "N/A", "prednisone", "Hartford", "descending", "picnic tables")
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"},
    {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "string"}},
)  # fmt: skip


def random_written(rng: random.Random) -> str:
    """What a model may write for one argument: numbers and codes in many forms, words, bare or as a JSON string."""
    digits = "".join(rng.choice("0123456789") for _ in range(rng.choice((1, 2, 3, 4, 6, 18, 25))))
    small = rng.randrange(1, 999)
    text = rng.choice([
        digits, f"0{digits}", f"-{digits}", f"+{digits}", f"{digits}.", f".{digits}", f"{digits}.{small}",
        f"{digits}.000", f"{digits}.0", f"{digits}e{rng.choice((1, 3, 4567, -999))}", f"0x{digits}", f"1_{digits}",
        f"{small},{small:03}", f"{small}, {small}", "-", rng.choice(NEAR_WORDS),
        rng.choice(("true", "True", "FALSE", "yes", "hardly yes", "null", "None", "nil", "")),
    ])  # fmt: skip
    return json.dumps(text) if rng.random() < 0.5 else text


def means(result: Any, text: str, kind: dict[str, Any]) -> bool:
    """Whether a value is what the text says, read independently: exact decimals, no likeness, no ambiguity."""
    if isinstance(result, bool):
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower()) is result
    if isinstance(result, list):
        pieces = [text.strip()] if len(result) == 1 else [piece.strip() for piece in text.split(",")]
        grouped = re.fullmatch(r"\d{1,3}(,\d{3})+", text.strip()) is not None
        fits = len(pieces) == len(result) and not grouped
        return fits and all(map(means, result, pieces, [kind.get("items", {})] * len(pieces)))
    if isinstance(result, int | float):
        plain = text.strip().replace("_", "")
        if plain[:2] == "0x":
            return isinstance(result, int) and result == int(plain, 16)
        octal = re.fullmatch(r"[+-]?0[0-7]+", plain) and int(plain, 8) != int(plain)
        grouping = kind.get("type") == "integer" and re.fullmatch(r"[+-]?\d+\.\d{3}", plain)
        try:
            return not octal and not grouping and Decimal(repr(result)) == Decimal(plain)
        except InvalidOperation:
            return False
    if result == text or (isinstance(result, str) and result == text.strip()):
        return True
    if "enum" not in kind or result in SYMBOLS or result not in kind["enum"]:
        return False
    return re.sub("[ _-]", " ", result).lower() == re.sub("[ _-]", " ", text).lower()


def measure_values(pairs: int, show: bool, rng: random.Random) -> str:
    """Repair random arguments for random schemas. A repaired value must mean what was written."""
    counts: Counter[str] = Counter()
    for _ in range(pairs):
        kind = rng.choice([*KINDS, {"enum": rng.sample(SYMBOLS + LONG_WORDS, rng.randint(1, 4))}])
        schema = {"type": "object", "properties": {"it": kind}, "required": ["it"], "additionalProperties": False}
        written = random_written(rng)
        extra = rng.choice(("", "", "", ', "dry_run": true', ', "it": "twice"'))
        found = repair_arguments(f'{{"it": {written}{extra}}}', schema)
        text = json.loads(written) if written[:1] == '"' else written
        same = found.ok and set(found.arguments) == {"it"} and not extra and means(found.arguments["it"], text, kind)
        verdict = "refused" if not found.ok else "untouched" if not found.repairs else "meant" if same else "wrong"
        counts[verdict] += 1
        if show and verdict == "wrong":
            print(f"  {written}{extra} for {kind} became {found.arguments}")
    return (
        f"{pairs:,} values: {counts['wrong']} executed with another meaning, {counts['meant']:,} repaired, "
        f"{counts['untouched']:,} valid as written, {counts['refused']:,} refused"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--show", action="store_true", help="print what went wrong, of the open half")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.perf_counter()
    rng = random.Random(options.seed)
    names = measure_names(options.quick, options.show, rng)
    answers = measure_answers(options.quick, options.show, rng)
    values = measure_values(5_000 if options.quick else 100_000, options.show, rng)
    print(f"bench never_wrong: {names}; {answers}; {values}; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
