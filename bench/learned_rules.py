"""Rules learned from decisions: what they let through, and how many questions they save, on decisions held back.

Twelve kinds of hidden policies decide on random calls. Half of the decisions are learned from, the rules decide on the
other half. Two of the policies cannot be written as rules (a daily sum, a person's mood): they should give none.

    python bench/learned_rules.py [--decisions 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from closeout.lab.learned_rules import MadeDecision, suggestions

FIRMS = ["acme.example", "north.example", "partner.example", "mail.example", "free.example"]
PEOPLE = ["ann", "bo", "chen", "dora", "emil", "fay", "gus", "hana", "李雷", "韩梅梅"]
FOLDERS = ["/home/ann/notes/", "/home/ann/work/", "/etc/", "/var/log/", "/srv/data/"]
MEMOS = ["rent", "lunch", "invoice", "refund", "book", "taxi", "gift", "房租", "午饭"]

Policy = Callable[[dict[str, Any]], bool]


def address(draw: random.Random) -> str:
    return f"{draw.choice(PEOPLE)}{draw.randrange(40)}@{draw.choice(FIRMS)}"


def payment(draw: random.Random) -> dict[str, Any]:
    return {
        "to": draw.choice(PEOPLE),
        "amount": round(draw.expovariate(1 / 120), 2),
        "currency": draw.choice(["EUR", "EUR", "EUR", "USD", "JPY"]),
        "memo": f"{draw.choice(MEMOS)} {draw.randrange(10_000)}",
    }


def mail(draw: random.Random) -> dict[str, Any]:
    to = [address(draw) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    return {"to": to, "subject": f"{draw.choice(MEMOS)} {draw.randrange(10_000)}"}


def file(draw: random.Random) -> dict[str, Any]:
    name = f"{draw.choice(MEMOS)}{draw.randrange(2000)}.{draw.choice(['txt', 'md', 'sh'])}"
    return {"path": draw.choice(FOLDERS) + name, "mode": draw.choice(["append", "overwrite"])}


def deploy(draw: random.Random) -> dict[str, Any]:
    return {
        "service": draw.choice(["web", "api", "jobs", "mail"]),
        "stage": draw.choice(["test", "test", "canary", "production"]),
        "force": draw.random() < 0.2,
        "replicas": draw.randrange(1, 40),
    }


def daily_sum(limit: float) -> Policy:
    spent = [0.0, 0]

    def decide(call: dict[str, Any]) -> bool:
        spent[1] += 1
        if spent[1] % 25 == 0:
            spent[0] = 0.0
        fits = spent[0] + call["amount"] <= limit
        spent[0] += call["amount"] * fits
        return fits

    return decide


def mood(draw: random.Random) -> Policy:
    return lambda call: draw.random() > 0.1


def families(draw: random.Random) -> dict[str, tuple[Callable[[random.Random], dict[str, Any]], Policy]]:
    limit = draw.randrange(60, 300)
    friends, firm, folder = draw.sample(PEOPLE, 6), draw.choice(FIRMS), draw.choice(FOLDERS)
    return {
        "an amount": (payment, lambda call: call["amount"] <= limit),
        "known people": (payment, lambda call: call["to"] in friends),
        "an amount by person": (payment, lambda call: call["amount"] <= (limit if call["to"] in friends else 20)),
        "an amount by currency": (payment, lambda call: call["amount"] <= limit * (1 + (call["currency"] == "JPY"))),
        "a firm": (mail, lambda call: all(each.endswith(f"@{firm}") for each in call["to"])),
        "not a firm": (mail, lambda call: not any(each.endswith(f"@{firm}") for each in call["to"])),
        "a folder": (file, lambda call: call["path"].startswith(folder)),
        "a folder and a kind": (file, lambda call: call["path"].startswith(folder) and not call["path"].endswith("sh")),
        "a stage": (deploy, lambda call: call["stage"] != "production" and not call["force"]),
        "a size by stage": (deploy, lambda call: call["replicas"] <= (5 if call["stage"] == "production" else 20)),
        "a daily sum": (payment, daily_sum(1500)),
        "a mood": (payment, mood(draw)),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--decisions", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    draw = random.Random(chosen.seed)
    kinds = families(draw)
    totals: defaultdict[str, int] = defaultdict(int)
    for name, (make, policy) in kinds.items():
        calls = [make(draw) for _ in range(chosen.decisions // len(kinds))]
        made = [
            MadeDecision(run_id="r", call=f"r{n}", tool="act", arguments=call, approved=policy(call))
            for n, call in enumerate(calls)
        ]
        half = len(made) // 2
        rules = [each.rule for each in suggestions(made[:half])]
        free = [each for each in made[half:] if any(rule.fits("act", each.arguments) for rule in rules)]
        through = sum(not each.approved for each in free)
        could = sum(each.approved for each in made[half:])
        saved = len(free) - through
        written = name not in ("a daily sum", "a mood")
        totals["through"] += through
        totals["asked" if written else "asked_odd"] += could
        totals["saved" if written else "saved_odd"] += saved
        print(
            f"{name:24} {len(rules):3} rules  {saved:4} of {could:4} approvals unasked  {through:3} denied let through"
        )
    print(
        f"learned rules: {totals['through']} denied calls let through, "
        f"{totals['saved'] / totals['asked']:.0%} fewer questions that were approved"
    )


if __name__ == "__main__":
    main()
