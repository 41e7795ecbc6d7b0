"""What every event of a run has. The events themselves are in `events`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from closeout.records import record

__all__ = ["Event"]


@record
class Event:
    """Something that happened. Field values are JSON values, so that an event is a row and a row is an event."""

    # Fields that may be large: kept once by content hash when they are.
    bodies: ClassVar[tuple[str, ...]] = ()
    # Written again when a resumed run comes by the same place: outcomes of the moment, not of the run.
    momentary: ClassVar[bool] = False
    # The field that tells it from its agent's other events of this kind, for those written once for each thing.
    identity: ClassVar[str] = ""
    names: ClassVar[tuple[str, ...]] = ("agent",)
    values: ClassVar[Callable[[Any], dict[str, Any]]]  # the fields by name, called on the event: a row's content

    agent: str

    @property
    def key(self) -> str:
        """What makes the event the same event when the run is replayed; empty: its place among its agent's others."""
        return str(getattr(self, self.identity)) if self.identity else ""
