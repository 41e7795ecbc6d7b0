"""A run as the Responses API shows it: the events of its streams, with sequence numbers, and the response objects.

Both are computed from the run's committed events alone. They are therefore the same after the server was killed, and a
client can continue a stream at any sequence number.

A run that waits for a decision has several responses. One ends with what the run waits for, the next begins with the
decision.
"""

from __future__ import annotations

from typing import Any

from closeout.journal.events import DecisionMade, Noted, RunEnded, RunResumed, RunStarted
from closeout.journal.store import Row
from closeout.server.serve.response_state import ResponseId, ResponseState

__all__ = ["RESPONSE_NOTE", "ResponseView"]

RESPONSE_NOTE = "Response"
"""The name of the `Noted` event with the server's notes on a response that is not the first one of its run."""


class ResponseView:
    """Reads a run's events one after the other, and shows one of its responses.

    Args:
        response: The response.
        model: The name under which clients know the agent.

    Attributes:
        parts: How many of the run's responses came after the first one.
        state: The current state of the response.
    """

    def __init__(self, response: ResponseId, model: str) -> None:
        self.parts = 0
        self._wanted = response.part
        self.state = ResponseState(ResponseId(response.run_id), model)
        self._waits = False  # the run has ended to wait for a decision
        self._next = 0  # the next sequence number

    def feed(self, row: Row) -> list[dict[str, Any]]:
        """Read the next event. Returns the events of the response's stream that follow from it."""
        event, state = row.event, self.state
        if self._waits and isinstance(event, (RunResumed, DecisionMade)):
            self._waits = False
            self.parts += 1
            if self.parts <= self._wanted:
                state = ResponseState(ResponseId(state.id.run_id, self.parts), state.model, after=state)
                state.created_at = row.time
                self.state = state
        if isinstance(event, RunEnded) and event.agent == "main":
            self._waits = event.status == "waiting"
        if self.parts > self._wanted:
            return []
        if isinstance(event, RunStarted):
            state.created_at = row.time
            state.notes = event.origin.get("serve", {})
        elif isinstance(event, Noted) and event.name == RESPONSE_NOTE:
            state.notes = event.metadata
        made = state.read(row)
        if self.parts < self._wanted:
            return []
        for number, each in enumerate(made, self._next):
            each["sequence_number"] = number
        self._next += len(made)
        return made

    @property
    def awaits_decision(self) -> bool:
        """True if the response is the run's last one, and has ended with what the run waits for."""
        return self._waits and self.parts == self._wanted
