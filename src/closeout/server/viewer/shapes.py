"""Runs and events as JSON objects for the viewer's pages, with long texts cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from closeout.journal.events import Unknown
from closeout.journal.store import Row, RunRecord
from closeout.journal.text_search import RunHit

__all__ = ["cut", "event_shape", "hit_shape", "run_shape", "totals_shape", "without_messages"]

LONGEST_TEXT = 4000  # characters of a text in a list of events; a page asks for the whole event when it needs more
CUT = "$cut"  # {"$cut": beginning, "length": characters}


def run_shape(record: RunRecord, totals: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a run as the list of runs shows it. Without totals it is not indexed yet."""
    shape = asdict(record)
    if totals is not None:
        shape["totals"] = totals_shape(totals)
    return shape


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
    """Return the shape of a request without its messages: the prompts have a page. Other events stay as they are."""
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
