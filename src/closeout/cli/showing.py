"""The commands that only look: the list of runs, one run, the tools, the settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from closeout.cli.display import Display, short
from closeout.config import home_folder, known_keys
from closeout.journal.events import ModelFailed, ModelReplied, ModelRequested, RunStarted
from closeout.journal.ledger import Ledger
from closeout.journal.store import Row, open_store

__all__ = ["list_runs", "list_tools", "show_config", "show_run"]

STYLES = {"answered": "green", "unanswered": "yellow", "failed": "red", "interrupted": "yellow", "cancelled": "yellow"}


def list_runs(limit: int, *, as_json: bool) -> int:
    """The latest runs, newest first."""
    records = open_store(home_folder()).runs(limit)
    if as_json:
        print(json.dumps([asdict(record) for record in records], ensure_ascii=False))
        return 0
    if not records:
        print('No runs yet. Try: closeout run "What is 17 % of 2,340?"')
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("run", "when", "status", "model", "task", "answer"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for record in records:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started))
        table.add_row(
            record.run_id,
            when,
            Text(record.status, STYLES.get(record.status, "")),
            short(record.model, 24),
            short(record.task, 48),
            short(record.answer or "", 32),
        )
    Console(soft_wrap=True).print(table)
    return 0


def show_run(run_id: str, *, as_json: bool) -> int:
    """One run: what happened, and what each request cost."""
    store = open_store(home_folder())
    rows = list(store.rows(run_id))
    record = store.run(run_id)
    ledger = Ledger(row.event for row in rows)
    if as_json:
        events = [{"seq": r.seq, "time": r.time, "type": type(r.event).__name__, **_body(r)} for r in rows]
        print(json.dumps({**asdict(record), "requests": list(_requests(rows)), "events": events}, ensure_ascii=False))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    started = next((row.event for row in rows if isinstance(row.event, RunStarted)), None)
    console.print(Text(started.task if started else record.task, "bold"))
    display = Display(console)
    for row in rows:
        display(row.event)
    console.print(_request_table(rows))
    usage = ledger.usage
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    console.print(
        f"{record.status} · {ledger.turns} turns · {ledger.attempts} attempts · {ledger.rollbacks} rollbacks · "
        f"{len(ledger.repairs)} repairs · {usage.input_tokens:,} tokens in ({usage.cache_read_tokens:,} cached), "
        f"{usage.output_tokens:,} out · cost {cost}"
    )
    console.print(Text(f"answer: {record.answer}" if record.answer is not None else "no answer", "bold"))
    if record.status in ("interrupted", "cancelled", "failed"):
        console.print(f"Go on with it: closeout resume {run_id}")
    return 0


def _body(row: Row) -> dict[str, Any]:
    return {name: getattr(row.event, name) for name in row.event.names}


def _requests(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """Each request: what it was for, its size, how much of it stood in the one before, what it cost."""
    asked: dict[tuple[str, int], ModelRequested] = {}
    for row in rows:
        event = row.event
        if isinstance(event, ModelRequested):
            asked[event.agent, event.call] = event
        elif isinstance(event, (ModelReplied, ModelFailed)):
            request = asked.get((event.agent, event.call))
            if request is not None:
                yield {
                    "agent": event.agent,
                    "turn": request.turn,
                    "purpose": request.purpose,
                    "characters": request.size,
                    "shared": request.shared,
                    "ok": isinstance(event, ModelReplied),
                    "ms": event.ms,
                    **{key: event.usage.get(key, 0) for key in ("input_tokens", "cache_read_tokens", "output_tokens")},
                }


def _request_table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, title="requests", title_justify="left")
    for name in ("agent", "turn", "for", "tokens in", "cached", "out", "same start", "ms"):
        table.add_column(name, justify="left" if name in ("agent", "for") else "right", no_wrap=True)
    for request in _requests(rows):
        share = f"{request['shared'] / request['characters']:.0%}" if request["characters"] else ""
        table.add_row(
            request["agent"],
            str(request["turn"] + 1),
            request["purpose"] if request["ok"] else f"{request['purpose']} (failed)",
            f"{request['input_tokens']:,}",
            f"{request['cache_read_tokens']:,}",
            f"{request['output_tokens']:,}",
            share,
            f"{request['ms']:,.0f}",
        )
    return table


def list_tools(docs: str | None, mcp: tuple[str, ...], config: tuple[str, ...], *, as_json: bool) -> int:
    """The tools that an agent with these options would have."""
    import asyncio

    from closeout.cli.running import RunOptions, make_agent

    agent = make_agent(RunOptions(None, None, docs, mcp, config=config))

    async def found() -> tuple[list[Any], list[str]]:
        manager = agent.plan().manager
        async with manager:
            return list(manager.specs()), [str(problem) for problem in manager.problems]

    specs, problems = asyncio.run(found())
    if as_json:
        tools = [
            {"name": s.name, "server": s.server_name, "description": s.description, "parameters": s.parameters}
            for s in specs
        ]
        print(json.dumps({"tools": tools, "problems": problems}, ensure_ascii=False, default=str))
        return 0
    for spec in specs:
        where = f"  [{spec.server_name}]" if spec.server_name else ""
        parameters = ", ".join(spec.parameters.get("properties", {}))
        print(f"{spec.name}({parameters}){where}\n    {short(spec.description)}")
    for problem in problems:
        print(f"! {problem}")
    return 0


def show_config(settings: tuple[str, ...], *, as_json: bool) -> int:
    """Every setting with its value."""
    from closeout.cli.running import split_settings

    config = split_settings(settings)
    if as_json:
        tree = config.model_dump(mode="json")
        tree["llm"]["api_key"] = "set" if config.llm.api_key else None
        print(json.dumps({"home": str(home_folder()), **tree}, ensure_ascii=False))
        return 0
    print(f"# runs are kept in {home_folder()}")
    for key in known_keys():
        if "NAME" in key:
            print(f"{key} = (limits of a sub-agent)")
            continue
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        print(f"{key} = {'(set)' if key == 'llm.api_key' and value else json.dumps(value, ensure_ascii=False)}")
    return 0
