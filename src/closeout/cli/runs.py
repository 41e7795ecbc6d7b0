"""List the runs, show one with everything that happened in it, or compare two."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from closeout.cli.display import Display
from closeout.cli.selecting import RunFilter
from closeout.cli.terminal import (
    Cell,
    Column,
    amount,
    duration,
    make_console,
    one_line,
    print_json,
    print_table,
    printable,
    usage_line,
)
from closeout.config import home_folder
from closeout.journal.events import (
    Event,
    ModelFailed,
    ModelReplied,
    RunEnded,
    RunStarted,
    TurnAccepted,
)
from closeout.journal.next_steps import agent_option, next_step
from closeout.journal.persons import persons_of
from closeout.journal.readonly import open_to_read
from closeout.journal.run_names import LAB
from closeout.journal.store import Row, RunRecord, Store
from closeout.journal.story import Story
from closeout.journal.subscribers import Progress
from closeout.journal.totals import RunTotals

__all__ = ["list_runs", "print_difference", "show_run"]

if TYPE_CHECKING:
    from closeout.run.waits.decisions import PendingDecision

SHOWN_DIFFERENCE = 400  # characters of a value that differs

STYLES = {
    "answered": "green",
    "unanswered": "yellow",
    "failed": "red",
    "interrupted": "yellow",
    "cancelled": "yellow",
    "waiting": "cyan",
}
RUNS = (
    Column("run"),
    Column("when", rank=2),
    Column("status"),
    Column("model", least=12, rank=3),
    Column("task", least=16),
    Column("answer", least=12, rank=1),
)
AGENT, USER = Column("agent", least=8, rank=4), Column("user", least=8, rank=5)  # shown where runs differ in them
REQUESTS = (
    Column("agent", rank=3),
    Column("turn", right=True),
    Column("for"),
    Column("tokens in", right=True),
    Column("cached", right=True),
    Column("out", right=True),
    Column("same start", right=True, rank=1),
    Column("cost", right=True, rank=2),
    Column("time", right=True, rank=1),
)


def list_runs(limit: int, wanted: RunFilter, *, as_json: bool) -> int:
    """Print the latest runs that match, newest first, trials only if they are asked for. Return the exit code."""
    from closeout.evaluate.trials import evaluations_in

    with open_to_read(home_folder()) as store:
        evaluations = [] if wanted.is_set else evaluations_in(home_folder())
        chosen = wanted.select(store) if wanted.is_set else store.each_run(not_under=[*evaluations, LAB])
        found = list(islice(chosen, min(limit, sys.maxsize - 1) + 1))
        records = found[:limit]
        waiting = [] if as_json else [each for each in records if each.status in ("waiting", "interrupted")]
        brief = bool(waiting) and make_console().is_terminal
        waits = {each.run_id: _waits(store, each, brief=brief) for each in waiting}
        begun = [store.beginning(each.run_id) for each in records]
    names = [("", "") if each is None else (each.name, ", ".join(sorted(persons_of(each)))) for each in begun]
    if as_json:
        users = [sorted(persons_of(each)) for each in begun]
        both = zip(records, names, users, strict=True)
        print_json([{**asdict(record), "agent": agent, "users": named} for record, (agent, _), named in both])
    elif records:
        has_agents, has_users = len({agent for agent, _ in names}) > 1, any(user for _, user in names)
        columns = (*RUNS, *([AGENT] if has_agents else []), *([USER] if has_users else []))
        rows = [
            [*_run_cells(record, waits.get(record.run_id, "")), *[agent] * has_agents, *[user] * has_users]
            for record, (agent, user) in zip(records, names, strict=True)
        ]
        print_table(columns, rows)
        if len(found) > limit:
            print(f"The latest {limit:,}. More: closeout runs --limit {10 * limit}", file=sys.stderr)
    elif wanted.is_set:
        print("No run matches.")
    elif not evaluations:
        print('No runs yet. Try: closeout run "What is 17 % of 2,340?"')
    if evaluations and not as_json:
        print("Trials are listed in their evaluations: closeout eval list", file=sys.stderr)
    return 0


def show_run(run_id: str, *, as_json: bool) -> int:
    """Print one run: what happened, and what each request cost. Return the exit code."""
    from closeout.cli.recurring import unsent_line
    from closeout.fleet.announcing import unsent_ends

    with open_to_read(home_folder()) as store:
        rows, record, unsent = list(store.rows(run_id)), store.run(run_id), unsent_ends(store, run_id)
    if as_json:
        events = [{"seq": r.seq, "time": r.time, "type": type(r.event).__name__, **_body(r.event)} for r in rows]
        more = {"unsent": unsent, "requests": list(_requests(rows)), "events": events}
        print_json({**asdict(record), **_counts(rows), **more})
        return 0
    console = make_console()
    started = next((row.event for row in rows if isinstance(row.event, RunStarted)), None)
    console.print(Text(printable(started.task if started else record.task), "bold"))
    display = Display(console)
    for event in _with_words(rows):
        display(event)
    display.left_over()
    requests = list(_requests(rows))
    if requests:
        console.print()
        print_table(REQUESTS, [_request_cells(request) for request in requests], console)
    console.print()
    _print_outcome(console, record, rows)
    for each in unsent:
        console.print(Text(printable(f"announcement failed: {unsent_line(each)}"), "yellow"))
    return 0


def _waits(store: Store, record: RunRecord, *, brief: bool) -> str:
    from closeout.run.waits.decisions import awaited, pending_decisions

    if record.status == "interrupted":
        return "" if store.rows_from(record.run_id, 1, 1) else "not begun"
    pending = pending_decisions(store.rows(record.run_id))
    if not pending:
        return "decided, can be resumed"
    return ", ".join(map(_brief_wait, pending)) if brief else f"waits for {', '.join(map(awaited, pending))}"


def _brief_wait(pending: PendingDecision) -> str:
    """Return the wait in about 15 characters: a terminal of 80 columns has no more left."""
    if pending.kind == "timer":
        return time.strftime("%m-%d %H:%M", time.localtime(pending.expires))
    if pending.kind == "signal":
        return f"signal {' or '.join(pending.signals)}"
    return {"approval": f"approve {pending.tool}", "login": f"log in to {pending.tool}"}.get(pending.kind, "a question")


def _run_cells(record: RunRecord, waits: str) -> list[Cell]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started))
    answer = record.answer if record.answer is not None else waits
    status = (record.status, STYLES.get(record.status, ""))
    return [record.run_id, when, status, record.model, record.task, answer]


def _print_outcome(console: Console, record: RunRecord, rows: Sequence[Row]) -> None:
    totals = RunTotals(row.event for row in rows)
    why = f" ({record.stop_reason})" if record.stop_reason not in (None, record.status) else ""
    parts = [
        amount(totals.turns, "turn"),
        amount(totals.tool_calls, "tool call") + (f" ({totals.tool_failures} failed)" if totals.tool_failures else ""),
        amount(totals.attempts, "attempt"),
        amount(totals.rollbacks, "rollback"),
        amount(len(totals.repairs), "repair"),
        amount(totals.usage.requests, "request"),
        usage_line(totals.usage) + (" · cost unknown" if totals.usage.cost_usd is None else ""),
    ]
    console.print(Text(f"{record.status}{why} · {' · '.join(parts)}", STYLES.get(record.status, "")))
    ended = totals.ended
    if ended is not None and ended.error:
        console.print(Text(printable(ended.error), "red"))
    agent = agent_option(rows)
    answer = "no answer" if record.answer is None else f"answer: {printable(record.answer)}"
    console.print(Text(answer, "bold"))
    kind = ended.error_kind if ended is not None else ""
    if advice := next_step(record.status, kind, record.run_id, agent):
        console.print(advice)
    if record.status == "waiting":
        from closeout.cli.deciding import describe_pending
        from closeout.run.waits.decisions import pending_decisions

        console.print(Text(describe_pending(record.run_id, pending_decisions(rows), agent)))


def _counts(rows: Iterable[Row]) -> dict[str, Any]:
    totals = RunTotals(row.event for row in rows)
    return {
        "turns": totals.turns,
        "attempts": totals.attempts,
        "tool_calls": totals.tool_calls,
        "tool_failures": totals.tool_failures,
        "rollbacks": totals.rollbacks,
        "repairs": [asdict(repair) for repair in totals.repairs],
        "usage": asdict(totals.usage),
    }


def _with_words(rows: Sequence[Row]) -> Iterator[Event | Progress]:
    """Yield the events, with the text of each accepted turn before the reply that contained it."""
    pieces: dict[tuple[str, int], list[Progress]] = {}  # keyed by agent and number of the request
    story = Story()
    for row in rows:
        event, turn = row.event, story.feed(row.event).agent.turn
        if turn is None or turn.reply is None:
            continue
        place = event.agent, turn.reply.call
        if isinstance(event, TurnAccepted):
            words = [Progress(event.agent, event.turn, "thought", event.text)]
            words += [Progress(event.agent, event.turn, "tool_name")] if event.calls else []
            pieces[place] = words
        elif isinstance(event, RunEnded) and event.answer is not None and turn.purpose == "act":
            pieces.setdefault(place, [Progress(event.agent, 0, "text", event.closing_text)])
    for row in rows:
        if isinstance(row.event, ModelReplied):
            yield from pieces.get((row.event.agent, row.event.call), ())
        yield row.event


def _body(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.names}


def _requests(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield each request: its purpose, its size, the part that it shares with the one before, its cost."""
    story = Story()
    for row in rows:
        event, request = row.event, story.feed(row.event).request
        if isinstance(event, (ModelReplied, ModelFailed)) and request is not None and request.intent is not None:
            yield {
                "agent": event.agent,
                "turn": request.intent.turn,
                "purpose": request.purpose,
                "characters": request.intent.size,
                "shared": request.intent.shared,
                "ok": isinstance(event, ModelReplied),
                "ms": event.ms,
                **{key: event.usage.get(key, 0) for key in ("input_tokens", "cache_read_tokens", "output_tokens")},
                "cost_usd": event.usage.get("cost_usd"),
            }


def _request_cells(request: dict[str, Any]) -> list[Cell]:
    share = f"{request['shared'] / request['characters']:.0%}" if request["shared"] else ""
    cost = "" if request["cost_usd"] is None else f"${request['cost_usd']:.4f}"
    style = "" if request["ok"] else "red"
    texts = (
        request["agent"],
        str(request["turn"] + 1),
        request["purpose"] if request["ok"] else f"{request['purpose']} (failed)",
        f"{request['input_tokens']:,}",
        f"{request['cache_read_tokens']:,}",
        f"{request['output_tokens']:,}",
        share,
        cost,
        duration(request["ms"]),
    )
    return [(text, style) for text in texts]


def print_difference(first: str, second: str, *, as_json: bool) -> int:
    """Print the first difference between two runs. Return 0 if they are the same, 1 if they differ."""
    from closeout.lab.compare import agent_differences, first_difference

    with open_to_read(home_folder()) as store:
        a, b = list(store.rows(first)), list(store.rows(second))
    agents, found = agent_differences(a, b), first_difference(a, b)
    if as_json:
        print_json({"agents": agents, "difference": None if found is None else asdict(found)})
        return 0 if found is None else 1
    if agents:
        print(printable(f"The agents differ: {'; '.join(agents)}."), file=sys.stderr)
    if found is None:
        print("The runs did the same.")
        return 0
    print(printable(str(found)))
    for run_id, value in ((first, found.a), (second, found.b)):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        print(f"  {run_id}: {'does not have it' if value is None else one_line(text, SHOWN_DIFFERENCE)}")
    return 1
