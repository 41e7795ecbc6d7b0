"""Files that several processes use: replaced whole or not at all, and locked while one of them is at work."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["try_lock", "write_whole"]


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file in place of the one before. A reader sees all of the one or all of the other.

    Args:
        path: The file. Its folder must exist.
        data: The content.
        private: Only the owner may read it, and it is synced to disk; otherwise it is like any file of the process.

    Raises:
        OSError: The file cannot be written. The one before stays.
    """
    draft = path.with_name(f".closeout-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    number = os.open(draft, flags, 0o600 if private else 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            if private:
                file.flush()
                os.fsync(number)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def try_lock(path: Path) -> BinaryIO | None:
    """Lock a file, which is made for that, and return it; None if another process or thread has locked it.

    Unlink the file and close it to release the lock. The system releases it when the process dies.
    """
    file = path.open("ab")
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us removes the file, and a lock on a removed file excludes nobody.
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except OSError:
        pass
    file.close()
    return None
