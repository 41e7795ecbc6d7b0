"""The options that recorded runs were started with, and the conversation that `closeout run -c` continues."""

from __future__ import annotations

import sys

from closeout.cli.options import RunOptions, options_in
from closeout.cli.terminal import agrees
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.journal.events import REPLIED, RunStarted
from closeout.journal.next_steps import is_from_command
from closeout.journal.readonly import open_to_read
from closeout.journal.run_names import session_of
from closeout.journal.store import Store, open_store
from closeout.redaction import REDACTED
from closeout.visible import visible

__all__ = ["last_conversation", "options_of_session", "recorded_options"]

_HARMLESS = ("model", "files", "dialect", "instructions", "profile")  # files are not read again


def recorded_options(run_id: str, *, agent: str | None = None) -> RunOptions:
    """Return the options that a run was started with. Print the Python agent that they name: it will be imported.

    Args:
        run_id: The run.
        agent: The agent to use instead of the recorded one: a settings file or `package.module:agent`.

    Raises:
        RunNotFound: There is no such run.
        UsageError: It was not started on the command line.
    """
    if agent is not None:
        return RunOptions(agent=agent)
    with open_to_read(home_folder()) as store:
        options, untrusted = _options_of(store, run_id), run_id in store.imported_runs()
    if options is None:
        raise UsageError(
            f"Run {run_id} was not started by `closeout run`, so its agent is unknown here. "
            f'Name it with --agent package.module:agent, or resume it in Python: agent.resume("{run_id}").'
        )
    if any(REDACTED in server for server in options.mcp):
        raise UsageError(
            f"Run {run_id} used an MCP server with a key among its arguments, and keys are not recorded. Resume it in "
            f'Python: agent.resume("{run_id}"). In later runs write ${{NAME}} for the key and set that variable.'
        )
    if untrusted:
        _check_trust(run_id, options)
    if options.is_python:
        print(f"The run names its agent: {visible(str(options.agent))}", file=sys.stderr)
    return options


def last_conversation() -> str:
    """Return the session of the last run of the command line that has a reply. A single run begins one.

    Raises:
        UsageError: There is no such run.
    """
    with open_to_read(home_folder()) as store:
        imported = store.imported_runs()
        for record in store.each_run():
            if record.status in REPLIED and record.run_id not in imported and _options_of(store, record.run_id):
                return session_of(record.run_id) or record.run_id
    raise UsageError('There is no conversation to continue. Begin one: closeout chat, or closeout run "…".')


def options_of_session(session_id: str) -> RunOptions:
    """Return the options of a session's last run that was started on the command line; without one, the defaults."""
    with open_to_read(home_folder()) as store:
        for record in reversed(store.runs_under(session_id)):
            if options := _options_of(store, record.run_id):
                untrusted = record.run_id in store.imported_runs()
                break
        else:
            return RunOptions()
    if untrusted:
        _check_trust(record.run_id, options)
    return options


def _options_of(store: Store, run_id: str) -> RunOptions | None:
    """Return the options that a run was started with; None if it was not started on the command line."""
    rows = store.rows_from(run_id, 0, 1)
    started = rows[0].event if rows else None
    if not isinstance(started, RunStarted) or not is_from_command(started.origin):
        return None
    return options_in(started.origin)


def _check_trust(run_id: str, options: RunOptions) -> None:
    """Ask the person at the terminal before an imported run uses what its record names.

    Raises:
        UsageError: The answer is no, or there is nobody to ask.
    """
    named = [
        f"{name} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in options.not_default.items()
        if name not in _HARMLESS
    ]
    if not named:
        return
    said = f"Run {run_id} was imported, and its record names what to start or to use: {visible('; '.join(named))}."
    if not agrees(f"{said} Do you trust it?"):
        raise UsageError(f"{said} If you trust it: closeout runs trust {run_id}. Otherwise name an agent: --agent")
    open_store(home_folder()).trust_run(run_id)
