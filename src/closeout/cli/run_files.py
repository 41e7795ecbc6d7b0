"""`closeout runs files`: list the files of a run, and write them into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from closeout.cli.terminal import amount, print_json, printable
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.file_values import File, shown_size
from closeout.journal.readonly import open_to_read
from closeout.run.files_of_run import files_of

__all__ = ["files_command"]


def files_command(run_id: str, names: Sequence[str], output: str, *, yes: bool, as_json: bool) -> int:
    """List the files that a run left, or write them into a folder. Return the exit code.

    Args:
        run_id: The run.
        names: The names of the files; all by default. A file of the task may be named too.
        output: The folder; empty to list the files.
        yes: Replace existing files.
        as_json: Print a JSON object.
    """
    with open_to_read(home_folder()) as store:
        found = files_of((row.event for row in store.rows(run_id)), store.content)
        known = {file.name: file for file in found.all()}
        files = [_named(name, known, run_id) for name in names] if names else list(found.left())
        written = _write(files, Path(output), replace=yes) if output else []
    if as_json:
        print_json({"run_id": run_id, "files": [file.to_dict() for file in files], "written": [*map(str, written)]})
    elif output:
        print(f"{amount(len(written), 'file')} in {output}.")
    elif not files:
        print("The run left no files.")
    else:
        for file in files:
            print(printable(f"{file.name}  {file.media_type}  {shown_size(file.size)}"))
    return 0


def _named(name: str, known: dict[str, File], run_id: str) -> File:
    if name not in known:
        has = f"It has: {', '.join(known)}." if known else "It has no files."
        raise UsageError(f"Run {run_id} has no file {name!r}. {has}")
    return known[name]


def _write(files: Sequence[File], folder: Path, *, replace: bool) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file. Pass a folder.")
    there = [file.name for file in files if (folder / file.name).exists()]
    if there and not replace:
        raise UsageError(f"{folder / there[0]} exists already. Add --yes to replace it, or pass another folder.")
    try:
        return [file.save(folder) for file in files]
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}. Pass another folder.") from None
