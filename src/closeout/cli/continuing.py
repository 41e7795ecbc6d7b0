"""Find the conversation that `closeout run -c` and `closeout chat` continue, and the options it was begun with."""

from __future__ import annotations

from closeout.cli.options import RunOptions, check_trust, options_in
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.journal.events import REPLIED, RunStarted
from closeout.journal.next_steps import is_from_command
from closeout.journal.readonly import open_to_read
from closeout.journal.run_names import session_of
from closeout.journal.store import RunRecord, Store

__all__ = ["last_conversation", "options_of_session"]


def last_conversation() -> str:
    """Return the session of the last run of the command line that has a reply. A single run begins one.

    Raises:
        UsageError: There is no such run.
    """
    with open_to_read(home_folder()) as store:
        imported = store.imported_runs()
        for record in store.each_run():
            if record.status in REPLIED and record.run_id not in imported and _options_of(store, record) is not None:
                return session_of(record.run_id) or record.run_id
    raise UsageError('There is no conversation to continue. Begin one: closeout chat, or closeout run "…".')


def options_of_session(session_id: str) -> RunOptions:
    """Return the options of a session's last run that was started on the command line; the usual ones without one."""
    with open_to_read(home_folder()) as store:
        for record in reversed(store.runs_under(session_id)):
            options = _options_of(store, record)
            if options is not None:
                untrusted = record.run_id in store.imported_runs()
                break
        else:
            return RunOptions()
    if untrusted:
        check_trust(record.run_id, options)
    return options


def _options_of(store: Store, record: RunRecord) -> RunOptions | None:
    started = next(iter(store.rows_from(record.run_id, 0, 1)), None)
    if started is None or not isinstance(started.event, RunStarted) or not is_from_command(started.event.origin):
        return None
    return options_in(started.event.origin)
