"""The commands fork and diff: continue a run from an earlier point, and compare two runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from closeout.cli.terminal import one_line, print_json, printable
from closeout.errors import UsageError

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.journal.subscribers import Listener
    from closeout.run.result import RunResult

__all__ = ["diff_command", "fork_command"]

SHOWN = 400  # characters of a value that differs


def fork_command(
    run_id: str,
    at: str | None,
    results: Sequence[str],
    *,
    note: str = "",
    model: str | None = None,
    base_url: str | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Continue a run from an earlier point as a new run. Return the exit code."""
    from closeout.cli.options import make_agent, recorded_options
    from closeout.cli.running import run_agent
    from closeout.journal.journal import new_run_id

    recorded = recorded_options(run_id)
    options = replace(recorded, model=model or recorded.model, base_url=base_url or recorded.base_url)
    set_results = dict(map(_read_result, results))
    new_id = new_run_id()

    async def start(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        return await agent.fork(
            run_id,
            at=at,
            set_results=set_results,
            note=note,
            new_run_id=new_id,
            origin=options.as_origin(),
            listeners=listeners,
        )

    return run_agent(make_agent(options), start, new_id, as_json=as_json, quiet=quiet)


def _read_result(option: str) -> tuple[str, Any]:
    handle, equals, text = option.partition("=")
    if not equals:
        raise UsageError(f"--set-result must be HANDLE=JSON, such as r3='{{\"price\": 5}}', got '{option}'.")
    try:
        return handle.strip(), json.loads(text)
    except ValueError:
        raise UsageError(
            f"--set-result {handle}: {text[:60]!r} is not JSON. Put quotes around a text: '\"text\"'."
        ) from None


def diff_command(first: str, second: str, *, as_json: bool) -> int:
    """Print the first difference between two runs. Return 0 if there is none, 1 if there is."""
    from closeout.config import home_folder
    from closeout.journal.readonly import open_to_read
    from closeout.run.compare import agent_differences, first_difference

    with open_to_read(home_folder()) as store:
        a, b = list(store.rows(first)), list(store.rows(second))
    agents, found = agent_differences(a, b), first_difference(a, b)
    if as_json:
        print_json({"agents": agents, "difference": None if found is None else asdict(found)})
        return 0 if found is None else 1
    if agents:
        print(printable(f"The agents differ: {'; '.join(agents)}."), file=sys.stderr)
    if found is None:
        print("The runs did the same.")
        return 0
    print(printable(str(found)))
    for run_id, value in ((first, found.a), (second, found.b)):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        print(f"  {run_id}: {'does not have it' if value is None else one_line(text, SHOWN)}")
    return 1
