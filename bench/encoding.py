"""Tokens and speed of the encodings on twelve real tool results, against compact JSON and against always-TOON.

Run: python bench/encoding.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closeout.messages import ToolPolicy
from closeout.results.encoding import decode, encode
from closeout.results.present import present
from closeout.results.tokens import count_tokens, estimate_tokens

PAYLOADS = Path(__file__).parent / "data" / "payloads"
FORMS = ("json", "columns", "toon", "yaml", "xml", "raw", "compact", "csv", "markdown")
SINGLE_LOSSLESS = ("json", "columns", "toon", "yaml", "xml", "raw")
SMALL = {"success": True, "rows": 3, "message": "updated 3 rows", "id": "a1b2c3"}


def tokens_by_form(value: Any) -> dict[str, int]:
    """Tokens (o200k) of a value: default `json.dumps`, auto, and each form; every lossless one is read back."""
    row = {"json.dumps": count_tokens(json.dumps(value))}
    for form in ("auto", *FORMS):
        encoded = encode(value, form)
        if encoded.lossless and decode(encoded, encoded.format) != value:
            raise SystemExit(f"{encoded.format} does not give the value back")
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
        worst = max(worst, row["auto"] / min(row[form] for form in SINGLE_LOSSLESS) - 1)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    repeats = 3 if parser.parse_args().quick else 15
    payloads = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(PAYLOADS.glob("*.json"))}
    totals = print_table(payloads)
    print_estimates(payloads)
    print_slimming(payloads)
    size = sum(len(encode(value, "json")) for value in payloads.values())
    auto = best_time(lambda: [encode(value) for value in payloads.values()], repeats)
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
