"""`closeout data users | list | export | delete | hold`: the data of a person or of a session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from closeout.cli.exits import OK, guarded
from closeout.cli.option_types import Json
from closeout.cli.run_ids import full_run_id
from closeout.errors import UsageError
from closeout.visible import visible

if TYPE_CHECKING:
    from closeout.fleet.personal_data import PersonalData
    from closeout.journal.store import Store

__all__ = ["data_app"]

data_app = typer.Typer(
    help="List, export, delete and hold the data of a person or a session.", no_args_is_help=True, rich_markup_mode=None
)

User = Annotated[str, typer.Option("--user", help="The person, as named by run(user=…) or the user of a request")]
SessionId = Annotated[str, typer.Option("--session", help="The id of a session, instead of a person")]


@data_app.command("users")
@guarded
def list_users(json: Json = False) -> int:
    """List the persons of whom there is data."""
    from closeout.cli.terminal import amount, print_json
    from closeout.fleet.personal_data import list_persons

    found = list_persons()
    if json:
        print_json([{"user": user, "runs": count} for user, count in found.items()])
        return OK
    for user, count in found.items():
        print(visible(f"{user}  {amount(count, 'run')}"))
    print(amount(len(found), "person"), file=sys.stderr)
    return OK


@data_app.command("hold")
@guarded
def hold(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN_ID] …", help="Runs to keep")] = None,
    user: User = "",
    release: Annotated[bool, typer.Option("--release", help="End the hold")] = False,
    json: Json = False,
) -> int:
    """Protect runs or a person's data from deletion, or list holds."""
    from closeout.config import home_folder
    from closeout.journal.holds import Hold, list_holds, set_hold
    from closeout.journal.readonly import open_to_read
    from closeout.journal.store import open_store

    runs = [*map(full_run_id, run_ids or ())]
    named = [*(Hold("run", run_id) for run_id in runs), *([Hold("user", user)] if user else [])]
    if release and not named:
        raise UsageError("Name the runs or the user to release. `closeout data hold` lists what is on hold.")
    if named:
        store = open_store(home_folder())
        known = list_holds(store) if release else []
        for each in named:  # check all before the first change
            if release and each not in known:
                raise UsageError(f"{each.kind} {each.name!r} is not on hold. `closeout data hold` lists what is.")
            if each.kind == "run" and not release:
                store.number_of(each.name)
        for each in named:
            set_hold(store, each, release=release)
    with open_to_read(home_folder()) as store:
        return _print_holds(store, as_json=json)


def _print_holds(store: Store, *, as_json: bool) -> int:
    from closeout.cli.terminal import amount, print_json
    from closeout.journal.holds import held_runs, list_holds

    holds, count = list_holds(store), len(held_runs(store))
    if as_json:
        print_json({"holds": [{"kind": each.kind, "name": each.name} for each in holds], "runs": count})
        return OK
    for each in holds:
        print(visible(f"{each.kind} {each.name}"))
    print(f"{amount(count, 'run')} on hold.", file=sys.stderr)
    return OK


@data_app.command("list")
@guarded
def list_data(
    user: User = "",
    session: SessionId = "",
    agent: Annotated[str, typer.Option("--agent", "-a", help="Only runs of the agent with this name")] = "",
    json: Json = False,
) -> int:
    """List the runs and other data of a person or of a session."""
    from closeout.cli.terminal import amount, print_json
    from closeout.fleet.personal_data import find_data

    data = find_data(user, session=session, agent=agent)
    _warn_of_nothing(data)
    if json:
        print_json(data.to_dict())
        return OK
    _print_data(data)
    parts = [_counted(data), amount(len(data.sessions), "session")]
    parts += [f"budget {key}" for key in data.budget_keys]
    print(visible(", ".join(parts)), file=sys.stderr)
    _note_others(data)
    return OK


def _counted(data: PersonalData) -> str:
    from closeout.cli.terminal import amount

    return ", ".join([amount(len(data.runs), "run")] + [amount(len(data.schedules), "schedule")] * bool(data.schedules))


def _print_data(data: PersonalData) -> None:
    from closeout.cli.recurring import schedule_line
    from closeout.cli.terminal import one_line

    for run in data.runs:
        print(visible(f"{run.run_id}  {run.status}  {one_line(run.task, 80)}"))
    for each in data.schedules:
        print(schedule_line(each))


@data_app.command("export")
@guarded
def export(
    output: Annotated[str, typer.Option("--output", "-o", help="The folder to write; it must not exist")],
    user: User = "",
    session: SessionId = "",
    json: Json = False,
) -> int:
    """Write the data into a folder: conversations and whole records."""
    from closeout.cli.terminal import print_json
    from closeout.fleet.personal_data import export_data

    data = export_data(output, user, session=session)
    _warn_of_nothing(data)
    if json:
        others = data.to_dict()["others"]
        print_json({"exported": len(data.runs), "folder": output, "others": others})
    else:
        print(f"{_counted(data)} in {output}.", file=sys.stderr)
        _note_others(data)
    return OK


@data_app.command("delete")
@guarded
def delete(
    user: User = "",
    session: SessionId = "",
    waiting: Annotated[bool, typer.Option("--waiting", help="Also runs that wait for a decision or a signal")] = False,
    leave_others: Annotated[
        bool, typer.Option("--leave-others", help="Leave the runs of others that repeat what the person said")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    json: Json = False,
) -> int:
    """Delete the runs, schedules and counters of a person or a session."""
    from closeout.cli.terminal import confirmed, print_json
    from closeout.fleet.personal_data import delete_data, find_data

    if dry_run and not json:
        _print_data(find_data(user, session=session))
    data = delete_data(user, session=session, waiting=waiting, leave_others=leave_others, dry_run=True)
    nothing, what = _warn_of_nothing(data), _counted(data)
    deleted = not dry_run and (nothing or yes or confirmed("data delete", what))
    if deleted:
        data = delete_data(user, session=session, waiting=waiting, leave_others=leave_others)
    if json:
        print_json({"deleted": deleted, **data.to_dict()})
    else:
        done = "deleted" if deleted else "would be deleted" if dry_run else "left as they are"
        print(f"{what} {done}.", file=sys.stderr)
        _note_others(data)
    return OK


def _note_others(data: PersonalData) -> None:
    """Print which runs of other persons repeat what the person said: they are neither exported nor deleted."""
    if data.others:
        from closeout.fleet.personal_data import named_others

        sessions = ", ".join(dict.fromkeys(each.session for each in data.others))
        print(visible(f"{named_others(data.others)} what {data.user} said (session {sessions})."), file=sys.stderr)


def _warn_of_nothing(data: PersonalData) -> bool:
    """Print a warning if nothing was found: the name may be misspelt. Return True if so."""
    nothing = not (data.runs or data.budget_keys or data.schedules)
    if nothing:
        from closeout.cli.terminal import say_error

        say_error(f"nothing is kept of {data.user or data.session!r}. Names count letter by letter, capitals too.")
    return nothing
