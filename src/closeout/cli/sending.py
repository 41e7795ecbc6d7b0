"""The command send: a message to a running agent."""

from __future__ import annotations

import sys

from closeout.cli import exits
from closeout.cli.terminal import print_json

__all__ = ["send_command"]

BY = "terminal"


def send_command(run_id: str, text: str, *, to: str, interrupt: bool, as_json: bool) -> int:
    """Send a message to a run. Return the exit code."""
    from closeout.config import home_folder
    from closeout.journal.inbox import mailbox_of
    from closeout.journal.store import open_store

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
