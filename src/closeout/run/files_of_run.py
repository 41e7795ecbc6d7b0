"""The files of a run: those that it begins with, and those that its calls leave. A view of its events."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

from closeout.errors import JournalError
from closeout.file_values import NO_FILES, File, FileView
from closeout.journal.events import Event, RunStarted, ToolFinished

__all__ = ["Load", "RunFiles", "files_of", "later_files", "no_content"]

Load: TypeAlias = Callable[[str], bytes]
_Place: TypeAlias = tuple[float, ...]
_CALLS = re.compile(r"/r(\d+):")
_END = float("inf")  # a call leaves its files after the calls below it


@dataclass(slots=True)
class RunFiles:
    """The files of one run, which all its agents share.

    What counts is where a call is in the run, not when it ended: a run that is resumed, whose calls end in another
    order, has the same files. A call sees what the calls before it left.

    Attributes:
        load: Returns the content with a SHA-256.
    """

    load: Load
    _begun: dict[str, File] = field(default_factory=dict)
    _left: dict[str, dict[_Place, File | None]] = field(default_factory=dict)  # keyed by name; None: removed
    _variables: dict[str, dict[_Place, File]] = field(default_factory=dict)  # keyed by agent
    _sizes: dict[str, int] = field(default_factory=dict)  # sizes of all contents, keyed by SHA-256

    def __call__(self, event: Any) -> None:
        """Take over what an event says of files."""
        if type(event) is ToolFinished:
            if event.files:
                self._finished(event)
        elif type(event) is RunStarted:
            self.begin([File.recorded(each, self.load) for each in event.kept_files])

    def begin(self, files: Iterable[File]) -> None:
        """Begin with files."""
        for file in files:
            self._begun[file.name] = file
            self._sizes[file.sha256] = file.size

    def _finished(self, event: ToolFinished) -> None:
        place = (*_place(event.agent, event.handle), _END)
        for each in event.files:
            if each.get("removed"):
                self._left.setdefault(str(each["name"]), {})[place] = None
            elif each.get("hidden"):
                self._variables.setdefault(event.agent, {})[place] = File.recorded(each, self.load)
            else:
                file = File.recorded(each, self.load)
                self._left.setdefault(file.name, {})[place] = file
            if "sha256" in each:
                self._sizes[str(each["sha256"])] = int(each["size"])

    def before(self, agent: str, handle: str) -> FileView:
        """Return the files that a call sees."""
        if not self._sizes:
            return NO_FILES
        place = _place(agent, handle)
        files = dict(self._begun)
        for name, versions in self._left.items():
            earlier = [each for each in versions if each < place]
            found = versions[max(earlier)] if earlier else self._begun.get(name)
            if found is None:
                files.pop(name, None)
            else:
                files[name] = found
        kept = {each: file for each, file in self._variables.get(agent, {}).items() if each < place}
        variables = kept[max(kept)] if kept else None
        return FileView(files, variables=variables, size=sum(self._sizes.values()))

    def left(self) -> tuple[File, ...]:
        """Return the files that the run left, the latest version of each, in the order of the calls that left them.

        Those that scripts can only read, such as a skill's, are not left by the run.
        """
        latest = [(max(versions), versions) for versions in self._left.values()]
        found = (versions[place] for place, versions in sorted(latest, key=itemgetter(0)))
        return tuple(file for file in found if file is not None and not file.read_only)

    def all(self) -> tuple[File, ...]:
        """Return the files that the run began with, as far as they are there, and those that it left."""
        removed = {name for name, versions in self._left.items() if versions[max(versions)] is None}
        files = {name: file for name, file in self._begun.items() if name not in removed}
        return tuple({**files, **{file.name: file for file in self.left()}}.values())


def files_of(events: Iterable[Event], load: Load) -> RunFiles:
    """Return the files of a recorded run. `load` returns the content with a SHA-256."""
    files = RunFiles(load)
    for event in events:
        files(event)
    return files


def later_files(given: Sequence[File], earlier: Iterable[File]) -> tuple[File, ...]:
    """Return what a message of a session begins with: its own files, and those of earlier messages of other names."""
    names = {file.name.casefold() for file in given}
    return (*given, *(file for file in earlier if file.name.casefold() not in names))


def no_content(sha256: str) -> bytes:
    """Raise JournalError: only the events of a run are loaded."""
    raise JournalError(f"The content of a file ({sha256[:12]}…) is not in this record of the run.")


def _place(agent: str, handle: str) -> _Place:
    """The place of a call in its run: the numbers of the calls above it, and its own."""
    return (*(int(number) for number in _CALLS.findall(agent)), int(handle.removeprefix("r")))
