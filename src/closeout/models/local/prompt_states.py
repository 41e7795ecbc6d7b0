"""Files with the state of an embedded model after the fixed beginning of a prompt, so that it is read only once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from pathlib import Path

__all__ = ["PromptStates"]

# Bytes of all states together.
MOST_BYTES = 512 << 20
_SUFFIX = ".state"
_ABANDONED = 3600.0  # seconds after which an unfinished file is deleted


class PromptStates:
    """States by key. A state's file name holds its SHA-256, so a damaged one is found out and deleted.

    Beyond `most_bytes`, the states that were not used for longest are deleted.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most = most_bytes

    @staticmethod
    def key(*parts: str) -> str:
        """Make the key of a state from all that it depends on."""
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def find(self, key: str) -> str | None:
        """Return the name of the undamaged file of a state, and note that it is used; None if it is missing."""
        for file in self.folder.glob(f"{key}-*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if file.name == self._name(key, file):
                    os.utime(file)
                    return file.name
                file.unlink()
        return None

    def begin(self) -> str:
        """Make the folder and return the name of a new file to write a state into."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return f"{secrets.token_hex(8)}.part"

    def finish(self, key: str, name: str) -> None:
        """Keep the state that was written into a file of `begin`, and delete what exceeds the limit."""
        written = self.folder / name
        written.replace(self.folder / self._name(key, written))
        self._prune()

    def discard(self, name: str) -> None:
        """Delete a file."""
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    def _name(self, key: str, file: Path) -> str:
        with file.open("rb") as opened:
            return f"{key}-{hashlib.file_digest(opened, 'sha256').hexdigest()[:32]}{_SUFFIX}"

    def _prune(self) -> None:
        kept: list[tuple[float, int, Path]] = []
        for file in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process deletes, too
                stat = file.stat()
                if file.suffix == _SUFFIX:
                    kept.append((stat.st_mtime, stat.st_size, file))
                elif file.suffix == ".part" and stat.st_mtime < time.time() - _ABANDONED:
                    file.unlink()
        total = sum(size for _, size, _ in kept)
        for _, size, file in sorted(kept)[:-1]:
            if total <= self._most:
                return
            self.discard(file.name)
            total -= size
