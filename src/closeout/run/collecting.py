"""Pass the tool calls of a run to the collector that its agent was given, each once, also if the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable

from closeout.journal.events import Event, ToolFinished, TurnAccepted, TurnRolledBack
from closeout.journal.run_journal import Journal
from closeout.results.telemetry import TelemetryCollector
from closeout.results.tool_output import ToolTelemetry

__all__ = ["run_telemetry"]


def run_telemetry(
    given: TelemetryCollector | None, journal: Journal, above: TelemetryCollector | None = None
) -> TelemetryCollector:
    """Return the collector of an agent in a run.

    The collector that the agent was `given` serves any number of runs. If it raises, it is reported and left out.
    `above` is the collector of the agent that started this one.
    """
    if given is None:
        return above or TelemetryCollector()
    reported = _reported(row.event for row in journal.rows()) if journal.replaying else frozenset[str]()

    def forward(telemetry: ToolTelemetry) -> None:
        nonlocal given
        if above is not None:
            above.record(telemetry)
        if given is None or journal.replaying or telemetry.execution_id in reported:
            return
        try:
            given.record(telemetry)
        except Exception as error:
            journal.subscribers.report(given, error)
            given = None

    return TelemetryCollector(forward=forward)


def _reported(events: Iterable[Event]) -> frozenset[str]:
    """Return the execution ids of the calls in turns that ended: these were passed on when they ended."""
    found: set[str] = set()
    running: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, ToolFinished):
            measured = json.loads(event.record).get("telemetry") or {}
            running.setdefault(event.agent, set()).add(measured.get("execution_id", ""))
        elif isinstance(event, TurnAccepted | TurnRolledBack):
            found |= running.pop(event.agent, set())
    return frozenset(found)
