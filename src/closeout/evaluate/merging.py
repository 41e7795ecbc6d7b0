"""Shards: an evaluation divided among several machines, each with its own home, and merged again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from closeout.errors import UsageError
from closeout.evaluate.report import EvalReport, read_report
from closeout.evaluate.trials import TrialStore, evaluation_file
from closeout.homes import DatabaseHome, Home
from closeout.journal.copying import copy_runs
from closeout.journal.store import open_store
from closeout.run.plan import differences

__all__ = ["merge", "shard_home", "shard_homes"]


def shard_home(home: Home, name: str, shard: int, shards: int) -> Path:
    """Return the home of a shard: a folder in the home that all shards share."""
    evaluation_file(home, name)  # the name can be part of a path
    width = len(str(shards))
    return home / "shards" / name / f"{shard:0{width}}-of-{shards}"


def shard_homes(home: Home, name: str) -> list[Path]:
    """Return the homes of the shards of an evaluation.

    Raises:
        UsageError: The home has no shards of the evaluation.
    """
    found = sorted(folder for folder in (home / "shards" / name).glob("*-of-*") if folder.is_dir())
    if not found:
        raise UsageError(f"There are no shards of {name} in {home / 'shards'}. Name their homes.")
    return found


def merge(name: str, sources: Sequence[Path], home: Home, *, runs: bool = True) -> EvalReport:
    """Copy the trials of an evaluation and their runs from other homes. It may be repeated: nothing is copied twice.

    Args:
        name: The evaluation.
        sources: The homes that have parts of it.
        home: The home that gets all of it.
        runs: Copy the runs too, not only the trials and their scores.

    Raises:
        UsageError: A home does not have the evaluation, or has it with another agent or other tasks.
        JournalError: A journal cannot be read or written.
    """
    parts = [TrialStore(evaluation_file(source, name)) for source in sources]
    try:
        spec = parts[0].spec
        for source, part in zip(sources, parts, strict=True):
            if found := differences(spec["agent"], part.spec["agent"]):
                raise UsageError(f"{source} has {name} with another agent: {'; '.join(found)}.")
        with TrialStore(evaluation_file(home, name), spec) as whole:
            for source, part in zip(sources, parts, strict=True):
                if isinstance(home, DatabaseHome) or os.path.realpath(source) != os.path.realpath(home):
                    if runs:
                        copy_runs(source, open_store(home))
                    whole.add_part(part.path)
            return read_report(whole)
    finally:
        for part in parts:
            part.close()
