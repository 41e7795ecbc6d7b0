"""The folder that a script works in: the run's files are put there, and what the script leaves is collected."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.file_values import MAX_FILE_SIZE, File, FileView, shown_size

__all__ = ["FilesLeft", "WorkFolder", "read_left_file"]

MAX_ENTRIES = 2_000  # files, and folders, that are looked at after a script; more are not kept
MAX_DEPTH = 100  # folders in one another; the name of a file has no room for more
_CACHES = frozenset({"__pycache__"})
_NAMED = 8  # Files of each kind that are listed for the model.
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesLeft:
    """The files that a script left.

    Attributes:
        files: New and changed files.
        removed: The names of files of earlier calls that it removed.
        problems: Why other files are not kept, a short text for each.
    """

    files: tuple[File, ...] = ()
    removed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def text(self) -> str:
        """Return it for the model, empty if nothing changed."""
        written = [f"{file.name} ({file.media_type}, {shown_size(file.size)})" for file in self.files]
        lines = (("Files written", written), ("Files removed", self.removed), ("Files not kept", self.problems))
        return "\n".join(f"{title}: {_listed(found)}" for title, found in lines if found)


def _listed(found: Any) -> str:
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return "; ".join(found[:_NAMED]) + more


class WorkFolder:
    """A folder with the files of a run.

    Args:
        path: The folder, which is empty.
        view: The files.
    """

    def __init__(self, path: Path, view: FileView) -> None:
        self.path = path
        self._view = view
        self._before: dict[str, tuple[int, ...]] = {}  # the state of each file before the script runs

    @property
    def read_only(self) -> list[str]:
        """The paths of the files that the script must not change."""
        return [str(self.path / name) for name, file in self._view.items() if file.read_only]

    def fill(self) -> None:
        """Write the files into the folder."""
        for name, file in self._view.items():
            target = self.path / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.data)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # concurrent calls left a file and a folder of one name: the first stays
            if file.read_only:
                target.chmod(0o444)
            self._before[name] = _state(target.stat())

    def collect(self) -> FilesLeft:
        """Return what the script has changed. Links and devices are never followed or read, nor hidden files kept."""
        found: dict[str, File] = {}
        problems: list[str] = []
        seen: set[str] = set()
        kept = {name for name in self._before if not self._view[name].read_only}
        try:
            with closing(_entries(str(self.path))) as entries:
                for name, descriptor in entries:
                    if len(seen) >= MAX_ENTRIES:
                        raise _TooManyEntries
                    seen.add(name)
                    if problem := self._take(name, descriptor, found):
                        problems.append(f"{name!r:.120} ({problem})")
        except _TooManyEntries:  # what was removed is then not known
            problems.append(f"the folder has more than {MAX_ENTRIES:,} files or folders")
            return FilesLeft(files=tuple(found.values()), problems=tuple(problems))
        removed = tuple(sorted(kept - seen))
        return FilesLeft(files=tuple(found.values()), removed=removed, problems=tuple(problems))

    def _take(self, name: str, descriptor: int | None, found: dict[str, File]) -> str:
        """Read a file if it is new or changed. Returns why it is not kept, if it is not."""
        status = None if descriptor is None else os.fstat(descriptor)
        if descriptor is None or status is None or not stat.S_ISREG(status.st_mode):
            return "it is a link or a device, is in too many folders, or cannot be read"
        if self._before.get(name) == _state(status):
            return ""
        added = sum(file.size for file in found.values())
        if refusal := self._view.refusal(name, status.st_size, found, added):
            return refusal
        data = _read_bytes(descriptor, status.st_size)
        file, earlier = File(name, data), self._view.get(name)
        if earlier is None or earlier.sha256 != file.sha256:
            found[name] = file
        return ""


class _TooManyEntries(Exception):
    """A script left more than is looked at."""


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _entries(root: str) -> Generator[tuple[str, int | None]]:
    """Yield the files below a folder by name, each with a descriptor to read it, None for what is not opened.

    The descriptors are opened in opened folders: a process that the script left cannot lead them elsewhere. Each is
    closed when the next is asked for.
    """
    for name, descriptor in _opened_entries(root):
        try:
            yield name, descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _opened_entries(root: str) -> Iterator[tuple[str, int | None]]:
    count = 0
    if not hasattr(os, "fwalk"):  # Windows, where scripts are not isolated
        for folder, folders, names in os.walk(root):
            count = _count(folders, count)
            below = Path(folder).relative_to(root)
            for name in sorted(names):
                if not name.startswith("."):
                    path = Path(folder, name)
                    yield (below / name).as_posix(), None if path.is_symlink() else _opened(str(path))
        return
    for folder, folders, names, descriptor in os.fwalk(root, follow_symlinks=False):
        count = _count(folders, count)
        below = Path(folder).relative_to(root)
        passed = {name for name in folders if _is_link(name, descriptor)}
        if len(below.parts) == MAX_DEPTH:  # each folder around it is open
            passed.update(folders)
            folders.clear()
        for name in sorted((*names, *passed)):
            if not name.startswith("."):
                yield (below / name).as_posix(), None if name in passed else _opened(name, descriptor)


def _count(folders: list[str], before: int) -> int:
    """Leave out and sort the folders in a folder, and return the number of all so far."""
    folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _CACHES)
    if before + len(folders) > MAX_ENTRIES:
        raise _TooManyEntries
    return before + len(folders)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:  # a process that the script left has removed it
        return True


def _opened(path: str, folder: int | None = None) -> int | None:
    try:
        return os.open(path, _READING, dir_fd=folder)
    except OSError:
        return None


def _read_bytes(descriptor: int, size: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(min(size, MAX_FILE_SIZE))


def read_left_file(path: str, most: int) -> bytes:
    """Return the bytes of a file that a script may have written, up to a limit; empty if it is no regular file."""
    descriptor = _opened(path)
    if descriptor is None:
        return b""
    try:
        status = os.fstat(descriptor)
        return _read_bytes(descriptor, min(status.st_size, most)) if stat.S_ISREG(status.st_mode) else b""
    finally:
        os.close(descriptor)
