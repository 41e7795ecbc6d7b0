"""Tokens and speed of the encodings on twelve real tool results, against compact JSON and against always-TOON.

With `--payloads N`, also write and read N generated values that hold the literals of every format.

Run: python bench/encoding.py [--quick] [--payloads 100000]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closeout.messages import ToolPolicy
from closeout.results import encoding
from closeout.results.encoding import FORMATS, decode, encode
from closeout.results.normal import EncodingError
from closeout.results.present import present
from closeout.results.tokens import count_tokens, estimate_tokens

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from payloads import payloads as generated_payloads

PAYLOADS = Path(__file__).parent / "data" / "payloads"
FORMS = tuple(name for name in FORMATS if name != "text")
READABLE = ("json", "columns", "toon", "raw")
SMALL = {"success": True, "rows": 3, "message": "updated 3 rows", "id": "a1b2c3"}


def tokens_by_form(value: Any) -> dict[str, int]:
    """Tokens (o200k) of a value: default `json.dumps`, auto, and each form."""
    row = {"json.dumps": count_tokens(json.dumps(value))}
    for form in ("auto", *FORMS):
        encoded = encode(value, form)
        if form == "auto" and not encoded.lossless:
            raise SystemExit(f"auto chose {encoded.format}, which does not give the value back")
        row[form] = encoded.tokens
    return row


def best_time(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of some runs: the machine's noise only ever adds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def print_table(payloads: dict[str, Any]) -> dict[str, int]:
    totals: dict[str, int] = {}
    worst = 0.0
    print(f"{'tokens (o200k)':<18}" + "".join(f"{form:>11}" for form in ("json.dumps", "auto", *FORMS)) + "  auto is")
    for name, value in payloads.items():
        row = tokens_by_form(value)
        worst = max(worst, row["auto"] / min(row[form] for form in FORMS) - 1)
        print(f"{name:<18}" + "".join(f"{found:>11,}" for found in row.values()) + f"  {encode(value).format}")
        for form, found in row.items():
            totals[form] = totals.get(form, 0) + found
    print(f"{'sum':<18}" + "".join(f"{found:>11,}" for found in totals.values()))
    print(f"auto over the best single lossless form of a payload, at worst: {worst:+.2%}")
    if worst > 0.01:
        raise SystemExit("auto is worse than a single form by more than 1 %")
    return totals


def print_estimates(payloads: dict[str, Any]) -> None:
    errors = []
    for value in payloads.values():
        texts = (json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        errors.extend(abs(estimate_tokens(text) / count_tokens(text) - 1) for text in texts)
    print(f"estimate without vocabulary: mean error {sum(errors) / len(errors):.1%}, largest {max(errors):.1%}")


def print_slimming(payloads: dict[str, Any]) -> None:
    policies = {
        "api_gh_issue": ToolPolicy(drop_keys=("*_url", "url", "node_id"), drop_nulls=True),
        "matrix": ToolPolicy(round_floats=3),
    }
    for name, policy in policies.items():
        before = count_tokens(present(payloads[name], budget=10**6).text)
        after = count_tokens(present(payloads[name], policy=policy).text)
        print(f"slimming {name}: {before:,} → {after:,} tokens ({after / before - 1:+.0%})")


def check_generated(count: int) -> None:
    """Encode generated values in every form, and compare what is called lossless with what decodes."""
    found = Counter[str]()
    for value in generated_payloads(1, count):
        for form in ("auto", *READABLE):
            try:
                encoded = encode(value, form)
            except EncodingError:
                found[f"{form} refused"] += 1
                continue
            back = decode(encoded, encoded.format)
            same = back == value and json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)
            if encoded.lossless != same or (form == "auto" and not same):
                raise SystemExit(
                    f"{form} is called lossless={encoded.lossless} for {value!r}, which decodes to {back!r}"
                )
            found[f"{form} {'lossless' if same else 'lossy'}"] += 1
    print(f"{count:,} generated values: " + ", ".join(f"{name} {number:,}" for name, number in sorted(found.items())))


def verification_ms(payloads: dict[str, Any], repeats: int) -> float:
    """Milliseconds that `auto` takes to decode and compare what it chose, over all payloads."""
    known = encoding.known_encodings()
    chosen = [(*encoding._cheapest(value, None, known), value) for value in payloads.values()]
    checked = [(text, known[form], value) for form, text, value in chosen if form != "json"]
    return best_time(lambda: [encoding._reads_back(*each) for each in checked], repeats) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--payloads", type=int, default=0, help="generated values to write and read")
    options = parser.parse_args()
    repeats = 3 if options.quick else 15
    if options.payloads:
        check_generated(options.payloads)
    payloads = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(PAYLOADS.glob("*.json"))}
    totals = print_table(payloads)
    print_estimates(payloads)
    print_slimming(payloads)
    size = sum(len(encode(value, "json")) for value in payloads.values())
    auto = best_time(lambda: [encoding.encode_normal(value, "auto", None) for value in payloads.values()], repeats)
    print(
        f"reading back and comparing what auto chose takes {verification_ms(payloads, repeats):.1f} ms "
        f"of {auto * 1000:.1f} ms for the {len(payloads)} payloads"
    )
    plain = best_time(lambda: [json.dumps(value) for value in payloads.values()], repeats)
    small = best_time(lambda: [present(SMALL) for _ in range(200)], repeats) / 200
    saved = ", ".join(
        f"{totals['auto'] / totals[form] - 1:+.1%} to {name}"
        for form, name in (("json", "compact JSON"), ("toon", "always-TOON"), ("json.dumps", "json.dumps"))
    )
    print(
        f"bench encoding: auto {totals['auto']:,} tokens, {saved}; encodes {size / auto / 1e6:.1f} MB/s "
        f"({auto / plain:.0f}x the time of json.dumps); a small result is presented in {small * 1e6:.0f} µs"
    )


if __name__ == "__main__":
    main()
