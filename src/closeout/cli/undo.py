"""The command undo: undo what a call of a run did."""

from __future__ import annotations

import asyncio
import sys

from closeout.cli.exits import FAILED, OK

__all__ = ["undo_command"]


def undo_command(run_id: str, call: str, agent: str | None, *, as_json: bool) -> int:
    """Undo a call of a run with the tool of its agent. Return the exit code."""
    from closeout.cli.options import make_agent, recorded_options
    from closeout.cli.terminal import print_json
    from closeout.visible import visible

    options = recorded_options(run_id, agent=agent)
    output = asyncio.run(make_agent(options, api_key="no request is made").undo(run_id, call))
    if as_json:
        print_json({"run_id": run_id, "call": call, "undone": output.success, "result": output.to_record()["result"]})
    elif output.success:
        print(visible(output.summary))
    if not output.success:
        print(visible(f"{call} was not undone. {output.summary}"), file=sys.stderr)
    return OK if output.success else FAILED
