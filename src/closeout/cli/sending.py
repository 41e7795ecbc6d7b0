"""The commands send and cancel: a message to a running agent, and its end."""

from __future__ import annotations

import asyncio
import sys

from closeout.cli import exits
from closeout.cli.terminal import print_json
from closeout.config import home_folder
from closeout.journal.inbox import mailbox_of
from closeout.journal.store import open_store

__all__ = ["cancel_command", "send_command"]

BY = "terminal"
# Seconds that a process may take to cancel a run.
PATIENCE = 10.0


def send_command(run_id: str, text: str, *, to: str, interrupt: bool, as_json: bool) -> int:
    """Send a message to a run. Return the exit code."""
    if text == "-":
        text = sys.stdin.buffer.read().decode(errors="replace")
    store = open_store(home_folder())
    sent = mailbox_of(store, run_id).send(text, to=to, by=BY, interrupt=interrupt)
    status = store.run(run_id).status
    if as_json:
        print_json({"run_id": run_id, "id": sent.id, "to": sent.to, "status": status})
    elif status == "running":
        print("Sent.", file=sys.stderr)
    else:
        print(f"Sent. The run is {status}: it reads the message when it continues.", file=sys.stderr)
    return exits.OK


def cancel_command(run_id: str, *, as_json: bool) -> int:
    """Cancel a run, and wait until it has ended. Return the exit code."""
    from closeout.run.cancelling import cancel_run

    store = open_store(home_folder())
    was = store.run(run_id).status
    try:
        asyncio.run(cancel_run(store, run_id, PATIENCE))
    except TimeoutError:
        print(
            f"Run {run_id} has not ended within {PATIENCE:.0f} seconds: its process is stopped, or a tool still runs. "
            "The request stays. To end it at once, press Ctrl-C twice in the program that executes it.",
            file=sys.stderr,
        )
    status = store.run(run_id).status
    if as_json:
        print_json({"run_id": run_id, "status": status})
    elif status == was != "running":
        print(f"Run {run_id} is {status} and stays as it is.", file=sys.stderr)
    elif status != "running":
        print(f"Cancelled. To continue the run after all: closeout resume {run_id}.", file=sys.stderr)
    return exits.FAILED if status == "running" else exits.OK
