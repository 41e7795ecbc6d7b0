"""`closeout runs usage`: what the recorded runs have used, and what the budgets have left."""

from __future__ import annotations

from closeout.cli.terminal import Column, duration, print_json, print_table, say_error
from closeout.config import home_folder
from closeout.journal.ledger import spent_by_day
from closeout.journal.usage_totals import UsageTotal, usage_totals

__all__ = ["print_budgets", "print_usage"]

NUMBERS = ("requests", "input", "from cache", "output", "cost")
CALLS = ("calls", "failed", "time of a call", "tokens of results")


def print_usage(by: str, since: str, until: str, *, as_json: bool) -> int:
    """Show the usage of all runs in groups. Return the exit code."""
    groups = tuple(part.strip() for part in by.split(",") if part.strip())
    totals = usage_totals(by=groups, since=since, until=until)
    if as_json:
        print_json([total.to_dict() for total in totals])
        return 0
    numbers_of, names = (_calls, CALLS) if "tool" in groups else (_numbers, NUMBERS)
    rows = [[*total.group.values(), *numbers_of(total)] for total in totals]
    columns = [*(Column(name, least=10) for name in groups), *(Column(name, right=True) for name in names)]
    return _show(columns, rows, "Nothing was used. `closeout run` records runs here.")


def print_budgets(*, as_json: bool) -> int:
    """Show what the keys of budgets have spent, by day. Return the exit code."""
    found = [each.to_dict() for each in spent_by_day(home_folder())]
    if as_json:
        print_json(found)
        return 0
    columns = [Column("day"), Column("key", least=10)]
    columns += [Column(name, right=True) for name in ("requests", "tokens", "cost", "reserved")]
    rows = [
        [
            str(each["day"]),
            str(each["key"]),
            f"{each['requests']:,}",
            f"{each['tokens']:,}",
            f"${each['cost_usd']:.4f}",
            f"${each['reserved_usd']:.4f}",
        ]
        for each in found
    ]
    return _show(columns, rows, "No request was sent under a budget. A request that a budget refuses is not in it.")


def _show(columns: list[Column], rows: list[list[str]], nothing: str) -> int:
    if rows:
        print_table(columns, rows)
    else:
        say_error(nothing)
    return 0


def _calls(total: UsageTotal) -> list[str]:
    mean = duration(1000 * total.seconds / (total.calls or 1))
    return [f"{total.calls:,}", f"{total.failures:,}", mean, f"{total.result_tokens:,}"]


def _numbers(total: UsageTotal) -> list[str]:
    usage = total.usage
    costs = [f"${usage.cost_usd or 0.0:.4f}"] if usage.cost_usd or not total.unpriced else []
    cost = " + ".join([*costs, *([f"{total.unpriced:,} unpriced"] if total.unpriced else [])])
    numbers = (usage.requests, usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
    return [*(f"{number:,}" for number in numbers), cost]
