"""The command approve: decide what a run waits for, and resume it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from closeout.cli import exits
from closeout.cli.continuing import recorded_options
from closeout.cli.deciding import ask_at_terminal, can_ask, describe_pending, read_arguments
from closeout.cli.options import RunOptions
from closeout.cli.selecting import RunFilter
from closeout.cli.terminal import print_json
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.journal.next_steps import agent_option
from closeout.journal.readonly import open_to_read
from closeout.journal.store import open_store
from closeout.run.waits.decisions import Decision, PendingDecision, pending_decisions, record_decisions

__all__ = ["approve_command", "list_waiting"]

BY = "terminal"


def approve_command(
    run_id: str,
    name: str | None,
    *,
    edit: str | None = None,
    deny: str | None = None,
    answer: str | None = None,
    hash: str | None = None,  # noqa: A002 - the option's name
    together: bool = False,
    resume: bool = True,
    agent: str | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Decide what a run waits for, and resume it if nothing else is left to decide. Return the exit code."""
    store = open_store(home_folder())
    pending = pending_decisions(store.rows(run_id))
    asked = [each for each in pending if each.by_person] or pending  # a time or a signal is refused with the reason
    has_option = together or any(option is not None for option in (edit, deny, answer, hash))
    decisions: dict[str, Decision] = {}
    if name is None and not has_option and len(pending) > 0 and can_ask(as_json):
        decisions = ask_at_terminal(asked)
    elif together:
        if name is not None or any(option is not None for option in (edit, answer, hash)):
            raise UsageError("--all decides on every call that waits. It goes with --deny, and with nothing else.")
        decisions = {each.id: _decision(None, deny, None, each.hash) for each in asked if each.kind == "approval"}
        if not decisions:
            raise UsageError(f"Run {run_id} waits for no approval. To see it: closeout runs {run_id}")
    else:
        chosen = name if name is not None else _only(run_id, asked)
        decisions = {chosen: _decision(edit, deny, answer, hash)}
    ends = not any(each.by_person and each.id not in decisions for each in pending)
    if ends and resume and (options := _known_options(run_id, agent)) is not None:
        from closeout.cli.run_tasks import resume_run

        # A decision on a run that cannot continue is not recorded.
        decided = {each: replace(decision, by=BY) for each, decision in decisions.items()}
        return resume_run(run_id, options, decisions=decided, as_json=as_json, quiet=quiet)
    left = record_decisions(store, run_id, decisions, by=BY) if decisions else pending
    option = agent_option(store.rows_from(run_id, 0, 1))
    if any(each.by_person for each in left):
        if as_json:
            waiting = [asdict(each) for each in left]
            print_json({"run_id": run_id, "decided": list(decisions), "status": "waiting", "waiting": waiting})
        else:
            print(describe_pending(run_id, left, option), file=sys.stderr)
        return exits.WAITING
    if as_json:
        print_json({"run_id": run_id, "decided": list(decisions), "waiting": []})
    else:
        in_python = f'   In Python: agent.resume("{run_id}")' if option else ""
        print(f"Recorded. To continue the run: closeout resume {run_id}{option}{in_python}", file=sys.stderr)
    return exits.OK


def list_waiting(*, as_json: bool) -> int:
    """Print what each run waits for, with the commands that decide it. Return the exit code."""
    with open_to_read(home_folder()) as store:
        found = [
            (run.run_id, pending_decisions(rows), agent_option(rows))
            for run in RunFilter(status="waiting").select(store)
            if (rows := list(store.rows(run.run_id)))
        ]
    if as_json:
        print_json([{"run_id": run_id, "waiting": [asdict(each) for each in pending]} for run_id, pending, _ in found])
    else:
        texts = [f"{run_id}\n{describe_pending(run_id, pending, option)}" for run_id, pending, option in found]
        print("\n\n".join(texts) or "No run waits for a decision.")
    return exits.OK


def _only(run_id: str, pending: Sequence[PendingDecision]) -> str:
    if len(pending) == 1:
        return pending[0].id
    if not pending:
        raise UsageError(f"Run {run_id} does not wait for a decision. To see it: closeout runs {run_id}")
    names = ", ".join(each.id for each in pending)
    raise UsageError(
        f"Run {run_id} waits for {len(pending)} decisions: {names}. Name one: closeout approve {run_id} ID"
    )


def _decision(edit: str | None, deny: str | None, answer: str | None, digest: str | None) -> Decision:
    """Return the decision that the options describe: approval without any."""
    if sum(option is not None for option in (edit, deny, answer)) > 1:
        raise UsageError("Give only one of --edit, --deny and --answer.")
    shown = digest or ""
    if deny is not None:
        return Decision(verdict="deny", text=deny, hash=shown)
    if answer is not None:
        return Decision(verdict="answer", text=answer, hash=shown)
    return Decision(verdict="approve", arguments=None if edit is None else read_arguments(edit), hash=shown)


def _known_options(run_id: str, agent: str | None) -> RunOptions | None:
    """Return the options of the run's agent, None if the command line cannot make it."""
    try:
        return recorded_options(run_id, agent=agent)
    except UsageError:
        return None
