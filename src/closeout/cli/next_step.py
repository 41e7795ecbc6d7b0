"""What to do after a run that failed, by what it failed of: the same words from `run`, `resume` and `runs RUN_ID`."""

from __future__ import annotations

from collections.abc import Mapping

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

__all__ = ["next_step"]

AGAIN = "As it is it would fail again. What it did: closeout runs {}"
INSIDE = "What it did: closeout runs {}"  # of an error of nobody's making
STEPS: Mapping[type[CloseoutError], str] = {
    AuthenticationFailed: "With the right key: closeout resume {}",
    ModelNotFound: "With the right address: closeout resume {0} --base-url URL   "
    "With another model: closeout resume {0} -m MODEL --force",
    BadRequest: AGAIN,
    ContextOverflow: AGAIN,
    PermanentModelError: "Once that is put right: closeout resume {}",
    JournalFull: "Then go on with it: closeout resume {}",
    CloseoutError: "Go on with it later: closeout resume {}",
}


def next_step(error_kind: str, run_id: str) -> str:
    """One sentence that ends in the command to type. `error_kind` is the name of the exception that ended the run."""
    kind = error_type(error_kind or CloseoutError.__name__)
    nearest = next((each for each in kind.__mro__ if each in STEPS), None) if kind is not None else None
    return (STEPS[nearest] if nearest is not None else INSIDE).format(run_id)
