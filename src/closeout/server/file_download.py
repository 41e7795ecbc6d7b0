"""The files of a run over HTTP: as data to save, never as a page of this origin."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from aiohttp import web

from closeout.errors import RunNotFound
from closeout.file_values import File
from closeout.journal.store import Row, Store
from closeout.run.files_of_run import RunFiles, files_of

__all__ = ["file_response", "files_shape", "find_file", "run_files"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._ -]")


def run_files(store: Store, rows: Iterable[Row]) -> RunFiles:
    """Return the files of a run, from its events."""
    return files_of((row.event for row in rows), store.content)


def files_shape(files: RunFiles) -> list[dict[str, Any]]:
    """Return the files that a run left, then those that it began with, without their content."""
    left = files.left()
    begun = [file for file in files.all() if file not in left]
    return [{**file.to_dict(), "left": file in left, "image": file.is_image} for file in (*left, *begun)]


def find_file(files: RunFiles, run_id: str, name: str) -> File:
    """Return a file by its name. Raises RunNotFound."""
    for file in files.all():
        if file.name == name:
            return file
    raise RunNotFound(f"Run {run_id} has no file {name[:100]!r}.")


def file_response(file: File, data: bytes) -> web.Response:
    """Return the response with a file.

    A browser saves it instead of opening it: it is an attachment, and only pictures have a type that a page can show.
    The server's headers do the rest: no sniffing, a sandbox without scripts, no use by other origins.
    """
    last = file.name.rpartition("/")[2]
    plain = _UNSAFE.sub("_", last)
    return web.Response(
        body=data,
        content_type=file.media_type if file.is_image else "application/octet-stream",
        headers={"Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(last, safe='')}"},
    )
