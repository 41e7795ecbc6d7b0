"""`closeout runs export | import | trust | delete | prune`: move runs between journals, and remove them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from closeout.cli.selecting import RunFilter
from closeout.cli.terminal import amount, confirmed, print_json
from closeout.config import home_folder, load_config
from closeout.errors import JournalError, UsageError
from closeout.journal.copying import copy_runs
from closeout.journal.database import FILE_NAME
from closeout.journal.holds import held_runs
from closeout.journal.readonly import open_to_read
from closeout.journal.retention import UNENDED, ended_before
from closeout.journal.retention import delete_runs as delete_kept_runs
from closeout.journal.store import Store, open_store
from closeout.lab.foreign_runs import import_foreign

__all__ = ["delete_runs", "export_runs", "import_runs", "prune_runs", "report_done", "trust_runs"]


def export_runs(run_ids: Sequence[str], wanted: RunFilter, output: str, *, as_json: bool) -> int:
    """Write runs, those that match a filter or all, into one file. Return the exit code."""
    if not output:
        raise UsageError("export needs a file to write. Add -o runs.closeout.")
    target, home = Path(output), home_folder()
    if target.exists():
        raise UsageError(f"{output} exists already. Choose another name, or remove it first.")
    with open_to_read(home) as store:
        chosen = [store.run(run_id).run_id for run_id in run_ids] or [each.run_id for each in wanted.select(store)]
        if not chosen:
            raise UsageError("There is no such run, so nothing was written. `closeout runs` lists the runs.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".closeout-export-") as folder:
        with closing(Store(Path(folder))) as copy:
            count = copy_runs(home, copy, frozenset(chosen))
        shutil.move(Path(folder) / FILE_NAME, target)
    return report_done({"exported": count, "file": str(target)}, f"{amount(count, 'run')} in {output}", as_json=as_json)


def import_runs(files: Sequence[str], *, as_json: bool) -> int:
    """Copy the runs of exported files, of other homes, or of other tools into this journal. Return the exit code."""
    if not files:
        raise UsageError("import needs a file. Write: closeout runs import runs.closeout")
    store, count = open_store(home_folder()), 0
    for place in map(Path, files):
        if not place.exists():
            raise JournalError(f"No such file: {place}. Nothing of it was imported.")
        count += copy_runs(place, store, untrusted=True) if _is_ours(place) else import_foreign(place, store)
    text = f"{amount(count, 'run')} imported" if count else "Nothing new: the journal has runs of these names already"
    return report_done({"imported": count}, text, as_json=as_json)


def _is_ours(file: Path) -> bool:
    if file.is_dir():
        return True
    with file.open("rb") as opened:
        return opened.read(64).lstrip()[:1] not in (b"{", b"[")  # what other tools export is JSON


def trust_runs(run_ids: Sequence[str], *, as_json: bool) -> int:
    """Let imported runs start what their records name. Return the exit code."""
    if not run_ids:
        raise UsageError("trust needs the ids of imported runs. Write: closeout runs trust RUN_ID")
    store = open_store(home_folder())
    for run_id in run_ids:
        store.trust_run(run_id)
    return report_done({"trusted": len(run_ids)}, f"{amount(len(run_ids), 'run')} trusted", as_json=as_json)


def delete_runs(run_ids: Sequence[str], *, as_json: bool) -> int:
    """Delete runs by their ids. Return the exit code."""
    if not run_ids:
        raise UsageError(
            "delete needs the ids of runs. `closeout runs` lists them; `closeout runs prune` deletes by age."
        )
    count = delete_kept_runs(open_store(home_folder()), run_ids)
    return report_done({"deleted": count}, f"{amount(count, 'run')} deleted", as_json=as_json)


def prune_runs(wanted: RunFilter, *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Delete the runs that match a filter, or are older than the setting `journal.keep_days`.

    Runs that are being executed or on hold stay, and those that wait unless the filter says so.
    """
    days = load_config().journal.keep_days
    if not wanted.is_set and days is None:
        raise UsageError(
            "prune needs a filter, or the setting journal.keep_days. Write: closeout runs prune --older-than 30d"
        )
    with open_to_read(home_folder()) as store:
        if wanted.is_set:
            runs = wanted.select(store)
            chosen = [each.run_id for each in runs if each.status not in UNENDED or each.status == wanted.status]
        else:
            assert days is not None
            chosen = ended_before(store, days)
        held = held_runs(store)
    free = [run_id for run_id in chosen if run_id not in held]
    kept = len(chosen) - len(free)
    if dry_run:
        if not as_json:
            print("".join(f"{run_id}\n" for run_id in free), end="")
        text = f"{amount(len(free), 'run')} would be deleted"
        return report_done({"would_delete": free, "held": kept}, text, as_json=as_json)
    if free and not yes and not confirmed("prune", amount(len(free), "run")):
        return report_done({"deleted": 0}, "Nothing was deleted", as_json=as_json)
    count = delete_kept_runs(open_store(home_folder()), free) if free else 0
    text = f"{amount(count, 'run')} deleted" + (f"; {kept} kept, because of `closeout data hold`" if kept else "")
    return report_done({"deleted": count, "held": kept}, text, as_json=as_json)


def report_done(result: dict[str, object], text: str, *, as_json: bool) -> int:
    """Say what was done. Return the exit code."""
    if as_json:
        print_json(result)
    else:
        print(f"{text}.")
    return 0
