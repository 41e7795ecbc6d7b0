"""The files that a program in the sandbox can open: those of its run. They are in memory, and nothing else is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic_monty import AbstractOS, MontyFileHandle, StatResult

from closeout.errors import UsageError
from closeout.file_values import File, FileView, check_file_name

__all__ = ["ProgramFiles"]

MAX_FOLDERS = 1_000  # Folders that a program may make.
EPOCH = 0.0  # the time of every file: the same when a program is executed again


class ProgramFiles(AbstractOS):  # type: ignore[misc]  # an extra's, which type checkers may not find
    """The files of a run as a program sees and changes them.

    Args:
        view: The files of the run.
    """

    def __init__(self, view: FileView) -> None:
        self._view = view
        self._files: dict[str, File] = dict(view)  # those that the program has not changed
        self._written: dict[str, bytearray] = {}
        self._folders: set[str] = set()

    def add(self, files: Sequence[File]) -> None:
        """Add files that a call of the program left."""
        for file in files:
            if not file.hidden:
                self._files[file.name] = file
                self._written.pop(file.name, None)

    def left(self) -> tuple[File, ...]:
        """Return the files that the program wrote and that differ from what was there."""
        found = [File(name, bytes(data)) for name, data in self._written.items()]
        return tuple(file for file in found if file != self._view.get(file.name))

    def removed(self) -> tuple[str, ...]:
        """Return the names of the files that it removed."""
        return tuple(sorted(name for name in self._view if name not in self._files and name not in self._written))

    # -------------------------------------------------------------------------------------------- looking

    def path_exists(self, path: PurePosixPath) -> bool:
        return self.path_is_file(path) or self.path_is_dir(path)

    def path_is_file(self, path: PurePosixPath) -> bool:
        return _name(path) in self._written or _name(path) in self._files

    def path_is_dir(self, path: PurePosixPath) -> bool:
        name = _name(path)
        return not name or name in self._folders or any(each.startswith(f"{name}/") for each in self._all())

    def path_is_symlink(self, path: PurePosixPath) -> bool:
        return False

    def path_iterdir(self, path: PurePosixPath) -> list[PurePosixPath]:
        self._check_folder(path)
        start = f"{_name(path)}/".removeprefix("/")
        below = {each[len(start) :].partition("/")[0] for each in self._all() if each.startswith(start)}
        return [path / name for name in sorted(below)]

    def path_stat(self, path: PurePosixPath) -> StatResult:
        name = _name(path)
        if name in self._written:
            return StatResult.file_stat(len(self._written[name]), mtime=EPOCH)
        if name in self._files:
            return StatResult.file_stat(self._files[name].size, mtime=EPOCH)
        self._check_folder(path)
        return StatResult.dir_stat(mtime=EPOCH)

    def path_resolve(self, path: PurePosixPath) -> str:
        return str(path)

    path_absolute = path_resolve

    def getenv(self, key: str, default: str | None = None) -> str | None:
        return default

    def get_environ(self) -> dict[str, str]:
        return {}

    # -------------------------------------------------------------------------------------------- reading

    def path_open(self, path: PurePosixPath, mode: str) -> MontyFileHandle:
        handle = MontyFileHandle(str(path), mode)
        if handle.mode[0] == "r":
            self._check_file(path)
        elif handle.mode[0] == "w" or not self.path_is_file(path):
            self._write(path, b"")
        return handle

    def path_read_bytes(self, path: PurePosixPath | MontyFileHandle) -> bytes:
        path = _path(path)
        self._check_file(path)
        name = _name(path)
        return bytes(self._written[name]) if name in self._written else self._files[name].data

    def path_read_text(self, path: PurePosixPath | MontyFileHandle) -> str:
        return self.path_read_bytes(path).decode()

    # -------------------------------------------------------------------------------------------- writing

    def path_write_bytes(self, path: PurePosixPath | MontyFileHandle, data: bytes) -> int:
        self._write(_path(path), data)
        return len(data)

    def path_write_text(self, path: PurePosixPath | MontyFileHandle, data: str) -> int:
        self._write(_path(path), data.encode())
        return len(data)

    def path_append_bytes(self, path: PurePosixPath | MontyFileHandle, data: bytes) -> int:
        path = _path(path)
        name = _name(path)
        if name not in self._written:
            self._write(path, self._files[name].data if name in self._files else b"")
        content = self._written[name]
        self._check_room(name, len(content) + len(data))
        content += data
        return len(data)

    def path_append_text(self, path: PurePosixPath | MontyFileHandle, data: str) -> int:
        self.path_append_bytes(path, data.encode())
        return len(data)

    def path_mkdir(self, path: PurePosixPath, parents: bool, exist_ok: bool) -> None:
        if self.path_is_file(path) or (self.path_is_dir(path) and not exist_ok):
            raise FileExistsError(f"[Errno 17] File exists: {str(path)!r}")
        if not parents:
            self._check_folder(path.parent)
        try:
            check_file_name(_name(path))
        except UsageError as error:
            raise OSError(str(error)) from None
        self._folders |= {_name(each) for each in (path, *path.parents)} - {""}
        if len(self._folders) > MAX_FOLDERS:
            raise OSError(f"A program may make {MAX_FOLDERS:,} folders.")

    def path_unlink(self, path: PurePosixPath) -> None:
        self._check_file(path)
        self._check_writable(_name(path))
        self._written.pop(_name(path), None)
        self._files.pop(_name(path), None)

    def path_rmdir(self, path: PurePosixPath) -> None:
        if self.path_iterdir(path):
            raise OSError(f"[Errno 39] Directory not empty: {str(path)!r}")
        self._folders.discard(_name(path))

    def path_rename(self, path: PurePosixPath, target: PurePosixPath) -> None:
        if not self.path_is_file(path):
            raise OSError(f"Only files can be renamed here, {str(path)!r} is none.")
        self._check_writable(_name(path))
        if path != target:
            self._write(target, self.path_read_bytes(path))
            self.path_unlink(path)

    def _write(self, path: PurePosixPath, data: bytes) -> None:
        if self.path_is_dir(path):
            raise IsADirectoryError(f"[Errno 21] Is a directory: {str(path)!r}")
        self._check_folder(path.parent)
        self._check_writable(_name(path))
        self._check_room(_name(path), len(data))
        self._written[_name(path)] = bytearray(data)
        self._files.pop(_name(path), None)

    # -------------------------------------------------------------------------------------------- rules

    def _all(self) -> Iterator[str]:
        yield from self._files
        yield from self._written
        yield from self._folders

    def _check_file(self, path: PurePosixPath) -> None:
        if self.path_is_dir(path):
            raise IsADirectoryError(f"[Errno 21] Is a directory: {str(path)!r}")
        if not self.path_is_file(path):
            raise FileNotFoundError(f"[Errno 2] No such file or directory: {str(path)!r}")

    def _check_folder(self, path: PurePosixPath) -> None:
        if self.path_is_file(path):
            raise NotADirectoryError(f"[Errno 20] Not a directory: {str(path)!r}")
        if not self.path_is_dir(path):
            raise FileNotFoundError(f"[Errno 2] No such file or directory: {str(path)!r}")

    def _check_writable(self, name: str) -> None:
        if name in self._view and self._view[name].read_only:
            raise PermissionError(f"{name!r} is a file of the task, which stays as it is. Write to another name.")

    def _check_room(self, name: str, size: int) -> None:
        others = {each: len(data) for each, data in self._written.items() if each != name}
        if problem := self._view.refusal(name, size, others.keys(), sum(others.values())):
            raise OSError(f"{name!r:.120} cannot be written: {problem}.")


def _path(given: Any) -> PurePosixPath:
    return PurePosixPath(given.path) if isinstance(given, MontyFileHandle) else given


def _name(path: PurePosixPath) -> str:
    return str(path).lstrip("/")
