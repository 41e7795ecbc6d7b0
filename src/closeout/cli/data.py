"""`closeout data list | export | delete`: the data of a person or of a session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from closeout.cli.exits import OK, guarded
from closeout.cli.option_types import Json

if TYPE_CHECKING:
    from closeout.run.personal_data import PersonalData

__all__ = ["data_app"]

data_app = typer.Typer(
    help="List, export and delete the data of a person or of a session.", no_args_is_help=True, rich_markup_mode=None
)

User = Annotated[str, typer.Option("--user", help="The person, as named by run(user=…) or the user of a request")]
SessionId = Annotated[str, typer.Option("--session", help="The id of a session, instead of a person")]


@data_app.command("list")
@guarded
def list_data(user: User = "", session: SessionId = "", json: Json = False) -> int:
    """List the runs, sessions and budget counters of a person or of a session."""
    from closeout.cli.terminal import amount, one_line, print_json
    from closeout.run.personal_data import find_data
    from closeout.visible import visible

    data = find_data(user, session=session)
    _warn_of_nothing(data)
    if json:
        print_json(data.to_dict())
        return OK
    for run in data.runs:
        print(visible(f"{run.run_id}  {run.status}  {one_line(run.task, 80)}"))
    parts = [amount(len(data.runs), "run"), amount(len(data.sessions), "session")]
    parts += [f"budget {key}" for key in data.budget_keys]
    print(visible(", ".join(parts)), file=sys.stderr)
    return OK


@data_app.command("export")
@guarded
def export(
    output: Annotated[str, typer.Option("--output", "-o", help="The folder to write; it must not exist")],
    user: User = "",
    session: SessionId = "",
    json: Json = False,
) -> int:
    """Write the data into a folder: for each run the conversation as text and its whole record as JSON."""
    from closeout.cli.terminal import amount, print_json
    from closeout.run.personal_data import export_data

    data = export_data(output, user, session=session)
    _warn_of_nothing(data)
    if json:
        print_json({"exported": len(data.runs), "folder": output})
    else:
        print(f"{amount(len(data.runs), 'run')} in {output}.", file=sys.stderr)
    return OK


@data_app.command("delete")
@guarded
def delete(
    user: User = "",
    session: SessionId = "",
    waiting: Annotated[bool, typer.Option("--waiting", help="Also runs that wait for a decision or a signal")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    json: Json = False,
) -> int:
    """Delete the data: runs with all texts, search words, signals, and the counters of the person's budget."""
    from closeout.cli.terminal import amount, confirmed, print_json
    from closeout.run.personal_data import delete_data

    data = delete_data(user, session=session, waiting=waiting, dry_run=True)
    _warn_of_nothing(data)
    what = amount(len(data.runs), "run")
    deleted = not dry_run and (not (data.runs or data.budget_keys) or yes or confirmed("data delete", what))
    if deleted:
        data = delete_data(user, session=session, waiting=waiting)
    if json:
        print_json({"deleted": deleted, **data.to_dict()})
    else:
        done = "deleted" if deleted else "would be deleted" if dry_run else "left as they are"
        print(f"{what} {done}.", file=sys.stderr)
    return OK


def _warn_of_nothing(data: PersonalData) -> None:
    """Say that nothing was found: a misspelt name must not look as if it was done."""
    if not (data.runs or data.budget_keys):
        from closeout.cli.terminal import say_error

        say_error(f"nothing is kept of {data.user or data.session!r}. Names count letter by letter, capitals too.")
