"""Runs and events as JSON objects for the viewer's pages, with long texts cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from closeout.journal.events import RunEnded, RunStarted, Unknown
from closeout.journal.next_steps import agent_option, next_steps
from closeout.journal.persons import persons_of
from closeout.journal.store import Row, RunRecord, Store
from closeout.journal.text_search import RunHit

__all__ = [
    "about_shape",
    "cut",
    "ended_shape",
    "event_shape",
    "hit_shape",
    "run_reason",
    "run_shape",
    "totals_shape",
    "without_messages",
]

LONGEST_REASON = 300  # characters of why a run has no answer
LONGEST_TEXT = 4000  # characters of a text in a list of events; a page asks for the whole event when it needs more
CUT = "$cut"  # {"$cut": beginning, "length": characters}


def run_shape(record: RunRecord, totals: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run as the list of runs shows it. Without totals it is not indexed yet."""
    shape = asdict(record)
    if totals is not None:
        shape["totals"] = totals_shape(totals)
    return shape


def about_shape(started: RunStarted | None) -> dict[str, Any]:
    """Return whose a run is: its agent and version, the people it names, and the keys of its budgets."""
    if started is None:
        return {"agent": "", "version": "", "users": [], "budgets": []}
    users = sorted(persons_of(started))
    keys = [str(key) for key in started.settings.get("budget") or () if str(key).removeprefix("user:") not in users]
    return {"agent": started.name, "version": started.version, "users": users, "budgets": keys}


def ended_shape(store: Store, run_id: str) -> dict[str, Any]:
    """Return a run as its page shows it, with why it has no answer, and what to do."""
    record = store.run(run_id)
    rows, last = store.rows_from(run_id, 0, 1), store.last_event(run_id)
    kind = last.error_kind if isinstance(last, RunEnded) else ""
    steps = next_steps(record.status, kind, run_id, agent_option(rows))
    return {
        **run_shape(record, None),
        **about_shape(store.beginning(run_id)),
        "reason": run_reason(store, record),
        "error_kind": kind,
        "steps": [[step.when, step.command] for step in steps],
    }


def run_reason(store: Store, record: RunRecord) -> str:
    """Return why a run has no answer: its error, why it stopped, or what it waits for; empty for other runs."""
    if record.status == "waiting":
        from closeout.run.waits.decisions import awaited, pending_decisions  # imports much of the package

        waits = ", ".join(map(awaited, pending_decisions(store.rows(record.run_id))))
        return f"Waits for {waits}."[:LONGEST_REASON] if waits else ""
    if record.status == "interrupted" and not store.rows_from(record.run_id, 1, 1):
        return "Submitted. No worker has begun it."
    if record.status not in ("failed", "unanswered", "cancelled"):
        return ""
    last = store.last_event(record.run_id)
    error = last.error if isinstance(last, RunEnded) else ""
    return (error or record.stop_reason or "")[:LONGEST_REASON]


def totals_shape(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `RunTotals.counts` as the pages show them."""
    return {name: value for name, value in counts.items() if not name.startswith("_")}


def hit_shape(hit: RunHit) -> dict[str, Any]:
    """Return where a search found something in a run."""
    return {"seq": hit.seq, "kind": hit.kind, "agent": hit.agent, "excerpt": hit.excerpt, "marks": hit.marks}


def event_shape(row: Row) -> dict[str, Any]:
    """Return an event with all its fields."""
    event = row.event
    if isinstance(event, Unknown):  # its type may be the name of a known one, without the fields of that
        fields = {"agent": event.agent, "name": event.type, "body": event.body}
        return {"seq": row.seq, "time": row.time, "type": "Unknown", **fields}
    fields = {name: getattr(event, name) for name in event.names}
    return {"seq": row.seq, "time": row.time, "type": type(event).__name__, **fields}


def without_messages(shape: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of a request without its messages: the prompts have a page. Other events stay unchanged."""
    if shape["type"] != "ModelRequested":
        return shape
    return {**shape, "added": len(shape["added"]), "tools": bool(shape["tools"])}


def cut(value: Any) -> Any:
    """Return a value with its long texts cut."""
    if isinstance(value, str):
        return {CUT: value[:LONGEST_TEXT], "length": len(value)} if len(value) > LONGEST_TEXT else value
    if isinstance(value, Mapping):
        return {str(name): cut(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [cut(item) for item in value]
    return value
