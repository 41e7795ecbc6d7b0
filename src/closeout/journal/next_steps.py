"""What a person can do with a run that has no answer: commands to type, by what ended the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from closeout.errors import (
    AuthenticationFailed,
    BadRequest,
    CloseoutError,
    ContextOverflow,
    JournalFull,
    ModelNotFound,
    PermanentModelError,
    error_type,
)
from closeout.journal.events import RunStarted
from closeout.journal.store import Row

__all__ = ["NextStep", "agent_option", "is_from_command", "next_step", "next_steps"]


class NextStep(NamedTuple):
    """A command, and when to type it."""

    when: str
    command: str


_FORK = "closeout runs fork {0}{1} --at TURN"
_SAME_AGAIN = NextStep("Running it again unchanged would fail again. To change something from an earlier turn:", _FORK)
_RESUME = "closeout resume {0}{1}"
_AFTER_FAILURE: Mapping[type[CloseoutError], Sequence[NextStep]] = {
    AuthenticationFailed: [NextStep("With the right key:", _RESUME)],
    ModelNotFound: [
        NextStep("With the right address:", _RESUME + " --base-url URL"),
        NextStep("With another model:", _RESUME + " -m MODEL --force"),
    ],
    BadRequest: [_SAME_AGAIN],
    ContextOverflow: [_SAME_AGAIN],
    PermanentModelError: [NextStep("Once that is fixed:", _RESUME)],
    JournalFull: [NextStep("Then resume it:", _RESUME)],
    CloseoutError: [NextStep("Resume it later:", _RESUME)],
}
_AFTER_STATUS: Mapping[str, Sequence[NextStep]] = {
    "cancelled": [NextStep("To continue it after all:", _RESUME)],
    "interrupted": [NextStep("Resume it:", _RESUME)],
    "unanswered": [NextStep("To try again from an earlier turn:", _FORK)],
}


def next_steps(status: str, error_kind: str, run_id: str, agent: str = "") -> list[NextStep]:
    """Return what to do with a run; nothing if it runs, waits or has an answer.

    Args:
        status: Its status.
        error_kind: The name of the exception that ended it.
        run_id: The run.
        agent: The option that names its agent; see `agent_option`.
    """
    steps = _AFTER_STATUS.get(status, ())
    if status == "failed":
        kind = error_type(error_kind or CloseoutError.__name__)
        nearest = next((each for each in kind.__mro__ if each in _AFTER_FAILURE), None) if kind is not None else None
        steps = [NextStep("To see what it did:", "closeout runs {0}")] if nearest is None else _AFTER_FAILURE[nearest]
    return [NextStep(each.when, each.command.format(run_id, agent)) for each in steps]


def next_step(status: str, error_kind: str, run_id: str, agent: str = "") -> str:
    """Return the steps of `next_steps` as one text."""
    return "   ".join(f"{each.when} {each.command}" for each in next_steps(status, error_kind, run_id, agent))


def is_from_command(origin: Mapping[str, Any]) -> bool:
    """True if a run with this origin was started on the command line."""
    return "model" in origin and "config" in origin


def agent_option(rows: Sequence[Row]) -> str:
    """Return what the commands that continue a run need: the option for its agent, if its record does not have it."""
    started = rows[0].event if rows else None
    is_known = isinstance(started, RunStarted) and is_from_command(started.origin)
    return "" if is_known else " --agent PACKAGE.MODULE:AGENT"
